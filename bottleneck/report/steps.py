"""The sentences of a report about its steps: how they were found, how they vary, which were left out and why."""

from itertools import groupby

from bottleneck.measured import StepTime, StepTimes, tell_step
from bottleneck.units import format_us

# How the steps were found, where the name of the source is no word to end a sentence with.
_SOURCES = {
    "whole": "the whole trace, taken as one",
    "marks": "the marks of the recording",
    "server": "the marks of the inference server",
    "repeats": "the op sequence repeating",
}
_MOST_STRETCHES = 4

Numbered = tuple[int, StepTime]


def window(steps: StepTimes) -> str:
    """Which steps are explained, by the numbers that ``--steps`` takes, and how long one is."""
    plural = "" if steps.count == 1 else "s"
    kept = [number for number, step in enumerate(steps.each) if step.set_aside is None]
    chosen = f" ({kept[0]}:{kept[-1] + 1} of {len(steps.each)})" if kept and len(kept) < len(steps.each) else ""
    found = f"found by: {_SOURCES.get(steps.source, steps.source)}"
    if steps.boundary is not None and steps.seen is not None:
        found = f"of the program ({tell_step(steps.boundary, steps.seen)})"
    return f"{steps.count} step{plural}{chosen} {found}; times below are per step of {format_us(steps.wall_us)}"


def variation(steps: StepTimes) -> str:
    """The quickest and the slowest of the steps that count; nothing where there are fewer than two."""
    kept = [(number, step) for number, step in enumerate(steps.each) if step.set_aside is None]
    if len(kept) < 2:
        return ""
    quick, slow = (choose(kept, key=lambda each: each[1].us) for choose in (min, max))
    ratio = f", {slow[1].us / quick[1].us:.2f} times as long" if quick[1].us > 0 else ""
    return f"quickest {_one(quick)}, slowest {_one(slow)}{ratio}"


def windows(steps: StepTimes) -> str:
    """Which window is explained where several were opened; nothing where there was one."""
    if len(steps.windows_us) < 2:
        return ""
    times = ", ".join(format_us(us) for us in steps.windows_us)
    count = len(steps.windows_us)
    return f"the quickest of {count} windows, opened anew because steps were disturbed; their mean steps: {times}"


def left_out(steps: StepTimes) -> str:
    """The steps that were found but do not count, with the reason; nothing where all of them count."""
    stretches = [list(group) for _, group in groupby(enumerate(steps.each), key=_kind)]
    told = [_told(stretch) for stretch in stretches if stretch[0][1].set_aside is not None]
    more = [f"{len(told) - _MOST_STRETCHES} more, all in --format json"] if len(told) > _MOST_STRETCHES else []
    return "; ".join([*told[:_MOST_STRETCHES], *more])


def _told(stretch: list[Numbered]) -> str:
    """Neighbours that are left out for one reason."""
    (first, head), (last, _) = stretch[0], stretch[-1]
    if first == last:
        return f"{_one(stretch[0])} is {head.set_aside}"
    if len({step.set_aside for _, step in stretch}) == 1:
        return f"steps {first}:{last + 1} are {head.set_aside}"
    quick, slow = (choose(step.us for _, step in stretch) for choose in (min, max))
    return f"steps {first}:{last + 1} ({format_us(quick)} to {format_us(slow)}) are {_kind(stretch[0])}"


def _kind(numbered: Numbered) -> str | None:
    """The reason without the figures of one step, which stand after a colon."""
    reason = numbered[1].set_aside
    return None if reason is None else reason.partition(":")[0]


def _one(numbered: Numbered) -> str:
    number, step = numbered
    name = f"{step.name}, " if step.name != f"step {number}" else ""
    return f"step {number} ({name}{format_us(step.us)})"
