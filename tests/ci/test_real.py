"""The action and the pytest fixture with the real gate, on a workload of one line: both name it when it does more."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.gate.acceptance import last_path, read_last
from bottleneck.gate.lockfile import write_lock
from bottleneck.schema.counters import Lock
from tests.ci.steps import git
from tests.ci.test_action import STEPS, job
from tests.test_pytest_plugin import gating, run_pytest

pytestmark = pytest.mark.process

pytest.importorskip("torch")

WORKLOAD = """\
import torch


def workload():
    values = torch.ones(8)
    return lambda: torch.relu(values).sum().item()
"""
SETTINGS = '[tool.bottleneck.gate]\nworkloads = ["step.py"]\nenv = { OMP_NUM_THREADS = "1" }\n'


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "step.py").write_text(WORKLOAD)
    (folder / "pyproject.toml").write_text(SETTINGS)
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "A step")
    return folder


def test_the_fixture_fails_without_a_lock_file_and_the_action_names_the_line_that_does_more(
    repository: Path, tmp_path: Path
) -> None:
    first = run_pytest(repository, gating("step.py"), stub=None)
    assert first.returncode == 1
    assert "pytest --bottleneck-update makes it" in first.stdout

    counts = read_last(last_path(repository, "step"))
    fewer = replace(counts, values={**counts.values, "syncs": 0}, sites=())
    write_lock(repository / ".bottleneck" / "step.lock.toml", Lock("step", ("step.py",), fewer))
    work = job(repository, tmp_path, python=sys.executable, only="counters")
    done = work.run(STEPS)
    assert done[-1].returncode == 1, done[2].stdout + done[2].stderr
    assert work.contexts["steps.gate.outputs.verdict"] == "fail"
    assert work.summary.startswith("<!-- bottleneck-gate -->\n")
    assert "| syncs | 0 → 1 (+1) |" in work.summary
    assert "::error file=step.py,line=6," in done[2].stdout
    assert {path.name for path in (repository / "gate").iterdir()} >= {
        "gate.md",
        "gate.json",
        "junit.xml",
        "gate.sarif",
    }
