"""Shows on standard error how much of the traces is read.

It is a bar on a terminal, elsewhere a line now and then.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.commands.progress_bar import ProgressBar
from bottleneck.report.output import write_note
from bottleneck.system.files import is_remote
from bottleneck.units import counted

if TYPE_CHECKING:
    from bottleneck.pipeline import OnTrace

_BAR_AFTER_S, _LINE_EVERY_S, _DRAW_EVERY_S = 2.0, 10.0, 0.1


@contextmanager
def reading_progress(clock: Callable[[], float] = time.monotonic) -> "Iterator[OnTrace]":
    """Gives a function to call before each trace is read and meanwhile.

    It takes the number of traces done, of all, the path of the one that is read, and how many bytes of it are.
    """
    if not sys.stderr.isatty():
        yield _with_pipes(_lines(clock))
        return
    with ProgressBar() as bar:
        yield _with_pipes(_on_bar(bar, clock))


def _with_pipes(tell: "OnTrace") -> "OnTrace":
    """Adds a line on each named pipe to the function.

    A read of one without a writer waits, as in any program. The pipes that a shell makes (/dev/fd/63) have their
    writer.
    """

    def told(done: int, total: int, path: Path, read_bytes: int = 0, size_bytes: int = 0, /) -> None:
        with suppress(OSError):
            if not size_bytes and not is_remote(path) and path.is_fifo() and not path.is_relative_to("/dev"):
                write_note(f"{path} is a pipe; reading until its writer closes it")
        tell(done, total, path, read_bytes, size_bytes)

    return told


def _lines(clock: Callable[[], float]) -> "OnTrace":
    told_s = clock()

    def tell(done: int, total: int, path: Path, read_bytes: int = 0, size_bytes: int = 0, /) -> None:
        nonlocal told_s
        if clock() - told_s < _LINE_EVERY_S or (total == 1 and not size_bytes):
            return
        told_s = clock()
        of_one = f"{read_bytes / 1e6:,.0f} of {size_bytes / 1e6:,.0f} MB of {path.name}"
        what = of_one if total == 1 else f"{done:,} of {counted(total, 'trace')}"
        write_note(f"{what} read")

    return tell


def _on_bar(bar: ProgressBar, clock: Callable[[], float]) -> "OnTrace":
    drawn_s = clock() + _BAR_AFTER_S - _DRAW_EVERY_S

    def tell(done: int, total: int, path: Path, read_bytes: int = 0, size_bytes: int = 0, /) -> None:
        nonlocal drawn_s
        is_read = 0 < size_bytes == read_bytes
        if clock() - drawn_s < _DRAW_EVERY_S and not (is_read and bar.is_shown):
            return
        if total == 1 and not size_bytes:
            return
        drawn_s = clock()
        completed = done + (read_bytes / size_bytes if size_bytes else 0)
        # Traces of all, or megabytes where there is only one.
        amount = f"{done:,}/{total:,}" if total > 1 else f"{read_bytes / 1e6:,.0f}/{size_bytes / 1e6:,.0f} MB"
        bar.show(f"{amount} {'explaining' if is_read else 'reading'} {path.name}", completed / total)

    return tell
