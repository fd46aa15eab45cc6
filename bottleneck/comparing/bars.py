"""The change of the step by account of the ledger, which partitions the step on both sides."""

import math
from collections.abc import Mapping
from dataclasses import replace

from bottleneck.compared import Bar
from bottleneck.comparing.sides import Compared, clean_us
from bottleneck.comparing.touching import Diff

# Accounts whose time is that of kernels, on a CPU of leaf ops: what the rows partition. All others are waits.
BUSY_ACCOUNTS = frozenset({"compute", "memory", "memory.copy", "overhead.launch_floor", "communication", "unknown"})


# The part of a bar's change that a line must make to be named.
_MOST_OF_IT = 0.5


def find_bars(before: Compared, after: Compared, diff: Diff) -> tuple[Bar, ...]:
    """A bar for each account that either side has, most change first; waits with the line that they come from."""
    old, new = before.accounts, after.accounts
    groups = {**_groups(before), **_groups(after)}
    bars = [Bar(account, group, old.get(account, 0.0), new.get(account, 0.0)) for account, group in groups.items()]
    lines = _line_changes(before, after)
    bars = [_with_line(bar, lines.get(bar.account, {}), diff) for bar in bars]
    return tuple(sorted(bars, key=lambda bar: (-abs(bar.change_us), bar.account)))


def _groups(side: Compared) -> Mapping[str, str]:
    return {} if side.told is None else {entry.account: entry.group for entry in side.told.ledger}


def _line_changes(before: Compared, after: Compared) -> Mapping[str, Mapping[str, float]]:
    """By account of a wait and source line: what it takes more."""
    changes: dict[str, dict[str, float]] = {}
    for side, sign in ((before, -1.0), (after, 1.0)):
        for idle in () if side.told is None else side.told.idle:
            if idle.source is not None:
                lines = changes.setdefault(f"overhead.{idle.cause}", {})
                lines[idle.source] = lines.get(idle.source, 0.0) + sign * clean_us(idle.us)
    return changes


def _with_line(bar: Bar, lines: Mapping[str, float], diff: Diff) -> Bar:
    sign = math.copysign(1.0, bar.change_us)
    us, source = max(((sign * us, source) for source, us in lines.items()), default=(0.0, None))
    if source is None or us <= 0 or us < _MOST_OF_IT * abs(bar.change_us):
        return bar
    return replace(bar, source=source, is_touched=diff.touches(source))


def busy_us(side: Compared) -> list[float]:
    """The accounts that the side's kernels share."""
    return [us for account, us in side.accounts.items() if account in BUSY_ACCOUNTS]
