"""One step over time: lanes, nesting, idle gaps by cause, the rows that its events belong to, and the limit."""

import itertools

import numpy as np
import pytest

from bottleneck.analysis import step_tracks as module
from bottleneck.analysis.step_tracks import lay_out
from bottleneck.pipeline import finish
from bottleneck.schema.analysis import GROUPS
from bottleneck.schema.linked_trace import Step
from bottleneck.schema.recording import Sampling
from bottleneck.schema.records import replace
from bottleneck.schema.step_tracks import StepTracks
from bottleneck.schema.telemetry import HOST, Sample
from tests.analysis.scenes import Event, Kernel, Op, Scene, evidence
from tests.gate.cases import RECORDING

_TRAIN = Event("annotation", "train", 0, 200)
_KERNELS = (
    Kernel(0, 30, launch=(-9, 2)),
    Kernel(10, 40, "compute", stream="0/8", name="gemm"),
    Kernel(60, 20, launch=(52, 5)),
)


def _laid_out(scene: Scene) -> StepTracks:
    timeline = lay_out(finish(evidence(scene)))
    assert timeline is not None
    return timeline.steps[0]


def _lane(laid_out: StepTracks, title: str) -> list[tuple[str, float, float]]:
    lane = [each.title for each in laid_out.lanes].index(title)
    rows = np.flatnonzero(laid_out.lane == lane)
    return [
        (laid_out.names[laid_out.name[row]], laid_out.event_start_us[row], laid_out.event_dur_us[row]) for row in rows
    ]


def test_device_work_idle_gaps_and_the_host_have_lanes_of_their_own() -> None:
    laid_out = _laid_out(Scene(100, _KERNELS, events=[_TRAIN]))
    kinds = [lane.kind for lane in laid_out.lanes]
    assert kinds == ["device", "device", "idle", "ranges", "host"]
    assert _lane(laid_out, "stream 7") == [("some_kernel", 0, 30), ("some_kernel", 60, 20)]
    assert _lane(laid_out, "stream 8") == [("gemm", 10, 40)]


def test_a_lead_in_that_is_not_judged_is_not_drawn() -> None:
    """A decode step of 10.5 ms was the last 2 % of a chart of 474 ms."""
    explained = finish(evidence(Scene(100, _KERNELS, events=[_TRAIN])))
    window = explained.linked.window
    cut = replace(window, steps=(Step("whole trace", window.start_us - 5_000.0, window.end_us, 100.0),))
    explained = replace(explained, linked=replace(explained.linked, window=cut))
    timeline = lay_out(explained)
    assert timeline is not None
    assert (timeline.steps[0].start_us, timeline.steps[0].length_us) == (0, 100)


def test_a_stream_that_the_trace_calls_one_is_named_once() -> None:
    """Older traces call the thread of a stream 'stream 7', which became 'stream stream 7'."""
    kernels = tuple(replace(kernel, stream="0/stream 7") for kernel in _KERNELS)
    assert _laid_out(Scene(100, kernels, events=[_TRAIN])).lanes[0].title == "stream 7"


def test_work_and_idle_gaps_fill_the_step() -> None:
    laid_out = _laid_out(Scene(100, _KERNELS, events=[_TRAIN]))
    idle = sum(dur for _, _, dur in _lane(laid_out, "idle: why"))
    assert idle == pytest.approx(100 - 50 - 20)


def test_events_name_the_row_of_the_analysis_that_they_are_part_of() -> None:
    explained = finish(evidence(Scene(100, _KERNELS, events=[_TRAIN])))
    timeline = lay_out(explained)
    assert timeline is not None
    laid_out = timeline.steps[0]
    device = np.isin(laid_out.lane, [at for at, lane in enumerate(laid_out.lanes) if lane.kind == "device"])
    for row, name in zip(laid_out.row[device], laid_out.name[device], strict=True):
        assert explained.analysis.kernels[row].name == laid_out.names[name]
    idle = laid_out.lanes[2]
    rows = np.flatnonzero(laid_out.lane == 2)
    assert idle.kind == "idle" and all(laid_out.row[rows] >= 0)
    us = dict.fromkeys(range(len(explained.analysis.idle)), 0.0)
    for row in rows:
        us[int(laid_out.row[row])] += laid_out.event_dur_us[row]
    assert us == pytest.approx({at: cause.us for at, cause in enumerate(explained.analysis.idle)})


def test_ops_of_a_cpu_nest_and_carry_the_group_of_their_account() -> None:
    ops = [Op(0, 50, name="aten::linear", bound="dispatch"), Op(10, 30, name="aten::mm", bound="compute", parent=0)]
    laid_out = _laid_out(Scene(100, ops=ops, events=[_TRAIN]))
    found = {laid_out.names[name]: at for at, name in enumerate(laid_out.name)}
    outer, inner = found["aten::linear"], found["aten::mm"]
    assert (laid_out.depth[outer], laid_out.depth[inner]) == (0, 1)
    assert [GROUPS[laid_out.group[at]] for at in (outer, inner)] == ["overhead", "compute"]


def test_the_shortest_events_beyond_the_limit_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _laid_out(Scene(100, _KERNELS, events=[_TRAIN]))
    monkeypatch.setattr(module, "MOST_EVENTS", 4)
    cut = _laid_out(Scene(100, _KERNELS, events=[_TRAIN]))
    assert len(cut.lane) == 4 and cut.left_out == len(whole.lane) - 4
    assert cut.event_dur_us.min() >= sorted(whole.event_dur_us)[-4]


def test_a_step_in_which_nothing_is_recorded_has_no_timeline() -> None:
    assert lay_out(finish(evidence(Scene(100, (Kernel(0, 10),))))) is not None
    assert lay_out(finish(evidence(Scene(0.0, (Kernel(0, 0),))))) is None


def test_readings_of_the_sensors_in_the_step_are_curves_with_one_reading_around_it() -> None:
    case = evidence(Scene(100, _KERNELS, events=[_TRAIN]))
    sampling = Sampling(20.0, 4, None, None, {0: "GPU-a"})
    linked = replace(case.linked, trace=replace(case.linked.trace, start_unix_ns=10**18))
    sensors = {"GPU-a": "sm_clock_mhz", "GPU-b": "sm_clock_mhz", HOST: "cpu_clock_mhz"}
    samples = [
        Sample(10**18 + at_us * 1000, at_us / 1e6, sensor, {column: 1000.0 + at_us, "memory_used_bytes": 1.0})
        for at_us in (-50, -20, 30, 60, 120, 150)
        for sensor, column in sensors.items()
    ]
    recording = replace(RECORDING, sampling=sampling)
    timeline = lay_out(finish(replace(case, linked=linked, recording=recording, samples=samples)))
    assert timeline is not None
    laid_out = timeline.steps[0]
    assert [(curve.title, curve.unit) for curve in laid_out.curves] == [
        ("device 0: clock", "MHz"),
        ("clock of the processors", "MHz"),
    ]
    assert laid_out.curves[0].points == ((-20.0, 980.0), (30.0, 1030.0), (60.0, 1060.0), (120.0, 1120.0))


def test_a_step_without_readings_near_it_has_no_curves() -> None:
    assert _laid_out(Scene(100, _KERNELS, events=[_TRAIN])).curves == ()


def test_device_work_names_the_host_call_that_issued_it() -> None:
    laid_out = _laid_out(Scene(100, _KERNELS, events=[_TRAIN]))
    kinds = [laid_out.lanes[lane].kind for lane in laid_out.lane]
    issued = {int(laid_out.event_start_us[at]): int(laid_out.launch[at]) for at in np.flatnonzero(laid_out.launch >= 0)}
    assert [kinds.count("device"), list(issued)] == [3, [60]]  # one was issued before the window, one has no launch
    assert laid_out.names[laid_out.name[issued[60]]] == "cudaLaunchKernel"
    assert (kinds[issued[60]], laid_out.event_start_us[issued[60]]) == ("host", 52)


def test_python_frames_have_a_lane_above_the_calls_of_their_thread() -> None:
    call_impl = "torch/nn/modules/module.py(1): _call_impl"
    frames = [
        Event("python", "run.py(1): <module>", 0, 200),
        Event("python", "run.py(2): main", 0, 99),
        Event("python", call_impl, 10, 80),
        Event("python", "nn.Module: Net_0", 10, 70),
        Event("line", "run.py(9): main", 20, 30),
    ]
    laid_out = _laid_out(Scene(100, _KERNELS, events=[_TRAIN, *frames]))
    titles = [(lane.title, lane.kind) for lane in laid_out.lanes]
    at = titles.index(("main thread: Python", "frames"))
    assert titles[at + 1] == ("main thread", "host") and laid_out.lanes[at].thread == laid_out.lanes[at + 1].thread
    # Of the two around all of the step the inner one stays.
    wanted = ["run.py(2): main", "nn.Module: Net_0", "run.py(9): main"]
    assert [name for name, _, _ in _lane(laid_out, "main thread: Python")] == wanted
    assert laid_out.left_out == 1


def test_frames_beyond_the_limits_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [Event("python", f"a.py({at}): f", at, 90 - 2 * at) for at in range(1, 30)]
    scene = Scene(100, _KERNELS, events=[_TRAIN, *frames])
    deep = _laid_out(scene)
    assert max(lane.depth for lane in deep.lanes) == 24 and deep.left_out == 5
    monkeypatch.setattr(module, "_MOST_FRAMES", 3)
    few = _laid_out(scene)
    assert [name for name, _, _ in _lane(few, "main thread: Python")] == [f"a.py({at}): f" for at in (1, 2, 3)]
    assert few.left_out == 26


def test_steps_of_median_quickest_and_slowest_time_are_laid_out() -> None:
    def timeline(steps: int) -> list[tuple[str, str]]:
        case = evidence(Scene(300, _KERNELS, events=[_TRAIN], steps=steps))
        window = case.linked.window
        ends = np.cumsum([0.0, 90.0, 130.0, 80.0][: steps + 1]).tolist()
        uneven = tuple(Step(f"step {at}", low, high) for at, (low, high) in enumerate(itertools.pairwise(ends)))
        case = replace(case, linked=replace(case.linked, window=replace(window, steps=uneven)))
        laid_out = lay_out(finish(case))
        assert laid_out is not None
        return [(tracks.step, tracks.role) for tracks in laid_out.steps]

    assert timeline(3) == [("step 0", "median"), ("step 2", "quickest"), ("step 1", "slowest")]
    assert timeline(1) == [("step 0", "median")]


def test_steps_that_do_not_fit_are_not_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(300, _KERNELS, events=[Event("annotation", "train", 0, 400)], steps=3)

    def sizes() -> list[int]:
        timeline = lay_out(finish(evidence(scene)))
        assert timeline is not None
        return [len(tracks.lane) for tracks in timeline.steps]

    median, quickest, slowest = sizes()
    for room, fitting in ((slowest, [median, slowest]), (slowest - 1, [median])):
        monkeypatch.setattr(module, "MOST_IN_ALL", median + room)
        assert sizes() == fitting
    assert quickest > slowest
