"""``bottleneck runs``: finds the recordings of the working folder, and lists them."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bottleneck.errors import BottleneckError, TraceError, UsageError

_COLUMNS = 80


def runs_command() -> None:
    """Lists the recordings of the working folder: when, of what, and the verdict.

    \b
    bottleneck runs
    bottleneck report            explains the latest of them

    They lie in bottleneck-runs/, or in folders of the working folder. The latest comes first.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.commands.report_options import send

    runs = recorded_runs()
    if not runs:
        raise _nothing_recorded()
    send("".join(f"{line}\n" for run in runs for line in _lines(run)))


@dataclass(frozen=True)
class RecordedRun:
    """A recording, finished or not: its folder, when it was made, and its program.

    ``state`` is empty for a whole recording; else it says what is wrong with it.
    """

    folder: Path
    created: datetime
    command: tuple[str, ...] = ()
    state: str = ""


def recorded_runs() -> list[RecordedRun]:
    """The recordings in folders of the working folder and of bottleneck-runs/, the latest first."""
    from bottleneck.harness.folder import RUNS_FOLDER

    runs = [run for parent in (Path(), Path(RUNS_FOLDER)) for run in _runs_in(parent)]
    return sorted(runs, key=lambda run: run.created, reverse=True)


def latest_recording() -> Path:
    """Finds the folder of the latest recording.

    No run may still be writing it. UsageError where there is none.
    """
    from bottleneck.harness.folder import is_claimed

    folder = next((run.folder for run in recorded_runs() if not is_claimed(run.folder)), None)
    if folder is None:
        raise _nothing_recorded()
    return folder


def _nothing_recorded() -> UsageError:
    return UsageError(
        "there is no recording in this folder", fix="record one: bottleneck run FILE; or: bottleneck report TRACE"
    )


def _runs_in(parent: Path) -> Iterator[RecordedRun]:
    from bottleneck.harness.folder import CLAIM_FILE, is_claimed, is_unfinished
    from bottleneck.schema.recording import is_recording, read_recording

    try:
        folders = [path for path in parent.iterdir() if path.is_dir()]
    except OSError:  # there is no such folder, or it may not be read
        return
    for folder in folders:
        try:
            if is_unfinished(folder):
                state = "still being recorded" if is_claimed(folder) else "not finished: bottleneck report --repair"
                yield RecordedRun(folder, _changed(folder / CLAIM_FILE), state=state)
            elif is_recording(folder):
                recording = read_recording(folder)
                yield RecordedRun(folder, datetime.fromisoformat(recording.created).astimezone(), recording.command)
        except (TraceError, ValueError, OverflowError, OSError):
            yield RecordedRun(folder, _changed(folder), state="cannot be read")


def _changed(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime).astimezone()


def _lines(run: RecordedRun) -> tuple[str, str]:
    from bottleneck.report.text import clean, cut_text

    when = _told(run.created, datetime.now().astimezone())
    parts = (when, run.state or _verdict(run.folder), clean(shlex.join(run.command)))
    return f"{clean(str(run.folder))}/", cut_text("  " + "  ".join(part for part in parts if part), _COLUMNS)


def _told(created: datetime, now: datetime) -> str:
    """Tells the time of a recording for people.

    By its day where that is today or yesterday.
    """
    days = (now.date() - created.date()).days
    day = {0: "today", 1: "yesterday"}.get(days, f"{created:%Y-%m-%d}")
    return f"{day} {created:%H:%M}"


def _verdict(folder: Path) -> str:
    """The verdict of the recording's analysis; a dash where it has none."""
    from bottleneck.pipeline import saved_analysis
    from bottleneck.report.analysis_document import headline

    try:
        analysis = saved_analysis([folder / "analysis.json"])
    except BottleneckError:
        return "-"
    return headline(analysis.verdict) if analysis is not None else "-"
