"""Rules of bytes that need not move: each fires on what it is for, and is silent beside it."""

from pathlib import Path
from typing import Any

import pytest

from bottleneck.advice.traffic import (
    dense_embedding_gradients,
    needless_copies,
    results_apart,
    scattered_lookups,
    slow_for_its_bytes,
    strided_access,
    zeroed_gradients,
)
from bottleneck.schema.device import Device
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, gpu_events, program_line, two_steps, with_analysis
from tests.advice.programs import Call, halves, on_cpu, on_gpu
from tests.analysis.frames import CPU
from tests.builders import Event, complete, kernel, launch, op, step

SQUARE = [4096, 4096]
ROWS, COLUMNS = [4096, 1], [1, 4096]
PRODUCT = Call("aten::mm", 1000, [SQUARE, SQUARE], "ampere_sgemm_128x64_nn")


def add(strides: list[list[int]]) -> Call:
    return Call("aten::add", 300, [SQUARE, SQUARE, []], more={"strides": [*strides, []]})


def test_operands_in_different_orders_are_strided_access(tmp_path: Path) -> None:
    draft = strided_access(on_gpu(tmp_path, [add([ROWS, COLUMNS])]))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(300 - 60 / 0.8, abs=5)  # 201 MB at 3.35 TB/s
    assert draft.gain_us.low == pytest.approx(draft.gain_us.high / 2)
    assert "aten::add in train() (train.py:12): 300 us per step" in draft.evidence[1]


def test_every_second_number_is_strided_access(tmp_path: Path) -> None:
    assert strided_access(on_gpu(tmp_path, [add([[8192, 2], [8192, 2]])])) is not None


@pytest.mark.parametrize(
    "strides", [[ROWS, ROWS], [COLUMNS, COLUMNS], [ROWS, [0, 1]]], ids=["in order", "both turned", "broadcast"]
)
def test_operands_in_one_order_are_no_strided_access(tmp_path: Path, strides: list[list[int]]) -> None:
    assert strided_access(on_gpu(tmp_path, [add(strides)])) is None


def test_a_strided_kernel_near_the_bandwidth_is_left_alone(tmp_path: Path) -> None:
    quick = replace(add([ROWS, COLUMNS]), us=100)
    assert strided_access(on_gpu(tmp_path, [quick])) is None


def test_copies_and_compiled_kernels_are_not_reported_as_strided(tmp_path: Path) -> None:
    copy = Call("aten::copy_", 300, [SQUARE, SQUARE, []], more={"strides": [ROWS, COLUMNS, []]})
    compiled = Call("triton_poi_fused_add_0", 300, [SQUARE, SQUARE, []], more={"strides": [ROWS, COLUMNS, []]})
    assert strided_access(on_gpu(tmp_path, [copy, compiled])) is None


def cast(us: float) -> Call:
    return Call("aten::copy_", us, [SQUARE, SQUARE, []], more={"types": ["c10::BFloat16", "float", "Scalar"]})


def test_casts_beyond_a_twentieth_of_the_work_are_needless_copies(tmp_path: Path) -> None:
    draft = needless_copies(on_gpu(tmp_path, [PRODUCT, cast(100)]))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(100, rel=0.01)
    assert draft.evidence[0].endswith("100 us of it in casts")
    assert draft.code is not None
    assert "bfloat16" in draft.code
    assert needless_copies(on_gpu(tmp_path / "few", [PRODUCT, cast(40)])) is None


@pytest.mark.parametrize(("loads", "is_cast"), [("LoadWithCast<1>", True), ("LoadWithoutCast", False)])
def test_a_kernel_that_converts_is_a_cast_without_recorded_types(tmp_path: Path, loads: str, is_cast: bool) -> None:
    name = f"unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&), {loads}>(int)"
    copied = Call("aten::_to_copy", 100, [SQUARE, [], []], name, inside="MatMul4Bit", more={"types": ["c10::Half"]})
    draft = needless_copies(on_gpu(tmp_path, [PRODUCT, copied]))
    assert draft is not None and draft.code is not None
    assert ("100 us of it in casts" in draft.evidence[0]) is is_cast
    assert "0 us of it in casts" not in draft.evidence[0].replace("100 us", "")
    assert ("bnb_4bit_compute_dtype" in draft.code) is is_cast


def test_casts_of_few_bytes_cost_the_launches_that_the_device_waits_for(tmp_path: Path) -> None:
    """Autocast casts each small parameter of an fp32 model anew: the device is done in 2 us and waits for the next."""
    small: list[object] = [128]

    def steps_of(dtype: str) -> list[Event]:
        events = [step(0, 0, 1650)]
        for number in range(80):
            at, key = 20.0 * number, number + 1
            if number < 40:
                types = [dtype, "float", "Scalar"]
                called = op("aten::copy_", at + 1, 15, dims=[small, small, []], types=types, external_id=key)
            else:
                called = op("aten::mul", at + 1, 15, dims=[small, []], external_id=key)
            events += [called, launch(key, at + 5, 5), kernel(key, at + 14, 2)]
        return events

    draft = needless_copies(case_of(tmp_path, steps_of("c10::Half")))
    assert draft is not None and draft.gain_us is not None
    assert 400 < draft.gain_us.high < 820
    assert draft.evidence[0] == "40 casts of few bytes per step"
    assert needless_copies(case_of(tmp_path / "same", steps_of("float"))) is None


def test_a_small_copy_that_took_long_was_waiting(tmp_path: Path) -> None:
    small = Call("aten::copy_", 5000, [[123], [123], []])
    assert needless_copies(on_cpu(tmp_path, [small])) is None


def lookup(us: float) -> Call:
    return Call(
        "aten::embedding_dense_backward",
        us,
        [[8192, 1024], [8192], [], [], []],
        "void embedding_backward_kernel<float>(int)",
        more={
            "types": ["float", "long int", "Scalar", "Scalar", "Scalar"],
            "concrete": ["", "", "50000", "-1", "False"],
        },
    )


def test_gradients_of_embeddings_beyond_a_tenth_of_the_work(tmp_path: Path) -> None:
    draft = scattered_lookups(on_gpu(tmp_path, [PRODUCT, lookup(800)]))
    assert draft is not None
    assert draft.gain_us is not None
    assert 0 < draft.gain_us.low < draft.gain_us.high < 800
    assert draft.code is not None
    assert "sparse=True" in draft.code
    assert scattered_lookups(on_gpu(tmp_path / "few", [PRODUCT, lookup(90)])) is None


def test_a_gather_of_columns_is_to_be_one_of_rows(tmp_path: Path) -> None:
    types = ["float", "TensorList", "float"]
    index = op("aten::index", 110, 600, dims=[[512, 100_000], [], [512, 512]], types=types)
    body = [program_line(36, 100, 700), index]
    for name, text, is_told in (("columns", "xb = table[:, rows].t()", True), ("rows", "xb = table[rows]", False)):
        draft = scattered_lookups(two_steps(tmp_path / name, body, source_texts={"train.py:36": text}))
        assert draft is not None and ("Keep one row per sample" in draft.advice) == is_told


@pytest.mark.parametrize(("filled_us", "is_told"), [(200, True), (40, False)], ids=["large table", "many rows"])
def test_a_gradient_that_is_mostly_filled_is_dense_also_where_sizes_were_not_recorded(
    tmp_path: Path, filled_us: float, is_told: bool
) -> None:
    events = [
        step(0, 0, 1000),
        op("aten::embedding", 10, 20),
        op("aten::embedding_dense_backward", 100, 250),
        op("aten::fill_", 102, filled_us),
        complete("Optimizer.step#Adam.step", "user_annotation", 400, 560),
        op("aten::lerp_", 402, 550),
    ]
    draft = dense_embedding_gradients(case_of(tmp_path, events))
    assert (draft is not None) == is_told
    if draft is not None and draft.gain_us is not None:
        assert draft.gain_us.low == pytest.approx(0.95 * 250, rel=0.02)
        assert 800 <= draft.gain_us.high <= 1000
        assert "shares the table" in draft.advice


def picked() -> list[Event]:
    """Rows picked from a small tensor in 200 us, and their gradients added up in 400."""
    pick = op("aten::index", 110, 200, dims=[[4000, 64], [], [20_000, 64]], types=["float", "TensorList", "float"])
    add = op("aten::_index_put_impl_", 320, 400, dims=[[4000, 64], [], [20_000, 64], [], []], types=["float"] * 5)
    return [program_line(36, 100, 700), pick, add]


@pytest.mark.parametrize(("threads", "least", "most"), [(2, 0.5, 0.92), (1, 0.0, 0.6)])
def test_rows_on_a_cpu_are_picked_by_index_select(tmp_path: Path, threads: int, least: float, most: float) -> None:
    draft = scattered_lookups(two_steps(tmp_path, picked(), threads=threads))
    assert draft is not None and draft.gain_us is not None
    assert "x.index_select(0, rows) in place of x[rows] at train.py:36" in draft.advice
    assert draft.gain_us.low == pytest.approx(least * 400)
    assert draft.gain_us.high == pytest.approx(most * 400 + 0.75 * 200)


def test_what_index_select_picks_already_has_no_remedy_on_a_cpu(tmp_path: Path) -> None:
    pick = op("aten::index_select", 110, 600, dims=[[4000, 64], [], [20_000]], types=["float", "Scalar", "long int"])
    assert scattered_lookups(two_steps(tmp_path, [program_line(36, 100, 700), pick])) is None


def table_step(rows: int = 1_000_000, extra: tuple[Call, ...] = ()) -> list[Call]:
    """One step of an embedding whose dense gradient is filled, added to and applied: 256 MB each time."""
    table = [rows, 64]
    looked_up = {"types": ["float", "long int", "Scalar", "Scalar", "Scalar"]}
    return [
        Call("aten::embedding", 20, [table, [4096], [], [], []], more=looked_up),
        *extra,
        Call("aten::fill_", 100, [table, []], inside="aten::embedding_dense_backward"),
        Call("aten::add_", 250, [table, table, []]),
        # A fused optimizer also updates the rest of the model, which has as many numbers.
        Call(
            "aten::_fused_sgd_",
            400,
            [[table, [rows * 64]], [table, [rows * 64]]],
            more={"types": ["TensorList", "TensorList"]},
        ),
        Call("aten::cos", 600, [[5_000_000]]),
    ]


def test_a_dense_gradient_of_a_table_is_worth_all_that_runs_over_the_table(tmp_path: Path) -> None:
    draft = dense_embedding_gradients(on_gpu(tmp_path, table_step()))
    assert draft is not None and draft.gain_us is not None and draft.changes_results
    unread = 1 - 4096 / 1_000_000
    assert draft.gain_us.high == pytest.approx((100 + 250 + 400 / 2) * unread, rel=0.01)
    assert draft.gain_us.low == pytest.approx(0.95 * draft.gain_us.high, rel=0.01)
    assert draft.removes
    assert "1000000x64" in draft.evidence[0]


def test_a_dense_gradient_that_is_dropped_costs_a_cpu_its_pages_too(tmp_path: Path) -> None:
    table = [1_000_000, 64]
    events = [
        step(0, 0, 1000),
        op("aten::embedding", 2, 20, dims=[table, [4096], [], [], []], types=["float", "long int"]),
        op("aten::embedding_dense_backward", 30, 300),
        op("aten::fill_", 31, 298, dims=[table, []]),
        complete("Optimizer.zero_grad#SGD.zero_grad", "user_annotation", 400, 500),
    ]
    kept = dense_embedding_gradients(case_of(tmp_path / "kept", events[:-1], unprofiled_us=1000.0))
    dropped = dense_embedding_gradients(case_of(tmp_path / "dropped", events, unprofiled_us=1000.0))
    assert kept is not None and kept.gain_us is not None and dropped is not None and dropped.gain_us is not None
    assert dropped.gain_us.low - kept.gain_us.low == pytest.approx(0.95 * 500, rel=0.02)
    # The step is a table's ops alone: at most all that is between them goes too.
    between_us = 1000 - 20 - 300
    for draft in (kept, dropped):
        assert draft.claims["overhead.python"] == pytest.approx(between_us * 298 / 320, rel=0.1)


def test_tables_that_are_read_widely_or_multiplied_keep_dense_gradients(tmp_path: Path) -> None:
    assert dense_embedding_gradients(on_gpu(tmp_path / "small", table_step(rows=30_000))) is None
    tied = Call("aten::mm", 100, [[512, 64], [64, 1_000_000]], "ampere_sgemm_128x64_nn")
    assert dense_embedding_gradients(on_gpu(tmp_path / "tied", table_step(extra=(tied,)))) is None
    sparse = [replace(call, inside=None) for call in table_step()]
    assert dense_embedding_gradients(on_gpu(tmp_path / "sparse", sparse)) is None


def test_rows_that_are_moved_without_an_embedding_get_other_advice(tmp_path: Path) -> None:
    sizes = [[8192, 1024], [], [8192, 1024], [], []]
    types = {"types": ["float", "TensorList", "float", "Scalar", "Scalar"]}
    moved = Call("aten::_index_put_impl_", 800, sizes, "void index_put_kernel<float>(int)", more=types)
    draft = scattered_lookups(on_gpu(tmp_path, [PRODUCT, moved]))
    assert draft is not None
    assert draft.code is not None
    assert "index_select" in draft.code
    assert draft.gain_us is not None and draft.gain_us.low == pytest.approx(draft.gain_us.high / 2)
    # Another lookup of the trace shows what such rows can reach: 67 MB in 25 us, 80 % of the bandwidth.
    quick = Call(
        "aten::index_select",
        25,
        [[8192, 1024], [], [8192]],
        "void index_select_kernel<float>(int)",
        more={"types": ["float", "Scalar", "long int"], "concrete": ["", "0", ""]},
    )
    sure = scattered_lookups(on_gpu(tmp_path / "sure", [PRODUCT, moved, quick]))
    assert sure is not None and sure.gain_us is not None
    assert sure.gain_us.low > 0.9 * sure.gain_us.high


def zeroing(tmp_path: Path, marks: list[str], numbers: int = 1_000_000) -> Evidence:
    calls = [
        Call("aten::zero_", 50, [[numbers]]),
        Call("aten::mm", 300, [[512, 512], [512, 512]]),
        Call("aten::add_", 80, [[numbers], [numbers], []], inside="torch::autograd::AccumulateGrad"),
    ]
    return on_cpu(tmp_path, calls, marks=marks)


def test_fills_in_zero_grad_and_the_additions_after_them(tmp_path: Path) -> None:
    draft = zeroed_gradients(zeroing(tmp_path, ["Optimizer.zero_grad#SGD.zero_grad"]))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(130, rel=0.02)
    assert draft.gain_us.low == pytest.approx(25, rel=0.02)
    assert draft.tries == ("set-to-none",)


def test_fills_that_the_device_waits_for_are_worth_their_launches(tmp_path: Path) -> None:
    """SGD on 161 parameters: the fills took 13 ms of the host, and their kernels 0.6 ms."""
    events = gpu_events(kernels=40, kernel_us=2.0, every_us=20.0, name="fill_kernel")
    for event in events:
        event["name"] = "aten::zero_" if event["name"] == "aten::add" else event["name"]
    marks = [complete("Optimizer.zero_grad#SGD.zero_grad", "user_annotation", 822 * step + 99, 400) for step in (0, 1)]
    case = case_of(tmp_path, [*events, *marks])
    draft = zeroed_gradients(case)
    assert draft is not None and draft.gain_us is not None
    assert "20 fills per step in zero_grad take 40.0 us" in draft.evidence[0]
    # 20 launches, one each 20 us: a loop over the parameters may stay.
    assert 150 < draft.gain_us.low < draft.gain_us.high <= 400


def test_large_gradients_on_a_cpu_come_in_new_pages_once_dropped(tmp_path: Path) -> None:
    case = zeroing(tmp_path, ["Optimizer.zero_grad#SGD.zero_grad"], numbers=10_000_000)
    draft = zeroed_gradients(case)
    assert draft is not None
    assert draft.gain_us is None
    assert draft.gain_reason is not None
    assert draft.gain_reason.startswith("not predicted: 40.0 MB of gradients come in new pages")


def test_fills_elsewhere_are_no_zeroed_gradients(tmp_path: Path) -> None:
    assert zeroed_gradients(zeroing(tmp_path, [])) is None


def relu(tmp_path: Path, numbers: int = 25_000_000, **more: object) -> Evidence:
    call = Call("aten::relu", 120_000, [[numbers]])
    return on_cpu(tmp_path, [call], device=replace(CPU, fresh_bytes_per_s=1e9), **more)


def test_new_pages_of_large_results_could_be_kept(tmp_path: Path) -> None:
    draft = results_apart(relu(tmp_path))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(100_000, rel=0.01)  # 100 MB at 1 GB/s


def test_small_results_and_given_ones_take_no_new_pages(tmp_path: Path) -> None:
    assert results_apart(relu(tmp_path, numbers=1_000_000)) is None
    given = Call("aten::mul", 120_000, [[25_000_000], [], [25_000_000]])
    device = replace(CPU, fresh_bytes_per_s=1e9)
    assert results_apart(on_cpu(tmp_path / "given", [given], device=device)) is None


def test_on_a_gpu_results_apart_cost_memory_and_no_time(tmp_path: Path) -> None:
    case = on_gpu(tmp_path, [Call("aten::relu", 100, [SQUARE], more=halves(1))])
    assert results_apart(case) is None
    assert case.analysis.device.memory_bytes is not None
    peak = int(0.9 * case.analysis.device.memory_bytes)
    draft = results_apart(with_analysis(case, totals=replace(case.analysis.totals, peak_memory_bytes=peak)))
    assert draft is not None
    assert draft.gain_us is None
    assert draft.gain_reason is not None
    assert draft.gain_reason.startswith("none in time")


SIZES = [32, 64, 56, 56]
POOLING, RELU = "aten::max_pool2d_with_indices", "aten::relu"


def passes(pool_us: float, **pool: Any) -> list[Call]:
    """A pooling beside an op that passes over the same image at about 10 GB/s, and a small one."""
    small = Call(RELU, 1, [[8, 8]])
    return [small, Call(POOLING, pool_us, [SIZES, [], [], [], [], []], **pool), Call(RELU, 5_000, [SIZES])]


@pytest.fixture
def unknown_cpu() -> Device:
    return replace(CPU, bandwidth_bytes_per_s=None, peaks_flops_per_s={}, source=None)


def test_an_op_far_slower_than_others_on_as_many_bytes_is_named(tmp_path: Path, unknown_cpu: Device) -> None:
    draft = slow_for_its_bytes(on_cpu(tmp_path, passes(50_000), device=unknown_cpu))
    assert draft is not None and draft.gain_us is not None
    assert 30_000 < draft.gain_us.high < 50_000 and draft.gain_us.low == pytest.approx(draft.gain_us.high / 4)
    assert "max_pool2d_with_indices" in draft.evidence[1] and "GB/s" in draft.evidence[0]


def test_ops_of_like_rates_and_known_bandwidths_are_left_to_the_roofline(tmp_path: Path, unknown_cpu: Device) -> None:
    assert slow_for_its_bytes(on_cpu(tmp_path / "like", passes(6_000), device=unknown_cpu)) is None
    assert slow_for_its_bytes(on_cpu(tmp_path / "known", passes(50_000), device=CPU)) is None
