"""Records of ``doctor``: one check with status, fact, reason and remedy."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from msgspec import Struct

# ok: nothing to do. limited: there, but not whole. missing: not there. unknown: could not be found out.
Status = Literal["ok", "limited", "missing", "unknown"]

Verdict = Literal["ready", "not ready", "sound", "damaged", "unreadable"]

DOCTOR_SCHEMA = "bottleneck/doctor/1"


class Check(Struct, frozen=True):
    """One thing that was looked at.

    ``fact`` is what was found, ``why`` what follows from it or where it comes from, ``remedy`` what to do in words and
    ``command`` what to type. ``share`` is the part (0-1) of what the row is about that is affected, where that was
    counted. A check that ``decides`` makes the whole 'not ready' or 'damaged' when it is not ok.
    """

    slug: str
    group: str
    title: str
    status: Status
    fact: str
    why: str = ""
    remedy: str = ""
    command: str = ""
    share: float | None = None
    decides: bool = False


class Checkup(Struct, frozen=True):
    """All rows about the machine or a trace, with their overall result."""

    kind: Literal["environment", "trace"]
    subject: str
    verdict: Verdict
    sentence: str
    checks: tuple[Check, ...]


def at_fault(checks: Sequence[Check]) -> list[Check]:
    """The rows that decide the verdict and are not as they should be."""
    return [check for check in checks if check.decides and check.status in {"limited", "missing"}]


def tally(checks: Sequence[Check]) -> str:
    """Number of rows of each status: '12 ok, 2 limited, 1 missing'."""
    counts = Counter(check.status for check in checks)
    return ", ".join(f"{counts[status]} {status}" for status in get_args(Status) if counts[status])
