"""Stage 4: one Analysis as terminal text, markdown, JSON or a picture."""

from collections.abc import Callable, Mapping
from pathlib import Path

from bottleneck.records import Analysis
from bottleneck.report.output import write_text

__all__ = ["FORMATS", "PICTURES", "write_text"]


def _terminal(analysis: Analysis) -> str:
    """Text of 80 columns without colour; ``report.terminal.show`` writes to a console of any width."""
    from bottleneck.report.terminal import render  # noqa: PLC0415 - rich is loaded only where it is used

    return render(analysis)


def _markdown(analysis: Analysis) -> str:
    """Markdown for a comment on a pull request."""
    from bottleneck.report.markdown import render  # noqa: PLC0415 - as above

    return render(analysis)


def _json(analysis: Analysis) -> str:
    """The text of ``analysis.json``."""
    from bottleneck.report.datafile import to_json  # noqa: PLC0415 - msgspec is loaded only where it is used

    return to_json(analysis)


def _roofline(analysis: Analysis, path: Path) -> None:
    """Speed over arithmetic intensity, with the roofs of the device."""
    from bottleneck.report.plots import save_roofline  # noqa: PLC0415 - matplotlib is loaded only where it is used

    save_roofline(analysis, path)


def _queue(analysis: Analysis, path: Path) -> None:
    """Launches not yet done over the time of the window."""
    from bottleneck.report.queue_plot import save_queue  # noqa: PLC0415 - as above

    save_queue(analysis, path)


FORMATS: Mapping[str, Callable[[Analysis], str]] = {"terminal": _terminal, "markdown": _markdown, "json": _json}
PICTURES: Mapping[str, Callable[[Analysis, Path], None]] = {"roofline": _roofline, "queue": _queue}
