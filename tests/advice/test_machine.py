"""Remarks on the machine and the measurement: each says how to read the rest, and one what another process takes."""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bottleneck.advice.kernel_work import work_of
from bottleneck.advice.machine import (
    RULES,
    busy_not_productive,
    host_stalls,
    incomplete_trace,
    low_clocks,
    profiler_distorts,
    shared_device,
)
from bottleneck.pipeline import examine
from bottleneck.schema.analysis import Caveat, TelemetrySummary
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import OptionCost, OptionCosts, Ratio, Timing
from bottleneck.schema.records import replace
from bottleneck.schema.sources import find_traces
from tests.advice.cases import case_of, cpu_events, gpu_events, with_analysis, with_ledger
from tests.advice.programs import Call, on_gpu
from tests.builders import op, step

QUIET = TelemetrySummary(50, None, None, None, None, None, ())


def sensed(case: Evidence, nominal_mhz: float = 1980.0, **told: object) -> Evidence:
    """The case with these readings, of a device whose peaks hold at that clock."""
    device = replace(case.analysis.device, peak_clocks_mhz={"bf16_tensor": nominal_mhz})
    return with_analysis(case, device=device, telemetry=replace(QUIET, **told))  # type: ignore[arg-type]


@pytest.fixture
def plain(tmp_path: Path) -> Evidence:
    return case_of(tmp_path / "gpu", gpu_events(20, 30.0, 31.0))


def test_a_plain_case_needs_no_remark(plain: Evidence) -> None:
    assert [draft for rule in RULES if rule is not busy_not_productive if (draft := rule(plain)) is not None] == []


def test_a_clock_below_that_of_the_peaks_is_reported_with_what_it_costs(plain: Evidence) -> None:
    case = with_ledger(plain, {"compute": 800.0, "overhead.python": 200.0})
    draft = low_clocks(sensed(case, sm_clock_mhz=1584.0, throttle=("power cap",)))
    assert draft is not None and draft.gain_us is None
    assert "80.0 %" in " ".join(draft.evidence) and "power cap" in draft.evidence[0]
    assert "160 us" in (draft.gain_reason or "")


def test_a_full_clock_or_one_that_was_chosen_is_no_remark(plain: Evidence) -> None:
    assert low_clocks(sensed(plain, sm_clock_mhz=1950.0)) is None
    assert low_clocks(sensed(plain, sm_clock_mhz=1950.0, throttle=("application clocks",))) is None
    assert low_clocks(plain) is None


def test_heat_is_told_whatever_the_median_clock(plain: Evidence) -> None:
    draft = low_clocks(sensed(plain, sm_clock_mhz=1950.0, throttle=("thermal slowdown",), temperature_c=88.0))
    assert draft is not None and any("88 degrees" in line for line in draft.evidence)


def test_processors_that_rest_say_nothing_of_their_clock(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(4, 100.0, 120.0))
    assert low_clocks(sensed(case, 3000.0, cpu_clock_mhz=1500.0, host_utilization=0.5)) is None
    draft = low_clocks(sensed(case, 3000.0, cpu_clock_mhz=1500.0, host_utilization=1.0))
    assert draft is not None and draft.code is None


def busy_case(case: Evidence, needed_us: float, busy_us: float = 990.0) -> Evidence:
    """A step of 1 ms whose kernels would need so much of it at the ceilings."""
    case = with_ledger(case, {"memory": busy_us, "overhead.python": 1000.0 - busy_us})
    first, *others = case.analysis.kernels
    kernels = (replace(first, memory_us=needed_us, compute_us=0.0), *(replace(o, memory_us=0.0) for o in others))
    return with_analysis(case, kernels=kernels, coverage=replace(case.analysis.coverage, modelled_share=1.0))


def test_a_busy_device_that_gets_little_done_is_not_called_healthy(plain: Evidence) -> None:
    draft = busy_not_productive(busy_case(plain, 40.0))
    assert draft is not None and draft.gain_us is None
    assert "99.0 %" in draft.evidence[0] and "4.0 %" in draft.evidence[1]
    assert busy_not_productive(busy_case(plain, 400.0)) is None
    assert busy_not_productive(busy_case(plain, 40.0, busy_us=700.0)) is None


def test_the_devices_own_counter_goes_before_the_trace(plain: Evidence) -> None:
    case = busy_case(plain, 40.0, busy_us=700.0)
    draft = busy_not_productive(sensed(case, utilization=0.97))
    assert draft is not None and "97.0 %" in draft.evidence[0]
    assert busy_not_productive(sensed(busy_case(plain, 40.0), utilization=0.5)) is None


def test_a_device_full_of_collectives_or_unmodelled_work_is_not_judged(plain: Evidence) -> None:
    case = with_ledger(busy_case(plain, 40.0), {"communication": 900.0, "memory": 100.0})
    assert busy_not_productive(case) is None
    unmodelled = busy_case(plain, 40.0)
    coverage = replace(unmodelled.analysis.coverage, modelled_share=0.5)
    assert busy_not_productive(with_analysis(unmodelled, coverage=coverage)) is None


def profiled(case: Evidence, factor: float, **more: object) -> Evidence:
    times = replace(case.analysis.steps, perturbation=factor, unprofiled_us=Timing(1000.0, 990.0, 1010.0, 50))
    return with_analysis(case, steps=times, **more)


def test_a_profiler_that_stretches_the_steps_is_reported_with_its_dearest_option(plain: Evidence) -> None:
    costs = (OptionCost("shapes", Ratio(1.1, 1.0, 1.2, 9)), OptionCost("stacks", Ratio(1.9, 1.8, 2.0, 9)))
    draft = profiler_distorts(profiled(plain, 2.0, option_costs=OptionCosts(costs)))
    assert draft is not None and draft.gain_us is None
    assert "2.00 ms" in draft.evidence[0] and "stacks" in draft.evidence[1]
    assert draft.code == "bottleneck run --no-stacks"
    assert profiler_distorts(profiled(plain, 1.2)) is None


@pytest.mark.parametrize(
    ("caveat", "is_told"),
    [
        (Caveat("kernels-missing", "half of the kernels are missing"), True),
        (Caveat("orphans", "some work has no launch", 0.3), True),
        (Caveat("orphans", "some work has no launch", 0.01), False),
        (Caveat("low-clocks", "other"), False),
    ],
)
def test_a_trace_with_less_than_all_of_the_work_is_reported(plain: Evidence, caveat: Caveat, is_told: bool) -> None:
    draft = incomplete_trace(with_analysis(plain, caveats=(caveat,)))
    assert (draft is not None) is is_told
    assert draft is None or draft.evidence == (caveat.message,)


def calls(taken: Mapping[int, float], sizes: int = 4, count: int = 48) -> list[Call]:
    """Kernels of 1 ms of so many sizes in turn, of which those of these numbers take so much longer."""
    return [
        Call("aten::add", 1000 + taken.get(index, 0.0), [[1024, 64 + index % sizes]] * 2 + [[]])
        for index in range(count)
    ]


def test_milliseconds_that_another_process_takes_at_a_regular_pace(tmp_path: Path) -> None:
    draft = shared_device(on_gpu(tmp_path, calls(dict.fromkeys(range(3, 48, 5), 2000.0))))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(9 * 2000)
    assert "2.00 ms longer" in draft.evidence[0] and "every 7.00 ms" in draft.evidence[1]


@pytest.mark.parametrize(
    "taken",
    [
        dict.fromkeys(range(3, 48, 20), 2000.0),  # three times only
        dict.fromkeys(range(3, 48, 5), 100.0),  # too short for a turn
        dict.fromkeys(range(3, 48, 4), 2000.0),  # always the same call
        dict.fromkeys((3, 4, 6, 10, 11, 19, 21, 33, 38, 47), 2000.0),  # at no pace
    ],
)
def test_other_slow_runs_are_not_blamed_on_another_process(tmp_path: Path, taken: dict[int, float]) -> None:
    assert shared_device(on_gpu(tmp_path, calls(taken))) is None


@pytest.mark.corpus
def test_a_trace_from_a_device_that_two_processes_shared(traces: Path) -> None:
    (path,) = traces.glob("*SwitchTransformers__result__trace_100Kpar*")
    draft = shared_device(examine(find_traces(path)[0]))
    assert draft is not None and "every 8.93 ms" in draft.evidence[1]


STALLED = Path(__file__).parents[1] / "judged" / "cases" / "host_stalls.json.gz"


def stalled(folder: Path, changed: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> Evidence:
    """The case of calls that are held up, with each of these calls in place of what it is there."""
    trace = json.loads(gzip.decompress(STALLED.read_bytes()))
    events = []
    for event in trace["traceEvents"]:
        is_held = event.get("cat") == "cpu_op" and event["dur"] > 1000
        events += changed(event) if is_held else [event]
    path = folder / "trace.json"
    path.write_text(json.dumps({**trace, "traceEvents": events}))
    return examine(find_traces(path)[0])


def _waiting(event: dict[str, Any]) -> list[dict[str, Any]]:
    call = {**event, "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": event["ts"] + 1}
    return [event, {**call, "dur": event["dur"] - 2, "args": {"correlation": 10**6 + event["ts"]}}]


def test_calls_of_milliseconds_among_microseconds_are_a_process_without_its_processor(tmp_path: Path) -> None:
    draft = host_stalls(stalled(tmp_path, lambda event: [event]))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high <= 23 * 12_100
    assert draft.evidence[0].startswith("23 calls per step of ")


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda event: [{**event, "name": "aten::mm"}], id="one op"),
        pytest.param(lambda event: [{**event, "dur": 400}], id="short"),
        pytest.param(_waiting, id="waits in a call"),
    ],
)
def test_long_calls_with_another_reason_are_no_stalls(
    changed: Callable[[dict[str, Any]], list[dict[str, Any]]], tmp_path: Path
) -> None:
    assert host_stalls(stalled(tmp_path, changed)) is None


def few_calls_each(
    folder: Path, slow_us: float, usual_us: float = 50.0, dims: Sequence[object] | None = ((64, 64),)
) -> Evidence:
    """Four steps of a CPU that call four ops once each; in three steps another op takes so long."""
    names = ("aten::exp", "aten::ne", "aten::any", "aten::mul")
    events, at = [], 0.0
    for number in range(4):
        start = at
        for place, name in enumerate(names):
            took_us = slow_us if place == number - 1 else usual_us
            events.append(op(name, at + 5, took_us, dims=dims))
            at += took_us + 10
        events.append(step(number, start, at - start))
        at += 1
    return case_of(folder, events)


@pytest.mark.parametrize("dims", [((64, 64),), None], ids=["sizes", "places in the step"])
def test_a_stall_is_judged_by_the_few_calls_that_take_alike(tmp_path: Path, dims: Sequence[object] | None) -> None:
    case = few_calls_each(tmp_path, slow_us=20_000, dims=dims)
    draft = host_stalls(case)
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(20_000 - 50)
    # No other finding's time is made of them. The first step is set aside.
    assert work_of(case).us.sum() == pytest.approx(4 * 50)


def test_calls_of_unknown_sizes_in_steps_that_differ_are_not_held_against_each_other(tmp_path: Path) -> None:
    names, events, at = ("aten::exp", "aten::ne", "aten::any"), [], 0.0
    for number in range(6):
        start = at
        # Each step calls its ops once more than the step before, and the last call is on a large tensor.
        for name in names:
            for call in range(number + 1):
                took_us = 20_000.0 if call == 4 else 50.0
                events.append(op(name, at + 5, took_us))
                at += took_us + 10
        events.append(step(number, start, at - start))
        at += 1
    assert case_of(tmp_path, events).held_up.empty


@pytest.mark.parametrize(("slow_us", "usual_us"), [(3_000, 100), (20_000, 4_000)])
def test_few_calls_that_take_somewhat_longer_are_no_stalls(tmp_path: Path, slow_us: float, usual_us: float) -> None:
    case = few_calls_each(tmp_path, slow_us, usual_us)
    assert host_stalls(case) is None
    assert case.held_up.empty
