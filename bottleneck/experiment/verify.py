"""Tries the changes that findings name, and keeps each prediction beside its measurement."""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from bottleneck import __version__
from bottleneck.advice.ranking import speedup_of
from bottleneck.errors import WorkloadError
from bottleneck.experiment.loader_search import try_loader_settings
from bottleneck.experiment.pieces.measure import SHORTEST_RATE_S, seconds_of_other_programs
from bottleneck.experiment.trial import ChangePrediction, TrialSetup, try_changes
from bottleneck.experiment.worker import NO_TIME
from bottleneck.schema.analysis import DISTURBED_SLUGS, Analysis, Finding, Interval, NoGain
from bottleneck.schema.trials import Trial, Verification

# Called before each trial with its name, its number and the number of trials.
Announce = Callable[[str, int, int], None]

# No trial begins with less time than importing torch and making a step twice takes; seven pairs take about a second.
_SECONDS_AT_LEAST, _BUDGET_AT_LEAST_S = 8.0, 2.0
NO_SUCH_CHANGE = "verify has no such change: the program would have to be written otherwise"
# A trial on two busy cores takes so long; where it does not suffice for all, the first ones get it.
_SECONDS_USUAL = 16.0


def tries_of(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Lists the changes that findings name, the most promising first.

    Other ways to the same end come behind them.
    """
    first = (name for finding in findings for name in finding.tries[:1])
    return tuple(dict.fromkeys((*first, *(name for finding in findings for name in finding.tries[1:]))))


def prediction_of(name: str, findings: Sequence[Finding], no_gain: Sequence[NoGain] = ()) -> ChangePrediction:
    """Predicts a change from all findings that name it.

    The prediction is the largest lower and the largest upper speedup. They are not added up, because it is one change.
    One that would bring nothing has a speedup at most.
    """
    naming = [finding for finding in findings if name in finding.tries]
    speedups = [finding.predicted_speedup for finding in naming if finding.predicted_speedup is not None]
    ends = zip(*((speedup.low, speedup.high) for speedup in speedups), strict=True)
    promised = Interval(*map(max, ends)) if speedups else None
    most = next((_most_speedup(line) for line in no_gain if name in line.tries), None)
    return ChangePrediction(tuple(finding.slug for finding in naming), promised, most)


def _most_speedup(line: NoGain) -> float:
    return 1.0 / (1.0 - line.most_share)


def tries_without_gain(lines: Sequence[NoGain]) -> tuple[str, ...]:
    """The changes that try what would bring nothing."""
    return tuple(dict.fromkeys(name for line in lines for name in line.tries))


def with_untried(done: Verification, lines: Sequence[NoGain]) -> Verification:
    """Adds a line per change that cannot be applied from outside.

    The verification is that of what would bring nothing.
    """
    untried = (
        Trial(line.code, line.code, "not applicable", NO_SUCH_CHANGE, predicted_most=_most_speedup(line))
        for line in lines
        if not line.tries
    )
    return replace(done, trials=(*done.trials, *untried), tried="no-gain")


def prediction_of_all(names: Sequence[str], findings: Sequence[Finding], step_us: float) -> ChangePrediction:
    """Predicts several changes together.

    It adds up what each adds to those before it. No speedup is predicted where that may be the whole step.
    """
    naming = [finding for finding in findings if set(names) & set(finding.tries)]
    gains_us = [finding.added_gain_us for finding in naming if finding.added_gain_us is not None]
    slugs = tuple(finding.slug for finding in naming)
    if not gains_us:
        return ChangePrediction(slugs)
    total_us = Interval(sum(gain.low for gain in gains_us), sum(gain.high for gain in gains_us))
    return ChangePrediction(slugs, speedup_of(total_us, step_us) if total_us.high < step_us else None)


def verify(
    setup: TrialSetup, names: Sequence[str], analysis: Analysis | None, announce: Announce = lambda *_: None
) -> Verification:
    """Tries each of these changes alone.

    ``analysis`` is null where nothing was predicted.

    Where the setup ends by a certain time, the changes share what is left until then, and those that find none are
    skipped. Ctrl-C leaves the trials that are done and skips the rest. WorkloadError where the program fails without
    any change at the first of them; later that is a trial that failed.
    """
    findings, no_gain = ((), ()) if analysis is None else (analysis.findings, analysis.no_gain)
    trials: list[Trial] = []
    began_s, others_s = time.monotonic(), seconds_of_other_programs()
    for number, name in enumerate(names):
        left_s = setup.until - time.monotonic()
        if trials and left_s < _SECONDS_AT_LEAST:
            trials += [_skipped(setup, rest, NO_TIME, "time") for rest in names[number:]]
            break
        try:
            announce(name, number, len(names))
            limited = _limited(setup, left_s, len(names) - number)
            change = setup.changes.get(name)
            attempt = try_changes if change is None or change.tune is None else try_loader_settings
            trials.append(attempt(limited, (name,), prediction_of(name, findings, no_gain)))
            if trials[-1].stopped_by == "user":
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            trials += [_skipped(setup, rest, "interrupted", "user") for rest in names[len(trials) :]]
            break
        except WorkloadError as error:
            if not trials:
                raise
            trials.append(Trial(name, setup.changes[name].title, "failed", f"{error.what}: {error.why}"))
    return Verification(
        program=setup.program.words,
        step_us=None if analysis is None else analysis.steps.wall_us,
        trials=tuple(trials),
        version=__version__,
        seed=setup.effort.seed,
        warnings=() if analysis is None else _disturbances(analysis),
        is_interrupted=any(trial.stopped_by == "user" for trial in trials),
        other_processors=_busy_meanwhile(others_s, time.monotonic() - began_s),
        processors=os.cpu_count(),
    )


def _busy_meanwhile(before_s: float | None, seconds: float) -> float | None:
    """Tells how many processors other programs kept busy for so long.

    Null where the system does not tell, or the time is too short for its clock.
    """
    now_s = seconds_of_other_programs()
    if before_s is None or now_s is None or seconds < SHORTEST_RATE_S:
        return None
    return max(now_s - before_s, 0.0) / seconds


def _disturbances(analysis: Analysis) -> tuple[str, ...]:
    """Says why the recording may not show the step as it is.

    Predictions rest on it. The cause is another program, or the profiler.
    """
    return tuple(
        f"the recording: {caveat.message}; try again on a quieter machine"
        for caveat in analysis.caveats
        if caveat.slug in DISTURBED_SLUGS
    )


def add_best(
    setup: TrialSetup, done: Verification, analysis: Analysis | None, announce: Announce = lambda *_: None
) -> Verification:
    """The verification with the best combination of its winners, added up greedily.

    Beginning with the fastest, each further winner is kept if with it the step is faster yet: not only faster than the
    original, but by an interval that lies above what there was without it. Bounds, which do other work, stay out.
    """
    if done.is_interrupted:
        return done
    bounds = {change.name for change in setup.changes.values() if not change.is_remedy}
    faster = (trial for trial in done.trials if trial.verdict == "faster" and trial.change not in bounds)
    winners = sorted(faster, key=_speed, reverse=True)
    if not winners:
        return done
    best, tried = winners[0], winners[1:]
    for number, trial in enumerate(tried):
        names = (*best.change.split("+"), trial.change)
        try:
            announce(" + ".join(names), number, len(tried))
            promise = ChangePrediction()
            if analysis is not None:
                promise = prediction_of_all(names, analysis.findings, analysis.steps.wall_us)
            together = try_changes(setup, names, promise)
        except KeyboardInterrupt:
            warnings = (*done.warnings, "interrupted before all winners were added up")
            return replace(done, best=best, warnings=warnings, is_interrupted=True)
        done = replace(done, combinations=(*done.combinations, together))
        if together.verdict == "faster" and _is_above(together, best):
            best = together
    return replace(done, best=best)


def left_out(done: Verification) -> tuple[str, ...]:
    """Lists the changes for which no time was left.

    For some there was none to confirm what they showed.
    """
    return tuple(trial.change for trial in done.trials if trial.stopped_by == "time")


def _limited(setup: TrialSetup, left_s: float, rest: int) -> TrialSetup:
    """Limits the setup of the next trial to its share of time.

    So many seconds are left for it and the others of ``rest``.

    A fifth of its share is for its pairs and as much for those that confirm an effect: making the step, in up to four
    processes, takes the rest. A compiler may take longer than that, but leaves the others the least that they need,
    unless its own share is less than a trial usually takes: of too many changes the first are measured.
    """
    if math.isinf(left_s):
        return setup
    share_s = left_s / rest
    budget_s = min(setup.effort.budget_s, max(_BUDGET_AT_LEAST_S, share_s / 5))
    reserved_s = max(min(_SECONDS_AT_LEAST * (rest - 1), left_s - max(share_s, _SECONDS_USUAL)), 0.0)
    return replace(setup, effort=replace(setup.effort, budget_s=budget_s), until=setup.until - reserved_s)


def _skipped(setup: TrialSetup, name: str, reason: str, stopped_by: Literal["time", "user"]) -> Trial:
    return Trial(name, setup.changes[name].title, "skipped", reason, stopped_by=stopped_by)


def _is_above(trial: Trial, other: Trial) -> bool:
    return trial.speedup is not None and other.speedup is not None and trial.speedup.low > other.speedup.median


def _speed(trial: Trial) -> float:
    return 0.0 if trial.speedup is None else trial.speedup.median
