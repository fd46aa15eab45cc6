"""Findings about many ranks: collectives that nothing hides, and data that all ranks read."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from bottleneck.advice.draft import Draft, up_to
from bottleneck.advice.late import COMMUNICATION, late_rank
from bottleneck.advice.measures import (
    account_us,
    claims_of,
    events_like,
    format_count,
    group_us,
    share_of_step,
)
from bottleneck.case import Case
from bottleneck.records import CollectiveSummary, Interval
from bottleneck.units import format_share, format_si, format_us

# Exposed communication worth a word (advice_rules 48).
_EXPOSED = 0.1
# Below this a message is mostly latency: DDP fills buckets of 25 MB, its first one of 1 MB.
_SMALL_MESSAGE_BYTES = 1e6
_MANY = 4

_COMPRESS = (
    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
)
_BUCKETS = "model = DistributedDataParallel(model, bucket_cap_mb=100, gradient_as_bucket_view=True)"
_SELDOM = "with model.no_sync():  # for all but the last of the batches that are accumulated\n    loss.backward()"
_PREFETCH = "model = FSDP(model, backward_prefetch=BackwardPrefetch.BACKWARD_PRE, forward_prefetch=True)"
_LATER = "work = dist.all_to_all_single(out, inputs, async_op=True)\n...  # what does not need it\nwork.wait()"
# Kind of collective: what to do, and the code; the rest as the empty name says.
_REMEDIES: Mapping[str, tuple[str, str]] = {
    "all_reduce": ("Reduce while the backward pass still runs, less often, or in bf16.", _COMPRESS),
    "all_gather": ("Gather the weights of the next layer while this one computes.", _PREFETCH),
    "reduce_scatter": ("Scatter the gradients of a layer while the next one computes.", _PREFETCH),
    "all_to_all": ("Start the exchange early, compute what does not need it, and wait for it late.", _LATER),
    "": ("Start it early, compute what does not need it, and wait for it late.", _LATER),
}
_IN_ONE = ("Reduce larger buckets: these messages are so small that each mostly waits for its latency.", _BUCKETS)
_LESS_OFTEN = ("Reduce while the backward pass still runs, or less often.", _SELDOM)
_ALL_RANKS = ("Look at all ranks together first: one that comes late would hold the others like this.", None)
_NARROW = frozenset({"bf16", "fp16"})
_WORTH = 0.01

_SAMPLER = re.compile(r"utils[/\\]data[/\\]sampler\.py\(\d+\): __iter__$")
_SHARES_OUT = re.compile(r"utils[/\\]data[/\\]distributed\.py\(\d+\)")
_LOADS = re.compile(r"^enumerate\(DataLoader\)#")
# An iterator that draws samples one by one runs so many times per batch; one over ready indices does not show at all.
_DRAWS = 2


def exposed_communication(case: Case) -> Draft | None:
    """Rule 48: the device has nothing to do but a collective. Waiting for late ranks is not cured by overlap."""
    exposed_us = account_us(case, COMMUNICATION)
    if share_of_step(case, exposed_us) < _EXPOSED:
        return None
    transfer_us, is_known = _transfer_us(case.analysis.collectives)
    hideable_us = min(exposed_us, transfer_us, group_us(case, "compute") + group_us(case, "memory") + _unknown_us(case))
    if share_of_step(case, hideable_us) < _WORTH:
        return None
    alone = not case.analysis.ranks
    advice, code = _ALL_RANKS if alone and not is_known else _remedy(case.analysis.collectives)
    return Draft(
        slug="exposed-communication",
        title="The device waits for collectives that nothing hides",
        evidence=(
            f"collectives hold the step for {format_us(exposed_us)} ({format_share(share_of_step(case, exposed_us))})",
            *(_in_words(one) for one in _largest(case.analysis.collectives)),
            *(
                ("how much of it is waiting for late ranks cannot be told from one rank: give the traces of all",)
                if alone
                else ()
            ),
        ),
        advice=advice,
        code=code,
        gain_us=up_to(hideable_us) if is_known and not alone else Interval(0.0, hideable_us),
        claims=claims_of(case, COMMUNICATION, most_us=hideable_us),
        confidence="medium" if is_known and not alone else "low",
    )


def _transfer_us(collectives: Sequence[CollectiveSummary]) -> tuple[float, bool]:
    """Exposed time that is transfer rather than waiting, per step, and whether the trace tells them apart."""
    told = [one.exposed_us if one.transfer_us is None else min(one.exposed_us, one.transfer_us) for one in collectives]
    unknown_us = math.fsum(one.exposed_us for one in collectives if one.transfer_us is None)
    total_us = math.fsum(one.exposed_us for one in collectives)
    return math.fsum(told), total_us > 0 and unknown_us < 0.5 * total_us


def _unknown_us(case: Case) -> float:
    """Work without a price: it may hide a collective as well as any other."""
    return account_us(case, "unknown", "overhead.launch_floor")


def _largest(collectives: Sequence[CollectiveSummary], most: int = 2) -> list[CollectiveSummary]:
    ranked = sorted(collectives, key=lambda one: -one.exposed_us)
    return [one for one in ranked[:most] if one.exposed_us > 0]


def _remedy(collectives: Sequence[CollectiveSummary]) -> tuple[str, str | None]:
    """What to do about the kind of collective that is exposed the longest."""
    us: dict[str, float] = {}
    for one in collectives:
        us[one.name] = us.get(one.name, 0.0) + one.exposed_us
    name = max(us, key=lambda each: us[each], default="")
    mine = [one for one in collectives if one.name == name]
    sizes = [one.bytes / one.calls for one in mine if one.bytes is not None and one.calls > 0]
    calls = sum(one.calls for one in mine)
    if name == "all_reduce" and calls >= _MANY and len(sizes) == len(mine) and max(sizes) < _SMALL_MESSAGE_BYTES:
        return _IN_ONE
    if name == "all_reduce" and all(one.dtype in _NARROW for one in mine):
        return _LESS_OFTEN
    return _REMEDIES.get(name, _REMEDIES[""])


def _in_words(one: CollectiveSummary) -> str:
    size = f" of {format_si(one.bytes / one.calls, 'B')}" if one.bytes is not None and one.calls > 0 else ""
    waiting = f", of which {format_us(one.wait_us)} waiting" if one.wait_us else ""
    return (
        f"{one.name}{size}, {format_count(one.calls)} per step: {format_us(one.us)}{waiting}; "
        f"{format_us(one.exposed_us)} exposed"
    )


def every_rank_reads_all(case: Case) -> Draft | None:
    """The loader of one of several ranks draws its samples from all of the data: no DistributedSampler deals it out.

    A DistributedSampler hands out ready indices, so that only the batch sampler runs, once per batch. One that draws
    samples at random runs for each of them.
    """
    world = case.linked.trace.world_size or case.analysis.recording.world_size or 1
    draws = events_like(case, _SAMPLER)
    if world < 2 or not draws.size or events_like(case, _SHARES_OUT).size:
        return None
    batches = events_like(case, _LOADS).size
    codes = case.linked.trace.events["name"].cat.codes.to_numpy()[draws]
    if np.unique(codes).size < 2 or int(np.bincount(codes).max()) < _DRAWS * max(batches, 1):
        return None
    return Draft(
        slug="every-rank-reads-all",
        title="Each rank draws its samples from all of the data",
        evidence=(
            f"{world} ranks, and the sampler of this one runs {format_count(draws.size / case.steps)} times per step",
            "a DistributedSampler would not show between batches: it deals out its indices once per epoch",
        ),
        advice="Give every rank a part of the data of its own.",
        code="sampler = DistributedSampler(dataset)\nloader = DataLoader(dataset, sampler=sampler)\n"
        "sampler.set_epoch(epoch)  # before each epoch",
        gain_us=None,
        gain_reason=f"a step takes as long as before, but an epoch {world} times fewer of them",
    )


RULES = (late_rank, exposed_communication, every_rank_reads_all)
