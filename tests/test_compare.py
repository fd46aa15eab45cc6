"""`bottleneck compare` from the command line: what each word means, what it prints, and how it ends."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.cli import _run
from bottleneck.commands.compare import SideSource, labels_of
from bottleneck.compare.build import compare
from bottleneck.compare.change_summary import is_untouched
from bottleneck.compare.sides import ComparedSide
from bottleneck.gate.count import count
from bottleneck.gate.lockfile import write_lock
from bottleneck.pipeline import analyse, explain
from bottleneck.report.comparison import build, render
from bottleneck.report.document import TableSection, Waterfall
from bottleneck.report.json_text import to_json
from bottleneck.schema.comparison import Bar, CompareSide, Comparison, CounterStep
from bottleneck.schema.counters import Counts, Fingerprint, Lock
from bottleneck.schema.gate_result import TimeResult
from bottleneck.schema.measurements import Ratio, Timing

from .samples import ROOT, SAMPLES

MLP, LARGER = str(SAMPLES / "mlp"), str(SAMPLES / "matmul")
# Two sizes of product, and one op more in a line of its own.
PROGRAM = """\
import torch


def workload(batch_size=64):
    weight, inputs = torch.ones(128, 128), torch.ones(batch_size, 128)

    def step():
        hidden = inputs @ weight
        return hidden.sum()

    return step
"""
CHANGED = PROGRAM.replace("        return", "        hidden = hidden.sin()\n        return")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with a program on branch main and in the working tree, in which we are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    (tmp_path / "program.py").write_text(PROGRAM)
    git("init", "--quiet", "--initial-branch=main")
    commit("first")
    monkeypatch.setattr("bottleneck.calibrate.cache.cpu_calibration", lambda threads, tell, is_quiet=False: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def git(*words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *identity, *words], check=True, capture_output=True)


def commit(message: str) -> None:
    git("add", "--all")
    git("commit", "--quiet", "--message", message)


def lock_of(path: Path, **values: int) -> str:
    write_lock(path, Lock("w", ("w.py",), Counts(values, Fingerprint())))
    return str(path)


def test_two_recordings_make_a_waterfall(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "waterfall.svg"
    assert _run(["compare", MLP, LARGER, "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "Where the change comes from" in out and "What changed" in out
    assert "Two recordings of the same code differ by up to" in " ".join(out.split()).partition(" before ")[0]
    assert picture.read_text(encoding="utf-8").count("<path") > 10


def test_the_waterfall_comes_before_the_counters_where_people_read(capsys: pytest.CaptureFixture[str]) -> None:
    for form, counters, times in (
        ("terminal", "Counters that differ", "Where the change comes from"),
        ("markdown", "Counters that differ", "Where the change comes from"),
        ("json", '"counters"', '"bars"'),
    ):
        assert _run(["compare", MLP, LARGER, "-f", form]) == 0
        out = capsys.readouterr().out
        assert 0 < out.index(times) < out.index(counters) or form == "json"


def test_json_goes_to_a_file_and_markdown_to_the_screen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert _run(["compare", MLP, LARGER, "-f", "json", "-o", str(tmp_path / "c.json")]) == 0
    assert capsys.readouterr().out == ""
    document = json.loads((tmp_path / "c.json").read_text())
    assert document["schema"] == "bottleneck/compare/2"
    assert document["before"]["step_us"] < document["after"]["step_us"]
    assert _run(["compare", MLP, LARGER, "-f", "markdown", "--top", "2"]) == 0
    assert "| op | calls |" in capsys.readouterr().out


def test_a_recording_against_itself_changed_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["compare", MLP, MLP, "-f", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert all(bar["before_us"] == bar["after_us"] for bar in document["bars"])
    assert all(step["before"] == step["after"] for step in document["counters"])


def test_a_saved_analysis_and_a_bare_trace_are_sides_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "analysis.json"
    saved.write_text(to_json(analyse([Path(MLP)])))
    trace = next(Path(MLP).glob("trace*"))
    assert _run(["compare", str(saved), str(trace), "-f", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["before"]["counts"] is None and document["after"]["counts"] is not None


def test_two_lock_files_have_counters_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before, after = lock_of(tmp_path / "a.lock.toml", ops=5, syncs=0), lock_of(tmp_path / "b.lock.toml", ops=7, syncs=0)
    assert _run(["compare", before, after]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "ops 5 7 +2" in out and "syncs 0" in out and "Where the change" not in out


def test_a_lock_file_has_no_waterfall_to_draw(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lock = lock_of(tmp_path / "a.lock.toml", ops=5)
    assert _run(["compare", lock, MLP, "--plot", str(tmp_path / "w.png")]) == 0
    out, err = capsys.readouterr()
    assert "counters only" in err and "ops" in out
    # The limits are applied all the same.
    assert _run(["compare", lock, MLP, "--plot", str(tmp_path / "w.png"), "--fail-on", "ops=+0"]) == 1


@pytest.mark.parametrize(
    ("limits", "status", "words"),
    [
        ("ops=+2,syncs=+0", 0, ""),
        ("ops=+1", 1, "over the limit: ops 5 to 7, allowed +1"),
        ("ops=+30%", 1, "allowed +30%"),
        ("flops=+0", 5, "not known of both sides"),
        ("step=+3%", 5, "not known of both sides"),
        ("opps=+1", 2, "the nearest is ops"),
        ("ops", 2, "no limit"),
        ("ops=+1,ops=+2", 2, "twice"),
        ("module:a.ops=+1", 2, "whole step"),
    ],
)
def test_fail_on_holds_the_change_to_limits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, limits: str, status: int, words: str
) -> None:
    before, after = lock_of(tmp_path / "a.lock.toml", ops=5, syncs=0), lock_of(tmp_path / "b.lock.toml", ops=7, syncs=0)
    assert _run(["compare", before, after, "--fail-on", limits]) == status
    assert words in capsys.readouterr().err


def test_the_step_can_be_limited_and_the_comparison_is_shown_before_it_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run(["compare", MLP, LARGER, "--fail-on", "step=+3%"]) == 1
    told = capsys.readouterr()
    assert "Where the change comes from" in told.out and "over the limit: step_us" in told.err
    assert _run(["compare", LARGER, MLP, "--fail-on", "step=+3%"]) == 0


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["nothing", MLP], 3, "git knows no commit"),
        ([str(ROOT / "docs" / "howto"), MLP], 3, "neither recording.json"),
        ([MLP, MLP, "--plot", "x.bmp"], 2, ".svg or .pdf"),
        ([MLP, MLP, "--set", "a=1"], 2, "--workload"),
        ([MLP, MLP, "--workload", "program.py"], 2, "neither side is one"),
        ([MLP, MLP, "--steps", "0:1", "--all"], 2, "exclude each other"),
        (["main", "worktree"], 2, "no program to record"),
        (["main", ".", "--workload", "nothing.py"], 2, "no workload nothing.py"),
        (["--", "-x", MLP], 3, "nothing to compare"),
    ],
)
def test_what_cannot_be_compared_is_said(
    capsys: pytest.CaptureFixture[str], clone: Path, words: list[str], status: int, told: str
) -> None:
    assert clone.is_dir()
    assert _run(["compare", *words]) == status
    assert told in capsys.readouterr().err


def test_a_program_that_fails_at_a_ref_ends_with_its_reason(capsys: pytest.CaptureFixture[str], clone: Path) -> None:
    (clone / "program.py").write_text("def workload():\n    raise ValueError('no weights')\n")
    commit("broken")
    assert _run(["compare", "HEAD", "main~1", "--workload", "program.py"]) == 4
    assert "no weights" in capsys.readouterr().err


def test_a_file_goes_before_a_ref_of_its_name_and_it_is_said(capsys: pytest.CaptureFixture[str], clone: Path) -> None:
    lock = lock_of(clone / "kept.lock.toml", ops=1)
    (clone / "main").write_text(Path(lock).read_text())
    (clone / "main").rename(clone / "main.toml")
    git("tag", "main.toml")
    assert _run(["compare", "main.toml", lock]) == 0
    assert "main.toml is taken for the file or folder of that name" in capsys.readouterr().err


@pytest.mark.process
def test_a_commit_against_the_working_tree_marks_the_line_that_changed(
    capsys: pytest.CaptureFixture[str], clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    turns = TimeResult(
        "fine",
        ratio=Ratio(1.01, 0.99, 1.03, 7),
        base_us=Timing(10, 9.9, 10.1, 7),
        candidate_us=Timing(10.1, 9.9, 10.3, 7),
    )
    monkeypatch.setattr("bottleneck.experiment.turns.time_in_pairs", lambda *_, **__: turns)
    (clone / "program.py").write_text(CHANGED)
    assert _run(["compare", "main", ".", "--workload", "program.py", "--set", "batch_size=8", "-f", "json"]) == 0
    told = capsys.readouterr()
    assert "recording program.py at main (" in told.err and "at the working tree" in told.err
    document = json.loads(told.out)
    new = [row for row in document["rows"] if row["kind"] == "new"]
    assert [row["name"] for row in new] == ["aten::sin"]
    assert new[0]["source"].endswith("program.py:9") and new[0]["is_touched"]
    others = [row["is_touched"] for row in document["rows"] if row["name"] == "aten::sum"]
    assert others == [False]
    assert not any("not in turns" in note for note in document["notes"])
    assert (document["before"]["step_us"], document["after"]["step_us"]) == pytest.approx((10.0, 10.1))
    assert document["time_floor"]["basis"] == "turns" and "so the two may be equally fast" in document["sentence"]
    assert not any("touches no line" in note for note in document["notes"])
    assert next(step for step in document["counters"] if step["name"] == "ops")["after"] is not None
    assert not list(clone.glob("bottleneck-*"))


def test_what_counts_the_same_without_a_line_of_the_diff_is_not_laid_to_the_code() -> None:
    side = CompareSide("a", "a", "cpu", 1.0)
    bar = Bar("overhead.python", "overhead", 1.0, 1.0, "program.py:9", is_touched=False)
    same = Comparison(side, side, bars=(bar,), idle=(bar,), counters=(CounterStep("ops", 3, 3),))
    assert is_untouched(same)
    assert not is_untouched(replace(same, counters=(CounterStep("ops", 3, 4),)))
    touched = (replace(bar, is_touched=True),)
    assert not is_untouched(replace(same, bars=touched, idle=touched))


def test_a_long_path_is_called_by_its_last_part_unless_the_other_has_the_same() -> None:
    sides = [SideSource("recorded", f"{'folder/' * 10}{name}.json") for name in ("a", "b")]
    assert labels_of(sides) == ("a.json", "b.json")
    same = [SideSource("recorded", f"{name}/{'folder/' * 10}a.json") for name in ("a", "b")]
    assert labels_of(same) == tuple(side.text for side in same)
    assert labels_of([SideSource("ref", "main", commit="0123456789"), SideSource("worktree", ".")]) == (
        "main (0123456)",
        "the working tree",
    )


TRACELENS = "AMD-AGI+TraceLens__tests__traces__"
HTA = "facebookresearch+HolisticTraceAnalysis__tests__data__trace_diff__"
KINETO = "pytorch+kineto__tb_plugin__samples__resnet50_num_workers_"
TORCHREC = (
    "pytorch+torchrec__examples__golden_training__trace__sst_long_a2a_optimizer_5_qcomm__"
    "ip-172-31-16-248.us-east-2.compute.internal_"
)
PAIRS = {
    "devices": (
        f"{TRACELENS}h100__gaunernst_bert-small-uncased__1016001.json.gz",
        f"{TRACELENS}mi300__gaunernst_bert-small-uncased__1016001.json.gz",
    ),
    "trace diff": (f"{HTA}control__control.json.gz", f"{HTA}test__test.json.gz"),
    "loader": (
        f"{KINETO}0__worker0.1623143566756.pt.trace.json.gz",
        f"{KINETO}4__worker0_at_7bd25bd.pt.trace.json.gz",
    ),
    "ranks": (
        f"{TORCHREC}54105.1698958768306379521.pt.trace.json.gz",
        f"{TORCHREC}54108.1698958768415409766.pt.trace.json.gz",
    ),
}


@pytest.fixture(scope="module")
def compared(traces: Path) -> dict[str, Comparison]:
    """All pairs, compared once."""
    return {name: compare(*(_side(traces / file) for file in pair)) for name, pair in PAIRS.items()}


def _side(path: Path) -> ComparedSide:
    case = explain([path])
    return ComparedSide(path.name, str(path), case=case, counts=count(case))


def number(cell: str) -> float:
    """A cell as a person adds it up: what rounds to nothing counts nothing."""
    return 0.0 if cell[:1] in {"<", ">", ""} else float(cell.replace(",", ""))


@pytest.mark.parametrize("name", PAIRS)
def test_waterfall_rows_and_modules_of_a_pair_add_up_on_screen(compared: dict[str, Comparison], name: str) -> None:
    document = build(compared[name])
    (waterfall,) = [section for section in document.sections if isinstance(section, Waterfall)]
    first, *falls, last = waterfall.bars
    changes = sum(number(fall.change) for fall in falls)
    assert number(first.before) + changes == pytest.approx(number(last.after), abs=1e-6)
    rows = {part.title.split(",")[0]: part.rows for part in document.sections if isinstance(part, TableSection)}
    *ops, step = rows["What changed"]
    assert sum(number(row.cells[4]) for row in ops) == pytest.approx(number(last.change), abs=1e-6)
    assert step.cells[4] == last.change
    busy = sum(number(row.cells[4]) for row in ops if row.cells[2])
    if "By module" in rows:
        assert number(rows["By module"][-1].cells[3]) == pytest.approx(busy, abs=1e-6)
    assert max(map(len, render(compared[name], "terminal").splitlines())) <= 80


def test_another_device_is_said_before_all_else(compared: dict[str, Comparison]) -> None:
    for name in ("devices", "trace diff"):
        condition = compared[name].conditions[0]
        assert condition.what == "device" and condition.weight == "breaks"
    text = render(compared["devices"], "terminal")
    assert text.index("AMD Instinct MI300X") < text.index("Where the change comes from")


def test_layers_that_change_alike_are_one_line(compared: dict[str, Comparison]) -> None:
    tables = [part for part in build(compared["devices"]).sections if isinstance(part, TableSection)]
    rows = next(part for part in tables if part.title.startswith("What changed")).rows
    attention = next(row for row in rows if row.cells[0] == "aten::_flash_attention_forward")
    assert "in 4 modules" in attention.details and attention.cells[1] == "4"


def test_more_workers_take_the_wait_for_data_away(compared: dict[str, Comparison]) -> None:
    wait = next(bar for bar in compared["loader"].bars if bar.account == "overhead.input")
    assert wait.before_us > 30_000 and wait.after_us < 2_000


def test_ranks_of_one_job_do_the_same_work(compared: dict[str, Comparison]) -> None:
    ranks = compared["ranks"]
    assert ranks.change_us is not None and ranks.before.step_us is not None
    assert abs(ranks.change_us) < 0.01 * ranks.before.step_us
    assert not any(condition.weight == "breaks" for condition in ranks.conditions)
