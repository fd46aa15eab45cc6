"""Findings: what to change, what that is predicted to be worth, and what would prove it. One small rule each."""

from collections.abc import Callable

from bottleneck.advice import (
    compilation,
    dispatch,
    distributed,
    fusion,
    host,
    machine,
    optimizers,
    precision,
    process,
    traffic,
    transfers,
)
from bottleneck.advice import compilation as programs
from bottleneck.advice import convolutions as layout
from bottleneck.advice import data_loading as loading
from bottleneck.advice import data_loading as loading_spots
from bottleneck.advice import data_loading as loading_workers
from bottleneck.advice import dispatch as eager
from bottleneck.advice import matrix_products as kernels
from bottleneck.advice import memory_capacity as capacity
from bottleneck.advice import small_steps as growth
from bottleneck.advice.drafts import Draft, rank
from bottleneck.schema.analysis import Finding
from bottleneck.schema.case import Case
from bottleneck.schema.recording import Recording

Rule = Callable[[Case], Draft | None]

# The rules of each module, in the order in which findings without a predicted gain are shown.
RULES: tuple[Rule, ...] = (
    *dispatch.RULES,
    *eager.RULES,
    *optimizers.RULES,
    *growth.RULES,
    *host.RULES,
    *process.RULES,
    *fusion.RULES,
    *traffic.RULES,
    *precision.RULES,
    *kernels.RULES,
    *layout.RULES,
    *programs.RULES,
    *loading.RULES,
    *loading_workers.RULES,
    *loading_spots.RULES,
    *transfers.RULES,
    *capacity.RULES,
    *distributed.RULES,
    *compilation.RULES,
    *machine.RULES,
)


def advise(case: Case) -> tuple[Finding, ...]:
    """What every rule has to say of this case, ranked by the time that it would save."""
    drafts = [draft for rule in RULES if (draft := rule(case)) is not None]
    return rank(drafts, case.analysis, _program(case.recording))


def _program(recording: Recording | None) -> tuple[str, ...] | None:
    """What names the program to `bottleneck verify`; null for a script, whose step cannot be made twice."""
    if recording is None or recording.form == "script":
        return None
    return (*recording.options, *recording.command)
