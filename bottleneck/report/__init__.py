"""Renders an analysis: the last stage of the data path.

It becomes terminal text, markdown, JSON, a page or a picture.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from bottleneck.report.output import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bottleneck.report.document import Document
    from bottleneck.report.line_chart import LineChart
    from bottleneck.report.terminal import TerminalStyle
    from bottleneck.schema.analysis import Analysis

__all__ = ["FORMATS", "PICTURES", "ReportFormat", "render_document", "render_report", "write_text"]


class Render(Protocol):
    """A function that renders an analysis as text.

    ``all_findings`` includes those that the run's noise would hide.
    """

    def __call__(self, analysis: "Analysis", *, all_findings: bool = False, **page: Any) -> str:
        """The text; ``page`` is what a page alone shows."""
        ...


def render_document(
    document: "Document", form: str, style: "TerminalStyle | None" = None, charts: "Sequence[LineChart]" = ()
) -> str:
    """Renders a document as text for a terminal, markdown or a page.

    ``style`` is the terminal's, ``charts`` are the page's.
    """
    if form == "html":
        from bottleneck.report.page import document_to_html  # noqa: PLC0415 - jinja2 is loaded only where it is used

        return document_to_html(document, charts)
    from bottleneck.report import markdown, terminal  # noqa: PLC0415 - rich is loaded only where it is used

    return markdown.render(document) if form == "markdown" else terminal.render(document, style or terminal.PLAIN)


def lazily(module: str, name: str) -> Callable[..., Any]:
    """Gives a function of a module that is loaded only when called.

    The module is one of this package.
    """

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(f"bottleneck.report.{module}"), name)(*arguments, **options)

    return call


@dataclass(frozen=True)
class ReportFormat:
    """One way to write a report.

    It has the function that renders the report, and the suffixes of files that ask for it. ``render`` is null for the
    copy of the trace with our tracks, which is no text of an analysis.
    """

    render: Render | None
    suffixes: tuple[str, ...] = ()


# By the name that --format takes, in the order in which help shows them.
FORMATS: Mapping[str, ReportFormat] = {
    "terminal": ReportFormat(lazily("analysis_document", "to_terminal")),
    "markdown": ReportFormat(lazily("analysis_document", "to_markdown"), (".md", ".markdown")),
    "json": ReportFormat(lazily("json_text", "to_json"), (".json",)),
    "html": ReportFormat(lazily("page", "to_html"), (".html", ".htm")),
    "perfetto": ReportFormat(None, (".gz",)),
}


def render_report(analysis: "Analysis", form: str, *, all_findings: bool = False, **page: Any) -> str:
    """The report as text in this format; ``page`` is what a page alone shows."""
    render = FORMATS[form].render
    assert render is not None, f"{form} is no text of an analysis"
    return render(analysis, all_findings=all_findings, **page)


PICTURES: "Mapping[str, Callable[..., Figure]]" = {
    "roofline": lazily("plots.roofline_plot", "roofline"),
    "ledger": lazily("plots.ledger_plots", "ledger_figure"),
    "timeline": lazily("plots.timeline_plot", "timeline_figure"),
    "ranks": lazily("plots.ledger_plots", "ranks_figure"),
    "waterfall": lazily("plots.ledger_plots", "waterfall_figure"),
    "both ledgers": lazily("plots.ledger_plots", "both_ledgers_figure"),
    "sweep": lazily("plots.sweep_plot", "sweep_figure"),
    "predicted roofline": lazily("plots.predicted_roofline", "predicted_roofline"),
}
"""Figures of an analysis (that of the timeline takes the tracks of a step too), a comparison, a sweep, a prediction."""
