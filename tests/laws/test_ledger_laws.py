"""Laws of the ledger over random timelines: it adds up, agrees with counting cell by cell, and knows no names."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.analysis.host import STATE_OF_CALL, state_of
from bottleneck.analysis.ledger import LedgerResult, build_ledger
from bottleneck.schema.accounts import ACCOUNTS, HOST_STATES
from bottleneck.schema.analysis import GROUPS
from bottleneck.schema.intervals import shared_charge, union
from bottleneck.schema.records import replace
from bottleneck.trace.vendors import call_kind
from tests.analysis.scenes import MAIN, Event, Kernel, Op, Scene, analysis_of

pytestmark = pytest.mark.statistics

# Building tables takes milliseconds, more on a loaded machine: the same few examples in every run, and no deadline that
# a clock decides. Whole programs are in test_programs.
_law = settings(max_examples=settings.default.max_examples * 3 // 10, deadline=None, derandomize=True)

_WALL = 40
_BOUND_OF_KIND = {"compute": ("compute", "memory", "overhead", "unknown"), "collective": ("communication",)} | {
    "copy": ("copy", "transfer"),
    "fill": ("copy",),
}
_HOST_EVENTS = (
    ("op", "aten::view"),
    ("runtime", "cudaLaunchKernel"),
    ("runtime", "cudaMalloc"),
    ("runtime", "cudaStreamSynchronize"),
    ("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
    ("python", "model.py(3): forward"),
    ("python", "<built-in function collect>"),
    ("profiler", "Activity Buffer Request"),
)

_PHASES = (
    ("annotation", "Optimizer.step#SGD.step"),
    ("op", "autograd::engine::evaluate_function: AddmmBackward0"),
    ("annotation", "the program's own"),
)

_times = st.integers(-5, _WALL + 5)
_lengths = st.integers(0, 12)


@st.composite
def _kernels(draw: st.DrawFn) -> Kernel:
    kind = draw(st.sampled_from(["compute", "compute", "collective", "copy", "fill"]))
    bound = draw(st.sampled_from(_BOUND_OF_KIND[kind]))
    launch = draw(st.tuples(_times, _lengths))
    return Kernel(
        ts=draw(_times),
        dur=draw(_lengths),
        bound=bound,
        kind=kind,
        launch=launch,
        stream=draw(st.sampled_from(["0/7", "0/20"])),
        thread=draw(st.sampled_from([MAIN, "1/2"])),
    )


@st.composite
def _events(draw: st.DrawFn) -> Event:
    category, name = draw(st.sampled_from((*_HOST_EVENTS, *_PHASES)))
    return Event(category, name, draw(_times), draw(_lengths), draw(st.sampled_from([MAIN, "1/2"])))


_device_scenes = st.builds(
    Scene,
    wall=st.just(_WALL),
    kernels=st.lists(_kernels(), min_size=1, max_size=12),
    events=st.lists(_events(), max_size=12),
    steps=st.integers(0, 3),
)


@st.composite
def _trees(draw: st.DrawFn, thread: str, start: int, end: int, depth: int = 0) -> list[Op]:
    """Ops of one thread as a forest within [start, end); parents are positions in the list."""
    ops: list[Op] = []
    at = start
    while at < end and len(ops) < 6 and depth < 4:
        at += draw(st.integers(0, 6))
        length = draw(st.integers(0, max(end - at, 0)))
        if at >= end:
            break
        bound = draw(st.sampled_from(["compute", "memory", "dispatch", "unknown"]))
        name = draw(st.sampled_from(["aten::add", "aten::empty"]))
        inner = draw(_trees(thread, at, at + length, depth + 1)) if length else []
        base = len(ops)
        ops.append(Op(at, length, name=name, bound=bound, thread=thread))
        ops += [replace(op, parent=base if op.parent is None else op.parent + base + 1) for op in inner]
        at += length
    return ops


@st.composite
def _host_scenes(draw: st.DrawFn) -> Scene:
    first = draw(_trees(MAIN, -5, _WALL + 5))
    second = draw(_trees("1/2", -5, _WALL + 5))
    ops = [*first, *(replace(op, parent=None if op.parent is None else op.parent + len(first)) for op in second)]
    return Scene(wall=_WALL, ops=ops, events=draw(st.lists(_events(), max_size=6)))


def _build(scene: Scene) -> LedgerResult:
    return build_ledger(scene.linked(), scene.roofline())


def _accounts(result: LedgerResult) -> dict[str, float]:
    return {entry.account: entry.us for entry in result.ledger.entries}


def _same(one: LedgerResult, other: LedgerResult, factor: float = 1.0) -> bool:
    accounts, others = _accounts(one), _accounts(other)
    return all(
        math.isclose(accounts.get(name, 0.0) * factor, others.get(name, 0.0), rel_tol=1e-9, abs_tol=1e-6)
        for name in ACCOUNTS
    )


@pytest.mark.sample
@_law
@given(st.one_of(_device_scenes, _host_scenes()))
def test_ledger_adds_up_to_the_wall_time(scene: Scene) -> None:
    result = _build(scene)
    wall = scene.wall / max(scene.steps, 1)
    total = math.fsum(entry.us for entry in result.ledger.entries)
    assert total == pytest.approx(wall, rel=1e-9)
    assert math.fsum(entry.share for entry in result.ledger.entries) == pytest.approx(1.0, rel=1e-9)
    assert result.busy_us + float(result.idle["us"].sum()) == pytest.approx(wall, rel=1e-9)


@_law
@given(st.one_of(_device_scenes, _host_scenes()))
def test_phases_share_out_the_step_and_no_range_is_longer(scene: Scene) -> None:
    analysis = analysis_of(scene)
    wall = analysis.steps.wall_us
    if analysis.phases:
        assert math.fsum(phase.us for phase in analysis.phases) == pytest.approx(wall, rel=1e-9)
        ledger = {group: sum(entry.us for entry in analysis.ledger if entry.group == group) for group in GROUPS}
        split = {group: sum(phase.us * phase.shares[group] for phase in analysis.phases) for group in GROUPS}
        assert split == pytest.approx(ledger, rel=1e-9, abs=1e-9)
    assert all(0 <= each.self_us <= each.us * (1 + 1e-9) <= wall * (1 + 2e-9) for each in analysis.ranges)


@_law
@given(st.one_of(_device_scenes, _host_scenes()))
def test_accounts_of_work_are_the_charges_of_their_rows(scene: Scene) -> None:
    result = _build(scene)
    accounts, names, steps = _accounts(result), tuple(ACCOUNTS), max(scene.steps, 1)
    charged = np.bincount(result.account, weights=result.kernel_us, minlength=len(names)) / steps
    for name, us in zip(names, charged, strict=True):
        if not name.startswith("overhead.") or name == "overhead.launch_floor":
            assert accounts.get(name, 0.0) == pytest.approx(us, abs=1e-9)


def _cells_charged(scene: Scene) -> list[float]:
    """Charge per kernel, counted in cells of 1 us."""
    order = {"compute": 0, "collective": 1, "copy": 3, "fill": 3}
    layers = [2 if kernel.bound == "transfer" else order[kernel.kind] for kernel in scene.kernels]
    charge = [0.0] * len(scene.kernels)
    for cell in range(_WALL):
        running = [row for row, kernel in enumerate(scene.kernels) if kernel.ts <= cell < kernel.ts + kernel.dur]
        top = min((layers[row] for row in running), default=None)
        members = [row for row in running if layers[row] == top]
        for row in members:
            charge[row] += 1 / len(members)
    return charge


@pytest.mark.sample
@_law
@given(_device_scenes)
def test_charges_agree_with_counting_every_microsecond(scene: Scene) -> None:
    assert _build(scene).kernel_us.tolist() == pytest.approx(_cells_charged(scene), abs=1e-9)


def _state_in_cell(scene: Scene, thread: str, cell: int, recorded: tuple[float, float] | None) -> str:
    """The highest state of a thread in a cell, of the main thread where it is silent."""
    for source in dict.fromkeys((thread, MAIN)):
        states = [
            state
            for event in _host_events(scene)
            if event.thread == source
            and event.ts <= cell < event.ts + event.dur
            and (state := _state_of(event)) is not None
        ]
        if states:
            return min(states, key=HOST_STATES.index)
    return "python" if recorded and recorded[0] <= cell < recorded[1] else "unknown"


def _state_of(event: Event) -> str | None:
    if event.category == "runtime":
        return STATE_OF_CALL.get(call_kind(event.name) or "", "dispatch")
    return state_of(event.category, event.name)


def _host_events(scene: Scene) -> list[Event]:
    launches = [Event("runtime", "cudaLaunchKernel", *kernel.launch, kernel.thread) for kernel in scene.kernels]
    return [*scene.events, *launches]


def _causes_by_cell(scene: Scene) -> dict[str, int]:
    """Idle cells per cause; the part of a gap after its launch counts as 'launch or dependency', whatever it is."""
    busy = {cell for kernel in scene.kernels for cell in range(_WALL) if kernel.ts <= cell < kernel.ts + kernel.dur}
    telling = [event for event in scene.events if event.category in {"op", "annotation", "python"}]
    recorded = (min(e.ts for e in telling), max(e.ts + e.dur for e in telling)) if telling else None
    causes: dict[str, int] = {}
    for cell in sorted(set(range(_WALL)) - busy):
        following = [
            kernel for kernel in scene.kernels if max(kernel.ts, 0) > cell and kernel.ts < _WALL and kernel.dur > 0
        ]
        following = [kernel for kernel in following if kernel.ts + kernel.dur > 0]
        work = min(following, key=lambda kernel: kernel.ts, default=None)
        if work is not None and sum(work.launch) <= cell:
            cause = "launch or dependency"
        else:
            cause = _state_in_cell(scene, MAIN if work is None else work.thread, cell, recorded)
            cause = "launch or dependency" if cause == "launch" else cause
        causes[cause] = causes.get(cause, 0) + 1
    return causes


@_law
@given(_device_scenes)
def test_idle_causes_agree_with_asking_every_microsecond(scene: Scene) -> None:
    main_has_ops = any(event.category == "op" and event.thread == MAIN and event.dur for event in scene.events)
    other_has_ops = any(event.category == "op" and event.thread != MAIN for event in scene.events)
    if other_has_ops or not main_has_ops:
        scene = replace(
            scene, events=[*(e for e in scene.events if e.category != "op"), Event("op", "aten::view", 0, 1)]
        )
    result = _build(replace(scene, steps=0))
    found = result.idle.groupby("cause")["us"].sum().to_dict()
    merged = sum(found.pop(cause, 0.0) for cause in ("launch", "kernel_gap", "dependency"))
    expected = _causes_by_cell(scene)
    assert {**found, "launch or dependency": merged} == pytest.approx(
        {**dict.fromkeys(found, 0), "launch or dependency": 0, **expected}, abs=1e-6
    )


def _innermost(scene: Scene, thread: str, cell: int) -> int | None:
    depth = {row: 0 if op.parent is None else None for row, op in enumerate(scene.ops)}
    for row, op in enumerate(scene.ops):
        if op.parent is not None:
            depth[row] = depth[op.parent] + 1
    open_ = [row for row, op in enumerate(scene.ops) if op.thread == thread and op.ts <= cell < op.ts + op.dur]
    return max(open_, key=lambda row: depth[row], default=None)


@_law
@given(_host_scenes())
def test_host_charges_agree_with_counting_every_microsecond(scene: Scene) -> None:
    charge = [0.0] * len(scene.ops)
    for cell in range(_WALL):
        owners = [row for thread in (MAIN, "1/2") if (row := _innermost(scene, thread, cell)) is not None]
        for row in owners:
            charge[row] += 1 / len(owners)
    assert _build(scene).kernel_us.tolist() == pytest.approx(charge, abs=1e-9)


def _moved(scene: Scene, by: float, scale: float = 1.0) -> Scene:
    def time(ts: float) -> float:
        return ts * scale + by

    return replace(
        scene,
        wall=scene.wall * scale,
        start=time(scene.start),
        kernels=[
            replace(k, ts=time(k.ts), dur=k.dur * scale, launch=(time(k.launch[0]), k.launch[1] * scale))
            for k in scene.kernels
        ],
        ops=[replace(op, ts=time(op.ts), dur=op.dur * scale) for op in scene.ops],
        events=[replace(event, ts=time(event.ts), dur=event.dur * scale) for event in scene.events],
    )


@_law
@given(st.one_of(_device_scenes, _host_scenes()), st.floats(-1e3, 1e9))
def test_shifting_time_changes_nothing(scene: Scene, by: float) -> None:
    by = round(by, 0)
    assert _same(_build(scene), _build(_moved(scene, by)))


@_law
@given(_host_scenes())
def test_doubling_all_times_doubles_every_account(scene: Scene) -> None:
    assert _same(_build(scene), _build(_moved(scene, 0.0, 2.0)), factor=2.0)


@_law
@given(_device_scenes)
def test_doubling_all_times_doubles_every_account_of_work(scene: Scene) -> None:
    once, twice = _accounts(_build(scene)), _accounts(_build(_moved(scene, 0.0, 2.0)))
    work = [name for name in ACCOUNTS if not name.startswith("overhead.") or name == "overhead.launch_floor"]
    for name in work:
        assert 2.0 * once.get(name, 0.0) == pytest.approx(twice.get(name, 0.0), abs=1e-9)


@_law
@given(_device_scenes, st.randoms(use_true_random=False))
def test_order_of_rows_changes_no_charge(scene: Scene, random) -> None:
    order = list(range(len(scene.kernels)))
    random.shuffle(order)
    shuffled = _build(replace(scene, kernels=[scene.kernels[row] for row in order]))
    assert shuffled.kernel_us.tolist() == pytest.approx(_build(scene).kernel_us[order].tolist(), abs=1e-9)


@_law
@given(st.one_of(_device_scenes, _host_scenes()))
def test_names_of_threads_and_streams_change_nothing(scene: Scene) -> None:
    names = {MAIN: "9/z", "1/2": "0/a", "0/7": "5/3", "0/20": "5/1"}
    renamed = replace(
        scene,
        kernels=[replace(k, stream=names[k.stream], thread=names[k.thread]) for k in scene.kernels],
        ops=[replace(op, thread=names[op.thread]) for op in scene.ops],
        events=[replace(event, thread=names[event.thread]) for event in scene.events],
    )
    assert _same(_build(scene), _build(renamed))


@_law
@given(st.lists(st.tuples(st.floats(0, 1e8), st.floats(0, 1e5), st.integers(0, 2)), max_size=40))
def test_shared_charges_add_up_to_the_union(intervals: list[tuple[float, float, int]]) -> None:
    start = np.array([interval[0] for interval in intervals])
    end = start + np.array([interval[1] for interval in intervals])
    charge = shared_charge(start, end, np.array([interval[2] for interval in intervals], dtype=np.int64))
    assert (charge >= 0).all()
    assert math.fsum(charge) == pytest.approx(union(start, end).total(), rel=1e-9, abs=1e-6)
