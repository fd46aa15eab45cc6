"""What ``bottleneck run`` says of a recording: it is finished, explained, and every failure of ours told."""

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bottleneck.harness.finish import Ending
    from bottleneck.harness.notes import Plan
    from bottleneck.recording import Recording


def tell(plan: "Plan", ending: "Ending") -> bool:
    """Whether recording and report succeeded; a failure of ours is told and leaves the program's status alone."""
    from bottleneck.errors import BottleneckError

    try:
        recording = _record(plan, ending)
        say(_summary(plan, recording))
        if not recording.traces:
            return False
        _report(Path(plan.folder))
    except BottleneckError as error:
        say(f"error: {error.what}")
        for label, text in (("why", error.why), ("fix", error.fix)):
            if text:
                say(f"  {label}: {text}")
        return False
    except FileNotFoundError as error:
        say(f"error: the recording could not be finished: {error.filename} is gone")
        say("  fix: name a folder that the program leaves alone with -o DIR")
        return False
    except Exception:  # the program has run; a bug of ours must not take its exit status away
        _say_that_we_failed(Path(plan.folder))
        return False
    return True


def _say_that_we_failed(folder: Path) -> None:
    """Tells of the exception at hand; its traceback goes to a file, or to stderr if the program removed the folder."""
    say("error: bottleneck itself failed after the program ended; what was recorded is kept")
    crash = folder / "bottleneck-crash.txt"
    try:
        crash.write_text(traceback.format_exc(), encoding="utf-8")
        say(f"  fix: please report it with the file {crash}")
    except OSError:
        say(traceback.format_exc())


def _record(plan: "Plan", ending: "Ending") -> "Recording":
    from bottleneck.harness.ceilings import cpu_calibration
    from bottleneck.harness.finish import finish_recording, read_all_notes
    from bottleneck.harness.notes import RankFiles

    folder = Path(plan.folder)
    notes = read_all_notes(folder)
    on_cpu = [one for rank, one in notes.items() if RankFiles(folder, rank).partial.exists() and not one.device_facts]
    calibration = cpu_calibration(on_cpu[0].threads, say) if on_cpu else None
    return finish_recording(plan, notes, ending, calibration)


def _report(folder: Path) -> None:
    from bottleneck.commands.output import terminal_text
    from bottleneck.pipeline import analyse
    from bottleneck.report import FORMATS
    from bottleneck.report.plots import save_roofline

    analysis = analyse([folder])
    (folder / "analysis.json").write_text(FORMATS["json"](analysis), encoding="utf-8")
    save_roofline(analysis, folder / "roofline.png")
    say(terminal_text(analysis, sys.stderr).rstrip("\n"))


def _summary(plan: "Plan", recording: "Recording") -> str:
    lines = [f"bottleneck: recorded {_describe_steps(recording)} in {_shown(Path(plan.folder))}"]
    lines += [f"bottleneck: {warning}" for warning in recording.warnings]
    return "\n".join(lines)


def _shown(folder: Path) -> Path:
    """The folder as seen from here, if it lies below and "here" still exists."""
    try:
        return folder.relative_to(Path.cwd())
    except (ValueError, OSError):
        return folder


def _describe_steps(recording: "Recording") -> str:
    if not recording.traces:
        return "no trace"
    count = max(0, len(recording.traces[0].step_marks_ns) - 1)
    return f"{count} steps" if count != 1 else "1 step"


def say(text: str) -> None:
    """Writes a line for the user, after all that the program wrote itself."""
    print(text, file=sys.stderr)
