"""Measures a repeatable step.

Warms it up, times it unprofiled, then profiles a few steps.

Variants of the step are timed in turns with it: twice the batch, and each option of the profiler.
"""

import contextlib
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bottleneck.harness.machine import available_bytes, is_on_gpu, peak_memory, peak_resident_bytes, reset_peak
from bottleneck.harness.numerics import take_numerics
from bottleneck.harness.program import describe_error
from bottleneck.harness.session import Session, silenced
from bottleneck.harness.start_up import Stretch
from bottleneck.harness.stopwatch import Step, Stopwatch, WarmUp, mark_steps, time_steps, warm_up
from bottleneck.harness.torch_private import compiler_settings, refuse_old
from bottleneck.harness.torch_state import describe_torch
from bottleneck.harness.window import Detail, ProfilerWindow, detail_of
from bottleneck.schema.measurements import BatchTest, OptionCost, OptionCosts, ProfilerOption, Ratio
from bottleneck.schema.statistics import summarise_durations
from bottleneck.units import format_si, format_us

# Waiting for steps that do not settle ends sooner where there were many of them.
_WARM_UP = WarmUp(seconds=1.5, many=50, seconds_for_many=0.5)
TIMED_STEPS, TIMED_SECONDS_AT_MOST = 5, 10.0

# How often the profiled steps are repeated when another program seems to have disturbed them.
ATTEMPTS = 3

DETAIL = Detail(memory=True)

_NO_TORCH = "the workload never imported torch: there is nothing to profile"


@dataclass(frozen=True)
class Doubling:
    """Makes the step at another batch size.

    ``start_s`` is the time to make the first and call it once.
    """

    batch_size: object
    make: Callable[[int], Step]
    start_s: float = 0.0

    def after(self, seconds: float) -> "Doubling":
        """The same, knowing that the first call of the step took this long."""
        return dataclasses.replace(self, start_s=self.start_s + seconds)


def measure(step: Step, session: Session, doubling: Doubling | None = None, change_s: float = 0.0) -> None:
    """Repeats the step through its phases and measures it.

    What the step raises comes through, and what was measured is kept.

    ``doubling`` makes the step at twice its batch size; null where it has none. ``change_s`` is how long applying
    changes to the step took. Ends the process with a reason where torch is too old to be measured.
    """
    refusal = refuse_old(sys.modules.get("torch"))
    if refusal is not None:
        sys.exit(refusal)
    if session.options.counting:
        _count(step, session)
        return
    session.start_up.begin_steps()
    started_ns = time.perf_counter_ns()
    step()
    first = Stretch(started_ns, time.perf_counter_ns())
    first_s = (first.end_ns - first.begin_ns) / 1e9
    torch: Any = sys.modules.get("torch")
    # Until the times of the step settle, within bounds, or as often as the user requested.
    warmed = warm_up(
        step, torch, None if session.options.warmup is not None else _WARM_UP, session.options.least_warmup
    )
    was_reset = reset_peak(torch)
    session.look_at_memory(step)
    session.look_at_threads()
    stopwatch = _time(step, torch, session)
    session.time(stopwatch)
    begun = [first, *(Stretch(*ticks_ns) for ticks_ns in pairwise([first.end_ns, *warmed.ticks_ns[1:]]))]
    session.note_start_up(begun)
    session.note_other_threads()
    session.note_memory_growth(stopwatch.steps, step)
    timing = session.notes.unprofiled
    # The second step counts too: the first of a step that is compiled whole makes the optimizer's state.
    ran_s = [(step.end_ns - step.begin_ns) / 1e9 for step in begun[:2]]
    setup_s = None if timing is None else change_s + sum(max(step_s - timing.median / 1e6, 0.0) for step_s in ran_s)
    session.note(setup_s=setup_s, peak_memory=peak_memory(torch, was_reset=was_reset))
    if torch is None:
        session.warn(_NO_TORCH)
    else:
        session.note(**describe_torch(torch))
        note_debug_modes(step, session)
        session.save()
        _use_up_first_complaint(torch)
        detail = detail_of(session.options, DETAIL)
        _profile(step, torch, session, detail)
        _profile_lightly(step, torch, session, detail)
        measure_extras(step, torch, session, doubling and doubling.after(first_s), detail)


def note_debug_modes(step: Step, session: Session) -> None:
    """Adds the aids to debugging that are on.

    Their time is taken in a few more steps. Another step looks at values.
    """
    session.note_debug_modes()
    session.begin_debugged_step(step)
    try:
        step()
        while session.end_debugged_step(step):
            step()
    finally:
        session.end_debugged_step(step, is_last=True)


def _count(step: Step, session: Session) -> None:
    """Profiles steps for what they do, not for their time.

    None is timed without the profiler.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and session.options.numerics:
        session.note(numerics=take_numerics(step, torch, session.options.least_warmup))
    else:
        for _ in range(session.options.least_warmup):
            step()
    torch = sys.modules.get("torch")
    if torch is None:
        session.warn(_NO_TORCH)
        return
    session.note(**describe_torch(torch))
    _use_up_first_complaint(torch)
    _profile(step, torch, session, detail_of(session.options, DETAIL))


def _time(step: Step, torch: Any, session: Session) -> Stopwatch:
    stopwatch = Stopwatch(torch)
    stopwatch.mark()
    while stopwatch.elapsed_s < session.options.timed_s or (
        stopwatch.steps < TIMED_STEPS and stopwatch.elapsed_s < TIMED_SECONDS_AT_MOST
    ):
        step()
        stopwatch.mark()
        session.read_memory_again(stopwatch.steps)
    return stopwatch


def _profile(step: Step, torch: Any, session: Session, detail: Detail) -> None:
    """Profiles as many steps as are wanted and the event budget allows.

    One step before them, in a window of its own, counts its events.
    """
    pilot, stopwatch = _profile_steps(step, torch, 1, detail, lead=0)
    if pilot is None:
        session.warn("the workload runs a profiler of its own, so ours stayed off")
        return
    per_step = max(1, pilot.event_count())
    allowed, wanted = session.options.most_events // per_step - 1, session.plan_steps(per_step)
    session.warn_of_budget(allowed, wanted, per_step)
    if allowed <= 1:
        session.keep(pilot, stopwatch)
        return
    for _ in range(ATTEMPTS):
        window, stopwatch = _profile_steps(step, torch, min(allowed, wanted), detail, session.lead_steps)
        if window is None or session.offer(window, stopwatch):
            return
    session.warn_of_disturbance()


def _profile_lightly(step: Step, torch: Any, session: Session, detail: Detail) -> None:
    """Profiles steps with the fewest options.

    They tell how long what takes and not where it is.
    """
    wanted = session.light_steps(detail, session.wanted_light_steps)
    # As many as the other window had are within the budget, which without frames may allow more.
    steps = min(wanted, max(1, len(session.notes.step_marks_ns) - 1))
    for _ in range(ATTEMPTS if steps else 0):
        window, stopwatch = _profile_steps(step, torch, steps, detail.least, session.lead_steps)
        if window is None or (session.offer_light(window, stopwatch) and steps >= wanted):
            return
        allowed = session.options.most_events * (steps + 1) // max(1, window.event_count()) - 1
        steps = max(steps, min(wanted, allowed))


def _profile_steps(
    step: Step, torch: Any, steps: int, detail: Detail, lead: int
) -> tuple[ProfilerWindow | None, Stopwatch]:
    """Profiles steps and gives the stopped window with its marks.

    ``lead`` steps go before the first mark. The window is null where none opened.
    """
    window, stopwatch = ProfilerWindow(torch, detail), Stopwatch(torch)
    if not window.open():
        return None, stopwatch
    try:
        mark_steps(step, stopwatch, steps, lead)
    finally:
        window.stop()
    return window, stopwatch


def _use_up_first_complaint(torch: Any) -> None:
    """Provokes, unseen, a line that torch writes to stderr.

    Its CPU allocator logs the first of every thousand blocks that are freed in a window with memory events but were
    allocated before it. The program's stderr is to stay its own.
    """
    block = torch.empty(1)
    window = ProfilerWindow(torch, Detail(shapes=False, stacks=False, memory=True))
    with silenced(2):
        if window.open():
            del block
            window.stop()


# Each rank would stop after its own number of steps, and wait for the others for ever.
_RANKS = "the ranks of a job take steps together"


def measure_extras(step: Step, torch: Any, session: Session, doubling: Doubling | None, kept: Detail) -> None:
    """Measures the profiler's options and the doubled batch into the notes.

    Never raises.

    ``kept`` is what the window recorded whose trace was kept; ``doubling`` is null where there is no batch size.
    """
    timing, profiled = session.notes.unprofiled, session.notes.profiled
    if timing is None or not timing.median > 0 or profiled is None:
        return
    if session.notes.ranks > 1:
        session.note(option_costs=OptionCosts(reason=_RANKS), batch_test=doubling and BatchTest(None, reason=_RANKS))
        session.save()
        return
    if session.options.option_costs:
        session.note(option_costs=run_option_costs(step, torch, (timing.median, profiled.median), kept))
        session.save()
    if doubling is not None and session.options.batch_test is not False:
        is_asked = session.options.batch_test is not None
        session.note(batch_test=run_batch_test(step, torch, doubling, timing.median, is_asked=is_asked))
        session.save()


# Six pairs are the fewest whose extremes hold the median with 95 % probability: 1 - 2 / 2**6.
PAIRS_AT_LEAST, PAIRS_AT_MOST = 6, 40
# What the pairs take where the test is asked for, and where it comes by itself, which it does up to a length only.
SECONDS, USUAL_SECONDS, SECONDS_AT_MOST = 3.0, 0.8, 0.8
# A test that comes by itself ends where the interval of the ratio is no wider than this part of it.
_NARROW = 0.05
# What a block of steps should last, so that a tick of the scheduler is little beside it.
BLOCK_US, BLOCK_STEPS_AT_MOST = 5_000.0, 20
# From here on the data of the other size, left in the caches, do not count, and no step is spent on driving it out.
LONG_US = 50_000.0
WARM_SECONDS, WARM_STEPS_AT_MOST = 0.5, 50
# Building the doubled step and its first call take as long as the first one's did; compilers can take minutes.
START_SECONDS_AT_MOST = 1.0


def run_batch_test(step: Step, torch: Any, doubling: Doubling, usual_us: float, *, is_asked: bool) -> BatchTest:
    """Times the step at both batch sizes.

    The result may be the reason why not, such as what the doubled step raises.

    ``usual_us`` is the time of the step at its own size. A test that would take long is left out unless it ``is_asked``
    for by the user.
    """
    size = doubling.batch_size
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        return BatchTest(None, reason=f"batch_size is {size!r}, not a number that can be doubled")
    reason = None if is_asked else _too_long(doubling.start_s, usual_us)
    if reason or (reason := _too_large()):
        return BatchTest(size, reason=reason)
    try:
        with silenced(1, 2), _without_dynamic_shapes():
            twice = doubling.make(2 * size)
            twice_us = _warm_up(twice, torch)
            pairs: list[_Pair] = []
            for pair in _pairs((step, usual_us), (twice, twice_us), torch, SECONDS if is_asked else USUAL_SECONDS):
                pairs.append(pair)
                if not is_asked and len(pairs) >= PAIRS_AT_LEAST and _is_narrow(summarise_pairs(pairs).ratio):
                    break
    except (Exception, SystemExit) as error:  # the user's code, at a size that they did not ask for
        return BatchTest(size, reason=f"the step at batch_size={2 * size} failed: {describe_error(error)}")
    finally:
        _give_memory_back(torch)
    return dataclasses.replace(summarise_pairs(pairs), batch_size=size)


# Step times in microseconds of a block and of its neighbour at twice the size.
_Pair = tuple[Sequence[float], Sequence[float]]


def summarise_pairs(pairs: Sequence[_Pair]) -> BatchTest:
    """Summarises pairs of blocks as a batch test.

    The ratio is the median over the pairs of the ratios of the medians of their blocks, with the 95 % interval of the
    median by order statistics: it assumes no shape, and what drifts slowly cancels within each pair.
    """
    ratios = [statistics.median(twice) / statistics.median(once) for once, twice in pairs]
    ratio = summarise_durations(ratios)
    return BatchTest(
        batch_size=None,
        once=summarise_durations([us for once, _ in pairs for us in once]),
        twice=summarise_durations([us for _, twice in pairs for us in twice]),
        ratio=Ratio(**dataclasses.asdict(ratio)) if ratio is not None else None,
    )


def _is_narrow(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.high - ratio.low <= _NARROW * ratio.median


def _pairs(one: tuple[Step, float], two: tuple[Step, float], torch: Any, seconds: float) -> Iterator[_Pair]:
    """Yields step times by pair, of two steps with their usual times in microseconds.

    Every other pair begins with the doubled step, so that steady drift cancels.
    """
    (once, once_us), (twice, twice_us) = one, two
    steps = max(1, min(math.ceil(BLOCK_US / max(once_us, 1e-3)), BLOCK_STEPS_AT_MOST))
    lead = 1 if once_us < LONG_US else 0
    pair_s = (steps + lead) * (once_us + twice_us) / 1e6
    for index in range(max(PAIRS_AT_LEAST, min(PAIRS_AT_MOST, int(seconds / max(pair_s, 1e-9))))):
        order = (once, twice) if index % 2 == 0 else (twice, once)
        first, second = (time_steps(step, torch, steps, lead) for step in order)
        yield (first, second) if index % 2 == 0 else (second, first)


def _warm_up(step: Step, torch: Any) -> float:
    """Microseconds of a step once it is warm."""
    step()
    stopwatch = warm_up(step, torch, WarmUp(WARM_SECONDS, WARM_STEPS_AT_MOST, 0.0), least=1)
    return statistics.median(stopwatch.durations_us()[-3:])


def _too_long(start_s: float, usual_us: float) -> str | None:
    if start_s > START_SECONDS_AT_MOST:
        what = f"making the step and calling it once took {format_us(start_s * 1e6)}"
    elif (seconds := PAIRS_AT_LEAST * 3 * usual_us / 1e6) > SECONDS_AT_MOST:
        what = f"{PAIRS_AT_LEAST} pairs of steps would take {format_us(seconds * 1e6)}"
    else:
        return None
    return f"{what}; --batch-test runs it all the same"


def _too_large() -> str | None:
    """Gives the reason why memory may not suffice for the doubled step.

    The doubled step beside the first takes at most twice what all takes now. Null where memory suffices.
    """
    peak, available = peak_resident_bytes(), available_bytes()
    if peak is None or available is None or 2 * peak <= available:
        return None
    need, free = format_si(2.0 * peak, "B"), format_si(available, "B")
    return f"a second step of twice the size may need {need} of memory, and {free} are free"


@contextlib.contextmanager
def _without_dynamic_shapes() -> Iterator[None]:
    """Has torch.compile make static code for the doubled step.

    It did so for the first step; else the two would differ.
    """
    config = compiler_settings()
    if config is None:
        yield
        return
    with config.patch(automatic_dynamic_shapes=False):
        yield


def _give_memory_back(torch: Any) -> None:
    if is_on_gpu(torch):
        with contextlib.suppress(Exception):
            torch.cuda.empty_cache()


OPTIONS_SECONDS, ROUNDS_AT_LEAST, OPTIONS_SECONDS_AT_MOST = 1.5, 3, 4.0
ROUNDS_AT_MOST = 12
# A window should last this long, which takes more of the steps that are short.
WINDOW_US, WINDOW_STEPS_AT_LEAST, WINDOW_STEPS_AT_MOST = 3_000.0, 2, 8

_PLAIN = Detail(shapes=False, stacks=False, memory=False)


def run_option_costs(step: Step, torch: Any, times_us: tuple[float, float], kept: Detail) -> OptionCosts:
    """Measures what each option of the profiler costs, as ratios.

    Also all those that the kept window had on together. The result may be the reason why not.

    ``times_us`` are those of the unprofiled step and of one in the kept window. Windows open until 1.5 s are over.
    """
    usual_us, profiled_us = times_us
    details = windows_to_open(kept)
    steps = max(WINDOW_STEPS_AT_LEAST, min(math.ceil(WINDOW_US / max(usual_us, 1e-3)), WINDOW_STEPS_AT_MOST))
    round_us = (steps + 1) * (2 * usual_us + len(details) * profiled_us)
    if ROUNDS_AT_LEAST * round_us / 1e6 > OPTIONS_SECONDS_AT_MOST:
        return OptionCosts(reason=f"steps of {format_us(usual_us)} are too long to try each option on some of them")
    rounds: list[Mapping[ProfilerOption, float]] = []
    started = time.perf_counter()
    try:
        with silenced(1, 2):
            while not _is_enough(len(rounds), time.perf_counter() - started):
                rounds.append(_round(step, torch, steps, details))
    except Exception as error:  # the user's step, which need not be repeatable for ever
        return OptionCosts(reason=f"the step could not be repeated: {type(error).__name__}")
    if len(rounds) < ROUNDS_AT_LEAST:
        return OptionCosts(
            reason=f"{OPTIONS_SECONDS_AT_MOST:.0f} s were over before each option was tried {ROUNDS_AT_LEAST} times"
        )
    return summarise_rounds(rounds)


def _is_enough(rounds: int, elapsed_s: float) -> bool:
    if rounds >= ROUNDS_AT_MOST or elapsed_s >= OPTIONS_SECONDS_AT_MOST:
        return True
    return rounds >= ROUNDS_AT_LEAST and elapsed_s >= OPTIONS_SECONDS


def windows_to_open(kept: Detail) -> Mapping[ProfilerOption, Detail]:
    """Gives the details of the windows of a round.

    These are ops alone, each option besides them, and all that the kept window had.
    """
    return {
        "ops": _PLAIN,
        "shapes": dataclasses.replace(_PLAIN, shapes=True),
        "stacks": dataclasses.replace(_PLAIN, stacks=True),
        "memory": dataclasses.replace(_PLAIN, memory=True),
        "all": kept,
    }


def summarise_rounds(rounds: Sequence[Mapping[ProfilerOption, float]]) -> OptionCosts:
    """Summarises each option's ratio by its median over the rounds.

    The interval of that median is by order statistics.
    """
    costs = []
    for option in rounds[0] if rounds else ():
        ratio = summarise_durations([ratios[option] for ratios in rounds])
        assert ratio is not None
        costs.append(OptionCost(option, Ratio(**dataclasses.asdict(ratio))))
    return OptionCosts(tuple(costs))


def _round(
    step: Step, torch: Any, steps: int, details: Mapping[ProfilerOption, Detail]
) -> Mapping[ProfilerOption, float]:
    """Gives profiled over unprofiled step time for each option.

    The unprofiled steps stand before and after the windows. Each is the quickest of its steps: what the profiler costs
    is in all of them, what other programs cost is not.
    """
    before_us = _quickest_us(step, torch, steps)
    profiled_us = {option: _window_us(step, torch, steps, detail) for option, detail in details.items()}
    usual_us = min(before_us, _quickest_us(step, torch, steps))
    return {option: us / usual_us for option, us in profiled_us.items()}


def _window_us(step: Step, torch: Any, steps: int, detail: Detail) -> float:
    window = ProfilerWindow(torch, detail, is_only_timed=True)
    if not window.open():
        raise RuntimeError("no window could be opened")
    try:
        return _quickest_us(step, torch, steps)
    finally:
        window.stop()


def _quickest_us(step: Step, torch: Any, steps: int) -> float:
    """Microseconds of the quickest of some steps, after one that leads in."""
    stopwatch = Stopwatch(torch)
    mark_steps(step, stopwatch, steps)
    return min(stopwatch.durations_us())
