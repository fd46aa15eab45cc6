"""Follows a watched run on a terminal while it goes on."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bottleneck.errors import TraceError

if TYPE_CHECKING:
    from bottleneck.schema.watched import WatchedRun

_PERIOD_S = 1.0


def follow(
    folder: Path,
    draw: Callable[["WatchedRun | None"], None],
    is_running: Callable[[Path], bool] | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Draws the run once a second until it has ended; null where no step has ended yet.

    ``is_running`` tells whether it goes on, and ``wait`` waits; tests give their own.
    """
    from bottleneck.watched import summary

    goes_on = is_running or summary.is_running
    while goes_on(folder):
        try:
            run = summary.summarise(folder)
        except TraceError:
            run = None
        draw(run)
        wait(_PERIOD_S)


class LiveView:
    """Draws a run on the whole terminal, which is as before at the end."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def draw(self, run: "WatchedRun | None") -> None:
        """Draws the first screen of its report, as much as the terminal holds."""
        import sys

        from rich.text import Text

        from bottleneck.report.terminal import stream_style
        from bottleneck.report.watched import render

        text = "no step has ended yet" if run is None else render(run, "terminal", stream_style(sys.stdout))
        lines = text.splitlines()[: max(self._console.height - 1, 1)]
        self._live.update(Text.from_ansi("\n".join(lines)), refresh=True)
