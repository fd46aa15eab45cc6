"""``bottleneck doctor``: checks this machine or traces, and suggests remedies."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bottleneck.schema.checks import Checkup

# Design section 8: the input cannot be read; the environment failed.
_DAMAGED, _NOT_READY = 3, 4


class DoctorFormat(StrEnum):
    """Formats of the check-up."""

    TERMINAL = "terminal"
    JSON = "json"


def doctor_command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[TRACE]...", help="Traces, recordings or folders of traces; none: this machine."),
    ] = None,
    form: Annotated[
        DoctorFormat, typer.Option("--format", "-f", metavar="terminal|json", help="How to render the check-up.")
    ] = DoctorFormat.TERMINAL,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the check-up to this file.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 when a trace is damaged.")] = False,
) -> None:
    """Says what can be measured here and what not, or whether traces are whole; why, and what would help.

    \b
    bottleneck doctor
    bottleneck doctor trace.json.gz
    bottleneck doctor recording/ --strict

    Nothing is changed, and no network is used. Without a trace the exit status is 0 where `bottleneck run` can work and
    4 where it cannot.
    """  # noqa: D301 - a backspace makes click keep the lines of an example
    checkups = _traces(paths) if paths else [_environment()]
    _present(checkups, form, output)
    raise typer.Exit(_status(checkups, strict=strict))


def _environment() -> "Checkup":
    from bottleneck.doctor import examine_environment

    return examine_environment()


def _traces(paths: Sequence[Path]) -> "list[Checkup]":
    from bottleneck.doctor.trace_checks import examine_traces

    return examine_traces(paths)


def _status(checkups: "Sequence[Checkup]", *, strict: bool) -> int:
    verdicts = {checkup.verdict for checkup in checkups}
    if "not ready" in verdicts:
        return _NOT_READY
    return _DAMAGED if "unreadable" in verdicts or (strict and "damaged" in verdicts) else 0


def _present(checkups: "Sequence[Checkup]", form: DoctorFormat, output: Path | None) -> None:
    import sys

    from bottleneck import __version__
    from bottleneck.commands.report_options import send, stream_style
    from bottleneck.report.doctor import to_json, to_terminal
    from bottleneck.report.output import write_text

    to_file = output is not None and str(output) != "-"
    if form is DoctorFormat.JSON:
        text = to_json(checkups, __version__)
    elif to_file:
        text = to_terminal(checkups)
    else:
        text = to_terminal(checkups, stream_style(sys.stdout))
    if to_file:
        write_text(text, output)
    else:
        send(text)
