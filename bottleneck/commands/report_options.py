"""Options that several commands share, and where their reports go: file, pipe or terminal, with width and colours."""

import re
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypeVar

import typer
from typer.core import TyperCommand

from bottleneck.errors import BottleneckError, UsageError
from bottleneck.report.output import discard_output, write_text

if TYPE_CHECKING:
    from bottleneck.pipeline import Options
    from bottleneck.report.terminal import TerminalStyle
    from bottleneck.schema.analysis import Analysis
    from bottleneck.schema.device import Device

# As the shell shows the death by SIGPIPE of a program that writes to a reader that has gone.
_READER_GONE = 141


class ResultFormat(StrEnum):
    """The ways to render a comparison, a sweep or trials."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"


class ReportFormat(StrEnum):
    """The ways to render a report: the keys of ``report.FORMATS``, and a copy of the trace with our tracks."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"
    PERFETTO = "perfetto"


class TextFormat(StrEnum):
    """The ways to render a report as text in a terminal or a log."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"


class CheckupFormat(StrEnum):
    """The ways to render a check-up."""

    TERMINAL = "terminal"
    JSON = "json"
    HTML = "html"


class TerminalOrJson(StrEnum):
    """The ways to render a report that has no markdown form."""

    TERMINAL = "terminal"
    JSON = "json"


_Form = TypeVar("_Form", bound=StrEnum)

# The format that the name of a file asks for where --format does not.
_FORM_OF_SUFFIX = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
    ".html": "html",
    ".htm": "html",
    ".gz": "perfetto",
}
PICTURE_SUFFIXES = (".png", ".svg", ".pdf")

StepsOption = Annotated[
    str | None,
    typer.Option(
        "--steps",
        metavar="A:B",
        help="Take the steps from A up to, not including, B, numbered from 0 as in the report; -1: is the last.",
    ),
]
WindowOption = Annotated[
    str | None,
    typer.Option(
        "--window",
        metavar="A:B",
        help="Take the time from A to B after the first event as one step: 494ms: or 0.2s:0.9s.",
    ),
]
WholeOption = Annotated[bool, typer.Option("--all", help="Take the whole trace as one window, counted as one step.")]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "-j",
        "--jobs",
        metavar="N",
        min=1,
        help="Read a large trace, or many ranks, in N processes; else as many as are of use.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of workload(); repeat for several."),
]
Train = Annotated[bool, typer.Option("--train", help="Bare model: full training steps with AdamW.")]
ProgramArguments = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGS]...", help="The program's own arguments, untouched.")
]
AllFindings = Annotated[
    bool, typer.Option("--all-findings", help="Show the findings too whose gain this run's noise would hide.")
]
Full = Annotated[
    bool, typer.Option("--full", help="Print the whole report: kernels, idle causes, lines, modules, all caveats.")
]
Extent = Literal["screen", "full", "all findings"]  # of the report that is printed
# Seconds for timing pieces of the step alone, unless others are wanted.
PROBE_BUDGET_S = 10.0
ProbeBudget = Annotated[
    float,
    typer.Option(
        "--probe-budget",
        min=0.0,
        max=3600.0,
        metavar="SECONDS",
        help="Seconds for timing pieces of the recorded step alone, as they are and changed; 0 for none.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


_INSTANT = r"(\d{1,12}(?:\.\d{1,9})?)(us|ms|s)"
_US_PER_UNIT = {"us": 1.0, "ms": 1e3, "s": 1e6}


class ExampleCommand(TyperCommand):
    """A command whose help ends with examples, which are its epilog: there they are on the screen."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as click calls it
        """Writes the examples as a section."""
        with formatter.section("Examples"):
            formatter.write_text(self.epilog)


# One process inflates, cuts and collects for all; more than these would wait for it.
_MOST_JOBS = 8


def usual_jobs() -> int:
    """As many processes as this one may use processors, by its affinity and its control group."""
    from bottleneck.harness.machine import processor_quota, usable_processors

    return max(1, min(_MOST_JOBS, usable_processors(), int(processor_quota() or _MOST_JOBS)))


def window_options(steps: str | None, window: str | None, device: "Device | None", *, whole: bool) -> "Options":
    """The options of an analysis from ``--steps``, ``--window`` and ``--all``, of which at most one may be given."""
    from bottleneck.pipeline import Options

    given = [name for name, value in (("--steps", steps), ("--window", window), ("--all", whole or None)) if value]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} exclude each other", fix="pass one of them")
    return Options(
        whole=whole,
        device=device,
        steps=None if steps is None else _parse_steps(steps),
        stretch_us=None if window is None else _parse_window(window),
    )


def _parse_steps(text: str) -> slice:
    """The slice that 'A:B' spells; either side may be missing or count from the end."""
    match = re.fullmatch(r"(-?\d{1,9})?:(-?\d{1,9})?", text, re.ASCII)
    if match is None:
        raise UsageError(
            f"--steps {text} is no range of steps",
            why="A:B takes the steps from A up to, not including, B, as a slice in Python does",
            fix="write it as 2:5, 2: or :5; one step alone is 2:3",
        )
    return slice(*(None if bound is None else int(bound) for bound in match.groups()))


def _parse_window(text: str) -> tuple[float | None, float | None]:
    """The two instants of 'A:B' in microseconds; either side may be missing."""
    match = re.fullmatch(rf"(?:{_INSTANT})?:(?:{_INSTANT})?", text, re.ASCII)
    if match is None:
        raise UsageError(
            f"--window {text} is no stretch of time",
            why="A:B takes the time from A up to B after the first event, each with its unit: us, ms or s",
            fix="write it as 0.2s:0.9s, 494ms: or :80ms",
        )
    low, low_unit, high, high_unit = match.groups()
    return (
        None if low is None else float(low) * _US_PER_UNIT[low_unit],
        None if high is None else float(high) * _US_PER_UNIT[high_unit],
    )


def format_option(what: str, formats: type[StrEnum] = ResultFormat) -> Any:
    """The option ``--format`` of a command that reports ``what``."""
    return typer.Option(
        "--format", "-f", metavar="|".join(formats), help=f"How to render {what}; else as the suffix of --output says."
    )


def form_of(form: _Form | None, output: Path | None, forms: type[_Form]) -> _Form:
    """The format of ``--format``, else of the suffix of ``--output`` if ``forms`` has it, else terminal text."""
    named = form_of_suffix(output) if output is not None else None
    return form or forms(named if named in set(forms) else "terminal")


def form_of_suffix(output: Path) -> str | None:
    """The format that the name of a file asks for; null where its suffix names none."""
    return _FORM_OF_SUFFIX.get(output.suffix.lower())


def output_option(what: str) -> Any:
    """The option ``--output`` of a command that reports ``what``."""
    return typer.Option("--output", "-o", metavar="FILE", help=f"Write {what} to this file.")


def extent_of(*, full: bool, all_findings: bool) -> Extent:
    """The extent that these options ask for: findings that are hidden are part of the whole report only."""
    return "all findings" if all_findings else "full" if full else "screen"


def present(analysis: "Analysis", form: str, output: Path | None, extent: Extent = "screen") -> None:
    """Renders to standard output, or to the file ``output``; '-' is standard output too.

    A file and every form but that for the terminal hold the whole report.
    """
    from bottleneck.report import FORMATS

    if form == "terminal" and is_printed(output):
        send(terminal_text(analysis, sys.stdout, extent))
    else:
        write_report(FORMATS[form](analysis, all_findings=extent == "all findings"), output)


def is_printed(output: Path | None) -> bool:
    """True if ``--output`` means standard output, as without it."""
    return output is None or str(output) == "-"


def write_report(text: str, output: Path | None) -> None:
    """Writes to the file of ``--output``, or to standard output."""
    if is_printed(output):
        send(text)
    else:
        write_text(text, output)


def check_picture(path: Path | None) -> None:
    """UsageError for a picture of a kind that cannot be drawn."""
    if path is not None and path.suffix not in PICTURE_SUFFIXES:
        raise UsageError(f"cannot draw to {path}", fix="name a file that ends in .png, .svg or .pdf")


def draw_or_warn(draw: Callable[[], None], path: Path, warn: Callable[[str], None] | None = None) -> bool:
    """True if a picture or a page beside a report could be made; else a warning, and report and exit code stay.

    ``warn`` takes the warning, which goes to stderr without it.
    """
    try:
        draw()
    except BottleneckError as error:
        reason = f"{error.what}: {error.why}" if error.why else error.what
    except (ArithmeticError, ImportError, MemoryError, OSError, RuntimeError, ValueError) as exc:  # of matplotlib
        reason = f"{type(exc).__name__}: {exc}"
    else:
        return True
    (warn or partial(print, file=sys.stderr, flush=True))(f"warning: {path} is left out: {reason}")
    return False


def send(text: str) -> None:
    """Writes to standard output; a reader that has gone ends the process quietly."""
    try:
        write_text(text, None)
    except BrokenPipeError:
        raise SystemExit(_READER_GONE) from None


def send_blocks(blocks: Iterable[bytes]) -> None:
    """Writes bytes to standard output, block by block; a reader that has gone ends the process quietly."""
    try:
        sys.stdout.buffer.writelines(blocks)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        discard_output()
        raise SystemExit(_READER_GONE) from None


def terminal_text(analysis: "Analysis", stream: TextIO, extent: Extent = "screen") -> str:
    """The terminal report in the width, colours and character set of a stream."""
    from bottleneck.report.analysis_document import to_screen, to_terminal

    style = stream_style(stream)
    return (
        to_screen(analysis, style)
        if extent == "screen"
        else to_terminal(analysis, style, all_findings=extent == "all findings")
    )


def report_text(
    analysis: "Analysis", stream: TextIO, form: TextFormat = TextFormat.TERMINAL, extent: Extent = "screen"
) -> str:
    """The report in a format, for a stream."""
    from bottleneck.report import FORMATS

    if form is TextFormat.TERMINAL:
        return terminal_text(analysis, stream, extent)
    return FORMATS[form](analysis, all_findings=extent == "all findings")


def output_style(output: Path | None) -> "TerminalStyle":
    """The style of terminal text for ``--output``: that of standard output, or 80 plain columns for a file."""
    from bottleneck.report.terminal import PLAIN

    return stream_style(sys.stdout) if is_printed(output) else PLAIN


_WIDEST = 1_000


def stream_style(stream: TextIO) -> "TerminalStyle":
    """The style of text on a stream: as wide as its terminal, and in colour only where it shows some."""
    from rich.console import Console

    from bottleneck.report.terminal import PLAIN, TerminalStyle

    console = Console(file=stream)
    color = console.is_terminal and not console.no_color and console.color_system is not None
    # A terminal that has not been told its size says 0; COLUMNS may say anything.
    return TerminalStyle(min(console.width or PLAIN.width, _WIDEST), console.encoding, color)
