"""Sides of comparisons made by hand: work by module, op and shape, and waits, with a ledger that they add up to."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bottleneck.compare.sides import ComparedSide
from bottleneck.schema.analysis import KernelSummary
from bottleneck.schema.measurements import StepTimes, Timing
from bottleneck.schema.records import replace
from tests.report.samples import analysis, kernel

# By the bound of a kernel; others are 'compute'.
_ACCOUNTS = {"memory": "memory", "communication": "communication", "unknown": "unknown", "copy": "memory.copy"}


def work(op: str | None, us: float, calls: float = 1.0, **more: Any) -> KernelSummary:
    """Kernels of an op; each is bound by compute unless told."""
    plain = {"bound": "compute", "family": "matmul", "shapes": "[[64, 64]]"}
    return kernel(more.pop("name", f"{op}_kernel"), us, 1000.0, op=op, calls=calls, **{**plain, **more})


def side(
    kernels: Sequence[KernelSummary], waits: Mapping[str, float] | None = None, label: str = "A", **more: Any
) -> ComparedSide:
    """A side with these kernels and these waits ('python': 12.0)."""
    accounts: dict[str, float] = {}
    for row in kernels:
        account = _ACCOUNTS.get(row.bound, "compute")
        accounts[account] = math.fsum([accounts.get(account, 0.0), row.us])
    accounts |= {f"overhead.{cause}": us for cause, us in (waits or {}).items()}
    counts = more.pop("counts", None)
    told = analysis(accounts or {"overhead.unknown": 1.0}, kernels=tuple(kernels), **more)
    return ComparedSide(label, f"{label}.json", saved=told, counts=counts)


def stepped(one: ComparedSide, half_width: float, n: int = 20) -> ComparedSide:
    """The same side, whose steps vary by this share of their median."""
    assert one.analysis is not None
    wall_us = one.analysis.steps.wall_us
    timing = Timing(wall_us, wall_us * (1 - half_width), wall_us * (1 + half_width), n)
    steps = StepTimes(n, wall_us, timing, None, None, "marks")
    return replace(one, saved=replace(one.analysis, steps=steps))
