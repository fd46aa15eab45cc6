"""Another torch than this one: private names that are gone or changed cost a caveat, never the program."""

import ast
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import bottleneck
from bottleneck.calibrate import calibrate_device
from bottleneck.errors import WorkloadError
from bottleneck.harness import native_export, torch_private
from bottleneck.harness.lines import Line, WithLines
from bottleneck.harness.torch_private import PRIVATE

from .driver import record

PACKAGE = Path(bottleneck.__file__).parent

# What a training script and others do, between the same beginning and end.
TRAINING = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs, wanted in DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), wanted)
    loss.backward()
    optimizer.step()
"""
LOADING = """
for inputs, wanted in DataLoader(data, batch_size=4):
    loss = torch.nn.functional.mse_loss(model(inputs), wanted)
"""
COMPILED = """
def forward(inputs):
    hidden = model[1](model[0](inputs))
    torch._dynamo.graph_break()
    return model[2](hidden)

compiled = torch.compile(forward, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for size in [4] * 60 + [5] * 20:
    optimizer.zero_grad()
    loss = compiled(torch.ones(size, 8)).square().mean()
    loss.backward()
    optimizer.step()
"""
COMPILED_MODULE = """
model.compile(backend="eager")
whole = torch.compile(model, backend="eager")
for _ in range(80):
    loss = whole(torch.ones(4, 8)).sum()
"""
EXPORTED = """
exported = torch.export.export(model, (torch.ones(4, 8),)).module()
whole = torch.compile(torch.nn.Linear(8, 8), backend="eager")
for _ in range(80):
    loss = exported(torch.ones(4, 8)).sum()
"""
DISTRIBUTED = """
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(80):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    torch.distributed.all_reduce(model[0].weight.grad)
    optimizer.step()
"""
_START = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
data = TensorDataset(torch.randn(320, 8), torch.randn(320, 1))
"""
_END = """
print(f"loss {loss.item():.6f}")
print("done", file=sys.stderr)
sys.exit(3)
"""

# The program that asks for a private name, by the beginning of the name; the others are those of training.
_PROGRAMS = {
    "torch._dynamo.eval_frame": COMPILED_MODULE,
    "torch._dynamo": COMPILED,
    "torch.export": EXPORTED,
    "torch.distributed": DISTRIBUTED,
    "torch.utils.data": LOADING,
    "._dataset": LOADING,
    "._num_yielded": LOADING,
}
# Asked for by predict, verify, watch, a workload whose batch is doubled, and where a GPU's memory runs out: no script
# under `run` here does.
NOT_IN_A_SCRIPT = {
    "torch._C._current_autograd_node",
    "torch.autograd._get_sequence_nr",
    "torch._C._nn",
    "._schema",
    "torch._dynamo.config",
    "._workers",
    "._num_workers",
    "._prefetch_factor",
    "torch.autograd.graph.log",
    "torch.cuda.memory._dump_snapshot",
    "torch.cuda.memory._record_memory_history",
}


def _program_for(name: str) -> str:
    body = next((body for start, body in _PROGRAMS.items() if name.startswith(start)), TRAINING)
    return _START + body + _END


def _break(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: str, name: str, how: str
) -> "subprocess.CompletedProcess[str]":
    """The outcome of the program under Python; further programs run with this name broken."""
    (folder / "plain.py").write_text(program)
    plain = subprocess.run([sys.executable, "plain.py"], cwd=folder, capture_output=True, text=True, check=False)
    (folder / "site").mkdir()
    shutil.copy(Path(__file__).with_name("broken_torch.py"), folder / "site" / "sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "site"), str(PACKAGE.parent)]))
    monkeypatch.setenv("BROKEN", name)
    monkeypatch.setenv("HOW", how)
    monkeypatch.setenv("ASKED", str(folder / "asked"))
    return plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how"),
    [(name, how) for name in PRIVATE if name not in NOT_IN_A_SCRIPT for how in ("use", "lookup")],
)
def test_a_torch_with_another_private_name_leaves_the_program_undisturbed(
    name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _program_for(name)
    plain = _break(tmp_path, monkeypatch, program, name, how)
    run = record(tmp_path, program)
    assert (run.stdout, run.stderr, run.status) == (plain.stdout, plain.stderr, plain.returncode)
    assert run.recording.traces
    assert not [each for each in run.recording.warnings if "failed" in each or "could not" in each]
    assert (tmp_path / "asked").exists()
    lost = [warning for warning in run.recording.warnings if "does not tell" in warning]
    assert lost == ([f"torch {torch.__version__} does not tell {PRIVATE[name]}"] if PRIVATE[name] else [])


OURS = [
    "window.Guard.watch",
    "window.ProfilerWindow.start",
    "window.ProfilerWindow.event_count",
    "window.ProfilerWindow.export",
    "lines.find_lines",
    "module_paths.find_modules",
    "boundaries.Boundaries.watch",
    "boundaries.Boundaries.narrow",
    "stopwatch.Stopwatch.mark",
    "session.Session.time",
    "session.Session.keep",
    "session.Session.offer",
    "session.Session.look_at_values",
    "session.Session.note_debug_modes",
    "session.Session.finish_measuring",
    "torch_state.describe_torch",
    "run_log.RunLog.summarise",
    "script.Script.leave",
]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("name", OURS)
def test_a_failure_of_our_own_leaves_the_program_undisturbed(
    name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _program_for(name)
    plain = _break(tmp_path, monkeypatch, program, name, how)
    run = record(tmp_path, program)
    assert (run.stdout, run.stderr, run.status) == (plain.stdout, plain.stderr, plain.returncode)
    assert (tmp_path / "asked").exists()
    said = [each for each in run.recording.warnings if name in each]
    assert said or run.recording.traces


# Private names of others than torch, by the object that they are read of.
_NOT_OF_TORCH = {"os", "sys", "runpy", "subprocess", "libc", "self", "cls", "this", "aten", "import_system"}
_NOT_OF_TORCH_EITHER = {"_asdict", "_replace", "_bootstrap", "_args", "_target", "_get_entrypoint_name"}


# Attributes that are named as text.
_HIDDEN = {torch_private.READ_BY_LOADER, torch_private.READ_BY_COMPILED, *(n[1:] for n in PRIVATE if n[0] == ".")}


def _private_names(path: Path) -> list[str]:
    """The attributes and texts in a file that name something private of torch, with their lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_of(node, {"self", "cls"})}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            is_ours = node.attr in own | _NOT_OF_TORCH_EITHER or _is_of(node, _NOT_OF_TORCH)
            if not is_ours:
                found.append(f"{path.name}:{node.lineno} {node.attr}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            if re.match(r"torch(\.\w+)*\._[a-zA-Z]", node.value) or node.value in _HIDDEN:
                found.append(f"{path.name}:{node.lineno} {node.value}")
        elif isinstance(node, ast.ImportFrom) and re.match(r"torch(\..*)?\._", f"{node.module}."):
            found.append(f"{path.name}:{node.lineno} {node.module}")
    return found


def _is_of(node: ast.Attribute, names: set[str]) -> bool:
    last = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", None)
    return last in names or str(last).lstrip("_") in names


def test_one_module_alone_names_what_torch_keeps_private() -> None:
    packages = ("harness", "experiment", "calibrate", "doctor", "commands", "predict")
    files = [path for package in packages for path in (PACKAGE / package).rglob("*.py")]
    named = [name for path in files if path.stem != "torch_private" for name in _private_names(path)]
    assert named == []
    importers = [path.name for path in files if re.search(r"import [^#\n]*\bprivate\b(?!_)", path.read_text("utf-8"))]
    assert importers == []
    assert len(_private_names(PACKAGE / "harness" / "torch_private.py")) > 10  # the search finds what there is


class Saved:
    """Results of a profiler of torch before 2.13, as far as the export asks for them; Kineto's own text of events."""

    def __init__(self, names: list[tuple[str, str]]) -> None:
        self._names = names

    def save(self, path: str) -> None:
        """Writes the events in the form of Kineto, which takes names as they are."""
        events = ",".join(
            f'\n  {{\n    "ph": "X", "cat": "{kind}", "name": "{name}", "pid": 7, "tid": 7,\n'
            f'    "ts": {index}.000, "dur": 1.000,\n    "args": {{\n      "External id": {index}\n    }}\n  }}'
            for index, (kind, name) in enumerate(self._names)
        )
        end = '\n  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n    "pid": "", "tid": "", "ts": 9.000\n  }'
        head = '\n{\n  "schemaVersion": 1,\n  "traceEvents": ['
        tail = '\n  ],\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1000000000\n}'
        Path(path).write_text(f"{head}{events},{end}{tail}", encoding="utf-8")

    def events(self) -> list[Any]:
        """No ops."""
        return []


def _exported(tmp_path: Path, results: WithLines, **metadata: str) -> dict[str, Any]:
    path = tmp_path / "trace.json.gz"
    native_export.export(results, path, metadata)
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json.gz"]
    return found


def test_names_that_kineto_leaves_as_they_are_become_json(tmp_path: Path) -> None:
    names = ['say "hi"', "a tab\t", "é", '"', "fine"]
    trace = _exported(tmp_path, WithLines(Saved([("user_annotation", name) for name in names])))
    assert [each["name"] for each in trace["traceEvents"]] == [*names, "Record Window End"]


def test_lines_and_metadata_are_added_to_what_kineto_wrote(tmp_path: Path) -> None:
    line = Line("train.py(3): main", 1_000_005_250, 1_000_007_250, 7, 8)
    results = WithLines(Saved([("cpu_op", "aten::add")]), own=[line])
    trace = _exported(tmp_path, results, with_stack="1")
    assert trace["with_stack"] == 1
    added = next(each for each in trace["traceEvents"] if each.get("cat") == "python_line")
    assert added == {
        "ph": "X",
        "cat": "python_line",
        "name": "train.py(3): main",
        "pid": 7,
        "tid": 8,
        "ts": 5.25,
        "dur": 2.0,
    }


def test_followed_lines_stand_for_the_frames_of_the_program(tmp_path: Path) -> None:
    frames = [("python_function", "train.py(1): main"), ("python_function", "torch/nn/modules/module.py(9): call")]
    results = WithLines(Saved([*frames, ("cpu_op", "aten::add")]), [Line("train.py(3): main", 10**9, 10**9 + 5, 7, 7)])
    trace = _exported(tmp_path, results)
    kinds = [(each.get("cat"), each["name"]) for each in trace["traceEvents"]]
    assert kinds == [
        ("python_line", "train.py(3): main"),
        frames[1],
        ("cpu_op", "aten::add"),
        (None, "Record Window End"),
    ]


def test_what_is_no_trace_of_kineto_is_kept_as_it_is(tmp_path: Path) -> None:
    class Other(Saved):
        def save(self, path: str) -> None:
            Path(path).write_text("[]", encoding="utf-8")

    native_export.export(WithLines(Other([])), tmp_path / "trace.json.gz", {})
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == b"[]"


@pytest.mark.parametrize(
    ("version", "is_refused"), [("2.3.1+cu121", True), ("1.13.0", True), ("2.4.0", False), ("2.13.0a0+git", False)]
)
def test_a_torch_that_is_too_old_is_refused_by_its_version(version: str, is_refused: bool) -> None:
    refusal = torch_private.refuse_old(SimpleNamespace(__version__=version))
    assert (refusal is not None) == is_refused
    if refusal is not None:
        assert refusal.endswith("older than 2.4, the oldest that can be measured")


OLD_MODEL = """
import torch

torch.__version__ = "2.3.1"
model = torch.nn.Linear(8, 8)
inputs = torch.randn(4, 8)
"""


@pytest.mark.parametrize("words", [["run", "-o", "out"], ["verify"]])
def test_no_command_measures_with_a_torch_that_is_too_old(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OLD_MODEL)
    command = [sys.executable, "-m", "bottleneck", *words, "model.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "torch 2.3.1 is older than 2.4, the oldest that can be measured" in done.stdout + done.stderr
    assert done.returncode != 0


def test_no_ceilings_are_measured_with_a_torch_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.3.1")
    with pytest.raises(WorkloadError, match=r"torch 2\.3\.1 is older than 2\.4"):
        calibrate_device("cpu", None, lambda *_: None)


def test_a_module_that_torch_has_not_imported_yet_is_not_imported_to_look() -> None:
    script = "import sys, torch; from bottleneck.harness import torch_private as t; [t.private(n) for n in t.PRIVATE "
    script += "if n[0] != '.']; print('torch._dynamo' in sys.modules, t.losses())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False ()\n"


def test_a_hook_and_a_checkpoint_run_inside_the_backward_pass() -> None:
    from torch.utils.checkpoint import checkpoint

    seen: list[bool] = []

    def body(x: Any) -> Any:
        seen.append(torch_private.is_inside_backward())
        return x.sin()

    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda _: seen.append(torch_private.is_inside_backward()))
    checkpoint(body, x, use_reentrant=False).sum().backward()
    assert seen == [False, True, True] and not torch_private.is_inside_backward()
