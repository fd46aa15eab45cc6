"""The command ``bottleneck whatif``, from the command line to its exit code."""

import json
from pathlib import Path

import pytest

from bottleneck.cli import _run
from tests.builders import frame, kernel, launch, op, step, write_trace
from tests.simulate.test_whatif import syncing_events

SAMPLES = Path(__file__).parents[1] / "sample_traces"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.json", syncing_events())


def test_changes_of_all_options_are_taken_together(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--remove", "sync", "--set", "kernel:softmax*=0.5x", "--graph", "-f", "json"]
    assert _run(["whatif", str(trace), *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["changed"]["changes"] == ["set kernel:softmax*=0.5x", "remove sync", "graph"]
    assert answer["changed"]["speedup"]["low"] > 1.3


def test_a_recording_is_asked_without_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["whatif", str(SAMPLES / "mlp")]) == 0
    out = capsys.readouterr().out
    assert "Changes that would help most" in out
    assert "Critical path" in out


def test_an_answer_is_written_to_a_file(trace: Path, tmp_path: Path) -> None:
    assert _run(["whatif", str(trace), "--remove", "sync", "-o", str(tmp_path / "answer.md")]) == 0
    assert "| account |" in (tmp_path / "answer.md").read_text(encoding="utf-8")


def test_a_pattern_that_fits_nothing_is_wrong_usage(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["whatif", str(trace), "--remove", "kernel:sofmax"]) == 2
    assert "softmax_kernel" in capsys.readouterr().err


def test_a_trace_that_cannot_tell_ends_undecided_where_a_change_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [frame("train.py(12): train", 0, 500), step(1, 0, 400)]
    for number in range(1, 5):
        events += [op("aten::add", 20 * number, 8, external_id=number), launch(number, 20 * number + 1, 5)]
        events += [kernel(number, 400.0 * number, 50)]
    trace = write_trace(tmp_path / "held.json", events)
    assert _run(["whatif", str(trace), "--remove", "kernel"]) == 5
    assert "No change can be predicted" in capsys.readouterr().out
    assert _run(["whatif", str(trace)]) == 0


def test_a_finished_analysis_has_no_events_to_replay(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "analysis.json"
    assert _run(["report", str(trace), "-f", "json", "-o", str(saved)]) == 0
    assert _run(["whatif", str(saved)]) == 2
    assert "pass the trace" in capsys.readouterr().err
