"""Options of programs and reports that commands share.

Also where reports go: file, pipe or terminal.
"""

import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from bottleneck.errors import UsageError
from bottleneck.report import FORMATS, render_report
from bottleneck.report.output import discard_output, write_status, write_text
from bottleneck.units import format_si

if TYPE_CHECKING:
    from bottleneck.report.screen import Extent
    from bottleneck.report.terminal import TerminalStyle
    from bottleneck.schema.analysis import Analysis
    from bottleneck.schema.step_tracks import StepTimeline

# As the shell shows the death by SIGPIPE of a program that writes to a reader that has gone.
_READER_GONE = 141


# The ways to render what is no report of a trace, named as those of ``report.FORMATS``.
RESULT_FORMATS = ("terminal", "markdown", "json", "html")
TEXT_FORMATS = ("terminal", "markdown", "json")
CHECKUP_FORMATS = ("terminal", "json", "html")
TERMINAL_OR_JSON = ("terminal", "json")

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of workload(); repeat for several."),
]
Assumptions = Annotated[
    list[str] | None,
    typer.Option(
        "--assume",
        metavar="LINE=true|false",
        help="What a condition on a tensor's value is taken to be on a device that is not here; repeatable.",
    ),
]
Train = Annotated[bool, typer.Option("--train", help="Bare model: full training steps with AdamW.")]
ProgramArguments = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGS]...", help="The program's own arguments, untouched.")
]
Module = Annotated[
    str | None, typer.Option("-m", "--module", metavar="MODULE", help="Run a module, as `python -m` does.")
]
Steps = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Steps to profile; 5 unless given, up to 20 where they are short."),
]
Warmup = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help="Steps to let pass before any is measured; until their times settle unless given."
    ),
]
StepEnd = Annotated[
    str | None,
    typer.Option(
        "--step", metavar="NAME", help="What ends a step: optimizer, module, loader, or the name of one's class."
    ),
]
RecordingOutput = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Folder for the recording; else one in bottleneck-runs/."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the recording in a folder that is not empty.")]
TelemetryMs = Annotated[
    int, typer.Option(min=0, max=60_000, metavar="N", help="Period at which sensors are read; 0 for never.")
]
AllFindings = Annotated[
    bool, typer.Option("--all-findings", help="Show the findings too whose gain this run's noise would hide.")
]
Full = Annotated[
    bool, typer.Option("--full", help="Print the whole report: kernels, idle causes, lines, modules, all caveats.")
]
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
HostPaces = Annotated[
    list[str] | None,
    typer.Option(
        "--host-pace",
        metavar="[NAME=]US",
        help="Microseconds that the host of a device takes for an op, as `bottleneck calibrate` prints; repeatable.",
    ),
]
Probe = Annotated[
    bool,
    typer.Option(
        "--probe",
        help=f"Try more: pieces of the step alone, for {PROBE_BUDGET_S:g} s, and what the profiler costs.",
    ),
]
RunProbeBudget = Annotated[
    float | None,
    typer.Option(
        "--probe-budget",
        min=0.0,
        max=3600.0,
        metavar="SECONDS",
        help="Seconds for --probe; without both, a twentieth of a long program's own time.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


class ExampleCommand(TyperCommand):
    """A command whose help ends with examples.

    They are its epilog: there they are on the screen.
    """

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as click calls it
        """Writes the examples as a section."""
        with formatter.section("Examples"):
            formatter.write_text(self.epilog)


def completion_of(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Makes the completion of a name, or of the last in a list with commas.

    A name that the list has is not offered again; what is typed keeps its case.
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, part = incomplete.rpartition(",")
        listed = {name.lower() for name in before.split(",")}
        fitting = [name for name in names() if name.lower().startswith(part.lower()) and name.lower() not in listed]
        return [f"{before}{comma}{part}{name[len(part) :]}" for name in fitting]

    return complete


def typed_devices() -> list[str]:
    """Gives names of the devices of the table that a shell takes without quotes."""
    from bottleneck.devices.catalogue import entries, usual_names
    from bottleneck.schema.device import without_maker

    names = [*(name.upper() for name in usual_names()), *(without_maker(entry.label) for entry in entries())]
    return list(dict.fromkeys(name.replace(" ", "-").replace("(TM)", "") for name in names))


def format_option(what: str, formats: Collection[str] = RESULT_FORMATS) -> Any:
    """The option ``--format`` of a command that reports ``what`` in one of these formats."""
    return choice_of_format(f"How to render {what}; else as the suffix of --output says.", formats)


def choice_of_format(help_text: str, formats: Collection[str]) -> Any:
    """Makes the option ``--format`` with this help.

    It takes the name of one of these formats.
    """

    def check(form: str | None) -> str | None:
        if form is not None and form not in formats:
            raise typer.BadParameter(f"there is no format {form}: choose from {', '.join(formats)}")
        return form

    return typer.Option(
        "--format", "-f", metavar="|".join(formats), help=help_text, callback=check, autocompletion=lambda: [*formats]
    )


def form_of(form: str | None, output: Path | None, formats: Collection[str]) -> str:
    """Gives the format of ``--format``, else of the suffix of ``--output``.

    Terminal text without a suffix, or with one of plain text. UsageError for another suffix that names no format.
    """
    named = form_of_suffix(output) if output is not None else None
    if form is not None or named in formats:
        return form or str(named)
    if output is not None and not is_printed(output) and output.suffix.lower() not in _TEXT_SUFFIXES:
        suffixes = ", ".join(suffix for name in formats for suffix in FORMATS[name].suffixes[:1])
        raise UsageError(
            f"no format of this report has the suffix {output.suffix}",
            why=f"-o {output} would hold text for a terminal",
            fix=f"name a file that ends in {suffixes} or .txt, or say which with --format",
        )
    return "terminal"


_TEXT_SUFFIXES = ("", ".txt", ".log", ".out")


def form_of_suffix(output: Path) -> str | None:
    """Gives the format that the name of a file asks for.

    Null where its suffix names none.
    """
    return next((name for name, form in FORMATS.items() if output.suffix.lower() in form.suffixes), None)


def output_option(what: str, formats: Collection[str] = RESULT_FORMATS) -> Any:
    """The option ``--output`` of a command that reports ``what`` in one of these formats."""
    suffixes = ", ".join(form.suffixes[0] for name, form in FORMATS.items() if name in formats and form.suffixes)
    return typer.Option("--output", "-o", metavar="FILE", help=f"Write {what} to this file ({suffixes} or text).")


def picture_option(what: str) -> Any:
    """The option of a picture, which has the name of its parameter."""
    return typer.Option(metavar="FILE", help=what)


# The pictures of a report, by the KIND of --plot.
PLOTS = ("roofline", "ledger", "timeline", "ranks")


def plot_option() -> Any:
    """Makes the option ``--plot`` of a report.

    It takes a kind of picture with its file, and may be repeated.
    """
    help_text = f"Also draw a picture to this .png, .svg or .pdf file: {', '.join(PLOTS)}; may be repeated."
    return typer.Option("--plot", metavar="KIND=FILE", help=help_text)


def plots_of(texts: Iterable[str]) -> dict[str, Path]:
    """Gives the file of each kind of picture that ``--plot`` names.

    UsageError for what is no such picture.
    """
    plots: dict[str, Path] = {}
    for text in texts:
        kind, _, file = text.partition("=")
        if kind not in PLOTS or not file:
            raise UsageError(f"--plot {text} names no picture", fix=f"write it as KIND=FILE; kinds: {', '.join(PLOTS)}")
        plots[kind] = Path(file)
        check_picture(plots[kind])
    return plots


def extent_of(*, full: bool, all_findings: bool) -> "Extent":
    """Gives the extent that these options ask for.

    Findings that are hidden are part of the whole report only.
    """
    return "all findings" if all_findings else "full" if full else "screen"


def present(
    analysis: "Analysis", form: str, output: Path | None, extent: "Extent", timeline: "StepTimeline | None"
) -> None:
    """Renders to standard output, or to the file ``output``; '-' is standard output too.

    A file and every form but that for the terminal hold the whole report. A page has the ``timeline`` of its steps.
    """
    if form == "terminal" and is_printed(output):
        from bottleneck.report.screen import report_text

        send(report_text(analysis, sys.stdout, extent=extent))
        return
    page = {"timeline": timeline} if form == "html" else {}
    write_report(render_report(analysis, form, all_findings=extent == "all findings", **page), output)


def is_printed(output: Path | None) -> bool:
    """True if ``--output`` means standard output, as without it."""
    return output is None or str(output) == "-"


def write_report(text: str, output: Path | None) -> None:
    """Writes to the file of ``--output``, or to standard output."""
    if is_printed(output):
        send(text)
    elif output is not None:
        write_text(text, output)
        if sys.stderr.isatty() and output.is_file():
            write_status(f"wrote {output} ({format_si(output.stat().st_size, 'B')})")


def check_picture(path: Path | None) -> None:
    """UsageError for a picture of a kind that cannot be drawn."""
    if path is not None and path.suffix not in PICTURE_SUFFIXES:
        raise UsageError(f"cannot draw to {path}", fix="name a file that ends in .png, .svg or .pdf")


def send(text: str) -> None:
    """Writes to standard output; a reader that has gone ends the process quietly."""
    try:
        write_text(text, None)
    except BrokenPipeError:
        raise SystemExit(_READER_GONE) from None


def send_blocks(blocks: Iterable[bytes]) -> None:
    """Writes bytes to standard output, block by block.

    A reader that has gone ends the process quietly.
    """
    try:
        sys.stdout.buffer.writelines(blocks)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        discard_output()
        raise SystemExit(_READER_GONE) from None


def output_style(output: Path | None) -> "TerminalStyle":
    """Gives the style of terminal text for ``--output``.

    It is that of standard output, or 80 plain columns for a file.
    """
    from bottleneck.report.terminal import PLAIN, stream_style

    return stream_style(sys.stdout) if is_printed(output) else PLAIN
