"""Draws the progress of a command as one bar.

It is on the terminal of standard error.
"""

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import TaskID

_BAR_COLUMNS, _ELAPSED_COLUMNS = 16, 7


class ProgressBar:
    """A bar with the time that has passed and words behind it.

    It is gone once its block ends.

    It appears with the first words, and is drawn only when it gets some: a thread that refreshes it would disturb what
    is measured.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(_BAR_COLUMNS), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
        self._drawn = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._drawn.stop()

    def show(self, words: str, share: float | None = None) -> None:
        """Draws the bar with these words, up to this share.

        Without a share, as far as it was.
        """
        from bottleneck.report.text import clean

        if self._task is None:
            self._task = self._drawn.add_task("", total=None)
            self._drawn.start()
        if share is not None:
            self._drawn.update(self._task, total=1.0, completed=share)
        # Cut here: the bar would wrap what is too long for the line.
        shown, room = clean(words), max(self._drawn.console.width - _BAR_COLUMNS - _ELAPSED_COLUMNS - 3, 1)
        self._drawn.update(self._task, description=shown if len(shown) <= room else f"{shown[: room - 1]}…")
        self._drawn.refresh()

    @property
    def is_shown(self) -> bool:
        """True once it was drawn."""
        return self._task is not None
