"""Findings about copies from host to device: pageable memory, copies that nothing hides, many small ones, detours.

Only what the device waits for counts: a copy beside running kernels is worth nothing.
"""

from bottleneck.advice.copies import COPY, Copies, copies_to_device, makers, ops_of, saving, waits_us
from bottleneck.advice.draft import Draft, up_to
from bottleneck.advice.measures import Flags, claims_of, format_count, share_of_step, sources_of
from bottleneck.case import Case
from bottleneck.units import US_PER_S, format_share, format_si, format_us

# Below this a copy is a round trip rather than a stream (advice_rules 42).
_SMALL_BYTES = 65536
_WORTH = 0.01
_MANY = 8
# What copies from pinned memory reach of the link that the device table has.
_PINNED_SHARE = 0.8


def pageable_copies(case: Case) -> Draft | None:
    """Rule 40: the driver has to copy pageable memory into a buffer of its own first, while the host waits."""
    copies = copies_to_device(case)
    if copies is None:
        return None
    chosen = copies.pageable & (copies.bytes >= _SMALL_BYTES)
    count, moved, exposed_us = copies.per_step(chosen)
    waits = waits_us(case, "pageable") if count else {}
    if not count or share_of_step(case, exposed_us + sum(waits.values())) < _WORTH:
        return None
    lasted_us = float(copies.dur_us[chosen].sum()) / copies.steps
    pace = moved / lasted_us * US_PER_S if lasted_us > 0 else None
    pinned_per_s = _pinned_bytes_per_s(case, copies, pace)
    streamed_us = moved / pinned_per_s * US_PER_S if pinned_per_s else 0.0
    saved_us = exposed_us * max(0.0, 1 - streamed_us / lasted_us) if lasted_us > 0 else 0.0
    if saved_us + sum(waits.values()) <= 0:
        return None
    claims = {**claims_of(case, COPY, most_us=saved_us), **waits}
    return Draft(
        slug="pageable-copies",
        title="Batches are copied from pageable memory",
        evidence=(
            f"copies from pageable memory, {format_count(count)} per step, move {format_si(moved, 'B')}"
            + (f" at {format_si(pace, 'B/s')}" if pace else ""),
            f"the device does nothing else for {format_us(exposed_us)} of them ({_of_step(case, exposed_us)})",
            *((f"the host is held in the calls for another {format_us(sum(waits.values()))}",) if waits else ()),
            f"from pinned memory they take about {format_us(streamed_us)} at {format_si(pinned_per_s, 'B/s')}"
            if pinned_per_s
            else "how fast this link is with pinned memory is not known",
        ),
        advice="Let the loader put batches into pinned memory, and copy them without waiting.",
        code="loader = DataLoader(dataset, pin_memory=True)\nbatch = batch.to(device, non_blocking=True)",
        gain_us=up_to(saved_us + sum(waits.values())) if pinned_per_s else None,
        gain_reason=None if pinned_per_s else "the speed of this link with pinned memory is not known",
        claims=claims,
        tries=("pin-memory",),
    )


def _pinned_bytes_per_s(case: Case, copies: Copies, pace: float | None) -> float | None:
    """The quickest copy from pinned memory in this trace, else what such copies reach of the device's link.

    Never less than the ``pace`` of those from pageable memory.
    """
    seen = copies.pinned & (copies.bytes >= _SMALL_BYTES) & (copies.dur_us > 0)
    if seen.any():
        return float((copies.bytes[seen] / copies.dur_us[seen]).max()) * US_PER_S
    link = case.analysis.device.link_bytes_per_s
    return None if link is None else max(_PINNED_SHARE * link, pace or 0.0)


def copies_in_the_way(case: Case) -> Draft | None:
    """Rule 41: kernels wait for a copy that could have run beside those of the step before.

    The link is busy as long as before: the step cannot become shorter than its copies.
    """
    copies = copies_to_device(case)
    if copies is None:
        return None
    chosen = ~(copies.bytes < _SMALL_BYTES)
    count, moved, exposed_us = copies.per_step(chosen)
    linked_us = float(copies.dur_us[chosen].sum()) / copies.steps
    hidden_us = min(exposed_us, max(0.0, case.step_us - linked_us))
    if not count or share_of_step(case, hidden_us) < _WORTH:
        return None
    return Draft(
        slug="copies-not-overlapped",
        title="The device waits for its input to be copied",
        evidence=(
            f"copies to the device, {format_count(count)} per step{_sized(moved)}, take {format_us(linked_us)}",
            f"for {format_us(exposed_us)} of that the device computes nothing ({_of_step(case, exposed_us)})",
            *(
                ("they come from pageable memory, which has to be pinned first",)
                if copies.pageable[chosen].any()
                else ()
            ),
            *sources_of(case, ops_of(case, copies.rows[chosen]), most=2),
        ),
        advice="Copy the next batch on a stream of its own while this one is computed.",
        code="with torch.cuda.stream(copying):\n"
        "    following = batch.to(device, non_blocking=True)  # from pinned memory\n"
        "torch.cuda.current_stream().wait_stream(copying)  # before it is used",
        gain_us=up_to(hidden_us),
        claims=claims_of(case, COPY, most_us=hidden_us),
    )


def small_copies(case: Case) -> Draft | None:
    """Rule 42: many copies that are round trips rather than streams."""
    copies = copies_to_device(case)
    return None if copies is None else _many(case, copies, copies.bytes < _SMALL_BYTES)


def _many(case: Case, copies: Copies, small: Flags) -> Draft | None:
    count, moved, exposed_us = copies.per_step(small)
    saved = saving(case, copies, small)
    saved_us = sum(saved.values()) * (1 - 1 / count) if count >= _MANY else 0.0
    if share_of_step(case, saved_us) < _WORTH:
        return None
    waited_us = sum(saved.values()) - min(exposed_us, saved.get(COPY, 0.0))
    return Draft(
        slug="small-copies",
        title="Many small copies go to the device one by one",
        evidence=(
            f"{format_count(count)} copies per step of less than {format_si(_SMALL_BYTES, 'B')}, "
            f"{format_si(moved, 'B')} together",
            f"the device does nothing else for {format_us(exposed_us)}, "
            f"and waits for the host in these calls for {format_us(waited_us)}",
            *sources_of(case, ops_of(case, copies.rows[small]), most=2),
        ),
        advice="Pack them into one copy, or make them on the device.",
        code="packed = torch.cat([each.flatten() for each in small]).to(device, non_blocking=True)\n"
        "small = packed.split([each.numel() for each in small])",
        gain_us=up_to(saved_us),
        claims={account: us * (1 - 1 / count) for account, us in saved.items()},
    )


def made_on_host(case: Case) -> Draft | None:
    """Rule 43: a tensor is filled on the CPU and copied, where the device could fill it itself."""
    copies = copies_to_device(case)
    if copies is None:
        return None
    copying, making = makers(case, copies)
    saved = saving(case, copies, copying)
    if not copying.any() or share_of_step(case, sum(saved.values())) < _WORTH:
        return None
    count, moved, _ = copies.per_step(copying)
    names = list(dict.fromkeys(case.linked.ops["name"].astype(object).to_numpy()[making].tolist()))[:3]
    return Draft(
        slug="made-on-host",
        title="Tensors are made on the CPU and then copied to the device",
        evidence=(
            f"copies, {format_count(count)} per step{_sized(moved)}, follow {', '.join(names)} on the CPU",
            f"they cost {format_us(sum(saved.values()))} of the step: copying, and the device waiting for the call",
            *sources_of(case, making, most=2),
        ),
        advice="Make these tensors on the device.",
        code="mask = torch.zeros(size, device=device)  # not torch.zeros(size).to(device)",
        gain_us=up_to(sum(saved.values())),
        claims=saved,
    )


def _sized(moved: float) -> str:
    """The bytes in brackets; nothing where the trace does not tell them."""
    return f" ({format_si(moved, 'B')})" if moved > 0 else ""


def _of_step(case: Case, us: float) -> str:
    return f"{format_share(share_of_step(case, us))} of the step"


RULES = (pageable_copies, copies_in_the_way, small_copies, made_on_host)
