"""Messages on a recording when the disk is full, our own code fails, or the user does not wait."""

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.recorder import finish_run
from bottleneck.recorder.finish_run import from_here, repair
from bottleneck.schema.recording import read_recording
from bottleneck.system.interrupts import Interrupted, answered, held_back
from tests.builders import write_trace
from tests.harness.driver import record
from tests.harness.test_finish import MEASURED, leave
from tests.test_pipeline import cpu_events

_TELL = """
import resource, sys
from dataclasses import replace
from pathlib import Path
from bottleneck.recorder import finish_run
from bottleneck.recorder.finish_run import ReportSettings, finish_and_report
from bottleneck.harness.folder import RunState, claim
from bottleneck.harness.finish import Ending
from tests.harness.test_folder import PLAN

folder = Path("recording")
plan = replace(PLAN, folder=str(folder))
mark = claim(folder)
mark.note(RunState(plan, {{}}, 0.0, status=3))
{setup}
told = finish_and_report(plan, Ending(3, 0.0), ReportSettings(print, {ceilings}, {render}))
print("told:", told.succeeded, told.is_finished, told.is_worth_keeping)
mark.release(is_finished=told.is_finished)
"""
_LIMIT = "resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes}, {bytes}))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as the child leaves it."""
    recording = tmp_path / "recording"
    recording.mkdir()
    trace = write_trace(tmp_path / "trace.json", cpu_events()).read_bytes()
    leave(recording, 0, replace(MEASURED, ranks=1, step_marks_ns=()), trace)
    return tmp_path


def tell(folder: Path, setup: str = "", ceilings: str = "lambda threads: None", render: str = "None") -> list[str]:
    code = _TELL.format(setup=textwrap.dedent(setup), ceilings=ceilings, render=render)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "recording").iterdir()}


def test_with_room_everything_is_written_and_told(folder: Path) -> None:
    said = tell(folder)
    assert said[0] == "bottleneck: recorded 0 steps in recording"
    assert said[-1] == "told: True True True"
    place = said.index("bottleneck: the page for a browser: recording/report.html")
    assert place < next(at for at, line in enumerate(said) if " · recording · " in line)  # nothing follows the report
    assert files(folder) == {"recording.json", "trace.rank0.json.gz", "analysis.json", "report.html", "roofline.png"}


def test_the_report_is_printed_in_the_format_that_was_asked_for(folder: Path) -> None:
    setup = "from functools import partial; from bottleneck.report.screen import report_text"
    said = tell(folder, setup, render="partial(report_text, form='json')")
    start, end = said.index("{"), said.index("}")
    assert json.loads("\n".join(said[start : end + 1])) == json.loads(
        (folder / "recording" / "analysis.json").read_text(encoding="utf-8")
    )


def test_a_picture_that_cannot_be_drawn_does_not_cost_the_report(folder: Path) -> None:
    said = tell(
        folder,
        """
        from bottleneck.report.plots import roofline_plot
        def roofline(analysis):
            raise RuntimeError("no fonts here")
        roofline_plot.roofline = roofline
        """,
    )
    assert any(line.startswith("Full report: ") for line in said)
    assert "warning: recording/roofline.png is left out: RuntimeError: no fonts here" in said
    assert said[-1] == "told: True True True"
    assert files(folder) == {"recording.json", "trace.rank0.json.gz", "analysis.json", "report.html"}


def test_a_failed_program_is_the_last_line_and_what_is_doubtful_stands_before_the_report(folder: Path) -> None:
    said = tell(
        folder,
        """
        Ending = lambda status, _: finish.Ending(status, 9.0)
        from bottleneck.harness import finish
        ReportSettings = lambda *settings: finish_run.ReportSettings(*settings, failure="the program failed")
        """,
    )
    assert said[-2] == "bottleneck: the program failed; the report is of what it did until then"
    [noise] = [place for place, line in enumerate(said) if "other programs had work for 9.0 processors" in line]
    verdict = next(place for place, line in enumerate(said) if " · recording · " in line)
    assert noise < verdict < len(said) - 2


def test_a_disk_too_full_for_the_recording_leaves_it_to_the_next_command(folder: Path) -> None:
    said = tell(folder, _LIMIT.format(bytes=0))
    assert said[0] == "error: the recording could not be finished: File too large"
    assert said[1].startswith("  why: the disk has ")
    assert said[2] == "  fix: make room, then finish and explain it with: bottleneck report --repair recording"
    assert said[-1] == "told: False False True"
    assert files(folder) == {".run.json", ".notes.rank0.json", "trace.rank0.json.gz"}
    repair(folder / "recording", lambda _: None)
    assert read_recording(folder / "recording").program_status == 3
    assert files(folder) == {"recording.json", "trace.rank0.json.gz"}


def test_a_disk_too_full_for_the_analysis_does_not_keep_the_report_from_the_user(folder: Path) -> None:
    needed = [path.stat().st_size for path in (folder / "recording").iterdir()]
    said = tell(folder, _LIMIT.format(bytes=max(4096, *needed)))
    assert any(line.startswith("Full report: ") for line in said)
    assert f"error: cannot write {Path('recording/analysis.json')}" in "\n".join(said)
    assert any(line.startswith("  fix: the recording is whole; make room") for line in said)
    assert said[-1] == "told: False True True"
    assert files(folder) == {"recording.json", "trace.rank0.json.gz"}


def test_a_disk_too_full_for_the_picture_leaves_no_half_of_it(folder: Path) -> None:
    tell(folder)
    largest = (folder / "recording" / "roofline.png").stat().st_size
    assert (folder / "recording" / "analysis.json").stat().st_size < largest - 1
    for name in ("recording.json", "analysis.json", "report.html", "roofline.png", "trace.rank0.json.gz"):
        (folder / "recording" / name).unlink()
    leave(folder / "recording", 0, replace(MEASURED, ranks=1, step_marks_ns=()), (folder / "trace.json").read_bytes())
    said = tell(folder, _LIMIT.format(bytes=largest - 1))
    assert "warning: recording/roofline.png is left out: cannot write" in "\n".join(said)
    assert said[-1] == "told: True True True"
    assert files(folder) == {"recording.json", "trace.rank0.json.gz", "analysis.json"}


def test_a_disk_too_full_for_the_trace_leaves_the_program_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = record(
        tmp_path,
        """
        import resource, torch
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(10)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(60):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
        raise SystemExit(5)
        """,
    )
    assert (run.status, run.stdout, run.stderr) == (5, "", "")
    assert "the trace could not be written: File too large" in run.said
    assert run.recording.traces == () and run.recording.unprofiled is not None
    assert {path.name for path in run.folder.iterdir()} == {"recording.json", "telemetry.csv"}


def test_a_user_who_does_not_wait_for_the_ceilings_has_the_recording(folder: Path) -> None:
    setup = """
        import os, signal
        from bottleneck.system.interrupts import answered
        block = answered()
        block.__enter__()
        def ceilings(threads):
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
    """
    said = tell(folder, setup, "ceilings")
    assert said[0] == "bottleneck: interrupted; for the report: bottleneck report --repair recording"
    assert files(folder) >= {"recording.json", "trace.rank0.json.gz"}
    assert json.loads((folder / "recording" / "recording.json").read_text())["program_status"] == 3


def test_a_user_who_does_not_wait_for_the_report_is_told_where_it_is(folder: Path) -> None:
    setup = """
        import os, signal
        from bottleneck.system.interrupts import answered
        block = answered()
        block.__enter__()
        def report(folder, settings):
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
        finish_run._report = report
    """
    said = tell(folder, setup)
    assert said[-2:] == [
        "bottleneck: interrupted; for the report: bottleneck report --repair recording",
        "told: False True True",
    ]
    assert files(folder) == {"recording.json", "trace.rank0.json.gz"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_end_of_the_program_is_answered_at_once_but_not_in_a_file(number: int) -> None:
    steps: list[str] = []

    def work() -> None:
        with held_back():
            signal.raise_signal(number)  # os.kill() may return before Python has called the handler
            steps.append("written")
        steps.append("done")

    with answered(), pytest.raises(Interrupted):
        work()
    assert steps == ["written"]


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with answered():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_the_report_takes_is_loaded_with_the_haste_of_all_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of lower priority would keep the lock of an import, or Python's, on a busy machine."""
    (tmp_path / "noting_its_priority.py").write_text(
        "import os, threading\n"
        "priority = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())\n"
        "thread = threading.current_thread()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(finish_run, "_REPORTING", ("noting_its_priority",))
    before = set(threading.enumerate())
    finish_run.load_reporting()
    for thread in set(threading.enumerate()) - before:
        thread.join()
    module = importlib.import_module("noting_its_priority")
    assert module.thread is not threading.current_thread()
    assert module.priority == os.getpriority(os.PRIO_PROCESS, 0)


def test_the_report_names_a_recording_below_the_working_folder_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert from_here(tmp_path / "runs" / "train-1") == Path("runs/train-1")
    assert from_here(tmp_path.parent / "elsewhere") == tmp_path.parent / "elsewhere"
