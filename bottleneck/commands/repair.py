"""Finishes the recording of a run that was killed before it could do so itself."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.commands.finish_run import Voice, finish, say, shown

if TYPE_CHECKING:
    from bottleneck.harness.folder import FolderClaim, RunState

_WORD = "the run was cut off before it had finished this recording: what the sensors said is lost"
# What a program whose supervisor was killed may take to save what it recorded.
_PATIENCE_S, _LOOK_S = 15.0, 0.1


def repair(folder: Path, wait: Callable[[float], None] = time.sleep) -> None:
    """Finishes what a killed run left in this folder; nothing to do in any other, or while the run still lasts.

    TraceError while there is nothing to be told yet, or if the folder cannot be written to.
    """
    from bottleneck.errors import TraceError
    from bottleneck.harness.folder import CLAIM_FILE, claim
    from bottleneck.schema.recording import is_recording

    if not (folder / CLAIM_FILE).is_file() or (folder / CLAIM_FILE).is_symlink():
        return
    try:
        ours = claim(folder)
        if ours is not None:
            _finish(ours, folder, wait)
    except OSError as exc:
        raise TraceError(
            f"the recording in {shown(folder)} was cut off and cannot be finished",
            why=exc.strerror or str(exc),
            fix="make the folder writable, or room on its disk, and try again",
        ) from exc
    if ours is None and not is_recording(folder):
        raise TraceError(
            f"{shown(folder)} is still being recorded",
            why="the report comes when everything is measured",
            fix="wait for it; `bottleneck run --steps 1` measures the least",
        )


def _finish(ours: "FolderClaim", folder: Path, wait: Callable[[float], None]) -> None:
    from bottleneck.harness.folder import read_run_state

    is_finished = False
    try:
        state = read_run_state(folder)
        if state is not None:
            _wait_for_end(state, folder, wait)
            _settle(state, folder)
        is_finished = True
    finally:
        ours.release(is_finished=is_finished)


def _settle(state: "RunState", folder: Path) -> None:
    from bottleneck.calibrate.cache import cpu_calibration
    from bottleneck.harness.finish import Ending, remove_notes
    from bottleneck.schema.recording import is_recording

    if not is_recording(folder):
        say(f"bottleneck: the run that recorded {shown(folder)} was cut off; finishing its recording")
        ending = Ending(
            state.command, state.status, state.busy_processors, remarks=(_WORD,), environment=state.environment
        )
        finish(state.plan, ending, Voice(say, lambda threads: cpu_calibration(threads, say)))
    remove_notes(folder)


def _wait_for_end(state: "RunState", folder: Path, wait: Callable[[float], None]) -> None:
    """Lets a program end that was told to when its supervisor was killed; for a while."""
    for _ in range(int(_PATIENCE_S / _LOOK_S)):
        if state.process is None or not _is_ours(state.process, folder):
            return
        wait(_LOOK_S)


def _is_ours(process: int, folder: Path) -> bool:
    """Whether the process runs and has the folder in its plan; its number may have become another's."""
    try:
        return str(folder.absolute()).encode() in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
