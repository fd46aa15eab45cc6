"""Runs a captured graph in Apache TVM, for the instructions of this processor.

The graph is imported into Relax from `torch.export`, and built by TVM's default pipeline or tuned first. TVM's virtual
machine takes tensors of torch as they are.
"""

import hashlib
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from bottleneck.experiment.interventions.subject import Missing, NotApplicable
from bottleneck.harness.machine import cpu_flags
from bottleneck.harness.supervise import last_line

# How long a graph is tuned, and what loading it and building the result may take beside that.
TUNING_S, _BESIDE_S = 60, 120
_TUNER = "bottleneck.experiment.tvm_tuning"

# The levels of the x86-64 psABI by the instructions that they add, as Linux names them.
_LEVELS = (
    ("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
    ("x86-64-v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})),
    ("x86-64-v2", frozenset({"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"})),
)
# Instructions beyond a level that LLVM can use: Linux's name and LLVM's.
_BEYOND = {
    "x86_64": {"avx512_vnni": "+avx512vnni", "avx_vnni": "+avxvnni", "avx512_bf16": "+avx512bf16"},
    "aarch64": {"asimd": "+neon", "asimddp": "+dotprod", "asimdhp": "+fullfp16", "i8mm": "+i8mm", "sve": "+sve"},
}


def target_of(flags: Collection[str], machine: str, threads: int) -> dict[str, Any]:
    """Gives the target of LLVM for a processor with these instructions.

    By its instructions and not by its model, since a virtual machine may lack some of them.
    """
    level, below = "x86-64" if machine == "x86_64" else "generic", set(flags)
    for index, (name, _) in enumerate(_LEVELS):
        if machine == "x86_64" and all(needed <= below for _, needed in _LEVELS[index:]):
            level = name
            break
    beyond = [attribute for flag, attribute in _BEYOND.get(machine, {}).items() if flag in below]
    target = {"kind": "llvm", "mcpu": level, "num-cores": threads}
    return {**target, "mattr": sorted(beyond)} if beyond else target


def tvm(torch: Any, graph: Any) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """The graph in TVM, built by its default pipeline."""
    return _engine(torch, *_imported(torch, graph))


def tvm_tuned(torch: Any, graph: Any) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """The graph in TVM, with the best kernels that a minute of search found."""
    module, target = _imported(torch, graph)
    return _engine(torch, tuned(module, target), target)


def _imported(torch: Any, graph: Any) -> tuple[Any, dict[str, Any]]:
    """Gives the graph as a module of Relax, with its weights, and the target."""
    importer = importlib.import_module("tvm.relax.frontend.torch")
    exported = torch.export.export(graph.module.eval(), graph.inputs)
    target = target_of(cpu_flags(), platform.machine(), torch.get_num_threads())
    return importer.from_exported_program(exported), target


def _engine(torch: Any, module: Any, target: dict[str, Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    library: Any = importlib.import_module("tvm")
    relax = importlib.import_module("tvm.relax")
    set_threads = library.get_global_func("runtime.config_threadpool", allow_missing=True)
    if set_threads is not None:
        set_threads(0, torch.get_num_threads())
    built = library.compile(module, target=library.target.Target(target))
    run = relax.VirtualMachine(built, library.cpu())["main"]

    def call(tensors: Sequence[Any]) -> list[Any]:
        results = run(*(tensor.contiguous() for tensor in tensors))
        results = [results] if isinstance(results, torch.Tensor) else results
        return [one if isinstance(one, torch.Tensor) else torch.from_dlpack(one) for one in results]

    return call


def tuned(module: Any, target: dict[str, Any]) -> Any:
    """Gives the module with the kernels that a search in another process found.

    A trial makes a step several times, and shares what was found: beside the compiled code of Inductor.
    """
    library = importlib.import_module("tvm")
    asked = json.dumps({"module": library.ir.save_json(module), "target": target})
    key = f"tvm-{hashlib.sha256(asked.encode()).hexdigest()[:24]}.json"
    with tempfile.TemporaryDirectory(prefix="bottleneck-tvm-") as scratch:
        source = Path(scratch) / "module.json"
        output = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or scratch) / key
        if not output.exists():
            source.write_text(asked, encoding="utf-8")
            output.parent.mkdir(parents=True, exist_ok=True)
            _search(source, output)
        return library.ir.load_json(json.loads(output.read_text(encoding="utf-8"))["module"])


def _search(source: Path, output: Path) -> None:
    arguments = [sys.executable, "-m", _TUNER, str(source), str(output), str(TUNING_S)]
    try:
        ended = subprocess.run(  # noqa: S603 - our own module
            arguments, capture_output=True, text=True, check=False, timeout=TUNING_S + _BESIDE_S
        )
    except subprocess.TimeoutExpired:
        raise NotApplicable(f"TVM was not done {_BESIDE_S} s after the {TUNING_S} s of its search") from None
    if ended.returncode or not output.exists():
        raise failure_of_search(ended.returncode, ended.stderr)


def failure_of_search(code: int, output: str) -> Exception:
    """Makes the exception for a search that ended with this status and output.

    TVM 0.27 with tvm-ffi 0.1.15 ends by a segmentation fault where it begins to tune.
    """
    if code < 0:
        return Missing(
            f"a TVM that can tune: its process ended by signal {-code}; pip install 'apache-tvm-ffi<0.1.15' helped "
            "with apache-tvm 0.27"
        )
    return NotApplicable(f"TVM could not tune this graph: {last_line(output) or f'exit status {code}'}")
