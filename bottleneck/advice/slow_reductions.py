"""Rule of argmax along a dimension that is not the last, on a CPU."""

import math
import re

import numpy as np

from bottleneck.advice.kernel_work import KernelWork, Size, size_words, work_of
from bottleneck.advice.quantities import format_count, format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import issued_by, main_source, removal_of, top_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted

_PLACES = re.compile(r"^aten::arg(?:max|min)$")
# Of the step; and of these ops: max along a dimension, which gives the places too, took 40 to 50 % less time than
# argmax of matrices, and 65 to 96 % less than argmax of channels before 32 to 50,176 places (torch 2.13, one and two
# threads of a Xeon).
_LEAST, _SAVES = 0.03, (0.65, 0.95)


def slow_argmax(evidence: Evidence) -> Draft | None:
    """Finds argmax and argmin over channels that lie far apart in memory.

    On a CPU their loop goes over such a dimension number by number, with no vectors. Gain: 65 to 95 % of these ops.
    """
    if not evidence.is_host_only:
        return None
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    places = top[text_matches(ops["name"], _PLACES.search)[top]]
    calls = as_integers(ops["signature"])[places]
    rows = [row for row, call in zip(places.tolist(), calls.tolist(), strict=True) if _reduced(work, call) is not None]
    if not rows:
        return None
    removal = removal_of(evidence, rows, certain=1.0)
    if evidence.share_of_step(removal.us) < _LEAST:
        return None
    line, (low, high) = main_source(evidence, rows), _SAVES
    name = str(ops["name"].iloc[rows[0]]).removeprefix("aten::")
    size, dim = _reduced(work, int(as_integers(ops["signature"])[rows[0]])) or ((), 0)
    quick = name.removeprefix("arg")
    return Draft(
        slug="slow-argmax",
        title=f"{name} along a dimension that is not the last runs without vectors",
        evidence=(
            f"{counted(format_count(len(rows) / evidence.steps), 'call')} per step {at_source(line)}, along dimension "
            f"{dim} of {size_words(size)}: {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, np.array(rows))),
        ),
        advice=f"Take the places from x.{quick}({dim}).indices {at_source(line)}, in place of x.{name}({dim}): on a "
        f"CPU {quick} along such a dimension is several times as fast, with the same result where no two numbers are "
        "equal.",
        brief=f"Take x.{quick}({dim}).indices in place of x.{name}({dim}) {at_source(line)}",
        places=(line,),
        code=f"places = x.{quick}({dim}).indices  # in place of x.{name}({dim})",
        gain_us=Interval(low * removal.gain.low, high * removal.gain.high),
        claims=removal.claims,
        removes=True,
    )


def _reduced(work: KernelWork, signature: int) -> tuple[Size, int] | None:
    """Returns a call's size and dimension, if that is not the last.

    Null for the last dimension, for places among all numbers, and where the call does not tell.
    """
    size: Size = next(iter(work.sizes_of(signature)), ())
    concrete = [str(value) for value in work.text_column("concrete", signature)]
    if len(size) < 3 or len(concrete) < 2 or re.fullmatch(r"-?\d", concrete[1]) is None:
        return None
    dim = int(concrete[1]) % len(size)
    return (size, dim) if math.prod(size[dim + 1 :]) > 1 else None


RULES = (slow_argmax,)
