"""``bottleneck calibrate``: measures the ceilings of a device of this machine.

They are kept for later runs.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck.commands.progress_bar import ProgressBar
from bottleneck.commands.report_options import (
    TERMINAL_OR_JSON,
    Quiet,
    form_of,
    format_option,
    output_option,
    write_report,
)
from bottleneck.report.output import write_note
from bottleneck.system.interrupts import says_what_is_kept
from bottleneck.units import counted

if TYPE_CHECKING:
    from bottleneck.calibrate.probes import RoundProgress


_KEPT = "ceilings that were kept before are as they were; to measure them anew: bottleneck calibrate"


def calibrate_command(
    device: Annotated[
        str | None, typer.Option(metavar="cpu|cuda[:N]", help="What to measure: the first GPU, else the CPU.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=4096, metavar="N", help="Threads of the CPU; else torch's choice.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            max=3600.0,
            metavar="S",
            help="Go on for so long: on a machine that others use, its best moments count.",
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget the last result; else the better is kept where one was disturbed.")
    ] = False,
    short: Annotated[
        bool, typer.Option("--short", help="A CPU: five seconds, as the first run of a program measures it.")
    ] = False,
    form: Annotated[str | None, format_option("the ceilings", TERMINAL_OR_JSON)] = None,
    output: Annotated[Path | None, output_option("the ceilings", TERMINAL_OR_JSON)] = None,
    quiet: Quiet = False,
) -> None:
    """Measures what a device of this machine can do: the ceilings that later recordings are judged against.

    \b
    bottleneck calibrate
    bottleneck calibrate --device cpu --threads 4
    bottleneck calibrate --seconds 180
    bottleneck calibrate --format json

    Half a minute on a CPU, under a minute on a GPU. Leave the machine alone meanwhile: what other programs take
    is missing. Where that cannot be had, --seconds lets it wait for quiet moments. The result is kept for this device,
    driver, version of torch and number of threads.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    import json

    from bottleneck.calibrate import calibrate_device
    from bottleneck.calibrate.cache import calibration_file, to_plain
    from bottleneck.calibrate.calibration import calibration_table

    is_table = form_of(form, output, TERMINAL_OR_JSON) == "terminal"
    with says_what_is_kept(_KEPT), _progress(seconds, quiet=quiet) as on_progress:
        calibration = calibrate_device(device, threads, on_progress, seconds=seconds, fresh=fresh, is_short=short)
    text = calibration_table(calibration) if is_table else json.dumps(to_plain(calibration), indent=1) + "\n"
    write_report(text, output)
    if not quiet and calibration_file(calibration).exists():
        write_note(f"kept in {calibration_file(calibration)}")


@contextmanager
def _progress(seconds: float | None, *, quiet: bool) -> "Iterator[Callable[[RoundProgress], None]]":
    """Shows the progress.

    A bar on a terminal, a line for each round elsewhere, or nothing at all.
    """
    from bottleneck.calibrate.probes import no_progress

    if quiet:
        yield no_progress
    elif sys.stderr.isatty():
        with ProgressBar() as bar:
            bar.show("getting ready")
            yield _bar_teller(bar, seconds)
    else:
        yield _print_round


def _bar_teller(bar: ProgressBar, seconds: float | None) -> "Callable[[RoundProgress], None]":
    """Gives a function that draws how far the measurement is.

    With ``seconds`` it is no further than the share of them that has passed.
    """
    from bottleneck.calibrate.probes import ProbeEffort

    fewest = ProbeEffort().fewest_rounds

    def on_progress(step: "RoundProgress") -> None:
        place = (step.round - 1 + step.done / step.total) / max(fewest, step.round)
        if seconds is not None:
            place = min(place, step.seconds / seconds)
        bar.show(f"measuring {step.ceiling}{', once more' if step.is_rest else ''}", place)

    return on_progress


def _print_round(step: "RoundProgress") -> None:
    """Prints a line when a round begins."""
    if step.done:
        return
    what = f"{step.total} that have not settled within 3 %" if step.is_rest else counted(step.total, "ceiling")
    write_note(f"measuring, round {step.round}: {what}")
