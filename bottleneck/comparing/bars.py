"""The change of the step by account of the ledger, which partitions the step on both sides."""

from collections.abc import Mapping

from bottleneck.compared import Bar
from bottleneck.comparing.sides import Compared

# Accounts whose time is that of kernels, on a CPU of leaf ops: what the rows partition. All others are waits.
BUSY_ACCOUNTS = frozenset({"compute", "memory", "memory.copy", "overhead.launch_floor", "communication", "unknown"})


def find_bars(before: Compared, after: Compared) -> tuple[Bar, ...]:
    """A bar for each account that either side has, most change first."""
    old, new = before.accounts, after.accounts
    groups = {**_groups(before), **_groups(after)}
    bars = [Bar(account, group, old.get(account, 0.0), new.get(account, 0.0)) for account, group in groups.items()]
    return tuple(sorted(bars, key=lambda bar: (-abs(bar.change_us), bar.account)))


def _groups(side: Compared) -> Mapping[str, str]:
    return {} if side.told is None else {entry.account: entry.group for entry in side.told.ledger}


def busy_us(side: Compared) -> list[float]:
    """The accounts that the side's kernels share."""
    return [us for account, us in side.accounts.items() if account in BUSY_ACCOUNTS]
