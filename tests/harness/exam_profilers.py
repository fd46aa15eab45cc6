"""Programs that use the profiler themselves, and programs that fork while ours has been at work."""

from .exam_torch import HEAD

_COUNT = """
    import collections

    def tell(profiler):
        # Python calls are left out: their names hold addresses, and frames of ours are below the program's.
        events = profiler.events() if hasattr(profiler, "events") else profiler.function_events
        names = [event.name for event in events]
        counts = collections.Counter(name for name in names if "): " not in name and not name.startswith("<"))
        print(sum(counts.values()), sorted(counts.items()), flush=True)

"""

# Our phases, for a training program: its first steps are watched, 20 are timed, then five are profiled.
OWN_PROFILERS = {
    "before_any_step": """
    with torch.profiler.profile() as profiler:
        train(3)
    tell(profiler)
    train(60)
""",
    "in_the_first_steps": """
    train(2)
    with torch.profiler.profile(record_shapes=True) as profiler:
        train(3)
    tell(profiler)
    train(60)
""",
    "within_our_window": """
    train(26)
    with torch.profiler.profile(with_stack=True, profile_memory=True) as profiler:
        train(3)
    tell(profiler)
    train(60)
""",
    "after_our_window": """
    train(120)
    with torch.profiler.profile() as profiler:
        train(3)
    tell(profiler)
""",
    "the_old_way": """
    train(26)
    with torch.autograd.profiler.profile() as profiler:
        train(3)
    tell(profiler)
    train(60)
    with torch.autograd.profiler.profile(use_kineto=False) as profiler:
        train(3)
    tell(profiler)
""",
    "in_another_thread": """
    import threading

    def work():
        with torch.profiler.profile() as profiler:
            train(3)
        tell(profiler)

    train(26)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    train(60)
""",
    "by_a_schedule": """
    schedule = torch.profiler.schedule(skip_first=2, wait=5, warmup=2, active=3, repeat=3)
    with torch.profiler.profile(schedule=schedule, on_trace_ready=tell) as profiler:
        for _ in range(60):
            train(1)
            profiler.step()
""",
    "many_times": """
    for steps in (1, 1, 1, 25, 2, 30):
        train(steps)
        with torch.profiler.profile() as profiler:
            train(2)
        tell(profiler)
        profiler.export_chrome_trace("theirs.json")
    print(os.path.getsize("theirs.json") > 1000)
""",
}

# The child leaves through sys.exit, with the profiler active in the parent, stopped before, or active in the child.
FORKS = {
    "under_an_active_profiler": """
    train(26)
    child = os.fork()
    if child == 0:
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), train(40))
""",
    "after_a_finished_profiler": """
    train(120)
    child = os.fork()
    if child == 0:
        train(2)
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "and_returns_to_us": """
    train(26)
    child = os.fork()
    if child == 0:
        train(40)
        print("child")
    else:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), train(40))
""",
    "and_raises": """
    train(26)
    child = os.fork()
    if child == 0:
        raise SystemExit("from the child")
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), train(40))
""",
}


def profiling_program(name: str) -> str:
    """The text of one of the programs that use the profiler."""
    return HEAD + _COUNT + OWN_PROFILERS[name]


def forking_program(name: str) -> str:
    """The text of one of the programs that fork."""
    return HEAD + FORKS[name]
