"""Products of one row with narrow weights: fewer bytes take less of the bandwidth."""

import json

import pytest

from bottleneck.devices.match import device_by_name
from bottleneck.predict.price import PricedWork, price_work
from bottleneck.predict.rates import KINDS
from bottleneck.predict.vector_products import unpacking_flops
from bottleneck.schema.predicted_step import Backend
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCalls
from tests.predict.steps import call, step, use

A100 = device_by_name("A100 80GB")
INNER, OUTER = 4096, 32768


def priced(calls: StepCalls, backend: Backend = "max-autotune") -> PricedWork:
    work = price_work(calls, A100, backend)
    assert not isinstance(work, str)
    return work


def product(width: str) -> StepCalls:
    """A row of bf16 by weights in bf16, or in int8 that a cast makes bf16."""
    wide = use(1, INNER, OUTER, dtype="c10::BFloat16")
    multiply = call("mm", [use(0, 1, INNER, dtype="c10::BFloat16"), wide], use(2, 1, OUTER, dtype="c10::BFloat16"))
    if width == "bf16":
        return step(multiply)
    return step(call("_to_copy", [use(3, INNER, OUTER, dtype="signed char")], wide), multiply)


def packed(rows: int = 1) -> StepCalls:
    """Rows of bf16 by weights in int4, in groups of 32."""
    weight = use(1, OUTER // 8, INNER // 128, 32, 4, dtype="int")
    scales = use(2, INNER // 32, OUTER, 2, dtype="c10::BFloat16")
    rows_in, rows_out = (use(at, rows, size, dtype="c10::BFloat16") for at, size in ((0, INNER), (3, OUTER)))
    whole = call("_weight_int4pack_mm", [rows_in, weight, scales], rows_out)
    # The size of a group stands between the weights and the scales.
    group: dict[str, object] = {"dims": [], "types": "Scalar", "strides": [], "concrete": "32"}
    columns = {name: json.loads(getattr(whole, name)) for name in group}
    placed = {name: json.dumps([*values[:2], group[name], *values[2:]]) for name, values in columns.items()}
    return step(replace(whole, **placed))


def test_a_vector_takes_less_of_the_bandwidth_the_narrower_the_weights_are() -> None:
    works = [priced(product("bf16")), priced(product("int8")), priced(packed())]
    assert all(KINDS[int(work.work.kind[0])] == "vector product" for work in works)
    bf16, int8, int4 = (float(work.work.bytes[0] / work.found.us[0]) for work in works)
    assert bf16 > 1.1 * int8 > 1.2 * int4
    assert works[0].busy_us > works[1].busy_us > works[2].busy_us
    assert bf16 == pytest.approx(0.79 * 2.039e6, rel=0.02)


def test_wide_weights_are_not_unpacked() -> None:
    assert unpacking_flops(100.0, 2.0) == unpacking_flops(100.0, 4.0) == 0.0
    assert unpacking_flops(200.0, 1.0) == 2 * unpacking_flops(100.0, 1.0) > unpacking_flops(200.0, 0.5) > 0.0


def test_many_rows_of_packed_weights_are_a_product_on_tensor_cores() -> None:
    few, many = priced(packed(16)), priced(packed(512))
    assert few.work.are("vector product")[0] and many.work.are("product")[0]
    assert many.busy_us > few.busy_us


def test_without_timing_of_kernels_a_product_with_a_vector_is_the_librarys() -> None:
    assert priced(product("bf16"), "compile").work.are("product").any()
