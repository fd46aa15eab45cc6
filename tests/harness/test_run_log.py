"""A whole run in short: what is between its steps and where, steps that grow, hooks that pile up."""

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch

from bottleneck.harness.run_log import (
    LinePlace,
    LineWatch,
    QuickHandover,
    RunLog,
    StackSample,
    find_piled_hooks,
    innermost_line,
    kind_of,
    read_stack,
    summarise_run,
)
from bottleneck.harness.torch_private import CompiledGraph

MAIN, LOOP = ("train.py", 90, "<module>"), ("train.py", 88, "main")
FUNCTIONS = frozenset({("train.py", "<module>"), ("train.py", "main")})


def log_of(steps_us: Iterable[float], **fields: Any) -> RunLog:
    log = RunLog(functions=FUNCTIONS, **fields)
    log.ticks.append(0)
    for us in steps_us:
        log.ticks.append(log.ticks[-1] + round(us * 1000))
    return log


def with_evaluation() -> RunLog:
    """Steps of 1 ms, of which every tenth is followed by 40 ms of something else."""
    return log_of([1000.0 + 40_000.0 * (number % 10 == 9) for number in range(100)])


def sampled(log: RunLog, *inner: tuple[str, int, str], kind: Any = None) -> RunLog:
    """One sample in the middle of each long step, with these frames inside the loop."""
    for begin, end in zip(log.ticks, log.ticks[1:], strict=False):
        if end - begin > 2_000_000:
            log.samples.append(StackSample((begin + end) // 2, (MAIN, LOOP, *inner), kind))
    return log


def test_time_in_no_usual_step_is_told_with_the_line_of_the_loop_and_the_function_it_calls() -> None:
    run = summarise_run(sampled(with_evaluation(), ("train.py", 30, "evaluate"), ("model.py", 5, "score")))
    assert run is not None
    assert (run.steps, run.gaps, run.typical_us) == (100, 10, 1000.0)
    assert run.elsewhere_share == pytest.approx(400 / 500)
    (place,) = run.places
    assert (place.words(), place.kind, place.share) == ("evaluate(), train.py:88", None, 1.0)
    assert place.inner == "model.py:5"
    assert run.growth is None


def test_long_steps_at_lines_of_the_steps_were_held_up() -> None:
    log = sampled(with_evaluation())
    log.step_lines = frozenset({"train.py:88"})
    run = summarise_run(log)
    assert run is not None
    assert (run.elsewhere_us, run.held_us, run.places) == (0.0, pytest.approx(400_000.0), ())


@pytest.mark.parametrize(("evaluation_us", "held_us"), [(9000.0, 0.0), (4000.0, 5000.0)])
def test_the_usual_work_of_a_long_step_is_not_held_up(evaluation_us: float, held_us: float) -> None:
    """Each tenth step takes 10 ms, of which 1 ms is the step as ever: 9 ms hold an evaluation, or a delay too."""
    log = log_of([1000.0 + 9000.0 * (number % 10 == 9) for number in range(100)])
    log.step_lines = frozenset({"train.py:88"})
    evaluate = (MAIN, ("train.py", 89, "main"), ("train.py", 30, "evaluate"))
    for begin_ns in log.ticks[9:100:10]:
        for ms in range(10):
            stack = evaluate if ms * 1000 < evaluation_us else (MAIN, LOOP)
            log.samples.append(StackSample(begin_ns + ms * 1_000_000 + 500_000, stack, None))
    run = summarise_run(log)
    assert run is not None
    assert run.elsewhere_us == pytest.approx(10 * evaluation_us)
    assert run.held_us == pytest.approx(10 * held_us)


@pytest.mark.parametrize(("first_us", "share"), [(41_000.0, 1.0), (161_000.0, 320 / 480)])
def test_gaps_before_sampling_began_are_like_later_ones_that_take_as_long(first_us: float, share: float) -> None:
    lengths_us = [1000.0 + 40_000.0 * (number % 10 == 9) for number in range(100)]
    lengths_us[9] = first_us
    lengths_us[19] = 1000.0
    log = sampled(log_of(lengths_us), ("train.py", 30, "evaluate"))
    del log.samples[:1]  # sampling began after the first gap
    run = summarise_run(log)
    assert run is not None
    (place,) = run.places
    assert place.share == pytest.approx(share)


def test_steps_that_are_alike_leave_nothing_elsewhere() -> None:
    run = summarise_run(log_of([1000.0, 1400.0] * 20))
    assert run is not None
    assert (run.elsewhere_us, run.gaps, run.places) == (0.0, 0, ())


def test_profiled_steps_and_our_own_time_do_not_count() -> None:
    log = log_of([1000.0] * 30 + [50_000.0] + [1000.0] * 30 + [21_000.0])
    log.profiled.add(30)
    log.own_ns[61] = 20_000_000
    run = summarise_run(log)
    assert run is not None
    assert (run.steps, run.total_us, run.elsewhere_us) == (61, 61_000.0, 0.0)


def test_few_steps_tell_nothing() -> None:
    assert summarise_run(log_of([1000.0] * 19)) is None


def test_waits_for_the_first_batch_of_new_workers_belong_to_their_start() -> None:
    log = sampled(with_evaluation(), kind="input")
    first = log.samples[0]
    log.samples += [StackSample(sample.at_ns + 1000, first.stack, "workers") for sample in log.samples]
    run = summarise_run(log)
    assert run is not None
    assert [(place.source, place.kind) for place in run.places] == [("train.py:88", "workers")]


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_steps_that_grow_are_told_with_their_slope(noise: float) -> None:
    run = summarise_run(log_of([2000.0 + 50.0 * n * (1 + noise * ((n * 7919) % 13 / 6.5 - 1)) for n in range(300)]))
    assert run is not None
    assert run.growth is not None
    assert run.growth.slope_us == pytest.approx(50.0, rel=0.1)
    assert run.growth.last_us > 5 * run.growth.first_us


@pytest.mark.parametrize("is_more_of_the_same", [True, False])
def test_longer_episodes_are_no_growth_where_all_lines_take_more(is_more_of_the_same: bool) -> None:
    lengths_us = [2000.0 + 50.0 * number for number in range(300)]
    log = log_of(lengths_us)
    for begin_ns, us in zip(log.ticks, lengths_us, strict=False):
        for part in range(10):  # the act, the model and the backward pass in turns, or an act that stays as it is
            passed_us = us * (part + 0.5) / 10
            line = 20 + part % 3 if is_more_of_the_same else 20 if passed_us < 1000 else 22
            log.samples.append(
                StackSample(begin_ns + round(1000 * passed_us), (MAIN, ("train.py", line, "main")), None)
            )
    run = summarise_run(log)
    assert run is not None
    assert run.growth is None if is_more_of_the_same else run.growth is not None and run.growth.source == "train.py:22"


def test_steps_that_scatter_do_not_grow() -> None:
    run = summarise_run(log_of([2000.0 + (n * 7919) % 997 for n in range(300)]))
    assert run is not None
    assert run.growth is None


def test_the_frames_of_the_library_tell_what_it_does() -> None:
    loader = "/venv/site-packages/torch/utils/data/dataloader.py"
    assert (kind_of(loader, "_get_iterator"), kind_of(loader, "_try_get_data")) == ("workers", "input")
    assert kind_of("/venv/site-packages/torch/serialization.py", "save") == "checkpoint"
    assert kind_of("/venv/site-packages/torch/_dynamo/convert_frame.py", "__call__") == "compile"
    assert kind_of("/venv/site-packages/torch/_dynamo/convert_frame.py", "<module>") is None  # imported
    assert kind_of("/venv/site-packages/torch/_dynamo/eval_frame.py", "_fn") is None


def test_a_stack_ends_at_the_first_call_of_a_module() -> None:
    seen: list[Any] = []

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            import sys

            seen.append(read_stack(sys._getframe()))
            return x

    Net()(torch.ones(1))
    ((stack, kind),) = seen
    assert stack[-1][2] == "test_a_stack_ends_at_the_first_call_of_a_module"
    assert kind is None


def test_hooks_that_came_with_the_steps_are_found_with_the_line_that_registers_them() -> None:
    net = torch.nn.Linear(2, 2)

    def keep(*_: Any) -> None:
        """Keeps nothing."""

    for _ in range(50):
        net.register_forward_hook(keep)
    found = find_piled_hooks(50)
    assert found is not None
    assert (found.module, found.count) == ("Linear", 50)
    assert found.source is not None
    assert found.source.startswith("test_run_log.py:")
    assert find_piled_hooks(100_000) is None


@pytest.mark.parametrize(
    ("cpu_us", "grows"),
    [(lambda number: 80 + 10 * number, True), (lambda _: 80, False), (lambda number: 80 + number, False)],
)
def test_steps_that_only_take_longer_on_the_wall_do_not_grow(cpu_us: Callable[[int], int], grows: bool) -> None:
    wall, cpu = (
        iter([*accumulate((length(step) * 1000 for step in range(200)), initial=0)]) for length in (wall_us, cpu_us)
    )
    log = RunLog(clock_ns=lambda: next(wall), cpu_clock_ns=lambda: next(cpu))
    for _ in range(201):
        log.mark()
    run = log.summarise()
    assert run is not None and (run.growth is not None) is grows


def wall_us(number: int) -> int:
    """The length of a step on the wall, which grows."""
    return 100 + 10 * number


def place(line: int, *callees: str) -> LinePlace:
    return LinePlace(__file__, line, "draw", callees)


def with_lines(*places: LinePlace | None) -> RunLog:
    """Steps of 10 ms, each with one sample in its middle, at these places in turn."""
    log = log_of([10_000.0] * 100)
    for number, begin in enumerate(log.ticks[:-1]):
        log.samples.append(StackSample(begin + 5_000_000, (MAIN, LOOP), None, places[number % len(places)]))
    return log


def test_usual_steps_are_told_by_line_with_what_it_calls() -> None:
    reads = place(30, "numpy/lib/npyio.py: __getitem__", "zipfile.py: read")
    other = place(30, "numpy/lib/npyio.py: __getitem__", "zipfile.py: open")
    run = summarise_run(with_lines(reads, other, reads, place(31)))
    assert run is not None
    assert [(line.source, line.share, line.function) for line in run.lines] == [
        ("test_run_log.py:30", 0.75, "draw"), ("test_run_log.py:31", 0.25, "draw"),
    ]  # fmt: skip
    assert run.lines[0].callees == ("numpy/lib/npyio.py: __getitem__", "zipfile.py: read")
    assert run.lines[0].text is not None


def test_few_samples_long_steps_and_rare_lines_tell_no_lines() -> None:
    few = with_lines(place(30))
    del few.samples[19:]
    rare = with_lines(*[place(30)] * 99, place(31))
    for log, count in ((few, 0), (rare, 1), (with_lines(None), 0)):
        run = summarise_run(log)
        assert run is not None and len(run.lines) == count


def test_functions_of_libraries_that_only_some_samples_were_in_are_not_what_a_line_does() -> None:
    run = summarise_run(with_lines(place(30, "random.py: randrange"), place(30), place(30)))
    assert run is not None and run.lines[0].callees == ()


def test_a_line_that_calls_several_functions_of_one_package_is_told_by_the_most_called() -> None:
    series = [place(30, f"pandas/core/series.py: {name}") for name in ("__getitem__", "_get_with", "__getitem__")]
    run = summarise_run(with_lines(*series, place(30)))
    assert run is not None and run.lines[0].callees == ("pandas/core/series.py: __getitem__",)
    ops = summarise_run(with_lines(*(place(30, f"torch/functional.py: {name}") for name in ("cdist", "split", "norm"))))
    assert ops is not None and ops.lines[0].callees == ()


@pytest.fixture
def usual_interval() -> Iterator[float]:
    """The time after which threads take turns, put back after the test."""
    usual_s = sys.getswitchinterval()
    yield usual_s
    sys.setswitchinterval(usual_s)


def test_a_sampler_gets_its_turn_at_once_while_no_other_thread_of_python_is_there(usual_interval: float) -> None:
    handover = QuickHandover()
    handover.adjust(2)
    assert handover.interval_s == pytest.approx(5e-5)
    handover.adjust(3)
    assert handover.interval_s == usual_interval
    handover.adjust(2)
    handover.give_back()
    assert handover.interval_s == usual_interval


def test_an_interval_that_the_program_has_set_meanwhile_stays(usual_interval: float) -> None:
    handover = QuickHandover()
    handover.adjust(2)
    sys.setswitchinterval(2 * usual_interval)
    handover.adjust(2)
    handover.give_back()
    assert handover.interval_s == pytest.approx(2 * usual_interval)


def test_the_innermost_line_is_that_inside_of_a_module() -> None:
    seen: list[Any] = []

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(innermost_line(sys._getframe()))
            return x

    Net()(torch.ones(1))
    ((found, frame),) = seen
    assert (found.function, found.callees, frame.f_code.co_name) == ("forward", (), "forward")


def test_a_search_is_looked_at_while_the_line_is_sampled() -> None:
    watch = LineWatch()

    def program(items: list[int]) -> LinePlace | None:
        return None if 1 not in items else watch.place_of(sys._getframe(), is_forced=False)

    found = program(list(range(500)))
    assert found is not None and found.function == "program"
    (seen,) = watch.searched.values()
    assert (seen.words(), seen.is_scanned) == ("items is a list of 500 items", True)


def test_nothing_is_looked_at_while_a_debugger_watches() -> None:
    watch = LineWatch(may_look=False)

    def program(items: list[int]) -> LinePlace | None:
        return None if 1 not in items else watch.place_of(sys._getframe(), is_forced=False)

    assert program([1]) is not None and watch.searched == {}


def with_compilation(log: RunLog, *steps: int) -> RunLog:
    """The log with 38 ms of compiling in each of these steps, and a nested compilation inside of it."""
    graphs = []
    for step in steps:
        begin = log.ticks[step] + 1_000_000
        graphs.append(CompiledGraph("forward()", "model.py:19", begin, begin + 38_000_000, {}, 0, 1))
        graphs.append(CompiledGraph("inner()", "model.py:7", begin + 1_000_000, begin + 9_000_000, {}, 0, 1))
    log.compilations = graphs
    return log


def test_what_torch_compiled_between_steps_is_told_by_its_own_clock_though_nothing_was_sampled() -> None:
    run = summarise_run(with_compilation(with_evaluation(), 9, 19))
    assert run is not None
    (place,) = run.places
    assert place.words() == "compiling forward(), model.py:19"
    assert place.share * run.elsewhere_us == pytest.approx(2 * 38_000.0)
    assert (run.elsewhere_us, run.held_us) == (pytest.approx(400_000.0), 0.0)


def test_samples_share_out_what_the_compiler_leaves_since_they_began() -> None:
    log = with_compilation(sampled(with_evaluation()), 9, 19)
    log.step_lines = frozenset({"train.py:88"})
    # Sampling began in the step 39: those before it have no sample.
    log.samples = log.samples[3:]
    run = summarise_run(log)
    assert run is not None
    compiled, unknown = 2 * 38_000.0, 2 * 2_000.0 + 40_000.0
    assert run.elsewhere_us == pytest.approx(compiled + unknown)
    assert run.held_us == pytest.approx(7 * 40_000.0)


def test_compiling_takes_no_more_than_the_step_has_beyond_a_usual_one() -> None:
    log = with_evaluation()
    log.compilations = [CompiledGraph("forward()", "model.py:19", log.ticks[9], log.ticks[10] + 5_000_000, {}, 0, 1)]
    run = summarise_run(sampled(log))
    assert run is not None
    assert run.elsewhere_us + run.held_us == pytest.approx(400_000.0)


_GAE = """def gae(rewards, values, dones):
    advantages, last = torch.zeros(512), 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + 0.99 * values[t + 1] * (1 - dones[t]) - values[t]
        last = delta + 0.95 * (1 - dones[t]) * last
        advantages[t] = last
    return advantages
def evaluate(net, batches):
    for i in range(len(batches)):
        outputs[i] = net(batches[i])
def batch(data, labels, chosen):
    samples = data[chosen]
    for kind in range(2):
        wanted = labels[chosen]
    return samples, wanted
"""


@pytest.mark.parametrize(
    ("function", "lines", "kind"),
    [("gae", (4, 5, 6, 3), "elements"), ("evaluate", (10, 10, 10, 9), None), ("batch", (12, 12, 14, 14), None)],
    ids=["the elements of a tensor", "a network for each batch", "rows of a batch at once"],
)
def test_a_loop_over_elements_between_steps_is_told_from_one_that_calls_a_network(
    tmp_path: Path, function: str, lines: tuple[int, ...], kind: str | None
) -> None:
    file = str(tmp_path / "gae.py")
    Path(file).write_text(_GAE)
    log = with_evaluation()
    for begin, end in zip(log.ticks, log.ticks[1:], strict=False):
        if end - begin > 2_000_000:
            frames = [(file, line, function) for line in lines]
            log.samples += [StackSample((begin + end) // 2, (MAIN, LOOP, frame), None) for frame in frames]
    run = summarise_run(log)
    assert run is not None
    (place,) = run.places
    assert (place.kind, place.function) == (kind, function)
    if kind == "elements":
        assert place.inner in {"gae.py:4", "gae.py:5", "gae.py:6"} and place.inner_text is not None
