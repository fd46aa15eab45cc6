"""All counters of one case: the door of this stage."""

from collections.abc import Mapping
from pathlib import Path

from bottleneck.case import Case
from bottleneck.counters import Counts
from bottleneck.counting.breakdown import by_line, by_module, ops_by_name
from bottleneck.counting.fingerprint import fingerprint_of, input_digest
from bottleneck.counting.sources import Sources
from bottleneck.counting.tally import DIFFER, Tally, spread
from bottleneck.counting.work import Unknown, Work


def count(case: Case, root: Path | None = None) -> Counts:
    """The counters of a step, on which all steps of the window agree; without steps, those of the whole window.

    Only what the step's own thread and autograd's do counts. Names of files are made relative to ``root``, and lines
    are read from files inside it; without it nothing is opened. ``unstable`` holds counters whose steps disagree, and
    ops that do under "ops:NAME"; kernels under "kernels:NAME".
    """
    work = Work(case)
    found = work.count()
    ops, kernels = ops_by_name(work), work.kernels()
    kernels = {} if isinstance(kernels, Unknown) else kernels
    tallies = {name: each for name, each in found.items() if isinstance(each, Tally)}
    named = {**_prefixed("ops", ops), **_prefixed("kernels", kernels)}
    return Counts(
        values=_agreed(tallies),
        fingerprint=fingerprint_of(case),
        unknown={name: each.reason for name, each in found.items() if isinstance(each, Unknown)},
        unstable={
            name: spread(each.low, each.high, DIFFER)
            for name, each in {**tallies, **named}.items()
            if not each.is_stable
        },
        ops=dict(sorted(_agreed(ops).items())),
        modules=by_module(work),
        kernels=dict(sorted(_agreed(kernels).items())),
        sites=by_line(work, Sources(case, root)),
        input_sha=input_digest(case),
        steps=len(case.linked.window.steps),
    )


def _agreed(tallies: Mapping[str, Tally]) -> dict[str, int]:
    return {name: tally.low for name, tally in tallies.items() if tally.is_stable}


def _prefixed(kind: str, tallies: Mapping[str, Tally]) -> dict[str, Tally]:
    return {f"{kind}:{name}": tally for name, tally in tallies.items()}
