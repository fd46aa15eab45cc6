"""Renders an analysis as terminal text, markdown, JSON, a page or a picture: the last stage of the data path."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bottleneck.report.output import write_text

if TYPE_CHECKING:
    from bottleneck.report.document import Document
    from bottleneck.report.line_chart import LineChart
    from bottleneck.report.terminal import TerminalStyle
    from bottleneck.schema.analysis import Analysis

__all__ = ["FORMATS", "PICTURES", "render_document", "write_text"]


class Render(Protocol):
    """A function that renders an analysis as text; ``all_findings`` includes those that the run's noise would hide."""

    def __call__(self, analysis: "Analysis", *, all_findings: bool = False) -> str:
        """The text."""
        ...


def render_document(
    document: "Document", form: str, style: "TerminalStyle | None" = None, charts: "Sequence[LineChart]" = ()
) -> str:
    """The document as text for a terminal, markdown or a page; ``style`` is the terminal's, ``charts`` the page's."""
    if form == "html":
        from bottleneck.report.page import document_to_html  # noqa: PLC0415 - jinja2 is loaded only where it is used

        return document_to_html(document, charts)
    from bottleneck.report import markdown, terminal  # noqa: PLC0415 - rich is loaded only where it is used

    return markdown.render(document) if form == "markdown" else terminal.render(document, style or terminal.PLAIN)


def _terminal(analysis: "Analysis", *, all_findings: bool = False) -> str:
    """Text of 80 columns without colour."""
    from bottleneck.report.analysis_document import to_terminal  # noqa: PLC0415 - rich is loaded only where it is used

    return to_terminal(analysis, all_findings=all_findings)


def _markdown(analysis: "Analysis", *, all_findings: bool = False) -> str:
    """Markdown for a comment on a pull request."""
    from bottleneck.report.analysis_document import to_markdown  # noqa: PLC0415 - as above

    return to_markdown(analysis, all_findings=all_findings)


def _json(analysis: "Analysis", *, all_findings: bool = False) -> str:  # noqa: ARG001 - the file always has all
    """The text of ``analysis.json``, which holds all findings."""
    from bottleneck.report.json_text import to_json  # noqa: PLC0415 - msgspec is loaded only where it is used

    return to_json(analysis)


def _html(analysis: "Analysis", *, all_findings: bool = False) -> str:
    """A page for a browser."""
    from bottleneck.report.page import to_html  # noqa: PLC0415 - jinja2 is loaded only where it is used

    return to_html(analysis, all_findings=all_findings)


def _roofline(analysis: "Analysis", path: Path) -> None:
    """Speed over arithmetic intensity, with the roofs of the device."""
    from bottleneck.report.plots.roofline_plot import save_roofline  # noqa: PLC0415 - matplotlib is loaded only where it is used

    save_roofline(analysis, path)


def _queue(analysis: "Analysis", path: Path) -> None:
    """Launches not yet done over the time of the window."""
    from bottleneck.report.plots.queue_depth import save_queue  # noqa: PLC0415 - as above

    save_queue(analysis, path)


def _ledger(analysis: "Analysis", path: Path) -> None:
    """The ledger as a bar, or one for each rank."""
    from bottleneck.report.plots.ledger_bars import save_ledger  # noqa: PLC0415 - as above

    save_ledger([analysis], path)


def _savings(analysis: "Analysis", path: Path) -> None:
    """The savings of each finding, as a waterfall."""
    from bottleneck.report.plots.savings_plot import save_savings  # noqa: PLC0415 - as above

    save_savings(analysis, path)


def _ranks(analysis: "Analysis", path: Path) -> None:
    """The ranks of a job by account."""
    from bottleneck.report.plots.rank_map import save_ranks  # noqa: PLC0415 - as above

    save_ranks(analysis, path)


FORMATS: Mapping[str, Render] = {"terminal": _terminal, "markdown": _markdown, "json": _json, "html": _html}
PICTURES: "Mapping[str, Callable[[Analysis, Path], None]]" = {
    "roofline": _roofline,
    "queue": _queue,
    "ledger": _ledger,
    "savings": _savings,
    "ranks": _ranks,
}
