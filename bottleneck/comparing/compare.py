"""From two sides to one comparison: the order of the parts, and nothing else."""

from bottleneck import __version__
from bottleneck.compared import Comparison, CounterStep
from bottleneck.comparing.bars import BUSY_ACCOUNTS, find_bars
from bottleneck.comparing.matching import match
from bottleneck.comparing.noise import find_noise
from bottleneck.comparing.rows import fold_modules, tell_rows
from bottleneck.comparing.sides import Compared, Touched, tell_side
from bottleneck.comparing.work import find_work
from bottleneck.counters import COUNTERS


def compare(before: Compared, after: Compared, touched: Touched | None = None) -> Comparison:
    """What changed between two sides, adding up to the change of the step; only counters where a side has no times."""
    sides = tell_side(before), tell_side(after)
    counters = _counters(before, after)
    if before.step_us is None or after.step_us is None:
        return Comparison(*sides, counters=counters, version=__version__)
    bars = find_bars(before, after)
    by_call = all(side.case is not None and side.case.charged is not None for side in (before, after))
    noise = find_noise(before, after)
    matches = match(find_work(before, by_call), find_work(after, by_call))
    rows = tell_rows(matches, noise.share, touched)
    return Comparison(
        *sides,
        bars=bars,
        rows=rows,
        modules=fold_modules(rows, noise.share),
        idle=tuple(bar for bar in bars if bar.account not in BUSY_ACCOUNTS),
        counters=counters,
        version=__version__,
    )


def _counters(before: Compared, after: Compared) -> tuple[CounterStep, ...]:
    old = {} if before.counts is None else before.counts.values
    new = {} if after.counts is None else after.counts.values
    names = [*COUNTERS, *sorted({*old, *new} - {*COUNTERS})]
    return tuple(CounterStep(name, old.get(name), new.get(name)) for name in names if name in old or name in new)
