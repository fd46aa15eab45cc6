"""Reads torch's versions, devices and compilations without initialising a device, and detects its import."""

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from bottleneck.harness.lines import is_program
from bottleneck.harness.machine import is_on_gpu, usable_cores
from bottleneck.harness.torch_private import (
    DYNAMO,
    break_reasons,
    compile_counters,
    compile_events,
    compiled_frames,
    has_arm_library,
    note_untold_kernels,
)
from bottleneck.schema.compile_health import CompileHealth, summarize
from bottleneck.schema.measurements import Compilation, GraphBreak

_LONGEST_REASON = 200


def is_pytorch(module: Any) -> bool:
    """Tells whether a module is PyTorch itself.

    Another module called torch may be a file beside the script.
    """
    return all(hasattr(module, name) for name in ("__version__", "Tensor", "autograd", "nn"))


def describe_compilation(folder: str) -> Compilation | None:
    """Sums what torch's compiler has done until now.

    All zero where the program never brought in the compiler, null where it tells nothing. Names of files are relative
    to ``folder`` where they lie in it.
    """
    if DYNAMO not in sys.modules:
        return Compilation(0, 0, 0, cudagraph_skips=0)
    try:
        return _describe(folder)
    except Exception:  # another version of the compiler
        return None


def _describe(folder: str) -> Compilation:
    counters = compile_counters()
    assert counters is not None, "this torch counts nothing"
    breaks = sum(counters["graph_break"].values())
    if counters["stats"]["unique_graphs"]:
        note_untold_kernels()
    return Compilation(
        graphs=int(counters["stats"]["unique_graphs"]),
        graph_breaks=breaks,
        recompiles=sum(max(0, times - 1) for times in compiled_frames().values()),
        breaks=_breaks(break_reasons(), folder) if breaks else (),
        cudagraph_skips=int(counters.get("inductor", {}).get("cudagraph_skips", 0)),
        health=_health(folder),
    )


def _health(folder: str) -> CompileHealth | None:
    """Describes each graph.

    Null where nothing was compiled, or torch tells it in another form.
    """
    try:
        health = summarize(compile_events(), partial(relative_to, folder), is_program)
        return health if health.graphs or health.breaks else None
    except Exception:  # another version of the compiler
        return None


def _breaks(reasons: Any, folder: str) -> tuple[GraphBreak, ...]:
    """Counts the graph breaks at lines of the program.

    Only as far as dynamo tells them.
    """
    counts = Counter(_place(reason, folder) for reason in reasons if getattr(reason, "graph_break", False))
    return tuple(GraphBreak(*place, count) for place, count in sorted(counts.items()) if place[0])


def _place(reason: Any, folder: str) -> tuple[str, int, str]:
    """Gives file, line and the first line of a reason's text.

    The line is that of the innermost frame of the program's own.
    """
    stack = [frame for frame in getattr(reason, "user_stack", None) or () if is_program(frame.filename)]
    text = (str(getattr(reason, "reason", "")).strip().splitlines() or [""])[0][:_LONGEST_REASON]
    return (relative_to(folder, stack[-1].filename), int(stack[-1].lineno or 0), text) if stack else ("", 0, text)


def relative_to(folder: str, path: str) -> str:
    """Gives the path relative to the folder where it lies inside.

    Else only its last part: where people keep files is theirs.
    """
    inside = os.path.relpath(os.path.realpath(path), os.path.realpath(folder))
    return os.path.basename(path) if inside.startswith("..") else inside  # noqa: PTH119 - as plain text


def search_path(folder: str) -> tuple[str, ...]:
    """Gives the entries of sys.path inside the folder, relative to it.

    The longest come first, since the profiler cuts the longest off.
    """
    entries = {os.path.realpath(entry or folder) for entry in sys.path if isinstance(entry, str)}
    inside = (os.path.relpath(entry, os.path.realpath(folder)) for entry in entries)
    own = {entry for entry in inside if not entry.startswith("..") and "site-packages" not in entry}
    return tuple(sorted(own, key=lambda entry: (-len(entry), entry)))


_FIELDS = (
    "name",
    "total_memory",
    "multi_processor_count",
    "major",
    "minor",
    "clock_rate",
    "memory_clock_rate",
    "memory_bus_width",
    "L2_cache_size",
    "gcnArchName",
    "uuid",
)


def describe_torch(torch: Any) -> dict[str, Any]:
    """Describes torch as fields of the notes.

    These are version, threads and cores, and the facts of each GPU that the program can see.
    """
    return {
        "framework": f"PyTorch {torch.__version__}",
        "threads": torch.get_num_threads(),
        "cores": usable_cores(),
        "device_facts": tuple(_device_facts(torch)),
        "libraries": _libraries(torch),
    }


def _libraries(torch: Any) -> dict[str, str | int | bool]:
    """Gives versions and abilities of what torch computes with.

    Those of a GPU where the program uses one.
    """
    facts: dict[str, Any] = {
        "isa": ask(lambda: str(torch.backends.cpu.get_cpu_capability())),
        "onednn": ask(lambda: torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),
        "mkl": ask(lambda: bool(torch.backends.mkl.is_available())),
        "float32": ask(lambda: _float32_products(torch)),
        **built_with(torch),
    }
    if is_on_gpu(torch):
        facts["cuda"], facts["hip"] = torch.version.cuda, getattr(torch.version, "hip", None)
        facts["cudnn"] = ask(lambda: int(torch.backends.cudnn.version()))
    return {name: value for name, value in facts.items() if isinstance(value, str | int | bool)}


_BUILD_SETTING = re.compile(r"\b(BLAS|LAPACK)_INFO=(\w{1,20})")
# Libraries in the text of the build, with their versions or without.
_LINKED = {
    "MKL": re.compile(r"Math Kernel Library Version (\d[\d.]*\d)"),
    "oneDNN": re.compile(r"MKL-DNN v(\d[\d.]*\d)"),
    "MAGMA": re.compile(r"Magma (\d[\d.]*\d)"),
    "FBGEMM": re.compile(r"-DUSE_FBGEMM()\b"),
    "NNPACK": re.compile(r"USE_NNPACK=(?:ON|1)()\b"),
    "QNNPACK": re.compile(r"-DUSE_PYTORCH_QNNPACK()\b"),
    "XNNPACK": re.compile(r"-DUSE_XNNPACK()\b"),
}


def built_with(torch: Any) -> dict[str, str]:
    """The libraries for BLAS and LAPACK, as torch's build names them: 'mkl', 'open' …"""
    return {name.lower(): value.lower() for name, value in _BUILD_SETTING.findall(_build_text(torch))}


def linked_libraries(torch: Any) -> dict[str, str]:
    """Gives the version of each library that this torch is linked with.

    Empty where torch does not tell the version.
    """
    text = _build_text(torch)
    linked = {name: match[1] for name, pattern in _LINKED.items() if (match := pattern.search(text))}
    of_devices = {
        "ACL": ask(lambda: "" if has_arm_library(torch) else None),
        "cuDNN" if torch.version.cuda else "MIOpen": ask(lambda: _dotted(torch.backends.cudnn.version())),
        "NCCL": ask(lambda: ".".join(map(str, torch.cuda.nccl.version()))) if is_on_gpu(torch) else None,
    }
    return linked | {name: str(version) for name, version in of_devices.items() if version is not None}


def _dotted(version: int | None) -> str | None:
    """The version that a number stands for.

    91002 is cuDNN 9.10.2, 8902 cuDNN 8.9.2, 3002001 MIOpen 3.2.1.
    """
    if version is None:
        return None
    major, minor = (1_000_000, 1000) if version >= 1_000_000 else (10_000 if version >= 90_000 else 1000, 100)
    return f"{version // major}.{version % major // minor}.{version % minor}"


def _build_text(torch: Any) -> str:
    settings = ask(lambda: str(torch.__config__.show()))
    return settings if isinstance(settings, str) else ""


def _float32_products(torch: Any) -> str:
    """The precision of fp32 products: 'highest' unless the program chose a lower one."""
    onednn = getattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision", None)
    return onednn if onednn in {"tf32", "bf16"} else str(torch.get_float32_matmul_precision())


def ask(question: Callable[[], Any]) -> Any:
    """The answer, null where this version of torch has none."""
    try:
        return question()
    except (AttributeError, RuntimeError, TypeError):
        return None


def _device_facts(torch: Any) -> Iterator[dict[str, str | int | float | None]]:
    for index in range(torch.cuda.device_count() if is_on_gpu(torch) else 0):
        properties = torch.cuda.get_device_properties(index)
        facts: dict[str, str | int | float | None] = {"index": index}
        for name in _FIELDS:
            value = getattr(properties, name, None)
            facts[name] = value if isinstance(value, str | int | float) or value is None else str(value)
        yield facts


class TorchHook:
    """An import finder that calls back around the import of watched modules.

    It finds nothing itself.

    ``after`` holds what to call with a module once it is loaded, ``before`` what to call as its import begins.
    """

    def __init__(self, after: Mapping[str, Callable[[Any], None]], before: Mapping[str, Callable[[], None]]) -> None:
        self._after = after
        self._before = before

    def install(self) -> None:
        """Puts the hook before all other finders."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Takes it away, if it is there."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Gives a watched module's spec with a loader that calls back.

        The spec is that of the finder that has the module. Null for any other module.
        """
        if name in self._before:
            self._before[name]()
        if name not in self._after:
            return None
        # Only those behind it: another hook in front has asked this one.
        after = sys.meta_path.index(self) + 1 if self in sys.meta_path else 0
        for finder in sys.meta_path[after:]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _call_back_after(spec.loader, self._after[name])
                return spec
        return None


def _call_back_after(loader: Any, call_back: Callable[[Any], None]) -> None:
    """Wraps the loader's work for one call.

    The module keeps its own loader and spec.
    """
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        loader.__dict__.pop("exec_module", None)  # another hook may have taken it away already
        load(module)
        call_back(sys.modules.get(module.__name__, module))

    loader.exec_module = exec_module
