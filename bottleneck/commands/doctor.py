"""``bottleneck doctor``: checks this machine or traces, and suggests remedies."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck.commands.report_options import (
    CHECKUP_FORMATS,
    form_of,
    format_option,
    output_option,
    output_style,
    write_report,
)

if TYPE_CHECKING:
    from bottleneck.schema.checks import Checkup

# Design section 8: the input cannot be read; the environment failed.
_DAMAGED, _NOT_READY = 3, 4


def doctor_command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[TRACE]...", help="Traces, recordings or folders of traces; none: this machine."),
    ] = None,
    form: Annotated[str | None, format_option("the check-up", CHECKUP_FORMATS)] = None,
    output: Annotated[Path | None, output_option("the check-up", CHECKUP_FORMATS)] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 when a trace is damaged.")] = False,
) -> None:
    """Says what can be measured here and what not, or whether traces are whole; why, and what would help.

    \b
    bottleneck doctor
    bottleneck doctor trace.json.gz
    bottleneck doctor recording/ --strict
    bottleneck doctor -o doctor.html      a page for a browser

    Nothing is changed, and no network is used. Without a trace the exit status is 0 where `bottleneck run` can work and
    4 where it cannot.
    """  # noqa: D301 - a backspace makes click keep the lines of an example
    from bottleneck.report.checkup import render

    rendered_as = form_of(form, output, CHECKUP_FORMATS)
    checkups = _check(paths or ())
    write_report(render(checkups, rendered_as, output_style(output)), output)
    raise typer.Exit(_status(checkups, strict=strict))


def _check(paths: Sequence[Path]) -> "list[Checkup]":
    """The check-up of each trace, or of this machine where there is none."""
    if paths:
        from bottleneck.commands.analysis_options import refuse_unfinished
        from bottleneck.doctor.trace_checks import examine_traces
        from bottleneck.system.files import located

        traces = [located(path) for path in paths]
        refuse_unfinished(traces)
        return examine_traces(traces)
    from bottleneck.doctor.environment_checks import examine_environment

    return [examine_environment()]


def _status(checkups: "Sequence[Checkup]", *, strict: bool) -> int:
    verdicts = {checkup.verdict for checkup in checkups}
    if "not ready" in verdicts:
        return _NOT_READY
    return _DAMAGED if "unreadable" in verdicts or (strict and "damaged" in verdicts) else 0
