"""Lays the ledger out in time, as exports draw it.

It gives the stretches of the window that each account is charged with.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.host import Host, owned_segments, read_host
from bottleneck.analysis.idle import IDLE_TEXTS, Gaps, Pieces, explain, split_gaps
from bottleneck.analysis.ledger import (
    IDLE_ACCOUNTS,
    accounts_of,
    devices_used,
    host_timeline,
    is_wait,
    read_device,
    times_beside_work,
)
from bottleneck.schema.accounts import ACCOUNTS, IDLE_CAUSES
from bottleneck.schema.analysis import LedgerEntry
from bottleneck.schema.device import Device
from bottleneck.schema.intervals import Floats, Integers
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.tables import TIMELINE, category


class _Work(Struct, frozen=True):
    """Intervals of work with their accounts.

    Each also has the parts (0-1) that are charged to other accounts instead, by account.
    """

    start: Floats
    end: Floats
    layer: Integers
    account: Integers
    besides: Mapping[int, Floats]


def build_timeline(
    linked: Linked, roofline: pd.DataFrame, ledger: Sequence[LedgerEntry], ceilings: Device | None = None
) -> pd.DataFrame:
    """TIMELINE: the window cut into stretches of one account each, as ``build_ledger`` charges it.

    Where work of several accounts shares an instant, the stretch is divided between them, in no meaningful order. The
    column ``us`` adds up to the accounts of ``ledger``, which may be scaled to unprofiled steps; accounts of which the
    trace shows nothing have no stretch.
    """
    host, devices = read_host(linked), devices_used(linked)
    account = accounts_of(linked, roofline, host)
    if linked.is_host_only:
        parts = [_host_part(linked, roofline, host, account, ceilings)]
    else:
        parts = [_device_part(linked, host, device, account) for device in devices]
    frame = pd.concat(parts, ignore_index=True).assign(
        device=np.repeat(np.array(devices, dtype=np.int32), [len(part) for part in parts])
    )
    codes, lasted = frame["account"].to_numpy(dtype=np.int64), (frame["end_us"] - frame["start_us"]).to_numpy()
    total = np.bincount(codes, weights=lasted, minlength=len(ACCOUNTS))
    entries = {entry.account: entry.us for entry in ledger}
    scale = np.divide([entries.get(name, 0.0) for name in ACCOUNTS], total, out=np.zeros(total.size), where=total > 0)
    texts = {name: frame[name].astype("category") for name in IDLE_TEXTS}
    frame = frame.assign(account=category(codes, list(ACCOUNTS)), us=lasted * scale[codes], **texts)
    frame = frame.sort_values(["device", "start_us"], kind="stable", ignore_index=True)
    return TIMELINE.check(frame[list(TIMELINE.columns)])


def _device_part(linked: Linked, host: Host, device: int, account: Integers) -> pd.DataFrame:
    work = read_device(linked, device, account)
    origin = linked.window.start_us
    intervals = _Work(work.start + origin, work.end + origin, work.layer, account[work.rows], {})
    return _joined(intervals, split_gaps(work.idle, linked, host), work.idle, linked, host)


def _host_part(
    linked: Linked, roofline: pd.DataFrame, host: Host, account: Integers, ceilings: Device | None
) -> pd.DataFrame:
    """Gives the stretches of ops of the host.

    The time that a collective holds the program up is charged to that collective.
    """
    timeline = host_timeline(linked, host)
    opened, closed, owner = owned_segments(linked.ops)
    low, high = linked.window.start_us, linked.window.end_us
    start, end = np.clip(opened, low, high), np.clip(closed, low, high)
    self_us, parts = linked.ops["self_us"].to_numpy(), dict[int, Floats]()
    for beside in times_beside_work(linked, roofline, ceilings, host):
        code = int(IDLE_ACCOUNTS[IDLE_CAUSES.index(beside.cause)])
        part = np.divide(beside.us, self_us, out=np.zeros(self_us.size), where=(self_us > 0) & ~is_wait(account))
        parts[code] = parts.get(code, 0.0) + part
    works = timeline.works[owner]
    owner, start, end = owner[works], start[works], end[works]
    waits = np.concatenate((start, timeline.exposed.start)), np.concatenate((end, timeline.exposed.end))
    rows = np.concatenate((owner, timeline.exposed.row))
    intervals = _Work(
        *waits, np.zeros(rows.size, dtype=np.int64), account[rows], {code: part[rows] for code, part in parts.items()}
    )
    return _joined(intervals, timeline.pieces, timeline.idle, linked, host)


def _joined(work: _Work, pieces: Pieces, idle: Gaps, linked: Linked, host: Host) -> pd.DataFrame:
    """The stretches of work and the pieces of idle time, with their texts."""
    waits = explain(pieces, idle, linked, host)
    texts = {name: pd.Series(getattr(waits, name).texts(), dtype=object) for name in IDLE_TEXTS}
    idle_rows = {"start_us": pieces.start, "end_us": pieces.end, "account": IDLE_ACCOUNTS[pieces.cause], **texts}
    start, end, account = np.array(list(_divided(work)), dtype=np.float64).reshape(-1, 3).T
    # Stretches of one account that touch are joined.
    first = np.flatnonzero(np.append(True, (start[1:] != end[:-1]) | (account[1:] != account[:-1]))[: start.size])
    last = np.append(first[1:], start.size)[: first.size] - 1
    nothing = {name: pd.Series([None] * first.size, dtype=object) for name in IDLE_TEXTS}
    busy_rows = {"start_us": start[first], "end_us": end[last], "account": account[first].astype(np.int64), **nothing}
    return pd.concat((pd.DataFrame(busy_rows), pd.DataFrame(idle_rows)), ignore_index=True)


def _divided(work: _Work) -> Iterator[tuple[float, float, int]]:
    """Yields start, end and account of stretches of work.

    Work is cut wherever an interval begins or ends. Each stretch is divided between the accounts that are active then.
    """
    count = work.start.size
    times = np.concatenate((work.start, work.end))
    order = np.argsort(times, kind="stable").tolist()
    at, layers, accounts = (item.tolist() for item in (times, work.layer, work.account))
    besides = {code: parts.tolist() for code, parts in work.besides.items() if parts.any()}
    active: list[dict[int, int]] = [{} for _ in range(max(layers, default=0) + 1)]
    before = 0.0
    for index in order:
        now, row = at[index], index % count
        if now > before:
            members = next((item for item in active if item), None)
            if members:
                yield from _shared(before, now, members, accounts, besides)
        before = now
        if index < count:
            active[layers[row]][row] = row
        else:
            active[layers[row]].pop(row, None)


def _shared(
    start: float, end: float, members: dict[int, int], accounts: list[int], besides: Mapping[int, list[float]]
) -> Iterator[tuple[float, float, int]]:
    """Divides a stretch between the accounts of its members.

    They are in the order of the ledger.
    """
    parts: dict[int, float] = {}
    for row in members:
        own = 1.0
        for code, shares in besides.items():
            if shares[row] > 0:
                parts[code] = parts.get(code, 0.0) + shares[row]
                own -= shares[row]
        parts[accounts[row]] = parts.get(accounts[row], 0.0) + max(own, 0.0)
    done, begin, last = 0.0, start, max(parts)
    for account in sorted(parts):
        done += parts[account]
        finish = end if account == last else start + (end - start) * min(done / len(members), 1.0)
        if finish > begin:
            yield begin, finish, account
        begin = finish
