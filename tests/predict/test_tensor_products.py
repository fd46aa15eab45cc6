"""Products on tensor cores: laws of their price, and what was learned of them."""

import csv
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.devices.match import device_by_name
from bottleneck.predict.rates import as_columns, ceilings_of, read_rates, times
from bottleneck.predict.step_kernels import Kernel, load_bytes
from bottleneck.predict.tensor_products import (
    ALIGNED_BYTES,
    OTHERS,
    TABLE,
    TensorProducts,
    arithmetic_us,
    of_generation,
    product_rates,
    width_of,
)
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import EngineSettings

DEVICES = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA B200", "NVIDIA GeForce RTX 4090")
TF32 = EngineSettings(matmul_allow_tf32=True)
SIZES = st.integers(1, 20_000)
THREE_SIZES = st.tuples(SIZES, SIZES, SIZES)
LOADS = st.sampled_from([2.0, 4.0, 16.0])


def product(rows: int, columns: int, inner: int, loads: float = ALIGNED_BYTES, batch: int = 1) -> Kernel:
    """A product in bf16."""
    amount = 2.0 * (rows * inner + inner * columns + rows * columns) * batch
    return Kernel(
        "product",
        bytes=amount,
        flops=2.0 * batch * rows * columns * inner,
        dtype="bf16",
        rows=rows,
        columns=columns,
        inner=inner,
        batch=batch,
        load_bytes=loads,
        element_bytes=2.0,
    )


def predicted_us(device: str, *products: Kernel) -> list[float]:
    ceilings, _ = ceilings_of(products, TF32, device_by_name(device))
    return times(as_columns(products), ceilings, read_rates()).us.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("device", DEVICES)
@given(sizes=THREE_SIZES, more=THREE_SIZES, loads=LOADS)
def test_a_larger_product_is_never_quicker(
    device: str, sizes: tuple[int, int, int], more: tuple[int, int, int], loads: float
) -> None:
    # A product with a vector runs on other units.
    small = [size + 1 for size in sizes]
    large = [size + added for size, added in zip(small, more, strict=True)]
    one, other = predicted_us(device, product(*small, loads), product(*large, loads))
    assert one <= other * (1 + 1e-9)


@pytest.mark.parametrize("device", DEVICES)
@given(sizes=THREE_SIZES)
def test_rows_that_are_not_aligned_never_cost_less(device: str, sizes: tuple[int, int, int]) -> None:
    by_sixteen, by_four, by_two = predicted_us(device, *(product(*sizes, loads) for loads in (16.0, 4.0, 2.0)))
    assert by_sixteen <= by_four <= by_two


@given(sizes=THREE_SIZES, batch=st.integers(1, 64), loads=LOADS)
def test_no_product_is_quicker_than_the_peak(sizes: tuple[int, int, int], batch: int, loads: float) -> None:
    rows, columns, inner = (np.array([float(size)]) for size in sizes)
    products = TensorProducts(
        rows=rows,
        columns=columns,
        inner=inner,
        batch=np.array([float(batch)]),
        load_bytes=np.array([loads]),
        element_bytes=np.array([2.0]),
        peak=np.array([3.12e8]),
        share=np.array([max(value for name, value in product_rates().items() if name.endswith(("half", "tf32")))]),
        multiprocessors=np.array([108.0]),
        cycles=np.array([1410.0]),
        bandwidth=np.array([2e6]),
    )
    flops = 2.0 * batch * rows * columns * inner
    assert arithmetic_us(products, product_rates()) >= flops / products.peak


def test_a_product_that_is_large_reaches_most_of_its_share_and_a_small_one_little() -> None:
    device = device_by_name(DEVICES[0])
    peak = device.peaks_flops_per_s["bf16_tensor"] / 1e6
    large, small = (product(size, size, size) for size in (8192, 256))
    shares = [
        kernel.flops / peak / us
        for kernel, us in zip((large, small), predicted_us(DEVICES[0], large, small), strict=True)
    ]
    assert 0.75 < shares[0] < 0.95
    assert shares[1] < 0.1


def test_a_generation_that_was_not_timed_has_the_mean_of_the_others() -> None:
    rates = product_rates()
    for part in ("half", "tf32"):
        own = [value for name, value in rates.items() if name.endswith(f":{part}") and not name.startswith(OTHERS)]
        assert min(own) <= of_generation(rates, "7.0", part) <= max(own)
    assert of_generation(rates, "8.0", "half") == rates["8.0:half"]


def test_each_rate_says_how_many_products_it_comes_from() -> None:
    with TABLE.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert all(int(row["timings"]) > 0 and float(row["spread"]) >= 1.0 for row in rows)
    assert all(float(row["value"]) < 1.0 for row in rows if row["name"].endswith(("half", "tf32")))
    assert [row["name"] for row in rows] == sorted(row["name"] for row in rows)


@pytest.mark.parametrize(
    ("row", "element", "loads"),
    [(768, 2, 16), (50257, 2, 2), (30522, 2, 4), (4, 2, 16), (19410, 4, 4), (9375, 4, 4), (2048, 4, 16)],
)
def test_rows_are_loaded_as_the_names_of_kernels_in_traces_say(row: int, element: int, loads: int) -> None:
    assert load_bytes([1024, row], element) == loads


@pytest.mark.parametrize(
    ("device", "sizes", "tops"),
    [
        ("NVIDIA A100-SXM4-80GB", (32768, 256, 4096), 392.7),
        ("NVIDIA H100 80GB HBM3", (4096, 4096, 4096), 848),
        ("NVIDIA H100 80GB HBM3", (4096, 4096, 32768), 959),
    ],
)
def test_products_of_eight_bits_take_the_published_times(device: str, sizes: tuple[int, ...], tops: float) -> None:
    rows, columns, inner = sizes
    (us,) = predicted_us(device, in_eight_bits(rows, columns, inner))
    assert 2.0 * rows * columns * inner / us / 1e6 == pytest.approx(tops, rel=0.05)


def in_eight_bits(rows: int, columns: int, inner: int, result_bytes: float = 4.0) -> Kernel:
    """A product of 8-bit integers, with its result."""
    stored = rows * columns * result_bytes
    amount = rows * inner + inner * columns + stored
    in_bf16 = product(rows, columns, inner)
    return replace(in_bf16, dtype="int8", bytes=amount, element_bytes=1.0, stored_bytes=stored)


def test_a_short_product_of_eight_bits_takes_longer_by_the_stores_of_its_result() -> None:
    # The same arithmetic and operands; bitsandbytes measured 738 and 582 us (benchmarks/int8_timings.csv).
    short, long = in_eight_bits(32768, 4096, 1024, 2.0), in_eight_bits(32768, 1024, 4096, 2.0)
    of_short, of_long = predicted_us("NVIDIA A100-SXM4-80GB", short, long)
    assert of_short / of_long == pytest.approx(738 / 582, rel=0.08)
    hidden = [replace(kernel, stored_bytes=0.0) for kernel in (short, long)]
    of_short, of_long = predicted_us("NVIDIA A100-SXM4-80GB", *hidden)
    assert of_short / of_long < 1.1


def test_engines_are_of_three_widths() -> None:
    engines = ("tf32_tensor", "bf16_tensor", "fp16_tensor", "fp8_tensor", "int8_tensor")
    assert [width_of(engine) for engine in engines] == ["tf32", *itertools.repeat("half", 3), "int8"]
