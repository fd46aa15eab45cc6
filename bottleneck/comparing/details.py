"""What both sides tell of their work, where that differs: details that one lacks, prices, clocks, and sizes."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from bottleneck.compared import Condition
from bottleneck.comparing.matching import Match
from bottleneck.comparing.sides import Compared
from bottleneck.comparing.work import Piece, sizes
from bottleneck.records import Analysis, KernelSummary
from bottleneck.units import format_share

# A part of the busy time that is known on one side and not on the other.
_KNOWN, _NOT_KNOWN = 0.5, 0.05
# Shares of priced work; nearer together, the accounts still tell the same kinds of time.
_FAR_APART = 0.3
_OTHER_CLOCK = 0.05
# The share of matched time in which one size became another before that is told as another batch.
_OTHER_SIZES = 0.5

_DETAILS: Mapping[str, Callable[[KernelSummary], bool]] = {
    "ops": lambda row: row.op is not None,
    "modules": lambda row: row.module is not None,
    "shapes": lambda row: row.shapes is not None,
    "source lines": lambda row: row.source is not None,
}


def find_details(before: Compared, after: Compared) -> list[Condition]:
    """What one trace records of its work and the other does not, and what is judged otherwise."""
    if before.told is None or after.told is None:
        return []
    old, new = before.told, after.told
    return [*_lacking(old, new), *_prices(old, new), *_clocks(old, new)]


def _lacking(before: Analysis, after: Analysis) -> list[Condition]:
    found = []
    busy = [
        [row for row in told.kernels if row.bound != "dispatch" and 0 < row.us < math.inf] for told in (before, after)
    ]
    for what, holds in _DETAILS.items():
        old, new = (_share(rows, holds) for rows in busy)
        if min(old, new) <= _NOT_KNOWN and max(old, new) >= _KNOWN:
            message = f"only one side tells its {what}: rows match by what both tell"
            found.append(Condition(f"{what} known", format_share(old), format_share(new), "colours", message))
    return found


def _share(rows: Iterable[KernelSummary], holds: Callable[[KernelSummary], bool]) -> float:
    """Share of the busy time that this holds for."""
    total = sum([row.us for row in rows])
    return sum([row.us for row in rows if holds(row)]) / total if total else 0.0


def _prices(before: Analysis, after: Analysis) -> list[Condition]:
    old, new = before.coverage.priced_share, after.coverage.priced_share
    if old is None or new is None or abs(old - new) < _FAR_APART:
        return []
    message = "work without a price is neither compute nor memory: trust the rows, not these accounts"
    return [Condition("work with a price", format_share(old), format_share(new), "colours", message)]


def _clocks(before: Analysis, after: Analysis) -> list[Condition]:
    old, new = _clock_mhz(before), _clock_mhz(after)
    if not old or not new or before.device.name != after.device.name:
        return []
    if min(old, new) > (1 - _OTHER_CLOCK) * max(old, new):
        return []
    return [Condition("clock", f"{old:.0f} MHz", f"{new:.0f} MHz", "colours", "the device ran at another clock")]


def _clock_mhz(told: Analysis) -> float | None:
    telemetry = told.telemetry
    clock = None if telemetry is None else telemetry.sm_clock_mhz or telemetry.cpu_clock_mhz
    return clock if clock and 0 < clock < math.inf else None


def find_sizes(matches: Iterable[Match]) -> list[Condition]:
    """One size that became another in most of the work that both sides do: another batch, sequence or width."""
    us: dict[tuple[int, int], float] = {}
    total = 0.0
    for match in matches:
        if not match.before or not match.after:
            continue
        spent = sum([piece.us for piece in match.after])
        total += spent
        old, new = _only_shapes(match.before), _only_shapes(match.after)
        if old is None or new is None:
            continue
        for pair in set() if old == new else _changed(sizes(old), sizes(new)):
            us[pair] = us.get(pair, 0.0) + spent
    if not us or max(us.values()) < _OTHER_SIZES * total or not total:
        return []
    pair = max(us, key=lambda pair: (us[pair], pair))
    message = f"in {format_share(us[pair] / total)} of the time of ops that both sides run: another batch or width"
    return [Condition("sizes", str(pair[0]), str(pair[1]), "colours", message)]


def _only_shapes(pieces: Sequence[Piece]) -> str | None:
    if len(pieces) == 1:
        return pieces[0].shapes
    shapes = {piece.shapes for piece in pieces}
    return shapes.pop() if len(shapes) == 1 else None


def _changed(before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> set[tuple[int, int]]:
    """The sizes that differ, before and after; none where the calls are of another form."""
    if before is None or after is None or len(before) != len(after):
        return set()
    return {(one, other) for one, other in zip(before, after, strict=True) if one != other}
