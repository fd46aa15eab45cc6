"""Runs a captured graph in XLA, by torch.export, torchax and jax.

`torch_xla` is the other way. It is made for one version of torch at a time, while torchax needs no part of torch that
is compiled.
"""

import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bottleneck.experiment.interventions.subject import NotApplicable
from bottleneck.harness.supervise import last_line

# torch 2.13 dropped named tensors, which torchax names on import before 0.0.14 (google/torchax#101 and #102).
_TORCH_WITHOUT_NAMES, _TORCHAX_FOR_IT = (2, 13), (0, 0, 14)
_GET_TORCHAX = {False: "pip install torchax jax", True: "pip install 'torchax>=0.0.14.dev0' jax"}
# The newest torch_xla, and what it is made for: its import fails with any other torch.
_NEWEST_TORCH_XLA = (2, 9)


def lacks_torchax(torch: str, torchax: str | None, *, has_jax: bool = True) -> str | None:
    """Says what XLA by torchax lacks beside these versions; null where it lacks nothing."""
    is_new = _numbers(torch)[:2] >= _TORCH_WITHOUT_NAMES
    if torchax is None or not has_jax:
        why = " (torchax before 0.0.14 does not import with torch 2.13 and later)" if is_new else ""
        return f"{_GET_TORCHAX[is_new]}{why}"
    if is_new and _numbers(torchax)[:3] < _TORCHAX_FOR_IT:
        return (
            f"torchax {torchax} does not import with torch 2.13 and later: {_GET_TORCHAX[True]}, or torch before 2.13"
        )
    return None


def lacks_torch_xla(torch: str, torch_xla: str | None) -> str | None:
    """Says what XLA by torch_xla lacks beside this torch; null where it lacks nothing."""
    ours = _numbers(torch)[:2]
    if torch_xla is not None and _numbers(torch_xla)[:2] == ours:
        return None
    minor = ".".join(map(str, ours))
    if ours <= _NEWEST_TORCH_XLA:
        return f"pip install 'torch_xla=={minor}.*', which is made for torch {minor} alone"
    newest = ".".join(map(str, _NEWEST_TORCH_XLA))
    command = f"pip install 'torch_xla=={newest}.*' 'torch=={newest}.*'"
    return f"torch_xla is made for one torch each, and none fits {minor}: {command}, or try backend-xla"


def version_of_package(name: str) -> str | None:
    """Gives the installed version of a package; null where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torchax_is_there(torch: Any) -> str | None:
    """Says what XLA by torchax lacks in this environment."""
    has_jax = version_of_package("jax") is not None
    return lacks_torchax(str(torch.__version__), version_of_package("torchax"), has_jax=has_jax)


def torch_xla_is_there(torch: Any) -> str | None:
    """Says what XLA by torch_xla lacks in this environment."""
    return lacks_torch_xla(str(torch.__version__), version_of_package("torch_xla"))


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


# What exports a graph by torchax, in a process of its own: torchax registers a device of torch on import, after which
# torch.compile fails ("PyTorch is not linked with support for jax devices").
_EXPORT = """
import sys, jax, torch
from torchax.export import exported_program_to_jax
jax.config.update("jax_enable_x64", True)
source, output = sys.argv[1:]
exported = torch.export.load(source)
weights, function = exported_program_to_jax(exported)
inputs = tuple(jax.numpy.asarray(one.numpy()) for one in exported.example_inputs[0])
made = jax.export.export(jax.jit(lambda *given: function(weights, given)))(*inputs)
open(output, "wb").write(made.serialize())
"""
_EXPORT_S = 600


def xla(torch: Any, graph: Any) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """The graph in XLA, on the CPU.

    XLA takes all processors, or one where torch has one thread. Whole numbers stay 64 bits wide, as torch has them.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if torch.get_num_threads() == 1:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1".strip()
    exported = _exported(torch, torch.export.export(graph.module.eval(), graph.inputs))
    jax: Any = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    compiled = jax.jit(importlib.import_module("jax.export").deserialize(exported).call)
    asarray = importlib.import_module("numpy").asarray

    def call(tensors: Sequence[Any]) -> list[Any]:
        results = compiled(*(tensor.numpy() for tensor in tensors))
        # An array of jax is read-only, and torch warns of that.
        return [torch.from_numpy(asarray(result).copy()) for result in results]

    return call


def _exported(torch: Any, program: Any) -> bytearray:
    """Gives what jax reads of a program that torch exported."""
    with tempfile.TemporaryDirectory(prefix="bottleneck-xla-") as scratch:
        source, output = Path(scratch) / "graph.pt2", Path(scratch) / "graph.jax"
        torch.export.save(program, source)
        ended = subprocess.run(  # noqa: S603 - our own lines
            [sys.executable, "-c", _EXPORT, str(source), str(output)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_EXPORT_S,
        )
        if ended.returncode:
            raise NotApplicable(f"torchax could not export this graph: {last_line(ended.stderr)}")
        return bytearray(output.read_bytes())
