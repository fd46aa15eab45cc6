"""Removes the profiler's cost from a recording: per op first, then by scaling the ledger to the unprofiled step."""

from collections.abc import Mapping
from dataclasses import asdict, replace

import numpy as np
import pandas as pd

from bottleneck.analysis.idle import IDLE_TEXTS
from bottleneck.analysis.intervals import Floats
from bottleneck.analysis.ledger import IdleTimes, LedgerResult, Overlap, joined_times, ledger_of
from bottleneck.schema.accounts import ACCOUNTS, IDLE_CAUSES, label_of
from bottleneck.schema.analysis import DISTURBED, Caveat, Ledger
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.measurements import Timing
from bottleneck.units import format_share, format_us

# Steps vary between runs. Where the unprofiled step is longer than the host's share times this, the profile does not
# show what took the time, and stretching what it shows would invent causes.
_MOST_STRETCH = 1.25
# The profiler stretches what the host does, but hardly the work itself. Where the work alone exceeds the undisturbed
# step by more than half, the profiled steps are not the steps that were timed.
_LEAST_AGREEMENT = 2 / 3


def scale_to_unprofiled(result: LedgerResult, unprofiled: Timing | None, own: Floats) -> LedgerResult:
    """The same result adding up to the unprofiled median step, with a caveat that shows the factor; itself without one.

    Device work is trusted and waits on the host's side are scaled; on a CPU, the work of ops is trusted as far as it is
    their own (``own``: part of each row of KERNELS, 0-1) and every overhead account scaled. Trusted work that alone
    exceeds the unprofiled step is shortened with it.
    """
    if unprofiled is None or not unprofiled.median > 0 or not result.ledger.wall_us > 0:
        return result
    wall_us, profiled_us = unprofiled.median, result.ledger.wall_us
    scaled = _scaled_accounts(result.host_only)
    host_us = sum(entry.us for entry in result.ledger.entries if entry.account in scaled)
    kept = _kept_parts(result, own)
    trusted_us = sum(entry.us * kept[entry.account] for entry in result.ledger.entries if entry.account not in scaled)
    host = min(max((wall_us - trusted_us) / host_us, 0.0), _MOST_STRETCH) if host_us > 0 else 0.0
    device = min(wall_us / trusted_us, 1.0) if trusted_us > 0 else 1.0
    factors = {account: host if account in scaled else device * kept[account] for account in ACCOUNTS}
    on_host = np.array([account in scaled for account in ACCOUNTS])[result.account]
    row_factors = np.where(on_host, host, device * own)
    accounts = {entry.account: entry.us * factors[entry.account] for entry in result.ledger.entries}
    unexplained_us = wall_us - sum(accounts.values())
    if unexplained_us > 1e-9 * wall_us:
        accounts["overhead.unknown"] = accounts.get("overhead.unknown", 0.0) + unexplained_us
    unexplained_us = unexplained_us if unexplained_us > 1e-9 * wall_us else 0.0
    idle = _scaled_idle(result.idle, factors, unexplained_us)
    overlap_us = asdict(result.overlap)
    factor_of = {name: factors["communication"] if "collective" in name else device for name in overlap_us}
    overlap = {name: us * factor_of[name] for name, us in overlap_us.items()}
    return replace(
        result,
        ledger=ledger_of(accounts, wall_us),
        kernel_us=result.kernel_us * row_factors,
        idle=idle,
        idle_times=_scaled_times(result.idle_times, factors, unexplained_us),
        overlap=Overlap(**{**overlap, "busy_us": max(wall_us - float(idle["us"].sum()), 0.0)}),
        caveats=(*result.caveats, *_caveats(profiled_us, wall_us, (host, device))),
    )


def _kept_parts(result: LedgerResult, own: Floats) -> dict[str, float]:
    """Part of each account's device or op time that is not the profiler's; 1 for accounts without such time."""
    total = np.bincount(result.account, weights=result.kernel_us, minlength=len(ACCOUNTS))
    kept = np.bincount(result.account, weights=result.kernel_us * own, minlength=len(ACCOUNTS))
    parts = np.divide(kept, total, out=np.ones(len(ACCOUNTS)), where=total > 0)
    return dict(zip(ACCOUNTS, parts.tolist(), strict=True))


def _scaled_accounts(host_only: bool) -> frozenset[str]:
    causes = {key for key, account in ACCOUNTS.items() if account.cause is not None and account.is_scaled}
    # Collectives of a host are threads that wait for other ranks, which the profiler slows down as well.
    return frozenset(causes | {"overhead.launch_floor", "communication"} if host_only else causes)


def _scaled_idle(idle: pd.DataFrame, factors: Mapping[str, float], unexplained_us: float) -> pd.DataFrame:
    scaled = idle.assign(us=idle["us"] * [factors[f"overhead.{cause}"] for cause in idle["cause"]])
    if not unexplained_us:
        return scaled
    texts = {name: pd.Series([None], dtype=object) for name in IDLE_TEXTS}
    extra = pd.DataFrame({"cause": ["unknown"], **texts, "us": [unexplained_us], "calls": [0.0]})
    return pd.concat((scaled, extra), ignore_index=True)


def _scaled_times(times: IdleTimes, factors: Mapping[str, float], unexplained_us: float) -> IdleTimes:
    factor = np.array([factors[f"overhead.{cause}"] for cause in IDLE_CAUSES])
    at, unknown = np.array([np.nan]), IDLE_CAUSES.index("unknown")
    extra = IdleTimes(np.array([unknown]), at, at, np.array([-1]), np.array([unexplained_us]))
    return joined_times([times.scaled(factor[times.cause]), extra])


def _caveats(profiled_us: float, wall_us: float, factors: tuple[float, float]) -> tuple[Caveat, ...]:
    host, device = factors
    message = (
        f"a step took {format_us(profiled_us)} while profiled and {format_us(wall_us)} unprofiled; "
        f"host-side causes are scaled by {host:.3g} so that the ledger adds up to the unprofiled step"
    )
    if device < 1.0:
        message += f", and since the work alone took longer than that, it is scaled by {device:.3g} too"
    share = abs(profiled_us - wall_us) / max(profiled_us, wall_us)
    scaled = Caveat("perturbation", message, share)
    if device >= _LEAST_AGREEMENT:
        return (scaled,)
    disturbed = "the work in the profiled steps alone took far longer than whole steps without the profiler: other"
    return (scaled, Caveat(DISTURBED, f"{disturbed} programs disturbed this recording, so record it again", share))


# How many times longer the host takes with the ops and one or all of these options recorded: the least and the most of
# the figures in docs/explanation/accuracy/run.md.
_HOST_STRETCH = (1.3, 2.3)
_WORTH_A_CAVEAT = 0.05
_LISTED = 3


def find_profiler_cost(linked: Linked, ledger: Ledger, unprofiled: Timing | None) -> tuple[Caveat, ...]:
    """A caveat on the host's accounts where options stretch them and no unprofiled step says by how much.

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
    if unprofiled is not None or not options or share < _WORTH_A_CAVEAT:
        return ()

    def without(part: float) -> str:
        low, high = (part / factor / (1 - share + share / factor) for factor in _HOST_STRETCH[::-1])
        return f"{format_share(low)} to {format_share(high)}"

    each = ", ".join(f"{label_of(entry.account)} {without(entry.share)}" for entry in held[:_LISTED])
    least, most = _HOST_STRETCH
    listed = " and ".join(filter(None, [", ".join(options[:-1]), options[-1]]))
    message = (
        f"recording {listed} makes the host {least} to {most} times slower: without the profiler its"
        f" {format_share(share)} of the step would be {without(share)} ({each})"
    )
    return (Caveat("profiler-cost", message, share),)


# The profiler writes a record for each of these.
_RECORDED = ("op", "annotation", "collective", "python")


def profiler_us_per_event(linked: Linked, unprofiled: Timing | None) -> float:
    """Microseconds that one recorded event costs: what the profiled steps took longer, over the events in them.

    The cost is one per event and not per second (0.7 to 1.1 us by option), so a program of tiny ops is stretched
    several times and one of large ops hardly at all. 0 when no undisturbed step time is known.
    """
    steps, window = len(linked.window.steps), linked.window
    if unprofiled is None or not steps:
        return 0.0
    events = linked.trace.events
    start = events["ts_us"].to_numpy()
    inside = (start >= window.start_us) & (start < window.end_us) & events["category"].isin(_RECORDED).to_numpy()
    count = int(np.count_nonzero(inside))
    return max(0.0, window.wall_us - steps * unprofiled.median) / count if count else 0.0


def subtract_profiler_overhead(linked: Linked, unprofiled: Timing | None, floor_us: float | None) -> Linked:
    """The same with the profiler's part taken off the self times of host ops (KERNELS.dur_us); device work is kept.

    Half of an event's cost falls inside the event, half into the op around it. No op gets shorter than
    ``floor_us``, the least that any op costs on this machine.
    """
    if not linked.is_host_only:
        return linked
    per_event_us = profiler_us_per_event(linked, unprofiled)
    self_us = linked.ops["self_us"].to_numpy()
    part = per_event_us * (1 + linked.ops["children"].to_numpy()) / 2
    least = np.minimum(self_us, floor_us or 0.0)
    return replace(linked, kernels=linked.kernels.assign(dur_us=np.maximum(self_us - part, least)))


def own_parts(linked: Linked) -> Floats:
    """Part of each row of KERNELS that is its own and not the profiler's (0-1); 1 for device work."""
    if not linked.is_host_only:
        return np.ones(len(linked.kernels))
    self_us, own_us = linked.ops["self_us"].to_numpy(), linked.kernels["dur_us"].to_numpy()
    parts: Floats = np.divide(own_us, self_us, out=np.ones(len(own_us)), where=self_us > 0)
    return parts
