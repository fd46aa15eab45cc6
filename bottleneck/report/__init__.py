"""Stage 4: one Analysis as terminal text, markdown, JSON or a picture."""

from collections.abc import Callable, Mapping

from bottleneck.records import Analysis
from bottleneck.report.output import write_text

__all__ = ["FORMATS", "write_text"]


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


FORMATS: Mapping[str, Callable[[Analysis], str]] = {"terminal": _terminal, "markdown": _markdown, "json": _json}
