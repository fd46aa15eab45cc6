"""Changes that would bring nothing, on steps made by hand: each is listed where it is so, and not on a near twin."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.advice import advise, no_gain
from bottleneck.advice.no_gain import find_no_gain
from bottleneck.pipeline import finish, finish_with_advice
from bottleneck.report.no_gain import name_change
from bottleneck.schema.analysis import GRAPH_CAPTURE, Caveat, NoGain
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import BatchProof, Ratio, Timing
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, gpu_events, two_steps, with_analysis
from tests.advice.programs import Call, on_cpu, on_gpu
from tests.advice.test_transfers import PINNED, copying_case
from tests.builders import Event, complete, frame, kernel, launch, memcpy, op, step
from tests.simulate.test_whatif import syncing_events

PRODUCT = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32"
SQUARE = [[4096, 4096], [4096, 4096]]
STEPS = 3


def queued_step(
    number: int, kernels: Sequence[tuple[str, str, float]], extra: Sequence[Event], length: float
) -> list[Event]:
    """A step that issues kernels in 10 us each, far ahead of the device, and reads a number at its end."""
    at = length * number
    events, free = [step(number, at, length - 1)], at + 8
    for index, (name, kernel_name, us) in enumerate(kernels):
        now, correlation = at + 1 + 10 * index, 1000 * number + index + 1
        events += [
            op(name, now, 8, dims=SQUARE, external_id=correlation),
            launch(correlation, now + 2, 3),
            kernel(correlation, free, us, kernel_name),
        ]
        free += us + 1
    read = at + 10 * len(kernels) + 5
    events += [
        op("aten::item", read, free - read + 4, external_id=10**6 + number),
        op("aten::_local_scalar_dense", read + 1, free - read + 2, external_id=2 * 10**6 + number),
        launch(10**6 + number, read + 2, 2, "cudaMemcpyAsync"),
        memcpy(10**6 + number, free, 2, 4, "DtoH (Device -> Pageable)"),
        launch(10**7 + number, read + 5, free - read, "cudaStreamSynchronize"),
    ]
    return [*events, *(event | {"ts": event["ts"] + at} for event in extra)]


def queued(folder: Path, kernels: Sequence[tuple[str, str, float]], extra: Sequence[Event] = ()) -> Evidence:
    """Steps of kernels that lie in the device's queue while the host waits for the number that it reads."""
    length = sum(us + 1 for _, _, us in kernels) + 20
    events = [frame("train.py(12): train", 0, length * STEPS)]
    for number in range(STEPS):
        events += queued_step(number, kernels, extra, length)
    return case_of(folder, events)


def listed(case: Evidence) -> dict[str, NoGain]:
    """The lines by their code."""
    return {line.code: line for line in finish_with_advice(case).analysis.no_gain}


PRODUCTS = [("aten::mm", PRODUCT, 1000.0)] * 20


def test_a_read_behind_queued_work_brings_nothing(tmp_path: Path) -> None:
    line = listed(queued(tmp_path, PRODUCTS))["read-later"]
    assert line.source == "train.py:12" and line.basis == "replayed"
    assert line.most_share < 0.01
    assert line.numbers["queued_us"] == pytest.approx(19_800, rel=0.02)
    assert line.tries == ()


def test_a_read_that_the_device_runs_dry_for_is_not_listed(tmp_path: Path) -> None:
    reads = [op("aten::item", 148 * index + 39, 100, external_id=5000 + index) for index in range(10)]
    case = case_of(tmp_path, [*syncing_events(), *reads])
    assert "host-sync" in {finding.slug for finding in advise(case)}
    assert "read-later" not in listed(case)


def test_a_read_that_is_in_the_way_of_a_graph_is_not_listed(tmp_path: Path) -> None:
    """Its first step was to take the read out of the step, and the same report said that this brings nothing."""
    events = [frame("train.py(12): train", 0, 4000)]
    for number in range(4):
        at = 1000 * number
        events.append(step(number, at, 999))
        for index in range(40):
            now, correlation = at + 20 * index, 100 * number + index
            events += [op("aten::mul", now, 15, external_id=correlation), launch(correlation, now + 5, 5)]
            events += [kernel(correlation, now + 14, 3)]
        events += [op("aten::item", at + 800, 8), launch(1000 + number, at + 802, 4, "cudaStreamSynchronize")]
        now, correlation = at + 830, 100 * number + 90
        events += [op("aten::mul", now, 15, external_id=correlation), launch(correlation, now + 5, 5)]
        events += [kernel(correlation, now + 14, 3)]
    case = case_of(tmp_path, events)
    late = next(finding for finding in advise(case) if finding.slug == "late-launches")
    assert "calls that wait for the device (1 per step)" in late.advice
    assert no_gain._MAKERS["read-later"](case) is not None
    assert "read-later" not in listed(case)


def test_a_step_of_products_gains_nothing_by_a_compiler_or_a_graph(tmp_path: Path) -> None:
    lines = listed(queued(tmp_path, PRODUCTS))
    assert {"compile", "graph"} <= set(lines)
    assert lines["compile"].cause == "products"
    assert lines["compile"].numbers["library_share"] > 0.98
    assert lines["compile"].tries == ("compile",) and lines["graph"].tries == ("cuda-graph",)
    assert lines["compile"].most_share >= lines["graph"].most_share


def test_a_compiler_may_rewrite_all_that_is_no_product(tmp_path: Path) -> None:
    relu = ("aten::relu", "void at::native::vectorized_elementwise_kernel<4, relu>(int)", 60.0)
    assert "compile" not in listed(queued(tmp_path, [*PRODUCTS[:15], relu, relu, relu, relu, relu, relu]))


def updates(us: float, count: int = 2, name: str = "AdamW") -> list[tuple[str, str, float]]:
    """Kernels of an optimizer that goes over lists of tensors."""
    return [("aten::_foreach_add_", "void at::native::multi_tensor_apply_kernel<float>(int)", us)] * count


def optimizing(folder: Path, update_us: float, name: str = "AdamW") -> Evidence:
    """Queued products with the update of an optimizer behind them."""
    mark = complete(f"Optimizer.step#{name}.step", "user_annotation", 201, 19.5)
    return queued(folder, [*PRODUCTS, *updates(update_us)], [mark])


def test_a_short_update_behind_queued_work_need_not_be_fused(tmp_path: Path) -> None:
    line = listed(optimizing(tmp_path, 50.0))["fused-optimizer"]
    assert line.cause == "queued_work" and line.numbers["update_us"] == pytest.approx(100, rel=0.01)
    assert line.numbers["queued_us"] == pytest.approx(19_800, rel=0.02)
    assert line.tries == ("fused-optimizer",)


@pytest.mark.parametrize(("update_us", "name"), [(1500.0, "AdamW"), (50.0, "MyAdam")])
def test_a_long_update_or_one_that_cannot_be_fused_is_not_listed(tmp_path: Path, update_us: float, name: str) -> None:
    assert "fused-optimizer" not in listed(optimizing(tmp_path, update_us, name))


def test_reads_of_the_optimizer_are_not_the_program_s(tmp_path: Path) -> None:
    mark = complete("Optimizer.step#AdamW.step", "user_annotation", 200, 19_839)
    assert "read-later" not in listed(queued(tmp_path, PRODUCTS, [mark]))


def test_no_more_than_three_are_listed_and_none_that_a_finding_advises(tmp_path: Path) -> None:
    case = optimizing(tmp_path, 50.0)
    explained = finish_with_advice(case)
    assert len(explained.analysis.no_gain) == 3
    advised = replace(advise(queued(tmp_path / "one", PRODUCTS))[0], tries=("compile",), slug="unfused-chain")
    lines = find_no_gain(case, replace(explained.analysis, findings=(advised,)))
    assert "compile" not in {line.code for line in lines}


def test_nothing_is_listed_without_a_verdict(tmp_path: Path) -> None:
    case = queued(tmp_path, PRODUCTS)
    analysis = finish(case).analysis
    verdict = replace(analysis.verdict, bound="inconclusive")
    assert find_no_gain(case, analysis) and find_no_gain(case, replace(analysis, verdict=verdict)) == ()


def test_nothing_is_listed_where_the_steps_cannot_be_replayed(tmp_path: Path) -> None:
    case = replace(queued(tmp_path, PRODUCTS), predict=lambda _evidence, _change: None)
    assert listed(case) == {}


BIG = Call("aten::mm", 5000, [[2048, 2048], [2048, 2048]])
SMALL = Call("aten::add", 4, [[64, 64], [64, 64], []])
READ = Call("aten::_local_scalar_dense", 2, [[]])


def test_on_a_cpu_products_stay_as_they_are(tmp_path: Path) -> None:
    lines = listed(on_cpu(tmp_path, [*[BIG, SMALL] * 6, READ], unprofiled_us=30_080.0))
    assert lines["compile"].basis == "recorded" and lines["compile"].cause == "products"
    assert lines["read-later"].cause == "own_calls" and lines["read-later"].most_share < 0.001


def test_on_a_cpu_small_ops_are_not_as_they_are_left(tmp_path: Path) -> None:
    lines = listed(on_cpu(tmp_path, [*[BIG, *[SMALL] * 60] * 6, READ], unprofiled_us=31_500.0))
    assert "compile" not in lines


def loading(folder: Path, load_us: float) -> Evidence:
    """Steps of a CPU program whose loader takes so long."""
    mark = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    body = [
        complete(mark, "user_annotation", 2, load_us),
        *(op("aten::mm", 1000 + 8000 * index, 7990, dims=BIG.dims) for index in range(12)),
    ]
    return two_steps(folder, body, 97_100.0)


@pytest.mark.parametrize(("load_us", "is_listed"), [(300.0, True), (990.0, True), (9000.0, False)])
def test_more_workers_bring_nothing_where_a_batch_is_soon_loaded(
    tmp_path: Path, load_us: float, is_listed: bool
) -> None:
    lines = listed(loading(tmp_path, load_us))
    assert ("workers" in lines) is is_listed
    if is_listed:
        assert lines["workers"].numbers["loading_us"] == pytest.approx(load_us, rel=0.05)
        assert lines["workers"].tries == ("workers",)


def proof(low: float) -> BatchProof:
    """A batch test in which twice the batch took at least so many times as long."""
    once = Timing(30_000.0, 29_900.0, 30_100.0, 14)
    return BatchProof(32, once, Timing(60_000.0, 59_900.0, 60_100.0, 14), Ratio(low + 0.01, low, low + 0.02, 14))


@pytest.mark.parametrize(("low", "is_listed"), [(1.98, True), (1.7, False)])
def test_twice_the_batch_was_tried_and_took_twice_as_long(tmp_path: Path, low: float, is_listed: bool) -> None:
    case = on_cpu(tmp_path, [*[BIG, SMALL] * 6], unprofiled_us=30_080.0)
    lines = listed(with_analysis(case, batch_test=proof(low)))
    assert ("larger-batch" in lines) is is_listed
    if is_listed:
        assert lines["larger-batch"].basis == "timed"
        assert lines["larger-batch"].most_share == pytest.approx(0.01)


def test_a_graph_is_not_listed_where_the_device_waits_for_launches(tmp_path: Path) -> None:
    assert "graph" not in listed(case_of(tmp_path, gpu_events(30, 5, 100, steps=3)))


def copied(folder: Path, copy_us: float) -> Evidence:
    """Queued products with a copy from pageable memory beside them, on a stream of its own."""
    copy = memcpy(500, 250, copy_us, 8_000_000, "HtoD (Pageable -> Device)")
    copy = {**copy, "tid": 8, "args": {**copy["args"], "stream": 8}}
    events = []
    length = 20 * 1001 + 20
    for number in range(STEPS):
        at, own = length * number, number * 1000 + 500
        events += queued_step(number, PRODUCTS, (), length)
        issue = launch(own, at + 201, 2, "cudaMemcpyAsync")
        events += [op("aten::copy_", at + 200, 4, external_id=own), issue]
        events.append({**copy, "ts": copy["ts"] + at, "args": {**copy["args"], "correlation": own}})
    return case_of(folder, [frame("train.py(12): train", 0, length * STEPS), *events])


def test_pinned_memory_brings_nothing_to_a_copy_beside_kernels(tmp_path: Path) -> None:
    case = copied(tmp_path, 300.0)
    made = no_gain._pin_memory(case)
    assert made is not None
    assert made.numbers["copied_us"] == pytest.approx(300) and made.most_share < 0.01
    assert no_gain._pin_memory(queued(tmp_path / "without", PRODUCTS)) is None


def test_pinned_memory_brings_nothing_where_all_copies_are_of_it(tmp_path: Path) -> None:
    case = copying_case(tmp_path / "pinned", 3_000.0, 60_000_000, kind=PINNED)
    made = no_gain._pin_memory(case)
    assert made is not None and (made.cause, made.most_share) == ("pinned", 0.0)
    assert made.numbers["copied_us"] == pytest.approx(3_000)
    short = copying_case(tmp_path / "short", 100.0, 2_000_000, kind=PINNED)
    assert no_gain._pin_memory(short) is None


def convolved(folder: Path, groups: int) -> Evidence:
    """A step of convolutions with so many groups, and one product."""
    dims = [[32, 512, 28, 28], [512, 512 // groups, 3, 3], [], [], [], [], [], [], []]
    concrete = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", str(groups)]
    call = Call("aten::convolution", 5000, dims, "implicit_convolve_sgemm", more={"concrete": concrete})
    return on_gpu(folder, [*[call] * 6, Call("aten::mm", 3000, SQUARE, PRODUCT)], steps=3)


@pytest.mark.parametrize(("groups", "is_listed"), [(32, True), (1, False)])
def test_grouped_convolutions_gain_nothing_by_channels_last(tmp_path: Path, groups: int, is_listed: bool) -> None:
    made = no_gain._channels_last(convolved(tmp_path, groups))
    assert (made is not None) is is_listed
    if made is not None:
        assert made.numbers["grouped_share"] == pytest.approx(1.0) and made.tries == ("channels-last",)


@pytest.mark.parametrize(("us", "is_listed"), [(650.0, True), (5000.0, False)])
def test_faster_arithmetic_brings_nothing_where_bytes_move_at_their_pace(
    tmp_path: Path, us: float, is_listed: bool
) -> None:
    tensors = [[2**27], [2**27], []]
    made = no_gain._faster_arithmetic(on_gpu(tmp_path, [Call("aten::add", us, tensors)] * 12, steps=3))
    assert (made is not None) is is_listed
    if made is not None:
        assert made.numbers["moves_share"] > 0.95 and made.tries == ()


def test_a_faster_device_brings_nothing_where_the_host_sets_the_pace(tmp_path: Path) -> None:
    case = case_of(tmp_path / "idle", gpu_events(30, 5, 100, steps=3))
    line = no_gain._MAKERS["faster-device"](case)
    assert line is not None and line.cause == "host_sets_pace" and line.basis == "replayed"
    assert line.numbers["busy_share"] < 0.1 and line.most_share <= 0.05
    assert no_gain._MAKERS["faster-device"](queued(tmp_path / "busy", PRODUCTS)) is None


def test_a_faster_device_is_no_line_where_no_launch_is_in_the_trace(tmp_path: Path) -> None:
    """The device of a trace of kernels alone was said to wait for its host, of which it held nothing."""
    launched = gpu_events(30, 5, 100, steps=3)
    alone = [event for event in launched if event["cat"] != "cuda_runtime"]
    assert no_gain._MAKERS["faster-device"](case_of(tmp_path / "launched", launched)) is not None
    assert no_gain._MAKERS["faster-device"](case_of(tmp_path / "alone", alone)) is None


@pytest.mark.parametrize(("types", "is_wide"), [("float", True), ("c10::BFloat16", False)])
def test_bf16_is_named_where_products_are_wider(tmp_path: Path, types: str, *, is_wide: bool) -> None:
    product = {"Input Dims": [[8, 8], [8, 8]], "Input type": [types, types], "Concrete Inputs": ["", ""]}
    events = gpu_events(30, 5, 100, steps=3)
    products = [
        event | {"name": "aten::mm", "args": event["args"] | product} for event in events if event["cat"] == "cpu_op"
    ]
    others = [event for event in events if event["cat"] != "cpu_op"]
    line = no_gain._MAKERS["faster-device"](case_of(tmp_path, [*others, *products]))
    assert line is not None and (line.numbers["wide_share"] > 0) is is_wide
    assert name_change(line) == ("a faster GPU or bf16" if is_wide else "a faster GPU")


def test_nothing_is_listed_of_a_step_that_captures_a_graph(tmp_path: Path) -> None:
    """Captured kernels run later: that the device works for 0.1 % of the capture says nothing of the steps."""
    case = case_of(tmp_path, gpu_events(30, 5, 100, steps=3))
    analysis = finish(case).analysis
    capture = (*analysis.caveats, Caveat(GRAPH_CAPTURE, "a graph is captured"))
    assert find_no_gain(case, analysis)
    assert find_no_gain(with_analysis(case, caveats=capture), replace(analysis, caveats=capture)) == ()


def test_the_seed_that_a_new_iterator_of_a_loader_reads_is_not_the_program_s(tmp_path: Path) -> None:
    made = frame("torch/utils/data/dataloader.py(635): __init__", 10, 100)
    reads = [op("aten::item", 12, 6, external_id=10), op("aten::item", 900, 4, external_id=11)]
    line = no_gain._MAKERS["read-later"](two_steps(tmp_path, [made, *reads], 1000.0))
    assert line is not None and line.numbers == {"calls": 1.0, "spent_us": pytest.approx(4.0)}


def test_reads_of_a_cpu_take_the_time_of_the_program_s_own(tmp_path: Path) -> None:
    own = [op("aten::item", 900, 4, external_id=7)]
    loader = complete("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", 10, 100)
    others = [loader, *(op("aten::item", 12 + 8 * at, 6, external_id=10 + at) for at in range(12))]
    line = no_gain._MAKERS["read-later"](two_steps(tmp_path, [*others, *own], 1000.0))
    assert line is not None
    assert line.numbers == {"calls": 1.0, "spent_us": pytest.approx(4.0)}


@pytest.mark.parametrize(("frame_name", "line"), [("<module>", None), ("train", "train.py:12")])
def test_a_file_s_own_code_is_not_told_as_a_line(frame_name: str, line: str | None) -> None:
    source = f"{frame_name} (train.py:12)" if frame_name == "<module>" else f"{frame_name}() (train.py:12)"
    assert no_gain._line_of(source) == line
    assert no_gain._line_of("train.py:12") == "train.py:12" and no_gain._line_of(None) is None
