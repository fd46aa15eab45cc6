"""The names of accounts, bounds, confidences and modules that people read."""

import json
import math
from collections.abc import Mapping
from typing import TypeVar

from bottleneck.report.text import UNKNOWN
from bottleneck.schema.analysis import Analysis, IdleCause, KernelSummary, LiveAllocations
from bottleneck.schema.measurements import MeasuredPiece
from bottleneck.schema.records import replace
from bottleneck.units import counted

Named = TypeVar("Named", KernelSummary, IdleCause, LiveAllocations, MeasuredPiece)

_LONGEST_SHAPES, _MOST_SHAPES = 60, 4
_UNSURE = {"medium": "?", "low": "??"}
_BOUNDS = {"dispatch": "calls ops", "unknown": UNKNOWN}


def bound_word(row: KernelSummary) -> str:
    """The bound of a kernel in a word, with the mark of its confidence."""
    return _BOUNDS.get(row.bound, row.bound) + (_UNSURE[row.confidence] if is_marked(row) else "")


def is_marked(row: KernelSummary) -> bool:
    """True where a question mark follows the bound; a kernel without a bound is never marked."""
    return row.confidence != "high" and row.bound not in {"unknown", "dispatch"}


def with_attribute_paths(analysis: Analysis) -> Analysis:
    """The analysis with modules named by their attribute paths in the model ('encoder.layer.0'), where these are known.

    Only for people to read: what compares two analyses goes by the profiler's names.
    """
    known = analysis.module_paths

    def named(row: Named) -> Named:
        return row if row.module is None else replace(row, module=attribute_path(row.module, known))

    memory, pieces = analysis.memory, analysis.pieces
    return replace(
        analysis,
        pieces=pieces and replace(pieces, pieces=tuple(map(named, pieces.pieces))),
        kernels=tuple(map(named, analysis.kernels)),
        idle=tuple(map(named, analysis.idle)),
        memory=memory and replace(memory, allocations=tuple(map(named, memory.allocations))),
        module_paths={},
    )


def attribute_path(module: str, known: Mapping[str, str]) -> str:
    """The attribute path of a module; its path of classes as it is, where no other is known."""
    return known.get(module.rpartition(".")[2], module)


def describe_calls(calls: float) -> str:
    """Calls per step in words: '24 calls', '1 call', '0.5 calls'."""
    number = calls_number(calls)
    return f"{number} call{'' if number == '1' else 's'}"


def calls_number(calls: float) -> str:
    """Calls per step, with a decimal only where that is not a whole number."""
    if math.isclose(calls, round(calls), rel_tol=1e-6):
        return f"{calls:.0f}"
    return f"{calls:.1f}" if calls >= 0.05 else "<0.1"


def describe_shapes(shapes: str) -> str:
    """Shapes of an op's inputs such as '512x512, 141x512', scalars left out; of what is no JSON only the spaces go."""
    try:
        listed = json.loads(shapes)
    except (ValueError, RecursionError):
        return "".join(shapes.split())[:_LONGEST_SHAPES]
    sizes = [_shape(shape) for shape in listed if shape] if isinstance(listed, list) else [shapes]
    return ", ".join([*sizes[:_MOST_SHAPES], *(["…"] if len(sizes) > _MOST_SHAPES else [])])


def _shape(shape: object) -> str:
    if not isinstance(shape, list):
        return str(shape)
    if any(isinstance(size, list) for size in shape):
        return f"{counted(len(shape), 'tensor')}"
    return "x".join(map(str, shape))
