"""Advice to record anew.

It is given where a trace shows something else than what holds its program back.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.distributed import transfers_steadily
from bottleneck.advice.quantities import ops_in_window, record_again
from bottleneck.advice.ranking import GENERAL, Draft
from bottleneck.schema.accounts import UNMODELLED, UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import (
    APPLE_UNRECORDED,
    BROKEN_TRACE_SLUGS,
    DISTURBED_SLUGS,
    ELSEWHERE,
    GRAPH_CAPTURE,
    HALF_RECORDED,
    ONE_OFF,
    ONE_RANK,
    TRUNCATED,
    Caveat,
)
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.finding_order import SMALL_HOPE, SURE_FINDINGS
from bottleneck.schema.reasons import REMEDIES
from bottleneck.schema.records import replace
from bottleneck.schema.tables import are_calls
from bottleneck.units import counted, format_share


class _Anew(Struct, frozen=True):
    """The lack of a recording, and advice on another one.

    It has what shows the lack. ``quotes`` where advice holds that. ``brief`` is the advice in short, where it is long.
    """

    title: str
    advice: str
    seen: tuple[str, ...] = ()
    quotes: bool = False
    brief: str | None = None


# By the caveat that says it, where that concerns more than half of what was recorded.
_INSTEAD: Mapping[str, _Anew] = {
    ELSEWHERE: _Anew(
        "Most of the work was done by processes that were not recorded",
        "Record these processes, if they import torch: {follow}.",
    ),
    HALF_RECORDED: _Anew(
        "The device was not recorded",
        "Record the device too: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
    ),
    APPLE_UNRECORDED: _Anew(
        "The GPU was not recorded",
        "Record the GPU's side in Instruments: torch.mps.profiler.start(mode='interval').",
    ),
    GRAPH_CAPTURE: _Anew(
        "The window captures a graph that later steps replay",
        "Record later steps, which only replay the graph that this one captures.",
    ),
    ONE_OFF: _Anew(
        "Most of the window is work that is done once",
        "Record later steps, after warm-up: {message}.",
        brief="Record later steps: schedule(wait=1, warmup=3, active=3), prof.step() after each step",
        quotes=True,
    ),
}
_CAPTURED_AGAIN = _Anew(
    "The window captures the same graph again and again",
    "These steps capture the graph anew: call torch.compiler.cudagraph_mark_step_begin() where a step begins, and pass "
    "inputs of the same sizes and addresses. Then record later steps, which replay it.",
)
_MOST = 0.5
# Windows of work that is done once, and findings on work that is done once as well: later steps have it no more.
_DONE_ONCE = frozenset({ONE_OFF, GRAPH_CAPTURE})
_OF_FIRST_STEPS = frozenset({"device-allocations", "python-call"})
_BROKEN = _Anew("The trace is not whole", "Record it again, and let prof.step() mark some whole steps after warm-up.")
_HOST = _Anew(
    "What the host did is not in the trace",
    "Record the host too: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=True.",
)
# The host was recorded, and yet most of the step has no event.
_NO_EVENTS = _Anew(
    "Most of the step leaves no event",
    "Record it again while nothing else runs: a process without its processor leaves no event, nor does waiting inside "
    "a library.",
)
_CUT_OFF = _Anew("The file was cut off", "Record it again, and let the program end by itself.")
_LOADED = _Anew("Other programs disturbed the recording", "Record it again while nothing else runs.")
_ALL_RANKS = _Anew(
    "One rank does not show why it waits for the others",
    "Put the traces of all ranks into one folder and run `bottleneck report DIR`: only together do they show which "
    "rank is late.",
)
_PARTED = _Anew(
    "The device is idle in one part of the window and busy in the other",
    "Report each part of the window by itself, with --window A:B: what limits one does not limit the other.",
)


def with_new_recording(evidence: Evidence, drafts: Sequence[Draft]) -> list[Draft]:
    """Adds advice to record anew before all other drafts.

    It is added where this recording cannot show what to change. What holds whatever the step is stays before it. Where
    other programs disturbed the step, what rests on what the program does stands first in its place.
    """
    leading = [draft for draft in drafts if draft.comes_first and draft.gain_us is None]
    others = [draft for draft in drafts if draft not in leading]
    if evidence.bound == "inconclusive" and not evidence.is_incomplete and evidence.is_broken:
        certain = [draft for draft in others if draft.slug in SURE_FINDINGS]
        sure = max(certain, key=lambda draft: (draft.slug not in GENERAL, _middle_us(draft)), default=None)
        if sure is not None:
            return [*leading, replace(sure, comes_first=True), *(draft for draft in others if draft is not sure)]
    anew = _new_recording(evidence, others)
    if anew is None:
        others = _with_python_first(evidence, others)
        return [*leading, *others, *([] if leading else _where_nothing_gains(evidence, others))]
    # Says the same with fewer words on what to record.
    unsaid = {"incomplete-trace"} if evidence.is_broken else set[str]()
    if any(caveat.slug in _DONE_ONCE and _shows_something_else(caveat) for caveat in evidence.analysis.caveats):
        unsaid |= _OF_FIRST_STEPS
    return [*leading, _draft(anew), *(draft for draft in others if draft.slug not in unsaid)]


# Of the step: so much Python that no line is known of is what a recording with Python calls is for.
# And so much in the middle of a gain is an answer already.
_MUCH_PYTHON, _LIKELY = 0.3, 0.08


def _with_python_first(evidence: Evidence, drafts: list[Draft]) -> list[Draft]:
    """Puts the advice to record Python calls first in a trace without any.

    So where much of the step is Python, and no draft is likely to gain much.
    """
    asks = next((draft for draft in drafts if draft.slug == "python-call" and draft.gain_us is None), None)
    if asks is None or evidence.linked.places is not None or evidence.recording is not None:
        return drafts
    likely_us = max((_likely_us(draft) for draft in drafts), default=0.0)
    is_much = evidence.share_of_step(evidence.account_us("overhead.python")) >= _MUCH_PYTHON
    if not is_much or evidence.share_of_step(likely_us) >= _LIKELY or evidence.straggler:
        return drafts
    return [replace(asks, comes_first=True), *(draft for draft in drafts if draft is not asks)]


def _likely_us(draft: Draft) -> float:
    """Returns the middle of a gain, or the lower end of a doubtful one."""
    if draft.gain_us is None:
        return 0.0
    low, high = draft.gain_us.low, draft.gain_us.high
    return low if draft.confidence == "low" else (low + high) / 2


def _middle_us(draft: Draft) -> float:
    return -1.0 if draft.gain_us is None else draft.gain_us.low + draft.gain_us.high


def _draft(anew: _Anew) -> Draft:
    return Draft(
        slug="record-anew",
        title=anew.title,
        evidence=anew.seen,
        advice=anew.advice,
        brief=anew.brief,
        gain_reason="none: a new recording shows what to change, and makes nothing faster",
        comes_first=True,
    )


def _new_recording(evidence: Evidence, drafts: Sequence[Draft]) -> _Anew | None:
    """Gives the recording to make in place of this one.

    Null where this one shows what limits the step. One rank of several does not show why it waits in collectives,
    unless a finding explains most of that time or the calls of one size take alike.
    """
    caveats = sorted(evidence.analysis.caveats, key=lambda caveat: caveat.slug != ELSEWHERE)
    named = next((entry for entry in caveats if _shows_something_else(entry)), None)
    if named is not None:
        again = _captured_again(evidence) if named.slug == GRAPH_CAPTURE else None
        anew = _INSTEAD[named.slug] if again is None else _CAPTURED_AGAIN
        seen = () if anew.quotes else tuple(filter(None, (named.message, again)))
        return replace(
            anew,
            advice=anew.advice.format(message=named.message, follow=record_again(evidence, "--follow-children")),
            seen=seen,
        )
    broken = next((entry for entry in caveats if entry.slug in BROKEN_TRACE_SLUGS - DISTURBED_SLUGS), None)
    if broken is not None:
        cut_off = next((entry.message for entry in caveats if entry.slug == TRUNCATED), None)
        lacks = _BROKEN if cut_off is None else _CUT_OFF
        return replace(lacks, seen=(*(() if cut_off is None else (cut_off,)), broken.message))
    if evidence.bound == "inconclusive":
        return _where_undecided(evidence)
    if evidence.bound == "communication" and any(caveat.slug == ONE_RANK for caveat in caveats):
        exposed_us = evidence.group_us("communication")
        most_us = max((entry.gain_us.low for entry in drafts if entry.gain_us is not None), default=0.0)
        if most_us > exposed_us / 2 or transfers_steadily(evidence):
            return None
        return replace(
            _ALL_RANKS,
            seen=(f"collectives hold {format_share(evidence.share_of_step(exposed_us))} of the step of this rank",),
        )
    return _PARTED if evidence.sides is not None and not evidence.sides.is_one_step else None


def _captured_again(evidence: Evidence) -> str | None:
    """Words captures of as many launches as before, with a replay between.

    Null where each graph is captured once: graphs of several sizes are captured one after the other, before any replay.
    """
    captured, trace = evidence.linked.captured, evidence.linked.trace
    if captured is None or captured.empty:
        return None
    at_us = trace.events["ts_us"].to_numpy()
    sizes = captured.groupby("capture").size()
    alike = sizes[sizes == sizes.mode().iloc[0]].index
    begun_us = [float(at_us[rows.iloc[0]]) for number, rows in captured.groupby("capture")["event"] if number in alike]
    replayed_us = at_us[are_calls(trace, "graph_launch")]
    rounds = {int(np.searchsorted(begun_us, replay_us)) for replay_us in replayed_us.tolist()}
    if len(begun_us) < 2 or not rounds >= {*range(1, len(begun_us))}:
        return None
    return (
        f"a graph of {counted(int(sizes[alike[0]]), 'launch', 'launches')} is captured {len(begun_us)} times, and "
        f"replayed {counted(replayed_us.size, 'time')} in all"
    )


# Of the step: what gains less is no answer where most of it is not known.
_LEAST_ANSWER = 0.05


def _where_nothing_gains(evidence: Evidence, drafts: Sequence[Draft]) -> list[Draft]:
    """Gives the recording to make where no draft gains.

    Most of the step tells nothing then. The advice stands behind all others.
    """
    # Nor is what is advised of nearly every program, and gains little.
    if any(
        draft.gain_us is not None
        and draft.gain_us.high >= (SMALL_HOPE if draft.slug in GENERAL else _LEAST_ANSWER) * evidence.step_us
        for draft in drafts
    ):
        return []
    if not drafts and (few := _of_few_events(evidence)) is not None:
        return [replace(_draft(few), comes_first=False)]
    if evidence.share_of_step(evidence.account_us("overhead.unknown")) > _MOST:
        lacks = _HOST if evidence.linked.places is None else _NO_EVENTS
        return [replace(_draft(lacks), comes_first=False)]
    anew = _of_unmodelled(evidence) if evidence.share_of_step(evidence.group_us(UNMODELLED)) > _MOST else None
    return [] if anew is None else [replace(_draft(anew), comes_first=False)]


# Ops and kernels in the window: so few are no step of a program.
_FEW_EVENTS = 8


def _of_few_events(evidence: Evidence) -> _Anew | None:
    """Asks for another recording in place of one with hardly an event."""
    ops, kernels = int(ops_in_window(evidence).sum()), int(np.count_nonzero(evidence.kernels_in_window))
    if ops + kernels > _FEW_EVENTS:
        return None
    return _Anew(
        "The recording holds too few events to judge a program by",
        "Record three steps or more after warm-up, with sizes: profile(record_shapes=True).",
        seen=(f"{counted(ops, 'op')} and {counted(kernels, 'kernel')} in the window",),
    )


def _shows_something_else(caveat: Caveat) -> bool:
    return caveat.slug in _INSTEAD and (caveat.share is None or caveat.share > _MOST)


def _where_undecided(evidence: Evidence) -> _Anew | None:
    """Gives advice that would decide a verdict that is open.

    It asks for a quiet machine, or what the cost of most of the work needs.
    """
    load = next((caveat for caveat in evidence.analysis.caveats if caveat.slug in DISTURBED_SLUGS), None)
    return _of_unmodelled(evidence) if load is None else replace(_LOADED, seen=(load.message,))


def _of_unmodelled(evidence: Evidence) -> _Anew | None:
    """Gives advice on what most of the unmodelled work needs.

    It is what the cost of that work needs. Null where no recording has it.
    """
    us: dict[str, float] = {}
    for row in evidence.analysis.kernels:
        if row.bound in {"unknown", *UNMODELLED_ACCOUNTS}:
            us[row.reason_code or ""] = us.get(row.reason_code or "", 0.0) + row.us
    remedy = REMEDIES.get(max(us, key=lambda code: us[code], default=""))
    if remedy is None:
        return None
    share = evidence.share_of_step(math.fsum(us.values()))
    return _Anew(
        "Too little of the work can be modelled",
        advice=f"{remedy[:1].upper()}{remedy[1:]}.",
        seen=(f"{format_share(share)} of the step is unmodelled work (no cost formula)",),
    )
