"""The gate where something is missing: what it says and what it exits with. The last test runs the real thing.

| where                                    | counters | time                         | exit | with --strict |
|------------------------------------------|----------|------------------------------|------|---------------|
| no clone, or no git                      | gated    | not run, and how to go on    | 0    | 5             |
| a shallow clone                          | gated    | not run: what to fetch       | 0    | 5             |
| no merge-base                            | gated    | not run: name a base         | 0    | 5             |
| a base without the workload              | gated    | not run: it is new           | 0    | 5             |
| a base whose `setup` fails, that crashes | gated    | not run: its last words      | 0    | 5             |
| a dirty tree                             | gated    | against HEAD, which is told  | 0    | 0             |
| a lock-file of another torch             | not      | gated                        | 0    | 5             |
| the same, counters alone                 | not      |                              | 5    | 5             |
| a candidate that crashes                 |          |                              | 4    | 4             |
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bottleneck.cli import _run
from bottleneck.errors import WorkloadError
from bottleneck.experiment.side import Side
from bottleneck.experiment.turns import TimingEffort
from bottleneck.gate.count_program import Counted
from bottleneck.gate.lockfile import write_lock
from bottleneck.harness.messages import Program
from bottleneck.schema.counters import Counts, Fingerprint, Lock
from bottleneck.schema.gate_result import TimeResult
from bottleneck.schema.measurements import Ratio
from tests.experiment.clones import commit, git, make_clone, own_settings

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

COUNTS = Counts({"ops": 100, "launches": 30, "syncs": 0}, Fingerprint({"torch": "2.13"}), steps=3)
WORKLOAD = "def workload():\n    return lambda: None\n"
PYPROJECT = '[tool.bottleneck.gate]\nworkloads = ["train.py"]\n'


@dataclass
class Lab:
    """A clone on a branch off main, and what stands in for counting and timing, which take minutes.

    ``sides`` are the sides that were timed, with the text of the program that each would run.
    """

    clone: Path
    sides: list[tuple[Side, str]]
    counts: Counts = COUNTS
    counts_again: Counts | None = None

    def count(self, program: Program, folder: Path, side: Side, runs: int = 1, tell: Any = None, **_: Any) -> Counted:
        text = (side.folder / program.target).read_text()
        if "raise" in text:
            raise WorkloadError(f"{program.target} failed in {side.label}", why="RuntimeError: no data", fix="mend it")
        counts = self.counts if "again" not in folder.name else self.counts_again or self.counts
        return Counted(counts, (), None)  # type: ignore[arg-type]

    def time_in_pairs(
        self, program: Program, base: Side, candidate: Side, effort: TimingEffort, tell: Any
    ) -> TimeResult:
        self.sides = [(each, (each.folder / program.target).read_text()) for each in (base, candidate)]
        return TimeResult("fine", ratio=Ratio(1.0, 0.99, 1.01, 7), budget=0.03)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Such a clone, its lock-file committed, as the working folder."""
    own_settings(monkeypatch)
    clone = make_clone(tmp_path / "clone", WORKLOAD)
    (clone / "pyproject.toml").write_text(PYPROJECT)
    write_lock(clone / ".bottleneck" / "train.lock.toml", Lock("train", ("train.py",), COUNTS))
    commit(clone, "settings")
    git(clone, "checkout", "--quiet", "-b", "change")
    commit(clone, "change", train_py=WORKLOAD + "# changed\n")
    lab = Lab(clone, [])
    monkeypatch.setattr("bottleneck.gate.run_gate.count_program", lab.count)
    monkeypatch.setattr("bottleneck.gate.run_gate.time_in_pairs", lab.time_in_pairs)
    monkeypatch.chdir(clone)
    return lab


Gate = Callable[..., tuple[int, str]]


@pytest.fixture
def gate(capsys: pytest.CaptureFixture[str]) -> Gate:
    """Runs the gate: its exit code, and all that it says in one line."""

    def run(*words: str) -> tuple[int, str]:
        code = _run(["gate", *words])
        return code, " ".join(capsys.readouterr().out.split())

    return run


def test_the_change_is_timed_against_where_it_left_main(lab: Lab, gate: Gate) -> None:
    code, said = gate()
    assert code == 0
    assert [text for _, text in lab.sides] == [WORKLOAD, WORKLOAD + "# changed\n"]
    base, candidate = (side for side, _ in lab.sides)
    assert base.label == f"merge-base with main ({git(lab.clone, 'rev-parse', '--short=7', 'main')})"
    assert base.folder != candidate.folder == lab.clone
    assert not base.folder.exists()
    assert git(lab.clone, "worktree", "list").count("\n") == 0
    assert "train passed." in said


def without_clone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(lab.clone / ".git")


def without_git(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(lab.clone))


def shallow(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lab.clone.parent / "shallow"
    git(lab.clone.parent, "clone", "--quiet", "--depth=1", f"file://{lab.clone}", str(folder))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GITHUB_BASE_REF", "main")


def unrelated(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    git(lab.clone, "checkout", "--quiet", "--orphan", "alone")
    commit(lab.clone, "alone")


def new_workload(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    git(lab.clone, "branch", "--quiet", "--force", "main", git(lab.clone, "rev-parse", "main~1"))
    git(lab.clone, "mv", "train.py", "new.py")
    commit(lab.clone, "new", **{"pyproject.toml": PYPROJECT.replace("train", "new")})
    write_lock(lab.clone / ".bottleneck" / "new.lock.toml", Lock("new", ("new.py",), COUNTS))


def broken_setup(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab.clone / "pyproject.toml").write_text(f"{PYPROJECT}setup = 'echo no compiler here; exit 3'\n")


WITHOUT_TIME = [
    (without_clone, "this folder is in no git repository"),
    (without_git, "git is not installed"),
    (shallow, "git fetch --depth=200 origin +refs/heads/main:refs/remotes/origin/main"),
    (unrelated, "HEAD and main have no commit in common (no merge-base); name a base with --against REF"),
    (new_workload, "has no new.py: there is nothing to hold its time against until it is merged"),
    (broken_setup, "`setup` failed in the base with status 3: no compiler here"),
]


@pytest.mark.parametrize(("shape", "reason"), WITHOUT_TIME, ids=lambda value: getattr(value, "__name__", ""))
def test_without_a_base_the_counters_still_gate_and_the_reason_is_reported(
    lab: Lab,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    shape: Callable[[Lab, pytest.MonkeyPatch], None],
    reason: str,
) -> None:
    shape(lab, monkeypatch)
    code, said = gate()
    assert code == 0
    assert reason in said
    assert lab.sides == []
    assert gate("--strict")[0] == 5
    lab.counts = replace(COUNTS, values={**COUNTS.values, "syncs": 1})
    code, said = gate()
    assert code == 1
    assert "syncs 0 to 1" in said and reason in said


def test_a_dirty_tree_on_main_is_held_against_its_last_commit_and_says_so(lab: Lab, gate: Gate) -> None:
    git(lab.clone, "checkout", "--quiet", "main")
    (lab.clone / "train.py").write_text(WORKLOAD + "# not committed\n")
    code, _ = gate("--strict")
    assert code == 0
    assert [text for _, text in lab.sides] == [WORKLOAD, WORKLOAD + "# not committed\n"]
    assert lab.sides[0][0].label.startswith("HEAD (")
    assert gate("--out", "told")[0] == 0
    told = json.loads((lab.clone / "told" / "gate.json").read_text())
    assert told["candidate"].endswith("with uncommitted changes")
    assert told["base"].startswith("HEAD (")


def test_a_file_is_written_in_the_format_of_its_suffix(lab: Lab, gate: Gate) -> None:
    code, said = gate("-o", "gate.html")
    assert (lab.clone / "gate.html").read_text().startswith("<!doctype html>")
    assert f"exit code {code}" in said
    gate("-o", "told.md", "--format", "json")
    assert json.loads((lab.clone / "told.md").read_text())["exit_code"] == code
    assert gate("-o", "gate.html", "--format", "json,html")[0] == 2


def test_a_clean_tree_on_main_says_that_only_the_last_commit_is_in_question(lab: Lab, gate: Gate) -> None:
    git(lab.clone, "checkout", "--quiet", "main")
    git(lab.clone, "merge", "--quiet", "change")
    code, said = gate()
    assert code == 0
    assert "the last commit is compared with the one before it" in said
    assert [text for _, text in lab.sides] == [WORKLOAD, WORKLOAD + "# changed\n"]


def test_a_candidate_that_crashes_is_exit_4_with_its_last_words(lab: Lab, gate: Gate) -> None:
    (lab.clone / "train.py").write_text("raise RuntimeError('no data')\n")
    code, said = gate()
    assert code == 4
    assert "train.py failed in this folder" in said and "RuntimeError: no data" in said and "mend it" in said


def test_a_lock_file_of_another_torch_is_not_compared_and_says_what_to_do(lab: Lab, gate: Gate) -> None:
    lab.counts = replace(COUNTS, values={**COUNTS.values, "ops": 200}, fingerprint=Fingerprint({"torch": "2.14"}))
    code, said = gate()
    assert code == 0  # the time was gated
    assert "the lock-file is of torch 2.13, this is torch 2.14" in said
    assert gate("--strict")[0] == 5
    code, said = gate("--only", "counters")
    assert code == 5
    assert "the lock-file is of torch 2.13, this is torch 2.14" in said
    assert "bottleneck gate --update" in said


def test_a_lock_file_that_cannot_be_read_is_refused_with_its_name(
    lab: Lab, gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = lab.clone / ".bottleneck" / "train.lock.toml"
    lock.write_text(f"<<<<<<< ours\n{lock.read_text()}")
    assert _run(["gate"]) == 3
    assert "train.lock.toml" in capsys.readouterr().err


def test_a_name_that_is_no_commit_is_wrong_usage_and_never_an_option(lab: Lab, gate: Gate) -> None:
    for name in ("--against=--output=stolen", "--against=nowhere"):
        assert gate(name)[0] == 2
    assert not (lab.clone / "stolen").exists()


# From here on for real: processes, clones, and a base that fails before it would take long.

REAL = """
import torch

def workload():
    inputs = torch.ones(4)
    return lambda: inputs.sum()
"""


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone whose main crashes and whose branch mends it."""
    pytest.importorskip("torch")
    own_settings(monkeypatch)
    clone = make_clone(tmp_path / "clone", "raise RuntimeError('main is broken')\n")
    commit(clone, "settings", **{"pyproject.toml": PYPROJECT + 'env = { OMP_NUM_THREADS = "1" }\n'})
    git(clone, "checkout", "--quiet", "-b", "mended")
    commit(clone, "mended", train_py=REAL)
    return clone


@pytest.mark.process
def test_a_base_that_crashes_is_told_by_two_jobs_at_once_in_one_clone(real: Path) -> None:
    command = [sys.executable, "-m", "bottleneck.cli", "gate"]
    jobs = [
        subprocess.Popen(command, cwd=real, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for job in jobs:
        said, errors = job.communicate()
        assert job.returncode == 5, said + errors
        assert "base fails" in said and "RuntimeError: main is broken" in " ".join(said.split())
        assert "bottleneck gate --update" in said
    assert git(real, "worktree", "list").count("\n") == 0
    assert git(real, "status", "--porcelain") == ""


def test_what_a_second_run_does_not_repeat_is_unstable_and_no_failure(lab: Lab, gate: Gate) -> None:
    lab.counts = replace(COUNTS, values={**COUNTS.values, "syncs": 1})
    code, said = gate("--only", "counters")
    assert code == 1 and "syncs 0 to 1" in said
    lab.counts_again = COUNTS
    code, said = gate("--only", "counters")
    assert code == 0 and "unstable: syncs: exact before, now 0..1" in said
    lab.counts_again = replace(COUNTS, values={**COUNTS.values, "syncs": 2})
    code, said = gate("--only", "counters")
    assert code == 1 and "syncs 0 to 1" in said
