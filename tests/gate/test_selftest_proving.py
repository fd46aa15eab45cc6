"""The self-test on a program: what each process is told to put into the step, and where it runs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bottleneck.experiment.paired_processes import DuelEffort
from bottleneck.experiment.program import Program
from bottleneck.experiment.side import Stand
from bottleneck.experiment.worktree import Base
from bottleneck.gate.count_program import Counted
from bottleneck.gate.judging import default_budgets
from bottleneck.gate.run_gate import Job
from bottleneck.gate.selftest import prove
from bottleneck.harness.forms import VARIABLE
from bottleneck.schema.counters import Counts, Fingerprint
from bottleneck.schema.gate_result import GateSettings, TimeResult

SETTINGS = GateSettings(budgets=default_budgets(), environment={"OMP_NUM_THREADS": "1"}, alpha=0.02)
COUNTS = Counts({"ops": 100, "syncs": 0}, Fingerprint({"torch": "2.13"}), steps=3)
MORE: Mapping[str, Mapping[str, int]] = {"op:1": {"ops": 101}, "sync:1": {"ops": 102, "syncs": 1}}


class Stage:
    """Stands in for counting and timing: counts what a process is told, and remembers where it was to run."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.told: list[str] = []
        self.duels: list[tuple[Stand, Stand]] = []

    def count(self, program: Program, folder: Path, stand: Stand, runs: int = 1, tell: Any = None) -> Counted:
        folder.mkdir()
        self.folders.append(folder)
        self.told.append(stand.variables[VARIABLE])
        counts = replace(COUNTS, values={**COUNTS.values, **MORE.get(self.told[-1], {})})
        return Counted(counts, (), None)  # type: ignore[arg-type]

    def duel(self, program: Program, base: Stand, candidate: Stand, effort: DuelEffort, tell: Any) -> TimeResult:
        assert effort.alpha == SETTINGS.alpha
        self.duels.append((base, candidate))
        return TimeResult("slower" if candidate.variables[VARIABLE] else "fine")


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The stage, in the place of processes."""
    stage = Stage()
    monkeypatch.setattr("bottleneck.gate.selftest.count_program", stage.count)
    monkeypatch.setattr("bottleneck.gate.selftest.duel", stage.duel)
    return stage


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job in a folder, without a base: the self-test needs none."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return Job(tmp_path, SETTINGS, scratch, Base(None, "nothing"))


def test_each_process_is_told_what_to_put_in_and_the_sources_are_the_candidates(stage: Stage, job: Job) -> None:
    proof = prove(job, Program("bench/train.py"))
    assert proof.is_proven, proof.text
    assert proof.name == "bench-train"
    assert stage.told == ["", "op:1", "sync:1", ""]
    assert len(set(stage.folders)) == 4 and all(folder.parent == job.scratch for folder in stage.folders)
    assert [candidate.variables[VARIABLE] for _, candidate in stage.duels] == ["slowdown:0.06:40", ""]
    for stand in (each for pair in stage.duels for each in pair):
        assert stand.folder == job.root and stand.environment["OMP_NUM_THREADS"] == "1"
    assert [base.variables[VARIABLE] for base, _ in stage.duels] == ["", ""]  # whatever this process was told


def test_counters_or_time_alone_are_proven_alone(stage: Stage, job: Job) -> None:
    assert prove(replace(job, only="counters"), Program("train.py")).is_proven
    assert (len(stage.told), stage.duels) == (4, [])
    assert prove(replace(job, only="time"), Program("train.py")).is_proven
    assert (len(stage.told), len(stage.duels)) == (4, 2)


def test_a_script_is_no_proof_of_anything(stage: Stage, job: Job) -> None:
    proof = prove(job, Program("train.py", form="script"))
    assert not proof.is_proven and not stage.told
    assert proof.text.startswith("train: gate not proven: the self-test needs a workload")
