"""Predicts how many times as fast a changed step is.

With an interval, in which the errors of both prices largely cancel. A kernel that both steps have costs the same in
both, whatever it costs. What is left are the kernels that only one of them has, and the host. Errors of the same kind
of work on the same engine go together in part; errors of different engines are independent.
"""

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from bottleneck.predict.interval import GAIN, SPREADS, read_spreads, run_of, spread_parts
from bottleneck.predict.price import PricedWork
from bottleneck.schema.analysis import Interval
from bottleneck.schema.intervals import Floats

# Of kinds of work that both steps have, on the same engine, and of what is learned for the step as a whole.
_GO_TOGETHER = 0.5
# Products on tensor cores were not timed by KernelBench: this is the root mean square of the logarithms of measured
# over predicted time of those above 20 us with their device held out (`python -m benchmarks.tensor_core_rates`).
_LITTLE_KNOWN = 0.28
_NO_ERROR = 1e-12
# The spread of a speedup that no kind of work explains, as a logarithm: with it, as many pairs of long steps lie inside
# as of short ones.
_OF_THE_WHOLE = 0.15
# That of the same kernels in two runs, also as a logarithm.
_BETWEEN_RUNS = 0.01


class PredictedGain(Struct, frozen=True):
    """Speedup of a step by a change.

    What is expected, and the interval around it.
    """

    speedup: float
    interval: Interval


def predict_gain(before: PricedWork, after: PricedWork, samples: float = 1.0) -> PredictedGain:
    """Predicts the speedup of a step by a change.

    Per sample where the changed step works on ``samples`` times as many.
    """
    middle = before.us() / after.us() * samples
    factor = max(read_spreads().get(f"{GAIN}{run_of(side.backend)}", 1.0) for side in (before, after))
    # No time was measured with another change than of how a step is run: these are taken to be as uncertain.
    factor = factor if _is_another_way(before, after) else max(factor, read_spreads()[f"{GAIN}compiled"])
    low, high = half_width(before, after, before.pace_factor, factor)
    return PredictedGain(middle, Interval(middle * math.exp(-low), middle * math.exp(high)))


def half_width(before: PricedWork, after: PricedWork, pace: float = 1.0, factor: float = 1.0) -> tuple[float, float]:
    """Returns the interval of a speedup below and above its middle.

    As logarithms; the host's pace is known but for ``pace``. ``factor`` widens it by what was learned from measured
    pairs. Another way to run a step changes also the kernels that seem to stay.
    """
    sides, changed = zip(*(_errors(side, other) for side, other in ((before, after), (after, before))), strict=True)
    variance = sum(error**2 for side in sides for error in side.values())
    shared = sum(2 * sides[0][name] * sides[1][name] for name in sides[0].keys() & sides[1].keys())
    whole = _OF_THE_WHOLE * (1.0 if _is_another_way(before, after) else max(changed))
    whole = max(whole, _BETWEEN_RUNS) if before.backend != after.backend else whole
    own = factor * math.hypot(whole, math.sqrt(max(variance - _GO_TOGETHER * shared, 0.0)))
    middle = before.us() / after.us()
    by_host = [math.log(before.us(pace_factor) / after.us(pace_factor) / middle) for pace_factor in (1 / pace, pace)]
    return math.hypot(own, min(0.0, *by_host)), math.hypot(own, max(0.0, *by_host))


def _is_another_way(before: PricedWork, after: PricedWork) -> bool:
    """True where the steps are run by other kernels, whatever they do.

    A captured graph replays the very same.
    """
    return before.backend != after.backend and {before.backend, after.backend} != {"eager", "captured"}


def _errors(side: PricedWork, other: PricedWork) -> tuple[dict[str, float], float]:
    """Returns the relative errors of a step by what the other has not.

    And the part of the step that this is. By kind of work and engine, start and host.
    """
    table, run = read_spreads(), run_of(side.backend)
    changed = _changed_part(side, other)
    device, start, host = side.sensitivities()
    hosts = (start, host) if side.units != other.units or side.backend != other.backend else (0.0, 0.0)
    errors: dict[str, float] = {}
    engines = np.array(side.engines)
    for engine in set(side.engines):
        is_on = engines == engine
        parts = spread_parts(
            side.work, side.found, side.ceilings.is_tensor, np.array([device, 0.0, 0.0]), is_on * changed
        )
        for name, part in zip(SPREADS[:-3], parts[:-3], strict=True):
            if part > _NO_ERROR:
                spread = table[f"{run}: {name}"]
                is_unknown = name == "products" and engine.endswith("_tensor")
                errors[f"{name} on {engine}"] = math.sqrt(part) * (max(spread, _LITTLE_KNOWN) if is_unknown else spread)
    busy = side.found.us * side.work.count
    share = float((busy * changed).sum() / max(busy.sum(), 1e-9)) * device + sum(hosts)
    for name, weight in zip(("start", "host"), hosts, strict=True):
        errors[name] = weight * table[f"{run}: {name}"]
    return errors, share


def _changed_part(side: PricedWork, other: PricedWork) -> Floats:
    """The part of each kernel, 0 to 1, that the other step has not."""
    own, others = _keys(side), Counter[tuple[float | str, ...]]()
    for key, count in zip(_keys(other), other.work.count.tolist(), strict=True):
        others[key] += count
    totals: Counter[tuple[float | str, ...]] = Counter()
    for key, count in zip(own, side.work.count.tolist(), strict=True):
        totals[key] += count
    part: Mapping[tuple[float | str, ...], float] = {
        key: max(1.0 - others[key] / total, 0.0) for key, total in totals.items()
    }
    return np.array([part[key] for key in own])


def _keys(side: PricedWork) -> list[tuple[float | str, ...]]:
    work = side.work
    columns = (
        work.kind,
        work.bytes,
        work.flops,
        work.elements,
        work.rows,
        work.columns,
        work.inner,
        work.batch,
        side.found.us,
    )
    return [
        (engine, *values)
        for engine, *values in zip(side.engines, *(column.tolist() for column in columns), strict=True)
    ]
