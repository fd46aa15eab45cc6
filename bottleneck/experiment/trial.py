"""Tries one change, or several together, on fresh copies of a step.

The module records the result.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bottleneck.errors import WorkloadError
from bottleneck.experiment.interventions import CHANGES
from bottleneck.experiment.interventions.subject import Change
from bottleneck.experiment.side import environment_of
from bottleneck.experiment.turns import Pairing, TimedStep
from bottleneck.experiment.variants import Built
from bottleneck.experiment.worker import NO_TIME, VARIANTS_CHILD, Refused, Worker
from bottleneck.harness.messages import Program
from bottleneck.schema.analysis import Interval
from bottleneck.schema.measurements import Difference, Ratio
from bottleneck.schema.statistics import (
    LOOKS,
    EffectRule,
    estimate,
    judge_effect,
    look_for_effect,
    smallest_visible,
    summarise_durations,
)
from bottleneck.schema.trials import Trial
from bottleneck.units import format_us

ORIGINAL, CHANGED = "original", "changed"
LOG_FILE = "output.txt"

# An effect this many times as large as its interval is wide on one side needs no tighter one.
_CLEAR = 10.0
# A copy of a step may be quicker than another only for where its memory happened to lie: by up to 9 % for a chain of
# large elementwise ops, drawn anew in each process. An effect of that size has to show in each of several.
_SMALL, _FRESH_FOR_SMALL = math.log(1.25), 3
# What is tried longer than this is not made once more to see its memory alone.
_SETUP_SECONDS_TO_REPEAT = 60.0


@dataclass(frozen=True)
class TrialEffort:
    """Duration and precision of the measurement of a change.

    ``budget_s`` is for the pairs of one change, and as much again for those that confirm an effect; ``precision`` is
    how wide the interval may be on one side, as a logarithm.
    """

    budget_s: float = 30.0
    precision: float = 0.02
    seed: int = 0
    rule: EffectRule = field(default_factory=EffectRule)


@dataclass(frozen=True)
class ChangePrediction:
    """Prediction of a change by findings: their slugs and its speedup.

    The speedup is the interval of the largest, null where no finding has one.

    ``most`` is the speedup at most of a change that would bring nothing.
    """

    findings: tuple[str, ...] = ()
    speedup: Interval | None = None
    most: float | None = None


@dataclass(frozen=True)
class TrialSetup:
    """Settings that all trials of one program share.

    ``folder`` takes its output, and its compilers' caches if ``is_cold``. All of them end by ``until``, a time of the
    monotonic clock; then memory is not measured in processes that are started for it alone.
    """

    program: Program
    folder: Path
    effort: TrialEffort = field(default_factory=TrialEffort)
    changes: Mapping[str, Change] = field(default_factory=lambda: CHANGES)
    child: Sequence[str] = VARIANTS_CHILD
    is_cold: bool = True
    tell: Callable[[str], None] = lambda _: None
    until: float = math.inf

    def worker(self, names: Sequence[str], environment: Mapping[str, str]) -> Worker:
        """Opens a process for variants of the program.

        Compilers find only what they made for this trial.
        """
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / f"cache-{'+'.join(names)}")} if self.is_cold else {}
        worker = Worker(self.program, self.folder / LOG_FILE, {**cache, **environment}, self.child)
        worker.until = self.until
        return worker

    def chosen(self, names: Sequence[str]) -> list[Change]:
        """The changes of these names."""
        return [self.changes[name] for name in names]


@dataclass(frozen=True)
class _Variants:
    """Both variants, made and warm, with what making them showed."""

    made: Built
    remade: Built
    pairing: Pairing


def try_changes(setup: TrialSetup, names: tuple[str, ...], prediction: ChangePrediction) -> Trial:
    """The trial of these changes together; WorkloadError where the program fails without any."""
    trial = Trial(
        change="+".join(names),
        title="; ".join(change.title for change in setup.chosen(names)),
        verdict="inconclusive",
        is_bound=not all(change.is_remedy for change in setup.chosen(names)),
        is_part=any(change.against is not None for change in setup.chosen(names)),
        samples=math.prod((change.samples for change in setup.chosen(names)), start=1.0),
        findings=prediction.findings,
        predicted_speedup=prediction.speedup,
        predicted_most=prediction.most,
    )
    return _TrialRun(setup, names, trial).run()


class _TrialRun:
    """One trial under way.

    Its results so far are kept when a later part fails.
    """

    def __init__(self, setup: TrialSetup, names: tuple[str, ...], trial: Trial) -> None:
        self._setup, self._names, self._trial = setup, names, trial
        self._chosen = setup.chosen(names)
        # The names by which the process knows them: those of tuned changes hold their values.
        self._asked = tuple(change.name for change in self._chosen)
        self._is_apart = any(change.is_process_wide or change.environment for change in self._chosen)
        self._draw = random.Random(f"{setup.effort.seed} {trial.change}")  # noqa: S311 - an order, not a secret

    def run(self) -> Trial:
        """The trial; a step that cannot be made or fails is part of it."""
        try:
            self._measure()
        except Refused as refused:
            is_late = refused.verdict == "skipped"
            is_measured = is_late and self._trial.speedup is not None
            reason = f"{refused.reason} to confirm it in a fresh process" if is_measured else refused.reason
            verdict = "inconclusive" if is_measured else refused.verdict
            self._note(verdict=verdict, reason=reason, stopped_by="time" if is_late else None)
        return self._trial

    def _note(self, **known: object) -> None:
        self._trial = replace(self._trial, **known)  # type: ignore[arg-type]

    def _measure(self) -> None:
        effort = self._setup.effort
        results_file = self._setup.folder / "results.pt"
        with self._variants(CHANGED, results_file) as variants:
            self._note(
                setup_s=max(0.0, variants.remade.setup_s - variants.made.setup_s),
                peak_before_bytes=variants.made.peak_bytes,
                peak_after_bytes=variants.remade.peak_bytes if self._is_apart else None,
            )
            self._compare(variants, results_file)
            first = variants.pairing
            self._check_time(first.pair_s)
            self._setup.tell("measuring")
            first.take_until(lambda logs: look_for_effect(logs, effort.rule) != "open", effort.budget_s)
        self._note_times([first])
        if any(difference.is_within is False for difference in self._trial.differences):
            self._note(verdict="wrong", reason=describe_worst(self._trial.differences))
        elif look_for_effect(first.logs, effort.rule) in {"faster", "slower"}:
            self._confirm(first)
        else:
            self._conclude(first, [])
            self._measure_memory()

    def _check_time(self, pair_s: float) -> None:
        """Refused where the fewest pairs that can decide take longer than there is time."""
        least_s = pair_s * LOOKS[0]
        if math.isfinite(self._setup.until):
            if least_s > self._setup.until - time.monotonic():
                raise Refused("skipped", f"{NO_TIME} for {LOOKS[0]} pairs of steps, {format_us(least_s * 1e6)}")
        elif least_s > self._setup.effort.budget_s:
            least = math.ceil(least_s)
            what = f"{LOOKS[0]} pairs of steps would take {format_us(least * 1e6)}: pass --budget {least}"
            raise Refused("inconclusive", what)

    def _compare(self, variants: _Variants, kept: Path) -> None:
        """Compares the results of the first steps.

        Without a comparison the rest can still be measured.
        """
        self._setup.tell("comparing results")
        try:
            self._note(differences=variants.pairing.original.worker.compare(self._asked, kept))
        except Refused as refused:
            reason = f"results could not be compared: {refused.reason}"
            self._note(differences=(Difference("outputs", None, None, None, None, reason),))
        finally:
            kept.unlink(missing_ok=True)

    def _confirm(self, first: Pairing) -> None:
        """Takes fresh batches in fresh processes to confirm the effect.

        In the first of them the changed step is made first. The first that does not show the effect ends it.
        """
        effort = self._setup.effort
        again: list[Pairing] = []
        is_small = abs(estimate(first.logs, effort.rule.coverage).middle) < _SMALL
        wanted = _FRESH_FOR_SMALL if is_small else 1
        for number in range(wanted):
            self._setup.tell("confirming in a fresh process")
            with self._variants(CHANGED if number % 2 else ORIGINAL) as variants:
                if not number:
                    self._note(peak_after_bytes=variants.remade.peak_bytes)
                again.append(variants.pairing)
                self._take_again(variants.pairing, [*first.logs, *_logs(again[:-1])], wanted)
            if look_for_effect(variants.pairing.logs, effort.rule) != look_for_effect(first.logs, effort.rule):
                break
        self._note_times([first, *again])
        self._conclude(first, again)

    def _take_again(self, pairing: Pairing, before: Sequence[float], processes: int) -> None:
        effort = self._setup.effort

        def is_enough(logs: Sequence[float]) -> bool:
            return look_for_effect(logs, effort.rule) != "open" and _is_tight([*before, *logs], effort)

        pairing.take_until(is_enough, max(effort.budget_s / processes, pairing.pair_s * LOOKS[0]))

    def _conclude(self, first: Pairing, again: Sequence[Pairing]) -> None:
        rule = self._setup.effort.rule
        claimed = look_for_effect(first.logs, rule)
        is_confirmed = bool(again) and all(look_for_effect(pairing.logs, rule) == claimed for pairing in again)
        fresh = _logs(again)
        result = (
            judge_effect(first.logs, fresh, rule) if is_confirmed else judge_effect([*first.logs, *fresh], [], rule)
        )
        reason = None
        if result.verdict == "inconclusive" and again:
            reason = f"{claimed} in one process, which a fresh one did not confirm"
        elif result.verdict == "inconclusive":
            reason = f"the pairs scatter too much to decide {self._given()}"
        self._note(verdict=result.verdict, reason=reason, break_even_steps=_break_even(self._trial, result.verdict))

    def _given(self) -> str:
        """The time that the pairs had, by the option that gives more."""
        if math.isfinite(self._setup.until):
            return f"in {self._setup.effort.budget_s:.0f} s; --within gives more"
        return f"within --budget {self._setup.effort.budget_s:g}"

    def _measure_memory(self) -> None:
        """Makes the changed step once more in its own process.

        That shows what memory it takes there.
        """
        setup_s = self._trial.setup_s
        if not self._names or self._is_apart or setup_s is None or setup_s > _SETUP_SECONDS_TO_REPEAT:
            return
        if math.isfinite(self._setup.until):
            return
        self._setup.tell("measuring its memory")
        with self._setup.worker(self._names, environment_of(self._chosen)) as worker:
            self._note(peak_after_bytes=worker.build(CHANGED, self._asked).peak_bytes)

    @contextmanager
    def _variants(self, last: str, keep: Path | None = None) -> Iterator[_Variants]:
        """Makes both variants, the ``last`` one after the other.

        They are in one process, or each in its own. What the first steps of the changed one gave is left in the file
        ``keep``.
        """
        with ExitStack() as stack:
            worker = stack.enter_context(self._setup.worker(self._names, {}))
            workers = {ORIGINAL: worker, CHANGED: worker}
            if self._is_apart:
                environment = environment_of(self._chosen)
                workers[CHANGED] = stack.enter_context(self._setup.worker(self._names, environment))
            built = {}
            for name in (ORIGINAL, CHANGED) if last == CHANGED else (CHANGED, ORIGINAL):
                self._setup.tell(f"making the {name} step")
                built[name] = self._build(workers[name], name, keep)
            prefetched = max(made.prefetched for made in built.values())
            sides = {name: TimedStep(workers[name], name, built[name].step_us, prefetched) for name in workers}
            samples = built[CHANGED].samples
            pairing = Pairing(sides[ORIGINAL], sides[CHANGED], self._draw, samples)
            yield _Variants(built[ORIGINAL], built[CHANGED], pairing)

    def _build(self, worker: Worker, name: str, keep: Path | None) -> Built:
        if name == CHANGED:
            return worker.build(name, self._asked, keep)
        try:
            return worker.build(name, against=self._asked)
        except Refused as refused:
            if refused.verdict != "failed":
                raise
            raise WorkloadError(
                f"{self._setup.program.target} fails without any change",
                why=refused.reason,
                fix=f"see that it runs: bottleneck run {self._setup.program.target}",
            ) from None

    def _note_times(self, pairings: Sequence[Pairing]) -> None:
        logs = _logs(pairings)
        estimated = estimate(logs, self._setup.effort.rule.coverage)
        is_known = math.isfinite(estimated.low) and math.isfinite(estimated.high)
        # A speedup is the inverse of the ratio on which the statistics are based.
        middle, low, high = math.exp(-estimated.middle), math.exp(-estimated.high), math.exp(-estimated.low)
        self._note(
            speedup=Ratio(middle, low, high, estimated.n) if is_known else None,
            original_us=summarise_durations([us for pairing in pairings for us in pairing.original_us]),
            changed_us=summarise_durations([us for pairing in pairings for us in pairing.changed_us]),
            smallest_visible=-math.expm1(-smallest_visible(logs, self._setup.effort.rule)) if is_known else None,
        )


def _logs(pairings: Sequence[Pairing]) -> list[float]:
    return [value for pairing in pairings for value in pairing.logs]


def _is_tight(logs: Sequence[float], effort: TrialEffort) -> bool:
    estimated = estimate(logs, effort.rule.coverage)
    return estimated.half_width <= max(effort.precision, abs(estimated.middle) / _CLEAR)


def _break_even(trial: Trial, verdict: str) -> float | None:
    """Returns the steps after which the set-up is made up for.

    Null where nothing is gained or the cost is not known.
    """
    if verdict != "faster" or trial.speedup is None or trial.original_us is None or trial.setup_s is None:
        return None
    saved_us = trial.original_us.median * (1 - 1 / trial.speedup.median)
    return trial.setup_s * 1e6 / saved_us if saved_us > 0 else None


def describe_worst(differences: Sequence[Difference]) -> str:
    """The result that exceeds its allowed difference the most, in words."""
    beyond = [difference for difference in differences if difference.is_within is False]
    worst = max(beyond, key=lambda difference: (difference.relative or 0.0) / (difference.allowed or 1e-30))
    if worst.relative is None or worst.allowed is None:
        return worst.reason or f"its {worst.claim}"
    return f"its {worst.claim} by {worst.relative:.1e} of the largest value, where {worst.allowed:.1e} is allowed"
