"""Records of the changes that make a step fit into the memory of a device: `predict --fit`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from bottleneck.schema.analysis import Interval
from bottleneck.schema.predicted_step import PredictedStep
from bottleneck.schema.records import Doc

RemedyName = Literal[
    "bf16-autocast",
    "accumulate",
    "fused-optimizer",
    "inplace-activations",
    "checkpoint",
    "fused-activations",
    "swap-overlapped",
    "swap",
    "bf16-states",
    "8bit-states",
    "bf16-parameters",
    "fsdp",
]


@dataclass(frozen=True)
class MemoryRemedy:
    """One change that makes a step need less memory, with what it saves and costs.

    In a set, ``saved_bytes`` is counted after the changes before it, so that nothing is saved twice. ``added_us`` is
    below zero where the step gets faster. ``basis`` is 'run' where the changed program ran under fake tensors, else
    'formula'.
    """

    name: Annotated[RemedyName, Doc("name of the change")]
    saved_bytes: Annotated[int, Doc("memory that the peak loses", "B")]
    peak_bytes: Annotated[int, Doc("peak with it", "B")]
    added_us: Annotated[Interval | None, Doc("time that the step takes longer; null where it has no price", "us")]
    basis: Annotated[Literal["run", "formula"], Doc("how its memory is known")]
    is_same_result: Annotated[bool, Doc("it leaves types and rounding of the program's numbers as they are")]
    blocks: Annotated[tuple[str, ...], Doc("paths of the blocks that are recomputed")] = ()
    of_blocks: Annotated[int, Doc("blocks that the model has")] = 0
    parts: Annotated[int | None, Doc("micro-batches of a step, or ranks")] = None
    moved_bytes: Annotated[int | None, Doc("bytes over the link in each step and rank", "B")] = None


@dataclass(frozen=True)
class RefusedRemedy:
    """A change that cannot be made to the step, or does not lower its peak."""

    name: Annotated[str, Doc("name of the change, with its number")]
    reason: Annotated[str, Doc("what it needs, or that it brings nothing")]


@dataclass(frozen=True)
class MemorySet:
    """Changes made together, which fit or come nearest to it.

    ``peak_bytes`` is that of the changed program under fake tensors, as far as its changes can be run; 'by formula'
    changes are counted on top of it. ``estimated_bytes`` is what was expected before it ran.
    """

    remedies: Annotated[tuple[MemoryRemedy, ...], Doc("the changes in the order in which they are made")]
    peak_bytes: Annotated[int, Doc("memory at the peak with all of them", "B")]
    estimated_bytes: Annotated[int, Doc("the same, before the changed program ran", "B")]
    is_confirmed: Annotated[bool, Doc("the changed program ran under fake tensors")]
    fits: Annotated[bool, Doc("it fits")]
    added_us: Annotated[Interval | None, Doc("time that the step takes longer; null where it has no price", "us")]
    step: Annotated[PredictedStep | None, Doc("the step of the changed program, without what a formula adds")] = None
    ranks: Annotated[int | None, Doc("fewest ranks of FSDP with which it fits, where it does not by itself")] = None


@dataclass(frozen=True)
class MemoryFit:
    """Whether a step fits into a memory, and what makes it fit.

    ``best`` is the set with the least time added of those that were run as a whole under fake tensors, or of all where
    none of those fits; null where the step fits as it is. Without a set that fits it is the nearest. ``same_results``
    is the cheapest that changes no type, ``by_formula`` the cheapest of all where it costs less than ``best``.
    """

    memory_bytes: Annotated[int, Doc("memory that there is", "B")]
    usable_bytes: Annotated[int, Doc("the same less what CUDA takes itself", "B")]
    peak_bytes: Annotated[int, Doc("peak of the step as it is", "B")]
    fits: Annotated[bool, Doc("the step as it is fits")]
    alone: Annotated[tuple[MemoryRemedy, ...], Doc("each change by itself, most saved first")]
    best: Annotated[MemorySet | None, Doc("the cheapest set that fits, or the nearest one")]
    same_results: Annotated[MemorySet | None, Doc("the cheapest set that changes no types")]
    by_formula: Annotated[MemorySet | None, Doc("a cheaper set of which a part is known by formula only")]
    ranks: Annotated[int | None, Doc("fewest ranks of FSDP with which it fits by that alone; null for none")]
    planned_bytes: Annotated[int, Doc("what the step makes, in a static plan by lifetimes", "B")]
    made_bytes: Annotated[int, Doc("what the step makes, nothing shared", "B")]
    alive_bytes: Annotated[int, Doc("what the step makes, most at once: no plan needs less", "B")]
    refused: Annotated[tuple[RefusedRemedy, ...], Doc("changes that do not apply, or bring nothing")] = ()
