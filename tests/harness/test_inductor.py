"""Kernels of torch.compile: named, noted while they are generated, and noted again when they come from a cache."""

import json
import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.calibrate.cpu import build_native
from bottleneck.cost.call import Cost
from bottleneck.cost.inductor_cpp import compute_kernel_costs
from bottleneck.harness.inductor import Inductor
from bottleneck.schema.compiled_kernels import COMPILED_SCHEMA, CompiledKernel

pytestmark = pytest.mark.compiler

PROGRAM = """
import sys
from bottleneck.harness.inductor import Inductor
from bottleneck.harness.torch_state import TorchHook

inductor = Inductor()
TorchHook(inductor.watchers(), {}).install()
assert "torch" not in sys.modules
import torch

def chain(values, table, index, out):
    for _ in range(8):
        values = values * 1.0001
    out.copy_(values)
    return table[index] + 1, values.view(8, -1).exp().sum(1)

values, out = torch.rand(4096), torch.rand(4096)
torch.compile(chain)(values, torch.rand(500, 16), torch.arange(32), out)
assert torch.allclose(out, values * 1.0001**8)
state = torch.ones(2048)
torch.compile(lambda x: x.mul_(1.5).add_(1.0))(state)
assert state[0] == 2.5
varying = torch.compile(lambda x: x + 1, dynamic=True)
varying(torch.rand(77))
from torch._dynamo.utils import counters
print(counters["inductor"]["fxgraph_cache_hit"], file=sys.stderr)
print(inductor.as_text())
"""


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, dict[str, Any]]]:
    """Cache hits and notes of two processes, one after the other, that compile the same."""
    pytest.importorskip("torch")
    if build_native(1) is None:
        pytest.skip("no C++ compiler here")
    folder = tmp_path_factory.mktemp("inductor")
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    found = []
    for _ in range(2):
        command = [sys.executable, str(folder / "program.py")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append((int(done.stderr.split()[-1]), json.loads(done.stdout)))
    return found


def kernels(notes: dict[str, Any]) -> list[CompiledKernel]:
    import msgspec

    return [msgspec.convert(kernel, CompiledKernel) for kernel in notes["kernels"]]


def test_a_kernel_tells_its_buffers_and_what_it_fuses(noted: list[tuple[int, dict[str, Any]]]) -> None:
    assert noted[0][1]["problem"] is None
    fixed = [kernel for kernel in kernels(noted[0][1]) if kernel.reason is None]
    costs = compute_kernel_costs(fixed)
    assert all(isinstance(cost, Cost) for cost in costs)
    vector = sum(cost.vector_flops for cost in costs if isinstance(cost, Cost))
    assert vector == pytest.approx(8 * 4096 + 32 * 16 + 4096 + 2 * 2048, rel=0.01)
    assert sum(cost.special_ops for cost in costs if isinstance(cost, Cost)) == 4096
    buffers = [buffer for kernel in fixed for buffer in kernel.buffers]
    assert {buffer.read for buffer in buffers if buffer.dims == (500, 16)} == {(0, 512)}
    assert {buffer.read for buffer in buffers if buffer.type == "long int"} == {(32, 32)}
    assert {(buffer.read, buffer.written) for buffer in buffers if buffer.dims == (4096,)} <= {
        ((4096, 4096), None),
        (None, (4096, 4096)),
    }


def test_what_is_changed_in_place_is_read_and_written(noted: list[tuple[int, dict[str, Any]]]) -> None:
    buffers = [buffer for kernel in kernels(noted[0][1]) for buffer in kernel.buffers if buffer.dims == (2048,)]
    assert {buffer.read for buffer in buffers} - {None} == {(2048, 2048)}
    assert {buffer.written for buffer in buffers} - {None} == {(2048, 2048)}


def test_sizes_that_vary_are_unknown_with_a_reason(noted: list[tuple[int, dict[str, Any]]]) -> None:
    reasons = [kernel.reason for kernel in kernels(noted[0][1]) if kernel.reason is not None]
    assert reasons == ["compiled for sizes that vary from call to call"]


def test_what_comes_from_the_cache_has_the_same_notes(noted: list[tuple[int, dict[str, Any]]]) -> None:
    (hits_before, first), (hits, second) = noted
    assert (hits_before, hits) == (0, 3)
    assert second == first


def test_names_are_those_of_the_trace(noted: list[tuple[int, dict[str, Any]]]) -> None:
    names = [kernel.name for kernel in kernels(noted[0][1])]
    assert len(names) == len(set(names)) >= 2
    assert all(name.startswith("graph_") and "_cpp_fused_" in name for name in names)


class Loaded:
    """A compiled graph as it comes from the compiler's cache."""

    def __init__(self, *kernels: dict[str, Any], schema: str = COMPILED_SCHEMA) -> None:
        self.bottleneck_notes = json.dumps({"schema": schema, "kernels": kernels})


def test_two_kernels_of_one_name_are_unknown_unless_they_are_equal() -> None:
    inductor = Inductor()
    inductor._collect(Loaded({"name": "a", "ops": []}, {"name": "b", "ops": [1]}))
    inductor._collect(Loaded({"name": "a", "ops": []}, {"name": "b", "ops": [2]}))
    one, two = json.loads(inductor.as_text())["kernels"]
    assert one == {"name": "a", "ops": []}
    assert two["reason"] == "two compiled graphs have a kernel of this name"


def test_notes_of_another_version_or_none_are_left_alone() -> None:
    inductor = Inductor()
    inductor._collect(Loaded({"name": "a"}, schema="bottleneck/compiled/0"))
    inductor._collect(SimpleNamespace())
    assert json.loads(inductor.as_text())["kernels"] == []


def test_a_compiler_that_looks_different_is_left_alone_and_named() -> None:
    inductor = Inductor()
    inductor.watchers()["torch._inductor.codegen.cpp"](SimpleNamespace())
    assert "could not be watched: AttributeError" in (inductor.problem or "")


def test_a_program_gets_its_setting_back_and_is_watched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = SimpleNamespace(cpp=SimpleNamespace(enable_kernel_profile=False))
    cpp = SimpleNamespace(CppScheduling=type("CppScheduling", (), {"define_kernel": lambda *_: "kernel"}))
    monkeypatch.setitem(sys.modules, "torch._inductor.config", config)
    monkeypatch.setitem(sys.modules, "torch._inductor.codegen.cpp", cpp)
    monkeypatch.delitem(sys.modules, "torch._inductor.output_code", raising=False)
    inductor, seen = Inductor(), []
    for _ in range(2):
        inductor.resume()
        seen.append((config.cpp.enable_kernel_profile, inductor.is_on, cpp.CppScheduling.define_kernel))
        inductor.rest()
        assert (config.cpp.enable_kernel_profile, inductor.is_on) == (False, False)
    assert seen[0][:2] == (True, True)
    assert seen[0] == seen[1]
    assert inductor.problem is None
