"""Learns how wide predicted intervals have to be, from pairs of predicted and measured speedups.

python -m benchmarks.corpus.intervals                 the leave-one-workload-out table, and the widenings of all pairs
python -m benchmarks.corpus.intervals --write         puts the table into benchmarks/results/predictions.md

Each workload (a file of the corpus, with all of its cases) is left out in turn: the factors are learned from the others
and applied to its predictions. Noisy pairs are counted and left out. The widenings are those of `ON_CPU` in
bottleneck/advice/widening.py.
"""

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from benchmarks.corpus.pairs import PAIRS, Claim, Pair, read_pairs
from benchmarks.pages import write_between_markers
from bottleneck.advice.widening import Basis, Widening, widen
from bottleneck.schema.analysis import Interval
from bottleneck.units import counted, format_share

PAGE = Path(__file__).parents[2] / "benchmarks/results/predictions.md"
# Names no finding: that nobody advises a change predicts that it gains nothing worth its trouble.
SILENCE = "no finding names it"
# Findings that state in words that a change gains nothing.
NO_GAIN = frozenset({"compile-does-not-pay", "half-precision-does-not-pay", SILENCE})
# Another way to do what a finding advises, and less of it: nothing is said of it where the better one is named.
LESSER = {"foreach-optimizer": "fused-optimizer"}
# Rules whose gain the batch test of the recording gives.
TIMED = frozenset({"larger-batch", "room-for-batch"})
BASES: tuple[Basis, ...] = ("timed", "formula")
COVERAGE = 0.8
# An effect up to this is none: copies of one step differ by as much (benchmarks/results/predictions.md).
NO_EFFECT = 1.05


@dataclass(frozen=True)
class Statement:
    """What one rule said of one change of one workload, and what was measured.

    ``predicted`` is null where it said that nothing is gained. ``noise`` is half the measured interval, as a logarithm;
    ``low`` and ``high`` are its ends.
    """

    slug: str
    file: str
    machine: str
    predicted: Interval | None
    measured: float
    noise: float
    low: float
    high: float

    @property
    def has_effect(self) -> bool:
        """True if the measurement shows an effect: more than 5 %, and no interval that holds 1."""
        is_large = not 1 / NO_EFFECT <= self.measured <= NO_EFFECT
        return is_large and not self.low <= 1 <= self.high

    @property
    def middle(self) -> float:
        """The geometric middle of the prediction, which widening leaves where it is; 1 where no gain was predicted."""
        return 1.0 if self.predicted is None else math.sqrt(self.predicted.low * self.predicted.high)

    @property
    def is_right(self) -> bool:
        """True if the direction is: faster at all where a gain was predicted, at most 5 % faster where none was."""
        if self.predicted is None:
            return self.measured <= NO_EFFECT
        return (self.measured > 1) == (self.middle > 1)

    @property
    def is_right_beyond_noise(self) -> bool:
        """The same by what the measurement shows: an effect, or none.

        Where it shows an effect: faster where a gain was predicted, and not faster where none was. Where it shows none:
        a prediction whose middle is none either.
        """
        if not self.has_effect:
            return self.middle <= NO_EFFECT
        return (self.measured > 1) == (self.predicted is not None and self.middle > 1)


@dataclass(frozen=True)
class Outcome:
    """A statement with a figure, and its interval by factors that were learned without its workload."""

    statement: Statement
    widened: Interval

    @property
    def was_inside(self) -> bool:
        """True if the measured speedup lies in the interval as the rule stated it."""
        assert self.statement.predicted is not None
        return _holds(self.statement.predicted, self.statement.measured)

    @property
    def is_inside(self) -> bool:
        """True if the measured speedup lies in the interval with the factor."""
        return _holds(self.widened, self.statement.measured)


def statements_of(pairs: Sequence[Pair]) -> list[Statement]:
    """All statements about pairs that were measured well enough."""
    lesser = set(_lesser(pairs))
    return [statement for pair in pairs if pair.is_usable and pair.key not in lesser for statement in _said(pair)]


def _lesser(pairs: Sequence[Pair]) -> Iterator[tuple[str, str, str]]:
    """The keys of changes that no finding names because it names a better way to do the same."""
    named = {pair.key for pair in pairs if pair.claims}
    for pair in pairs:
        if not pair.claims and (pair.machine, pair.case, LESSER.get(pair.change)) in named:
            yield pair.key


def _said(pair: Pair) -> Iterator[Statement]:
    assert pair.speedup is not None
    middle, low, high = pair.speedup
    noise = math.log(high / low) / 2
    for claim in pair.claims or (Claim(SILENCE),):
        if claim.low is not None and claim.high is not None:
            interval = Interval(claim.low, claim.high)
            yield Statement(claim.slug, pair.file, pair.machine, interval, middle, noise, low, high)
        elif claim.slug in NO_GAIN:
            yield Statement(claim.slug, pair.file, pair.machine, None, middle, noise, low, high)


def basis_of(slug: str) -> Basis:
    """The kind of evidence behind what a rule states: twice the batch is timed in the recording, all else a formula.

    Which predictions pieces gave is not in the data.
    """
    return "timed" if slug in TIMED else "formula"


def learn(statements: Sequence[Statement]) -> dict[Basis, Widening]:
    """The widening of each kind of evidence that stated figures."""
    stated = [statement for statement in statements if statement.predicted is not None]
    own: dict[Basis, list[Statement]] = {}
    for statement in stated:
        own.setdefault(basis_of(statement.slug), []).append(statement)
    return {basis: _widening(own[basis]) for basis in BASES if basis in own}


def _widening(stated: Sequence[Statement]) -> Widening:
    return Widening(
        factor=factor_of([_score(statement) for statement in stated]),
        noise=statistics.median(statement.noise for statement in stated),
        pairs=len(stated),
        workloads=len({statement.file for statement in stated}),
    )


def rounded(widening: Widening) -> Widening:
    """The widening with three digits, as the package has it."""
    return replace(widening, factor=float(f"{widening.factor:.3g}"), noise=float(f"{widening.noise:.3g}"))


def score(interval: Interval, measured: float) -> float:
    """Distance of a measured speedup from its predicted interval, as a logarithm; negative inside."""
    return max(math.log(interval.low / measured), math.log(measured / interval.high))


def factor_of(scores: Sequence[float], coverage: float = COVERAGE) -> float:
    """The factor that covers this share of these scores and of the next one, which is not known yet.

    The largest score where so few cannot promise that; 1 without any.
    """
    ordered = sorted(scores)
    rank = math.ceil(coverage * (len(ordered) + 1) - 1e-9)
    return math.exp(ordered[min(rank, len(ordered)) - 1]) if ordered else 1.0


def leave_one_out(statements: Sequence[Statement]) -> list[Outcome]:
    """Each statement with a figure beside its interval by what all other workloads taught."""
    outcomes = []
    for file in dict.fromkeys(statement.file for statement in statements):
        learned = learn([statement for statement in statements if statement.file != file])
        for statement in statements:
            if statement.file == file and statement.predicted is not None:
                widening = learned.get(basis_of(statement.slug))
                widened = statement.predicted if widening is None else widen(statement.predicted, widening)
                outcomes.append(Outcome(statement, widened))
    return outcomes


def _score(statement: Statement) -> float:
    assert statement.predicted is not None
    return score(statement.predicted, statement.measured)


def _holds(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def render(pairs: Sequence[Pair]) -> str:
    """The table of all rules with its summary."""
    statements = statements_of(pairs)
    outcomes = leave_one_out(statements)
    table = learn(statements)
    slugs = [slug for slug, _ in Counter(each.slug for each in statements).most_common()]
    lines = [
        *_summary(pairs),
        "",
        "| rule | pairs | workloads | inside as stated | inside with factor | direction right | beyond noise | "
        "factor | upper / lower end as stated | with factor |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(_row(slug, statements, outcomes) for slug in slugs),
        *_evidence_rows(statements, outcomes, table),
    ]
    machines = dict.fromkeys(pair.machine for pair in pairs if pair.is_usable)
    wrong = [_wrong([pair for pair in pairs if pair.machine == machine], machine) for machine in machines]
    return "\n\n".join(["\n".join([*lines, *_totals(statements, outcomes)]), *chain(*wrong)])


def _wrong(pairs: Sequence[Pair], machine: str) -> list[str]:
    """The pairs of a machine of which every statement had the wrong direction, beyond its measured interval."""
    lesser = set(_lesser(pairs))
    used = [pair for pair in pairs if pair.is_usable and pair.key not in lesser]
    missed = [pair for pair in used if not pair.claims and _ends(pair)[0] > NO_EFFECT]
    broken = [
        pair
        for pair in used
        if _ends(pair)[1] < 1 and any(each.predicted is not None and each.middle > 1 for each in _said(pair))
    ]
    name = _short(machine)
    return [
        f"{name}: {counted(len(missed), 'change')} gained beyond 5 % although no finding names them: {_list(missed)}.",
        f"{name}: {counted(len(broken), 'change')} made the step slower although a finding promised a gain: "
        f"{_list(broken)}.",
    ]


def _short(machine: str) -> str:
    """The processor with its instruction sets."""
    return machine.partition(", ")[0]


def _ends(pair: Pair) -> tuple[float, float]:
    assert pair.speedup is not None
    return pair.speedup[1], pair.speedup[2]


def _list(pairs: Sequence[Pair]) -> str:
    """The changes with the measured speedup on each case, those that were furthest from 1 first."""
    ordered = sorted(pairs, key=lambda pair: -abs(math.log((pair.speedup or (1.0,))[0])))
    changes = dict.fromkeys(pair.change for pair in ordered)
    return (
        "; ".join(
            f"`{name}` on " + ", ".join(_measured(pair) for pair in ordered if pair.change == name) for name in changes
        )
        or "none"
    )


def _measured(pair: Pair) -> str:
    return f"{pair.case.replace('-', ' ', 1)} ({(pair.speedup or (1.0,))[0]:.2f}x)"


def _summary(pairs: Sequence[Pair]) -> list[str]:
    """Counts of what was tried, in two sentences."""
    tried = [pair for pair in pairs if pair.speedup is not None]
    noisy = sum(pair.is_noisy for pair in tried)
    used = [pair for pair in tried if pair.is_usable]
    unlike = len(tried) - noisy - len(used)
    keys = set(_lesser(pairs))
    lesser = sum(pair.key in keys for pair in used)
    silent = sum(not pair.claims for pair in used) - lesser
    wordy = sum(bool(pair.claims) and not list(_said(pair)) for pair in used)
    machines = "; ".join(sorted({f"{pair.machine}, {counted(pair.threads, 'thread')}" for pair in tried}))
    cases, files = (len({getattr(pair, part) for pair in tried}) for part in ("case", "file"))
    was, are = ("was", "is") if noisy == 1 else ("were", "are")
    return [
        f"{counted(len(tried), 'change')} measured on {counted(cases, 'case')} of {counted(files, 'workload')} "
        f"({machines}). {noisy} {was} too noisy and {are} left out"
        + (f", and {unlike} whose copies did not run alone as the changed step did" if unlike else "")
        + f". Of the other {len(used)}, {silent} are named by no finding, {lesser} are a lesser way to do what one "
        f"advises, and {wordy} are named only by findings that state neither a figure nor that nothing is gained."
    ]


def _row(slug: str, statements: Sequence[Statement], outcomes: Sequence[Outcome]) -> str:
    own = [each for each in statements if each.slug == slug]
    mine = [each for each in outcomes if each.statement.slug == slug]
    return _cells(slug if slug == SILENCE else f"`{slug}`", own, mine)


def _evidence_rows(
    statements: Sequence[Statement], outcomes: Sequence[Outcome], learned: Mapping[Basis, Widening]
) -> Iterator[str]:
    """The rows of each kind of evidence, with its factor."""
    for basis, widening in learned.items():
        own = [one for one in statements if one.predicted is not None and basis_of(one.slug) == basis]
        mine = [outcome for outcome in outcomes if basis_of(outcome.statement.slug) == basis]
        yield _cells(f"**{'timed here' if basis == 'timed' else 'by formula'}**", own, mine, f"{widening.factor:.3g}")


def _totals(statements: Sequence[Statement], outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The rows of all rules together: of each machine, where there are several, of findings alone, and of all."""
    machines = dict.fromkeys(each.machine for each in statements)
    for machine in machines if len(machines) > 1 else ():
        own = [each for each in statements if each.machine == machine]
        mine = [each for each in outcomes if each.statement.machine == machine]
        yield _cells(f"all rules, {_short(machine)}", own, mine)
    spoken = [each for each in statements if each.slug != SILENCE]
    if 0 < len(spoken) < len(statements):
        yield _cells("all that findings say", spoken, outcomes)
    yield _cells("**all**", statements, outcomes)


def _cells(name: str, own: Sequence[Statement], mine: Sequence[Outcome], factor: str = "-") -> str:
    stated = [each.statement.predicted for each in mine if each.statement.predicted is not None]
    cells = (
        name,
        str(len(own)),
        str(len({each.file for each in own})),
        _share([each.was_inside for each in mine]),
        _share([each.is_inside for each in mine]),
        _share([each.is_right for each in own]),
        _share([each.is_right_beyond_noise for each in own]),
        factor,
        _width(stated),
        _width([each.widened for each in mine]),
    )
    return f"| {' | '.join(cells)} |"


def _share(held: Sequence[bool]) -> str:
    return format_share(statistics.fmean(held)) if held else "-"


def _width(intervals: Sequence[Interval]) -> str:
    return f"{statistics.median(each.high / each.low for each in intervals):.2f}" if intervals else "-"


def main() -> None:
    """Prints the table and the widenings; writes the table to its page where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=PAIRS)
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    asked = parser.parse_args()
    pairs = read_pairs(asked.data)
    text = render(pairs)
    print(text)
    for basis, widening in learn(statements_of(pairs)).items():
        print(f"{basis}: {rounded(widening)}")
    if asked.write:
        write_between_markers(PAGE, "pairs", text)


if __name__ == "__main__":
    main()
