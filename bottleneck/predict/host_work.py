"""Prices ops on tensors that lie in the memory of the host.

Random numbers that are made there and then moved to the device, masks, the counters of an optimizer. The rates are
those of one core of a server of 2022 (EPYC of the fourth generation, torch 2.13): ops there are as many times as slow
on another host as its pace is, which is coarse. ATen draws random numbers on one core, whatever their number; other
ops are shared out among as many cores as a program may use, which is not known here.
"""

import math
from collections.abc import Mapping

from bottleneck.cost.call import Cost
from bottleneck.predict.step_kernels import cost_of
from bottleneck.schema.step_calls import StepCall, StepCalls
from bottleneck.units import ITEM_BYTES

_US_PER_NS = 1e-3
# Nanoseconds of the processor for a number, 9.6 million at once in memory that is there: the best of twelve.
_DRAWS: Mapping[str, float] = {
    **dict.fromkeys(("randn", "randn_like", "normal"), 3.40),
    **dict.fromkeys(("rand", "rand_like", "uniform"), 2.83),
    **dict.fromkeys(("randint", "randint_like", "random"), 2.56),
    **dict.fromkeys(("bernoulli", "native_dropout"), 11.7),
    **dict.fromkeys(("exponential", "geometric", "cauchy", "log_normal"), 18.9),
    "randperm": 30.8,
}
# Other numbers than those of 4 bytes are not drawn eight at a time (ATen's DistributionTemplates.h, normal_fill).
_WIDE_NORMAL, _NORMAL_BYTES = 17.3, 4.0
# The sum of two tensors of 9.6 million numbers, and the product of two matrices of 1024 rows.
_BYTES_PER_US, _FLOPS_PER_US = 43e3, 48e3
# Memory of more than this comes from the system anew each time (mallopt(3), M_MMAP_THRESHOLD), and is cleared page by
# page as it is written: 1.90 nanoseconds for each of 9.6 million zeros in new memory, 0.17 in old.
_MOST_REUSED, _NEW_BYTES_PER_US = 32 * 2**20, 2.3e3
# The counter of a parameter among 226, which a list of ops raises one after the other.
_COUNTER_US = 0.38


def host_work_us(step: StepCalls) -> Mapping[int, float]:
    """Returns the microseconds of each call that a usual host does itself, by position."""
    return {position: _call_us(step, position) for position, call in enumerate(step.calls) if call.on_host}


def _call_us(step: StepCalls, position: int) -> float:
    call = step.calls[position]
    if call.phase == "optimizer":
        return _COUNTER_US * len(call.outputs) * call.calls
    cost = cost_of(call)
    uses = {use.storage: use.bytes for use in (*call.inputs, *call.outputs)}
    moved = cost.bytes_low if isinstance(cost, Cost) else sum(uses.values())
    flops = cost.matrix_flops if isinstance(cost, Cost) else 0.0
    new = _new_bytes(step, position)
    return call.calls * (_drawn_us(call) + moved / _BYTES_PER_US + flops / _FLOPS_PER_US + new / _NEW_BYTES_PER_US)


def _drawn_us(call: StepCall) -> float:
    name = call.name.removeprefix("aten::").rstrip("_")
    if name not in _DRAWS or not call.outputs:
        return 0.0
    drawn = call.outputs[0]
    is_wide = ITEM_BYTES.get(drawn.type, _NORMAL_BYTES) != _NORMAL_BYTES and _DRAWS[name] == _DRAWS["normal"]
    return math.prod(drawn.dims) * (_WIDE_NORMAL if is_wide else _DRAWS[name]) * _US_PER_NS


def _new_bytes(step: StepCalls, position: int) -> float:
    """Returns the bytes of large results that a call makes in new memory."""
    made = {use.storage: use.bytes for use in step.calls[position].outputs if _is_made(step, use.storage, position)}
    return math.fsum(size for size in made.values() if size > _MOST_REUSED)


def _is_made(step: StepCalls, storage: int | None, position: int) -> bool:
    return storage is not None and storage < len(step.storages) and step.storages[storage].created == position
