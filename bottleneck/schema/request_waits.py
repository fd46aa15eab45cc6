"""Recognises a program that waits for requests.

It does so from the analysis and the trace, for the verdict and the advice rules.
"""

import math
import re

import numpy as np
from msgspec import Struct

from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.op_names import TRAINING
from bottleneck.units import US_PER_S, format_us

WAIT = "overhead.wait"
# The calls in which event loops and servers wait for what comes over a socket.
_FOR_REQUESTS = re.compile(r"^(?:poll|select|control|_?accept|recv\w*|GetQueuedCompletionStatus)$|: (?:select|accept)$")
# Texts of lines that exchange data with processes which the program itself has: no requests come in there.
POOL_CALL = re.compile(
    r"(?:\b\w*(?:pool|executor|exec|client)\w*|\bex)\.(?:i?map\w*|starmap\w*|apply\w*|submit)\(|\bParallel\("
)
PIPE_CALL = re.compile(r"\b(?:conn|pipe)\w*\.(?:send|recv|poll)\w*\(")
MANAGER_ACCESS = re.compile(r"\bmanager\.\w+")
# Of the step: less is no state of its own. Of all waiting: what is for requests.
_LEAST_IDLE, _MOST_OF_IT = 0.05, 0.5


class Serving(Struct, frozen=True):
    """Program that answers requests: waiting and working time per step.

    A step is one call of its model.

    ``calls_per_s`` is how often the model was called, ``most_per_s`` how often it could be if nothing waited.
    """

    idle_us: float
    busy_us: float
    calls_per_s: float
    most_per_s: float


@remembered
def serving_of(evidence: Evidence) -> Serving | None:
    """Returns the program's pace if it waits for requests between model calls.

    Null where it trains, or does not wait for requests.
    """
    idle_us, step_us = evidence.account_us(WAIT), evidence.step_us
    rows = [row for row in evidence.analysis.idle if f"overhead.{row.cause}" == WAIT]
    asked = (row for row in rows if _FOR_REQUESTS.search(row.detail or "") and not _is_for_own(evidence, row.source))
    asked_us = math.fsum(row.us for row in asked)
    if asked_us <= _MOST_OF_IT * math.fsum(row.us for row in rows) or evidence.share_of_step(idle_us) < _LEAST_IDLE:
        return None
    busy_us = step_us - idle_us
    if not busy_us > 0 or _trains(evidence):
        return None
    return Serving(idle_us, busy_us, US_PER_S / step_us, US_PER_S / busy_us)


def _is_for_own(evidence: Evidence, source: str | None) -> bool:
    """Returns whether a line waits for the program's own pool of processes.

    Such a wait looks like a server's wait.
    """
    text = evidence.source_texts.get(source or "", "")
    return any(pattern.search(text) for pattern in (POOL_CALL, PIPE_CALL, MANAGER_ACCESS))


def _trains(evidence: Evidence) -> bool:
    names = evidence.linked.trace.events["name"].cat
    used = np.flatnonzero(np.bincount(names.codes.to_numpy(), minlength=len(names.categories)))
    return any(TRAINING.search(str(names.categories[code])) for code in used.tolist())


def describe_pace(serving: Serving) -> str:
    """Gives the pace of calls of the model in words.

    '12 calls of the model per second take 20 ms each; about 50 would fit'.
    """
    calls, most = (_rounded(rate) for rate in (serving.calls_per_s, serving.most_per_s))
    plural = "call" if calls == "1" else "calls"
    return f"{calls} {plural} of the model per second take {format_us(serving.busy_us)} each; about {most} would fit"


def _rounded(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
