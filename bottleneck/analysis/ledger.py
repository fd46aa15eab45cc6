"""The ledger: every microsecond of the window charged once, to device work by its bound or to the cause of a wait."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.analysis.faults import fault_us
from bottleneck.analysis.host import Host, read_host
from bottleneck.analysis.idle import CAUSES, Gaps, split_gaps
from bottleneck.analysis.inflight import host_timeline
from bottleneck.analysis.sides import TwoSided, find_sides
from bottleneck.analysis.timeline import Flags, Floats, Integers, gaps, grouped, shared_charge, tally, union
from bottleneck.analysis.waits import IDLE_TEXTS, explain, explain_faults, explain_ops, fold
from bottleneck.records import Caveat, Device, Ledger, LedgerEntry
from bottleneck.tracing import Linked

# Account -> group, in the order of the ledger.
ACCOUNTS: Mapping[str, str] = {
    "compute": "compute",
    "memory": "memory",
    "memory.copy": "memory",
    "overhead.launch_floor": "overhead",
    **{f"overhead.{cause}": "overhead" for cause in CAUSES},
    "communication": "communication",
    "unknown": "unknown",
}
_NAMES = tuple(ACCOUNTS)
_CODE = {name: code for code, name in enumerate(_NAMES)}
# On a CPU, whatever a data loader or a compiler runs is no work of the step, though it runs ops.
_WAITS = tuple((cause, _CODE[f"overhead.{cause}"]) for cause in ("input", "compile"))
_ALLOCATOR = CAUSES.index("allocator")
# Index in CAUSES of each account, -1 for what is no idle cause.
_CAUSE = np.array([CAUSES.index(name[9:]) if name[9:] in CAUSES else -1 for name in _NAMES], dtype=np.int64)
_ACCOUNT_OF_BOUND = {
    "compute": "compute",
    "memory": "memory",
    "copy": "memory.copy",
    "overhead": "overhead.launch_floor",
    "dispatch": "overhead.dispatch",
    "communication": "communication",
    "unknown": "unknown",
}
_LAYER_OF_KIND = {"compute": 0, "collective": 1, "copy": 2, "fill": 2}
_ALLOCATION_OP = re.compile(r"^aten::(new_)?empty|^aten::(resize_|set_$|set_data)")


@dataclass(frozen=True)
class Overlap:
    """Device time per step: any work, collectives and copies as such, and the part of them with nothing above."""

    busy_us: float
    collective_us: float
    exposed_collective_us: float
    copy_us: float
    exposed_copy_us: float


@dataclass(frozen=True)
class LedgerResult:
    """The ledger and what it was made of.

    ``kernel_us`` is the time charged to each row of KERNELS over the whole window (not per step; mean over the devices
    used), ``account`` the position in ACCOUNTS that it went to. ``idle`` has columns cause, source, us, calls per step.
    ``host_only`` says that KERNELS are ops of the host; ``sync_count`` counts waiting calls in the window.
    """

    ledger: Ledger
    kernel_us: Floats
    account: Integers
    idle: pd.DataFrame
    overlap: Overlap
    devices: tuple[int, ...]
    host_only: bool
    sides: TwoSided | None
    sync_count: int
    caveats: tuple[Caveat, ...] = ()

    @property
    def groups(self) -> npt.NDArray[np.str_]:
        """Group of each row of KERNELS."""
        return np.array(list(ACCOUNTS.values()))[self.account]


@dataclass(frozen=True)
class _Charged:
    """Time over the whole window on one device or the host: per row of KERNELS, per idle cause, idle table, overlap."""

    kernel_us: Floats
    cause_us: Floats
    idle: pd.DataFrame
    overlap: Floats
    sides: TwoSided | None = None


def build_ledger(linked: Linked, roofline: pd.DataFrame, ceilings: Device | None = None) -> LedgerResult:
    """The partition of the window's wall time, per step.

    With device work: per device, then the mean over the devices used. Without: the threads that run ops, less the page
    faults that ``ceilings`` tell the price of.
    """
    host = read_host(linked)
    if is_host_only(linked):
        account = _host_accounts(linked, roofline, host)
        devices: tuple[int, ...] = (0,)
        faults = fault_us(linked, roofline, _allocates(linked), ceilings)
        parts = [_charge_host(linked, host, account, faults)]
    else:
        account = _device_accounts(roofline)
        devices = _devices_used(linked)
        parts = [_charge_device(linked, host, device) for device in devices]
    steps = max(len(linked.window.steps), 1)
    kernel_us = np.mean([part.kernel_us for part in parts], axis=0)
    cause_us = np.mean([part.cause_us for part in parts], axis=0)
    account_us = tally(account, kernel_us, len(ACCOUNTS))
    account_us[_CODE[f"overhead.{CAUSES[0]}"] :][: len(CAUSES)] += cause_us
    return LedgerResult(
        ledger=ledger_of(dict(zip(_NAMES, (account_us / steps).tolist(), strict=True)), linked.window.wall_us / steps),
        kernel_us=kernel_us,
        account=account,
        idle=_mean_idle([part.idle for part in parts], steps),
        overlap=Overlap(*(np.mean([part.overlap for part in parts], axis=0) / steps).tolist()),
        devices=devices,
        host_only=is_host_only(linked),
        sides=parts[0].sides if len(parts) == 1 else None,
        sync_count=host.sync_calls_between(*linked.window.host_us),
        caveats=_caveats(devices),
    )


def is_wait(account: Integers) -> Flags:
    """Whether ops of these accounts (positions in ACCOUNTS) are waiting and no work of the step."""
    return np.isin(account, [code for _, code in _WAITS])


def is_host_only(linked: Linked) -> bool:
    """Whether KERNELS holds ops of the host for want of any device work."""
    return linked.trace.device_args.empty


def ledger_of(account_us: Mapping[str, float], wall_us: float) -> Ledger:
    """The ledger of these accounts; rounding, at most 1e-9 of the wall time, goes to the largest."""
    amounts = {account: us for account, us in account_us.items() if us > 0} or {"overhead.unknown": wall_us}
    rest = wall_us - math.fsum(amounts.values())
    assert abs(rest) <= 1e-9 * wall_us, f"accounts miss the wall time of {wall_us} us by {rest} us"
    largest = max(amounts, key=lambda account: amounts[account])
    amounts[largest] = math.fsum([wall_us, *(-us for account, us in amounts.items() if account != largest)])
    entries = [
        LedgerEntry(account, group, amounts[account], amounts[account] / wall_us if wall_us else 0.0)
        for account, group in ACCOUNTS.items()
        if account in amounts
    ]
    return Ledger(wall_us, tuple(entries))


def _device_accounts(roofline: pd.DataFrame) -> Integers:
    bound = roofline["bound"].cat
    code_of_bound = np.array([_CODE[_ACCOUNT_OF_BOUND[name]] for name in bound.categories], dtype=np.int64)
    return code_of_bound[bound.codes.to_numpy()] if len(roofline) else np.zeros(0, dtype=np.int64)


def _host_accounts(linked: Linked, roofline: pd.DataFrame, host: Host) -> Integers:
    """As for a device, but ops that allocate and whatever a data loader or a compiler runs get their own accounts."""
    account = _device_accounts(roofline)
    account[(account == _CODE["overhead.dispatch"]) & _allocates(linked)] = _CODE["overhead.allocator"]
    threads, start = linked.ops["thread"].cat, linked.ops["ts_us"].to_numpy()
    for code, mine in grouped(threads.codes.to_numpy().astype(np.int64)):
        for cause, wait in _WAITS[::-1]:
            account[mine[host.holds(cause, str(threads.categories[code]), start[mine])]] = wait
    return account


def _allocates(linked: Linked) -> Flags:
    """Whether each op of OPS, by its name, does nothing but allocate."""
    names = linked.ops["name"].cat
    allocates = np.array([_ALLOCATION_OP.search(str(name)) is not None for name in names.categories], dtype=bool)
    return np.append(allocates, False)[names.codes.to_numpy()]


def _devices_used(linked: Linked) -> tuple[int, ...]:
    """Devices with work inside the window; if none has any, the first of the trace."""
    start, end = _clipped(linked)
    device = linked.kernels["device"].to_numpy()
    used = np.unique(device[end > start])
    return tuple(int(index) for index in (used if used.size else device[:1]))


def _clipped(linked: Linked) -> tuple[Floats, Floats]:
    """Starts and ends of KERNELS inside the window, counted from its start.

    On the clock's grid of whole nanoseconds: in floating point, kernels back to back would leave gaps of 1e-13 us.
    """
    start = linked.kernels["ts_us"].to_numpy() - linked.window.start_us
    end = start + linked.kernels["dur_us"].to_numpy()
    wall_us = linked.window.wall_us
    return np.clip(np.rint(start * 1e3) / 1e3, 0.0, wall_us), np.clip(np.rint(end * 1e3) / 1e3, 0.0, wall_us)


def _charge_device(linked: Linked, host: Host, device: int) -> _Charged:
    start, end = _clipped(linked)
    rows = np.flatnonzero(linked.kernels["device"].to_numpy() == device)
    kind = linked.kernels["kind"].cat
    layer = np.array([_LAYER_OF_KIND[name] for name in kind.categories], dtype=np.int64)[kind.codes.to_numpy()[rows]]
    kernel_us = np.zeros(len(linked.kernels))
    kernel_us[rows] = shared_charge(start[rows], end[rows], layer)
    busy = union(start[rows], end[rows])
    opened, closed, following = gaps(busy, 0.0, linked.window.wall_us)
    origin = linked.window.start_us
    next_row = np.append(rows[busy.first], -1)[following]
    idle = Gaps(opened + origin, closed + origin, next_row)
    pieces = split_gaps(idle, linked, host)
    by_layer = [union(start[rows[layer == level]], end[rows[layer == level]]).total() for level in (1, 2)]
    exposed = [float(np.sum(kernel_us[rows[layer == level]])) for level in (1, 2)]
    overlap = np.array([busy.total(), by_layer[0], exposed[0], by_layer[1], exposed[1]])
    sides = find_sides(busy, linked.window.wall_us)
    return _Charged(kernel_us, pieces.by_cause(), fold(explain(pieces, idle, linked, host)), overlap, sides)


def _charge_host(linked: Linked, host: Host, account: Integers, faults: Floats) -> _Charged:
    timeline = host_timeline(linked, host)
    kernel_us, idle, pieces = timeline.kernel_us, timeline.idle, timeline.pieces
    waits = is_wait(account)
    waiting = np.flatnonzero(waits & (kernel_us > 0))
    inside = fold(explain_ops(waiting, _CAUSE[account[waiting]], kernel_us[waiting], linked, host))
    self_us = linked.ops["self_us"].to_numpy()
    fault_us = np.where(waits, 0.0, faults) * np.divide(
        kernel_us, self_us, out=np.zeros(self_us.size), where=self_us > 0
    )
    faulting = np.flatnonzero(fault_us)
    touched = fold(explain_faults(faulting, fault_us[faulting], linked))
    kernel_us -= fault_us
    cause_us = pieces.by_cause()
    cause_us[_ALLOCATOR] += fault_us.sum()
    outside = fold(explain(pieces, idle, linked, host))
    busy_us = math.fsum(kernel_us) - math.fsum(kernel_us[waiting])
    overlap = np.array([busy_us, timeline.collective_us, timeline.exposed_us, 0.0, 0.0])
    return _Charged(kernel_us, cause_us, pd.concat((inside, touched, outside), ignore_index=True), overlap)


def _mean_idle(idle: list[pd.DataFrame], steps: int) -> pd.DataFrame:
    keys = ["cause", *IDLE_TEXTS]
    folded = pd.concat(idle, ignore_index=True).groupby(keys, dropna=False, sort=False, as_index=False)
    total, scale = folded.sum(), 1.0 / (steps * len(idle))
    texts = {name: total[name].astype(object).where(total[name].notna(), None) for name in IDLE_TEXTS}
    total = total.assign(**texts, us=total["us"] * scale, calls=total["calls"] * scale)
    return total.sort_values("us", ascending=False, kind="stable", ignore_index=True)


def _caveats(devices: tuple[int, ...]) -> tuple[Caveat, ...]:
    if len(devices) < 2:
        return ()
    listed = ", ".join(str(device) for device in devices)
    return (Caveat("several-devices", f"this process used devices {listed}; the ledger is the mean over them"),)
