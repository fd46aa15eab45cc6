"""Laws of whole traces: what must change nothing in an analysis, and what must double it.

Each holds for random programs on a GPU and on a CPU, through the whole pipeline.
"""

import math
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.pipeline import analyse
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.records import replace
from tests.builders import H100, Event, write_trace
from tests.laws import host_programs as on_host
from tests.laws import programs as on_gpu
from tests.laws.host_programs import HostProgram
from tests.laws.programs import Program
from tests.laws.strategies import host_programs, programs
from tests.laws.test_programs import analysed, analysed_on_host, law, ledger

pytestmark = pytest.mark.statistics

# Each example is analysed two or three times.
_law = settings(law, max_examples=settings.default.max_examples * 8 // 100)
_any_program = st.one_of(programs, host_programs)

_OF_THE_DEVICE = ("busy_us", "idle_us", "flops", "bytes_low", "bytes_high", "kernel_count", "copy_count", "h2d_bytes")
_OF_THE_HOST = ("op_count", "launch_count", "sync_count")


def emit(program: Program | HostProgram) -> list[Event]:
    return on_gpu.emit(program) if isinstance(program, Program) else on_host.emit(program)


def analyse_events(program: Program | HostProgram, events: Sequence[Event]) -> Analysis:
    return analysed(events) if isinstance(program, Program) else analysed_on_host(events)


def told(analysis: Analysis) -> dict[str, Any]:
    """All that an analysis says, but for the name of its file."""
    return msgspec.to_builtins(replace(analysis, recording=replace(analysis.recording, path="")))


def alike(one: object, other: object) -> bool:
    """True if two analyses say the same; numbers may differ by rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)
    return one == other


def changes_nothing(program: Program | HostProgram, change: Callable[[list[Event]], list[Event]]) -> bool:
    events = emit(program)
    return alike(told(analyse_events(program, events)), told(analyse_events(program, change(events))))


@pytest.mark.sample
@_law
@given(_any_program, st.integers(-(10**12), 10**12))
def test_shifting_the_clock_of_a_trace_changes_nothing(program: Program | HostProgram, by: int) -> None:
    assert changes_nothing(program, lambda events: [event | {"ts": event["ts"] + by} for event in events])


@_law
@given(_any_program, st.randoms(use_true_random=False))
def test_the_order_of_events_in_a_file_changes_nothing(program: Program | HostProgram, luck: random.Random) -> None:
    assert changes_nothing(program, lambda events: luck.sample(events, len(events)))


def renamed(events: Sequence[Event], luck: random.Random) -> list[Event]:
    """The same trace of another day: other processes, threads, streams, correlations and ids of ops.

    The ids of ops follow one another in any trace that is whole.
    """
    count = len(events)
    ids, first = {event.get("args", {}).get("External id", 0) for event in events}, luck.randrange(1, 10**6)
    new: dict[str, Mapping[int, int] | Sequence[int]] = {
        "External id": dict(zip(sorted(ids), luck.sample(range(first, first + len(ids)), len(ids)), strict=True)),
        "correlation": luck.sample(range(1, 50 * count), count),
        "stream": luck.sample(range(1, 500), 100),
        "host": luck.sample(range(1000, 9000), 1000),
    }
    return [_renamed(event, new) for event in events]


def _renamed(event: Event, new: Mapping[str, Mapping[int, int] | Sequence[int]]) -> Event:
    args = event.get("args", {})
    named = {name: new[name][args[name]] for name in ("External id", "correlation", "stream") if name in args}
    track: dict[str, object] = {}
    if "stream" in args:
        track = {"tid": named["stream"]}
    elif isinstance(event["pid"], int) and event["pid"] > 0:
        track = {"pid": new["host"][event["pid"]], "tid": new["host"][event["tid"]]}
    return event | track | {"args": args | named}


@_law
@given(_any_program, st.randoms(use_true_random=False))
def test_other_ids_change_nothing(program: Program | HostProgram, luck: random.Random) -> None:
    assert changes_nothing(program, lambda events: renamed(events, luck))


def as_rank(events: Sequence[Event], rank: int) -> list[Event]:
    """The events as those of another process on its own device."""
    return [_moved(event, rank) for event in events]


def _moved(event: Event, rank: int) -> Event:
    args = dict(event.get("args", {}))
    args |= {name: args[name] + 100_000 * rank for name in ("correlation", "External id") if name in args}
    if "device" in args:
        return event | {"pid": rank, "args": args | {"device": rank}}
    if isinstance(event["pid"], int) and event["pid"] > 0:
        return event | {"pid": event["pid"] + 1000 * rank, "tid": event["tid"] + 1000 * rank, "args": args}
    return event | {"args": args}


@_law
@given(programs)
def test_a_file_of_two_devices_split_in_ranks_gives_each_rank_the_ledger_of_the_whole(program: Program) -> None:
    ranks = [as_rank(emit(program), rank) for rank in (0, 1)]
    whole = analysed([*ranks[0], *ranks[1]], deviceProperties=[H100, {**H100, "id": 1}])
    with tempfile.TemporaryDirectory() as folder:
        for rank, events in enumerate(ranks):
            told_of_rank = {"rank": rank, "world_size": 2, "backend": "nccl"}
            top = {"distributedInfo": told_of_rank, "deviceProperties": [{**H100, "id": rank}]}
            write_trace(Path(folder) / f"rank{rank}.json", events, **top)
        split = analyse([Path(folder)])
    assert whole.device.count == 2
    assert [one.rank for one in split.ranks] == [0, 1]
    assert alike(ledger(split), ledger(whole))
    for one in split.ranks:
        assert alike({entry.account: entry.us for entry in one.ledger}, ledger(whole))
    for name in _OF_THE_DEVICE:
        assert alike(getattr(split.totals, name), getattr(whole.totals, name)), name
    # Ops are counted, not averaged over devices: the whole file has two hosts.
    assert 2 * split.totals.op_count == whole.totals.op_count


def alone(program: Program | HostProgram) -> Program | HostProgram:
    """The program without the thread that has nothing to do with its steps, whose ops would not double."""
    return replace(program, noise=()) if isinstance(program, Program) else program


@_law
@given(_any_program)
def test_twice_as_many_steps_leave_every_figure_per_step_as_it_is(program: Program | HostProgram) -> None:
    once, twice = (replace(alone(program), steps=program.steps[:1] * count) for count in (1, 2))
    one, other = (analyse_events(each, emit(each)) for each in (once, twice))
    assert (one.steps.count, other.steps.count) == (1, 2)
    assert alike(ledger(one), ledger(other))
    assert alike(msgspec.to_builtins(one.totals), msgspec.to_builtins(other.totals))
    assert alike(
        [(row.name, row.calls, row.us) for row in one.kernels], [(r.name, r.calls, r.us) for r in other.kernels]
    )


def with_everything_twice(program: Program | HostProgram) -> Program | HostProgram:
    """A step in which all of it happens once more."""
    if isinstance(program, HostProgram):
        return replace(program, steps=tuple(spans * 2 for spans in program.steps))
    return replace(program, steps=tuple(_step_with_everything_twice(step) for step in program.steps))


def _step_with_everything_twice(step: on_gpu.Step) -> on_gpu.Step:
    """The last work of the host comes before the second start."""
    first, *others = step.bursts
    again = replace(first, waits=(*step.closing, *first.waits))
    return replace(step, bursts=(*step.bursts, again, *others))


@_law
@given(_any_program)
def test_a_step_with_everything_twice_doubles_every_account_and_total(program: Program | HostProgram) -> None:
    once = replace(alone(program), steps=program.steps[:1])
    twice = with_everything_twice(once)
    one, other = (analyse_events(each, emit(each)) for each in (once, twice))
    assert alike({name: 2 * us for name, us in ledger(one).items()}, ledger(other))
    for name in (*_OF_THE_DEVICE, *_OF_THE_HOST):
        before, after = getattr(one.totals, name), getattr(other.totals, name)
        assert alike(before and 2.0 * before, after and float(after)), name
