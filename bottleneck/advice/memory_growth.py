"""Rule on memory that grows from step to step.

It names the variables that hold the tensors, and when memory is full.
"""

import math

import numpy as np

from bottleneck.advice.process import unused_gradients
from bottleneck.advice.quantities import claims_of, has_backward_marks
from bottleneck.advice.ranking import Draft, smallest_visible_us
from bottleneck.schema.accounts import UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, counted_faults_us
from bottleneck.schema.measurements import Keeper, MemoryGrowth
from bottleneck.schema.op_names import TRAINING, at_known
from bottleneck.units import US_PER_S, counted, format_si

# Of a step, from which memory that grows is told where no variable of the program was found to hold it; and of all
# steps together, since allocators and libraries take memory of their own in the first steps.
_LEAST_BYTES, _LEAST_TOTAL_BYTES = 1e6, 50e6
# Of a process whose memory no variable is seen to hold: so many steps.
_LEAST_UNHELD_STEPS = 32
# In a trace: so many steps, each of which adds as much as the others.
_LEAST_STEPS, _ALIKE = 4, 0.5
# Pages that are no longer kept come from the heap, or are given back to the system and touched anew in the next step.
# Giving back 64 MB took 0.23 of their first touch (anonymous memory of mmap, an AMD EPYC).
_GIVING_BACK = 0.25
# An evaluation that keeps its losses with their graphs keeps all results of each step. Without, they may lie in pages
# that are there, and in caches: a tagger of convolutions came from 27.8 to 9.5 ms per step, where counted faults took
# 13 ms and ops that memory bounds 9 ms. Or they go back to the system each time: two convolutions over images of 2 MB
# came from 2.6 to between 2.9 and 4.0 ms (torch 2.13, EPYC, two threads).
_COLD = 0.5
# Counted page faults take at most this part of a step: their calibrated cost is that of a busy machine or an idle one.
_MOST_OF_STEP = 0.8
# A list that fills memory sooner is the end of the run.
_MOST_STEPS = 1e9
_MOST_NAMED = 3


def memory_grows(evidence: Evidence) -> Draft | None:
    """Finds memory that grows in each step.

    So too where a variable of the program holds one graph of autograd more after each. Gain: on a CPU the time of the
    new pages; in a step without a backward pass also autograd's records, and what cold memory costs. None in time on a
    device, and where the steps vary by more: full memory is the reason then, and noise does not hide it.
    """
    growth = _recorded(evidence) or _traced(evidence)
    if growth is None:
        return None
    graphs = [keeper for keeper in growth.keepers if keeper.has_graph]
    grown_bytes, is_on_device = _grown(growth)
    # Batches of new sizes, and pieces between them, make a process grow in its first steps.
    is_early = growth is _recorded(evidence) and not is_on_device and growth.steps < _LEAST_UNHELD_STEPS
    if is_early and not growth.keepers:
        return None
    if not graphs and not (grown_bytes >= _LEAST_BYTES and grown_bytes * growth.steps >= _LEAST_TOTAL_BYTES):
        return None
    trains = _trains(evidence)
    gain = _gain_us(evidence, growth, keeps_graphs=bool(graphs) and not trains)
    if gain is not None and gain.high < smallest_visible_us(evidence.analysis):
        gain = None
    named = graphs or list(growth.keepers)
    return Draft(
        slug="memory-grows",
        title=_title(named, grown_bytes, has_graphs=bool(graphs)),
        evidence=(*_seen(growth, grown_bytes, is_on_device=is_on_device), *_held(named)),
        advice=_advice(graphs, named, trains=trains),
        places=tuple(keeper.source for keeper in named[:_MOST_NAMED]),
        code=_code(graphs, trains=trains),
        gain_us=gain,
        gain_reason=None if gain is not None else "it keeps memory from running full",
        claims={} if gain is None else claims_of(evidence, *_ACCOUNTS, *_WRITING, most_us=gain.high),
        tries=("inference-mode",) if graphs and not trains else (),
        confidence="high" if graphs else "medium",
        comes_first=bool(graphs) and (not trains or grown_bytes >= _LEAST_BYTES),
    )


_ACCOUNTS = ("overhead.allocator", "overhead.python", "overhead.dispatch", "memory", "overhead.unknown")
# What writes new pages is slower by it, whatever limits it.
_WRITING = ("compute", *UNMODELLED_ACCOUNTS)


def _recorded(evidence: Evidence) -> MemoryGrowth | None:
    return None if evidence.recording is None else evidence.recording.memory_growth


def _traced(evidence: Evidence) -> MemoryGrowth | None:
    """Gives the growth that a trace's memory events show.

    Null unless each of four steps or more adds about as much.
    """
    memory, steps = evidence.linked.trace.memory, evidence.linked.window.steps
    if len(steps) < _LEAST_STEPS or memory.empty:
        return None
    on_device = not evidence.is_host_only
    rows = memory["on_device"].to_numpy() == on_device
    at_us, held = memory["ts_us"].to_numpy()[rows], np.cumsum(memory["bytes"].to_numpy()[rows])
    edges = np.array([steps[0].start_us, *(step.end_us for step in steps)])
    after = np.append(0, held)[np.searchsorted(at_us, edges)]
    added = np.diff(after).astype(np.float64)
    usual = float(np.median(added))
    if usual < _LEAST_BYTES or added.min() < _ALIKE * usual or added.max() > usual / _ALIKE:
        return None
    host, device = (None, usual) if on_device else (usual, None)
    return MemoryGrowth(steps=len(steps), host_bytes=host, device_bytes=device)


def _grown(growth: MemoryGrowth) -> tuple[float, bool]:
    """Gives the bytes per step that are kept.

    The second result is true if they are the device's, as where its memory grows.
    """
    if growth.device_bytes is not None and growth.device_bytes > 0:
        return growth.device_bytes, True
    return max(growth.host_bytes or 0.0, 0.0), False


def _trains(evidence: Evidence) -> bool:
    names = evidence.linked.trace.events["name"].cat.categories
    return has_backward_marks(evidence) or any(TRAINING.search(str(name)) for name in names)


def _title(named: list[Keeper], grown_bytes: float, *, has_graphs: bool) -> str:
    what = "graphs of autograd" if has_graphs else "tensors"
    if not named:
        return f"Memory grows by {format_si(grown_bytes, 'B')} in each step"
    names = " and ".join(f"`{keeper.name}`" for keeper in named[:2])
    return f"{names} {'holds' if len(named) == 1 else 'hold'} the {what} of every step: memory grows"


def _seen(growth: MemoryGrowth, grown_bytes: float, *, is_on_device: bool) -> tuple[str, ...]:
    """Evidence of the growth, with the number of steps after which memory is full."""
    left_bytes = growth.device_left_bytes if is_on_device else growth.left_bytes
    memory = f"memory of the {'device' if is_on_device else 'host'}"
    words = f"{memory} grew by {format_si(grown_bytes, 'B')} per step in {counted(growth.steps, 'step')}"
    if grown_bytes < _LEAST_BYTES / 100:
        return ()
    if not left_bytes or left_bytes / grown_bytes > _MOST_STEPS:
        return (words,)
    steps = math.floor(left_bytes / grown_bytes)
    return (f"{words}: the {format_si(left_bytes, 'B')} that were left are full after {counted(steps, 'step')}",)


def _held(named: list[Keeper]) -> tuple[str, ...]:
    return tuple(
        f"`{keeper.name}` {'is added to' if keeper.is_sum else 'grows'}{at_known(keeper.source)}"
        f"{', and keeps the graph that made each tensor' if keeper.has_graph else ''}"
        for keeper in named[:_MOST_NAMED]
    )


def _advice(graphs: list[Keeper], named: list[Keeper], *, trains: bool) -> str:
    lines = ", ".join(keeper.source for keeper in named[:_MOST_NAMED] if keeper.source is not None)
    place = f" ({lines})" if lines else ""
    if graphs and not trains:
        return f"Run the evaluation under torch.no_grad(), and keep numbers or detached tensors{place}."
    if graphs:
        return f"Keep the number, not the tensor with its graph{place}."
    if named:
        return f"Keep less of each step, or move it to the host or to disk{place}."
    return "Find what keeps the tensors of past steps: lists, caches, hooks and closures."


def _code(graphs: list[Keeper], *, trains: bool) -> str | None:
    if not graphs:
        return None
    name = graphs[0].name
    keep = f"{name} += loss.item()" if graphs[0].is_sum else f"{name}.append(loss.item())  # or .detach()"
    return keep if trains else f"with torch.no_grad():\n    out = model(x)\n{keep}"


def _gain_us(evidence: Evidence, growth: MemoryGrowth, *, keeps_graphs: bool) -> Interval | None:
    """Gives the time of the new pages, and of needless autograd records.

    The records count where the step needs none. Null on a device.
    """
    rate = evidence.analysis.device.fresh_bytes_per_s
    if not evidence.is_host_only or not rate or not growth.host_bytes or growth.host_bytes < _LEAST_BYTES:
        return None
    # What is kept in one step cannot be had again from the heap in the next: all of its pages are new.
    kept_us = growth.host_bytes / rate * US_PER_S
    pages_us = min(max(kept_us, counted_faults_us(evidence)), _MOST_OF_STEP * evidence.step_us)
    low_us = -min(_GIVING_BACK * kept_us, pages_us)
    if not keeps_graphs:
        return Interval(low_us, pages_us)
    records = unused_gradients(evidence)
    recorded_us = Interval(0.0, 0.0) if records is None or records.gain_us is None else records.gain_us
    most_us = pages_us + _COLD * evidence.account_us("memory") + recorded_us.high
    return Interval(low_us + recorded_us.low, min(most_us, _MOST_OF_STEP * evidence.step_us))


RULES = (memory_grows,)
