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

from bottleneck.predict.interval import ANOTHER_BOARD, GAIN, SPREADS, read_spreads, run_of, spread_parts
from bottleneck.predict.price import PricedKernels, PricedWork
from bottleneck.schema.analysis import Interval
from bottleneck.schema.intervals import Floats

# Of kinds of work that both steps have, on the same engine, and of what is learned for the step as a whole.
_GO_TOGETHER = 0.5
# Products on tensor cores were not timed by KernelBench. Means of the logarithms of measured over predicted time, of
# those above 20 us with their device held out: what the products of a device have in common, and what is left of each
# (`python -m benchmarks.tensor_core_rates`). No attention was held out.
_OF_A_DEVICE, _OF_A_SHAPE, _OF_ATTENTION = 0.09, 0.15, 0.28
_NO_ERROR = 1e-12
# The spread of a speedup that no kind of work explains, as a logarithm: of what changes, and of another way to run the
# step. Of a grid these are as likely as any, under Laplace, for the errors of the pairs of
# `python -m benchmarks.kernelbench.gains`.
_OF_CHANGES, _OF_ANOTHER_WAY = 0.08, 0.06
# Half the interval of the same kernels in two runs, also as a logarithm: no factor widens it.
_BETWEEN_RUNS = 0.015


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
    same = {"eager"}
    runs = {run_of(side.backend) for side in (before, after)} - same if _is_another_way(before, after) else same
    factor = max(read_spreads()[f"{GAIN}{run}"] for run in runs)
    low, high = half_width(before, after, before.pace_factor, factor)
    return PredictedGain(middle, Interval(middle * math.exp(-low), middle * math.exp(high)))


def half_width(before: PricedWork, after: PricedWork, pace: float = 1.0, factor: float = 1.0) -> tuple[float, float]:
    """Returns the interval of a speedup below and above its middle.

    As logarithms; the host's pace is known but for ``pace``. ``factor`` widens it by what was learned from measured
    pairs. Another way to run a step changes also the kernels that seem to stay, but little.
    """
    sides, changed = zip(*(_errors(side, other) for side, other in ((before, after), (after, before))), strict=True)
    variance = sum(error**2 for side in sides for error in side.values())
    shared = sum(2 * sides[0][name] * sides[1][name] for name in sides[0].keys() & sides[1].keys())
    of_way = _OF_ANOTHER_WAY * (1.0 - _same_work(before, after)) if _is_another_way(before, after) else 0.0
    whole = math.hypot(_OF_CHANGES * max(changed), of_way)
    runs = _BETWEEN_RUNS if max(changed) > 0.0 or before.backend != after.backend else 0.0
    own = max(factor * math.hypot(whole, math.sqrt(max(variance - _GO_TOGETHER * shared, 0.0))), runs)
    middle = before.us() / after.us()
    by_host = [math.log(before.us(pace_factor) / after.us(pace_factor) / middle) for pace_factor in (1 / pace, pace)]
    return math.hypot(own, min(0.0, *by_host)), math.hypot(own, max(0.0, *by_host))


def _is_another_way(before: PricedWork, after: PricedWork) -> bool:
    """True where the steps are run by other kernels, whatever they do.

    A captured graph replays the very same.
    """
    return before.backend != after.backend and {before.backend, after.backend} != {"eager", "captured"}


def _same_work(side: PricedWork, other: PricedWork) -> float:
    """Returns the part of a step that is the host's own work in both.

    By how much the step grows with it.
    """
    return sum(_same_host(side, other) * side.sensitivities()[1:])


def _same_host(side: PricedWork, other: PricedWork) -> Floats:
    """Returns the parts of the host's times that are its own work in both.

    Those of its start and of its issuing.
    """
    same = np.minimum(side.own_work, other.own_work)
    return same / np.maximum(side.units, _NO_ERROR)


def _errors(side: PricedWork, other: PricedWork) -> tuple[dict[str, float], float]:
    """Returns the relative errors of a step by what the other has not.

    And the part of the step that this is. By kind of work and engine, start and host.
    """
    changed = _changed_part(side, other)
    device, start, host = side.sensitivities()
    is_other_host = side.units != other.units or side.backend != other.backend
    hosts = np.array([start, host]) * (1.0 - _same_host(side, other)) if is_other_host else np.zeros(2)
    run = run_of(side.backend)
    errors = _device_errors(side.priced_kernels, run, device, changed)
    busy = side.found.us * side.work.count
    share = float((busy * changed).sum() / max(busy.sum(), 1e-9)) * device + sum(hosts)
    for name, weight in zip(("start", "host"), hosts, strict=True):
        errors[name] = weight * read_spreads()[f"{run}: {name}"]
    return errors, share


def _device_errors(side: PricedKernels, run: str, device: float, changed: Floats) -> dict[str, float]:
    """Returns the relative errors of a step by the kernels that changed.

    By kind of work and engine.
    """
    errors: dict[str, float] = {}
    engines = np.array(side.engines)
    for engine in set(side.engines):
        is_on = engines == engine
        parts = spread_parts(
            side.work, side.found, side.ceilings.is_tensor, np.array([device, 0.0, 0.0]), is_on * changed
        )
        for name, part in zip(SPREADS[:-3], parts[:-3], strict=True):
            if part > _NO_ERROR and name == "products" and engine.endswith("_tensor"):
                errors |= _tensor_errors(side, device * is_on * changed, engine)
            elif part > _NO_ERROR:
                errors[f"{name} on {engine}"] = math.sqrt(part) * read_spreads()[f"{run}: {name}"]
    return errors


def half_width_of_work(work: PricedKernels, is_timed: bool) -> float:
    """Returns half the interval of the time of kernels, as a logarithm.

    They replace measured ones, so that nothing of their error cancels. ``is_timed`` says whether programs were timed on
    the device.
    """
    errors = _device_errors(work, "eager", 1.0, np.ones(work.work.count.size))
    own = read_spreads()[f"{GAIN}eager"] * math.hypot(_OF_CHANGES, *errors.values())
    return own if is_timed else math.hypot(own, read_spreads()[ANOTHER_BOARD])


def _tensor_errors(side: PricedKernels, part: Floats, engine: str) -> dict[str, float]:
    """Returns the relative errors of a step by its products on tensor cores.

    By what all have in common, and by shape. Only this ``part`` of each kernel has errors.
    """
    work, busy = side.work, side.found.us * side.work.count
    share, is_product = busy * part / busy.sum(), work.are("product")
    errors = {
        f"products on {engine}": _OF_A_DEVICE * float(share[is_product].sum()),
        f"attention on {engine}": _OF_ATTENTION * float(share[work.are("attention")].sum()),
    }
    shapes = zip(work.rows, work.columns, work.inner, work.batch, share, is_product, strict=True)
    for *sizes, of_kernel, counts in shapes:
        if counts:
            name = f"product of {sizes} on {engine}"
            errors[name] = errors.get(name, 0.0) + _OF_A_SHAPE * float(of_kernel)
    return errors


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
        for engine, *values in zip(side.priced_kernels.engines, *(column.tolist() for column in columns), strict=True)
    ]
