"""The rule of fresh pages: by recorded touches, by counted faults, and by the rate of large results."""

from pathlib import Path

import pytest

from bottleneck.advice.fresh_pages import fresh_pages
from bottleneck.schema.measurements import PageFaults
from bottleneck.schema.records import replace
from tests.advice.cases import with_analysis, with_recording
from tests.advice.programs import Call, on_cpu
from tests.advice.test_host import WORK, cpu, idle_row
from tests.analysis.frames import CPU


def test_fresh_pages_are_reported_where_they_take_a_part_of_the_step(tmp_path: Path) -> None:
    row = replace(idle_row("allocator", 200.0, detail="aten::mul > first touch of fresh pages"), on_pages=True)
    draft = fresh_pages(cpu(tmp_path, WORK | {"overhead.allocator": 250.0}, row))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high == 200
    other = idle_row("allocator", 200.0, detail="aten::empty")
    assert fresh_pages(cpu(tmp_path / "b", WORK | {"overhead.allocator": 200.0}, other)) is None


@pytest.mark.parametrize(("faults", "gain_us"), [(100.0, 1.7 * 100 * 4096 / 4e9 * 1e6), (10.0, None), (None, None)])
def test_counted_page_faults_are_worth_what_new_pages_cost_here(
    tmp_path: Path, faults: float | None, gain_us: float | None
) -> None:
    case = with_recording(cpu(tmp_path, WORK), page_faults=PageFaults(4096, faults, faults))
    case = with_analysis(case, device=replace(case.analysis.device, fresh_bytes_per_s=4e9))
    draft = fresh_pages(case)
    assert (draft is None) == (gain_us is None)
    if draft is not None and gain_us is not None:
        assert draft.gain_us is not None and draft.gain_us.high == pytest.approx(gain_us)
        assert draft.evidence[0].startswith("an unprofiled step has 100 page faults, which take 102 us per step")


LARGE = [[64, 1024, 1024], []]  # 256 MiB
UNKNOWN = replace(CPU, peaks_flops_per_s={}, bandwidth_bytes_per_s=None)


def in_place(us: float) -> Call:
    return Call("aten::add_", us, [[1024, 1024], [1024, 1024], []])


@pytest.mark.parametrize(
    ("write_us", "other_us", "sizes", "is_seen"),
    [
        (50_000.0, 100.0, LARGE, True),
        (20_000.0, 100.0, LARGE, False),  # 13 GB/s: no system hands out pages so fast
        (50_000.0, 1_000.0, LARGE, False),  # a memory that is slow as a whole
        (3_000.0, 100.0, [[4, 1024, 1024], []], False),  # 16 MiB: the heap holds it
    ],
    ids=["as slow as new pages", "too fast", "slow memory", "small"],
)
def test_large_results_at_the_rate_of_new_pages_are_seen_in_a_trace_without_counts(
    tmp_path: Path, write_us: float, other_us: float, sizes: list[list[int]], is_seen: bool
) -> None:
    calls = [Call("aten::sqrt", write_us, sizes), Call("aten::abs", 1.2 * write_us, sizes), in_place(other_us)]
    calls.append(Call("aten::mm", 300_000.0, [[2048, 2048], [2048, 2048]]))
    draft = fresh_pages(on_cpu(tmp_path, calls, device=UNKNOWN))
    assert (draft is not None) == is_seen
    if draft is not None:
        assert draft.gain_us is not None and draft.cannot_lose
        assert draft.gain_us.low == pytest.approx(2 * write_us, rel=1e-3)  # both at the rate of the faster one
        assert draft.gain_us.high > draft.gain_us.low
        assert "5.37 GB/s at best" in draft.evidence[0]


def test_large_results_over_their_input_take_no_new_pages(tmp_path: Path) -> None:
    calls = [Call("aten::sqrt_", 50_000.0, LARGE), in_place(100.0)]
    assert fresh_pages(on_cpu(tmp_path, calls, device=UNKNOWN)) is None
