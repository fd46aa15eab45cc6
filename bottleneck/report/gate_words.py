"""What the gate found in words: the phrases that all of its formats share; nothing in them is escaped yet."""

import shlex
from collections.abc import Iterable, Mapping

from bottleneck.gated import EXIT_CODES, CounterVerdict, Gate, GateVerdict, WorkloadResult
from bottleneck.report.gate_counter_words import (
    TOLD,
    allowed_words,
    by_reason,
    counters_words,
    improved,
    improvement_words,
    is_nowhere,
    unstable_words,
)
from bottleneck.report.gate_time_words import time_in_short, time_summary, took

VERDICTS: Mapping[GateVerdict, str] = {
    "fail": "FAIL",
    "failed": "ERROR",
    "nothing measured": "NOTHING MEASURED",
    "undecided": "UNDECIDED",
    "pass": "PASS",
}
"""The verdicts as they are shown, the worst first."""


def verdict_of(gate: Gate) -> GateVerdict:
    """The verdict on all workloads together: the one that the exit code stands for."""
    found = {result.verdict for result in gate.results}
    meant = [verdict for verdict in VERDICTS if EXIT_CODES[verdict] == gate.exit_code]
    otherwise: GateVerdict = meant[-1] if meant and gate.results else "nothing measured"
    return next((verdict for verdict in meant if verdict in found), otherwise)


def closing(gate: Gate) -> str:
    """'FAIL, exit code 1: 1 of 3 workloads regressed: mlp; 2 workloads passed. Took 41 s.'."""
    lead = f"{VERDICTS[verdict_of(gate)]}, exit code {gate.exit_code}"
    return f"{lead}: {gate.sentence.rstrip(' .') or 'no sentence'}. Took {took(gate.seconds)}."


def worst_first(results: Iterable[WorkloadResult]) -> list[WorkloadResult]:
    """The workloads in order of their verdicts, else as they come."""
    order = list(VERDICTS)
    return sorted(results, key=lambda result: order.index(result.verdict))


def headline(result: WorkloadResult) -> str:
    """What stands beside the verdict and the name: the counters, the time and how long it took, each in a phrase.

    Of a failure that is short, as the story and the time follow in lines of their own.
    """
    is_passed = result.verdict == "pass"
    wrong: tuple[CounterVerdict, ...] = ("broken", "gone")
    changes = [change for change in result.counters if not is_nowhere(change, result)]
    counters = counters_words(changes, TOLD if is_passed or result.verdict == "undecided" else wrong)
    time = time_summary(result.time) if is_passed else time_in_short(result.time)
    return "; ".join([phrase for phrase in (counters, time) if phrase] + [f"took {took(result.seconds)}"])


def accept_command(result: WorkloadResult) -> str:
    """The command that keeps what got better: from then on, falling back is a regression."""
    metrics = ",".join(sorted({change.metric for change in improved(result)}))
    return f'bottleneck accept {shlex.quote(result.name)} --metric {shlex.quote(metrics)} --reason "…"'


def story(result: WorkloadResult) -> list[tuple[str, str]]:
    """The three lines, labelled: what happened, why (a line each), and how to fix or accept it; none of a pass."""
    lines = [("what", result.what), *(("why", why) for why in dict.fromkeys(result.why)), ("fix", result.fix)]
    return [] if result.verdict == "pass" else [(label, text) for label, text in lines if text]


def asides(result: WorkloadResult) -> list[tuple[str, str]]:
    """What else is to be known of a workload, labelled, each in a sentence."""
    keep = f"; to keep it: {accept_command(result)}" if result.lock else ""
    told = [("better", f"{improvement_words(result)}{keep}")] if improved(result) else []
    told += [("allowed", text) for text in allowed_words(result)] if result.verdict == "pass" else []
    told += [] if result.is_new else [("without baseline", text) for text in by_reason(result, "new")]
    told += [("not compared", text) for text in by_reason(result, "not compared")]
    told += [("unstable", text) for text in unstable_words(result)]
    return [*told, *(("warning", warning) for warning in result.warnings)]


def split_command(text: str) -> tuple[str, str]:
    """A sentence and the command that it ends in, which must stay whole to be copied; '' where it ends in none."""
    before, mark, after = text.rpartition("bottleneck accept ")
    return (before.rstrip(), f"{mark}{after}") if mark else (text, "")
