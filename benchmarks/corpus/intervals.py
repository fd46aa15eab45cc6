"""Learns how wide the interval of each rule has to be, from pairs of predicted and measured speedups.

python -m benchmarks.corpus.intervals                 the leave-one-workload-out table
python -m benchmarks.corpus.intervals --write         puts it into docs/explanation/predictions.md
python -m benchmarks.corpus.intervals --ship          writes bottleneck/advice/interval_table.csv, from all pairs

Each workload (a file of the corpus, with all of its cases) is left out in turn: the factors are learned from the others
and applied to its predictions. Noisy pairs are counted and left out.
"""

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from benchmarks.corpus.pairs import PAIRS, Claim, Pair, read_pairs
from benchmarks.pages import write_between_markers
from bottleneck.advice.interval_table import ANY_RULE, TABLE, Record, factor_of, keeps_figure, score, widen, write_table
from bottleneck.schema.analysis import Interval
from bottleneck.units import counted, format_share

PAGE = Path(__file__).parents[2] / "docs/explanation/predictions.md"
# Names no finding: that nobody advises a change predicts that it gains nothing worth its trouble.
SILENCE = "no finding names it"
# Findings that state in words that a change gains nothing.
NO_GAIN = frozenset({"compile-does-not-pay", "half-precision-does-not-pay", SILENCE})
# Another way to do what a finding advises, and less of it: nothing is said of it where the better one is named.
LESSER = {"foreach-optimizer": "fused-optimizer"}
# An effect up to this is none: copies of one step differ by as much (docs/explanation/predictions.md).
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


def learn(statements: Sequence[Statement]) -> dict[str, Record]:
    """The record of each rule that stated figures, and that of any rule."""
    stated = [each for each in statements if each.predicted is not None]
    slugs = sorted({each.slug for each in stated})
    records = {slug: _record(slug, stated, lambda each, slug=slug: each.slug == slug) for slug in slugs}
    return {**records, ANY_RULE: _record(ANY_RULE, stated, lambda _: True)} if stated else {}


def _record(slug: str, stated: Sequence[Statement], is_own: Callable[[Statement], bool]) -> Record:
    own = [each for each in stated if is_own(each)]
    scores = [_score(each) for each in own]
    others = [_score(each) for each in stated if not is_own(each)]
    return Record(
        slug=slug,
        factor=factor_of(scores, others),
        noise=statistics.median(each.noise for each in own),
        pairs=len(own),
        workloads=len({each.file for each in own}),
        inside=statistics.fmean(each.predicted is not None and _holds(each.predicted, each.measured) for each in own),
        right=statistics.fmean(each.is_right for each in own),
    )


def leave_one_out(statements: Sequence[Statement]) -> list[Outcome]:
    """Each statement with a figure beside its interval by what all other workloads taught."""
    outcomes = []
    for file in dict.fromkeys(each.file for each in statements):
        table = learn([each for each in statements if each.file != file])
        own = (each for each in statements if each.file == file)
        outcomes += [Outcome(each, widen(each.slug, each.predicted, table)) for each in own if each.predicted]
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
        "factor | upper / lower end as stated | with factor | figure |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
        *(_row(slug, statements, outcomes, table) for slug in slugs),
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


def _row(slug: str, statements: Sequence[Statement], outcomes: Sequence[Outcome], table: Mapping[str, Record]) -> str:
    own = [each for each in statements if each.slug == slug]
    mine = [each for each in outcomes if each.statement.slug == slug]
    name = slug if slug == SILENCE else f"`{slug}`"
    if slug not in table:
        return _cells(name, own, mine, ("-", "-"))
    return _cells(name, own, mine, (f"{table[slug].factor:.2f}", "stays" if keeps_figure(slug, table) else "goes"))


def _totals(statements: Sequence[Statement], outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The rows of all rules together: of each machine, where there are several, of findings alone, and of all."""
    machines = dict.fromkeys(each.machine for each in statements)
    for machine in machines if len(machines) > 1 else ():
        own = [each for each in statements if each.machine == machine]
        mine = [each for each in outcomes if each.statement.machine == machine]
        yield _cells(f"all rules, {_short(machine)}", own, mine, ("-", "-"))
    spoken = [each for each in statements if each.slug != SILENCE]
    if 0 < len(spoken) < len(statements):
        yield _cells("all that findings say", spoken, outcomes, ("-", "-"))
    yield _cells("**all**", statements, outcomes, ("-", "-"))


def _cells(name: str, own: Sequence[Statement], mine: Sequence[Outcome], learned: tuple[str, str]) -> str:
    factor, figure = learned
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
        figure,
    )
    return f"| {' | '.join(cells)} |"


def _share(held: Sequence[bool]) -> str:
    return format_share(statistics.fmean(held)) if held else "-"


def _width(intervals: Sequence[Interval]) -> str:
    return f"{statistics.median(each.high / each.low for each in intervals):.2f}" if intervals else "-"


def main() -> None:
    """Prints the table; writes it to its page and the factors to the package where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=PAIRS)
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    parser.add_argument("--ship", action="store_true", help="write the table that the package reads")
    asked = parser.parse_args()
    pairs = read_pairs(asked.data)
    text = render(pairs)
    print(text)
    if asked.write:
        write_between_markers(PAGE, "pairs", text)
    if asked.ship:
        write_table(TABLE, list(learn(statements_of(pairs)).values()))


if __name__ == "__main__":
    main()
