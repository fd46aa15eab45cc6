"""Shows on standard error how many of many traces are read: a bar on a terminal, elsewhere a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.units import counted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_BAR_AFTER_S, _LINE_EVERY_S = 2.0, 10.0


@contextmanager
def reading_progress(clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[int, int, Path], None]]:
    """Gives a function to call before each trace is read, with the number of those done, of all, and its path."""
    if not sys.stderr.isatty():
        yield _lines(clock)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    progress = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    try:
        yield _bar(progress, clock)
    finally:
        progress.stop()


def _lines(clock: Callable[[], float]) -> Callable[[int, int, Path], None]:
    told_s = clock()

    def tell(done: int, total: int, _: Path) -> None:
        nonlocal told_s
        if clock() - told_s >= _LINE_EVERY_S:
            told_s = clock()
            with suppress(OSError):
                print(f"bottleneck: {done:,} of {counted(total, 'trace')} read", file=sys.stderr, flush=True)

    return tell


def _bar(progress: "Progress", clock: Callable[[], float]) -> Callable[[int, int, Path], None]:
    from bottleneck.report.text import clean

    began_s = clock()
    task: TaskID | None = None

    def tell(done: int, total: int, path: Path) -> None:
        nonlocal task
        if task is None:
            if total == 1 or clock() - began_s < _BAR_AFTER_S:
                return
            task = progress.add_task("")
            progress.start()
        progress.update(task, completed=done, total=total, description=clean(f"reading {path.name}"))
        progress.refresh()

    return tell
