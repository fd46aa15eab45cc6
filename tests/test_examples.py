"""Every workload of `examples/` runs at a tiny size and says which verdict to expect."""

import ast
import math
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from bottleneck.experiment.interventions.subject import make_subject
from bottleneck.harness.target import find_form

EXAMPLES = Path(__file__).parents[1] / "examples"
# What makes each workload small enough for a test.
TINY: dict[str, dict[str, Any]] = {
    "intensity": {"elements": 64, "repeat": 2},
    "lenet": {"batch_size": 2},
    "matmul": {"n": 4},
    "mlp": {"batch_size": 2, "hidden": 4},
    "pointwise": {"elements": 64, "repeat": 2},
    "slow_loader": {"batch_size": 2},
    "small_network": {"batch_size": 2},
    "transformer": {"batch_size": 1, "length": 4, "width": 8, "layers": 1},
    "vgg19": {"batch_size": 1, "image": 32, "width": 1},
}

# What torch says of itself while it loads its compiler.
quietly = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
COMPILES = {"intensity"}


def need_a_compiler(name: str) -> None:
    pytest.importorskip("torch")
    if name in COMPILES and not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("torch.compile needs a C++ compiler, and there is none here")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_what_verdict_to_expect(path: Path) -> None:
    told = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    assert re.search(r"Expected verdict(?: on a CPU)?: (?:overhead|memory|compute)", told)


def test_every_workload_has_a_tiny_size() -> None:
    workloads = {path.stem for path in EXAMPLES.glob("*.py") if find_form(path) == "workload"}
    assert workloads == set(TINY)


@quietly
@pytest.mark.parametrize("name", sorted(TINY))
def test_a_workload_runs_at_a_tiny_size(name: str) -> None:
    need_a_compiler(name)
    step = make_subject(str(EXAMPLES / f"{name}.py"), settings=TINY[name]).step
    step()
    step()


@quietly
@pytest.mark.parametrize(("repeat", "left"), [(1, 0.9999), (2, 1.0), (9, 1.0), (16, 1.0)])
def test_the_multiplications_leave_what_they_would_one_by_one(repeat: int, left: float) -> None:
    need_a_compiler("intensity")
    torch = pytest.importorskip("torch")
    step = make_subject(str(EXAMPLES / "intensity.py"), settings={"elements": 64, "repeat": repeat}, seed=5).step
    torch.manual_seed(5)
    values = torch.randn(64).sign()
    chains = len(runpy.run_path(str(EXAMPLES / "intensity.py"))["lengths"](repeat))
    torch.testing.assert_close(step(), (values * left) ** chains)


@pytest.mark.parametrize("repeat", [1, 2, 3, 4, 5, 8, 16, 17, 32, 256])
def test_the_chains_and_what_joins_them_are_as_many_multiplications_as_asked_for(repeat: int) -> None:
    pytest.importorskip("torch")
    example = runpy.run_path(str(EXAMPLES / "intensity.py"))
    times = example["lengths"](repeat)
    assert sum(times) + len(times) - 1 == repeat
    assert len(times) <= 8 and min(times) >= (2 if repeat > 1 else 1)
    factors = [example["factors"](chain, each) for chain, each in enumerate(times)]
    assert [len(each) for each in factors] == times
    assert {math.prod(each) for each in factors} == ({1.0} if repeat > 1 else {0.9999})
    assert len({tuple(each) for each in factors}) == len(factors)


def test_vgg19_has_as_many_weights_as_the_paper_says() -> None:
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        made = make_subject(str(EXAMPLES / "vgg19.py"))
    (model,) = made.modules
    # Simonyan and Zisserman 2014, table 2: 144 million.
    assert sum(parameter.numel() for parameter in model.parameters()) == 143_667_240


def test_lenet_has_as_many_weights_as_its_layers_say() -> None:
    pytest.importorskip("torch")
    (model,) = make_subject(str(EXAMPLES / "lenet.py")).modules
    assert sum(parameter.numel() for parameter in model.parameters()) == 44_426
