"""A program with planted breaks, recompiles, a skip and slow guards, through `bottleneck run` and TORCH_TRACE."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bottleneck.pipeline import analyse
from bottleneck.schema.compile_health import CompileHealth
from bottleneck.trace.compile_log import read_compile_logs

from .driver import record

pytestmark = pytest.mark.compiler

pytest.importorskip("torch")

PROGRAM = (Path(__file__).parents[2] / "benchmarks" / "planted_compile.py").read_text()
LINES = PROGRAM.splitlines()


def line_of(pattern: str) -> str:
    """The place of the one line of the program that a pattern finds."""
    (number,) = [at for at, line in enumerate(LINES, 1) if re.search(pattern, line)]
    return f"program.py:{number}"


BREAKS = {"value": line_of(r"y\.sum\(\)\.item"), "print": line_of(r"print\(end"), "inserted": line_of(r"graph_break\(")}


def check_planted(health: CompileHealth) -> None:
    """Every planted cost is named, with its line."""
    assert {one.cause: one.source for one in health.breaks} == BREAKS
    guards = {one.guard_words for one in health.recompiles}
    assert "size 0 of x: 64, then 48" in guards
    assert any(words.startswith("self.scale: 1.0, then") for words in guards)
    assert {one.cause for one in health.recompiles} == {"size", "number"}
    assert all(one.seconds is not None and one.seconds > 0 and one.source for one in health.recompiles)
    (skip,) = health.skips
    assert (skip.cause, skip.source, skip.count) == ("cpu", line_of(r"x\.add_\(1\)"), 1)
    (guarded,) = [graph for graph in health.graphs if graph.function == "guarded"]
    assert guarded.guards is not None and guarded.guards > 400
    others = [graph.guards for graph in health.graphs if graph is not guarded and graph.guards is not None]
    assert max(others) < 100


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inductor")


def test_all_that_was_planted_is_named_with_line_and_price(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = record(tmp_path, PROGRAM, "--steps=5")
    assert done.status == 0
    analysis = analyse([done.folder])
    health = analysis.compile_health
    assert health is not None
    check_planted(health)
    prices = [one.price_us for one in health.breaks if one.price_us is not None]
    assert len(prices) == 3 and all(0 < low <= high for low, high in prices)
    assert sum(high for _, high in prices) < analysis.steps.wall_us
    (guarded,) = [graph for graph in health.graphs if graph.function == "guarded"]
    assert guarded.guards_us == max(graph.guards_us or 0.0 for graph in health.graphs)
    (finding,) = [finding for finding in analysis.findings if finding.slug == "graph-breaks"]
    assert all(any(place in line for line in finding.evidence) for place in BREAKS.values())


def test_torchs_own_log_names_the_same(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {
        **os.environ,
        "TORCH_TRACE": str(tmp_path / "log"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", "import program; program.workload()()"]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    (log, *_) = read_compile_logs(tmp_path / "log")
    assert log.damaged == 0
    check_planted(log.health)
    assert all(one.price_us is None and one.price_reason == "no-steps" for one in log.health.breaks)
