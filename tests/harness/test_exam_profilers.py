"""Rows 3 and 8 of the reliability exam: a profiler of the program's own loses nothing, and no fork hangs."""

import textwrap
from pathlib import Path

import pytest

from .exam_profilers import FORKS, OWN_PROFILERS, forking_program, profiling_program
from .exam_runs import Outcome, run_plainly, run_quietly

pytestmark = pytest.mark.process

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def both(folder: Path, program: str) -> tuple[Outcome, Outcome]:
    (folder / "program.py").write_text(textwrap.dedent(program).lstrip("\n"))
    return run_quietly(folder, "program.py"), run_plainly(folder, "program.py")


@pytest.mark.parametrize("name", OWN_PROFILERS)
def test_a_profiler_of_the_programs_own_counts_the_same_events(name: str, tmp_path: Path) -> None:
    recorded, plain = both(tmp_path, profiling_program(name))
    # The profiler library names the times of its own start and stop on stderr.
    assert (recorded.stdout, recorded.status) == (plain.stdout, 0)
    assert b"mse_loss" in plain.stdout


@pytest.mark.parametrize("name", FORKS)
def test_a_fork_ends_as_under_python_whatever_the_profiler_does(name: str, tmp_path: Path) -> None:
    recorded, plain = both(tmp_path, forking_program(name))
    assert recorded == plain
