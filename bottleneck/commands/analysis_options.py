"""Makes the options of an analysis from those of the command line."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck.errors import TraceError, UsageError

if TYPE_CHECKING:
    from bottleneck.pipeline import Options
    from bottleneck.schema.device import Device

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

_INSTANT = r"(\d{1,12}(?:\.\d{1,9})?)(us|ms|s)"
_US_PER_UNIT = {"us": 1.0, "ms": 1e3, "s": 1e6}

# One process inflates, cuts and collects for all; more than these would wait for it.
_MOST_JOBS = 8


def usual_jobs() -> int:
    """Gives the number of processes that read traces.

    It is that of the processors which this process may use, by its affinity and its control group, and has an upper
    limit.
    """
    from bottleneck.harness.machine import processor_quota, usable_processors

    return max(1, min(_MOST_JOBS, usable_processors(), int(processor_quota() or _MOST_JOBS)))


def window_options(steps: str | None, window: str | None, device: "Device | None", *, whole: bool) -> "Options":
    """Makes the options of an analysis from ``--steps``, ``--window`` and ``--all``.

    At most one of them may be given.
    """
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
    """Parses 'A:B' to a slice.

    Either side may be missing or count from the end.
    """
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


def chosen_device(name: str | None, peaks: Path | None = None) -> "Device | None":
    """Finds the device that the user names on the command line.

    Null to go by the trace.
    """
    if name is not None and peaks is not None:
        raise UsageError("--device and --peaks exclude each other", fix="pass one of them")
    if peaks is not None:
        from bottleneck.devices.catalogue import device_from_peaks_file

        return device_from_peaks_file(peaks)
    if name is None:
        return None
    if name.lower() == "cpu":
        return _this_cpu()
    from bottleneck.devices.match import device_by_name

    return device_by_name(name)


def _this_cpu() -> "Device":
    from bottleneck.calibrate.cache import load_calibration

    calibrated = load_calibration()
    if calibrated is None:
        raise UsageError(
            "this CPU has not been calibrated yet",
            why="--device cpu judges against ceilings measured on this machine",
            fix="measure it once: bottleneck calibrate --device cpu; or pass --peaks FILE",
        )
    return calibrated


def refuse_unfinished(paths: Sequence[Path]) -> None:
    """Raises TraceError for a recording that is not finished.

    A run is still writing it, or a killed one has left it.
    """
    from bottleneck.harness.folder import is_unfinished

    for path in paths:
        if is_unfinished(path):
            _refuse_unfinished(path)


def _refuse_unfinished(folder: Path) -> None:
    from bottleneck.harness.folder import is_claimed
    from bottleneck.recorder.finish_run import shown, still_recorded

    if is_claimed(folder):
        raise still_recorded(folder)
    raise TraceError(
        f"the recording in {shown(folder)} is not finished",
        why="the run that made it was killed, or its disk was full",
        fix=f"finish it: bottleneck report --repair {shown(folder)}",
    )
