"""The probes of products that oneDNN multiplies: where torch gives it any, and only where it keeps fp32."""

from dataclasses import replace
from typing import Any

import pytest

from bottleneck.calibrate import cpu
from bottleneck.calibrate.cpu import ONEDNN, CpuBench, CpuSizes

torch: Any = pytest.importorskip("torch")
BENCH = CpuBench(torch, None, CpuSizes())


class Rounding:
    """torch whose products are rounded to bf16 while their precision is ``medium``, as with AMX."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def mm(self, left: Any, right: Any) -> Any:
        is_medium = torch.get_float32_matmul_precision() == "medium" and left.dtype is torch.float32
        return (left.bfloat16() @ right.bfloat16()).float() if is_medium else torch.mm(left, right)


@pytest.mark.parametrize(
    ("capability", "has_onednn", "made"),
    [("AVX512", True, 3), ("AVX512_VNNI", True, 3), ("AVX2", True, 0), ("AVX512", False, 0)],
)
def test_products_are_given_to_onednn_with_avx512_alone(
    monkeypatch: pytest.MonkeyPatch, capability: str, has_onednn: bool, made: int
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: has_onednn)
    probes = cpu._onednn_products(BENCH)
    assert [probe.ceiling for probe in probes] == [ONEDNN] * made
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_cpu_that_rounds_to_bf16_then_has_no_such_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert cpu._onednn_products(replace(BENCH, torch=Rounding())) == []


def test_a_take_multiplies_at_that_precision_and_puts_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    seen: list[str] = []
    for probe in cpu._onednn_products(BENCH):
        seconds = probe.prepare()(lambda: seen.append(torch.get_float32_matmul_precision()))
        assert seconds > 0 and torch.get_float32_matmul_precision() == "highest"
    assert seen[:2] == ["medium", "medium"] and len(seen) == 3
