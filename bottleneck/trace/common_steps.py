"""Chooses the steps over which the ranks of a job are judged.

They are those that every rank recorded whole. A rank that goes on recording while another writes its trace waits for it
in a collective, and no rank may be blamed for steps that another did not record. Warm-up and outliers are set aside by
the median time over the ranks, so that all of them keep the same steps.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from bottleneck.schema.digest import RankDigest, SharedSteps
from bottleneck.schema.intervals import Floats
from bottleneck.schema.reasons import Reason
from bottleneck.trace.steps import set_aside_reasons

# Why a step of one rank does not count.
NOT_OF_ALL = Reason("not_of_all")
# Steps whose bounds are events of the program's, so that they are the same ones on every rank.
_BOUNDED = frozenset({"marks", "profiler", "optimizer", "closure", "server"})
_WITHOUT_STEPS = frozenset({"whole", "time"})
# Two steps are one where more than this part of the longer one is in both.
_SAME = 0.5

# Of one rank: the position of a step by a number that is the same on all ranks.
Positions = Mapping[int, int]


def share_steps(digests: Sequence[RankDigest]) -> SharedSteps:
    """Chooses the steps that all of the ranks are judged over.

    Neither the order of the ranks nor their steady steps decide.
    """
    sources = {one.steps.source for one in digests}
    if len(digests) < 2 or sources <= _WITHOUT_STEPS or "repeats" in sources:
        return SharedSteps("unknown", (None,) * len(digests))
    numbered = _numbered(digests) if sources <= _BOUNDED else None
    run = [] if numbered is None else _longest_run(digests, numbered)
    if numbered is None or not run:
        return SharedSteps("none", (None,) * len(digests))
    walls_us = np.median(
        [one.step_wall_us[[at[step_number] for step_number in run]] for one, at in zip(digests, numbered, strict=True)],
        axis=0,
    )
    reasons = [None] * len(run) if sources == {"server"} else set_aside_reasons(walls_us.tolist())
    return SharedSteps(
        "same",
        tuple(
            _of_rank(one, {at[number]: reason for number, reason in zip(run, reasons, strict=True)})
            for one, at in zip(digests, numbered, strict=True)
        ),
    )


def _of_rank(digest: RankDigest, reasons: Mapping[int, Reason | None]) -> tuple[Reason | None, ...] | None:
    """Gives the reason why each step of a rank does not count.

    Null for a step that does. Null as a whole if the rank's own choice agrees.
    """
    counting = {position for position, reason in reasons.items() if reason is None}
    if counting == {position for position, reason in enumerate(digest.set_aside) if reason is None}:
        return None
    unfit = _unfit(digest)
    return tuple(
        reasons.get(position, own if position in unfit else NOT_OF_ALL) for position, own in enumerate(digest.set_aside)
    )


def _unfit(digest: RankDigest) -> set[int]:
    """Finds the steps that a rank sets aside, except for their time.

    Gives their positions. The ranks judge times anew.
    """
    by_time: list[Reason | None] = [None] * len(digest.set_aside)
    if digest.steps.source != "server":
        by_time = set_aside_reasons(digest.step_wall_us.tolist())
    pairs = enumerate(zip(digest.set_aside, by_time, strict=True))
    return {position for position, (own, reason) in pairs if own is not None and reason is None}


def _longest_run(digests: Sequence[RankDigest], numbered: Sequence[Positions]) -> list[int]:
    """Finds the longest stretch of steps that all ranks have.

    Gives their numbers; of equally long stretches the last.
    """
    common: set[int] = set.intersection(
        *(
            {number for number, position in at.items() if position not in unfit}
            for at, unfit in zip(numbered, map(_unfit, digests), strict=True)
        )
    )
    numbers = np.array(sorted(common), dtype=np.int64)
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return [int(number) for number in max(runs, key=lambda run: (run.size, run[-1] if run.size else 0))]


def _numbered(digests: Sequence[RankDigest]) -> list[Positions] | None:
    """Numbers the steps of each rank so that all ranks share numbers.

    Null where nothing tells which steps are the same.
    """
    is_one_kind = len({one.steps.source for one in digests}) == 1
    if is_one_kind and all(one.step_numbers for one in digests):
        return [{number: at for at, number in enumerate(one.step_numbers)} for one in digests]
    if is_one_kind and len({one.step_start_us.size for one in digests}) == 1:
        return [{at: at for at in range(one.step_start_us.size)} for one in digests]
    origin_ns = min((one.start_unix_ns for one in digests if one.start_unix_ns is not None), default=0)
    spans = [_span(one, origin_ns) for one in digests]
    _, _, reference = min((one.step_start_us.size, one.path, at) for at, one in enumerate(digests))
    base = spans[reference]
    numbered = []
    for span in spans:
        if span is None or base is None:
            return None
        numbered.append(_by_clock(span, base))
    return numbered


def _span(digest: RankDigest, origin_ns: int) -> tuple[Floats, Floats] | None:
    """Gives begin and end of each step on the wall clock.

    Both are counted from ``origin_ns``. Null where the trace does not tell them.
    """
    if digest.start_unix_ns is None:
        return None
    begin_us = digest.step_start_us + (digest.start_unix_ns - origin_ns) / 1e3
    return begin_us, begin_us + digest.step_wall_us


def _by_clock(steps: tuple[Floats, Floats], base: tuple[Floats, Floats]) -> Positions:
    """Finds the reference's step that each step mostly lies in.

    Gives the steps of a rank by the position of that step.
    """
    both_us = np.minimum(steps[1][:, None], base[1]) - np.maximum(steps[0][:, None], base[0])
    longer_us = np.maximum((steps[1] - steps[0])[:, None], base[1] - base[0])
    pairs = np.argwhere(both_us > _SAME * longer_us)
    return {number: position for position, number in pairs.tolist()}
