"""Why an op on a CPU falls far short of its largest floor: rules in order of evidence, by its name and sizes."""

import re

import numpy as np

from bottleneck.analysis.floors import Floors
from bottleneck.analysis.groups import Work
from bottleneck.analysis.shortfalls import Shortfall, more_bytes, throttled, two_digits
from bottleneck.analysis.thresholds import GRAIN_BYTES
from bottleneck.units import US_PER_S, format_si

# Torch draws these numbers from one generator on one thread.
_SERIAL = re.compile(
    r"^aten::(?:bernoulli|cauchy|exponential|geometric|log_normal|multinomial|normal|rand\w*|uniform)_?$"
)
_IN_PLACE = re.compile(r"[a-z0-9]_(?:\.|$)")


def of_host(work: Work, floors: Floors) -> tuple[Shortfall, ...]:
    """Reasons on a CPU, where a kernel is an op and its name."""
    low = work.cost("bytes_low")
    m, n, k = (work.cost(size) for size in ("m", "n", "k"))
    product = work.cost("matrix_flops") > 0
    return (
        Shortfall(
            work.per_name(_SERIAL.search) > 0,
            lambda: "one thread: random numbers come from one generator, one after the other",
            (),
        ),
        Shortfall(
            product & (np.fmin(np.fmin(m, n), k) < work.limits.thin_product),
            lambda m, n, k: f"small product: m = {m:.0f}, n = {n:.0f}, k = {k:.0f}",
            (m, n, k),
        ),
        Shortfall(
            ~product & (low < GRAIN_BYTES),
            lambda size: f"too small for 2 threads: {format_si(size, 'B')}, and loops split from 32768 elements",
            (low,),
        ),
        *more_bytes(work, floors),
        _fresh(work, floors),
        _partly_cold(work, floors),
        throttled(work),
    )


def _fresh(work: Work, floors: Floors) -> Shortfall:
    """Results in memory that the system hands out at the first write, where that accounts for the time."""
    rate, low, time = work.device.fresh_bytes_per_s or np.nan, work.cost("bytes_low"), work.groups.time_us
    written = low / 2  # at most, of what an op reads and writes
    makes_result = work.per_name(_IN_PLACE.search) == 0
    enough = time <= (floors.cold_us + written / rate * US_PER_S) * work.limits.beyond
    return Shortfall(
        makes_result & (written >= GRAIN_BYTES) & enough & (time > floors.cold_us),
        lambda size: f"fresh memory: pages for up to {format_si(size, 'B')} come at {format_si(rate, 'B/s')}",
        (written,),
    )


def _partly_cold(work: Work, floors: Floors) -> Shortfall:
    """Data that came faster than memory gives it and slower than the cache that would hold it."""
    low, time = work.cost("bytes_low"), np.maximum(work.groups.time_us, 1e-9)
    memory = np.full(low.shape, work.device.bandwidth_bytes_per_s or np.nan)
    return Shortfall(
        ~(floors.compute_us >= floors.cold_us) & (floors.warm_us < time) & (time <= floors.cold_us),
        lambda pace, memory, cache: (
            f"partly cold data: about {format_si(pace, 'B/s')}, between memory's {format_si(memory, 'B/s')} "
            f"and the cache's {format_si(cache, 'B/s')}"
        ),
        (two_digits(low / time * US_PER_S), memory, two_digits(low / np.maximum(floors.warm_us, 1e-9) * US_PER_S)),
    )
