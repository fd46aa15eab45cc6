"""Predicted times of steps made by hand, on devices of the table."""

from typing import Any, get_args

import pytest

from bottleneck.devices.match import device_by_name
from bottleneck.predict import price
from bottleneck.predict.host_pace import pace_of_op
from bottleneck.predict.interval import ANOTHER_BOARD, ANOTHER_HOST, CALLS, GAIN, SPREADS, pace_factor, read_spreads
from bottleneck.predict.price import plan, predict_step, step_floor_us
from bottleneck.predict.rates import KINDS, PredictedTimes, engine_of, read_rates
from bottleneck.schema.analysis import Interval
from bottleneck.schema.device import Device
from bottleneck.schema.predicted_step import Backend, PredictedStep
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import EngineSettings, StepCalls, TensorUse
from tests.predict.steps import SETTINGS, call, convolution, in_dtype, step, use

H100 = device_by_name("NVIDIA H100 80GB HBM3")
A100 = device_by_name("A100")
T4 = device_by_name("Tesla T4")
BACKENDS: tuple[Backend, ...] = get_args(Backend)


def square(size: int) -> StepCalls:
    return step(call("mm", [use(0, size, size), use(1, size, size)], use(2, size, size)))


def stream(size: int, ops: int = 1) -> StepCalls:
    return step(*(call("relu", [use(at, size)], use(at + 1, size)) for at in range(ops)))


def total(prediction: PredictedStep) -> float:
    assert prediction.us is not None
    return prediction.us


def width(prediction: PredictedStep) -> float:
    assert prediction.high_us is not None and prediction.low_us is not None
    return prediction.high_us / prediction.low_us


def test_a_large_product_in_fp32_is_compute_bound_on_the_fp32_lanes() -> None:
    prediction = predict_step(square(8192), H100)
    (product,) = prediction.kernels
    assert (prediction.bound, product.engine) == ("compute", "fp32_vector")
    assert 0.6 < product.efficiency < 0.9


def test_tf32_makes_it_several_times_as_fast_where_the_device_has_it() -> None:
    plain = square(8192)
    allowed = replace(plain, settings=replace(SETTINGS, matmul_allow_tf32=True))
    assert total(predict_step(plain, H100)) > 4 * total(predict_step(allowed, H100))
    assert total(predict_step(plain, T4)) == total(predict_step(allowed, T4))


def test_a_large_stream_is_memory_bound_and_a_small_one_is_overhead() -> None:
    assert predict_step(stream(1 << 28), H100).bound == "memory"
    assert predict_step(stream(1 << 10), H100).bound == "overhead"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("calls", [square(4096), stream(1 << 26, 3), step(convolution(64, 128))])
def test_groups_add_up_and_the_interval_holds_the_time(calls: StepCalls, backend: Backend) -> None:
    prediction = predict_step(calls, H100, backend)
    us, low, high, floor = prediction.us, prediction.low_us, prediction.high_us, prediction.floor_us
    assert us is not None and low is not None and high is not None and floor is not None
    assert sum(prediction.groups.values()) == pytest.approx(us)
    assert all(part >= 0 for part in prediction.groups.values())
    assert low < us < high
    assert 0 < floor < us


def test_a_device_with_lower_ceilings_takes_longer() -> None:
    for calls in (square(4096), stream(1 << 26), step(convolution(64, 128))):
        assert total(predict_step(calls, T4)) > 1.5 * total(predict_step(calls, H100))


@pytest.mark.parametrize("small", [256, 1000, 2048])
def test_more_work_never_takes_less_time(small: int) -> None:
    assert total(predict_step(square(small), H100)) <= total(predict_step(square(2 * small), H100))


def test_half_precision_does_not_beat_the_peak_of_its_tensor_cores() -> None:
    (product,) = predict_step(in_dtype(square(8192), "c10::BFloat16"), H100).kernels
    assert product.engine == "bf16_tensor"
    assert product.us > product.floor_us > 0


def test_fusing_a_chain_spares_its_traffic_and_a_graph_its_launches() -> None:
    chain = stream(1 << 26, 4)
    assert total(predict_step(chain, H100, "compile")) < 0.5 * total(predict_step(chain, H100))
    many = stream(1 << 12, 60)
    assert total(predict_step(many, H100, "cudagraphs")) < total(predict_step(many, H100))


def test_a_known_pace_of_the_host_narrows_the_interval() -> None:
    known, unknown = predict_step(stream(1 << 10), H100, host_pace_us=10.0), predict_step(stream(1 << 10), H100)
    assert width(known) < width(unknown)
    assert unknown.by_host is not None
    assert known.by_host is None


def test_another_vendors_device_gets_no_time_but_a_reason() -> None:
    prediction = predict_step(square(64), replace(H100, kind="rocm"))
    assert prediction.us is None
    assert prediction.reasons == ("efficiencies were learned on NVIDIA GPUs; none are known for rocm devices",)


def test_a_call_without_a_price_is_counted_and_named() -> None:
    odd = step(call("relu", [use(0, 1 << 20)], use(1, 1 << 20)), call("no_such_op", [use(1, 8)], use(2, 8)))
    prediction = predict_step(odd, H100)
    assert prediction.unknown_calls == 1
    assert "1 call without a predicted time: no formula for aten::no_such_op" in prediction.reasons


def test_no_kernel_takes_less_than_its_floor_whatever_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = price.times

    def nothing_at_all(*arguments: Any) -> PredictedTimes:
        found = learned(*arguments)
        return replace(found, us=0.0 * found.us)

    monkeypatch.setattr(price, "times", nothing_at_all)
    for row in predict_step(step(convolution(64, 128)), H100).kernels:
        assert row.us >= row.floor_us > 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("device", [H100, T4])
def test_no_interval_begins_below_the_floor(device: Device, backend: Backend) -> None:
    for calls in (square(16384), stream(1 << 26), stream(1 << 28, 3), step(convolution(64, 128))):
        prediction = predict_step(calls, device, backend)
        low, us, floor = prediction.low_us, prediction.us, prediction.floor_us
        assert low is not None and us is not None and floor is not None
        assert 0 < floor <= low <= us


def test_a_fused_floor_leaves_out_what_lies_between() -> None:
    chain = stream(1 << 28, 4)
    assert step_floor_us(chain, H100, "compile") < 0.3 * step_floor_us(chain, H100, "eager")


def test_convolutions_follow_the_setting_of_cudnn_where_the_device_has_tf32() -> None:
    groups, _ = plan(step(convolution(64, 128)), "eager")
    main = groups[0].kernels[0]
    assert engine_of(main, SETTINGS, H100) == "tf32_tensor"
    assert engine_of(main, EngineSettings(cudnn_allow_tf32=False), H100) == "fp32_vector"
    assert engine_of(main, SETTINGS, T4) == "fp32_vector"


def test_rates_are_few_and_positive_and_belong_to_kinds_of_work() -> None:
    rates = read_rates()
    assert all(value > 0 for value in rates.values())
    assert len(rates) < 80
    prefixes = {name.partition(":")[0] for name in rates if ":" in name}
    assert prefixes <= {*KINDS, "host", "pace", "lanes", "tensor", "channels last"}


def test_every_kind_of_error_has_a_spread_and_every_way_to_run_a_step_a_factor() -> None:
    table = read_spreads()
    names = (*SPREADS, *(f"{calls} calls" for calls in CALLS))
    runs = ("eager", "compiled", "cudagraphs", "graph")
    gains = {f"{GAIN}{run}" for run in runs}
    assert table.keys() == {f"{run}: {name}" for run in runs for name in names} | gains | {ANOTHER_HOST, ANOTHER_BOARD}
    assert all(0.0 < value < 5.0 for value in table.values())


@pytest.mark.parametrize("backend", ["compile", "reduce-overhead", "max-autotune"])
def test_an_optimizer_runs_op_by_op_where_modules_are_compiled(backend: Backend) -> None:
    works = [call("relu", [use(at, 1 << 10)], use(at + 1, 1 << 10)) for at in range(8)]
    plain = step(*works)
    updating = step(*works[:4], *(replace(each, phase="optimizer") for each in works[4:]))
    groups, _ = plan(updating, backend)
    assert [group.calls for group in groups if group.calls and set(group.calls) <= set(range(4, 8))] == [
        (4,),
        (5,),
        (6,),
        (7,),
    ]
    host = [predict_step(each, H100, backend, host_pace_us=5.0).host_us or 0.0 for each in (plain, updating)]
    assert host[1] > host[0] + 5.0


def test_interval_is_wider_for_an_unusual_convolution_than_for_a_product() -> None:
    grouped, product = (predict_step(each, H100) for each in (step(convolution(512, 512, groups=4)), square(8192)))
    assert width(grouped) > 1.3 * width(product)


def test_several_calls_of_a_kind_have_a_narrower_interval_than_one_of_them() -> None:
    one, several = (predict_step(stream(1 << 28, ops), H100, host_pace_us=1.0) for ops in (1, 10))
    assert width(several) < width(one)


def test_unknown_pace_of_the_host_widens_only_where_launches_decide() -> None:
    unknown, known = (predict_step(stream(1 << 30), H100, host_pace_us=pace) for pace in (None, 19.0))
    assert width(unknown) < 1.02 * width(known)
    unknown, known = (predict_step(stream(1 << 10, 50), H100, host_pace_us=pace) for pace in (None, 19.0))
    assert width(unknown) > 1.2 * width(known)


@pytest.mark.parametrize("ops", [1, 5, 50])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("power", range(10, 31, 4))
def test_interval_holds_the_time_and_a_given_pace_makes_it_no_wider(ops: int, power: int, backend: Backend) -> None:
    calls = stream(1 << power, ops)
    unknown = predict_step(calls, H100, backend)
    known = predict_step(calls, H100, backend, host_pace_us=read_rates()["pace"])
    assert known.us == unknown.us
    for prediction in (known, unknown):
        assert (prediction.low_us or 0.0) <= total(prediction) <= (prediction.high_us or 0.0)
    assert (known.low_us or 0.0) >= (unknown.low_us or 0.0)
    assert (known.high_us or 0.0) <= (unknown.high_us or 0.0)


def test_host_bound_step_knows_between_which_times_the_pace_decides() -> None:
    many, large = (predict_step(calls, H100) for calls in (stream(1 << 10, 50), stream(1 << 30)))
    factor = pace_factor()
    ends = [
        total(predict_step(stream(1 << 10, 50), H100, host_pace_us=read_rates()["pace"] * times))
        for times in (1 / factor, factor)
    ]
    assert many.by_host == Interval(*ends)
    assert large.by_host is None
    assert any("the usual one" in reason for reason in large.reasons)


def test_a_board_without_timings_widens_what_the_device_decides_alone() -> None:
    pace = read_rates()["pace"]
    other = replace(H100, name="NVIDIA H100 of another kind")
    for calls, widens in ((stream(1 << 30), True), (stream(1 << 10, 50), False)):
        timed, unseen = (predict_step(calls, device, host_pace_us=pace) for device in (H100, other))
        assert total(timed) == total(unseen)
        # The floor may end the interval below.
        assert ((unseen.high_us or 0.0) > 1.05 * (timed.high_us or 0.0)) is widens


def test_pace_of_a_host_is_given_by_its_time_for_an_op_in_a_loop() -> None:
    rates, op_us = read_rates(), 4.0
    short, long = (
        predict_step(stream(1 << 4, ops), H100, host_pace_us=pace_of_op(op_us, rates)).host_us or 0.0
        for ops in (1000, 2000)
    )
    assert long - short == pytest.approx(1000 * op_us)


def test_hosts_of_older_boards_are_slower() -> None:
    small = stream(1 << 10, 50)
    assert total(predict_step(small, T4)) > 1.2 * total(predict_step(small, H100))
    same = [total(predict_step(small, device, host_pace_us=20.0)) for device in (T4, H100)]
    assert same[0] == pytest.approx(same[1], rel=0.02)


def attention(kind: str, dtype: str, *sizes: int) -> StepCalls:
    """Fused attention of sequences, heads, queries, keys and width, without a mask."""
    sequences, heads, queries, keys, width = sizes
    query, result = (use(at, sequences, heads, queries, width) for at in (0, 3))
    others = [use(at, sequences, heads, keys, width) for at in (1, 2)]
    texts = {"flash": ("0.0", "False"), "efficient": ("", "False", "0.0", "False")}[kind]
    return in_dtype(step(call(f"_scaled_dot_product_{kind}_attention", [query, *others], result, texts)), dtype)


def test_attention_computes_whole_blocks_of_queries() -> None:
    few, block, more = (
        predict_step(attention("flash", "c10::BFloat16", 1024, 8, queries, 4096, 16), A100).device_us or 0.0
        for queries in (7, 64, 65)
    )
    assert few > 0.9 * block and more > 1.9 * block


@pytest.mark.parametrize(
    ("kind", "dtype", "sizes", "measured_us"),
    [
        ("flash", "c10::BFloat16", (1024, 8, 7, 7, 32), 208.0),
        ("flash", "c10::BFloat16", (1024, 8, 7, 4096, 16), 4511.0),
        ("efficient", "float", (64, 8, 7, 4096, 16), 1614.0),
    ],
)
def test_attention_of_few_queries_takes_what_a_public_trace_shows(
    kind: str, dtype: str, sizes: tuple[int, ...], measured_us: float
) -> None:
    """Kernels of segment-anything-fast's decoder on an A100 of 40 GB, which no rate was learned from."""
    predicted = predict_step(attention(kind, dtype, *sizes), device_by_name("A100-SXM4-40GB")).device_us
    assert predicted == pytest.approx(measured_us, rel=0.25)


def test_softmax_over_rows_of_medium_length_is_bound_by_latency() -> None:
    x = use(0, 300_000, 3137, dtype="c10::BFloat16")
    softmax = call("_softmax", [x], use(1, 300_000, 3137, dtype="c10::BFloat16"), ("-1", "False"))
    prediction = predict_step(step(softmax), H100)
    assert prediction.bound == "latency"
    assert prediction.groups["latency"] > 0.9 * total(prediction)
    assert prediction.kernels[0].bound == "latency"


def half_product(rows: int, inner: int, columns: int) -> StepCalls:
    half = "c10::BFloat16"
    operands = [use(0, rows, inner, dtype=half), use(1, inner, columns, dtype=half)]
    return step(call("mm", operands, use(2, rows, columns, dtype=half)))


def test_a_product_whose_operand_or_result_has_odd_rows_is_slow() -> None:
    even, odd_result, odd_operand = ((4096, 768, 50304), (4096, 768, 50257), (4096, 767, 50304))
    quick, *slow = (total(predict_step(half_product(*sizes), H100)) for sizes in (even, odd_result, odd_operand))
    assert all(us > 2 * quick for us in slow)


def test_the_strides_tell_whether_rows_are_odd() -> None:
    half = "c10::BFloat16"
    weight, result = use(1, 767, 768, dtype=half), use(2, 4096, 768, dtype=half)
    padded, dense = (TensorUse((4096, 767), strides, half, 0) for strides in ((768, 1), (767, 1)))
    slow, quick = (total(predict_step(step(call("mm", [x, weight], result)), H100)) for x in (dense, padded))
    assert slow > 2 * quick


def test_a_compiler_pads_an_odd_product_where_that_is_quicker() -> None:
    even, odd = half_product(16384, 768, 50304), half_product(16384, 768, 50257)
    eager, compiled = (
        [total(predict_step(product, H100, backend)) for product in (even, odd)] for backend in ("eager", "compile")
    )
    assert eager[1] > 2 * eager[0]
    assert compiled[0] < compiled[1] < 1.2 * compiled[0]


def test_cudagraphs_says_where_it_makes_no_graph() -> None:
    plain = stream(1 << 12, 4)
    counting = replace(plain, storages=(plain.storages[0], replace(plain.storages[1], created=-1), *plain.storages[2:]))
    graph, none = (predict_step(each, H100, "cudagraphs") for each in (plain, counting))
    assert graph.graph
    assert not none.graph
    assert any("makes no graph" in reason for reason in none.reasons)
    assert not any("makes no graph" in reason for reason in graph.reasons)
    assert predict_step(counting, H100, "reduce-overhead").graph


def test_a_product_with_a_vector_takes_the_time_of_its_matrix_in_memory() -> None:
    vector = step(call("mm", [use(0, 1, 8192), use(1, 8192, 8192)], use(2, 1, 8192)))
    rows = step(call("mm", [use(0, 33, 8192), use(1, 8192, 8192)], use(2, 33, 8192)))
    read_us = 4 * 8192**2 / (H100.bandwidth_bytes_per_s or 0.0) * 1e6
    one, several = (predict_step(each, H100) for each in (vector, rows))
    assert read_us < (one.device_us or 0.0) < 1.4 * read_us and one.bound == "memory"
    assert (several.device_us or 0.0) > (one.device_us or 0.0)


def test_a_result_that_comes_back_takes_the_time_of_the_link_and_says_so() -> None:
    stays = stream(1 << 20)
    comes_back = replace(stays, returned_bytes=float(1 << 30))
    device = device_by_name("A100 PCIe")
    assert device.link_bytes_per_s
    before, after = (predict_step(calls, device) for calls in (stays, comes_back))
    assert before.us is not None and after.us is not None and before.floor_us is not None
    link_us = (1 << 30) / device.link_bytes_per_s * 1e6
    assert after.us - before.us == pytest.approx(link_us)
    assert after.floor_us == pytest.approx(before.floor_us + link_us)
    assert any("come back to the host" in reason for reason in after.reasons)
    assert not any("come back to the host" in reason for reason in before.reasons)


def test_a_link_that_is_not_known_is_named() -> None:
    device = replace(device_by_name("A100 PCIe"), link_bytes_per_s=None)
    prediction = predict_step(replace(stream(1 << 20), returned_bytes=1e6), device)
    assert any("over a link whose bandwidth is not known" in reason for reason in prediction.reasons)
