"""fp32 products on a CPU whose usual library is slower than oneDNN."""

from pathlib import Path
from typing import Any

import pytest

from bottleneck.advice.matrix_products import near_roof
from bottleneck.advice.onednn_products import onednn_products
from bottleneck.experiment.interventions import CHANGES
from bottleneck.experiment.interventions.results import compare
from bottleneck.experiment.interventions.subject import NotApplicable, Subject, subject_of
from bottleneck.schema.device import ONEDNN_PEAK
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.records import replace
from tests.advice.cases import case_of
from tests.analysis.frames import CPU
from tests.builders import Event, op, step

# 2.3 times the rate of products in the ceilings of tests.
USUAL = CPU.peaks_flops_per_s["fp32_tensor"]
FASTER = replace(CPU, peaks_flops_per_s={**CPU.peaks_flops_per_s, ONEDNN_PEAK: 2.3 * USUAL})


def case(folder: Path, side: int, calls: int = 4, name: str = "aten::mm", **recording: Any) -> Evidence:
    """Two steps of square products at the usual rate, and as much of other time."""
    product_us = 2e6 * side**3 / USUAL / 0.95 + 1
    length = 2 * calls * product_us
    events: list[Event] = []
    for number in range(2):
        at = length * number
        events.append(step(number, at, length - 1))
        for call in range(calls):
            begin = at + 0.4 + call * product_us
            events.append(op(name, begin, product_us - 0.1, dims=[[side, side], [side, side]]))
    return case_of(folder, events, unprofiled_us=length, **{"device": FASTER, **recording})


def test_large_products_are_given_to_onednn(tmp_path: Path) -> None:
    """A transformer on an EPYC multiplied at 234 GFLOP/s, and at 546 where its precision was `medium`."""
    evidence = case(tmp_path, 512)
    draft = onednn_products(evidence)
    assert draft is not None and draft.gain_us is not None
    products_us = sum(row.us for row in evidence.analysis.kernels)
    assert draft.gain_us.low == pytest.approx(products_us * 0.9 * 0.95 * (1 - 1 / 2.3), rel=0.05)
    assert draft.gain_us.high == pytest.approx(products_us * (1 - 0.95 / 2.3), rel=0.05)
    assert draft.tries == ("onednn-products",) and not draft.changes_results
    assert near_roof(evidence) is None
    (row,) = evidence.analysis.kernels
    assert row.explained == pytest.approx(0.95 / 2.3, rel=0.02) and row.reason_code == "slow_library"
    assert row.compute_us is not None and row.flops is not None
    assert row.flops / row.compute_us * 1e6 == pytest.approx(2.3 * USUAL, rel=1e-6)


@pytest.mark.parametrize(("side", "sure"), [(256, 0.5), (512, 0.9), (2048, 0.0)], ids=["small", "large", "new pages"])
def test_less_is_sure_of_small_products_and_of_results_in_new_pages(tmp_path: Path, side: int, sure: float) -> None:
    evidence = case(tmp_path, side, calls=1)
    draft = onednn_products(evidence)
    assert draft is not None and draft.gain_us is not None
    (row,) = evidence.analysis.kernels
    call_us = 24 * (evidence.analysis.device.launch_floor_us or 0.54)
    # A product that saves nothing for sure still pays for its call.
    assert draft.gain_us.low == pytest.approx(sure * 0.95 * (1 - 1 / 2.3) * row.us - call_us, rel=0.05, abs=1)


@pytest.mark.parametrize(
    ("name", "heads", "products"),
    [("", [16, 6, 64, 32], 2 * 96 * 2), ("_backward", [16, 6, 64, 32], 5 * 96 * 2), ("", [4, 4, 1024, 64], 2 * 16 * 8)],
)
def test_each_product_of_fused_attention_is_a_call_that_costs(
    tmp_path: Path, name: str, heads: list[int], products: int
) -> None:
    """Attention of 16 x 6 heads on 64 tokens took 2.03 ms longer on two threads, and backward 6.36 ms."""
    dims = [heads] * (3 if not name else 4)
    length, call_us = 100_000.0, CPU.launch_floor_us or 0.54
    gains = []
    for attends in (False, True):
        products_of_it = [op("aten::mm", 1 + 9000.0 * at, 8900, dims=[[1024, 1024]] * 2) for at in range(10)]
        events = [step(0, 0, length - 1), *products_of_it]
        if attends:
            attention = f"aten::_scaled_dot_product_flash_attention_for_cpu{name}"
            events.append(op(attention, 95_000, 1000, dims=[*dims, [], []]))
        evidence = case_of(tmp_path / str(attends), events, unprofiled_us=length, device=FASTER, threads=2)
        draft = onednn_products(evidence)
        assert draft is not None and draft.gain_us is not None
        gains.append(draft.gain_us)
    least, most = (gains[0].low - gains[1].low, gains[0].high - gains[1].high)
    # Large blocks win back a part of it by their arithmetic.
    least_ops, most_ops = (22, 32) if name else (17, 24)
    assert 0.8 < least / (products / 2 * most_ops * call_us) < 1.02
    assert most <= products / 2 * least_ops * call_us


def test_small_attention_may_lose_more_than_other_products_save(tmp_path: Path) -> None:
    """A classifier with 41 to 55 tokens took 60 ms in place of 52 at the precision `medium`."""
    dims, length = [[32, 8, 64, 32]] * 4, 100_000.0
    products_of_it = [op("aten::mm", 1 + 9000.0 * at, 8900, dims=[[460, 460]] * 2) for at in range(10)]
    attends = op("aten::_scaled_dot_product_flash_attention_for_cpu_backward", 91_000, 8900, dims=[*dims, [], []])
    events = [step(0, 0, length - 1), *products_of_it, attends]
    device = replace(FASTER, launch_floor_us=0.5)
    draft = onednn_products(case_of(tmp_path, events, unprofiled_us=length, device=device, threads=1))
    assert draft is not None and draft.gain_us is not None
    # 5 x 512 calls of 22 to 32 ops take 28 to 41 ms, where small products save 11 at least.
    assert -41_000 < draft.gain_us.low < -10_000
    assert draft.gain_us.high > 10_000


def test_small_products_lose_by_it(tmp_path: Path) -> None:
    assert onednn_products(case(tmp_path, 24, calls=400)) is None


@pytest.mark.parametrize(
    "more",
    [
        {"device": CPU},
        {"device": replace(CPU, peaks_flops_per_s={**CPU.peaks_flops_per_s, ONEDNN_PEAK: 1.1 * USUAL})},
        {"libraries": {"float32": "medium"}},
        {"name": "aten::_int_mm"},
    ],
    ids=["not measured", "as fast", "allowed already", "of whole numbers"],
)
def test_nothing_is_said_where_the_library_is_as_fast(tmp_path: Path, more: dict[str, Any]) -> None:
    assert onednn_products(case(tmp_path, 512, **more)) is None


def test_products_of_a_program_that_allows_onednn_are_held_against_its_rate(tmp_path: Path) -> None:
    evidence = case(tmp_path, 512, libraries={"float32": "medium"})
    assert evidence.analysis.device.peaks_flops_per_s["fp32_tensor"] == 2.3 * USUAL
    assert evidence.analysis.kernels[0].reason_code != "slow_library"


def test_convolutions_are_held_against_onednn(tmp_path: Path) -> None:
    """They reached 2.4 times the rate of products, which the peak had been."""
    images, weight = [8, 64, 28, 28], [64, 64, 3, 3]
    flops = 2 * 8 * 28 * 28 * 64 * 64 * 9
    took_us = flops / (2.2 * USUAL) * 1e6
    events: list[Event] = []
    for number in range(2):
        at = 2 * took_us * number
        events.append(step(number, at, 2 * took_us - 1))
        dims = [images, weight, [], [], [], [], [], [], [], [], [], []]
        concrete = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "", "", ""]
        events.append(op("aten::mkldnn_convolution", at + 1, took_us, dims=dims, concrete=concrete))
    rows = case_of(tmp_path, events, unprofiled_us=2 * took_us, device=FASTER).analysis.kernels
    assert rows[0].explained is not None and 0.8 < rows[0].explained <= 1
    assert rows[0].compute_us is not None and rows[0].compute_us <= rows[0].us


def test_verify_tries_it_on_a_cpu() -> None:
    torch: Any = pytest.importorskip("torch")
    given = torch.rand(64, 96)

    def make() -> Subject:
        torch.manual_seed(0)
        model = torch.nn.Linear(96, 64)
        return subject_of(lambda: model(given).square().mean().backward())

    before = torch.get_float32_matmul_precision()
    assert all(difference.is_within is not False for difference in compare(make, CHANGES["onednn-products"]))
    assert torch.get_float32_matmul_precision() == before == "highest"
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(NotApplicable, match="allows it already"):
            CHANGES["onednn-products"].apply(make())
    finally:
        torch.set_float32_matmul_precision(before)
