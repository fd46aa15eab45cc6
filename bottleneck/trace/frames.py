"""Finds module path and source line at any instant from Python frames.

They are those of a host thread. Builds PLACES.
"""

import re
import sys
from functools import cached_property

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.schema.intervals import Integers, numbered
from bottleneck.schema.linked_trace import Trace
from bottleneck.schema.op_names import BUILT_IN_CALL, MODULE_PREFIX, PYTHON_FRAME, function_source, line_source
from bottleneck.schema.source_text import GENERATED
from bottleneck.schema.tables import PLACES, category, nearest_ancestor
from bottleneck.trace.joins import ends_ns, is_any_of, names, starts_ns, threads
from bottleneck.trace.nesting import Nest, nest

MODULE, OWN, MODEL_LIBRARY, INTERNAL = 0, 1, 2, 3

# Kineto cuts entries of sys.path off, so a library shows as 'torch/nn/…' or, where it was not cut, with its folder.
# Generated code has a name in angle brackets; so do notebook cells of older IPython, which are the user's own.
_LIBRARY_MARKS = re.compile(rf"lib/python|(^|/)bottleneck/(harness|integrations)/|{GENERATED}|<(?!ipython-input|stdin)")
_MACHINERY = (
    "torch torchgen functorch triton numpy pandas scipy tqdm nvidia apex deepspeed accelerate lightning"
    " pytorch_lightning lightning_fabric lightning_utilities ignite fsspec ipykernel IPython traitlets tornado zmq"
    " jupyter_client torchmetrics typeguard jaxtyping opt_einsum wandb tensorboard pydantic requests urllib3 click"
    " typer uvicorn starlette fastapi PIL packaging loguru einops aiter triton_kernels sgl_kernel flashinfer"
    " _distutils_hack _virtualenv"
)
# The last four are names of the standard library that people give to files and folders of their own.
_PACKAGES = (sys.stdlib_module_names | set(_MACHINERY.split())) - {"code", "profile", "test", "trace"}

# Libraries that hold model code: a line of theirs is better than none, a line of the user's own is better still, unless
# nearly everything is below that one line. So is whatever else is installed and known to be no machinery.
_MODELS = (
    "transformers diffusers timm torchvision torchaudio torchrec fairseq fairseq2 vllm sglang detectron2 mmcv mmdet"
    " mmengine sentence_transformers peft xformers flash_attn bitsandbytes fairscale megatron nemo torchao trl"
    " segment_anything segment_anything_fast open_clip torch_geometric"
)
_MODEL_PACKAGES = frozenset(_MODELS.split())


def kind_of_frame(name: str) -> int:
    """MODULE, the user's OWN code, a MODEL_LIBRARY, or INTERNAL (torch, standard library, builtins)."""
    if name.startswith(MODULE_PREFIX):
        return MODULE
    match = PYTHON_FRAME.match(name)
    if match is None:
        return INTERNAL
    path = match["path"].replace("\\", "/")
    *installed, inside = re.split("(?:site|dist)-packages/", path)
    package = inside.split("/")[0].removesuffix(".py")
    if package in _MODEL_PACKAGES or (installed and package not in _PACKAGES):
        return MODEL_LIBRARY
    if _LIBRARY_MARKS.search(path) or package in _PACKAGES:
        return INTERNAL
    return OWN


def short_source(name: str, *, is_line: bool) -> str:
    """'model.py:57' of 'path/model.py(57): forward', 'forward() (model.py:57)' where that is the function's first line.

    Only for names that ``kind_of_frame`` does not call INTERNAL.
    """
    match = PYTHON_FRAME.match(name)
    assert match is not None, "a frame without a line has no source"
    place = line_source(match["path"], match["line"])
    return place if is_line else function_source(name[match.end() :][:_LONGEST_FUNCTION], place)


def function_of(name: str) -> str:
    """'forward' of 'path/model.py(57): forward'; the whole name where it is no frame."""
    match = PYTHON_FRAME.match(name)
    return name if match is None else name[match.end() :]


# Deeper modules keep the path of this level: no model nests as deep, and paths of a hostile file would grow with the
# square of the depth.
_DEEPEST_MODULE = 64
_LONGEST_MODULE_NAME = 200
_LONGEST_FUNCTION = 80

_NEVER_NS = np.int64(np.iinfo(np.int64).min)


class Labels(Struct, frozen=True):
    """Code and start of the frame at each given instant.

    The code is one into ``labels`` (-1: unknown).
    """

    code: Integers
    labels: list[str]
    since_ns: Integers


class Places(Struct, frozen=True):
    """Module path and source line of each given instant."""

    module: Labels
    source: Labels


class Frames(Struct, frozen=True):
    """Python frames as trees, and the code of each one's name.

    Both are row for row as the nest.
    """

    nest: Nest
    name: Integers

    def at(self, thread: Integers, at_ns: Integers) -> tuple[Integers, Integers]:
        """Finds the row of the innermost frame at each instant (-1: none).

        The start of that frame comes with it.
        """
        row = self.nest.innermost(thread, at_ns)
        return row, np.append(self.nest.start_ns, _NEVER_NS)[row]

    def names_at(self, thread: Integers, at_ns: Integers) -> tuple[Integers, Integers]:
        """Finds the name of the innermost frame at each instant (-1: none).

        The start of that frame comes with it.
        """
        row, since_ns = self.at(thread, at_ns)
        return np.append(self.name, -1)[row], since_ns


# A line that holds more than this of the user's time only calls the model: the lines of the model tell more.
_WRAPPER_SHARE = 0.8


class Stacks:
    """Python frames of a trace by kind.

    Kinds are modules, the user's own code and libraries of models; internal frames have none. Lines that our own
    recordings add are frames of the user's code that last as long as a line does.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.labels = list(trace.events["name"].cat.categories)
        self.rows = _rows_by_kind(trace, self.labels)

    @cached_property
    def line_names(self) -> frozenset[int]:
        """Names of frames that stand for a line.

        The other frames stand at the first line of their function.
        """
        return frozenset(np.unique(names(self.trace, np.flatnonzero(is_any_of(self.trace, ("line",))))).tolist())

    @cached_property
    def modules(self) -> Frames:
        """Frames of nn.Modules."""
        return frames_of(self.trace, self.rows[MODULE])

    @cached_property
    def own(self) -> Frames:
        """Frames of the user's own code."""
        return frames_of(self.trace, self.rows[OWN])

    @cached_property
    def library(self) -> Frames:
        """Frames of libraries that hold model code."""
        return frames_of(self.trace, self.rows[MODEL_LIBRARY])

    @cached_property
    def wrapper(self) -> Integers:
        """Names of the user's frame that holds nearly all their time.

        None where the time of the user's code is spread.
        """
        by_name = np.bincount(self.own.name, self.own.nest.self_ns, len(self.labels))
        return np.flatnonzero(by_name > _WRAPPER_SHARE * by_name.sum())


def locate(stacks: Stacks, thread: Integers, at_ns: Integers) -> Places:
    """Finds module path and source line at each given instant.

    The instants are those of a host thread; ``thread`` holds codes of ``events.thread``. The path is that of the
    nn.Module frames open at that instant. The source is the innermost frame of the user's own code; on threads that run
    none of it, such as a server's, and below a line that holds nearly all of the user's time, the innermost frame of a
    library of models.
    """
    if not any(rows.size for rows in stacks.rows.values()):
        nowhere = Labels(np.broadcast_to(np.int64(-1), thread.shape), [], np.broadcast_to(_NEVER_NS, thread.shape))
        return Places(nowhere, nowhere)
    return Places(_modules(stacks.modules, stacks.labels, thread, at_ns), _sources(stacks, thread, at_ns))


def frames_at(stacks: Stacks, thread: Integers, at_ns: Integers) -> tuple[Integers, Integers]:
    """Finds the frame from which ``locate`` takes the source.

    Gives its name (a code of ``stacks.labels``, -1: none) and its start.
    """
    name, since_ns = stacks.own.names_at(thread, at_ns)
    asked = np.flatnonzero((name < 0) | np.isin(name, stacks.wrapper))
    if len(asked):
        inner, inner_ns = stacks.library.names_at(thread[asked], at_ns[asked])
        deeper = (inner >= 0) & (inner_ns >= since_ns[asked])
        name[asked[deeper]], since_ns[asked[deeper]] = inner[deeper], inner_ns[deeper]
    return name, since_ns


def _rows_by_kind(trace: Trace, labels: list[str]) -> dict[int, Integers]:
    """Groups the rows of frame events by kind.

    INTERNAL frames, which are nearly all, are left out. A name is judged once.
    """
    rows = np.flatnonzero(is_any_of(trace, ("python", "line")))
    name = names(trace, rows)
    kinds = np.full(len(labels), INTERNAL, dtype=np.int8)
    for used in np.flatnonzero(np.bincount(name, minlength=len(labels))).tolist():
        kinds[used] = kind_of_frame(labels[used])
    kind = kinds[name]
    return {wanted: rows[kind == wanted] for wanted in (MODULE, OWN, MODEL_LIBRARY)}


def frames_of(trace: Trace, rows: Integers) -> Frames:
    """The trees that some events form."""
    trees = nest(threads(trace, rows), starts_ns(trace, rows), ends_ns(trace, rows))
    return Frames(trees, names(trace, rows)[trees.order])


def _modules(frames: Frames, labels: list[str], thread: Integers, at_ns: Integers) -> Labels:
    path, paths = _paths(frames, labels)
    row, since_ns = frames.at(thread, at_ns)
    return Labels(np.append(path, -1)[row], paths, since_ns)


def _paths(frames: Frames, labels: list[str]) -> tuple[Integers, list[str]]:
    """Path code per frame and the paths, level by level from the outermost modules."""
    path = np.full(len(frames.name), -1, dtype=np.int64)
    paths: list[str] = []
    for depth in range(min(int(frames.nest.depth.max(initial=-1)) + 1, _DEEPEST_MODULE)):
        rows = np.flatnonzero(frames.nest.depth == depth)
        above = np.append(path, -1)[frames.nest.parent[rows]]
        keys, code = np.unique((above + 1) * len(labels) + frames.name[rows], return_inverse=True)
        path[rows] = len(paths) + code
        for outer, name in zip(*(part.tolist() for part in np.divmod(keys, len(labels))), strict=True):
            element = labels[name].removeprefix(MODULE_PREFIX)[:_LONGEST_MODULE_NAME]
            paths.append(f"{paths[outer - 1]}.{element}" if outer else element)
    return path[nearest_ancestor(frames.nest.parent, frames.nest.depth < _DEEPEST_MODULE)], paths


def _sources(stacks: Stacks, thread: Integers, at_ns: Integers) -> Labels:
    labels = stacks.labels
    name, since_ns = frames_at(stacks, thread, at_ns)
    text = {
        used: short_source(labels[used], is_line=used in stacks.line_names)
        for used in np.flatnonzero(np.bincount(name[name >= 0])).tolist()
    }
    sources = sorted(set(text.values()))
    position = {source: code for code, source in enumerate(sources)}
    code = np.full(len(labels) + 1, -1, dtype=np.int64)
    for used, source in text.items():
        code[used] = position[source]
    return Labels(code[name], sources, since_ns)


# A call of a built-in function that takes this long is named beside the function that made it: it blocks, as sleep.
_LONG_CALL_US = 100.0
_BUILT_IN = "<built-in "


def find_places(stacks: Stacks) -> pd.DataFrame | None:
    """PLACES of all host threads with Python frames; null where there are none."""
    calls = _long_calls(stacks)
    rows = np.concatenate([*(stacks.rows[kind] for kind in (OWN, MODULE, MODEL_LIBRARY)), calls])
    if not len(rows):
        return None
    trace = stacks.trace
    track = threads(trace, rows)
    thread = np.concatenate([track, track])
    at_ns = np.concatenate([starts_ns(trace, rows), ends_ns(trace, rows)])
    order = np.lexsort((at_ns, thread))
    thread, at_ns = thread[order], at_ns[order]
    fresh = np.concatenate(([True], (np.diff(thread) != 0) | (np.diff(at_ns) != 0)))
    return _table(stacks, thread[fresh], at_ns[fresh], frames_of(trace, calls))


def _long_calls(stacks: Stacks) -> Integers:
    """Events that are long calls of built-in functions."""
    trace = stacks.trace
    is_built_in = np.array([label.startswith(_BUILT_IN) for label in stacks.labels] or [False])
    rows: Integers = np.flatnonzero(
        is_any_of(trace, ("python",)) & (trace.events["dur_us"].to_numpy() >= _LONG_CALL_US)
    )
    return rows[np.flatnonzero(is_built_in[names(trace, rows)])]


def _table(stacks: Stacks, thread: Integers, at_ns: Integers, calls: Frames) -> pd.DataFrame:
    """PLACES from instants at which a place may change, sorted by thread and time."""
    places = locate(stacks, thread, at_ns)
    frame, labels = _frames(stacks, thread, at_ns, calls)
    codes = np.stack([thread, places.source.code, places.module.code, frame])
    start = np.flatnonzero(np.concatenate(([True], (np.diff(codes) != 0).any(axis=0))))
    # Where a thread's last frame has ended it is nowhere: each stretch of a known place ends at another row of its own.
    end = np.append(start[1:], len(thread) - 1)
    is_known = (codes[1:3, start] >= 0).any(axis=0)
    start, end = start[is_known], end[is_known]
    table = pd.DataFrame(
        {
            "thread": category(thread[start], list(stacks.trace.events["thread"].cat.categories)),
            "ts_us": at_ns[start] / 1e3,
            "end_us": at_ns[end] / 1e3,
            "source": category(places.source.code[start], places.source.labels),
            "module": category(places.module.code[start], places.module.labels),
            "frame": category(frame[start], labels),
        }
    )
    return PLACES.check(table)


def _frames(stacks: Stacks, thread: Integers, at_ns: Integers, calls: Frames) -> tuple[Integers, list[str]]:
    """Gives the code of the function at each instant, and the texts.

    A text reads 'main', or 'main > sleep' inside a long call.
    """
    outer, since_ns = frames_at(stacks, thread, at_ns)
    inner, called_ns = calls.names_at(thread, at_ns)
    inner = np.where(called_ns >= since_ns, inner, -1)
    code, first = numbered(outer, inner)
    pairs = zip((outer[first] + 1).tolist(), (inner[first] + 1).tolist(), strict=True)
    texts = [_text(stacks.labels, *pair) for pair in pairs]
    distinct = sorted({text for text in texts if text})
    position = {text: number for number, text in enumerate(distinct)}
    return np.array([position.get(text, -1) for text in texts], dtype=np.int64)[code], distinct


def _text(labels: list[str], outer: int, inner: int) -> str:
    """Joins both names from their codes plus one.

    Empty where no function of the program is known.
    """
    function = function_of(labels[outer - 1]) if outer else ""
    match = BUILT_IN_CALL.match(labels[inner - 1]) if inner else None
    return f"{function} > {match['name']}" if function and match else function
