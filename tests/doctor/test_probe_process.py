"""The torch probe on a torch made for the test: a GPU that works, is hidden, or dies under it."""

import os
from pathlib import Path
from typing import Any

import pytest

from bottleneck.doctor.facts import run_probes

# As much of torch as the probe touches. `{...}` are pieces that each test fills in.
_TORCH = """
import os, types
__version__, version = "2.13.0+cu128", types.SimpleNamespace(cuda="12.8", hip=None)
get_num_threads = lambda: 4
class Tensor:
    def __matmul__(self, other): return self
    def __add__(self, other): return self
    def sum(self): return self
def ones(*sizes, device=None):
    if device: {on_use}
    return Tensor()
class Window:
    def __init__(self, activities, record_shapes=False):
        self.kinds = ["DeviceType.CPU"] * 2 + ["DeviceType.CUDA"] * {kernels} * (len(activities) > 1)
    def __enter__(self): return self
    def __exit__(self, *how): return None
    def events(self): return [types.SimpleNamespace(name="aten::mm", device_type=kind) for kind in self.kinds]
profiler = types.SimpleNamespace(profile=Window, ProfilerActivity=types.SimpleNamespace(CPU=0, CUDA=1))
autograd = types.SimpleNamespace(kineto_available=lambda: True)
def refuse(): {on_init}
facts = types.SimpleNamespace(name="H100 \\x1b[31m", major=9, minor=0, total_memory=85 * 10**9, uuid="u")
cuda = types.SimpleNamespace(is_available=lambda: {available}, is_initialized=lambda: True, device_count=lambda: 1,
    init=refuse, get_device_properties=lambda index: facts, get_arch_list=lambda: [], synchronize=lambda: None)
"""
_WORKING = {"on_use": "pass", "kernels": "3", "on_init": "return None", "available": "True"}


def probe_torch(folder: Path, **pieces: str) -> tuple[int | None, dict[str, Any], str]:
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(_TORCH.format(**{**_WORKING, **pieces}))
    (output,) = run_probes(("torch",), {**os.environ, "PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder)})
    return output.status, dict(output.stages), output.error


def test_a_gpu_that_works_is_described_and_its_kernels_are_counted(tmp_path: Path) -> None:
    status, stages, _ = probe_torch(tmp_path)
    assert status == 0
    (device,) = stages["cuda"]["devices"]
    assert (device["major"], device["minor"], device["total_memory"]) == (9, 0, 85 * 10**9)
    assert stages["kernels"] == {"recorded": 3}
    assert "calibration" not in stages


def test_a_window_without_kernels_is_counted_as_such(tmp_path: Path) -> None:
    assert probe_torch(tmp_path, kernels="0")[1]["kernels"] == {"recorded": 0}


def test_a_hidden_gpu_leaves_the_words_of_torch(tmp_path: Path) -> None:
    _, stages, _ = probe_torch(
        tmp_path, available="False", on_init="raise RuntimeError('Found no NVIDIA driver\\nmore')"
    )
    assert stages["cuda"] == {"devices": [], "error": "Found no NVIDIA driver"}
    assert "kernels" not in stages


def test_an_error_on_the_device_is_reported_and_not_raised(tmp_path: Path) -> None:
    status, stages, _ = probe_torch(tmp_path, on_use="raise RuntimeError('CUDA error: out of memory')")
    assert status == 0
    assert stages["kernels"] == {"error": "RuntimeError: CUDA error: out of memory"}


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), 11)", "os._exit(9)"])
def test_a_death_on_the_device_leaves_all_that_was_known_before(tmp_path: Path, how: str) -> None:
    status, stages, _ = probe_torch(tmp_path, on_use=how)
    assert status in {-11, 9}
    assert list(stages) == ["import", "profiler", "libraries", "cuda"]
