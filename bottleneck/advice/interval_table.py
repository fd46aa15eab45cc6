"""Widens or narrows the predicted speedup of a rule by the errors of its earlier predictions.

The factors in interval_table.csv come from the corpus of `python -m benchmarks.corpus.intervals`: split-conformal
prediction (Lei et al. 2018, J. Am. Stat. Assoc. 113; the score is that of Romano et al. 2019, arXiv:1905.03222) on
logarithms of speedups. The score of a prediction is how far the measured speedup lies outside of its interval, and
negative inside. The factor is the quantile of the scores that covers as many of them as the interval promises to. The
lower end is divided by it and the upper end multiplied. A rule's own pairs are weighed against those of all other
rules, which count together as ``PRIOR_PAIRS``: a rule with few pairs behaves like the others.
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from bottleneck.schema.analysis import Interval
from bottleneck.schema.records import replace
from bottleneck.units import counted, format_share

TABLE = Path(__file__).with_name("interval_table.csv")
# The row of rules that have no pairs of their own.
ANY_RULE = "*"

COVERAGE = 0.8
PRIOR_PAIRS = 8.0
PAIRS_TO_JUDGE, RIGHT_AT_LEAST = 10, 0.7


@dataclass(frozen=True)
class Record:
    """The record of one rule.

    ``factor`` widens its intervals at both ends, or narrows them where it is below 1. ``noise`` is the median half
    width of the measured intervals, as a logarithm. ``inside`` is the share of the measured speedups that lay inside
    the intervals as the rule stated them, ``right`` the share whose direction was right; null without pairs. ``own`` of
    the pairs are those of the user, which are in no table that ships.
    """

    slug: str
    factor: float
    noise: float
    pairs: int
    workloads: int
    inside: float | None
    right: float | None
    own: int = 0


@dataclass(frozen=True)
class RuleTrial:
    """One trial of a rule's advice on the user's machine: the speedup that the rule stated, and the measured one."""

    slug: str
    stated: Interval
    measured: float
    device: str


def refine(table: Mapping[str, Record], trials: Sequence[RuleTrial]) -> Mapping[str, Record]:
    """The table with the user's own trials of each rule, among which its factor weighs as much as ``PRIOR_PAIRS``.

    A rule without trials keeps its record. Where no table is at hand, as on a GPU, intervals as the rules state them
    take its place.
    """
    refined = dict(table)
    for slug in dict.fromkeys(trial.slug for trial in trials):
        own = [trial for trial in trials if trial.slug == slug]
        known = table.get(slug, table.get(ANY_RULE, _UNKNOWN))
        known_pairs = known.pairs if known.slug == slug else 0
        pairs = len(own) + known_pairs
        # The step became faster where that was stated, and slower where that was.
        right = sum((each.measured > 1) == (each.stated.low * each.stated.high > 1) for each in own)
        before = (known.right or 0.0) * known_pairs
        refined[slug] = replace(
            known,
            slug=slug,
            factor=factor_of((score(trial.stated, trial.measured) for trial in own), [math.log(known.factor)]),
            pairs=pairs,
            right=(before + right) / pairs,
            own=len(own),
        )
    return refined


def widen(slug: str, interval: Interval, table: Mapping[str, Record]) -> Interval:
    """The speedups that cover as many measurements as promised; the same interval where no table has been learned.

    The interval is never narrower than the noise of the measurements behind it.
    """
    record = table.get(slug, table.get(ANY_RULE))
    if record is None:
        return interval
    low, high = math.log(interval.low), math.log(interval.high)
    half_width = max((high - low) / 2 + math.log(record.factor), record.noise)
    return Interval(math.exp((low + high) / 2 - half_width), math.exp((low + high) / 2 + half_width))


def keeps_figure(slug: str, table: Mapping[str, Record]) -> bool:
    """False for a rule that was wrong too often in enough pairs: its advice is then shown without a gain."""
    record = table.get(slug)
    if record is None or record.right is None or record.pairs < PAIRS_TO_JUDGE:
        return True
    return record.right >= RIGHT_AT_LEAST


def why_without_figure(slug: str, table: Mapping[str, Record]) -> str:
    """The reason why a rule that lost its figure predicts no gain."""
    record = table[slug]
    where = f", {record.own} of them yours" if record.own else " on CPUs"
    right = format_share(record.right or 0.0)
    return f"of {counted(record.pairs, 'trial')} of this advice{where}, only {right} went as predicted"


def describe(slug: str, table: Mapping[str, Record]) -> tuple[str, ...]:
    """A line of evidence that says from which trials the width of an interval comes; none without trials."""
    record = table.get(slug, table.get(ANY_RULE))
    if record is None:
        return ()
    others = record.pairs - record.own
    of = "of this advice" if record.slug == slug else "of other advice"
    shipped = f"{counted(others, 'trial')} {of} on CPUs" if others else ""
    own = f"your {counted(record.own, 'trial')} of this advice here" if record.own else ""
    direction, factor = ("out", record.factor) if record.factor >= 1 else ("in", 1 / record.factor)
    return (
        f"interval from {' and '.join(filter(None, (own, shipped)))}: 4 of 5 measurements lay within the rule's own "
        f"with each end moved {direction} {factor:.2f} times",
    )


def score(interval: Interval, measured: float) -> float:
    """Distance of a measured speedup from its predicted interval, as a logarithm; negative inside."""
    return max(math.log(interval.low / measured), math.log(measured / interval.high))


def factor_of(own: Iterable[float], others: Iterable[float], coverage: float = COVERAGE) -> float:
    """The factor of a rule with these scores among others; 1 without any score.

    It is that of the smallest score up to which the scores hold the share ``coverage`` of all weight, the next pair's
    included, whose score is not known yet; the largest score where so few cannot promise that.
    """
    mine, rest = list(own), list(others)
    weighed = sorted([*((each, 1.0) for each in mine), *((each, PRIOR_PAIRS / len(rest)) for each in rest)])
    wanted = coverage * (math.fsum(weight for _, weight in weighed) + 1.0)
    reached = 0.0
    for value, weight in weighed:
        reached += weight
        if reached >= wanted - 1e-9:
            return math.exp(value)
    return math.exp(weighed[-1][0]) if weighed else 1.0


@lru_cache(maxsize=1)
def read_table(path: Path = TABLE) -> Mapping[str, Record]:
    """The record of each rule by its slug; empty where there is no table."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        return {row["slug"]: _record(row) for row in csv.DictReader(lines)}


def write_table(path: Path, records: Sequence[Record]) -> None:
    """Writes the table with three digits of each number."""
    with path.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows([_cell(getattr(record, column)) for column in _COLUMNS] for record in records)


_UNKNOWN = Record(ANY_RULE, 1.0, 0.0, 0, 0, None, None)
_COLUMNS = ("slug", "factor", "noise", "pairs", "workloads", "inside", "right")


def _record(row: Mapping[str, str]) -> Record:
    inside, right = (float(row[column]) if row[column] else None for column in ("inside", "right"))
    pairs, workloads = int(row["pairs"]), int(row["workloads"])
    return Record(row["slug"], float(row["factor"]), float(row["noise"]), pairs, workloads, inside, right)


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else value
