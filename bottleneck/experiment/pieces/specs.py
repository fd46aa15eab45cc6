"""Descriptions of pieces that are sent between processes.

The process that chooses them sends them to the one that measures them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class OpCallSpec:
    """Call of an op as the trace recorded it.

    Per argument it has the sizes, dtype, value and strides, as in CALLS.
    """

    name: str
    dims: tuple[Any, ...]
    types: tuple[Any, ...]
    concrete: tuple[Any, ...]
    strides: tuple[Any, ...]

    @property
    def sizes(self) -> str:
        """The sizes of its largest two tensors in words."""
        shown = [sizes for sizes in self.dims if isinstance(sizes, list) and sizes and isinstance(sizes[0], int)]
        return ", ".join("x".join(map(str, sizes)) for sizes in shown[:2])


@dataclass(frozen=True)
class PieceSpec:
    """Piece to measure: its kind, its parts and its figures' meaning.

    The figures are those of ``MeasuredPiece``.

    ``settings`` are what a kind needs besides calls. ``promise_us`` is the gain per step that the formula promises
    for it at most, by which pieces are ordered. ``source`` and ``module`` say where most of its work was called.
    """

    kind: str
    finding: str
    change: str
    what: str
    calls: float
    recorded_us: float | None
    share: float
    ops: tuple[OpCallSpec, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    promise_us: float = 0.0
    source: str | None = None
    module: str | None = None


def from_values(values: Mapping[str, Any]) -> PieceSpec:
    """The piece of values that were written as JSON."""
    ops: Sequence[Mapping[str, Any]] = values["ops"]
    return PieceSpec(**{**values, "ops": tuple(OpCallSpec(**op) for op in ops)})
