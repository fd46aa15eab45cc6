"""Removes the profiler's cost from a recording.

The cost per op goes first, then the ledger is scaled to the unprofiled step.

A recording may hold a second window with the fewest options of the profiler. Then the amounts come from that window,
and the first one, with shapes, stacks and memory, only tells what they consist of.
"""

import statistics
from collections.abc import Container, Mapping, Sequence

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.between_ops import Stretches, calm_steps, measure_stretches
from bottleneck.analysis.held_up import beyond_usual_us
from bottleneck.analysis.host import own_stretches, read_host
from bottleneck.analysis.idle import FAULTS, IDLE_FIELDS, NEIGHBOURS, RECORDS
from bottleneck.analysis.ledger import IdleTimes, LedgerResult, build_ledger, ledger_of
from bottleneck.schema.accounts import ACCOUNTS, IDLE_CAUSES, label_of
from bottleneck.schema.analysis import CONTENDED, DISTURBED, Caveat, Ledger
from bottleneck.schema.intervals import Flags, Floats, joined, tally, union
from bottleneck.schema.linked_trace import Linked, Step, Window
from bottleneck.schema.measurements import Timing
from bottleneck.schema.records import replace
from bottleneck.system.working_memory import returns_memory
from bottleneck.units import format_share, format_us, listed

# Steps vary between runs. Where the unprofiled step is longer than the host's share times this, the profile does not
# show what took the time, and stretching what it shows would invent causes.
_MOST_STRETCH = 1.25
# The profiler stretches what the host does, but hardly the work itself. Where the work alone exceeds the undisturbed
# step by more than half, the profiled steps are not the steps that were timed.
_LEAST_AGREEMENT = 2 / 3
# The profiler makes no step quicker. Where the steps without it took so many times as long, they were held up. Of
# several steps on both sides none may have taken as long with it, and a clock drifts by less.
_HELD_UP_WITHOUT = 2.0
_LEAST_STEPS, _MOST_DRIFT = 3, 1.03
# The most that one event costs with the fewest options: 0.7 to 1.1 us were measured. What a step took longer beyond
# that is not the profiler's.
_MOST_US_PER_EVENT = 2.0
# Causes that Python frames tell: in a window without them, all of this time is Python or unknown.
_TOLD_BY_FRAMES = ("gc", "compile", "input", "wait", "python", "unknown")
_WORK, _PYTHON, _UNKNOWN, _PROFILER = "work", "overhead.python", "overhead.unknown", "overhead.profiler"
_ALLOCATOR = "overhead.allocator"


def find_held_up_timing(
    linked: Linked, unprofiled: Timing | None, light: Linked | None = None, fewer_faults_us: float = 0.0
) -> tuple[Timing | None, tuple[Caveat, ...]]:
    """Gives the unprofiled step time that the ledger can add up to.

    With a caveat where it is left out. On a CPU only: there other programs take the processors from the steps without
    the profiler as from those with it, by chance from some more than from others. What the profile shows is then the
    better answer, and the window with the fewest options (``light``) where only that was left alone. That window may
    also be shorter since it runs in memory which is kept: ``fewer_faults_us`` is what the page faults that it lacks
    take per step.
    """
    steps = linked.window.steps
    if unprofiled is None or not steps or not linked.is_host_only:
        return unprofiled, ()
    profiled_us = linked.window.wall_us / len(steps)
    longest_us = max(step.us for step in steps)
    are_several = min(unprofiled.n, len(steps)) >= _LEAST_STEPS
    are_apart = are_several and unprofiled.low > _MOST_DRIFT * longest_us
    lightly = None if light is None else _calm_timing(light, unprofiled, fewer_faults_us)
    if lightly is not None and lightly.median * _HELD_UP_WITHOUT < profiled_us:
        message = (
            f"other programs held up the steps: one took {format_us(unprofiled.median)} without the profiler and "
            f"{format_us(profiled_us)} with it, and {format_us(lightly.median)} in a short window with the fewest "
            "options, to which the amounts are scaled"
        )
        return lightly, (Caveat(CONTENDED, message, 1.0 - lightly.median / unprofiled.median),)
    if not (are_apart or unprofiled.median > _HELD_UP_WITHOUT * profiled_us):
        return unprofiled, ()
    message = (
        f"a step took {format_us(unprofiled.median)} without the profiler and {format_us(profiled_us)} with it: other "
        "programs held up the steps that were timed without it, so that those with it are explained"
    )
    return None, (Caveat("held-up-timing", message, 1.0 - profiled_us / unprofiled.median),)


# What page faults take may be so many times what they take as calibrated.
_DEARER_FAULTS = 2.0


def _calm_timing(light: Linked, unprofiled: Timing, fewer_faults_us: float) -> Timing | None:
    """Gives the step time of a lighter window that was left alone.

    Each of its steps is far shorter than those without the profiler, also without the page faults that it lacks. The
    median is the best that is known then, and its own steps its bounds. Null elsewhere.
    """
    steps_us = sorted(step.us for step in light.window.steps)
    least_us = unprofiled.low - _DEARER_FAULTS * fewer_faults_us
    if len(steps_us) < _LEAST_STEPS or steps_us[-1] * _HELD_UP_WITHOUT > least_us:
        return None
    return Timing(statistics.median(steps_us), steps_us[0], steps_us[-1], len(steps_us))


class LightAmounts(Struct, frozen=True):
    """Time per step by kind, in a lighter window.

    This window has the fewest options. The time adds up to the unprofiled step.

    A kind is an account that such a window can tell, or ``work``: that of the device, on a CPU all time in ops.
    ``profiled_us`` is the step in that window, ``agreement`` the unprofiled one over its work (at most 1). ``op_us`` is
    the mean time of an op itself by name, empty where a device works; ``ops`` is how many records of ops a step holds,
    of those without a parent the half that falls inside them. ``stretches`` are the times between ops on a CPU.
    """

    us: Mapping[str, float]
    profiled_us: float
    agreement: float
    op_us: Mapping[str, float]
    ops: float
    stretches: Stretches | None = None


def measure_light(linked: Linked, unprofiled: Timing | None, floor_us: float | None) -> LightAmounts | None:
    """Measures the amounts of a window with the fewest options.

    Null without an unprofiled step to scale them to.

    The cost of each event is taken off where it falls: half inside the event, half around it, which for an outermost op
    is Python. What is left differs from the unprofiled step by chance. On a CPU all of it is scaled to that step; with
    a device only its idle time, unless the work alone is longer.
    """
    if unprofiled is None or not unprofiled.median > 0 or not linked.window.steps:
        return None
    steps, host_only = len(linked.window.steps), linked.is_host_only
    each_us = min(profiler_us_per_event(linked, unprofiled), _MOST_US_PER_EVENT)
    own = _without_events(linked, each_us, floor_us)
    bound = np.where(own.kernels["kind"] == "collective", "communication", "unknown")
    family = pd.Categorical([None] * len(bound), categories=["other"])
    roofline = pd.DataFrame({"bound": pd.Categorical(bound), "family": family})
    us = _typical_amounts(own, roofline)
    inside = _inside(linked) & _in_calm_steps(linked)
    steps = len(calm_steps(linked.window)) if host_only else steps
    outermost = inside & linked.ops["parent"].isna().to_numpy()
    around_us = each_us * np.count_nonzero(outermost) / 2 / steps
    us = _shortened(us, {_PYTHON}, around_us)
    if host_only:  # the unprofiled step is a usual one: it holds no call that waited
        is_work = inside & (linked.kernels["kind"] != "collective").to_numpy()
        us = _shortened(us, {_WORK}, float(beyond_usual_us(linked)[is_work].sum()) / steps)
    else:
        is_op = {kind: kind != _WORK and ACCOUNTS[kind].is_host_state for kind in us}
        at_ops = {kind for kind in us if is_op[kind] and ACCOUNTS[kind].cause not in _TOLD_BY_FRAMES}
        us = _shortened(us, at_ops, each_us * np.count_nonzero(inside) / steps - around_us)
    scaled = _scaled_accounts(host_only=False)
    us[_PROFILER] = 0.0  # the unprofiled step has none of it
    is_fixed = {kind for kind in us if not host_only and (kind == _WORK or kind not in scaled)}
    fixed_us, rest_us = (
        sum(amount for kind, amount in us.items() if (kind in is_fixed) is chosen) for chosen in (True, False)
    )
    agreement = min(unprofiled.median / us[_WORK], 1.0) if us.get(_WORK, 0.0) > 0 else 1.0
    fits = min(unprofiled.median / fixed_us, 1.0) if fixed_us > 0 else 1.0
    rest = min(max(unprofiled.median - fixed_us, 0.0) / rest_us, _MOST_STRETCH) if rest_us > 0 else 0.0
    us = {kind: amount * (fits if kind in is_fixed else rest) for kind, amount in us.items()}
    us[_UNKNOWN] = max(unprofiled.median - sum(us.values()), 0.0)
    means = _mean_by_name(own, inside) if host_only else {}
    records = (np.count_nonzero(inside) - np.count_nonzero(outermost) / 2) / steps
    stretches = measure_stretches(linked, own_stretches(linked.trace.events), each_us) if host_only else None
    profiled_us = linked.window.wall_us / len(linked.window.steps)
    return LightAmounts(us, profiled_us, agreement, means, records, stretches)


def _typical_amounts(linked: Linked, roofline: pd.DataFrame) -> dict[str, float]:
    """Gives time per step by kind.

    On a CPU it is that of the steps that nothing held up. Those that follow one another are a window of their own.
    """
    calm, window = calm_steps(linked.window), linked.window
    windows = [window]
    if linked.is_host_only and len(calm) < len(window.steps):
        windows = [Window(run[0].start_us, run[-1].end_us, run, window.source) for run in _runs(calm)]
    count = sum(max(len(chosen.steps), 1) for chosen in windows)
    host, parts, total = read_host(linked), own_parts(linked), dict[str, float]()
    for chosen in windows:
        result = build_ledger(replace(linked, window=chosen), roofline, None, host)
        accounts = {entry.account for entry in result.ledger.entries}
        for kind, us in _by_kind(result, parts, accounts).items():
            total[kind] = total.get(kind, 0.0) + us * max(len(chosen.steps), 1) / count
    return total


def _runs(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """Splits steps into runs that follow one another without a gap."""
    runs: list[tuple[Step, ...]] = []
    for step in steps:
        if runs and runs[-1][-1].end_us == step.start_us:
            runs[-1] = (*runs[-1], step)
        else:
            runs.append((step,))
    return runs


def _in_calm_steps(linked: Linked) -> Flags:
    """Marks ops that begin in an undisturbed step.

    Nothing held this step up. All are marked where a device works.
    """
    start = linked.ops["ts_us"].to_numpy()
    if not linked.is_host_only:
        return np.ones(start.size, dtype=bool)
    calm = calm_steps(linked.window)
    return union(*(np.array([getattr(step, name) for step in calm]) for name in ("start_us", "end_us"))).hold(start)


def _kind_of(account: str, host_only: bool, known: Container[str]) -> str:
    """Gives the kind of time that an account is part of.

    ``known`` are the kinds or accounts of the lighter window.
    """
    cause = ACCOUNTS[account].cause
    if account == _PROFILER:
        return account
    if cause in _TOLD_BY_FRAMES:
        return account if account in known and account != _UNKNOWN else _PYTHON
    return account if account == "communication" or (cause is not None and not host_only) else _WORK


def _by_kind(result: LedgerResult, own: Floats, known: Container[str]) -> dict[str, float]:
    """Time per step by kind, of device or op time the own parts only."""
    parts, us = kept_parts(result, own), dict[str, float]()
    for entry in result.ledger.entries:
        kind = _kind_of(entry.account, result.host_only, known)
        us[kind] = us.get(kind, 0.0) + entry.us * parts[entry.account]
    return us


def _shortened(us: Mapping[str, float], kinds: Container[str], by_us: float) -> dict[str, float]:
    """Shortens these kinds by an amount in all.

    Each gets shorter by the same part of itself.
    """
    there_us = sum(amount for kind, amount in us.items() if kind in kinds)
    left = max(1.0 - by_us / there_us, 0.0) if there_us > 0 else 1.0
    return {kind: amount * (left if kind in kinds else 1.0) for kind, amount in us.items()}


def _inside(linked: Linked) -> Flags:
    """Mask of the ops that begin in the window."""
    start = linked.ops["ts_us"].to_numpy()
    return np.asarray((start >= linked.window.start_us) & (start < linked.window.end_us))


def _mean_by_name(linked: Linked, chosen: Flags, column: str = "dur_us") -> dict[str, float]:
    """Mean of a column of KERNELS over the ops chosen, by their name."""
    name = linked.ops["name"].cat
    code = name.codes.to_numpy()[chosen].astype(np.int64)
    size = len(name.categories)
    calls = tally(code, np.ones(code.size), size)
    total = tally(code, linked.kernels[column].to_numpy()[chosen], size)
    return {str(name.categories[at]): total[at] / calls[at] for at in np.flatnonzero(calls).tolist()}


@returns_memory
def scale_to_unprofiled(
    result: LedgerResult,
    unprofiled: Timing | None,
    own: Floats,
    light: LightAmounts | None = None,
    faults_us: tuple[float, float] = (0.0, 0.0),
) -> LedgerResult:
    """Scales the result to the unprofiled median step.

    A caveat shows the factor. Without an unprofiled step, the result comes back as it is.

    With ``light`` each kind of time has the amount that is stated there. Else device work is trusted and waits on the
    host's side are scaled; on a CPU, the work of ops is trusted as far as it is their own (``own``: part of each row of
    KERNELS, 0-1) and every overhead account scaled. Trusted work that alone exceeds the unprofiled step is shortened
    with it.

    What is left of the step has no recorded cause. On a CPU it is the first touch of new pages, as far as the page
    faults of unprofiled steps take longer than those of profiled ones (``faults_us``).
    """
    if unprofiled is None or not unprofiled.median > 0:
        return result
    wall_us = unprofiled.median
    # Of a window without length all of the unprofiled step is unknown.
    if light is not None and result.ledger.wall_us > 0:
        caveats = _light_caveats(result.ledger.wall_us, wall_us, light)
        result = _without_frames(result, light)
        amounts = _by_kind(result, own, light.us)
        kinds = {account: _kind_of(account, result.host_only, light.us) for account in ACCOUNTS}
        factors = {
            account: light.us.get(kind, 0.0) / amounts[kind] if amounts.get(kind, 0.0) > 0 else 0.0
            for account, kind in kinds.items()
        }
        more = {kind: us for kind, us in light.us.items() if us > 0 and not amounts.get(kind, 0.0) > 0}
        more[_UNKNOWN] = more.get(_UNKNOWN, 0.0) + more.pop(_WORK, 0.0)
        return rescaled(result, wall_us, factors, own, _with_faults(result, factors, more, faults_us), caveats)
    scaled = _scaled_accounts(result.host_only)
    on_host = np.array([account in scaled for account in ACCOUNTS])[result.account]
    own = np.where(on_host, 1.0, own)
    parts = kept_parts(result, own)
    host_us = sum(entry.us for entry in result.ledger.entries if entry.account in scaled and entry.account != _PROFILER)
    trusted_us = sum(entry.us * parts[entry.account] for entry in result.ledger.entries if entry.account not in scaled)
    host = min(max((wall_us - trusted_us) / host_us, 0.0), _MOST_STRETCH) if host_us > 0 else 0.0
    device = min(wall_us / trusted_us, 1.0) if trusted_us > 0 else 1.0
    factors = {account: host if account in scaled else device for account in ACCOUNTS}
    factors[_PROFILER] = 0.0
    unexplained_us = wall_us - host * host_us - device * trusted_us
    more = {_UNKNOWN: unexplained_us} if unexplained_us > 1e-9 * wall_us else {}
    more = _with_faults(result, factors, more, faults_us)
    return rescaled(result, wall_us, factors, own, more, _caveats(result.ledger.wall_us, wall_us, (host, device)))


def _with_faults(
    result: LedgerResult, factors: Mapping[str, float], more: Mapping[str, float], faults_us: tuple[float, float]
) -> dict[str, float]:
    """Charges time without a cause to page faults that the profile lacks.

    It shows those of its own steps, and what the scaled ledger has in the account of memory.
    """
    counted_us, seen_us = faults_us
    shown_us = sum(entry.us * factors[_ALLOCATOR] for entry in result.ledger.entries if entry.account == _ALLOCATOR)
    lacking_us = max(counted_us - max(seen_us, shown_us), 0.0) if result.host_only else 0.0
    us = min(more.get(_UNKNOWN, 0.0), lacking_us)
    if us <= 0:
        return dict(more)
    return {**more, _UNKNOWN: more[_UNKNOWN] - us, _ALLOCATOR: more.get(_ALLOCATOR, 0.0) + us}


# Part of a stretch of Python that is left, however many calls in it were recorded.
_LEAST_LEFT = 0.05


def with_lighter_python(result: LedgerResult, known: Container[str]) -> LedgerResult | None:
    """Gives the result with the time between ops in a lighter window.

    ``known`` are the accounts that such a window can tell. Null where it does not show the same ops.
    """
    is_python = _are_python(result, known)
    us, lightly_us = (result.idle[name].to_numpy(np.float64) for name in ("us", "lightly_us"))
    if not lightly_us[is_python].any():
        return None
    causes = [IDLE_CAUSES.index(cause) for cause in {*result.idle["cause"][is_python]}]
    times = result.idle_times
    shorter = np.where(np.isin(times.cause, causes), times.lightly_us, times.us)
    return _with_idle(result, np.where(is_python, lightly_us, us), replace(times, us=shorter))


def _are_python(result: LedgerResult, known: Container[str]) -> Flags:
    """Marks rows of idle time that are Python in a lighter window."""
    accounts = [f"overhead.{cause}" for cause in result.idle["cause"]]
    return np.array([_kind_of(account, result.host_only, known) == _PYTHON for account in accounts], dtype=bool)


def _without_frames(result: LedgerResult, light: LightAmounts) -> LedgerResult:
    """Takes off what Python took longer than in the lighter window.

    It is taken off where events were recorded.

    Where the lighter window tells the time between the same ops, that is the amount. Else half of an op's record falls
    inside the op, where its cost is seen; the other half is beside it. What Python took longer than that, it was
    recording its calls.
    """
    lighter = with_lighter_python(result, light.us)
    if lighter is not None:
        return lighter
    idle, us = result.idle, result.idle["us"].to_numpy(np.float64)
    is_python = _are_python(result, light.us)
    frames, ops = (np.where(is_python, idle[name].to_numpy(np.float64), 0.0) for name in ("frames", "ops"))
    longer_us = us[is_python].sum() - light.us.get(_PYTHON, 0.0)
    if longer_us <= 0 or not (frames.any() or ops.any()):
        return result
    recorded = _by_kind(result, np.ones(result.kernel_us.size), light.us)
    work = {kind: amount for kind, amount in recorded.items() if kind not in {_PYTHON, _PROFILER}}
    inside_us = sum(max(amount - light.us.get(kind, 0.0), 0.0) for kind, amount in work.items())
    at_ops_us = min(longer_us, inside_us / max(light.ops, 1.0) / 2 * ops.sum()) if frames.any() else longer_us
    beside, during = (
        amount * count / count.sum() if count.any() else count
        for amount, count in ((at_ops_us, ops), (longer_us - at_ops_us, frames))
    )
    left = np.maximum(us - beside - during, _LEAST_LEFT * us)
    by_account = _shorter_accounts(result, left)
    before = {entry.account: entry.us for entry in result.ledger.entries}
    factors = {name: by_account[name] / before_us for name, before_us in before.items() if before_us > 0}
    return _with_idle(result, left, _scaled_times(result.idle_times, factors, {}))


def _with_idle(result: LedgerResult, us: Floats, times: IdleTimes) -> LedgerResult:
    """Gives the result with these amounts of idle time.

    They are row by row and piece by piece.
    """
    by_account = _shorter_accounts(result, us)
    wall_us = sum(by_account.values())
    return replace(result, idle=result.idle.assign(us=us), idle_times=times, ledger=ledger_of(by_account, wall_us))


def _shorter_accounts(result: LedgerResult, us: Floats) -> dict[str, float]:
    """Gives the amounts of the ledger with this idle time.

    Its amounts are row by row of ``idle``.
    """
    by_account = {entry.account: entry.us for entry in result.ledger.entries}
    for cause, before_us, after_us in zip(result.idle["cause"], result.idle["us"], us, strict=True):
        account = f"overhead.{cause}"
        by_account[account] = float(by_account.get(account, 0.0) - before_us + after_us)
    return by_account


def rescaled(
    result: LedgerResult,
    wall_us: float,
    factors: Mapping[str, float],
    own: Floats,
    more: Mapping[str, float],
    caveats: tuple[Caveat, ...],
) -> LedgerResult:
    """Multiplies the accounts of the result and adds unexplained time.

    Rows of KERNELS are also multiplied by their own parts.
    """
    parts = kept_parts(result, own)
    by_account = {account: factor * parts[account] for account, factor in factors.items()}
    accounts = {entry.account: entry.us * by_account[entry.account] for entry in result.ledger.entries}
    more = {account: us for account, us in more.items() if us > 0}
    for account, us in more.items():
        accounts[account] = accounts.get(account, 0.0) + us
    idle = _scaled_idle(result.idle, factors, more)
    return replace(
        result,
        ledger=ledger_of(accounts, wall_us),
        kernel_us=result.kernel_us * np.array([factors[account] for account in ACCOUNTS])[result.account] * own,
        idle=idle,
        idle_times=_scaled_times(result.idle_times, factors, more),
        busy_us=max(wall_us - float(idle["us"].sum()), 0.0),
        caveats=(*result.caveats, *caveats),
    )


def kept_parts(result: LedgerResult, own: Floats) -> dict[str, float]:
    """Gives the part of each account's time without the profiler.

    Only device or op time has such parts (``own``): 1 for accounts without it, and idle time beside it stays.
    """
    total = np.bincount(result.account, weights=result.kernel_us, minlength=len(ACCOUNTS))
    own_us = np.bincount(result.account, weights=result.kernel_us * own, minlength=len(ACCOUNTS))
    account_us = {entry.account: entry.us for entry in result.ledger.entries}
    whole_us = np.maximum([account_us.get(account, 0.0) for account in ACCOUNTS], total)
    parts = 1.0 - np.divide(total - own_us, whole_us, out=np.zeros(len(ACCOUNTS)), where=whole_us > 0)
    return dict(zip(ACCOUNTS, parts.tolist(), strict=True))


def _scaled_accounts(host_only: bool) -> frozenset[str]:
    causes = {key for key, account in ACCOUNTS.items() if account.cause is not None and account.is_scaled}
    # Collectives of a host are threads that wait for other ranks, which the profiler slows down as well.
    return frozenset(causes | {"overhead.launch_floor", "communication"} if host_only else causes)


def _scaled_idle(idle: pd.DataFrame, factors: Mapping[str, float], more: Mapping[str, float]) -> pd.DataFrame:
    scaled = idle.assign(us=idle["us"] * [factors[f"overhead.{cause}"] for cause in idle["cause"]])
    scaled = scaled[(scaled["us"] > 0) | (idle["us"] == 0)]
    causes = [cause for account in more if (cause := ACCOUNTS[account].cause) is not None]
    if not causes:
        return scaled.reset_index(drop=True)
    texts = {name: pd.Series([None] * len(causes), dtype=object) for name in (*IDLE_FIELDS, *NEIGHBOURS)}
    us = [more[f"overhead.{cause}"] for cause in causes]
    extra = pd.DataFrame(
        {"cause": causes, **texts, "us": us, "calls": 0.0, "on_pages": False, **dict.fromkeys(RECORDS, 0.0)}
    )
    extra["on_pages"] = extra["cause"] == ACCOUNTS[_ALLOCATOR].cause
    extra["detail"] = extra["detail"].mask(extra["on_pages"], FAULTS)
    return pd.concat((scaled, extra), ignore_index=True)


def _scaled_times(times: IdleTimes, factors: Mapping[str, float], more: Mapping[str, float]) -> IdleTimes:
    factor = np.array([factors.get(f"overhead.{cause}", 1.0) for cause in IDLE_CAUSES])
    nowhere, nobody = np.full(len(more), np.nan), np.full(len(more), -1)
    causes = np.array([IDLE_CAUSES.index(ACCOUNTS[account].cause or "unknown") for account in more], dtype=np.int64)
    amounts = np.array([*more.values()], dtype=np.float64)
    extra = IdleTimes(causes, nowhere, nowhere, nobody, amounts, amounts)
    return joined([times.scaled(factor[times.cause]), extra])


def _caveats(profiled_us: float, wall_us: float, factors: tuple[float, float]) -> tuple[Caveat, ...]:
    host, device = factors
    scaled = (
        f"host-side causes are scaled by {host:.3g} so that the ledger adds up to the unprofiled step"
        if host > 0
        else "the work alone fills that, and leaves nothing for the host"
    )
    message = f"a step took {format_us(profiled_us)} while profiled and {format_us(wall_us)} unprofiled; {scaled}"
    if device < 1.0:
        message += f"; the work is scaled by {device:.3g} to fit"
    return _with_doubt(Caveat("perturbation", message, _difference(profiled_us, wall_us)), device)


def _light_caveats(profiled_us: float, wall_us: float, light: LightAmounts) -> tuple[Caveat, ...]:
    message = (
        f"a step took {format_us(profiled_us)} while profiled, {format_us(light.profiled_us)} while only ops were and "
        f"{format_us(wall_us)} unprofiled; the ledger's amounts are those with only ops profiled, scaled so that they "
        "add up to the unprofiled step"
    )
    return _with_doubt(Caveat("perturbation", message, _difference(light.profiled_us, wall_us)), light.agreement)


def _difference(one_us: float, other_us: float) -> float:
    return abs(one_us - other_us) / max(one_us, other_us)


def _with_doubt(scaled: Caveat, work: float) -> tuple[Caveat, ...]:
    """Gives the caveat, and another one where work is doubtful.

    The work then had to be scaled by far less than 1.
    """
    if work >= _LEAST_AGREEMENT:
        return (scaled,)
    disturbed = (
        "the work in the profiled steps alone took far longer than whole steps without the profiler: other programs "
        "disturbed this recording"
    )
    return (scaled, Caveat(DISTURBED, disturbed, scaled.share))


# How many times longer the host takes with the ops and one or all of these options recorded: the least and the most of
# the figures in benchmarks/results/run.md.
_HOST_STRETCH = (1.3, 2.3)
_WORTH_A_CAVEAT = 0.05
_LISTED = 3
# What one record costs at most: 0.7 to 1.1 us by option were measured, and slow hosts take several times as long.
# That of an op without options costs less: 53,000 took 25 ms (PPO, torch 2.13, EPYC).
_RECORD_US, _LEAST_RECORD_US = 5.0, 0.4


def find_profiler_cost(linked: Linked, ledger: Ledger, unprofiled: Timing | None) -> tuple[Caveat, ...]:
    """Gives a caveat on the host's accounts that options stretch.

    It is given where no unprofiled step says by how much.

    It holds the shares that these accounts would have with the profiler's cost taken out.
    """
    trace = linked.trace
    recorded = {
        "stacks": linked.places is not None,
        "shapes": bool(trace.signatures["dims"].notna().any()),
        "memory": bool(len(trace.memory)),
    }
    options = [name for name, is_on in recorded.items() if is_on]
    scaled = _scaled_accounts(linked.is_host_only)
    held = sorted((entry for entry in ledger.entries if entry.account in scaled), key=lambda entry: -entry.us)
    share = sum(entry.share for entry in held)
    # A host of few and long calls writes few records.
    cost = _count_records(linked) * _RECORD_US / linked.window.wall_us if linked.window.wall_us > 0 else 0.0
    if unprofiled is not None or not options or min(share, cost) < _WORTH_A_CAVEAT:
        return ()

    def without(part: float) -> str:
        low, high = (part / factor / (1 - share + share / factor) for factor in _HOST_STRETCH[::-1])
        return f"{format_share(low)} to {format_share(high)}"

    amounts = ", ".join(f"{label_of(entry.account)} {without(entry.share)}" for entry in held[:_LISTED])
    least, most = _HOST_STRETCH
    message = (
        f"the profiler slows the host by recording {listed(options)} ({least} to {most} times); without it, its time "
        f"would be {without(share)} of the step, not {format_share(share)} ({amounts})"
    )
    return (Caveat("profiler-cost", message, share),)


def least_record_us(linked: Linked, unprofiled: Timing | None) -> float:
    """Gives the least time that the profiler's records take.

    It is that of ops per step, in a program without a device; 0 where a step without the profiler is known.
    """
    if unprofiled is not None or not linked.is_host_only or not linked.window.steps:
        return 0.0
    return _count_records(linked, ("op",)) * _LEAST_RECORD_US / len(linked.window.steps)


# The profiler writes a record for each of these.
_RECORDED = ("op", "annotation", "collective", "python")


def _count_records(linked: Linked, categories: tuple[str, ...] = _RECORDED) -> int:
    """Counts the profiler's records in the window, without our own hooks."""
    events, window = linked.trace.events, linked.window
    start = events["ts_us"].to_numpy()
    inside = (start >= window.start_us) & (start < window.end_us) & events["category"].isin(categories).to_numpy()
    return int(np.count_nonzero(inside & ~own_stretches(events).hold(start)))


def profiler_us_per_event(linked: Linked, unprofiled: Timing | None) -> float:
    """Gives microseconds that one recorded event costs.

    They are what the profiled steps took longer, over the events in them.

    Our own hooks do not count, neither their time nor the events in them.

    The cost is one per event and not per second (0.7 to 1.1 us by option), so a program of tiny ops is stretched
    several times and one of large ops hardly at all. 0 when no undisturbed step time is known.
    """
    steps, window = len(linked.window.steps), linked.window
    if unprofiled is None or not steps:
        return 0.0
    own, count = own_stretches(linked.trace.events), _count_records(linked)
    own_us = float(own.covered_between(np.array([window.start_us]), np.array([window.end_us]))[0])
    profiled_us = steps * statistics.median(step.us for step in window.steps) if linked.is_host_only else window.wall_us
    return max(0.0, profiled_us - own_us - steps * unprofiled.median) / count if count else 0.0


def subtract_profiler_overhead(
    linked: Linked, unprofiled: Timing | None, floor_us: float | None, light: LightAmounts | None = None
) -> Linked:
    """Takes the profiler's part off the host ops' self times.

    These are KERNELS.dur_us. Device work is kept.

    The profiler's part is what calls of one name take longer than with the fewest options. Where that is not known,
    half of an event's cost falls inside the event, half into the op around it. No op gets shorter than ``floor_us``,
    the least that any op costs on this machine.
    """
    return _without_events(linked, profiler_us_per_event(linked, unprofiled), floor_us, light)


def _without_events(
    linked: Linked, per_event_us: float, floor_us: float | None, light: LightAmounts | None = None
) -> Linked:
    if not linked.is_host_only:
        return linked
    self_us = linked.ops["self_us"].to_numpy()
    part = per_event_us * (1 + linked.ops["children"].to_numpy()) / 2
    if light is not None:
        means, name = _mean_by_name(linked, _inside(linked), "dur_us"), linked.ops["name"].cat
        more_us = [
            max(means[key] - light.op_us[key], 0.0) if key in means and key in light.op_us else np.nan
            for key in map(str, name.categories)
        ]
        longer_us = np.append(more_us, np.nan)[name.codes.to_numpy()]
        part = np.where(np.isnan(longer_us), part, longer_us)
    least = np.minimum(self_us, floor_us or 0.0)
    return replace(linked, kernels=linked.kernels.assign(dur_us=np.maximum(self_us - part, least)))


def own_parts(linked: Linked) -> Floats:
    """Gives the part of each row of KERNELS without the profiler.

    It is 0-1, and 1 for device work.
    """
    if not linked.is_host_only:
        return np.ones(len(linked.kernels))
    self_us, own_us = linked.ops["self_us"].to_numpy(), linked.kernels["dur_us"].to_numpy()
    parts: Floats = np.divide(own_us, self_us, out=np.ones(len(own_us)), where=self_us > 0)
    return parts
