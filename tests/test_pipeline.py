"""From paths to one Analysis: recordings, folders, options, and what must not change the answer."""

import json
import math
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bottleneck import __version__, pipeline
from bottleneck.devices.match import device_by_name
from bottleneck.errors import TraceError, UsageError
from bottleneck.pipeline import Options, analyse, explain, timeline_of
from bottleneck.report.analysis_document import to_terminal
from bottleneck.report.json_text import from_json, to_json
from bottleneck.report.screen import to_screen
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.device import Device
from bottleneck.schema.measurements import Timing
from bottleneck.schema.recording import (
    LightWindow,
    RankTrace,
    Recording,
    Sampling,
    light_file,
    read_recording,
    write_recording,
)
from bottleneck.schema.records import replace
from bottleneck.schema.sources import find_traces
from bottleneck.schema.telemetry import HOST, TELEMETRY_FILE, Sample, write_samples
from scripts.write_schema import ANALYSIS
from tests.builders import H100, Event, complete, frame, kernel, launch, memcpy, op, step, write_trace

VALIDATOR = jsonschema.Draft202012Validator(json.loads(ANALYSIS.file.read_text(encoding="utf-8")))
ORIGIN_NS = 1_700_000_000_000_000_000
GEMM = "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32_cublas"
SLOW = Device(
    name="slow",
    vendor=None,
    kind="cuda",
    count=1,
    peaks_flops_per_s={"fp32_vector": 1e9, "tf32_tensor": 1e9},
    bandwidth_bytes_per_s=1e9,
    launch_floor_us=2.0,
    source="user",
    ridge_flops_per_byte={"fp32_vector": 1.0},
)


def gpu_step(number: int) -> list[Event]:
    """A copy, a matrix product with its helper, a pointwise op on another stream, an orphan, and a wait: 1 ms."""
    at, first = 1000.0 * number, 10 * number
    return [
        step(number, at, 990),
        frame("train.py(12): train", at + 1, 980),
        op("aten::copy_", at + 10, 30, dims=[[512, 512], [512, 512], []], external_id=first + 1),
        launch(first + 1, at + 20, 15, "cudaMemcpyAsync"),
        memcpy(first + 1, at + 40.5, 60, 512 * 512 * 4),
        op("aten::linear", at + 50, 60, dims=[[512, 512], [2048, 512], [2048]], external_id=first + 2),
        op("aten::addmm", at + 60.25, 40, dims=[[2048], [512, 512], [512, 2048], [], []], external_id=first + 3),
        launch(first + 2, at + 65, 5),
        kernel(first + 2, at + 110, 40, GEMM),
        launch(first + 3, at + 80, 5),
        kernel(first + 3, at + 150, 10, "void splitKreduce_kernel<32, 16>"),
        op("aten::relu", at + 200, 20, dims=[[8192, 8192]], external_id=first + 4),
        launch(first + 4, at + 205, 5),
        kernel(first + 4, at + 220, 300, "void at::native::vectorized_elementwise_kernel<4, relu>", stream=9),
        kernel(first + 5, at + 300, 40, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=11),
        launch(first + 6, at + 700, 150, "cudaDeviceSynchronize"),
    ]


def gpu_events() -> list[Event]:
    return [*gpu_step(0), *gpu_step(1)]


def cpu_events() -> list[Event]:
    """Four spells of 100 us with one op each, and a quiet one before and after."""
    spells = [op("aten::mm", 100.0 * spell + 10, 70, dims=[[64, 64], [64, 64]]) for spell in range(1, 5)]
    return [op("aten::zeros", 0, 5, dims=[[8]]), *spells, op("aten::zeros", 600, 5, dims=[[8]])]


def record(folder: Path, events: Sequence[Event], **more: Any) -> Path:
    """The folder as a recording of one rank with this trace."""
    folder.mkdir(parents=True, exist_ok=True)
    write_trace(folder / "trace.rank0.json", events, deviceProperties=more.pop("properties", []))
    marks = tuple(ORIGIN_NS + 1000 * at_us for at_us in more.pop("marks_us", ()))
    recording = Recording(
        created="2026-01-02T03:04:05+00:00",
        command=("python", "train.py"),
        form="script",
        step_source="optimizer",
        program_status=0,
        framework="torch 2.13.0",
        versions={},
        environment={},
        traces=(RankTrace(0, "trace.rank0.json", marks),),
    )
    write_recording(folder, replace(recording, **more))
    return folder


def account(analysis: Analysis, name: str) -> float:
    return math.fsum(entry.us for entry in analysis.ledger if entry.account == name)


def unnamed(analysis: Analysis) -> Analysis:
    """The analysis without the path of its input."""
    return replace(analysis, recording=replace(analysis.recording, path=""))


@pytest.fixture
def gpu(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "gpu.json", gpu_events())


def saved_analysis(folder: Path) -> Path:
    file = folder / "analysis.json"
    file.write_text(to_json(analyse([write_trace(folder / "analysed.json", gpu_events())])), encoding="utf-8")
    return file


def test_only_texts_of_lines_that_the_analysis_names_are_kept_and_cut(tmp_path: Path) -> None:
    lines = frame("train.py(5): main", 0, 900), complete("train.py(7): main", "python_line", 199, 40)
    events = [*gpu_events(), *lines]
    texts = {"train.py:7": "x" * 1000, "train.py:8": "y = 2", "__proto__": "z"}
    analysis = analyse([record(tmp_path / "run", events, source_texts=texts)])
    assert analysis.source_texts == {"train.py:7": "x" * 120}
    assert analyse([tmp_path / "run" / "trace.rank0.json"]).source_texts == {}


def test_a_trace_file_is_analysed_with_the_steps_and_the_device_that_it_names(gpu: Path) -> None:
    analysis = analyse([gpu])
    assert (analysis.recording.kind, analysis.recording.path) == ("trace", str(gpu))
    assert (analysis.steps.count, analysis.steps.source) == (2, "profiler")
    assert analysis.device.name == "NVIDIA H100 80GB HBM3"
    assert analysis.version == __version__
    assert analysis.ranks == ()


def test_a_trace_of_very_many_events_is_reported_without_a_replay(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = analyse([gpu])
    monkeypatch.setattr("bottleneck.pipeline._MOST_REPLAYED_EVENTS", 10)
    larger = analyse([gpu])
    assert replayed.critical_path is not None
    assert larger.critical_path is None
    assert larger.ledger == replayed.ledger


def test_the_first_screen_is_the_same_without_the_critical_path(gpu: Path) -> None:
    whole, short = analyse([gpu]), analyse([gpu], Options(critical_path=False))
    assert short == replace(whole, critical_path=None) != whole
    assert to_screen(short) == to_screen(whole)
    assert to_terminal(short) != to_terminal(whole)


def test_a_step_of_the_hand_built_trace_is_told_to_the_microsecond(gpu: Path) -> None:
    """Per step: relu takes 300 us and hides the collective, the product and its helper take 50, the copy 60."""
    analysis = analyse([gpu])
    assert analysis.steps.wall_us == pytest.approx((1000 + 990) / 2)
    assert analysis.totals.busy_us == pytest.approx(410)
    assert account(analysis, "communication") == 0
    assert account(analysis, "transfer") == pytest.approx(60)
    relu = next(row for row in analysis.kernels if row.op == "aten::relu")
    assert (relu.bound, relu.calls, relu.us, relu.source) == ("memory", 1, 300, "train() (train.py:12)")
    assert relu.bytes_low == 2 * 8192 * 8192 * 4
    product = next(row for row in analysis.kernels if row.name == GEMM)
    assert product.op == "aten::addmm"
    assert 2 * 512 * 512 * 2048 <= (product.flops or 0) <= 1.01 * 2 * 512 * 512 * 2048


def test_a_recording_gives_its_step_marks_and_what_it_says_of_itself(tmp_path: Path) -> None:
    folder = record(tmp_path / "rec", cpu_events(), marks_us=(100, 200, 300, 400, 500))
    analysis = analyse([folder])
    assert (analysis.recording.kind, analysis.recording.path) == ("run", str(folder))
    assert (analysis.recording.framework, analysis.recording.created) == ("torch 2.13.0", "2026-01-02T03:04:05+00:00")
    assert (analysis.steps.count, analysis.steps.source) == (4, "marks")
    assert analysis.steps.wall_us == pytest.approx(100)
    assert [(row.op, row.calls) for row in analysis.kernels] == [("aten::mm", 1)]


def test_a_recording_without_marks_is_analysed_as_its_trace_would_be(tmp_path: Path) -> None:
    recorded = analyse([record(tmp_path / "rec", gpu_events())])
    bare = analyse([tmp_path / "rec" / "trace.rank0.json"])
    assert replace(recorded, recording=bare.recording) == bare


def test_a_cpu_recording_is_judged_against_the_ceilings_measured_with_it(tmp_path: Path) -> None:
    measured = replace(SLOW, kind="cpu", source="measured")
    assert analyse([record(tmp_path / "cpu", cpu_events(), device=measured)]).device == measured


def test_a_gpu_recording_is_not_judged_against_the_ceilings_of_its_host(tmp_path: Path) -> None:
    measured = replace(SLOW, kind="cpu", source="measured")
    analysis = analyse([record(tmp_path / "gpu", gpu_events(), device=measured)])
    assert analysis.device.kind == "cuda"


def measured_gpu(**more: Any) -> Device:
    """A calibration of the device of the hand-built trace."""
    return replace(device_by_name("NVIDIA H100 80GB HBM3"), source="measured", launch_floor_us=1.6, **more)


def test_a_gpu_recording_on_a_calibrated_device_is_judged_by_its_calibration(tmp_path: Path) -> None:
    folder = record(tmp_path / "gpu", gpu_events(), device=measured_gpu(), properties=[H100])
    device = analyse([folder]).device
    assert (device.source, device.launch_floor_us, device.count) == ("measured", 1.6, 1)


@pytest.mark.parametrize("other", [{"name": "NVIDIA H100 PCIe"}, {"sm_count": 114}, {"kind": "rocm"}], ids=str)
def test_the_calibration_of_another_device_does_not_count(tmp_path: Path, other: dict[str, Any]) -> None:
    folder = record(tmp_path / "gpu", gpu_events(), device=measured_gpu(**other), properties=[H100])
    assert analyse([folder]).device.source == "datasheet"


def test_a_gpu_calibration_does_not_judge_work_of_the_cpu(tmp_path: Path) -> None:
    device = analyse([record(tmp_path / "cpu", cpu_events(), device=measured_gpu())]).device
    assert device.source is None


def test_the_ledger_adds_up_to_the_unprofiled_step(tmp_path: Path) -> None:
    timing = Timing(700.0, 690.0, 710.0, 9)
    analysis = analyse([record(tmp_path / "rec", gpu_events(), unprofiled=timing)])
    plain = analyse([tmp_path / "rec" / "trace.rank0.json"])
    assert analysis.steps.wall_us == 700.0
    assert math.fsum(entry.us for entry in analysis.ledger) == pytest.approx(700, rel=1e-9)
    assert analysis.steps.unprofiled_us == timing
    assert analysis.steps.perturbation == pytest.approx(plain.steps.wall_us / 700)
    assert analysis.totals.busy_us == pytest.approx(plain.totals.busy_us)
    assert analysis.totals.idle_us == pytest.approx(700 - plain.totals.busy_us)
    assert "perturbation" in {caveat.slug for caveat in analysis.caveats}


def test_the_whole_trace_is_one_step_and_no_unprofiled_step_scales_it(tmp_path: Path) -> None:
    folder = record(tmp_path / "rec", cpu_events(), marks_us=(100, 200, 300), unprofiled=Timing(50.0, 49.0, 51.0, 9))
    analysis = analyse([folder], Options(whole=True))
    assert (analysis.steps.count, analysis.steps.source) == (1, "whole")
    assert analysis.steps.wall_us == pytest.approx(605)
    assert analysis.steps.unprofiled_us is None


def test_flops_of_products_whose_kernels_are_lost_count_and_the_report_says_so(tmp_path: Path) -> None:
    lost = {10 * number + digit for number in range(2) for digit in (2, 3)}
    kept = [
        event
        for event in gpu_events()
        if event["args"].get("correlation") not in lost or event["cat"] not in {"kernel", "cuda_runtime"}
    ]
    fills = [
        event
        for number in range(2)
        for event in (
            launch(10 * number + 2, 1000 * number + 65.0, 5, "cudaMemsetAsync"),
            {**kernel(10 * number + 2, 1000 * number + 110.0, 1, "Memset (Device)"), "cat": "gpu_memset"},
        )
    ]
    whole, holed = (
        analyse([write_trace(tmp_path / f"{name}.json", events, deviceProperties=[H100])])
        for name, events in (("whole", gpu_events()), ("holed", [*kept, *fills]))
    )
    assert holed.totals.flops == whole.totals.flops
    said = {caveat.slug: caveat.message for caveat in holed.caveats}
    assert said["kernels-missing"].startswith("2 matrix products (1.07 GFLOP per step, which count) ran")
    assert not {"kernels-missing", "lost-products"} & {caveat.slug for caveat in whole.caveats}


def sided(*spans: tuple[float, float]) -> list[Event]:
    """Ops and kernels from end to end in some stretches of time."""
    starts = [at for low, high in spans for at in range(int(low), int(high), 100)]
    work = (
        (op("aten::relu", at, 50, external_id=number), launch(number, at + 1, 2), kernel(number, at + 5, 99))
        for number, at in enumerate(starts, 1)
    )
    return [event for events in work for event in events]


@pytest.mark.parametrize(
    ("events", "slug", "wall_us", "steps"),
    [
        ([op("aten::view", 0, 9), *sided((4000, 10_000))], "one-side", 6000, 1),
        ([*sided((0, 4000)), op("aten::view", 9990, 10)], "one-side", 6000, 1),
        ([step(0, 0, 10_000), op("aten::view", 0, 9), *sided((4000, 10_000))], "two-sided-step", 10_000, 1),
        ([step(0, 0, 6000), step(1, 6000, 4000), *sided((6000, 10_000))], "one-side", 4000, 1),
        ([step(0, 0, 10_000), *sided((0, 10_000))], None, 10_000, 1),
    ],
    ids=["longer is later", "longer is earlier", "marked step", "later steps", "one side"],
)
def test_a_window_with_two_sides_is_judged_on_one_unless_both_are_one_step(
    tmp_path: Path, events: list[Event], slug: str | None, wall_us: float, steps: int
) -> None:
    analysis = analyse([write_trace(tmp_path / "trace.json", events)])
    told = [each for each in analysis.caveats if each.slug in {"one-side", "two-sided", "two-sided-step"}]
    assert [each.slug for each in told] == ([slug] if slug else [])
    assert (analysis.steps.wall_us, analysis.steps.count) == (pytest.approx(wall_us, rel=0.02), steps)
    assert "apart" not in (analysis.verdict.first_step or "")
    assert all("--window" in each.message for each in told)
    assert (slug == "one-side") == any("part is judged here" in clause.text for clause in analysis.verdict.clauses)


@pytest.mark.parametrize("cut_us", [350.0, 1200.0, 1950.0])
def test_two_stretches_of_time_hold_the_work_of_the_whole_trace(gpu: Path, cut_us: float) -> None:
    parts = [analyse([gpu], Options(stretch_us=cut)) for cut in ((None, cut_us), (cut_us, None))]
    whole = analyse([gpu], Options(whole=True))
    assert parts[0].steps.wall_us == cut_us
    assert [sum(part) for part in zip(*((p.steps.wall_us, p.totals.busy_us) for p in parts), strict=True)] == (
        pytest.approx([whole.steps.wall_us, whole.totals.busy_us])
    )


def test_a_stretch_of_time_is_one_step_and_no_unprofiled_step_scales_it(tmp_path: Path) -> None:
    folder = record(tmp_path / "rec", gpu_events(), unprofiled=Timing(50.0, 49.0, 51.0, 9))
    analysis = analyse([folder], Options(stretch_us=(100.0, 900.0)))
    assert (analysis.steps.count, analysis.steps.wall_us, analysis.steps.unprofiled_us) == (1, 800.0, None)


def test_a_device_given_by_the_user_overrules_the_trace_and_changes_the_floors(gpu: Path) -> None:
    told, overruled = analyse([gpu]), analyse([gpu], Options(device=SLOW))
    assert overruled.device == SLOW

    def memory_us(analysis: Analysis) -> float:
        return next(row.memory_us or 0 for row in analysis.kernels if row.op == "aten::relu")

    assert memory_us(overruled) > 100 * memory_us(told) > 0


def test_a_folder_of_bare_traces_is_its_ranks_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for rank in (1, 0):
        top = {"distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"}}
        write_trace(tmp_path / f"worker{1 - rank}.json", gpu_events(), **top)
    analysis = analyse([tmp_path])
    assert [(one.rank, Path(one.path).name) for one in analysis.ranks] == [(0, "worker1.json"), (1, "worker0.json")]
    assert all(math.fsum(e.us for e in one.ledger) == pytest.approx(one.wall_us, rel=1e-9) for one in analysis.ranks)
    assert analysis.recording.path == str(tmp_path)
    listed = analyse(sorted(tmp_path.iterdir()))
    assert replace(listed, recording=analysis.recording) == analysis


def test_a_folder_with_one_bare_trace_is_that_trace(gpu: Path) -> None:
    assert analyse([gpu.parent]) == analyse([gpu])


def test_traces_are_looked_for_beside_other_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("a.json", "b.json.gz", "telemetry.csv", "notes.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder.json").mkdir()
    assert [source.trace.name for source in find_traces(tmp_path)] == ["a.json", "b.json.gz"]


def test_a_saved_analysis_in_a_folder_of_traces_is_none_of_them(tmp_path: Path) -> None:
    saved_analysis(tmp_path)
    assert [source.trace.name for source in find_traces(tmp_path)] == ["analysed.json"]


def test_an_empty_folder_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no trace") as refused:
        analyse([tmp_path])
    assert "recording.json" in (refused.value.why or "")


def test_a_recording_of_a_program_that_wrote_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no trace"):
        analyse([record(tmp_path / "rec", gpu_events(), traces=())])


def test_a_recording_whose_trace_is_gone_is_refused_by_the_name_of_the_file(tmp_path: Path) -> None:
    folder = record(tmp_path / "rec", gpu_events())
    (folder / "trace.rank0.json").unlink()
    with pytest.raises(TraceError, match=r"trace\.rank0\.json"):
        analyse([folder])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(gpu: Path) -> None:
    gpu.chmod(0)
    with pytest.raises(TraceError, match=r"gpu\.json"):
        analyse([gpu])


def test_a_saved_analysis_is_read_back_as_it_was(tmp_path: Path) -> None:
    saved = saved_analysis(tmp_path)
    assert analyse([saved]) == from_json(saved.read_text(encoding="utf-8")) == analyse([tmp_path / "analysed.json"])


@pytest.mark.parametrize("order", [1, -1])
def test_a_saved_analysis_beside_other_inputs_is_wrong_usage(tmp_path: Path, gpu: Path, order: int) -> None:
    with pytest.raises(UsageError, match=r"analysis\.json is a finished analysis"):
        analyse([saved_analysis(tmp_path), gpu][::order])


RESULTS: dict[str, Callable[[Path], Analysis]] = {
    "trace": lambda folder: analyse([write_trace(folder / "t.json", gpu_events())]),
    "whole": lambda folder: analyse([write_trace(folder / "t.json", gpu_events())], Options(whole=True)),
    "device": lambda folder: analyse([write_trace(folder / "t.json", gpu_events())], Options(device=SLOW)),
    "cpu": lambda folder: analyse([write_trace(folder / "t.json", cpu_events(), deviceProperties=[])]),
    "recording": lambda folder: analyse(
        [record(folder / "r", cpu_events(), marks_us=(100, 200, 300), unprofiled=Timing(60.0, 50.0, 70.0, 9))]
    ),
    "ranks": lambda folder: analyse(
        [write_trace(folder / f"{rank}.json", gpu_events(), distributedInfo={"rank": rank}) for rank in range(3)]
    ),
    "no kernel in the window": lambda folder: analyse([write_trace(folder / "t.json", gpu_step(0)[:3])]),
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_keeps_to_its_schema_and_adds_up(tmp_path: Path, name: str) -> None:
    analysis = RESULTS[name](tmp_path)
    tree = json.loads(to_json(analysis))
    VALIDATOR.validate(tree)
    assert math.fsum(entry["us"] for entry in tree["ledger"]) == pytest.approx(tree["steps"]["wall_us"], rel=1e-9)
    assert math.fsum(entry["share"] for entry in tree["ledger"]) == pytest.approx(1, rel=1e-9)
    assert from_json(to_json(analysis)) == analysis


def later(event: Event) -> Event:
    return {**event, "ts": event["ts"] + 1e9}


def renamed(event: Event) -> Event:
    """The event with other processes, threads and streams, and other correlations in another order."""
    args = {key: 977 * value % 1009 if key == "correlation" else value for key, value in event["args"].items()}
    if "stream" in args:
        args["stream"] += 400
    return {**event, "pid": 7000 - event["pid"], "tid": 5000 - event["tid"], "args": args}


def shuffled(seed: int) -> Callable[[list[Event]], list[Event]]:
    return lambda events: random.Random(seed).sample(events, len(events))


LAWS: dict[str, Callable[[list[Event]], list[Event]]] = {
    "the zero of the clock": lambda events: [later(event) for event in events],
    "the names of tracks and joins": lambda events: [renamed(event) for event in events],
    "the order of the file": lambda events: events[::-1],
    **{f"the order of the file, {seed}": shuffled(seed) for seed in range(5)},
    "all of these": lambda events: shuffled(9)([renamed(later(event)) for event in events]),
}


@pytest.mark.parametrize("law", LAWS)
def test_what_a_trace_says_by_accident_decides_nothing(tmp_path: Path, gpu: Path, law: str) -> None:
    other = analyse([write_trace(tmp_path / "other.json", LAWS[law](gpu_events()))])
    assert unnamed(other) == unnamed(analyse([gpu]))


def test_what_a_trace_says_on_purpose_does_change_the_answer(tmp_path: Path, gpu: Path) -> None:
    longer = [{**event, "dur": event["dur"] + 1} if event["cat"] == "kernel" else event for event in gpu_events()]
    assert unnamed(analyse([write_trace(tmp_path / "other.json", longer)])) != unnamed(analyse([gpu]))


def warming_up() -> list[Event]:
    """Five steps of 100 us, the first of 300 us; each launches one kernel and waits for it once."""
    events: list[Event] = []
    for number in range(5):
        start, dur = (100.0, 300.0) if not number else (300.0 + 100 * number, 100.0)
        events += [step(number, start, dur), op("aten::relu", start + 5, 20), launch(2 * number, start + 7, 5)]
        events += [kernel(2 * number, start + 20, 40), launch(2 * number + 1, start + 50, 5, "cudaStreamSynchronize")]
    return events


def test_every_step_is_listed_with_its_time_and_the_reason_for_setting_it_aside(tmp_path: Path) -> None:
    analysis = analyse([write_trace(tmp_path / "trace.json", warming_up())])
    assert [step.us for step in analysis.steps.each] == [300, 100, 100, 100, 100]
    assert [step.name for step in analysis.steps.each] == [f"ProfilerStep#{number}" for number in range(5)]
    assert [step.set_aside for step in analysis.steps.each] == [
        "still warming up: 3 times the median of the later steps",
        *[None] * 4,
    ]
    assert analysis.steps.profiled_us == Timing(100, 100, 100, 4)
    assert (analysis.steps.count, analysis.steps.wall_us) == (4, 100)
    assert (analysis.totals.op_count, analysis.totals.sync_count, analysis.totals.kernel_count) == (1, 1, 1)
    assert "4 of 5 steps explained, the others not: 1 still warming up" in {
        caveat.message for caveat in analysis.caveats
    }


def test_steps_asked_for_are_explained_whatever_they_are_like(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.json", warming_up())
    analysis = analyse([trace], Options(steps=slice(0, 2)))
    assert (analysis.steps.count, analysis.steps.wall_us) == (2, 200)
    assert [step.set_aside for step in analysis.steps.each] == [None, None, *["not in --steps 0:2"] * 3]


def test_a_whole_trace_is_listed_as_its_only_step(tmp_path: Path) -> None:
    analysis = analyse([write_trace(tmp_path / "trace.json", warming_up())], Options(whole=True))
    assert [(step.name, step.set_aside) for step in analysis.steps.each] == [("whole trace", None)]


SAMPLING = Sampling(period_ms=20.0, samples=9, cpu_share=0.01, missed_share=0.0, sensors={0: "GPU-b", 1: "GPU-a"})


def at(us: float, sensor: str = "GPU-b", **values: float) -> Sample:
    return Sample(ORIGIN_NS + round(1000 * us), us / 1e6, sensor, values)


def recorded(folder: Path, *samples: Sample, **more: object) -> Path:
    path = record(folder, gpu_events(), **{"sampling": SAMPLING, **more})
    write_samples(path, samples)
    return path


def test_samples_within_the_steps_of_the_trace_are_reported(tmp_path: Path) -> None:
    clocks = [at(-500, sm_clock_mhz=1.0), at(700, sm_clock_mhz=1500.0), at(900, sm_clock_mhz=1700.0)]
    telemetry = analyse([recorded(tmp_path / "r", *clocks, at(9000, sm_clock_mhz=2.0))]).telemetry
    assert telemetry is not None
    assert (telemetry.samples, telemetry.sm_clock_mhz) == (2, 1600.0)


def test_devices_are_those_that_the_trace_used_by_their_uuid(tmp_path: Path) -> None:
    telemetry = analyse([recorded(tmp_path / "r", at(700, "GPU-a", power_w=1.0), at(700, power_w=300.0))]).telemetry
    assert telemetry is not None and telemetry.power_w == 300.0
    unknown = replace(SAMPLING, sensors={})
    assert analyse([recorded(tmp_path / "s", at(700, power_w=1.0), sampling=unknown)]).telemetry is None


def test_the_unprofiled_steps_are_heard_too_unless_the_whole_trace_is_asked_for(tmp_path: Path) -> None:
    span = (ORIGIN_NS - 4_000_000_000, ORIGIN_NS - 2_000_000_000)
    samples = [at(700, HOST, cpu_clock_mhz=2000.0), at(-3e6, HOST, cpu_clock_mhz=1000.0)]
    path = recorded(tmp_path / "r", *samples, timed_ns=span, unprofiled=Timing(990.0, 980.0, 1000.0, 20))
    both, window = analyse([path]).telemetry, analyse([path], Options(whole=True)).telemetry
    assert both is not None and both.samples == 2
    assert window is not None and (window.samples, window.cpu_clock_mhz) == (1, 2000.0)


def test_a_recording_whose_sensors_were_not_read_has_no_telemetry(tmp_path: Path) -> None:
    analysis = analyse([record(tmp_path / "r", gpu_events())])
    assert analysis.telemetry is None
    assert "sensors-unreadable" not in {caveat.slug for caveat in analysis.caveats}


@pytest.mark.parametrize("text", ["", "# bottleneck/telemetry/9\n", "\x00\xff"], ids=["empty", "later", "binary"])
def test_a_log_that_is_none_is_a_caveat_and_no_failure(tmp_path: Path, text: str) -> None:
    path = recorded(tmp_path / "r")
    (path / TELEMETRY_FILE).write_text(text)
    analysis = analyse([path])
    assert analysis.telemetry is None
    assert "sensors-unreadable" in {caveat.slug for caveat in analysis.caveats}


def test_a_throttled_device_is_a_reason_for_slow_kernels(tmp_path: Path) -> None:
    fast = replace(SLOW, peaks_flops_per_s={"fp32_vector": 1e15, "tf32_tensor": 1e15}, bandwidth_bytes_per_s=1e13)
    reasons = {}
    for bits in (0.0, 4.0):
        path = recorded(tmp_path / str(bits), at(700, throttle_bits=bits))
        kernels = analyse([path], Options(device=fast)).kernels
        reasons[bits] = {row.reason for row in kernels if row.op == "aten::relu"}
    assert reasons == {0.0: {"unexplained"}, 4.0: {"clocks: the device was throttled (power cap)"}}


def test_a_low_clock_lowers_the_compute_roof_with_a_caveat(tmp_path: Path) -> None:
    peaks = {"fp32_vector": 1e13, "tf32_tensor": 1e14}
    clocked = replace(SLOW, peaks_flops_per_s=peaks, peak_clocks_mhz=dict.fromkeys(peaks, 2000.0))
    floors = {}
    for mhz in (2000.0, 1000.0):
        analysis = analyse([recorded(tmp_path / str(mhz), at(700, sm_clock_mhz=mhz))], Options(device=clocked))
        told = "low-clocks" in {caveat.slug for caveat in analysis.caveats}
        floors[mhz] = {row.op: row.compute_us for row in analysis.kernels if row.compute_us}
        assert told == (mhz < 2000.0)
    assert floors[2000.0] and floors[1000.0].keys() == floors[2000.0].keys()
    assert all(floors[1000.0][op] >= floors[2000.0][op] for op in floors[2000.0])
    assert floors[1000.0] != floors[2000.0]


def with_light_window(folder: Path, events: Sequence[Event], wall_us: int, properties: Sequence[Any] = ()) -> Path:
    """The recording in the folder with a second window: one step with these events."""
    recording = read_recording(folder)
    file = light_file(0).removesuffix(".gz")
    write_trace(folder / file, events, deviceProperties=list(properties))
    light = LightWindow(file, (ORIGIN_NS, ORIGIN_NS + 1000 * wall_us), Timing(wall_us, wall_us, wall_us, 1))
    write_recording(folder, replace(recording, traces=(replace(recording.traces[0], light=light),)))
    return folder


def taking(us: float) -> Timing:
    return Timing(us, us, us, 9)


def loop_on_cpu() -> list[Event]:
    """283 us: a product, a loop of 90 calls that take 200 us with their frames, 40 us of Python without calls."""
    calls = [frame("train.py(4): one", 43.5 + 2.2 * call, 1.1) for call in range(90)]
    return [
        frame("train.py(1): main", 0, 300),
        op("aten::mm", 0, 43, dims=[[64, 64], [64, 64]]),
        frame("train.py(10): loop", 43, 200),
        *calls,
        frame("train.py(20): tail", 243, 40),
        op("aten::zeros", 284, 5, dims=[[8]]),
    ]


def python_by_line(analysis: Analysis) -> dict[str | None, float]:
    rows = [row for row in analysis.idle if row.cause == "python"]
    return {line: math.fsum(row.us for row in rows if row.source == line) for line in {row.source for row in rows}}


def test_amounts_come_from_the_window_with_the_fewest_options_and_names_from_the_other(tmp_path: Path) -> None:
    """Two of 102 us are the cost of the one op: one inside it, one around it. The frames cost some 180 us."""
    rich = record(tmp_path / "rec", loop_on_cpu(), marks_us=(0, 283), unprofiled=taking(100.0))
    alone = analyse([rich])
    light = [op("aten::mm", 0, 42), op("aten::zeros", 102, 5)]
    both = analyse([with_light_window(rich, light, 102)])
    assert math.fsum(entry.us for entry in both.ledger) == both.steps.wall_us == 100.0
    assert account(both, "overhead.python") == pytest.approx(59.0)
    assert math.fsum(row.us for row in both.kernels) == pytest.approx(41.0)
    assert math.fsum(row.us for row in both.idle) == pytest.approx(59.0)
    assert both.kernels[0].shapes == "[[64, 64], [64, 64]]"
    lines = python_by_line(both)
    assert lines["tail() (train.py:20)"] == pytest.approx(40.0, rel=0.05)
    assert lines["loop() (train.py:10)"] + lines["one() (train.py:4)"] == pytest.approx(20.0, rel=0.1)
    assert python_by_line(alone)["tail() (train.py:20)"] < 20.0


def test_a_light_window_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    rich = record(tmp_path / "rec", loop_on_cpu(), marks_us=(0, 283), unprofiled=taking(100.0))
    alone = analyse([rich])
    with_light_window(rich, [op("aten::mm", 0, 42), op("aten::zeros", 102, 5)], 102)
    (rich / "light.rank0.json").unlink()
    assert analyse([rich]) == alone


def launching_step(python_us: float, op_us: float) -> list[Event]:
    """Python, an op whose launch ends with it, a kernel of 50 us; the device is idle until 5 us after the launch."""
    end = python_us + op_us
    return [
        op("aten::relu", python_us, op_us, dims=[[64, 64]], external_id=1),
        launch(1, end - 5, 5),
        kernel(1, end + 5, 50, "void at::native::vectorized_elementwise_kernel<4, relu>"),
        op("aten::zeros", end + 56, 1, dims=[[8]], external_id=2),
    ]


def test_on_a_device_work_keeps_its_time_and_waits_get_those_of_the_light_window(tmp_path: Path) -> None:
    frames = [frame("train.py(12): train", 0, 400), *(frame("train.py(4): one", call, 0.8) for call in range(150))]
    step_events = [op("aten::zeros", 0, 1, dims=[[8]]), *launching_step(200.0, 40.0), *frames]
    rich = record(tmp_path / "rec", step_events, properties=[H100], marks_us=(0, 295), unprofiled=taking(130.0))
    alone = analyse([rich])
    light = [op("aten::zeros", 0, 1), *launching_step(52.0, 22.0)]
    both = analyse([with_light_window(rich, light, 129, [H100])])
    for analysis in (alone, both):
        assert math.fsum(entry.us for entry in analysis.ledger) == pytest.approx(130.0, rel=1e-12)
        assert analysis.totals.busy_us == pytest.approx(50.0)
    assert account(both, "overhead.python") == pytest.approx(51.0, rel=0.03)
    assert account(both, "overhead.dispatch") == pytest.approx(18.0, rel=0.03)
    assert account(alone, "overhead.python") > 60.0


def test_a_timeline_of_several_ranks_holds_the_step_of_the_first_as_others_ran_it(tmp_path: Path) -> None:
    for rank in range(6):
        top = {"distributedInfo": {"rank": rank, "world_size": 6, "backend": "nccl"}}
        write_trace(tmp_path / f"rank{rank}.json", gpu_events(), **top)
    explained = explain([tmp_path])
    timeline = timeline_of(explained, [tmp_path])
    assert timeline is not None and len(timeline.others) == 3
    ranks = [one.rank for one in (timeline, *timeline.others)]
    assert len(set(ranks)) == 4 and ranks[1:] == sorted(ranks[1:], key=lambda rank: rank or 0)
    first = timeline.steps[0]
    for other in timeline.others:
        (tracks,) = other.steps
        assert tracks.step == first.step
        # These ranks run the same: their events are parts of the same rows of the one analysis.
        assert tracks.row.tolist() == first.row.tolist() and (tracks.row >= 0).any()


def test_a_timeline_leaves_ranks_with_large_traces_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        write_trace(tmp_path / f"rank{rank}.json", gpu_events(), distributedInfo={"rank": rank, "world_size": 2})
    explained = explain([tmp_path])
    monkeypatch.setattr(pipeline, "_LARGEST_OTHER_RANK_BYTES", 10)
    timeline = timeline_of(explained, [tmp_path])
    assert timeline is not None and timeline.rank in {0, 1} and timeline.others == ()


def test_a_timeline_of_one_trace_has_no_other_ranks(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "one.json", gpu_events())
    timeline = timeline_of(explain([path]), [path])
    assert timeline is not None and timeline.others == () and timeline.rank is None


def test_a_beginning_that_is_left_out_is_told_by_the_verdict_where_it_is_much(tmp_path: Path) -> None:
    """5.2 of the 6.2 ms of a forward pass were left out, which only a caveat said."""

    def notes(held_us: float) -> list[str]:
        queued = [op("aten::mm", 200, 10), launch(1, 202, 4)]
        work = [kernel(1 + at, held_us + 20_000 * at, 19_000) for at in range(3)]
        later = [launch(2 + at, 230 + at, 1) for at in range(2)]
        trace = write_trace(tmp_path / "trace.json", [*queued, *later, *work])
        return [clause.text for clause in analyse([trace]).verdict.clauses if clause.role == "sides"]

    assert [text.split(" are not counted")[0] for text in notes(20_000)] == ["The first 19.8 ms of the recording"]
    assert not notes(3_000)
