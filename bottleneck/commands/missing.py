"""What a recording lacks and this machine can add when it is reported on: the ceilings of its CPU."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bottleneck.recording import Recording


def add_ceilings(folder: Path) -> None:
    """Adds them to a recording of a block, whose program could not wait for a measurement; measured now if need be.

    Nothing happens to any other path, and where the recording is another machine's or cannot be written.
    """
    from bottleneck.commands.telling import say
    from bottleneck.harness.ceilings import cpu_calibration
    from bottleneck.recording import is_recording, read_recording, write_recording

    if not is_recording(folder):
        return
    recording = read_recording(folder)
    calibration = (
        cpu_calibration(recording.threads, say) if lacks_ceilings(recording) and _is_of_here(recording) else None
    )
    if calibration is None:
        return
    doubts = tuple(caveat.message for caveat in calibration.caveats)
    try:
        write_recording(folder, replace(recording, device=calibration.device, warnings=(*recording.warnings, *doubts)))
    except OSError:  # a recording that may only be read is explained as it is
        return


def lacks_ceilings(recording: "Recording") -> bool:
    """Whether there is a trace of a CPU, and nothing to hold it against."""
    return bool(recording.traces and recording.device is None and not recording.device_facts)


def _is_of_here(recording: "Recording") -> bool:
    """Whether it is of a block, whose program goes on, and of this CPU."""
    from bottleneck.harness.cpu import cpu_facts

    return recording.program_status is None and recording.versions.get("cpu") == cpu_facts().identity
