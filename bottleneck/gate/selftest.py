"""Proves that the gate can fail, by regressions that it inserts.

Each must be red, and the step without them green.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bottleneck.experiment.side import Side
from bottleneck.experiment.turns import time_in_pairs
from bottleneck.gate.count_program import count_program
from bottleneck.gate.judge import is_compared, is_red, judge_counts
from bottleneck.gate.run_gate import GatedPart, GateRun, effort_of
from bottleneck.gate.settings import STEP, workload_name
from bottleneck.harness.forms import VARIABLE
from bottleneck.harness.messages import Program
from bottleneck.report.ci.phrases import format_change, time_change_words
from bottleneck.schema.counters import COUNTERS, Counts, Lock
from bottleneck.schema.gate_result import CounterChange, GateSettings, Limit, TimeResult, TimeVerdict
from bottleneck.units import counted, format_us

Color = Literal["red", "green", "open"]

_STEP_LIMIT = Limit(STEP, relative=0.03, text="+3%")
_COLORS: dict[TimeVerdict, Color] = {"slower": "red", "fine": "green", "faster": "green"}


@dataclass(frozen=True)
class Injection:
    """A regression for every step: extra ops, syncs or time.

    Time is a share and a least amount in microseconds.

    ``what`` describes it, ``because`` gives the budget behind its size. An empty ``kind`` inserts nothing.
    """

    kind: Literal["op", "sync", "slowdown", ""]
    what: str
    because: str = ""
    amounts: tuple[float, ...] = ()

    @property
    def variable(self) -> str:
        """The value of the environment variable that makes a process insert it."""
        return ":".join((self.kind, *(f"{amount:.6g}" for amount in self.amounts))) if self.kind else ""


NOTHING = Injection("", "no change")


@dataclass(frozen=True)
class ProofCheck:
    """An expected and actual result; ``open`` is undecided or unmeasured."""

    what: str
    demanded: Color
    said: Color
    detail: str

    @property
    def is_met(self) -> bool:
        """True if the gate gave the expected result."""
        return self.said == self.demanded


@dataclass(frozen=True)
class Proof:
    """All checks of one workload; without any there is a ``reason``."""

    name: str
    checks: tuple[ProofCheck, ...] = ()
    reason: str = "nothing was demanded of it"
    seconds: float = 0.0

    @property
    def is_proven(self) -> bool:
        """Tells if all results were as expected, and any was."""
        return bool(self.checks) and all(check.is_met for check in self.checks)

    @property
    def text(self) -> str:
        """Words the verdict, with every check on a line below."""
        lines = [f"{self.name}: {self._sentence}"]
        for check in self.checks:
            mark = "ok" if check.is_met else "open" if check.said == "open" else "WRONG"
            lines.append(f"  {mark:<5}  {check.said:<5}  {check.what}: {check.detail}")
        return "\n".join(lines) + "\n"

    @property
    def _sentence(self) -> str:
        if not self.checks:
            return f"gate not proven: {self.reason}"
        wrong = [f"{check.said} for {check.what}" for check in self.checks if not check.is_met and check.said != "open"]
        if wrong:
            return f"gate NOT proven: it is {', '.join(wrong)}"
        missing = [check.what for check in self.checks if check.said == "open"]
        if missing:
            return f"gate not proven: it could not decide on {', '.join(missing)}"
        caught = ", ".join(check.what for check in self.checks if check.demanded == "red")
        return f"gate proven: it catches {caught}; it stays green on the step itself ({self.seconds:.0f} s)"


@dataclass(frozen=True)
class GateUnderTest:
    """Functions that count, time and judge a step with an injection."""

    count: Callable[[Injection], Counts]
    judge: Callable[[Lock, Counts, GateSettings], Sequence[CounterChange]]
    time_in_pairs: Callable[[Injection], TimeResult]


def self_test(
    name: str, settings: GateSettings, gate: GateUnderTest, parts: Sequence[GatedPart] = ("counters", "time")
) -> Proof:
    """Proves the gate for one workload by these settings.

    What counting or timing raises comes through.

    The lock-file that counters are held against is what the step counts now: a change that is under way is not what is
    in question.
    """
    started = time.monotonic()
    checks: list[ProofCheck] = []
    if "counters" in parts:
        checks += _check_counters(name, settings, gate)
    if "time" in parts:
        injection = slowdown(settings.budgets.get(STEP, _STEP_LIMIT))
        checks.append(_check_color(f"{injection.what}{injection.because}", "red", gate.time_in_pairs(injection)))
        checks.append(_check_color("its own time", "green", gate.time_in_pairs(NOTHING)))
    return Proof(name, tuple(checks), seconds=time.monotonic() - started)


def one_more(kind: Literal["op", "sync"], counter: str, limit: Limit | None, before: int) -> Injection:
    """Finds the fewest ops or syncs that exceed their budget."""
    limit = limit or Limit(counter)
    allowed = max(limit.floor, limit.absolute or 0.0, (limit.relative or 0.0) * before, 0.0)
    number = math.floor(allowed) + 1
    words = COUNTERS[counter].one if number == 1 else COUNTERS[counter].many
    because = f" (budget {limit.text})" if number > 1 else ""
    return Injection(kind, f"{'one' if number == 1 else number} more {words}", because, (number,))


def slowdown(limit: Limit) -> Injection:
    """Twice what the time may grow by."""
    share, least_us = 2 * (limit.relative or 0.0), 2 * max(limit.floor, limit.absolute or 0.0)
    parts = [f"{100 * share:.3g} %"] if share else []
    parts += [f"{format_us(least_us)} at least"] if least_us else []
    because = f" (budget {limit.text})"
    return Injection("slowdown", f"a step longer by {', '.join(parts)}", because, (share, least_us))


def _check_counters(name: str, settings: GateSettings, gate: GateUnderTest) -> Iterator[ProofCheck]:
    counts = gate.count(NOTHING)
    lock = Lock(name, (), counts)
    exact = replace(settings, creep={})
    counted_kinds: tuple[tuple[Literal["op", "sync"], str], ...] = (("op", "ops"), ("sync", "syncs"))
    for kind, counter in counted_kinds:
        injection = one_more(kind, counter, settings.budgets.get(counter), counts.values.get(counter, 0))
        if counter not in counts.values:
            reason = counts.unknown.get(counter) or counts.unstable.get(counter) or "it was not counted"
            yield ProofCheck(injection.what, "red", "open", f"{counter}: {reason}")
            continue
        changes = gate.judge(lock, gate.count(injection), exact)
        yield _check_counter(injection, counter, changes)
    yield _check_same(gate.judge(lock, gate.count(NOTHING), exact))


def _check_counter(injection: Injection, counter: str, changes: Sequence[CounterChange]) -> ProofCheck:
    """Checks that this very counter is red, not only others."""
    own_change = next((change for change in changes if change.metric == counter), None)
    what = f"{injection.what}{injection.because}"
    if own_change is None or own_change.after is None:
        return ProofCheck(
            what, "red", "open", own_change.reason or "not counted" if own_change else f"{counter} was not judged"
        )
    said: Color = "red" if is_red(own_change) else "green"
    return ProofCheck(what, "red", said, f"{format_change(own_change)}, {own_change.verdict}")


def _check_same(changes: Sequence[CounterChange]) -> ProofCheck:
    red = [change for change in changes if is_red(change)]
    if red:
        return ProofCheck("its own counters", "green", "red", "; ".join(format_change(change) for change in red))
    same = sum(change.verdict == "same" for change in changes)
    said: Color = "green" if is_compared(changes) else "open"
    return ProofCheck("its own counters", "green", said, f"{same} of {counted(len(changes), 'counter')} the same")


def _check_color(what: str, demanded: Color, result: TimeResult) -> ProofCheck:
    detail = "; ".join(filter(None, (time_change_words(result), result.reason)))
    return ProofCheck(what, demanded, _COLORS.get(result.verdict, "open"), f"{result.verdict}: {detail}")


_NO_STEP = "the self-test needs a workload: a script's step cannot be made longer from outside"


def prove(run: GateRun, program: Program) -> Proof:
    """Proves that the gate catches regressions of this program.

    WorkloadError if it does not run.
    """
    name = workload_name(program.words)
    if program.form == "script":
        return Proof(name, reason=_NO_STEP)

    def count(injection: Injection) -> Counts:
        run.say(f"counting {name} with {injection.what}")
        number = len(list(run.scratch.glob(f"proof-{name}-*")))
        return count_program(program, run.scratch / f"proof-{name}-{number}", _side(run, injection)).counts

    def time(injection: Injection) -> TimeResult:
        run.say(f"timing {name} with {injection.what}")
        return time_in_pairs(program, _side(run, NOTHING), _side(run, injection), effort_of(run), run.say)

    parts: tuple[GatedPart, ...] = ("counters", "time") if run.only is None else (run.only,)
    return self_test(name, run.settings, GateUnderTest(count, judge_counts, time), parts)


def _side(run: GateRun, injection: Injection) -> Side:
    """The candidate, whose processes get the injection by an environment variable."""
    plain = run.candidate
    return replace(plain, label=injection.what, environment={**plain.environment, VARIABLE: injection.variable})
