"""Digests of the tensors that a step returns and changes.

They are a few numbers each, by which two runs can be compared. The user's process makes them, so this module loads
nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bottleneck.schema.records import Doc


@dataclass(frozen=True)
class TensorDigest:
    """A tensor in a few numbers, of its finite elements, computed in float64.

    ``projection`` is the sum of the elements with a fixed sign each: unlike the norm it changes where elements trade
    places. ``moved`` and ``moved_projection`` are norm and projection of what the steps changed; null for what a step
    returns, and where there was no room for a copy.
    """

    dtype: Annotated[str, Doc("dtype of torch, 'float32'")]
    shape: Annotated[tuple[int, ...], Doc("sizes")]
    nan: Annotated[int, Doc("elements that are NaN")] = 0
    inf: Annotated[int, Doc("elements that are infinite")] = 0
    norm: Annotated[float, Doc("square root of the sum of squares")] = 0.0
    mean: Annotated[float, Doc("mean")] = 0.0
    projection: Annotated[float, Doc("sum with a fixed sign for each element")] = 0.0
    moved: Annotated[float | None, Doc("norm of the change by the steps; null where not known")] = None
    moved_projection: Annotated[float | None, Doc("projection of that change; null where not known")] = None


@dataclass(frozen=True)
class Numerics:
    """Digests of a step's outputs after some steps from a fixed seed.

    They come by name in the order of their making, after ``steps`` steps.

    'returned of step 1' and 'returned of step 3' are what the step returned, 'Net.head.weight' is a parameter or buffer
    of a model. ``unstable`` names those on which runs of the same program differ, with the reason; they are in
    ``tensors`` no more. ``precision`` is the least precise format that the step computes in, '' where not known;
    ``reductions`` is how many ops of a step sum over elements. ``gradients`` are in no lock-file: two runs made now
    are compared by them too. Without tensors there is a ``reason``.
    """

    steps: Annotated[int, Doc("number of steps that were taken")] = 0
    tensors: Annotated[Mapping[str, TensorDigest], Doc("digests by name of the output")] = field(default_factory=dict)
    unstable: Annotated[Mapping[str, str], Doc("outputs on which runs differ, with the reason; never gated")] = field(
        default_factory=dict
    )
    precision: Annotated[str, Doc("least precise format of the step's arithmetic: 'bf16'; empty where not known")] = ""
    reductions: Annotated[int, Doc("ops of a step that sum over elements")] = 0
    gradients: Annotated[
        Mapping[str, TensorDigest], Doc("digests of the gradients that the last step left, by parameter")
    ] = field(default_factory=dict)
    reason: Annotated[str, Doc("why there are no digests; empty where there are")] = ""


@dataclass(frozen=True)
class OutputChange:
    """One output that is not what the lock-file holds, in words.

    It has the difference as a share of the output's norm.

    ``difference`` and ``tolerance`` are null where it is not a matter of size: another shape, or a NaN.
    """

    name: Annotated[str, Doc("output: 'returned of step 1', 'Net.head.weight'")]
    what: Annotated[str, Doc("what differs, with both values")]
    difference: Annotated[float | None, Doc("size of the difference, as a part of the norm", "ratio")] = None
    tolerance: Annotated[float | None, Doc("what rounding may explain, as a part of the norm", "ratio")] = None

    @property
    def is_rounding(self) -> bool:
        """True where rounding may explain the difference."""
        return self.difference is not None and self.tolerance is not None and self.difference <= self.tolerance


NumericsVerdict = Literal["same", "differs", "new", "not compared"]


@dataclass(frozen=True)
class NumericsResult:
    """Comparison of a step's outputs with the lock-file.

    ``reason`` says why they were not compared. ``unstable`` are outputs that differ from run to run, and are not gated.
    ``closest`` is the one whose difference takes most of what rounding may explain, null where all are equal.
    """

    verdict: Annotated[NumericsVerdict, Doc("'new': the lock-file holds no outputs")]
    compared: Annotated[int, Doc("number of outputs that were compared")] = 0
    changes: Annotated[tuple[OutputChange, ...], Doc("outputs that differ, the first one first")] = ()
    unstable: Annotated[Mapping[str, str], Doc("outputs that differ from run to run, with the reason")] = field(
        default_factory=dict
    )
    reason: Annotated[str | None, Doc("why nothing was compared; null where something was")] = None
    gradients: Annotated[int, Doc("number of those that are gradients")] = 0
    bounds: Annotated[
        Mapping[str, float], Doc("difference that rounding may explain, as a part of the norm, by dtype", "ratio")
    ] = field(default_factory=dict)
    closest: Annotated[
        OutputChange | None, Doc("output with the largest difference for its tolerance; null where all are equal")
    ] = None
