"""Runs the user's program in the child process and times every step of it."""

import os
import time
from pathlib import Path

from bottleneck.harness import marks, program
from bottleneck.harness.memory_error import keep_snapshot
from bottleneck.harness.messages import Plan
from bottleneck.harness.process_setup import prefer_roots
from bottleneck.harness.step_log import StepLog
from bottleneck.harness.step_watch import StepWatch
from bottleneck.harness.watched_windows import WatchedWindows, WindowWishes
from bottleneck.harness.window import leave_forks_quietly


def watch_child(plan_text: str, *arguments: str) -> None:
    """Runs the program, and returns, raises and exits as the program does."""
    plan = Plan.from_words(plan_text, *arguments)
    prefer_roots()
    rank, ranks = _number("RANK", 0), _number("WORLD_SIZE", 1)
    folder, options = Path(plan.folder), plan.options
    # One rank under the profiler holds up all for as long as its window takes: those at set times are the first's.
    wishes = WindowWishes(plan.program, options.windows, options.every_s if rank == 0 else None)
    windows = WatchedWindows(folder, wishes, time.perf_counter_ns, rank) if wishes.are_any else None
    watch = StepWatch(StepLog(folder, rank), options.step, rank, ranks, windows=windows, command=plan.program.command)
    watch.start()
    marks.supervise(lambda: None)
    run = program.run_module if plan.program.module else program.run_file
    status, process = 0, os.getpid()
    leave_forks_quietly(lambda: os.getpid() == process, lambda: status)
    try:
        run(plan.program.target, plan.program.arguments)
    except SystemExit as leave:
        status = program.exit_status(leave.code)
        raise
    except BaseException as error:
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
        keep_snapshot(error, folder, rank)
        program.show_only_their_frames()
        raise
    finally:
        watch.finish(status)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
