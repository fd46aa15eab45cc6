"""Completeness of traces: each defect is found at its place, and only there."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.analysis.faults import find_faults
from bottleneck.analysis.fitness import FULL_REPORT, SUBJECTS, check_trace
from bottleneck.pipeline import examine, finish
from bottleneck.schema.checks import Check
from bottleneck.schema.sources import TraceSource
from bottleneck.trace.damage import KINDS, Damage
from bottleneck.trace.metadata import SEVERAL_TRACES
from tests import trace_cache
from tests.builders import Event, complete, kernel, launch, op, step, write_trace
from tests.trace.traces import linked


def pairs(count: int, first: int = 1, at: float = 100.0) -> list[Event]:
    """So many ops with a launch and a kernel each, ten microseconds apart."""
    events = []
    for number in range(first, first + count):
        ts = at + 10 * (number - first)
        events += [op("aten::relu", ts, 8, external_id=number), launch(number, ts + 2, 2), kernel(number, ts + 5, 4)]
    return events


def launches(correlations: Sequence[int], at: float) -> list[Event]:
    """Launches whose kernels are not in the trace."""
    return [launch(number, at + 2 * place, 1) for place, number in enumerate(correlations)]


def rows(folder: Path, events: Sequence[Event], **top: object) -> dict[str, Check]:
    """The rows about a trace of these events by their slugs."""
    explained = finish(examine(TraceSource(write_trace(folder / "trace.json", events, **top))))
    return {check.slug: check for check in check_trace(explained.linked, explained.analysis)}


def faults(folder: Path, events: Sequence[Event], **top: object) -> dict[str, str]:
    """The messages of the caveats on a trace of these events by their slugs."""
    return {caveat.slug: caveat.message for caveat in find_faults(linked(folder, events, **top))}


def test_a_whole_trace_is_ok_in_every_row(tmp_path: Path) -> None:
    checks = [check for check in rows(tmp_path, pairs(50)).values() if check.group != FULL_REPORT]
    assert {check.status for check in checks} == {"ok"}
    assert [check.slug for check in checks] == [
        "file", "kernels-missing", "orphans", "clock-skew", "repeated-ids", "streams-overlap", "ops-overlap",
    ]  # fmt: skip


def test_damage_that_the_reader_tolerated_has_its_own_row(tmp_path: Path) -> None:
    checks = rows(tmp_path, [*pairs(5), {**op("aten::relu", 300, 5), "dur": -1}])
    assert (checks["clamped-durations"].status, checks["clamped-durations"].decides) == ("limited", True)
    assert "clamped-durations" not in rows(tmp_path, pairs(5))


def test_every_caveat_of_a_report_has_its_row_and_its_words(tmp_path: Path) -> None:
    events = [*pairs(20), *launches([901, 902], 131), kernel(950, 20, 40), {**op("aten::relu", 900, 5), "dur": -1}]
    explained = finish(examine(TraceSource(write_trace(tmp_path / "trace.json", events))))
    facts = {check.slug: check.fact for check in check_trace(explained.linked, explained.analysis)}
    stated = {caveat.slug: caveat.message for caveat in explained.analysis.caveats}
    assert {"kernels-missing", "orphans", "clamped-durations"} <= stated.keys()
    assert stated.items() <= facts.items()


def test_messages_of_the_profiler_are_reported(tmp_path: Path) -> None:
    line = "ERROR:2026-01-08 08:51:59 865:3386 DeviceProperties.cpp:47] gpuGetDeviceCount failed \x1b[2J"
    check = rows(tmp_path, pairs(2), ERROR=[line, "more"])["profiler-log"]
    assert (check.status, check.decides) == ("limited", False)
    assert check.fact.endswith(r"gpuGetDeviceCount failed \x1b[2J (and 1 more)")
    assert rows(tmp_path, pairs(2), WARNING=["w"])["profiler-log"].status == "ok"


@pytest.mark.parametrize("log", [[], "text", 3, None])
def test_a_log_that_holds_nothing_says_nothing(tmp_path: Path, log: object) -> None:
    assert "profiler-log" not in rows(tmp_path, pairs(2), ERROR=log)


@pytest.mark.parametrize(
    ("lost", "where"),
    [
        (launches([901, 902, 903], 20), "3 before the first"),
        (launches([901, 902], 131), "2 between"),
        (launches([901, 902, 903, 904], 900), "4 after the last"),
    ],
)
def test_launches_without_kernels_say_where_they_lie(tmp_path: Path, lost: list[Event], where: str) -> None:
    check = rows(tmp_path, [*pairs(20), *lost])["kernels-missing"]
    assert check.status == "limited"
    assert check.fact.startswith(f"{len(lost)} of {20 + len(lost)} kernel launches")
    assert check.why.startswith(where)


@pytest.mark.parametrize(("part", "slug"), [(0.95, "links-missing"), (0.5, "kernels-missing")])
def test_a_busy_device_carries_the_verdict_though_launches_lack_kernels(tmp_path: Path, part: float, slug: str) -> None:
    """Each of 20 kernels runs for this part of the time until the next; a third of the launches has none."""
    events = [step(0, 100, 400)]
    for number in range(1, 21):
        at = 100 + 20.0 * (number - 1)
        events += [op("aten::relu", at, 8, external_id=number), launch(number, at, 2), kernel(number, at, 20 * part)]
    explained = finish(
        examine(TraceSource(write_trace(tmp_path / "t.json", [*events, *launches(range(901, 911), 300)])))
    )
    assert {caveat.slug for caveat in explained.analysis.caveats} & {"links-missing", "kernels-missing"} == {slug}
    assert (explained.analysis.verdict.bound == "inconclusive") == (slug == "kernels-missing")


def test_a_few_launches_whose_kernels_never_ran_are_reported_but_no_fault(tmp_path: Path) -> None:
    check = rows(tmp_path, [*pairs(99), *launches([901], 5000)])["kernels-missing"]
    assert check.status == "ok"
    assert check.fact == "of 100, 1 without a kernel"


def test_launches_that_entered_a_graph_are_no_loss(tmp_path: Path) -> None:
    begin, end = (launch(800 + at, at, 1, f"cudaStream{name}Capture") for at, name in ((500, "Begin"), (600, "End")))
    check = rows(tmp_path, [*pairs(20), begin, *launches(range(901, 931), 510), end])["kernels-missing"]
    assert check.status == "ok"
    assert "30 others captured" in check.fact


def test_a_step_without_any_of_its_kernels_is_named(tmp_path: Path) -> None:
    events = [step(1, 90, 200), step(2, 290, 200), *pairs(10), *launches(range(901, 905), 300)]
    assert "none at all in ProfilerStep#2" in rows(tmp_path, events)["kernels-missing"].why


def test_device_work_that_ends_long_before_the_host_is_a_cut(tmp_path: Path) -> None:
    check = rows(tmp_path, [*pairs(20), *launches(range(901, 911), 10_000)])["kernels-missing"]
    assert "9.72 ms before the host's last launch" in check.why
    check = rows(tmp_path, [*pairs(20), *launches(range(901, 911), 131)])["kernels-missing"]
    assert check.status == "limited"
    assert "last launch" not in check.why


@pytest.mark.parametrize(("at", "why"), [(20, "before the recording began"), (250, "dropped their launches")])
def test_kernels_without_launches_say_why(tmp_path: Path, at: float, why: str) -> None:
    check = rows(tmp_path, [*pairs(20), kernel(901, at, 40)])["orphans"]
    assert check.status == "limited"
    assert "33.3 % of the device's busy time" in check.fact
    assert why in check.why


def test_kernels_of_a_trace_that_recorded_no_host_say_so(tmp_path: Path) -> None:
    check = rows(tmp_path, [kernel(1, 10, 5), kernel(2, 20, 5)])["orphans"]
    assert (check.status, check.why) == ("limited", "launches were not recorded")


def test_clock_skew_is_reported_by_median_and_most(tmp_path: Path) -> None:
    early = [event for number in range(3) for event in (launch(90 + number, 500 + 40 * number, 2),)]
    works = [kernel(90 + number, 500 + 40 * number - lead, 3) for number, lead in enumerate((5, 10, 30))]
    check = rows(tmp_path, [*pairs(7), *early, *works])["clock-skew"]
    assert check.status == "limited"
    assert check.fact.startswith("3 of 10 pieces of device work start before their launch, by up to 30.0 us")


def test_a_rare_skew_is_reported_but_no_fault(tmp_path: Path) -> None:
    check = rows(tmp_path, [*pairs(40), launch(90, 900, 2), kernel(90, 895, 3)])["clock-skew"]
    assert (check.status, check.fact.split(":")[0][-7:]) == ("ok", "5.00 us")


def test_ids_that_repeat_are_counted(tmp_path: Path) -> None:
    twice = [launch(1, 900, 1), kernel(77, 905, 3), kernel(77, 910, 3)]
    check = rows(tmp_path, [*pairs(20), *twice])["repeated-ids"]
    assert check.status == "limited"
    assert check.fact.startswith("ids are used more than once (launches 1, device work 1)")


def test_kernels_that_one_graph_launch_replays_share_its_id_by_nature(tmp_path: Path) -> None:
    replay = [launch(90, 900, 5, "cudaGraphLaunch"), *(kernel(90, 910 + 5 * place, 4) for place in range(6))]
    assert rows(tmp_path, [*pairs(5), *replay])["repeated-ids"].status == "ok"


REPLAY = [launch(1, 100, 10, "cudaGraphLaunch"), kernel(1, 120, 10), kernel(1, 131, 10)]


@pytest.mark.parametrize(
    ("events", "count"),
    [
        ([*REPLAY, kernel(1, 190, 10)], 1),
        ([*REPLAY, kernel(1, 155, 10)], 0),
        ([*REPLAY, kernel(1, 190, 10), launch(2, 112, 2), kernel(2, 141, 49, stream=8)], 0),
        ([launch(1, 100, 80, "cudaGraphLaunch"), *REPLAY[1:], kernel(1, 190, 10)], 0),
        ([*pairs(2), launch(8, 115, 1), launch(9, 117, 1), kernel(9, 180, 10)], 1),
        ([*pairs(2), launch(9, 117, 1), kernel(9, 180, 10)], 0),
    ],
    ids=["replay", "short", "other stream", "still launching", "lost launch", "no launch lost"],
)
def test_a_device_that_rests_amid_its_queue_has_lost_work(tmp_path: Path, events: list[Event], count: int) -> None:
    result = linked(tmp_path, [op("aten::relu", 90, 200), *events])
    assert result.losses is not None
    assert result.losses.holes.sum() == count


@pytest.mark.parametrize(
    ("name", "kernels", "count"),
    [("aten::mm", 0, 1), ("aten::mm", 1, 0), ("aten::zero_", 0, 0)],
    ids=["memset only", "whole", "no product"],
)
def test_a_product_of_which_only_the_memset_is_left_has_lost_its_kernel(
    tmp_path: Path, name: str, kernels: int, count: int
) -> None:
    fill = {**kernel(1, 120, 1, "Memset (Device)"), "cat": "gpu_memset"}
    work = [launch(1, 102, 2, "cudaMemsetAsync"), fill, *[launch(2, 106, 2), kernel(2, 122, 9)][: 2 * kernels]]
    result = linked(tmp_path, [op(name, 100, 10), *work, *pairs(1, 5, 200)])
    assert result.losses is not None
    assert len(result.losses.products) == count


@pytest.mark.parametrize(("stride", "count"), [(70, 1), (1, 0), (2, 0)])
def test_a_sample_of_the_ops_is_told_by_the_distance_of_their_ids(tmp_path: Path, stride: int, count: int) -> None:
    # Two ranges far apart are no sample: the ids inside each follow one another.
    ids = [*range(1, 20 * stride, stride), *range(90_000, 90_000 + 20 * stride, stride)]
    ops = [op("aten::relu", 100 + 10 * place, 8, external_id=number) for place, number in enumerate(ids)]
    result = linked(tmp_path, ops)
    assert [caveat.slug for caveat in find_faults(result)].count("sampled") == count


def test_an_excerpt_of_a_public_trace_is_called_damaged(traces: Path) -> None:
    path = traces / "pytorch+kineto__docs__traces__before_fix_trace.json"
    stated = {caveat.slug: caveat.message for caveat in find_faults(trace_cache.linked(path))}
    assert stated["sampled"].startswith("judging by the ids of its ops, the trace holds about one op in 100")


def test_work_that_overlaps_on_one_stream_is_found_and_on_two_it_is_not(tmp_path: Path) -> None:
    late = [launch(90, 900, 1), launch(91, 902, 1), kernel(90, 905, 50)]
    assert rows(tmp_path, [*pairs(5), *late, kernel(91, 930, 10)])["streams-overlap"].status == "limited"
    assert rows(tmp_path, [*pairs(5), *late, kernel(91, 930, 10, stream=8)])["streams-overlap"].status == "ok"


def test_ops_that_outlast_the_op_around_them_are_found(tmp_path: Path) -> None:
    check = rows(tmp_path, [op("aten::a", 10, 20), op("aten::b", 20, 40)])["ops-overlap"]
    assert check.status == "limited"
    assert check.fact.startswith("1 of 2 ops outlast the op around them, by up to 30.0 us")


def test_a_trace_of_launches_alone_says_that_the_device_is_missing(tmp_path: Path) -> None:
    check = rows(tmp_path, [op("aten::relu", 1, 9), launch(1, 2, 2)])["no-device-events"]
    assert check.status == "missing"
    assert "permission" in check.fact


def test_a_gpu_program_without_its_gpu_is_told_to_record_the_device(tmp_path: Path) -> None:
    check = rows(tmp_path, [op("aten::relu", 1, 9), op("nccl:all_reduce", 12, 9)])["device-not-recorded"]
    assert check.status == "missing"
    assert "ProfilerActivity.CUDA" in check.remedy


def test_a_cpu_trace_is_not_blamed_for_having_no_kernels(tmp_path: Path) -> None:
    assert rows(tmp_path, [op("aten::relu", 1, 9)], deviceProperties=[])["no-device-events"].status == "ok"


def test_a_device_that_is_listed_and_silent_is_named(tmp_path: Path) -> None:
    checks = rows(tmp_path, [op("aten::relu", 1, 9)])
    assert checks["device-listed-alone"].status == "limited"
    assert "NVIDIA H100" in checks["device-listed-alone"].fact
    assert "no-device-events" not in checks


def test_counts_of_launches_add_up(tmp_path: Path) -> None:
    lost = [*launches([901], 20), *launches([902, 903], 131), *launches([904], 900)]
    found = linked(tmp_path, [*pairs(20), *lost]).integrity.launches
    assert (found.total, found.lead, found.between, found.tail, found.lost) == (24, 1, 2, 1, 4)


def test_launches_that_wait_behind_a_busy_device_are_not_lost(tmp_path: Path) -> None:
    """The device works until 100 ms; the host has launched all by then, and the recording ends."""
    busy = [launch(1, 10, 5), kernel(1, 20, 100_000)]
    found = linked(tmp_path, [*busy, *launches([901, 902], 50)]).integrity.launches
    assert (found.total, found.queued, found.lost) == (3, 2, 0)
    stated = faults(tmp_path, [*busy, *launches([901, 902], 50)])
    assert "queued-at-end" in stated and "kernels-missing" not in stated


@pytest.mark.parametrize(("recorded_until", "slug"), [(990, "queued-at-end"), (3000, "kernels-missing")])
def test_a_step_that_the_recording_cuts_in_the_queue_is_set_aside(
    tmp_path: Path, recorded_until: float, slug: str
) -> None:
    """The device works until 900 us; a queue ends soon after that, and a host that goes on has lost its kernels."""
    busy = [launch(90, 405, 2), kernel(90, 410, 245), launch(91, 415, 2), kernel(91, 655, 245)]
    queued = launches(range(901, 911), 500) + launches([911], recorded_until)
    events = [step(0, 100, 100), *pairs(8), step(1, 200, 100), *pairs(8, 11, 200), step(2, 400, 3000), *busy, *queued]
    window = linked(tmp_path, events).window
    stated = faults(tmp_path, events)
    assert slug in stated and len({"queued-at-end", "kernels-missing"} & set(stated)) == 1
    assert len(window.steps) == (2 if slug == "queued-at-end" else 3)


def test_every_kind_of_damage_has_a_consequence() -> None:
    slugs = {caveat.slug for caveat in Damage(dict.fromkeys(KINDS, 1)).caveats(1)} | {SEVERAL_TRACES}
    assert all(SUBJECTS[slug].why and SUBJECTS[slug].decides for slug in slugs)


def _replays(folder: Path, contents: Sequence[Sequence[str]], **top: object) -> Check:
    """The row about replays of a ROCm trace whose graph launches issue these kernels."""
    events = []
    for number, names in enumerate(contents, start=1):
        at = 1000.0 * number
        events += [launch(number, at, 5, "hipGraphLaunch")]
        events += [kernel(number, at + 10 + 10 * place, 9, name) for place, name in enumerate(names)]
    return rows(folder, events, **top)["graph-kernels"]


GRAPH = ["gemm", "norm", "gemm", "relu", "rope", "attention", "gemm", "norm"]


def test_replays_that_lost_kernels_by_chance_are_told_with_their_number(tmp_path: Path) -> None:
    lossy = [GRAPH, GRAPH[:5], GRAPH[2:], GRAPH[:3] + GRAPH[4:], GRAPH[1:4]]
    check = _replays(tmp_path, lossy)
    assert (check.status, check.decides) == ("limited", True)
    assert check.fact == "4 of 5 graph replays lack 11 kernels that others of the same graph have, 27.5 % of 40"
    assert "ROCm 7.2.2" in check.remedy


def test_several_graphs_that_come_again_and_again_lost_nothing(tmp_path: Path) -> None:
    whole = [GRAPH, GRAPH[:5], GRAPH[:2]] * 4
    assert _replays(tmp_path, whole).status == "ok"


def test_a_version_that_loses_kernels_of_each_replay_alike_leaves_it_unknown(tmp_path: Path) -> None:
    assert _replays(tmp_path, [GRAPH] * 4, hip_runtime_version=70253211).status == "unknown"
    assert _replays(tmp_path, [GRAPH] * 4, hip_runtime_version=71460850).status == "ok"


def test_replays_of_cuda_have_no_such_row(tmp_path: Path) -> None:
    events = [launch(1, 0, 5, "cudaGraphLaunch"), *(kernel(1, 10 + 10 * place, 9) for place in range(4))]
    assert "graph-kernels" not in rows(tmp_path, events)


def _intel(correlation: int, at: float, name: str = "urEnqueueKernelLaunchWithArgsExp") -> Event:
    return launch(correlation, at, 5, name) | {"cat": "xpu_runtime"}


def _of_intel(correlation: int, at: float, cat: str = "kernel", queue: object = 64) -> Event:
    args = {"device": 0, "correlation": correlation, "sycl queue": queue, "l0 queue": "0x55d0"}
    return complete("gemm_kernel", cat, at, 20, pid=0, tid=queue, args=args)


def test_intels_kernels_without_a_stream_are_tied_to_their_launches(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 0, 20),
        _intel(1, 5),
        launch(1, 6, 3, "zeCommandListAppendLaunchKernel") | {"cat": "xpu_driver"},
        _of_intel(1, 30),
        op("aten::mm", 60, 20),
        _intel(2, 65),
        _of_intel(2, 90, queue="0x7f00aabbccdd"),
    ]
    result = linked(tmp_path, events)
    assert result.trace.flavour == "xpu"
    assert result.kernels["op"].notna().all()
    assert rows(tmp_path, events)["kernels-missing"].fact == "of 2, none lacks its kernel"


def test_intels_launches_without_any_kernel_beside_copies_are_told(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 20), _intel(1, 5), op("aten::add", 30, 20), _intel(2, 35)]
    events += [_intel(3, 55, "urEnqueueUSMMemcpy"), _of_intel(3, 70, "gpu_memcpy")]
    check = rows(tmp_path, events)["kernels-missing"]
    assert "2 of 2 kernel launches (100.0 %)" in check.fact
    assert "; none at all in " in check.why
    assert "intel-pti" in check.remedy


@pytest.mark.parametrize(
    ("name", "cat", "cause"),
    [
        ("urEnqueueKernelLaunchWithArgsExp", "xpu_runtime", "intel-pti 0.17"),
        ("hipLaunchKernel", "cuda_runtime", "a warm-up phase whose events filled the buffers"),
        ("cudaLaunchKernel", "cuda_runtime", "an empty profiler session earlier in the process"),
    ],
)
def test_launches_without_any_device_work_name_what_is_known_to_empty_a_window(
    tmp_path: Path, name: str, cat: str, cause: str
) -> None:
    events = [op("aten::mm", 0, 20), launch(1, 5, 5, name) | {"cat": cat}]
    check = rows(tmp_path, events)["no-device-events"]
    assert check.status == "missing"
    assert cause in check.fact


@pytest.mark.parametrize(
    "args",
    [
        {"graph node id": 5, "graph node dependencies": [1, 2, 3], "annotation": '[{"name": "attention"}]'},
        {"graph node dependencies": {"0": [1]}, "annotation": [{"name": "loss"}]},
        {"graph id": "7", "graph node id": None, "annotation": None, "priority": -1, "channel": 3},
        {"cluster size": [2, 1, 1], "occupancy": {"limitingFactors": "SMEM"}, "graph id": 2**70},
    ],
    ids=["lists", "objects", "texts", "numbers"],
)
def test_arguments_of_graph_nodes_of_any_shape_are_read(tmp_path: Path, args: dict[str, object]) -> None:
    events = [
        *pairs(3),
        launch(50, 200, 5, "cudaGraphLaunch"),
        *(kernel(50, 210 + 10 * n, 9, args=args) for n in range(3)),
    ]
    assert len(linked(tmp_path, events).kernels) == 6


@pytest.mark.parametrize(
    "cat",
    [
        "cuda_event",
        "xpu_scope_profiler",
        "xpu_sync",
        "privateuse1_driver",
        "collective_comm",
        "mtia_insight",
        "new_one",
    ],
)
def test_newer_categories_of_kineto_are_read(tmp_path: Path, cat: str) -> None:
    odd = complete("what", cat, 300, 5, args={"correlation": "x", "device": -1, "stream": None})
    result = linked(tmp_path, [*pairs(3), odd])
    assert len(result.kernels) == 3
    assert cat in result.trace.counts
