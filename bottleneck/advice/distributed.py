"""Rules of several ranks.

They concern exposed collectives, ranks that arrive late, and data that all ranks read.
"""

import math
import re
import shlex
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import has_backward_pass
from bottleneck.advice.quantities import (
    claims_of,
    format_count,
    format_per_step,
    idle_lines,
    idle_rows,
    outermost_spans,
    rows_of_events,
)
from bottleneck.advice.ranking import Draft, Transformation, up_to
from bottleneck.schema.accounts import UNMODELLED_ACCOUNTS, phrase_of
from bottleneck.schema.analysis import CollectiveSummary, Interval, LedgerEntry, RankSummary
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.job import SlowRank
from bottleneck.schema.op_names import LOADER_FETCH, OPTIMIZER_STEP, at_source
from bottleneck.units import US_PER_S, counted, format_share, format_si, format_us

COMMUNICATION = "communication"

# Lateness worth a word (advice_rules 49), and the part of it that an account must hold to be named.
_LATE, _LEAST_PART = 0.1, 0.1
# The part of the delay that an account must hold to be what is to be looked for.
_MOST_OF_DELAY = 0.5
# Another rank may come nearly as late as this one.
_SURE_OF_A_LINE = 0.7


class _Late(Struct, frozen=True):
    """The rank that the others wait for.

    It has how long they wait per step, and what takes it longer than them, longest first. ``waited_us`` counts by when
    the ranks come to their collectives, from half of by how much longer the others are in them.
    """

    rank: RankSummary
    waited_us: Interval
    longer: tuple[tuple[str, float], ...]


def late_rank(evidence: Evidence) -> Draft | None:
    """Finds one rank that the others wait for in collectives (rule 49).

    The step can lose no more than they wait.
    """
    calls = math.fsum(one.calls for one in evidence.analysis.collectives)
    late = _find_late(evidence.analysis.ranks, calls)
    if late is None or evidence.share_of_step(late.waited_us.high) < _LATE:
        return None
    number, waited_us = late.rank.rank, late.waited_us.high
    slow = _at_one_line(evidence, number)
    # The longest part of the delay, if it is a wait whose line is known.
    cause = late.longer[0][0].removeprefix("overhead.") if late.longer else ""
    has_line = any(row.source for row in idle_rows(evidence, cause)[:1])
    return Draft(
        slug="late-rank",
        title=f"The other ranks wait for rank {number}",
        evidence=(
            f"the other ranks wait {format_us(waited_us)} per step in collectives for rank {number} "
            f"({format_share(evidence.share_of_step(waited_us))})",
            *(
                [
                    f"it spends {format_us(slow.line_us or 0)} per step {at_source(slow.line)}, the others "
                    f"{format_us(slow.usual_line_us or 0)}"
                ]
                if slow is not None
                else []
            ),
            f"it comes {format_us(late.rank.skew_us or 0.0)} after the first to each of {format_count(calls)} per step",
            *(
                f"it spends {format_us(us)} more in {phrase_of(name)}"
                for name, us in late.longer[:2]
                if us >= _LEAST_PART * waited_us
            ),
            *(idle_lines(evidence, cause, most=1) if has_line and late.rank.wall_us == evidence.step_us else ()),
        ),
        advice=_what_to_find(late, waited_us)
        if slow is None
        else f"Take what rank {number} alone does {at_source(slow.line)} out of its step, or share it among the ranks.",
        places=() if slow is None else (slow.line,),
        code=_report_of(late.rank.path, evidence.analysis.recording.path),
        gain_us=late.waited_us if slow is None else _without_line(slow, late.waited_us),
        claims=_claims(late),
    )


def _report_of(path: str, read: str) -> str | None:
    """Gives the command that reports on a rank.

    Null where that is the report which is read.
    """
    return None if path == read else f"# diagnosis: bottleneck report {shlex.quote(path)}"


def _what_to_find(late: _Late, waited_us: float) -> str:
    """Says what to look for in a late rank that no line explains."""
    where = "its input, its share of the data, its machine"
    name, us = late.longer[0] if late.longer else ("", 0.0)
    if us < _MOST_OF_DELAY * waited_us:
        return f"Find what rank {late.rank.rank} does longer than the others: {where}."
    return f"Find why rank {late.rank.rank} takes {format_us(us)} more in {phrase_of(name)} than the others: {where}."


def _at_one_line(evidence: Evidence, number: int) -> SlowRank | None:
    """Gives the slow rank of this number if one line delays it.

    That source line holds most of its delay.
    """
    slow = () if evidence.analysis.job is None else evidence.analysis.job.slow
    return next((one for one in slow if one.ranks == (number,) and one.line is not None), None)


def _without_line(slow: SlowRank, waited_us: Interval) -> Interval:
    """Gives the gain of a step without the rank's own line.

    It is the time of what the rank alone does there, as far as the others wait for it.
    """
    alone_us = max((slow.line_us or 0.0) - (slow.usual_line_us or 0.0), 0.0)
    high_us = min(alone_us, max(waited_us.high, slow.cost_us))
    return Interval(_SURE_OF_A_LINE * high_us, high_us)


def _claims(late: _Late) -> dict[str, float]:
    """Gives the accounts that explain the delay, with their times.

    They are those in which the rank takes longer than the others, then its largest ones.
    """
    own = {name: us for name, us in _by_account(late.rank.ledger).items() if name != COMMUNICATION}
    first = dict(late.longer)
    claims: dict[str, float] = {}
    for name in (*first, *sorted(own, key=lambda account: -own[account])):
        open_us = late.waited_us.high - math.fsum(claims.values())
        claims[name] = claims.get(name, 0.0) + min(first.pop(name, own[name] - claims.get(name, 0.0)), open_us)
    return {name: us for name, us in claims.items() if us > 0}


def _find_late(ranks: Sequence[RankSummary], calls: float) -> _Late | None:
    """Finds the rank that comes last on average to collectives.

    ``calls`` is their number per step. Null where none could be matched. Ranks that are late in turns wait for one
    another: only what one is late beyond the others counts.
    """
    timed_ranks = [rank for rank in ranks if rank.skew_us is not None]
    if len(timed_ranks) < 2 or len(timed_ranks) < len(ranks):
        return None
    late = max(timed_ranks, key=lambda rank: rank.skew_us or 0.0)
    own = _by_account(late.ledger)
    others = [rank for rank in timed_ranks if rank is not late]
    ledgers = [_by_account(rank.ledger) for rank in others]
    names = dict.fromkeys([*own, *(name for ledger in ledgers for name in ledger)])
    usual = {name: float(np.mean([ledger.get(name, 0.0) for ledger in ledgers])) for name in names}
    beyond_us = (late.skew_us or 0.0) - float(np.mean([rank.skew_us or 0.0 for rank in others]))
    waits_us = usual.get(COMMUNICATION, 0.0)
    high_us = max(0.0, min(beyond_us * calls, waits_us, late.wall_us - own.get(COMMUNICATION, 0.0)))
    low_us = min(high_us, max(0.0, waits_us - own.get(COMMUNICATION, 0.0))) / 2
    longer = {name: own.get(name, 0.0) - usual[name] for name in names if name != COMMUNICATION}
    ranked = sorted(((name, us) for name, us in longer.items() if us > 0), key=lambda item: -item[1])
    return _Late(late, Interval(low_us, high_us), tuple(ranked))


def _by_account(ledger: Sequence[LedgerEntry]) -> dict[str, float]:
    return {entry.account: entry.us for entry in ledger}


# Exposed communication worth a word (advice_rules 48).
_EXPOSED = 0.1
# Below this a message is mostly latency: DDP fills buckets of 25 MB, its first one of 1 MB.
_SMALL_MESSAGE_BYTES, _BUCKET_BYTES = 1e6, 25e6
_MANY = 8

_COMPRESS = (
    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
)
# The hook for bf16 asks for NCCL or XCCL; that for fp16 does not.
_COMPRESS_BY_GLOO = _COMPRESS.replace("bf16_", "fp16_")
_GLOO = re.compile(r"^gloo:")
_BUCKETS = (
    "model = DistributedDataParallel(model, bucket_cap_mb=25)  # in place of one all_reduce per parameter\n"
    "flat = torch.cat([each.grad.flatten() for each in parameters])  # or by hand\n"
    "dist.all_reduce(flat)"
)
_SELDOM = "with model.no_sync():  # for all but the last of the batches that are accumulated\n    loss.backward()"
_PREFETCH = "model = FSDP(model, backward_prefetch=BackwardPrefetch.BACKWARD_PRE, forward_prefetch=True)"
_LATER = "work = dist.all_to_all_single(out, inputs, async_op=True)\n...  # what does not need it\nwork.wait()"
# Kind of collective: what to do, and the code; the rest as the empty name says.
_REMEDIES: Mapping[str, tuple[str, str]] = {
    "all_reduce": ("Reduce while the backward pass still runs, less often, or in half precision.", _COMPRESS),
    "all_gather": ("Gather the weights of the next layer while this one computes.", _PREFETCH),
    "reduce_scatter": ("Scatter the gradients of a layer while the next one computes.", _PREFETCH),
    "all_to_all": ("Start the exchange early, compute what does not need it, and wait for it late.", _LATER),
    "": ("Start it early, compute what does not need it, and wait for it late.", _LATER),
}
_OF_GRADIENTS = frozenset({"all_reduce", "reduce_scatter"})
_TOGETHER = (
    "Send these few bytes together with others or less often: a message so small mostly waits for its latency.",
    "sent = torch.cat([each.flatten() for each in few])  # one message for all of them",
)
# Sums of a layer that is split over ranks: no gradients, and needed at once.
_SPLIT_LAYERS = (
    "These sums belong to layers that are split over ranks, and the next layer needs them at once: {}run other work "
    "beside them (sequence parallelism, two halves of the batch in turns), or split layers over fewer ranks.",
    "parallelize_module(block, mesh, plan)  # with SequenceParallel(): reduce-scatter and all-gather in place of each",
)
_HALVED = "keep activations in bf16, which halves the bytes, "
_LESS_OFTEN = ("Reduce while the backward pass still runs, or less often.", _SELDOM)
# What moves fewer bytes, by the kind that is exposed longest; in any type but a narrow one, halving it does first.
_FEWER_WEIGHTS = (
    "Move fewer bytes: shard within a node only and replicate between nodes (HSDP), keep weights gathered after the "
    "forward pass, or compute more tokens per gather (larger micro-batch, gradients accumulated before they are sent).",
    'mesh = init_device_mesh("cuda", (nodes, per_node), mesh_dim_names=("replicate", "shard"))\n'
    "fully_shard(block, mesh=mesh, reshard_after_forward=False)  # or ShardingStrategy.HYBRID_SHARD",
)
_FEWER_BYTES: Mapping[str, tuple[str, str]] = {
    "all_gather": _FEWER_WEIGHTS,
    "reduce_scatter": _FEWER_WEIGHTS,
    "all_reduce": (
        "Move fewer bytes per sample: take a larger batch on each rank, or accumulate gradients over several batches "
        "before they are reduced.",
        _SELDOM,
    ),
    "": (
        "Move fewer bytes: send only what the receiver uses, in a narrower type, or do more work per exchange.",
        "dist.all_to_all_single(out, inputs.to(torch.bfloat16))  # half of the bytes",
    ),
}
_NARROWER = "Send in bf16, which halves the bytes. "
# Of their time, what calls of one size take beyond the quickest where the link paces them: a busy link varies so. Of
# the step, what a busy link fills.
_STEADY, _LINK_FILLED, _CALLS_ALIKE = 0.15, 0.9, 3
# Transfers so many times as long as all work beside them are hidden by it for the smaller part.
_BEYOND_WORK = 2.0
# Of what the device's slot carries: ranks that reach less of it do not talk over any link of their machine as it can.
_SLOW_LINK = 0.2
_FEWER_AT_LEAST, _UNSEEN = 0.25, 0.001
_MORE_SAMPLES = (0.5, 0.75)
_ALL_RANKS = ("Look at all ranks together first: one that comes late would hold the others like this.", None)
_ONE_RANK = "one rank does not show how much of it is waiting for late ranks: give the traces of all"
_AT_MOST = "that is the most that the transfer takes: only the traces of all ranks show if each call waits alike"
_NARROW = frozenset({"bf16", "fp16"})
_LEAST_SHARE = 0.01

_SAMPLER = re.compile(r"utils[/\\]data[/\\]sampler\.py\(\d+\): __iter__$")
_SHARES_OUT = re.compile(r"utils[/\\]data[/\\]distributed\.py\(\d+\)")
# An iterator that draws samples one by one runs so many times per batch; one over ready indices does not show at all.
_DRAWS = 2


def exposed_communication(evidence: Evidence) -> Draft | None:
    """Finds collectives with no other work beside them (rule 48).

    Waiting for late ranks is not cured by overlap, nor is a link that is never free.
    """
    small = _small_all_reduces(evidence)
    others = [one for one in evidence.analysis.collectives if one not in small]
    exposed_us = evidence.account_us(COMMUNICATION) - math.fsum(one.exposed_us for one in small)
    if evidence.share_of_step(exposed_us) < _EXPOSED:
        return None
    # Unmodelled work may hide a collective as well as any other.
    unmodelled_us = evidence.account_us(*UNMODELLED_ACCOUNTS, "overhead.launch_floor")
    work_us = evidence.group_us("compute") + evidence.group_us("memory") + unmodelled_us
    link_us = math.fsum(one.us for one in others)
    is_filled = link_us >= min(_LINK_FILLED * evidence.step_us, _BEYOND_WORK * work_us)
    if is_filled and transfers_steadily(evidence) and _reduces_gradients(evidence, others):
        return _fewer_bytes(evidence, others, exposed_us)
    if (seldom := _reduced_too_often(evidence, others, exposed_us)) is not None:
        return seldom
    transfer_us, is_known = _transfer_us(others)
    hideable_us = min(exposed_us, transfer_us, work_us)
    if evidence.share_of_step(hideable_us) < _LEAST_SHARE:
        return None
    alone = not evidence.analysis.ranks and not transfers_steadily(evidence)
    advice, code = _ALL_RANKS if alone and not is_known else _remedy(evidence, others)
    if not alone and code == _COMPRESS and (halved := _halved(evidence, others)) is not None:
        return halved
    return Draft(
        slug="exposed-communication",
        title=_NOT_HIDDEN,
        evidence=(*_held_by(evidence, others, exposed_us), *((_ONE_RANK,) if alone else ())),
        advice=advice,
        code=_by_backend(evidence, code),
        gain_us=up_to(hideable_us) if is_known and not alone else Interval(0.0, hideable_us),
        claims=claims_of(evidence, COMMUNICATION, most_us=hideable_us),
        confidence="medium" if is_known and not alone else "low",
        transformation=Transformation(("overlap collective",), 0.5 if is_known and not alone else 0.0),
    )


def _by_backend(evidence: Evidence, code: str | None) -> str | None:
    """The code with a hook that the backend of these collectives takes."""
    is_gloo = code == _COMPRESS and rows_of_events(evidence, _GLOO).size > 0
    return _COMPRESS_BY_GLOO if is_gloo else code


def _held_by(evidence: Evidence, collectives: Sequence[CollectiveSummary], exposed_us: float) -> tuple[str, ...]:
    """Words how long collectives hold the step, and the largest of them."""
    share = format_share(evidence.share_of_step(exposed_us))
    held = f"collectives hold the step for {format_us(exposed_us)} ({share})"
    return held, *(_in_words(one) for one in _largest(collectives))


_NOT_HIDDEN = "The device waits for collectives that nothing hides"
_DDP_FORWARD = re.compile(r"^DistributedDataParallel\.forward$")
# Of what fewer reductions spare: late ranks are waited for at the one that stays, and the last one may be hidden less.
_SURE_OF_SELDOM = 0.5


def _reduced_too_often(evidence: Evidence, collectives: Sequence[CollectiveSummary], exposed_us: float) -> Draft | None:
    """Writes the draft on gradients that are reduced for each micro-batch.

    The model runs forward several times for one step of the optimizer, and each gradient is summed as often. Gain: what
    is exposed of all sums but one, from half of it.
    """
    passes = rows_of_events(evidence, _DDP_FORWARD).size / evidence.steps
    updates = outermost_spans(evidence, OPTIMIZER_STEP).start.size / evidence.steps
    sums = [one for one in collectives if one.name == "all_reduce"]
    if updates != 1 or passes < 2 or not sums or any(round(one.calls) < round(passes) for one in sums):
        return None
    spared_us = exposed_us * (1 - 1 / passes)
    return Draft(
        slug="exposed-communication",
        title="Gradients are reduced for each of the batches that are accumulated",
        evidence=(
            f"the model runs forward {counted(format_count(passes), 'time')} for one step of the optimizer, and each "
            "gradient is reduced as often",
            *_held_by(evidence, collectives, exposed_us),
        ),
        advice="Reduce the gradients with the last of the accumulated batches only: run the others under "
        "model.no_sync(), forward pass included.",
        brief="Reduce gradients with the last of the accumulated batches only (no_sync)",
        code=_SELDOM,
        gain_us=Interval(_SURE_OF_SELDOM * spared_us, spared_us),
        claims=claims_of(evidence, COMMUNICATION, most_us=spared_us),
    )


_HALF = "set collective=0.5x"
# A hook reads fp32 and writes bf16, then the other way round: bytes for each byte of a gradient.
_CAST_BYTES = 3.0


def _halved(evidence: Evidence, collectives: Sequence[CollectiveSummary]) -> Draft | None:
    """Writes the draft on gradients that half of their bytes hide best.

    They are in fp32, and no overlap hides them as well. A replay tells both: each message begins when its gradients are
    ready, and halving it also frees the link for the next one. At least, what was waiting stays, and the casts come on
    top. Null where overlap saves as much, or where the steps cannot be replayed.
    """
    if evidence.predict is None or any(one.name != "all_reduce" or one.dtype != "fp32" for one in collectives):
        return None
    us = math.fsum(one.us for one in collectives)
    waiting = math.fsum(one.wait_us or 0.0 for one in collectives) / us
    changes = (_HALF, f"set collective={0.5 + waiting / 2:.4f}x", "overlap collective")
    high_us, waiting_us, overlapped_us = (evidence.predict(evidence, (change,)) for change in changes)
    if high_us is None or waiting_us is None or overlapped_us is None or high_us <= overlapped_us:
        return None
    bandwidth = evidence.analysis.device.bandwidth_bytes_per_s
    nbytes = math.fsum(one.bytes or 0.0 for one in collectives)
    casts_us = 0.0 if bandwidth is None else _CAST_BYTES * nbytes / bandwidth * US_PER_S
    low_us = max(min(waiting_us, high_us) - casts_us, 0.0)
    exposed_us = math.fsum(one.exposed_us for one in collectives)
    return Draft(
        slug="exposed-communication",
        title=_NOT_HIDDEN,
        evidence=(
            *_held_by(evidence, collectives, exposed_us),
            f"a replay with messages of half the bytes takes {format_us(high_us)} less, one in which nothing waits for "
            f"them {format_us(overlapped_us)}; casts take about {format_us(casts_us)}",
        ),
        advice="Reduce gradients in half precision, by a hook that halves their bytes; or less often: accumulate "
        "gradients over several batches (no_sync).",
        brief="Reduce gradients in half precision (a hook halves their bytes), or less often",
        code=_by_backend(evidence, _COMPRESS),
        gain_us=Interval(low_us, high_us),
        claims=claims_of(evidence, COMMUNICATION, most_us=high_us),
        transformation=Transformation((_HALF,), low_us / high_us),
    )


_SEND_RECV = "send_recv"
# Between stages of a pipeline: of the step in waits that nothing hides, and of these calls' time what is no transfer.
_BUBBLE, _MOSTLY_WAITS = 0.1, 0.8
# Twice as many micro-batches of half the size halve the bubble; four times as many leave a quarter.
_LESS_BUBBLE = (0.3, 0.75)


def pipeline_bubble(evidence: Evidence) -> Draft | None:
    """Finds a stage of a pipeline that waits for its neighbours.

    It waits in calls that send or receive, far longer than their bytes take. Gain: 30 to 75 % of these waits.
    """
    waits = [one for one in evidence.analysis.collectives if one.name == _SEND_RECV]
    waiting = [one for one in waits if one.wait_us is not None and one.wait_us >= _MOSTLY_WAITS * one.us]
    exposed_us = math.fsum(one.exposed_us for one in waiting)
    if evidence.share_of_step(exposed_us) < _BUBBLE:
        return None
    moved_us = math.fsum(one.transfer_us or 0.0 for one in waiting)
    return Draft(
        slug="pipeline-bubble",
        title="This stage of a pipeline waits for its neighbours",
        evidence=(
            f"{counted(format_count(math.fsum(one.calls for one in waiting)), 'call')} per step that send or receive "
            f"hold the device for {format_us(exposed_us)} ({format_share(evidence.share_of_step(exposed_us))}) beyond "
            "other work",
            f"the quickest calls of their sizes need {format_us(moved_us)} for all of them: the rest is waiting",
        ),
        advice="Cut the batch into more micro-batches, or interleave the stages (virtual stages, zero bubble): while "
        "the first and the last micro-batch pass, stages wait. If one stage takes longer than the others, move layers.",
        brief="Cut the batch into more micro-batches, or interleave the stages",
        code="schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4 * world_size)  # in torch.distributed",
        gain_us=Interval(_LESS_BUBBLE[0] * exposed_us, _LESS_BUBBLE[1] * exposed_us),
        claims=claims_of(evidence, COMMUNICATION, most_us=_LESS_BUBBLE[1] * exposed_us),
    )


def transfers_steadily(evidence: Evidence) -> bool:
    """True if calls of one size take alike.

    The link paces them then, and not a rank that is late now and then.
    """
    exposed = [one for one in evidence.analysis.collectives if one.exposed_us > 0]
    alike = [one for one in exposed if one.wait_us is not None and one.calls * evidence.steps >= _CALLS_ALIKE]
    exposed_us = math.fsum(one.exposed_us for one in exposed)
    waiting_us, us = math.fsum(one.wait_us or 0.0 for one in alike), math.fsum(one.us for one in alike)
    mostly = math.fsum(one.exposed_us for one in alike) >= _LINK_FILLED * exposed_us
    return bool(alike) and mostly and waiting_us <= _STEADY * us


def _fewer_bytes(evidence: Evidence, collectives: Sequence[CollectiveSummary], exposed_us: float) -> Draft:
    """Writes the draft on a link that carries more than overlap can hide.

    Half of them at most, from a quarter of it. Of gradients that are narrow already it is the samples per reduction
    that grow: twice as many halve the exposed time of each, four times leave a quarter.
    """
    longest = max(collectives, key=lambda one: one.exposed_us)
    advice, code = _FEWER_BYTES.get(longest.name, _FEWER_BYTES[""])
    is_narrow = longest.dtype is None or longest.dtype in _NARROW
    link_us = math.fsum(one.us for one in collectives)
    is_full, is_seldom = link_us >= _LINK_FILLED * evidence.step_us, is_narrow and longest.name == "all_reduce"
    half_us = min(exposed_us, link_us / 2)
    gain_us = Interval(*(part * exposed_us for part in _MORE_SAMPLES))
    first, pace = _pace(evidence, longest)
    return Draft(
        slug="exposed-communication",
        title="The link carries bytes during nearly the whole step"
        if is_full
        else "The link carries bytes for longer than there is work to hide them",
        evidence=(
            f"collectives hold the step for {format_us(exposed_us)} "
            f"({format_share(evidence.share_of_step(exposed_us))})",
            *(_in_words(one) for one in _largest(collectives)),
            f"calls of one size take alike{pace}"
            + (", and follow one another: starting them earlier saves nothing" if is_full else ""),
            *((_AT_MOST,) if not evidence.analysis.ranks else ()),
        ),
        advice=f"{first}{'' if is_narrow else _NARROWER}{advice}",
        brief=_LOOK_AT_LINK if first and is_seldom else None,
        code=code,
        gain_us=gain_us if is_seldom else Interval(_FEWER_AT_LEAST * half_us, half_us),
        claims=claims_of(evidence, COMMUNICATION, most_us=gain_us.high if is_seldom else half_us),
        confidence="medium" if evidence.analysis.ranks else "low",
        per="sample" if is_seldom else "step",
        transformation=None if is_seldom else Transformation((_HALF,), _FEWER_AT_LEAST),
    )


_LOOK_AT_LINK = "All-reduce less often (no_sync()), and see which link is used (NCCL_DEBUG=INFO)"


def _pace(evidence: Evidence, one: CollectiveSummary) -> tuple[str, str]:
    """Words the rate of a collective.

    As advice where it is slow for any link, and as evidence.
    """
    rate, slot = one.bus_bytes_per_s, evidence.analysis.device.link_bytes_per_s
    if rate is None:
        return "", ""
    words = f" at {format_si(rate, 'B/s')}"
    if slot is None or rate >= _SLOW_LINK * slot or _is_small(one):
        return "", words
    first = f"Look at the transport first, which moves {format_si(rate, 'B/s')} (NCCL_DEBUG=INFO names it). "
    return first, f"{words}, where the slot of this device carries {format_si(slot, 'B/s')}"


def _reduces_gradients(evidence: Evidence, collectives: Sequence[CollectiveSummary]) -> bool:
    """False where the longest exposed sums are of layers that are split."""
    longest = max(collectives, key=lambda one: one.exposed_us, default=None)
    return longest is None or longest.name != "all_reduce" or not _is_of_split_layers(evidence, longest)


def _transfer_us(collectives: Sequence[CollectiveSummary]) -> tuple[float, bool]:
    """Gives the exposed time that is transfer rather than waiting, per step.

    The second result is true if the trace separates the two.
    """
    transfers_us = [
        one.exposed_us if one.transfer_us is None else min(one.exposed_us, one.transfer_us) for one in collectives
    ]
    unknown_us = math.fsum(one.exposed_us for one in collectives if one.transfer_us is None)
    total_us = math.fsum(one.exposed_us for one in collectives)
    return math.fsum(transfers_us), total_us > 0 and unknown_us < 0.5 * total_us


def _largest(collectives: Sequence[CollectiveSummary], most: int = 2) -> list[CollectiveSummary]:
    ranked = sorted(collectives, key=lambda one: -one.exposed_us)
    return [one for one in ranked[:most] if one.exposed_us > 0]


def _remedy(evidence: Evidence, collectives: Sequence[CollectiveSummary]) -> tuple[str, str | None]:
    """Gives advice for the collective that is exposed longest.

    It is by its kind and the size of its messages. Weights are gathered in messages of megabytes: what is known to be
    smaller, or has no known size, is something else. Without a backward pass nothing reduces gradients.
    """
    us: dict[str, float] = {}
    for one in collectives:
        us[one.name] = us.get(one.name, 0.0) + one.exposed_us
    name = max(us, key=lambda kind: us[kind], default="")
    mine = [one for one in collectives if one.name == name]
    longest = max(mine, key=lambda one: one.exposed_us, default=None)
    size = None if longest is None else _message_bytes(longest)
    if longest is not None and _is_small(longest):
        return _TOGETHER
    if size is None and _REMEDIES.get(name, _REMEDIES[""])[1] == _PREFETCH:
        return _REMEDIES[""]
    if name == "all_reduce" and longest is not None and _is_of_split_layers(evidence, longest):
        return _SPLIT_LAYERS[0].format("" if longest.dtype in _NARROW else _HALVED), _SPLIT_LAYERS[1]
    if name in _OF_GRADIENTS and not _trains(evidence):
        return _REMEDIES[""]
    if name == "all_reduce" and all(one.dtype in _NARROW for one in mine):
        return _LESS_OFTEN
    return _REMEDIES.get(name, _REMEDIES[""])


def _is_of_split_layers(evidence: Evidence, one: CollectiveSummary) -> bool:
    """True for an all-reduce that belongs to split layers, by its size.

    Its size is also summed before the backward pass of a step, or the step has none. Gradients are summed during the
    backward pass or after it.
    """
    return not _trains(evidence) or bool(one.forward_calls)


# Of lists of tensors, as optimizers and gradient clipping take them.
_UPDATES = re.compile(r"^aten::_(?:foreach|fused)_")


def _trains(evidence: Evidence) -> bool:
    """True for a step with a backward pass, or with updates.

    Updates are ops on lists of tensors. A trace may hold them alone: compiled backward passes, and those of another
    thread, need not be in it.
    """
    return has_backward_pass(evidence) or any(_UPDATES.match(name) for name in evidence.op_sums)


def _message_bytes(one: CollectiveSummary) -> float | None:
    """Gives the payload of one call.

    Null where unknown.
    """
    return one.bytes / one.calls if one.bytes is not None and one.calls > 0 else None


def _is_small(one: CollectiveSummary) -> bool:
    """True for messages whose time is mostly latency, by their size."""
    size = _message_bytes(one)
    return size is not None and size < _SMALL_MESSAGE_BYTES


def small_all_reduces(evidence: Evidence) -> Draft | None:
    """Many all-reduces of few bytes: each costs a latency that buckets share.

    The gain is all of them but one per bucket of 25 MB: at most their exposed time, at least what the quickest of them
    takes for each, because no wait for late ranks is in that.
    """
    small = _small_all_reduces(evidence)
    calls, moved, spent_us, exposed_us = (
        math.fsum(getattr(one, name) for one in small) for name in ("calls", "bytes", "us", "exposed_us")
    )
    if evidence.share_of_step(exposed_us) < _LEAST_SHARE or spent_us <= 0:
        return None
    spared = 1 - max(1.0, math.ceil(moved / _BUCKET_BYTES)) / calls
    quickest_us = min((one.us if one.transfer_us is None else one.transfer_us) / one.calls for one in small)
    high_us = spared * exposed_us
    low_us = min(high_us, spared * calls * quickest_us * exposed_us / spent_us)
    return Draft(
        slug="small-all-reduces",
        title="Many small all-reduces run one by one",
        evidence=(
            f"{format_count(calls)} all-reduces per step of {format_si(moved / calls, 'B')} on average, "
            f"{format_si(moved, 'B')} together",
            f"they hold the step for {format_per_step(evidence, exposed_us)}; the quickest takes "
            f"{format_us(quickest_us)}",
            *(_in_words(one) for one in _largest(small)),
        ),
        advice="Reduce gradients in buckets: a message so small mostly waits for its latency.",
        code=_BUCKETS,
        gain_us=Interval(low_us, high_us),
        claims=claims_of(evidence, COMMUNICATION, most_us=high_us),
    )


def _small_all_reduces(evidence: Evidence) -> list[CollectiveSummary]:
    """Gives all-reduces whose messages are mostly latency.

    None where they are few, or reduce no gradients. Layers of a model that is split over ranks need their results one
    after the other, so those cannot be joined.
    """
    if not has_backward_pass(evidence):
        return []
    reduces = [(one, _message_bytes(one)) for one in evidence.analysis.collectives if one.name == "all_reduce"]
    small = [
        one
        for one, size in reduces
        if size is not None and size < _SMALL_MESSAGE_BYTES and not _is_of_split_layers(evidence, one)
    ]
    return small if math.fsum(one.calls for one in small) >= _MANY else []


def _in_words(one: CollectiveSummary) -> str:
    payload = _message_bytes(one)
    size = "" if payload is None else f" of {format_si(payload, 'B')}"
    waiting_us = one.wait_us or 0.0
    waiting = f", of which {format_us(waiting_us)} waiting" if waiting_us > _UNSEEN * one.us else ""
    return (
        f"{one.name}{size}, {format_count(one.calls)} per step: {format_us(one.us)}{waiting}; "
        f"{format_us(one.exposed_us)} exposed"
    )


def every_rank_reads_all(evidence: Evidence) -> Draft | None:
    """Finds a rank whose loader draws from all of the data.

    It is one of several ranks, and no DistributedSampler deals the data out. A DistributedSampler hands out ready
    indices, so that only the batch sampler runs, once per batch. One that draws samples at random runs for each of
    them.
    """
    world = evidence.linked.trace.world_size or evidence.analysis.recording.world_size or 1
    draws = rows_of_events(evidence, _SAMPLER)
    if world < 2 or not draws.size or rows_of_events(evidence, _SHARES_OUT).size:
        return None
    batches = rows_of_events(evidence, LOADER_FETCH).size
    codes = evidence.linked.trace.events["name"].cat.codes.to_numpy()[draws]
    if np.unique(codes).size < 2 or int(np.bincount(codes).max()) < _DRAWS * max(batches, 1):
        return None
    return Draft(
        slug="every-rank-reads-all",
        title="Each rank draws its samples from all of the data",
        evidence=(
            f"{world} ranks, and the sampler of this one runs {format_count(draws.size / evidence.steps)} times "
            "per step",
            "a DistributedSampler would not show between batches: it deals out its indices once per epoch",
        ),
        advice="Give every rank a part of the data of its own.",
        code="sampler = DistributedSampler(dataset)\nloader = DataLoader(dataset, sampler=sampler)\n"
        "sampler.set_epoch(epoch)  # before each epoch",
        gain_reason=f"a step takes as long as before, but an epoch {world} times fewer of them",
    )


RULES = (late_rank, pipeline_bubble, exposed_communication, small_all_reduces, every_rank_reads_all)
