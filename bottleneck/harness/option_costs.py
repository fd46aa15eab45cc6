"""What each option of the profiler costs on the user's own step: short windows in turns with unprofiled steps."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bottleneck.harness.capture import Detail, Window
from bottleneck.harness.silence import silenced
from bottleneck.harness.stopwatch import Stopwatch, summarise_durations
from bottleneck.measured import OptionCost, OptionCosts, ProfilerOption, Ratio
from bottleneck.units import format_us

Step = Callable[[], Any]

SECONDS, ROUNDS_AT_LEAST, SECONDS_AT_MOST = 1.5, 3, 4.0
ROUNDS_AT_MOST = 12
# A window should last this long, which takes more of the steps that are short.
WINDOW_US, WINDOW_STEPS_AT_LEAST, WINDOW_STEPS_AT_MOST = 3_000.0, 2, 8

_PLAIN = Detail(shapes=False, stacks=False, memory=False)


def run_option_costs(step: Step, torch: Any, times_us: tuple[float, float], kept: Detail) -> OptionCosts:
    """The ratios of each option and of all those that the kept window had on, or the reason why not.

    ``times_us`` are those of the unprofiled step and of one in the kept window. Windows open until 1.5 s are over.
    """
    usual_us, profiled_us = times_us
    details = windows_to_open(kept)
    steps = max(WINDOW_STEPS_AT_LEAST, min(math.ceil(WINDOW_US / max(usual_us, 1e-3)), WINDOW_STEPS_AT_MOST))
    round_us = (steps + 1) * (2 * usual_us + len(details) * profiled_us)
    if ROUNDS_AT_LEAST * round_us / 1e6 > SECONDS_AT_MOST:
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
            reason=f"{SECONDS_AT_MOST:.0f} s were over before each option was tried {ROUNDS_AT_LEAST} times"
        )
    return summarise_rounds(rounds)


def _is_enough(rounds: int, elapsed_s: float) -> bool:
    if rounds >= ROUNDS_AT_MOST or elapsed_s >= SECONDS_AT_MOST:
        return True
    return rounds >= ROUNDS_AT_LEAST and elapsed_s >= SECONDS


def windows_to_open(kept: Detail) -> Mapping[ProfilerOption, Detail]:
    """What the windows of a round record: ops alone, each option besides them, and all that the kept window did."""
    single: dict[ProfilerOption, Detail] = {
        "ops": _PLAIN,
        "shapes": dataclasses.replace(_PLAIN, shapes=True),
        "stacks": dataclasses.replace(_PLAIN, stacks=True),
        "memory": dataclasses.replace(_PLAIN, memory=True),
    }
    return {**single, "all": kept}


def summarise_rounds(rounds: Sequence[Mapping[ProfilerOption, float]]) -> OptionCosts:
    """The median over the rounds of each option's ratio, with the interval of that median by order statistics."""
    costs = []
    for option in rounds[0] if rounds else ():
        ratio = summarise_durations([each[option] for each in rounds])
        assert ratio is not None
        costs.append(OptionCost(option, Ratio(**dataclasses.asdict(ratio))))
    return OptionCosts(tuple(costs))


def _round(
    step: Step, torch: Any, steps: int, details: Mapping[ProfilerOption, Detail]
) -> Mapping[ProfilerOption, float]:
    """Profiled over unprofiled step time for each option; the unprofiled steps stand before and after the windows.

    Each is the quickest of its steps: what the profiler costs is in all of them, what other programs cost is not.
    """
    before_us = _quickest_us(step, torch, steps)
    profiled_us = {option: _window_us(step, torch, steps, detail) for option, detail in details.items()}
    usual_us = min(before_us, _quickest_us(step, torch, steps))
    return {option: us / usual_us for option, us in profiled_us.items()}


def _window_us(step: Step, torch: Any, steps: int, detail: Detail) -> float:
    window = Window(torch, detail)
    if not window.open():
        raise RuntimeError("no window could be opened")
    try:
        return _quickest_us(step, torch, steps)
    finally:
        window.stop()


def _quickest_us(step: Step, torch: Any, steps: int) -> float:
    """Microseconds of the quickest of some steps, after one that leads in."""
    stopwatch = Stopwatch(torch)
    step()
    stopwatch.wait()
    stopwatch.mark()
    for _ in range(steps):
        step()
        stopwatch.mark()
    stopwatch.wait()
    return min(stopwatch.durations_us())
