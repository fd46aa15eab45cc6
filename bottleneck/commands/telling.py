"""What ``bottleneck run`` says of a recording: it is finished, explained, and every failure of ours told."""

import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.commands.interrupts import Interrupted, held_back

if TYPE_CHECKING:
    from bottleneck.errors import BottleneckError
    from bottleneck.harness.calibrate import Calibration
    from bottleneck.harness.finish import Ending
    from bottleneck.harness.notes import Notes, Plan
    from bottleneck.recording import Recording

# Below this much free space nothing worth mentioning can be written.
_FULL_BYTES = 2**20


@dataclass(frozen=True)
class Told:
    """Whether recording and report succeeded, whether the recording was written, and whether it holds anything."""

    succeeded: bool
    is_finished: bool = True
    is_worth_keeping: bool = True


@dataclass(frozen=True)
class Voice:
    """How a recording is told: to whom, where the ceilings of this CPU come from, and whether noise hides findings.

    ``ceilings`` takes the number of threads.
    """

    say: Callable[[str], None]
    ceilings: Callable[[int | None], "Calibration | None"]
    all_findings: bool = False


def tell(plan: "Plan", ending: "Ending", voice: Voice) -> Told:
    """Finishes the recording and reports; a failure of ours is told and leaves the program's status alone."""
    from bottleneck.errors import BottleneckError

    folder, told = Path(plan.folder), Told(succeeded=False, is_finished=False)
    try:
        recording = finish(plan, ending, voice)
        told = Told(succeeded=False, is_worth_keeping=_is_worth_keeping(folder, recording))
        voice.say(_summary(folder, recording, told))
        if not recording.traces:
            return told
        _report(folder, voice)
    except Interrupted:
        voice.say(f"bottleneck: interrupted; for the report: bottleneck report {shown(folder)}")
    except BottleneckError as error:
        voice.say("\n".join(_lines(error)))
    except FileNotFoundError as error:
        voice.say(f"error: the recording could not be finished: {error.filename} is gone")
        voice.say("  fix: name a folder that the program leaves alone with -o DIR")
    except OSError as error:
        voice.say(f"error: the recording could not be finished: {error.strerror or error}")
        voice.say(f"  why: {_cause(folder)}")
        voice.say(f"  fix: make room, then finish and explain it with: bottleneck report {shown(folder)}")
    except Exception:  # the program has run; a bug of ours must not take its exit status away
        _say_that_we_failed(folder, voice)
    else:
        return Told(succeeded=True)
    return told


def close(folder: Path, ending: "Ending") -> None:
    """Adds how the program ended to a recording that was told of before."""
    from bottleneck.errors import BottleneckError
    from bottleneck.harness.finish import close_recording

    try:
        with held_back():
            close_recording(folder, ending)
    except (OSError, BottleneckError) as error:
        say(f"error: how the program ended could not be added to the recording: {error}")


def _cause(folder: Path) -> str:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return "the folder does not answer"
    if free < _FULL_BYTES:
        return "the disk is full"
    return f"the disk has {free / 1e9:.2g} GB free, so a quota or a limit stands in the way"


def _say_that_we_failed(folder: Path, voice: Voice) -> None:
    """Tells of the exception at hand; its traceback goes to a file, or to stderr if the program removed the folder."""
    voice.say("error: bottleneck itself failed; what was recorded is kept")
    crash = folder / "bottleneck-crash.txt"
    try:
        crash.write_text(traceback.format_exc(), encoding="utf-8")
        voice.say(f"  fix: please report it with the file {crash}")
    except OSError:
        voice.say(traceback.format_exc())


def finish(plan: "Plan", ending: "Ending", voice: Voice) -> "Recording":
    """The recording, with the ceilings of this CPU where they are needed, written to its folder."""
    from bottleneck.harness.finish import finish_recording, read_all_notes

    notes = read_all_notes(Path(plan.folder))
    needing = needing_ceilings(Path(plan.folder), notes)
    calibration = None
    try:
        calibration = voice.ceilings(needing[0].threads) if needing else _of_gpus(notes)
    finally:
        # Also for a user who does not wait for the ceilings.
        with held_back():
            recording = finish_recording(plan, notes, ending, calibration)
    return recording


def needing_ceilings(folder: Path, notes: "Mapping[int, Notes]") -> "Sequence[Notes]":
    """The notes of ranks that were traced on the CPU."""
    from bottleneck.harness.notes import RankFiles

    return [each for rank, each in notes.items() if RankFiles(folder, rank).partial.exists() and not each.device_facts]


def _of_gpus(notes: "Mapping[int, Notes]") -> "Calibration | None":
    """The kept ceilings of the GPUs that the program saw, where `bottleneck calibrate` has measured them."""
    from bottleneck.harness.ceilings import gpu_calibration

    return gpu_calibration(next((each.device_facts for each in notes.values() if each.device_facts), ()))


def _report(folder: Path, voice: Voice) -> None:
    from bottleneck.commands.output import terminal_text
    from bottleneck.errors import UsageError
    from bottleneck.pipeline import analyse
    from bottleneck.report import FORMATS
    from bottleneck.report.output import write_text
    from bottleneck.report.plots import save_roofline

    analysis = analyse([folder])
    # First of all what the user waits for; a disk may be full.
    voice.say(terminal_text(analysis, sys.stderr, all_findings=voice.all_findings).rstrip("\n"))
    try:
        write_text(FORMATS["json"](analysis), folder / "analysis.json")
        save_roofline(analysis, folder / "roofline.png")
    except UsageError as error:
        again = f"bottleneck report {shown(folder)} --format json -o FILE"
        raise UsageError(error.what, why=error.why, fix=f"the recording is whole; make room, then: {again}") from error


def _is_worth_keeping(folder: Path, recording: "Recording") -> bool:
    """Whether anything was captured: a trace, if only a damaged one, or step times."""
    return bool(recording.traces or recording.unprofiled or any(folder.glob(".partial.*")))


def _summary(folder: Path, recording: "Recording", told: Told) -> str:
    from bottleneck.measured import tell_step

    where = f" in {shown(folder)}" if told.is_worth_keeping else ""
    lines = [f"bottleneck: recorded {_describe_steps(recording)}{where}"]
    if recording.step_name is not None and recording.steps_seen is not None:
        lines.append(f"bottleneck: {tell_step(recording.step_name, recording.steps_seen)}")
    lines += [f"bottleneck: {warning}" for warning in recording.warnings]
    return "\n".join(lines)


def _lines(error: "BottleneckError") -> list[str]:
    parts = (("  why", error.why), ("  fix", error.fix))
    return [f"error: {error.what}", *(f"{label}: {text}" for label, text in parts if text)]


def shown(folder: Path) -> str:
    """The folder as seen from here, if it lies below and "here" still exists, in one line."""
    from bottleneck.report.clean import clean

    try:
        return clean(str(folder.relative_to(Path.cwd())))
    except (ValueError, OSError):
        return clean(str(folder))


def _describe_steps(recording: "Recording") -> str:
    if not recording.traces:
        return "no trace" if recording.unprofiled else "nothing"
    count = max(0, len(recording.traces[0].step_marks_ns) - 1)
    steps, ranks = f"{count} steps" if count != 1 else "1 step", len(recording.traces)
    return f"{steps} of {ranks} ranks" if ranks > 1 else steps


def say(text: str) -> None:
    """Writes a line for the user, after all that the program wrote itself."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # whoever read it has gone
        return
