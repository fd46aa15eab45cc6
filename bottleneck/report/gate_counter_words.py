"""The counters that the gate held against their baselines, in words; nothing in them is escaped yet."""

from collections.abc import Mapping, Sequence

from bottleneck.gated import CounterChange, CounterVerdict, WorkloadResult
from bottleneck.gated_words import amounts, culprit_words, tell_change
from bottleneck.report.numbers import UNKNOWN

CHANGES: Mapping[CounterVerdict, str] = {
    "broken": "over budget",
    "gone": "vanished",
    "new": "without baseline",
    "unstable": "unstable",
    "not compared": "not compared",
    "within budget": "within budget",
    "accepted": "accepted",
    "improved": "better",
    "same": "equal",
}
"""What became of a counter, the worst first."""

_CULPRITS = 3

# First what is wrong, then what is well, then what was not held against anything.
TOLD: tuple[CounterVerdict, ...] = (
    "broken", "gone", "same", "improved", "within budget", "accepted", "new", "unstable", "not compared",
)  # fmt: skip


def counters_words(changes: Sequence[CounterChange], verdicts: Sequence[CounterVerdict] = TOLD) -> str:
    """'15 counters equal, 1 within budget': how many there are of each verdict; a metric counts once, as its worst."""
    worst: dict[str, CounterVerdict] = {}
    order = list(CHANGES)
    for change in changes:
        worst[change.metric] = min(change.verdict, worst.get(change.metric, "same"), key=order.index)
    counts = {verdict: list(worst.values()).count(verdict) for verdict in verdicts}
    told = [f"{count} {CHANGES[verdict]}" for verdict, count in counts.items() if count]
    if not told:
        return ""
    number, _, words = told[0].partition(" ")
    return ", ".join([f"{number} counter{'' if number == '1' else 's'} {words}", *told[1:]])


def differing(result: WorkloadResult) -> list[CounterChange]:
    """The counters that a table shows, the worst first: those that differ or that only one side knows."""
    order = list(CHANGES)
    shown = [
        change
        for change in result.counters
        if change.verdict not in {"not compared", "unstable", "new"}
        and (change.verdict != "same" or change.before != change.after)
    ]
    return sorted(shown, key=lambda change: order.index(change.verdict))


def limit_words(change: CounterChange) -> str:
    """'+0', '+3% since the anchor'."""
    if change.limit is None:
        return UNKNOWN
    return f"{change.limit.text}{' since the anchor' if change.is_creep else ''}"


def change_words(change: CounterChange) -> str:
    """'launches 303 -> 311 per step, limit +0', 'launches 311 per step, without baseline'."""
    if change.before is None and change.after is not None:
        return f"{change.metric} {amounts(change)[1]} per step, without baseline"
    limit = f", limit {limit_words(change)}" if change.limit is not None else ""
    return f"{tell_change(change)} per step{limit}"


def cause_words(change: CounterChange) -> list[str]:
    """What changed a counter, the first few, and why nothing is known where that is so."""
    told = [culprit_words(culprit) for culprit in change.culprits[:_CULPRITS]]
    left = len(change.culprits) - len(told)
    return [*told, *([f"{left} more"] if left else []), *([change.reason] if change.reason else [])]


def by_reason(result: WorkloadResult, verdict: CounterVerdict) -> list[str]:
    """'peak_bytes, allocations: the baseline is of another device': the counters of one verdict, by their reasons.

    What neither side can know is left out where all is well.
    """
    reasons: dict[str, list[str]] = {}
    for change in result.counters:
        is_told = result.verdict != "pass" or not is_nowhere(change, result)
        if change.verdict == verdict and is_told:
            reasons.setdefault(change.reason or "", []).append(change.metric)
    return [", ".join(dict.fromkeys(names)) + (f": {reason}" if reason else "") for reason, names in reasons.items()]


def is_nowhere(change: CounterChange, result: WorkloadResult) -> bool:
    """Whether neither side can know this counter, as kernels on a CPU: no news, and no gap in what was held."""
    unknown = {} if result.counts is None else result.counts.unknown
    return change.before is None and change.after is None and change.metric in unknown


def improved(result: WorkloadResult) -> tuple[CounterChange, ...]:
    """The counters that got better."""
    return tuple(change for change in result.counters if change.verdict == "improved" and not change.is_creep)


def improvement_words(result: WorkloadResult) -> str:
    """'launches 311 -> 303'."""
    return ", ".join(tell_change(change) for change in improved(result))


def allowed_words(result: WorkloadResult) -> list[str]:
    """What grew and passes: within its budget, or accepted."""
    grown = [change for change in result.counters if change.verdict in {"within budget", "accepted"}]
    return [f"{change_words(change)}{f': {change.reason}' if change.reason else ''}" for change in grown]


def unstable_words(result: WorkloadResult) -> list[str]:
    """Counters never gated because runs disagree, those too that only the counts of this run know of."""
    listed = {change.metric for change in result.counters}
    others = {} if result.counts is None else result.counts.unstable
    return [
        *by_reason(result, "unstable"),
        *(f"{metric}: {reason}" for metric, reason in others.items() if metric not in listed),
    ]
