"""Finds the measured ceilings of this CPU: in the cache, or from a helper process that measures them."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bottleneck.calibrate.calibration import Calibration, read_calibration
from bottleneck.harness.machine import cpu_facts
from bottleneck.schema.analysis import Device
from bottleneck.schema.recording import Recording, is_recording, read_recording, write_recording

# A measurement that other programs disturbed is repeated, which can only improve it, but not at every run.
_REPEAT_AFTER = timedelta(minutes=10)


def cpu_calibration(threads: int | None, tell: Callable[[str], None]) -> Calibration | None:
    """The calibration for this number of threads, made now if there is none; null (and told why) if that fails.

    One that was disturbed is made again after a while. In a process of its own: the measurement needs torch, which
    this one must not import. It shows its progress where ours would show.
    """
    known = read_calibration(threads)
    if known is not None and not _is_worth_repeating(known):
        return known
    often = "once" if known is None else "again, since it was busy the last time"
    tell(f"bottleneck: measuring the ceilings of this CPU, {often}; it takes about half a minute")
    chosen = [] if threads is None else ["--threads", str(threads)]
    shown = sys.stderr.isatty()
    # -P: a file of the user's that is called torch.py is not ours to import.
    command = [sys.executable, "-P", "-m", "bottleneck.cli", "calibrate", "--device", "cpu", *chosen]
    helper = subprocess.run(  # noqa: S603 - our own interpreter and text
        command if shown else [*command, "--quiet"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if shown else subprocess.PIPE,
        text=True,
        check=False,
    )
    known = read_calibration(threads)
    if known is None:
        tell(f"bottleneck: this CPU could not be measured: {_reason(helper)}")
    return known


def _reason(helper: "subprocess.CompletedProcess[str]") -> str:
    if helper.returncode == 0:
        return "its ceilings could not be kept in the user's cache"
    said = (helper.stderr or "").strip().splitlines() or [f"it ended with status {helper.returncode}"]
    return said[0].removeprefix("error: ")


def gpu_calibration(facts: Iterable[Mapping[str, str | int | float | None]]) -> Calibration | None:
    """The kept calibration of the GPUs that a program saw, null where there is none or they are not all alike.

    It is never made in passing: that takes up to a minute, and the device may have other work.
    """
    from bottleneck.calibrate.calibration import driver_version
    from bottleneck.calibrate.gpu import identity, read_gpu_calibration

    kinds = {identity(each) for each in facts}
    return read_gpu_calibration(kinds.pop(), driver_version()) if len(kinds) == 1 else None


def find_calibration(
    facts: Sequence[Mapping[str, str | int | float | None]], threads: int | None, tell: Callable[[str], None]
) -> Calibration | None:
    """The calibration of the device that a program used: of its GPUs (by their facts), else of the CPU."""
    return gpu_calibration(facts) if facts else cpu_calibration(threads, tell)


def _is_worth_repeating(known: Calibration) -> bool:
    return bool(known.caveats) and datetime.now(UTC) - datetime.fromisoformat(known.created) > _REPEAT_AFTER


def kept_ceilings(folder: Path) -> Device | None:
    """The kept ceilings for a recording of this CPU that has none; null for any other path.

    Measures and writes nothing. A block of a program (`bottleneck.record`) could not wait for the measurement, which
    may have been made since.
    """
    recording = _lacking(folder)
    known = None if recording is None else read_calibration(recording.threads)
    return None if known is None else known.device


def add_ceilings(folder: Path, tell: Callable[[str], None]) -> None:
    """Writes the ceilings into a recording of this CPU that has none, measured now if need be.

    Nothing happens to any other path, and where the recording cannot be written.
    """
    recording = _lacking(folder)
    calibration = None if recording is None else cpu_calibration(recording.threads, tell)
    if recording is None or calibration is None:
        return
    doubts = tuple(caveat.message for caveat in calibration.caveats)
    try:
        write_recording(folder, replace(recording, device=calibration.device, warnings=(*recording.warnings, *doubts)))
    except OSError:  # a recording that may only be read is explained as it is
        return


def lacks_ceilings(recording: Recording) -> bool:
    """True for a trace of a CPU whose ceilings are not in the recording."""
    return bool(recording.traces and recording.device is None and not recording.device_facts)


def _lacking(folder: Path) -> Recording | None:
    """The recording, if it is of this CPU and has no ceilings."""
    if not is_recording(folder):
        return None
    recording = read_recording(folder)
    return recording if lacks_ceilings(recording) and recording.versions.get("cpu") == cpu_facts().identity else None
