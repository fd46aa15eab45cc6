"""Words counters, time and verdicts for all formats of the gate.

Nothing is escaped here.
"""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence

from bottleneck.report.document import LabelledLine
from bottleneck.report.text import UNKNOWN
from bottleneck.schema.counters import COUNTERS, Counter, cost_rank
from bottleneck.schema.gate_result import (
    COMPARED,
    EXIT_CODES,
    CounterChange,
    CounterVerdict,
    Culprit,
    Gate,
    GateVerdict,
    TimeResult,
    WorkloadResult,
)
from bottleneck.schema.measurements import Ratio
from bottleneck.schema.numerics import NumericsResult, OutputChange
from bottleneck.units import counted, format_share, format_si, format_us

UNKNOWN_AMOUNT = "-"

_EXACT_BELOW, _EXACT_FROM = 10_000, 10**18


def counter_of(metric: str) -> Counter | None:
    """Finds the counter that a metric counts.

    Of the whole step ('launches'), or of modules ('module:decoder.*.launches').
    """
    return COUNTERS.get(metric.rpartition(".")[2] if metric.startswith("module:") else metric)


def amounts(metric: str, before: int | None, after: int | None) -> tuple[str, str, str]:
    """Words before, after and the difference of a counter.

    Exact where rounding would hide what differs.
    """
    shown = [amount(metric, value) for value in (before, after)]
    if before != after and shown[0] == shown[1]:
        shown = [_exact(value) for value in (before, after)]
    grown = None if before is None or after is None else after - before
    sign = "" if not grown else "-" if grown < 0 else "+"
    return shown[0], shown[1], f"{sign}{amount(metric, None if grown is None else abs(grown))}"


def format_change(change: CounterChange) -> str:
    """Words a change: 'syncs 0 to 1', 'syncs unknown to 1'."""
    values, shown = (change.before, change.after), amounts(change.metric, change.before, change.after)[:2]
    before, after = ("unknown" if value is None else text for value, text in zip(values, shown, strict=True))
    return f"{change.metric} {before} to {after}"


def amount(metric: str, value: int | None) -> str:
    """Words a count; many bytes or FLOPs have a prefix."""
    counter = counter_of(metric)
    if value is None or counter is None or counter.unit is None:
        return _exact(value)
    if not _EXACT_BELOW <= abs(value) < _EXACT_FROM:
        return _exact(value)
    return format_si(float(value), counter.unit)


def _exact(value: int | None) -> str:
    return UNKNOWN_AMOUNT if value is None else f"{value:,}"


def describe_culprit(culprit: Culprit) -> str:
    """'+24 aten::copy_ in decoder.rotary at model/rope.py:88, changed here'."""
    phrase = f"{'-' if culprit.change < 0 else '+'}{_exact(abs(culprit.change))} {culprit.what}"
    phrase += f" in {culprit.module}" if culprit.module else ""
    if culprit.site is None:
        return phrase
    return f"{phrase} at {culprit.site.place}{', changed here' if culprit.is_touched else ''}"


def growth(ratio: float) -> str:
    """Words a ratio as growth: '+7.6 %', '-<0.01 %'."""
    if not math.isfinite(ratio):
        return "unknown"
    return f"{'-' if ratio < 1 else '+'}{share(abs(ratio - 1))}"


def share(value: float) -> str:
    """Words a share: '2.4 %', or '0.04 %' where it is small."""
    if not math.isfinite(value):
        return "unknown"
    decimals = 2 if 0 < abs(value) < 0.0005 else 1
    return "<0.01 %" if 0 < abs(value) < 0.00005 else f"{value * 100:.{decimals}f} %"


CHANGES: Mapping[CounterVerdict, str] = {
    "broken": "over budget",
    "gone": "vanished",
    "removed": "taken out of the lock-file",
    "new": "without baseline",
    "unstable": "unstable",
    "not compared": "not compared",
    "within budget": "within budget",
    "accepted": "accepted",
    "improved": "better",
    "same": "equal",
}
"""Verdicts of counters in words, the worst first."""

_CULPRITS = 3

# First failures, then passes, then counters that were not compared with anything.
VERDICT_ORDER: tuple[CounterVerdict, ...] = (
    "broken", "gone", "removed", "same", "improved", "within budget", "accepted", "new", "unstable", "not compared",
)  # fmt: skip


def count_by_verdict(changes: Sequence[CounterChange], verdicts: Sequence[CounterVerdict] = VERDICT_ORDER) -> str:
    """Counts verdicts: '15 counters equal, 1 within budget'.

    A metric counts once, as its worst.
    """
    worst: dict[str, CounterVerdict] = {}
    order = list(CHANGES)
    for change in changes:
        worst[change.metric] = min(change.verdict, worst.get(change.metric, "same"), key=order.index)
    numbers = [(list(worst.values()).count(verdict), CHANGES[verdict]) for verdict in verdicts]
    shown = [(number, words) for number, words in numbers if number]
    first = [f"{counted(number, 'counter')} {words}" for number, words in shown[:1]]
    return ", ".join([*first, *(f"{number} {words}" for number, words in shown[1:])])


def differing(result: WorkloadResult) -> list[CounterChange]:
    """Selects the counters that differ, the worst first and of these the costliest.

    Those too that only one side knows.
    """
    order = list(CHANGES)
    shown = [
        change
        for change in result.counters
        if change.verdict not in {"not compared", "unstable", "new"}
        and (change.verdict != "same" or change.before != change.after)
    ]
    return sorted(shown, key=lambda change: (order.index(change.verdict), cost_rank(change.metric.rpartition(".")[2])))


def describe_limit(change: CounterChange) -> str:
    """'+0', '+3% since the anchor'."""
    if change.limit is None:
        return UNKNOWN
    return f"{change.limit.text}{' since the anchor' if change.is_creep else ''}"


def describe_change(change: CounterChange) -> str:
    """Words a change: 'launches 303 to 311 per step, limit +0'."""
    if change.before is None and change.after is not None:
        return f"{change.metric} {amount(change.metric, change.after)} per step, without baseline"
    limit = f", limit {describe_limit(change)}" if change.limit is not None else ""
    return f"{format_change(change)} per step{limit}"


def describe_cause(change: CounterChange) -> list[str]:
    """Words the first causes of a change, and its reason."""
    phrases = [describe_culprit(culprit) for culprit in change.culprits[:_CULPRITS]]
    left = len(change.culprits) - len(phrases)
    elsewhere = _elsewhere(change)
    return [
        *phrases,
        *([f"{left} more"] if left else []),
        *([elsewhere] if elsewhere else []),
        *([change.reason] if change.reason else []),
    ]


def _elsewhere(change: CounterChange) -> str:
    """Words what the causes leave of a change: '-12 elsewhere'.

    Empty where that is nothing, or they count calls of bytes.
    """
    counter = counter_of(change.metric)
    is_of_calls = counter is not None and counter.unit is None
    if not is_of_calls or not change.culprits or change.before is None or change.after is None:
        return ""
    rest = change.after - change.before - sum(culprit.change for culprit in change.culprits)
    return f"{'-' if rest < 0 else '+'}{_exact(abs(rest))} elsewhere" if rest else ""


def by_reason(result: WorkloadResult, verdict: CounterVerdict) -> list[str]:
    """Words the counters of one verdict, by their reasons.

    'peak_bytes, allocations: the baseline is of another device'.

    What neither side can know is left out where all is well.
    """
    reasons: dict[str, list[str]] = {}
    for change in result.counters:
        is_shown = result.verdict != "pass" or not is_nowhere(change, result)
        if change.verdict == verdict and is_shown:
            reasons.setdefault(change.reason or "", []).append(change.metric)
    return [", ".join(dict.fromkeys(names)) + (f": {reason}" if reason else "") for reason, names in reasons.items()]


def is_nowhere(change: CounterChange, result: WorkloadResult) -> bool:
    """Tells counters that neither side can know, as kernels on CPUs."""
    unknown = {} if result.counts is None else result.counts.unknown
    return change.before is None and change.after is None and change.metric in unknown


def improved(result: WorkloadResult) -> tuple[CounterChange, ...]:
    """The counters that got better."""
    return tuple(change for change in result.counters if change.verdict == "improved" and not change.is_creep)


def time_summary(time: TimeResult | None) -> str:
    """Words a time, or why it was not measured.

    'step +0.4 % (-0.6 % to +1.3 %), could see 1.8 % or more'.
    """
    if time is None:
        return "time not measured"
    if time.ratio is None:
        steps = _steps(time)
        phrase = f"time {time.verdict}" if steps is None else f"{steps} ({time.verdict})"
        return phrase + (f": {time.reason}" if time.reason else "")
    ratio = time.ratio
    phrase = f"step {_growth_interval(ratio)}{_doubt(time)}"
    visible = time.smallest_visible
    return phrase if visible is None else f"{phrase}, could see {share(visible)} or more"


def time_change_words(time: TimeResult) -> str:
    """Words the change of a time, else its verdict.

    'step 18.2 ms to 19.6 ms, +7.6 % (+5.1 % to +9.9 %), budget 3.0 %'.
    """
    if time.ratio is None:
        return f"step time {time.verdict}"
    budget = None if time.budget is None else f"budget {format_share(time.budget)}"
    return ", ".join(filter(None, (_steps(time), _growth_interval(time.ratio), budget)))


def time_in_short(time: TimeResult | None) -> str:
    """Words a time in short: 'step +2.1 % (undecided)'.

    Nothing where the workload came to no time at all.
    """
    if time is None:
        return ""
    if time.ratio is None:
        return f"time {time.verdict}"
    return f"step {growth(time.ratio.median)}{_doubt(time)}"


def _doubt(time: TimeResult) -> str:
    """The reservation about a figure that is no verdict."""
    return f" ({time.verdict})" if time.verdict in {"undecided", "advisory"} else ""


def describe_time(time: TimeResult) -> str:
    """All figures of the time, in one sentence."""
    phrases = [time.verdict, _steps(time), _interval(time)]
    if time.budget is not None:
        floor = f", or {format_us(time.floor_us)} where that is more" if time.floor_us else ""
        phrases.append(f"budget {growth(1 + time.budget)}{floor}")
    if time.smallest_visible is not None:
        phrases.append(f"this run could see {share(time.smallest_visible)} or more")
    phrases += [time.reason, f"measured in {took(time.seconds)}" if time.seconds else None]
    return "; ".join(filter(None, phrases))


def _steps(time: TimeResult) -> str | None:
    """Words both steps: '18.2 ms to 19.6 ms'; null without both."""
    if time.base_us is None or time.candidate_us is None:
        return None
    return f"step {format_us(time.base_us.median)} to {format_us(time.candidate_us.median)}"


def _interval(time: TimeResult) -> str | None:
    """Words the growth between bounds that each hold at 99 %.

    With the number of pairs, and how many of them confirmed it.
    """
    if time.ratio is None:
        return None
    ratio = time.ratio
    pairs = counted(ratio.n, "pair")
    confirmed = f", {time.confirming} of them fresh ones to confirm" if time.confirming else ""
    return f"{_growth_interval(ratio, '98 %: ')} over {pairs}{confirmed}"


def _growth_interval(ratio: Ratio, level: str = "") -> str:
    """Words a growth with its interval: '+7.6 % (+5.1 % to +9.9 %)'."""
    return f"{growth(ratio.median)} ({level}{growth(ratio.low)} to {growth(ratio.high)})"


def took(seconds: float) -> str:
    """A duration of waiting: '4.2 s', '41 s', '3 min 12 s'."""
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"


_WRONG: tuple[CounterVerdict, ...] = ("broken", "gone", "removed")

VERDICTS: Mapping[GateVerdict, str] = {
    "fail": "FAIL",
    "failed": "ERROR",
    "nothing measured": "NOTHING MEASURED",
    "undecided": "UNDECIDED",
    "pass": "PASS",
}
"""The verdicts as they are shown, the worst first."""


def verdict_of(gate: Gate) -> GateVerdict:
    """Finds the verdict that the exit code stands for."""
    verdicts = {result.verdict for result in gate.results}
    meant = [verdict for verdict in VERDICTS if EXIT_CODES[verdict] == gate.exit_code]
    otherwise: GateVerdict = meant[-1] if meant and gate.results else "nothing measured"
    return next((verdict for verdict in meant if verdict in verdicts), otherwise)


def verdict_words(gate: Gate) -> str:
    """Words the verdict that the exit code stands for: 'FAIL'."""
    verdict = verdict_of(gate)
    shown = {workload_verdict(result) for result in gate.results if result.verdict == verdict}
    return shown.pop() if len(shown) == 1 else VERDICTS[verdict]


_IN_PART = "NOT ALL MEASURED"


def workload_verdict(result: WorkloadResult) -> str:
    """Words the verdict on a workload: some of its counters may have been measured."""
    if result.verdict == "nothing measured" and any(change.verdict in COMPARED for change in result.counters):
        return _IN_PART
    return VERDICTS[result.verdict]


def verdict_and_code(gate: Gate) -> str:
    """'FAIL, exit code 1'."""
    return f"{verdict_words(gate)}, exit code {gate.exit_code}"


def closing(gate: Gate) -> str:
    """Words the whole gate in a line.

    'FAIL, exit code 1: 1 of 3 workloads regressed: mlp; 2 workloads passed. Took 41 s.'.
    """
    sentence = gate.sentence.rstrip(" .") or "no sentence"
    return f"{verdict_and_code(gate)}: {sentence}. Took {took(gate.seconds)}."


def worst_first(results: Iterable[WorkloadResult]) -> list[WorkloadResult]:
    """The workloads in order of their verdicts, else as they come."""
    order = list(VERDICTS)
    return sorted(results, key=lambda result: order.index(result.verdict))


def headline(result: WorkloadResult) -> str:
    """Words what stands beside a workload's name.

    Counters, outputs, time and duration, each in a phrase.

    It is short for a failure, as the story and the time follow in lines of their own.
    """
    is_passed = result.verdict == "pass"
    changes = [change for change in result.counters if not is_nowhere(change, result)]
    counters = count_by_verdict(changes, VERDICT_ORDER if is_passed or result.verdict == "undecided" else _WRONG)
    time = time_summary(result.time) if is_passed else time_in_short(result.time)
    return "; ".join(
        [phrase for phrase in (counters, outputs_in_short(result.numerics), time) if phrase]
        + [f"took {took(result.seconds)}"]
    )


def _wrong(result: WorkloadResult) -> list[CounterChange]:
    """Selects the counters that fail, the costliest first."""
    return [change for change in differing(result) if change.verdict in _WRONG]


def _costliest_cause(result: WorkloadResult) -> Culprit | None:
    """Finds the first cause with a line of the costliest counter that fails."""
    return next((one for change in _wrong(result)[:1] for one in change.culprits if one.site is not None), None)


def _at_place(cause: Culprit | None) -> str:
    return "" if cause is None or cause.site is None else f" at {cause.site.place}"


def undo(result: WorkloadResult) -> str:
    """Words what to undo first of a failure; empty where no line is known."""
    cause = _costliest_cause(result)
    return "" if cause is None else f"Undo {describe_culprit(cause)}"


def failure(result: WorkloadResult) -> str:
    """Words what failed and by how much.

    'step 18.2 ms to 19.6 ms (+7.6 %); syncs 0 to 8 per step at mlp.py:25'.
    """
    changes = _wrong(result)
    phrases = []
    if result.time is not None and result.time.verdict == "slower":
        ratio = "" if result.time.ratio is None else f" ({growth(result.time.ratio.median)})"
        phrases.append(f"{_steps(result.time) or 'step slower'}{ratio}")
    if changes:
        cause = _costliest_cause(result)
        more = f", and {counted(len(changes) - 1, 'more counter')}" if len(changes) > 1 else ""
        phrases.append(f"{format_change(changes[0])} per step{_at_place(cause)}{more}")
    if result.numerics is not None and result.numerics.verdict == "differs":
        phrases.append(outputs_in_short(result.numerics))
    return "; ".join(phrases)


def outputs_in_short(numerics: NumericsResult | None) -> str:
    """Words outputs: '9 outputs the same'; nothing where none compared."""
    if numerics is None or numerics.verdict not in {"same", "differs"}:
        return ""
    if numerics.verdict == "same":
        return f"{counted(numerics.compared, 'output')} the same"
    return f"{len(numerics.changes)} of {counted(numerics.compared, 'output')} other than locked"


def describe_output(change: OutputChange) -> str:
    """Words an output that differs, and what rounding explains."""
    text = f"{change.name}: {change.what}"
    if change.difference is None or change.tolerance is None:
        return text
    return f"{text}, {change.difference:.1e} of its size; rounding explains {change.tolerance:.1e}"


def accept_command(workload: str, metrics: Iterable[str]) -> str:
    """Words the command that takes these metrics as they are.

    From then on, falling back is a regression.
    """
    names = ",".join(sorted(metrics))
    return f'bottleneck accept {shlex.quote(workload)} --metric {shlex.quote(names)} --reason "…"'


def story(result: WorkloadResult) -> list[LabelledLine]:
    """Lists what happened, each cause, and the fix of a failure."""
    if result.verdict == "pass":
        return []
    causes = [LabelledLine("why", cause.sentence, cause.code) for cause in dict.fromkeys(result.why)]
    fix = LabelledLine("fix", result.fix.sentence, command=result.fix.command)
    return [line for line in (LabelledLine("what", result.what), *causes, fix) if line.text or line.command]


def asides(result: WorkloadResult) -> list[LabelledLine]:
    """Further facts on a workload."""
    facts = [("allowed", text) for text in _allowed(result)]
    facts += [] if result.is_new else [("without baseline", text) for text in by_reason(result, "new")]
    facts += [("not compared", text) for text in by_reason(result, "not compared")]
    # Never gated, because runs disagree: those too that only the counts of this run know of.
    listed = {change.metric for change in result.counters}
    unstable = {} if result.counts is None else result.counts.unstable
    others = [f"{metric}: {reason}" for metric, reason in unstable.items() if metric not in listed]
    facts += [("unstable", text) for text in (*by_reason(result, "unstable"), *others)]
    numerics = result.numerics
    if numerics is not None:
        facts += [("outputs", f"not compared: {numerics.reason}")] if numerics.reason else []
        facts += [("not held", f"{name}: {why}") for name, why in numerics.unstable.items()]
    facts += [("warning", warning) for warning in result.warnings]
    return [*_better(result), *(LabelledLine(label, text) for label, text in facts)]


def _better(result: WorkloadResult) -> list[LabelledLine]:
    """Names the counters that got better, with the command to keep them."""
    changes = improved(result)
    words = ", ".join(map(format_change, changes))
    if not changes or not result.lock:
        return [LabelledLine("better", words)] if changes else []
    command = accept_command(result.name, {change.metric for change in changes})
    return [LabelledLine("better", f"{words}; to keep it:", command=command)]


def _allowed(result: WorkloadResult) -> list[str]:
    """Names the counters that grew and pass: within their budgets, or accepted."""
    allowed: tuple[CounterVerdict, ...] = ("within budget", "accepted")
    changes = [change for change in result.counters if result.verdict == "pass" and change.verdict in allowed]
    return [f"{describe_change(change)}{f': {change.reason}' if change.reason else ''}" for change in changes]
