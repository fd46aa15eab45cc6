"""Runs the programs of KernelBench under fake tensors in one process of its own and gives back their op calls."""

import csv
import importlib.util
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.kernelbench.learn import Timing
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import EngineSettings, StepCall, StepCalls, TensorUse

Key = tuple[str, str, str]
# Defaults of PyTorch, under which the programs were timed without gradients.
SETTINGS = EngineSettings(
    matmul_allow_tf32=False, cudnn_allow_tf32=True, float32_matmul_precision="highest", training=False
)
_US_PER_MS = 1e3


def read_timings(folder: Path) -> list[Timing]:
    """The rows of timings.csv."""
    with (folder / "timings.csv").open(encoding="utf-8", newline="") as lines:
        return [_timing(row) for row in csv.DictReader(lines)]


def _timing(row: Mapping[str, Any]) -> Timing:
    return Timing(
        row["version"],
        row["level"],
        int(row["problem"]),
        row["name"],
        row["machine"],
        row["hardware"],
        row["backend"],
        float(row["mean_ms"]) * _US_PER_MS,
    )


def read_steps(folder: Path, pattern: str = "v*/level*/*.py") -> tuple[dict[Key, StepCalls], dict[Key, str]]:
    """The op calls of the programs whose paths match, and why some have none."""
    with tempfile.TemporaryDirectory() as place:
        result = Path(place) / "steps.pickle"
        command = [sys.executable, "-m", "benchmarks.kernelbench.programs", str(folder), str(result), pattern]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        steps, failed = pickle.loads(result.read_bytes())
    return steps, failed


def _files(folder: Path, pattern: str) -> Iterator[tuple[Key, Path]]:
    for path in sorted(folder.glob(pattern)):
        version, level, _ = path.relative_to(folder).parts
        yield (version.removeprefix("v"), level, path.stem), path


def _run_all(folder: Path, pattern: str) -> tuple[dict[Key, StepCalls], dict[Key, str]]:
    # Only the process that runs the programs imports torch.
    import torch  # noqa: PLC0415
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode  # noqa: PLC0415
    from torch.utils._python_dispatch import _disable_current_modes  # noqa: PLC0415

    from bottleneck.harness.call_recorder import CallRecorder  # noqa: PLC0415
    from bottleneck.harness.cuda_ops import CudaChoices  # noqa: PLC0415

    choices = CudaChoices(torch, FakeTensor)
    steps, failed = {}, {}
    for key, path in _files(folder, pattern):
        recorder = CallRecorder(torch, choices.replaced)
        try:
            module = _load(path)
            with FakeTensorMode(allow_non_fake_inputs=True), recorder, torch.no_grad():
                try:
                    model = module.Model(*module.get_init_inputs())
                except DataDependentOutputException:
                    # It computes sizes of its layers with tensors; the real model is small enough.
                    with _disable_current_modes():
                        model = module.Model(*module.get_init_inputs())
                steps[key] = _run(torch, path.name, (model, module.get_inputs()), recorder)
        except Exception as error:
            failed[key] = f"{type(error).__name__}: {error}"
    return steps, failed


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(torch: Any, name: str, program: tuple[Any, Any], recorder: Any) -> StepCalls:
    model, inputs = program
    recorder.tag([*model.parameters(), *model.buffers()], "parameter")
    recorder.tag([each for each in inputs if isinstance(each, torch.Tensor)], "input")
    recorder.start()
    result = model(*inputs)
    recorder.stop()
    storages, numbers = recorder.storages()
    del result
    calls = tuple(_renumbered(call, numbers) for call in recorder.calls)
    return StepCalls(name, "fake step", calls, SETTINGS, storages=storages, host_ops=recorder.host_ops)


def _renumbered(call: StepCall, numbers: Mapping[int, int]) -> StepCall:
    def use(each: TensorUse) -> TensorUse:
        return replace(each, storage=None if each.storage is None else numbers.get(each.storage))

    return replace(call, inputs=tuple(map(use, call.inputs)), outputs=tuple(map(use, call.outputs)))


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(pickle.dumps(_run_all(Path(sys.argv[1]), sys.argv[3])))
