"""`bottleneck doctor`: exit codes, streams, and that it works on every file whatever that holds."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bottleneck.analysis.fitness import SUBJECTS
from bottleneck.analysis.job_fitness import JOB_SUBJECTS
from bottleneck.cli import _run
from bottleneck.commands import doctor
from bottleneck.schema.checks import Check, Checkup
from tests.architecture.test_imports import HEAVY, modules_after
from tests.builders import kernel, launch, op, step, write_trace

SAMPLES = Path(__file__).parents[1] / "sample_traces"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two steps of one op that launches one kernel."""
    events = [step(1, 0, 100), step(2, 100, 100)]
    for index, start in enumerate((10, 110)):
        events += [op("aten::relu", start, 20, dims=[[4096, 4096]], external_id=index + 1)]
        events += [launch(index + 1, start + 5, 5), kernel(index + 1, start + 20, 50, "vectorized_elementwise_kernel")]
    return write_trace(tmp_path / "trace.json", events)


def document(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    checkups: list[dict[str, object]] = json.loads(capsys.readouterr().out)["checkups"]
    return checkups


def test_a_sound_trace_is_said_to_be_sound(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    assert _run(["doctor", str(trace), "--strict"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("SOUND:")
    assert captured.err == ""


def test_a_damaged_trace_fails_only_where_it_is_asked_to(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    trace.write_text(trace.read_text()[:-40])
    assert _run(["doctor", str(trace)]) == 0
    assert capsys.readouterr().out.startswith("DAMAGED:")
    assert _run(["doctor", str(trace), "--strict"]) == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x80\x04pickle", "never loads"),
        (b'{"a": 1}', "without trace events"),
        (b'{"traceEvents": 3}', "is not a trace"),
        (b"[" * 100_000, "not a"),
        (b'{"traceEvents": []}', "trace events"),
    ],
)
def test_what_is_no_trace_is_named_and_exits_with_3(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "file.json").write_bytes(content)
    assert _run(["doctor", str(tmp_path / "file.json")]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and "Traceback" not in captured.err


def test_a_missing_file_exits_with_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert _run(["doctor", str(tmp_path / "none.json")]) == 3
    assert "none.json" in capsys.readouterr().err


def test_of_several_files_the_good_are_reported_and_the_bad_are_named(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_bytes(b"PK\x03\x04")
    assert _run(["doctor", str(trace), str(tmp_path / "bad.json"), "-f", "json"]) == 3
    good, bad = document(capsys)
    assert (good["verdict"], bad["verdict"]) == ("sound", "unreadable")
    assert str(bad["subject"]).endswith("bad.json")


def test_a_cut_and_compressed_trace_is_used_as_far_as_it_goes(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path
) -> None:
    whole = gzip.compress(trace.read_bytes() * 1, mtime=0)
    (tmp_path / "cut.json.gz").write_bytes(whole[:-20])
    assert _run(["doctor", str(tmp_path / "cut.json.gz"), "-f", "json"]) == 0
    (checkup,) = document(capsys)
    assert "truncated" in {row["slug"] for row in checkup["checks"]}  # type: ignore[attr-defined,index]


def test_names_in_a_trace_cannot_act_on_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    evil = "ProfilerStep#1\x1b[2J[/]\u202e"
    lost = [launch(number, 12 + number, 1) for number in range(40)]
    path = write_trace(
        tmp_path / "evil.json", [{**step(1, 0, 900), "name": evil}, op("aten::a", 1, 5), kernel(99, 5, 1), *lost]
    )
    assert _run(["doctor", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out


def test_a_recording_is_looked_at_through_its_marks(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["doctor", str(SAMPLES / "mlp"), "-f", "json"]) == 0
    (checkup,) = document(capsys)
    facts = {row["slug"]: row for row in checkup["checks"]}  # type: ignore[attr-defined,index]
    assert "marks of the recording" in facts["steps"]["fact"]
    assert facts["honest-time"]["status"] == "ok"


def test_the_check_up_can_go_to_a_file(capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path) -> None:
    assert _run(["doctor", str(trace), "-o", str(tmp_path / "out.txt")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out.txt").read_text().startswith("SOUND:")


@pytest.mark.parametrize(("verdict", "status"), [("ready", 0), ("not ready", 4)])
def test_the_exit_status_tells_whether_run_can_work_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verdict: str, status: int
) -> None:
    checkup = Checkup("environment", "this machine", verdict, "So it is.", (Check("a", "b", "c", "ok", "d"),))  # type: ignore[arg-type]
    monkeypatch.setattr(doctor, "_check", lambda _: [checkup])
    assert _run(["doctor"]) == status
    assert capsys.readouterr().out.startswith(f"{verdict.upper()}: this machine")


def test_this_machine_is_looked_at_without_a_change_to_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "bottleneck.cli", "doctor", "--format", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    (checkup,) = json.loads(done.stdout)["checkups"]
    rows = {row["slug"]: row["status"] for row in checkup["checks"]}
    assert (rows["torch"], rows["profiler"], rows["pandas"]) in {(a, "ok", "ok") for a in ("ok", "limited")}


def test_help_of_the_doctor_imports_nothing_heavy() -> None:
    assert not modules_after("from bottleneck.cli import _run\nassert _run(['doctor', '--help']) == 0") & HEAVY


def test_a_check_up_of_the_machine_imports_neither_torch_nor_pandas_itself() -> None:
    seen = modules_after("from bottleneck.doctor.facts import gather\ngather()")
    assert "psutil" in seen
    assert not seen & {"torch", "pandas", "numpy", "pynvml"}


def test_a_check_up_of_a_trace_does_not_import_torch(trace: Path) -> None:
    code = f"from bottleneck.cli import _run\nassert _run(['doctor', {str(trace)!r}]) == 0"
    assert not modules_after(code) & {"torch", "pynvml"}


@pytest.mark.corpus
def test_every_public_trace_has_a_verdict_and_every_other_file_a_name(traces: Path) -> None:
    from bottleneck.doctor.trace_checks import examine_traces

    # The larger ones differ from these in length, not in kind; all were looked at once.
    files = sorted(path for path in traces.glob("*.json*") if path.stat().st_size < 150_000)
    checkups = examine_traces(files)
    verdicts = {str(checkup.subject): checkup.verdict for checkup in checkups}
    assert {*map(str, files)} == verdicts.keys() - {f"all {len(files) - _bad(verdicts)} traces together"}
    unreadable = [path for path in files if verdicts[str(path)] == "unreadable"]
    assert all(
        any(
            word in path.name.lower() for word in ("neg", "catapult", "viztracer", "speedscope", "composer", "tf_trace")
        )
        for path in unreadable
    ), unreadable
    assert all(row.fact and row.title for checkup in checkups for row in checkup.checks)


def _bad(verdicts: dict[str, str]) -> int:
    return sum(verdict == "unreadable" for verdict in verdicts.values())


def test_ranks_of_a_job_are_looked_at_together(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    events = [op("aten::relu", 10, 20, dims=[[4]])]
    paths = [
        write_trace(tmp_path / f"{rank}.json", events, distributedInfo={"rank": rank, "world_size": 3})
        for rank in (0, 2)
    ]
    assert _run(["doctor", *map(str, paths), "-f", "json"]) == 0
    *_, together = document(capsys)
    assert (together["subject"], together["verdict"]) == ("all 2 traces together", "damaged")
    assert _run(["doctor", *map(str, paths), "--strict"]) == 3


def test_every_row_stands_in_the_reference() -> None:
    package, page = SAMPLES.parent / "bottleneck", (SAMPLES.parent / "docs/reference/doctor.md").read_text()
    sources = [*(package / "doctor").glob("*_checks.py"), package / "analysis/fitness.py"]
    slugs = {slug for path in sources for slug in re.findall(r'(?:Check[,(]|_row\()\s*"([a-z-]+)"', path.read_text())}
    assert {"torch", "sensors", "shapes", "memory"} <= slugs
    of_job = {"job-ranks", "job-steps", "job-time", *JOB_SUBJECTS}
    assert {slug for slug in slugs | SUBJECTS.keys() | of_job if f"`{slug}`" not in page} == set()
