"""Builds the ledger, which charges every microsecond of the window once.

It charges device work by bound, and waiting by cause.

A CPU program hands a collective to a thread of the library (gloo) and goes on, until it waits for the result. Work that
runs meanwhile hides it, as on a device; so does Python. What is left is charged to the collective.
"""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.between_ops import Stretches, StretchPieces, in_lighter_window
from bottleneck.analysis.faults import DECISIVE_LOSS
from bottleneck.analysis.host import THREAD, Host, freed_blocks, innermost_op, own_stretches, owned_segments, read_host
from bottleneck.analysis.idle import (
    FAULTS,
    FREED,
    HELD_UP,
    IDLE_FIELDS,
    NEIGHBOURS,
    RECORDS,
    Gaps,
    Pieces,
    Waits,
    explain,
    explain_beside,
    explain_ops,
    fold,
    lost_us,
    split_gaps,
    split_host_gaps,
)
from bottleneck.schema.accounts import ACCOUNTS, IDLE_CAUSES, UNMODELLED, UNMODELLED_BY_FAMILY
from bottleneck.schema.analysis import GROUPS, KERNELS_MISSING, Caveat, Ledger, LedgerEntry
from bottleneck.schema.device import Device
from bottleneck.schema.evidence import TwoSided
from bottleneck.schema.intervals import (
    NOTHING,
    Codes,
    Flags,
    Floats,
    Integers,
    Segments,
    Spans,
    cut,
    gaps,
    grouped,
    joined,
    numbered,
    outermost,
    shared_charge,
    some_rows,
    tally,
    union,
)
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.records import replace
from bottleneck.schema.tables import FRESH_FROM_BYTES, IDLE_TIME, text_matches
from bottleneck.system.working_memory import return_freed_memory, returns_memory
from bottleneck.units import format_share

# Ops that do nothing but wait for a collective.
_WAIT_OP = re.compile(r"^_?c10d_functional::wait_tensor$")
_PYTHON, _DISPATCH, _WAIT = (IDLE_CAUSES.index(cause) for cause in ("python", "dispatch", "wait"))
# PLACES names a function that is in a long call of a built-in one so; a thread that waits in the library is in one.
_IN_A_CALL = " > "


class Timeline(Struct, frozen=True):
    """Time charged to each row of OPS over the window, and gaps.

    The gaps and their pieces are no wait for a collective.

    ``works`` are the rows of OPS that hold their own time; ``exposed`` are the stretches charged to a collective (row
    of OPS) that the program waited for.
    """

    kernel_us: Floats
    idle: Gaps
    pieces: Pieces
    works: Flags
    exposed: Segments = NOTHING


def host_timeline(linked: Linked, host: Host) -> Timeline:
    """Divides the window between ops and gaps.

    Concurrent ops share their time. Gaps are cut into pieces with one cause each.
    """
    low, high = linked.window.start_us, linked.window.end_us
    opened, closed, owner = owned_segments(linked.ops)
    start, end = np.clip(opened, low, high), np.clip(closed, low, high)
    collective = (linked.kernels["kind"] == "collective").to_numpy()
    has_own_time = ~(collective | _waits(linked, collective))
    works = has_own_time[owner]
    charge = shared_charge(start[works] - low, end[works] - low, np.zeros(int(works.sum()), dtype=np.int64))
    kernel_us = tally(owner[works], charge, len(linked.ops))
    busy = union(start[works], end[works])
    idle_start, idle_end, following = gaps(busy, low, high)
    idle = Gaps(idle_start, idle_end, np.append(owner[works][busy.first], -1)[following])
    pieces = split_host_gaps(idle, host)
    if not collective.any():
        return Timeline(kernel_us, idle, pieces, has_own_time)
    mine = collective[owner]
    flight = outermost(start[mine], end[mine], owner[mine])
    pieces = _cut_at(pieces, flight)
    carrier = flight.at((pieces.start + pieces.end) / 2)
    waiting = (carrier >= 0) & _is_blocked(pieces, linked, host)
    return Timeline(
        kernel_us + tally(carrier[waiting], pieces.us[waiting], len(linked.ops)),
        idle,
        some_rows(pieces, ~waiting),
        has_own_time,
        Segments(pieces.start[waiting], pieces.end[waiting], carrier[waiting]),
    )


def _waits(linked: Linked, collective: Flags) -> Flags:
    """Rows of OPS that only wait for a collective, where the trace shows any."""
    return np.asarray(text_matches(linked.ops["name"], _WAIT_OP.search) & collective.any())


def _cut_at(pieces: Pieces, flight: Segments) -> Pieces:
    """The pieces cut wherever another collective is in flight."""
    cuts = cut(pieces.start, pieces.end, [flight.start, flight.end])
    whole = some_rows(pieces, cuts.interval)
    return Pieces(whole.gap, cuts.start, cuts.end, whole.cause, whole.event, whole.thread)


def _is_blocked(pieces: Pieces, linked: Linked, host: Host) -> Flags:
    """Marks the pieces in which the main thread only waited.

    It waited inside an op that waits, or in a long call outside Python.

    Without Python frames it is taken to have waited.
    """
    in_python, waits = pieces.cause == _PYTHON, pieces.cause == _WAIT
    if linked.places is None:
        return np.asarray(in_python | waits | (pieces.cause == _DISPATCH))
    is_call = text_matches(linked.places["frame"], lambda label: _IN_A_CALL in label)
    row = host.places.get(host.main_thread, NOTHING).at((pieces.start + pieces.end) / 2)
    called = np.append(is_call, False)[row]
    return np.asarray((in_python & called) | waits | (pieces.cause == _DISPATCH))


def fault_us(linked: Linked, roofline: pd.DataFrame, allocates: Flags, device: Device | None) -> Floats:
    """Gives microseconds of each row of OPS in page faults.

    Zero where nothing shows them.

    The pages that an op touches first cost their bytes over the rate at which the system hands out new ones, but never
    more than what the op took beyond its largest floor: an allocator that keeps its blocks does not fault.
    ``allocates`` marks ops that only allocate; what they hand out is touched by the op that works around or after them.
    """
    rate = None if device is None else device.fresh_bytes_per_s
    fresh = _fresh_bytes(linked, roofline, allocates)
    if rate is None or not fresh.any():
        return np.zeros(len(linked.ops))
    floors = np.fmax(roofline["compute_us"].to_numpy(), roofline["memory_us"].to_numpy())
    least = np.fmax(floors, roofline["launch_us"].to_numpy())
    beyond = np.where(np.isnan(floors), 0.0, np.maximum(linked.kernels["dur_us"].to_numpy() - least, 0.0))
    return np.asarray(np.minimum(fresh / rate * 1e6, beyond))


def _fresh_bytes(linked: Linked, roofline: pd.DataFrame, allocates: Flags) -> Floats:
    """Bytes of new pages that each op touches first."""
    memory = linked.trace.memory
    large = memory[(memory["bytes"] >= FRESH_FROM_BYTES) & ~memory["on_device"]]
    works = ~((roofline["bound"] == "dispatch").to_numpy() | allocates)
    toucher = _touchers(linked.ops, open_ops(linked.ops, large), works)
    rows = np.flatnonzero(toucher >= 0)
    return tally(toucher[rows], large["bytes"].to_numpy(np.float64)[rows], len(linked.ops))


def freed_us(linked: Linked, roofline: pd.DataFrame) -> Floats:
    """Gives microseconds of each row of OPS in freeing pages.

    The system takes freed pages back. Only ops that do no work of their own count.

    What a working op does after it frees a block may be its work.
    """
    freed = freed_blocks(linked)
    op = open_ops(linked.ops, freed)
    rows = np.flatnonzero((op >= 0) & np.append((roofline["bound"] == "dispatch").to_numpy(), False)[op])
    spent = (freed["end_us"] - freed["ts_us"]).to_numpy()
    return np.asarray(np.minimum(tally(op[rows], spent[rows], len(linked.ops)), linked.ops["self_us"].to_numpy()))


def open_ops(ops: pd.DataFrame, memory: pd.DataFrame) -> Integers:
    """Gives the innermost op open at each row of MEMORY.

    It is a row in OPS, -1 for none.
    """
    op = np.full(len(memory), -1, dtype=np.int64)
    threads, at = memory["thread"].cat, memory["ts_us"].to_numpy()
    for code, mine in grouped(threads.codes.to_numpy().astype(np.int64)):
        op[mine] = innermost_op(ops, str(threads.categories[code]), at[mine])
    return op


def _touchers(ops: pd.DataFrame, op: Integers, works: Flags) -> Integers:
    """Gives the op that first writes to what an op allocated.

    It is the op itself, the one around it, or the next inside the same tree.

    -1 where none of these does any work, or nothing was open: whoever writes there later is not known.
    """
    if not op.size or not len(ops):
        return op
    parent = ops["parent"].to_numpy(dtype=np.int64, na_value=-1)
    around = np.where(op >= 0, parent[op], -1)
    working, roots = np.flatnonzero(works), np.append(np.flatnonzero(parent < 0), len(ops))
    following = np.append(working, len(ops))[np.searchsorted(working, op, side="right")]
    tree_end = roots[np.minimum(np.searchsorted(roots, op, side="right"), roots.size - 1)]
    inside = np.where(following < tree_end, following, -1)
    around_works = (around >= 0) & works[around]
    return np.where(op < 0, -1, np.where(works[op], op, np.where(around_works, around, inside)))


# A side counts from this share of the window on; one must be idle, the other busy, beyond the second figure.
_SMALLEST_SIDE = 0.15
_ONE_SIDED = 0.8


def find_sides(busy: Spans, wall_us: float) -> TwoSided | None:
    """Finds the split whose two sides contrast most.

    The contrast is that of their busy shares. Null when the sides are not opposites.
    """
    candidates = np.concatenate((busy.start, busy.end))
    candidates = candidates[(candidates >= _SMALLEST_SIDE * wall_us) & (candidates <= (1 - _SMALLEST_SIDE) * wall_us)]
    if not candidates.size:
        return None
    done = busy.covered_until(candidates)
    before, after = done / candidates, (busy.total() - done) / (wall_us - candidates)
    best = int(np.argmax(np.abs(before - after)))
    low, high = sorted((float(before[best]), float(after[best])))
    if low >= 1 - _ONE_SIDED or high <= _ONE_SIDED:
        return None
    return TwoSided(float(candidates[best] / wall_us), float(before[best]), float(after[best]))


_NAMES = tuple(ACCOUNTS)
_CODE = {name: code for code, name in enumerate(_NAMES)}
# On a CPU, whatever a data loader or a compiler runs is no work of the step, though it runs ops.
_WAITS = tuple((cause, _CODE[f"overhead.{cause}"]) for cause in ("input", "compile"))
# Position in ACCOUNTS of each of IDLE_CAUSES, and in GROUPS of each of ACCOUNTS.
IDLE_ACCOUNTS = np.array([_CODE[f"overhead.{cause}"] for cause in IDLE_CAUSES], dtype=np.int64)
GROUP_OF_ACCOUNT = np.array([GROUPS.index(account.group) for account in ACCOUNTS.values()], dtype=np.int64)
# Index in IDLE_CAUSES of each account, -1 for those of work only.
_CAUSE = np.array(
    [-1 if spec.cause is None else IDLE_CAUSES.index(spec.cause) for spec in ACCOUNTS.values()], dtype=np.int64
)
_ACCOUNT_OF_BOUND = {spec.bound: key for key, spec in ACCOUNTS.items() if spec.bound is not None}
# The priority of work that runs at once; a copy that crosses a link stands above one inside the device.
_LAYER_OF_KIND = {"compute": 0, "collective": 1, "copy": 3, "fill": 3}
_TRANSFER_LAYER = 2
_ALLOCATION_OP = re.compile(r"^aten::(new_)?empty|^aten::(resize_|set_$|set_data)")


class IdleTimes(Struct, frozen=True):
    """Idle time, piece by piece.

    Each has its cause (index in IDLE_CAUSES), when the host caused it, and its part of a step.

    ``start`` and ``end`` are on the clock of EVENTS, alike where it is an instant, NaN where that is not known;
    ``thread`` is a code of EVENTS.thread, -1 for none. ``lightly_us`` is that part in a window with the fewest options,
    ``us`` itself where none tells.
    """

    cause: Codes
    start: Floats
    end: Floats
    thread: Codes
    us: Floats
    lightly_us: Floats

    def scaled(self, factor: float | Floats) -> "IdleTimes":
        """The same with its amounts multiplied."""
        return replace(self, us=self.us * factor, lightly_us=self.lightly_us * factor)

    def table(self) -> pd.DataFrame:
        """IDLE_TIME, for those who fold this time in their own way."""
        columns = {name: getattr(self, name) for name in ("start", "end", "us")}
        codes = {name: getattr(self, name).astype(np.int64) for name in ("cause", "thread")}
        return IDLE_TIME.check(pd.DataFrame({**codes, **columns}))


NO_IDLE_TIMES = IdleTimes(*(np.zeros(0, dtype=kind) for kind in (np.int64, float, float, np.int64, float, float)))


class LedgerResult(Struct, frozen=True):
    """The ledger and what it was made of.

    ``kernel_us`` is the time charged to each row of KERNELS over the whole window (not per step; mean over the devices
    used), ``account`` the position in ACCOUNTS that it went to. ``idle`` has columns cause, source, us, calls per step,
    and the Python calls and ops (``RECORDS``) whose recording was part of that time; ``idle_times`` is the same time
    piece by piece. ``busy_us`` is the time per step in which a device works.
    ``host_only`` says that KERNELS are ops of the host; ``sync_count`` counts waiting calls in the window, ``held_up``
    are those that are held up.
    """

    ledger: Ledger
    kernel_us: Floats
    account: Integers
    idle: pd.DataFrame
    busy_us: float
    devices: tuple[int, ...]
    host_only: bool
    sides: TwoSided | None
    sync_count: int
    held_up: pd.DataFrame
    caveats: tuple[Caveat, ...] = ()
    idle_times: IdleTimes = NO_IDLE_TIMES

    @property
    def groups(self) -> npt.NDArray[np.str_]:
        """Group of each row of KERNELS."""
        return np.array(GROUPS)[GROUP_OF_ACCOUNT[self.account]]


class _DeviceLedger(Struct, frozen=True):
    """Time over the whole window on one device or the host.

    It is per row of KERNELS and per idle cause, with the idle table and the busy time.

    ``lost_us`` is the part of the idle time in which work ran that the profiler lost.
    """

    kernel_us: Floats
    cause_us: Floats
    idle: pd.DataFrame
    busy_us: float
    times: IdleTimes
    sides: TwoSided | None = None
    lost_us: float = 0.0


@returns_memory
def build_ledger(
    linked: Linked,
    roofline: pd.DataFrame,
    ceilings: Device | None = None,
    host: Host | None = None,
    light: Stretches | None = None,
) -> LedgerResult:
    """The partition of the window's wall time, per step.

    With device work: per device, then the mean over the devices used. Without: the threads that run ops, less the page
    faults whose cost ``ceilings`` state. ``host`` is that of ``read_host`` for the trace, where it is known already;
    ``light`` what a window with the fewest options tells of the time between ops.
    """
    host = read_host(linked) if host is None else host
    account, devices = accounts_of(linked, roofline, host), devices_used(linked)
    if linked.is_host_only:
        parts = [_charge_host(linked, host, account, times_beside_work(linked, roofline, ceilings, host), light)]
    else:
        parts = [_charge_device(linked, host, device, account) for device in devices]
    steps = max(len(linked.window.steps), 1)
    kernel_us = np.mean([part.kernel_us for part in parts], axis=0)
    cause_us = np.mean([part.cause_us for part in parts], axis=0)
    account_us = tally(account, kernel_us, len(ACCOUNTS))
    account_us[IDLE_ACCOUNTS] += cause_us
    return LedgerResult(
        ledger=ledger_of(
            dict(zip(_NAMES, (account_us / steps).tolist(), strict=True)),
            linked.window.wall_us / steps,
            _rounding_us(linked) / steps,
        ),
        kernel_us=kernel_us,
        account=account,
        idle=_mean_idle([part.idle for part in parts], steps),
        busy_us=float(np.mean([part.busy_us for part in parts])) / steps,
        devices=devices,
        host_only=linked.is_host_only,
        sides=parts[0].sides if len(parts) == 1 else None,
        sync_count=host.sync_calls_between(*linked.window.host_us),
        held_up=host.held_up,
        caveats=(*_caveats(devices), *_lost_caveats(parts, linked.window.wall_us)),
        idle_times=joined([part.times for part in parts]).scaled(1.0 / (len(parts) * steps)),
    )


def is_wait(account: Integers) -> Flags:
    """Marks accounts whose ops are waits.

    They are no work of the step. Accounts are positions in ACCOUNTS.
    """
    return np.isin(account, [code for _, code in _WAITS])


def _rounding_us(linked: Linked) -> float:
    """By how much stretches between the instants of a trace may miss their sum.

    An instant is rounded to the spacing of numbers of its size, up or down by chance: so the sum of many stretches is
    off by the root of their number.
    """
    window = linked.window
    latest_us = max(abs(window.start_us), abs(window.end_us))
    return float(np.spacing(latest_us)) * (2.0 + math.sqrt(len(linked.trace.events)))


def ledger_of(account_us: Mapping[str, float], wall_us: float, rounding_us: float = 0.0) -> Ledger:
    """Gives the ledger of these accounts.

    Rounding goes to the largest: 1e-9 of the wall time, or of the instants.
    """
    amounts = {account: us for account, us in account_us.items() if us > 0} or {"overhead.unknown": wall_us}
    rest = wall_us - math.fsum(amounts.values())
    assert abs(rest) <= 1e-9 * wall_us + rounding_us, f"accounts miss the wall time of {wall_us} us by {rest} us"
    if -rest >= max(amounts.values()) > 0:  # a step shorter than the spacing of its instants
        factor = wall_us / math.fsum(amounts.values())
        amounts = {account: us * factor for account, us in amounts.items()}
    largest = max(amounts, key=lambda account: amounts[account])
    amounts[largest] = math.fsum([wall_us, *(-us for account, us in amounts.items() if account != largest)])
    entries = [
        LedgerEntry(key, account.group, amounts[key], amounts[key] / wall_us if wall_us else 0.0)
        for key, account in ACCOUNTS.items()
        if key in amounts
    ]
    return Ledger(wall_us, tuple(entries))


def accounts_of(linked: Linked, roofline: pd.DataFrame, host: Host) -> Integers:
    """Position in ACCOUNTS that each row of KERNELS is charged to."""
    return _host_accounts(linked, roofline, host) if linked.is_host_only else _device_accounts(roofline)


class BesideWork(Struct, frozen=True):
    """Time of ops of the host that is no work of theirs.

    ``us`` has microseconds of each row of OPS, ``cause`` is the idle cause that they are charged to, ``what`` the words
    for it.
    """

    cause: str
    what: str
    us: Floats


def times_beside_work(
    linked: Linked, roofline: pd.DataFrame, ceilings: Device | None, host: Host
) -> tuple[BesideWork, ...]:
    """Gives time of ops that was stalled or spent on pages."""
    held, rest = np.zeros(len(linked.ops)), linked.ops["self_us"].to_numpy()
    held[host.held_up["op"].to_numpy()] = host.held_up["beyond_us"].to_numpy()
    faults = np.minimum(fault_us(linked, roofline, allocates(linked), ceilings), rest - held)
    freed = np.minimum(freed_us(linked, roofline), rest - held - faults)
    return (
        BesideWork("stall", HELD_UP, held),
        BesideWork("allocator", FAULTS, faults),
        BesideWork("allocator", FREED, freed),
    )


def _device_accounts(roofline: pd.DataFrame) -> Integers:
    """The account of each kernel by its bound; of unmodelled work by its family."""
    if not len(roofline):
        return np.zeros(0, dtype=np.int64)
    bound, family = roofline["bound"].cat, roofline["family"].cat
    code_of_bound = np.array([_CODE[_ACCOUNT_OF_BOUND[name]] for name in bound.categories], dtype=np.int64)
    accounts = [UNMODELLED_BY_FAMILY.get(name, UNMODELLED) for name in family.categories]
    code_of_family = np.array([*(_CODE[name] for name in accounts), _CODE[UNMODELLED]], dtype=np.int64)
    account = code_of_bound[bound.codes.to_numpy()]
    return np.where(account == _CODE[UNMODELLED], code_of_family[family.codes.to_numpy()], account)


def _host_accounts(linked: Linked, roofline: pd.DataFrame, host: Host) -> Integers:
    """Gives the accounts of ops of the host.

    They are as on a device, except that allocating ops and ops of data loaders and compilers have their own.
    """
    account = _device_accounts(roofline)
    account[(account == _CODE["overhead.dispatch"]) & allocates(linked)] = _CODE["overhead.allocator"]
    threads, start = linked.ops["thread"].cat, linked.ops["ts_us"].to_numpy()
    for code, mine in grouped(threads.codes.to_numpy().astype(np.int64)):
        for cause, wait in _WAITS[::-1]:
            account[mine[host.holds(cause, str(threads.categories[code]), start[mine])]] = wait
    return account


def allocates(linked: Linked) -> Flags:
    """Mask of the ops of OPS that, by their name, do nothing but allocate."""
    return text_matches(linked.ops["name"], _ALLOCATION_OP.search)


def devices_used(linked: Linked) -> tuple[int, ...]:
    """Gives the devices with work inside the window.

    If none has any, it is the first of the trace. 0 on a CPU.
    """
    if linked.is_host_only:
        return (0,)
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


class DeviceWork(Struct, frozen=True):
    """Work of one device in the window, and the gaps in it.

    ``rows`` are those of KERNELS; ``start`` and ``end`` count from the window's start. Of work that runs at once, that
    of the lowest ``layer`` holds the instant.
    """

    rows: Integers
    start: Floats
    end: Floats
    layer: Integers
    idle: Gaps


def read_device(linked: Linked, device: int, account: Integers) -> DeviceWork:
    """The work of a device, whose rows of KERNELS are charged to these accounts."""
    start, end = _clipped(linked)
    rows = np.flatnonzero(linked.kernels["device"].to_numpy() == device)
    kind = linked.kernels["kind"].cat
    layer = np.array([_LAYER_OF_KIND[name] for name in kind.categories], dtype=np.int64)[kind.codes.to_numpy()[rows]]
    layer = np.where(account[rows] == _CODE["transfer"], _TRANSFER_LAYER, layer)
    busy = union(start[rows], end[rows])
    opened, closed, following = gaps(busy, 0.0, linked.window.wall_us)
    origin = linked.window.start_us
    next_row = np.append(rows[busy.first], -1)[following]
    by_end = rows[np.argsort(end[rows], kind="stable")]
    last_row = np.append(by_end, -1)[np.searchsorted(end[by_end], opened, side="right") - 1]
    idle = Gaps(opened + origin, closed + origin, next_row, last_row)
    return DeviceWork(rows, start[rows], end[rows], layer, idle)


def _charge_device(linked: Linked, host: Host, device: int, account: Integers) -> _DeviceLedger:
    work = read_device(linked, device, account)
    idle = work.idle
    kernel_us = np.zeros(len(linked.kernels))
    kernel_us[work.rows] = shared_charge(work.start, work.end, work.layer)
    return_freed_memory()
    pieces = split_gaps(idle, linked, host)
    busy = union(work.start, work.end)
    busy_us = float(busy.total())
    sides = find_sides(busy, linked.window.wall_us)
    del work, busy
    return_freed_memory()
    waits = explain(pieces, idle, linked, host)
    return_freed_memory()
    table = fold(waits)
    del waits
    return_freed_memory()
    times = _times_on_device(pieces, idle, linked, host)
    return _DeviceLedger(kernel_us, pieces.by_cause(), table, busy_us, times, sides, lost_us(pieces, idle, linked))


# Idle time in which work was queued: the host issued that work at another time.
_QUEUED = [IDLE_CAUSES.index(cause) for cause in ("launch", "kernel_gap", "dependency")]


def _times_on_device(pieces: Pieces, idle: Gaps, linked: Linked, host: Host) -> IdleTimes:
    kernels, thread_of = linked.kernels, linked.trace.events["thread"].cat.codes.to_numpy()
    following = idle.following[pieces.gap]
    issued = np.append(kernels["launch_ts_us"].to_numpy(), np.nan)[following]
    call = np.append(kernels["launch"].to_numpy(dtype=np.int64, na_value=-1), -1)[following]
    is_queued = np.isin(pieces.cause, _QUEUED) & ~np.isnan(issued)
    return IdleTimes(
        cause=pieces.cause,
        start=np.where(is_queued, issued, pieces.start),
        end=np.where(is_queued, issued, pieces.end),
        thread=np.where(
            is_queued,
            np.append(thread_of, -1)[call],
            np.where(pieces.thread < 0, THREAD(host.main_thread), pieces.thread),
        ),
        us=pieces.us,
        lightly_us=pieces.us,
    )


def _charge_host(
    linked: Linked, host: Host, account: Integers, besides: Sequence[BesideWork], light: Stretches | None
) -> _DeviceLedger:
    timeline = host_timeline(linked, host)
    kernel_us, idle, pieces = timeline.kernel_us, timeline.idle, timeline.pieces
    waits = is_wait(account)
    waiting = np.flatnonzero(waits & (kernel_us > 0))
    inside = fold(explain_ops(waiting, _CAUSE[account[waiting]], kernel_us[waiting], linked, host))
    self_us = linked.ops["self_us"].to_numpy()
    charged = np.divide(kernel_us, self_us, out=np.zeros(self_us.size), where=self_us > 0)
    cause_us, tables, times = pieces.by_cause(), [inside], list[IdleTimes]()
    thread = linked.trace.events["thread"].cat.codes.to_numpy().astype(np.int64)
    for beside in besides:
        us, cause = np.where(waits, 0.0, beside.us) * charged, IDLE_CAUSES.index(beside.cause)
        rows = np.flatnonzero(us)
        tables.append(fold(explain_beside(rows, us[rows], linked, cause, beside.what)))
        at, event = (linked.ops[name].to_numpy()[rows] for name in ("ts_us", "event"))
        times.append(IdleTimes(np.full(rows.size, cause), at, at, thread[event], us[rows], us[rows]))
        kernel_us = kernel_us - us
        cause_us[cause] += us.sum()
    outside_waits = explain(pieces, idle, linked, host)
    lightly_us = _in_lighter_window(outside_waits, (pieces.start + pieces.end) / 2, linked, light)
    outside = fold(replace(outside_waits, lightly_us=lightly_us))
    lightly_us = pieces.us if lightly_us is None else lightly_us
    busy_us = math.fsum(kernel_us) - math.fsum(kernel_us[waiting])
    main = np.full(pieces.cause.size, host.main_thread, dtype=np.int64)
    times.append(IdleTimes(pieces.cause, pieces.start, pieces.end, main, pieces.us, lightly_us))
    table = pd.concat((*tables, outside), ignore_index=True)
    return _DeviceLedger(kernel_us, cause_us, table, busy_us, joined(times))


def _in_lighter_window(told: Waits, middle_us: Floats, linked: Linked, light: Stretches | None) -> Floats | None:
    """Gives the length of each wait in the lighter window.

    This window has the fewest options. Null where none tells.
    """
    if told.frames is None:
        return None
    is_own = told.cause == IDLE_CAUSES.index("profiler")
    kind, _ = numbered(told.source.code, told.detail.code)
    pieces = StretchPieces(*(column[~is_own] for column in (told.us, told.frames, kind, middle_us)))
    lighter_us = in_lighter_window(pieces, linked, own_stretches(linked.trace.events), light)
    if lighter_us is None:
        return None
    us = told.us.copy()
    us[~is_own] = lighter_us
    return us


def _mean_idle(idle: list[pd.DataFrame], steps: int) -> pd.DataFrame:
    keys = ["cause", *IDLE_FIELDS]
    table = pd.concat(idle, ignore_index=True)
    folded = table.groupby(keys, dropna=False, sort=False, as_index=False)
    total, scale = folded[["us", "calls", *RECORDS]].sum(), 1.0 / (steps * len(idle))
    # Of several devices the first one that tells.
    total = total.assign(**{name: folded[name].first()[name] for name in (*NEIGHBOURS, "on_pages")})
    texts = {name: total[name].astype(object).where(total[name].notna(), None) for name in (*IDLE_FIELDS, *NEIGHBOURS)}
    total = total.assign(**texts, **{name: total[name] * scale for name in ("us", "calls", *RECORDS)})
    return total.sort_values("us", ascending=False, kind="stable", ignore_index=True)


def _caveats(devices: tuple[int, ...]) -> tuple[Caveat, ...]:
    if len(devices) < 2:
        return ()
    listed = ", ".join(str(device) for device in devices)
    return (Caveat("several-devices", f"this process used devices {listed}; the ledger is the mean over them"),)


def _lost_caveats(parts: list[_DeviceLedger], wall_us: float) -> tuple[Caveat, ...]:
    """Gives a caveat on idle time with lost work.

    The device did work in it that the profiler lost.
    """
    lost = float(np.mean([part.lost_us for part in parts]))
    if not lost > 0:
        return ()
    share = lost / wall_us
    message = (
        f"in {format_share(share)} of the step the device did queued work that the profiler lost: it seems idle inside"
        " one graph replay, or where kernels of launches are missing; this time is charged to unknown"
    )
    return (Caveat(KERNELS_MISSING if share > DECISIVE_LOSS else "holes", message, share),)
