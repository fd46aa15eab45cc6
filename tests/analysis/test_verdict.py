"""Verdicts from hand-made ledgers: which bound, how sure, and what the sentence says to do."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from bottleneck.analysis.bound import FewRows, Grounds, grounds_of, likely_shares
from bottleneck.analysis.ledger import ledger_of
from bottleneck.analysis.verdict import decide, why_later
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import (
    CONTENDED,
    GROUPS,
    Caveat,
    Clause,
    Finding,
    IdleCause,
    Interval,
    KernelSummary,
    Verdict,
    describe_share,
    share_tenths,
)
from bottleneck.schema.evidence import TwoSided
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, with_analysis
from tests.advice.programs import Call, on_cpu
from tests.builders import frame, op, step

_KERNEL = KernelSummary(
    name="some_kernel",
    family="other",
    op="aten::mul",
    shapes=None,
    module=None,
    source=None,
    dtype=None,
    engine=None,
    calls=1.0,
    us=10.0,
    share=0.1,
    flops=None,
    bytes_low=None,
    bytes_high=None,
    compute_us=None,
    memory_us=None,
    launch_us=None,
    bound="memory",
    regime=None,
    explained=None,
    confidence="high",
    reason=None,
    headroom_us=None,
)


def test_an_unmodelled_product_of_few_rows_is_probably_bound_by_its_bytes() -> None:
    """10 rows by 10 million columns of fp32 weights: 5 FLOPs per byte."""
    product = replace(_KERNEL, op="aten::addmm", bound="unknown", share=0.9, flops=2.05e11, bytes_low=4.14e10)
    accounts = {"unknown.matmul": 90, "overhead.python": 10}
    copy = replace(_KERNEL, op="aten::copy_", us=1.0, share=0.01)
    verdict = decide(replace(_grounds(accounts, replace(product, us=90.0), copy), host_only=True))
    assert verdict.bound == "memory" and "Largest: aten::addmm" in verdict.sentence
    many_rows = replace(product, flops=2.05e12)
    assert decide(replace(_grounds(accounts, many_rows), host_only=True)).bound == "compute"


def test_a_matrix_times_a_vector_is_bound_by_its_bytes_whatever_its_size() -> None:
    """A search of 400 MB for one query at a time was probably limited by arithmetic."""
    product = replace(_KERNEL, op="aten::addmv_", bound="unknown", account="unknown.matmul", us=90.0, share=0.9)
    grounds = replace(_grounds({"unknown.matmul": 90, "overhead.python": 10}, product), host_only=True)
    assert decide(grounds).bound == "memory" and "Largest: aten::addmv_" in decide(grounds).sentence
    assert decide(replace(grounds, kernels=(replace(product, op="aten::addmm"),))).bound == "compute"


def test_a_kernel_of_a_replayed_graph_is_named_by_itself() -> None:
    """The verdict named the region, with 91.7 % of the step in one line and 40.5 % in the next."""
    region = replace(_KERNEL, op="Torch-Compiled Region", bound="unknown", account="unknown.pointwise")
    region = replace(region, reason_code="graph_launch")
    kernels = [replace(region, name=name, us=us, share=us / 100) for name, us in (("triton_a", 60.0), ("flash", 30.0))]
    sentence = decide(_grounds({"unknown.pointwise": 90, "overhead.python": 10}, *kernels)).sentence
    assert "Largest: the kernel `triton_a`" in sentence and "60.0 us (60.0 %)" in sentence


def test_many_small_ops_of_one_line_are_named_by_the_line() -> None:
    """Of 90 us of pointwise ops 60 belong to the line of an optimizer, where no op has more than 10."""
    names = ("mul", "add", "sub", "div", "sqrt", "exp", "log", "sin", "cos")
    ops = [
        replace(_KERNEL, op=f"aten::{name}", bound="unknown", account="unknown.pointwise", us=10.0) for name in names
    ]
    grounds = replace(_grounds({"unknown.pointwise": 90, "overhead.python": 10}, *ops), host_only=True)
    several = replace(grounds, line_us={"train() (model.py:9)": 60.0, "forward() (model.py:3)": 30.0})
    assert "Largest: the ops in train() (model.py:9) together, 60.0 us (60.0 %)" in decide(several).sentence
    single = replace(grounds, line_us={"train() (model.py:9)": 15.0, "forward() (model.py:3)": 10.0})
    assert "Largest: aten::mul" in decide(single).sentence


def test_the_worst_place_is_the_line_whose_ops_take_most_of_the_limit() -> None:
    """The worst place was an op of 10 us beside a finding that one line takes 90 % of the step."""
    names = ("mul", "add", "sub", "div", "sqrt", "exp", "log", "sin", "cos")
    ops = [replace(_KERNEL, op=f"aten::{name}", us=10.0, share=0.1, source="train() (model.py:9)") for name in names]
    grounds = _grounds({"memory": 90, "overhead.python": 10}, *ops)
    assert "Largest: the ops in train() (model.py:9) together, 90.0 us (90.0 %)" in decide(grounds).sentence
    apart = [replace(op, source=f"model.py:{at}") for at, op in enumerate(ops)]
    assert "Largest: aten::mul" in decide(replace(grounds, kernels=tuple(apart))).sentence


@pytest.mark.parametrize(
    ("python", "sentence"),
    [(29, "Python and dispatching take most of your step"), (25, "The largest part of your step is Python and")],
)
def test_most_of_a_step_is_half_of_it_at_least(python: int, sentence: str) -> None:
    accounts = {"overhead.python": python, "overhead.dispatch": 22, "memory": 26, "compute": 23}
    grounds = replace(_grounds(accounts), host_only=True)
    assert decide(grounds).sentence.startswith(sentence)


def test_what_the_program_itself_does_is_named_beside_what_holds_it_up() -> None:
    work = replace(_KERNEL, op="aten::addmm", bound="unknown", account="unknown.matmul", us=30.0, share=0.3)
    accounts = {"overhead.stall": 60, "unknown.matmul": 40}
    sentence = decide(replace(_grounds(accounts, work), host_only=True)).sentence
    assert "Besides: of the program itself: aten::addmm, 30.0 us (30.0 %)" in sentence
    small = replace(_grounds(accounts, replace(work, us=5.0, share=0.05)), host_only=True)
    assert "of the program itself" not in decide(small).sentence


def _grounds(accounts: Mapping[str, float], *kernels: KernelSummary, idle: tuple[IdleCause, ...] = ()) -> Grounds:
    return Grounds(ledger_of(accounts, sum(accounts.values())), kernels, idle)


@pytest.mark.parametrize(
    ("accounts", "bound"),
    [
        ({"compute": 51, "memory": 49}, "compute"),
        ({"compute": 40, "memory": 45, "overhead.python": 15}, "mixed"),
        ({"compute": 34, "memory": 45, "overhead.python": 21}, "memory"),
        ({"memory": 20, "memory.copy": 35, "compute": 45}, "memory"),
        ({"overhead.python": 30, "overhead.launch_floor": 30, "compute": 40}, "overhead"),
        ({"communication": 60, "compute": 40}, "communication"),
        ({"unknown": 51, "compute": 49}, "device"),
        ({"unknown": 40, "compute": 35, "memory": 25}, "device"),
        ({"unknown.matmul": 50, "unknown.pointwise": 41, "overhead.python": 9}, "device"),
        ({"unknown.matmul": 50, "unknown.pointwise": 39, "overhead.python": 11}, "compute"),
        ({"unknown.convolution": 45, "compute": 24, "memory": 31}, "compute"),
        ({"unknown.convolution": 20, "unknown.matmul": 25, "compute": 24, "memory": 31}, "device"),
        ({"unknown.matmul": 30, "unknown.pointwise": 39, "overhead.python": 31}, "mixed"),
        ({"unknown.copies": 50, "unknown.lookups": 30, "communication": 20}, "memory"),
        ({"unknown.convolution": 32, "overhead.dispatch": 40, "memory": 20, "compute": 8}, "mixed"),
        ({"unknown.convolution": 25, "overhead.dispatch": 45, "memory": 30}, "overhead"),
        ({"unknown.convolution": 20, "overhead.dispatch": 40, "memory": 10, "compute": 30}, "compute"),
        ({"unknown": 50, "unknown.matmul": 20, "overhead.python": 30}, "inconclusive"),
        ({"unknown": 50, "compute": 50}, "compute"),
        ({"overhead.unknown": 90, "compute": 10}, "overhead"),
    ],
)
def test_largest_group_decides_unless_close_or_unknown(accounts: Mapping[str, float], bound: str) -> None:
    verdict = decide(_grounds(accounts))
    assert verdict.bound == bound
    assert set(verdict.shares) == set(GROUPS)
    assert sum(verdict.shares.values()) == pytest.approx(1.0)


def test_share_is_that_of_the_group_that_decides() -> None:
    assert decide(_grounds({"compute": 60, "memory": 40})).share == 0.6
    assert decide(_grounds({"unknown": 70, "overhead.python": 30})).share == 0.7
    assert decide(_grounds({"unknown": 70, "memory": 25, "overhead.python": 5})).share == pytest.approx(0.95)


def test_a_device_that_works_all_the_time_limits_the_step_and_the_kinds_of_its_work_are_named() -> None:
    kernel = replace(_KERNEL, bound="unknown", reason="shapes were not recorded")
    verdict = decide(_grounds({"unknown.matmul": 70, "unknown": 26, "overhead.kernel_gap": 4}, kernel))
    assert verdict.bound == "device" and verdict.regime is None
    assert verdict.sentence.startswith("Your device is busy for 96.0 % of 100 us per step, and hardly waits. ")
    assert (
        "is not known: shapes were not recorded. 96.0 % of the step cannot be judged by FLOPs and bytes, mostly matrix "
        "products (70.0 %), unclassified work (26.0 %)" in verdict.sentence
    )


def test_busy_time_that_counts_as_overhead_is_told_where_the_device_limits_the_step() -> None:
    """A server's GPU was busy for 93.5 % beside 20.8 % of overhead: more than a whole."""
    words = "But: 14.0 % of the step is busy with kernels too small to be worth a launch (counted as overhead)."
    accounts = {"unknown.matmul": 80, "overhead.launch_floor": 14, "overhead.kernel_gap": 6}
    assert words in decide(_grounds(accounts)).sentence
    assert "But:" not in decide(_grounds({**accounts, "unknown.matmul": 92, "overhead.launch_floor": 2})).sentence


@pytest.mark.parametrize(("moving", "bound"), [(94, "memory"), (85, "device")])
def test_a_device_whose_kinds_of_work_nearly_all_move_bytes_is_bound_by_memory(moving: int, bound: str) -> None:
    """A graph network gathered, multiplied and scattered: its verdict said that nothing could be told."""
    kinds = {"unknown.lookups": moving - 30, "unknown.pointwise": 30, "unknown.matmul": 98 - moving}
    verdict = decide(_grounds({**kinds, "overhead.kernel_gap": 2}))
    assert verdict.bound == bound
    assert verdict.sentence.startswith("Memory access probably limits your device: about 94.0 %") is (bound == "memory")


def test_products_of_a_decoding_step_are_probably_bound_by_memory() -> None:
    """The headline said that nothing was known, and a section below it that memory limits the server's decoding."""
    product = replace(_KERNEL, bound="unknown", account="unknown.matmul", us=55, reason_code="graph_replay")
    other = replace(product, account="unknown.attention", us=25)
    kernels = [replace(kernel, op=None, source="replay() (runner.py:3)") for kernel in (product, other)]
    grounds = _grounds({"unknown.matmul": 55, "unknown.attention": 25, "overhead.launch_floor": 20}, *kernels)
    assert decide(grounds).bound == "device"
    verdict = decide(replace(grounds, few_rows=FewRows(32.0, 246.2)))
    assert verdict.bound == "memory" and verdict.is_guess
    assert verdict.sentence.startswith("Memory access probably limits your device: about 80.0 % of 100 us per step")
    assert (
        "A decoding step has 32 rows, and arithmetic limits products of 16-bit weights from 246 on" in verdict.sentence
    )
    # All of the graph runs at that line.
    assert "Largest: the kernel `some_kernel`" in verdict.sentence and "together" not in verdict.sentence


def test_overhead_beside_work_judged_by_its_kind_is_named_by_its_account_and_not_by_an_op() -> None:
    """It read 'Largest: aten::mul, 34.3 us (<0.1 %)' of a step with 65 ms in the allocator."""
    kernel = replace(_KERNEL, op="aten::mul", bound="overhead", us=1, share=0.01)
    kinds = {"unknown.copies": 25, "unknown.matmul": 35, "overhead.allocator": 30, "overhead.python": 10}
    verdict = decide(_grounds(kinds, kernel))
    assert verdict.bound == "mixed" and "guess from the types of ops" in verdict.sentence
    assert "Largest: allocating and freeing memory (a part of the overhead), 30.0 us (30.0 %)" in verdict.sentence


def test_what_sorts_on_a_cpu_is_not_said_to_be_arithmetic_or_memory_access() -> None:
    sort = replace(
        _KERNEL, op="aten::sort", bound="compute", regime=None, explained=None, reason_code="comparisons", us=80
    )
    product = replace(_KERNEL, op="aten::mm", bound="compute", regime="far_below_roof", explained=0.1, us=10)
    grounds = replace(_grounds({"compute": 90, "memory": 10}, sort, product), host_only=True)
    verdict = decide(grounds)
    assert verdict.bound == "compute" and verdict.regime is None
    assert verdict.sentence.startswith("Sorting limits your program: 90.0 of 100 us per step (90.0 %)")
    few = replace(grounds, kernels=(replace(sort, us=10), replace(product, us=80)))
    assert decide(few).sentence.startswith("Arithmetic takes most of your program's time")


def test_sorts_without_sizes_are_probably_comparisons_on_a_cpu_and_passes_on_a_device() -> None:
    sort = replace(_KERNEL, op="aten::sort", bound="unknown", account="unknown.sorts", us=85)
    grounds = _grounds({"unknown.sorts": 85, "overhead.python": 15}, sort)
    verdict = decide(replace(grounds, host_only=True))
    assert verdict.bound == "compute" and verdict.sentence.startswith("Sorting probably limits your program")
    assert likely_shares(grounds)["memory"] == pytest.approx(0.85)


def test_random_numbers_on_a_cpu_are_arithmetic_and_fills_are_not() -> None:
    """Dropout's masks of a trace without sizes were probably bound by memory, and of one with sizes by arithmetic."""
    drawn = replace(_KERNEL, op="aten::bernoulli_", bound="unknown", account="unknown.creation", us=60.0, share=0.6)
    grounds = replace(_grounds({"unknown.creation": 60, "overhead.python": 40}, drawn), host_only=True)
    assert decide(grounds).bound == "compute" and "Largest: aten::bernoulli_" in decide(grounds).sentence
    filled = replace(grounds, kernels=(replace(drawn, op="aten::fill_"),))
    assert decide(filled).bound == "memory" and likely_shares(replace(grounds, host_only=False))["memory"] == 0.6


def test_a_processor_is_no_device_and_is_judged_by_the_kinds_of_its_work() -> None:
    grounds = replace(_grounds({"unknown.convolution": 80, "unknown.pointwise": 20}), host_only=True)
    verdict = decide(grounds)
    assert verdict.bound == "compute" and verdict.regime is None
    assert verdict.sentence.startswith("Arithmetic probably limits your program: about 80.0 % of 100 us per step")
    assert decide(replace(_grounds({"unknown": 100}), host_only=True)).bound == "inconclusive"


@pytest.mark.parametrize(
    ("accounts", "bound"),
    [
        ({"overhead.start_up": 45, "overhead.python": 5, "compute": 50}, "compute"),
        ({"overhead.start_up": 45, "overhead.python": 30, "compute": 25}, "overhead"),
        ({"overhead.start_up": 51, "compute": 49}, "overhead"),
        ({"overhead.start_up": 40, "unknown.matmul": 57, "overhead.python": 3}, "device"),
        ({"overhead.start_up": 0.8, "compute": 99.2}, "compute"),
    ],
)
def test_start_up_that_is_paid_once_is_set_aside_unless_it_is_most(accounts: Mapping[str, float], bound: str) -> None:
    verdict = decide(_grounds(accounts))
    assert verdict.bound == bound
    assert verdict.shares["overhead"] == pytest.approx(sum(v for k, v in accounts.items() if "overhead" in k) / 100)
    assert ("is not judged" in verdict.sentence) == (1 <= accounts["overhead.start_up"] <= 50)
    assert "start-up that is paid once (" not in verdict.sentence or accounts["overhead.start_up"] > 50


def test_trace_that_cannot_be_trusted_is_inconclusive_and_says_why() -> None:
    verdict = decide(replace(_grounds({"compute": 100}), broken="half of the launches have no kernel"))
    assert verdict.bound == "inconclusive"
    assert verdict.sentence == "Inconclusive: half of the launches have no kernel."


_LOAD = "other programs used the processors while the steps ran"


@pytest.mark.parametrize(
    ("accounts", "explained", "bound"),
    [
        # Overhead stays the largest where ops need less than they took and the host half of what it took.
        ({"overhead.python": 80, "memory": 20}, 0.1, "overhead"),
        # Ops that need all of their time stay the largest.
        ({"memory": 80, "overhead.python": 20}, 0.9, "memory"),
        # Ops that need a tenth of it may be no more than waiting for a processor.
        ({"memory": 80, "overhead.python": 20}, 0.1, "inconclusive"),
        # Half of the overhead would be less than the ops.
        ({"overhead.python": 60, "memory": 40}, 0.9, "inconclusive"),
    ],
)
def test_a_bound_is_named_beside_other_programs_where_it_does_not_depend_on_what_they_took(
    accounts: Mapping[str, float], explained: float, bound: str
) -> None:
    kernel = replace(_KERNEL, us=accounts["memory"], explained=explained)
    quiet = replace(_grounds(accounts, kernel), host_only=True)
    verdict = decide(replace(quiet, disturbed=_LOAD, quick_parts={"memory": explained}))
    assert verdict.bound == bound
    assert (_LOAD in verdict.sentence) == (bound == "inconclusive")
    assert ("other programs ran meanwhile" in verdict.sentence) == (bound != "inconclusive")
    assert decide(quiet).bound != "inconclusive" and "other programs" not in decide(quiet).sentence


def test_calls_that_all_took_far_longer_than_their_floor_need_no_more_than_that(tmp_path: Path) -> None:
    def part(name: str, us: float) -> float:
        case = on_cpu(tmp_path / name, [Call("aten::mm", us, [[64, 64], [64, 64]])], steps=4)
        disturbed = with_analysis(case, caveats=(Caveat(CONTENDED, "other programs used the processors"),))
        return max(grounds_of(disturbed).quick_parts.values())

    assert part("all waited", 16_000.0) < 0.01
    assert part("as quick as they are", 50.0) == pytest.approx(1.0)


def test_what_the_program_does_is_said_before_times_that_cannot_be_trusted() -> None:
    parts = {"memory": 0.1}
    grounds = replace(_grounds({"memory": 80, "overhead.python": 20}), disturbed=_LOAD, quick_parts=parts)
    loader = replace(
        _SYNC, slug="loader-without-workers", title="The loader has no workers", advice="Set num_workers=4."
    )
    assert decide(grounds, [loader]).sentence == (
        f"Whatever the load: the loader has no workers. Inconclusive: {_LOAD}. First: set num_workers=4."
    )


@pytest.mark.parametrize(("second", "regime"), [(0.5, "near_roof"), (0.3, "below_roof"), (0.0, "far_below_roof")])
def test_regime_is_that_of_all_kernels_of_the_group_together(second: float, regime: str) -> None:
    kernels = (
        replace(_KERNEL, regime="near_roof", explained=0.9, us=30),
        replace(_KERNEL, regime="far_below_roof", explained=second, us=25),
        replace(_KERNEL, bound="compute", regime="far_below_roof", explained=0.1, us=45),
    )
    verdict = decide(_grounds({"memory": 55, "compute": 45}, *kernels))
    assert verdict.regime == regime
    # What is far from its roof takes time, and is not limited by that roof.
    takes = verdict.sentence.startswith("Memory access takes most of your device's time: 55.0 of 100 us")
    assert takes == (regime == "far_below_roof")
    assert takes != verdict.sentence.startswith("Memory access limits your device: 55.0 of 100 us")


@pytest.mark.parametrize(("floor_us", "is_known"), [(150.0, False), (105.0, True)])
def test_arithmetic_far_above_its_peak_is_near_no_roof(floor_us: float, is_known: bool) -> None:
    """Convolutions at 2.4 times the calibrated rate of products were near the roof, "at 93.2 % of the peak"."""
    row = replace(_KERNEL, bound="compute", regime="near_roof", explained=1.0, us=100, compute_us=floor_us)
    verdict = decide(_grounds({"compute": 100}, row))
    assert (verdict.regime == "near_roof") == is_known
    assert ("of the peak" in verdict.sentence) == is_known


@pytest.mark.parametrize(
    "accounts",
    [{"overhead.python": 90, "memory": 10}, {"communication": 90, "memory": 10}, {"memory": 45, "compute": 55}],
)
def test_waits_mixtures_and_groups_of_unknown_regime_have_none(accounts: Mapping[str, float]) -> None:
    assert decide(_grounds(accounts, replace(_KERNEL, regime="near_roof"))).regime is None


def test_a_largest_part_that_no_finding_answers_is_said_to_be_so_with_its_line_and_rate() -> None:
    kernel = replace(
        _KERNEL, op="aten::softmax", source="model.py:9", share=0.4, regime="far_below_roof", explained=0.31
    )
    verdict = decide(_grounds({"memory": 60.0, "compute": 40.0}, kernel))
    assert verdict.sentence == (
        "Memory access takes most of your device's time: 60.0 of 100 us per step (60.0 %), at only 31.0 % of the "
        "bandwidth. Largest: aten::softmax at model.py:9, 10.0 us (40.0 %). There is no advice for aten::softmax, "
        "which reaches 31.0 % of the bandwidth."
    )
    assert verdict.first_step is None


def test_small_ops_on_a_cpu_are_said_to_be_small_where_the_bandwidth_is_far() -> None:
    kernel = replace(_KERNEL, regime="far_below_roof", explained=0.12, calls=2000.0, bytes_low=320e6)
    grounds = _grounds({"memory": 60.0, "compute": 40.0}, kernel)
    said = decide(replace(grounds, host_only=True)).sentence
    assert "60.0 of 100 us per step (60.0 %), in small ops (160 kB each), at only 12.0 % of the bandwidth" in said
    assert "small ops" not in decide(grounds).sentence  # a GPU's launches are another matter
    large = replace(kernel, calls=2.0)
    assert "small ops" not in decide(replace(grounds, host_only=True, kernels=(large,))).sentence


def test_page_faults_are_said_to_be_why_memory_is_slow() -> None:
    kernel = replace(_KERNEL, regime="far_below_roof", explained=0.12)
    grounds = replace(_grounds({"memory": 60.0, "compute": 40.0}, kernel), host_only=True)
    said = decide(replace(grounds, faults_us=20.0)).sentence
    assert (
        "at only 12.0 % of the bandwidth. Up to 20.0 us of it is the first touch of fresh pages (page faults)." in said
    )
    assert "fresh pages" not in decide(replace(grounds, faults_us=10.0)).sentence
    near = replace(kernel, regime="near_roof", explained=0.9)
    assert "fresh pages" not in decide(replace(grounds, faults_us=20.0, kernels=(near,))).sentence


@pytest.mark.parametrize(
    ("kernel_us", "largest"), [(16.0, "waiting for data (a part of the overhead)"), (30.0, "aten::softmax")]
)
def test_the_largest_part_of_two_groups_is_named(kernel_us: float, largest: str) -> None:
    kernel = replace(_KERNEL, op="aten::softmax", us=kernel_us, bound="compute")
    verdict = decide(
        _grounds({"compute": 44.0, "overhead.input": 25.0, "overhead.python": 11.0, "memory": 20.0}, kernel)
    )
    (place,) = (clause.text for clause in verdict.clauses if clause.role == "place")
    assert verdict.bound == "mixed" and place.startswith(largest)


def test_no_rate_is_told_of_work_whose_bytes_the_trace_leaves_open() -> None:
    """A backward pass of embeddings was said to reach 1.5 % of the bandwidth, where its bytes were 0.1 to 6.6 GB."""
    kernel = replace(_KERNEL, share=0.4, regime="far_below_roof", explained=0.015, reason_code="open_bytes")
    verdict = decide(_grounds({"memory": 60.0, "compute": 40.0}, kernel))
    assert "of the bandwidth" not in verdict.sentence and "There is no advice for aten::" in verdict.sentence


def test_a_window_of_captures_waits_for_those_and_not_for_dispatching() -> None:
    accounts = {"overhead.dispatch": 90.0, "overhead.python": 5.0, "memory": 5.0}
    capturing = replace(_grounds(accounts, _KERNEL), captures=True)
    assert decide(capturing).sentence.startswith("Your device waits while its host captures a graph: 95.0 of 100 us")
    compiling = replace(_grounds({"overhead.compile": 90.0, "memory": 10.0}, _KERNEL), captures=True)
    assert "captures a graph" not in decide(compiling).sentence


def test_a_largest_part_that_a_later_finding_answers_names_its_number() -> None:
    """model.eval() stood first where convolutions took the step, with no word on them."""
    kernel = replace(_KERNEL, op="aten::convolution", us=80.0, share=0.8, bound="compute", account="compute")
    first = replace(_SYNC, slug="evaluation-mode", corrects_results=True, claims={"memory": 10.0})
    other = replace(_SYNC, slug="half-precision", claims={"kernel:0": 40.0})
    grounds = _grounds({"compute": 80, "memory": 20}, kernel)
    assert "For aten::convolution see number 2 below." in decide(grounds, (first, other)).sentence
    assert "see number" not in decide(grounds, (other, replace(first, corrects_results=False))).sentence
    assert "There is no advice for aten::convolution." in decide(grounds, (first,)).sentence


def test_advice_without_a_gain_answers_only_an_op_that_it_names() -> None:
    """Of aten::_weight_norm_interface it said "see number 2 below", which was bf16 for convolutions."""
    kernel = replace(_KERNEL, op="aten::_weight_norm_interface", us=80.0, share=0.8, bound="memory", account="memory")
    grounds = _grounds({"memory": 80, "compute": 20}, kernel)
    first = replace(_SYNC, claims={"compute": 10.0})
    asks = replace(_SYNC, slug="half-precision-not-known", predicted_gain_us=None, claims={}, code="autocast")
    other = replace(asks, evidence=("products take 20 us per step; aten::_convolution: 18 us per step",))
    assert "no advice for aten::_weight_norm_interface" in decide(grounds, (first, other)).sentence
    own = replace(asks, evidence=("aten::_weight_norm_interface: 80 us per step",))
    words = "For aten::_weight_norm_interface see number 2 below, whose gain is not known."
    assert words in decide(grounds, (first, own)).sentence


@pytest.mark.parametrize(
    ("low", "high", "why"), [(-5.0, 60.0, "which is less sure"), (2.0, 3.0, "which gains less"), (30.0, 40.0, "")]
)
def test_why_the_answer_to_the_largest_part_does_not_come_first_is_said(low: float, high: float, why: str) -> None:
    """A gain of 3 % came before "see number 3 below", and nothing said why."""
    first = replace(_SYNC, predicted_gain_us=Interval(10.0, 20.0))
    assert why_later(first, replace(_SYNC, predicted_gain_us=Interval(low, high))) == (f", {why}" if why else "")


def test_all_groups_that_are_near_the_largest_share_the_step() -> None:
    """An allocator took 27 % of a step, more than any op, beside 31 % in products and 29 % in copies."""
    product = replace(_KERNEL, op="aten::mm", us=13.0, share=0.13, bound="unknown", account="unknown.matmul")
    by_kind = {"unknown.matmul": 31.0, "unknown.copies": 29.0, "overhead.allocator": 27.0, "communication": 13.0}
    known = {"compute": 31.0, "memory": 29.0, "overhead.allocator": 27.0, "communication": 13.0}
    for accounts in (by_kind, known):
        kernel = product if accounts is by_kind else replace(product, bound="compute", account="compute")
        verdict = decide(_grounds(accounts, kernel))
        (place,) = (clause.text for clause in verdict.clauses if clause.role == "place")
        about = "about " if accounts is by_kind else ""
        shares = f"compute {about}31.0 %, memory access {about}29.0 % and overhead 27.0 % of 100 us"
        assert shares in verdict.sentence
        assert place.startswith("allocating and freeing memory (a part of the overhead), 27.0 us")


def test_overhead_that_is_the_largest_group_is_named_by_its_account_and_not_by_a_small_op() -> None:
    """Of a step of 235 ms with 37 % overhead a product of two small tensors was named, with 34 us."""
    small = replace(_KERNEL, op="aten::mul", us=0.1, share=0.001, bound="overhead", account="overhead.launch_floor")
    accounts = {"unknown.matmul": 29.0, "unknown.copies": 31.0, "overhead.allocator": 36.9, "communication": 3.1}
    verdict = decide(_grounds(accounts, small))
    (place,) = (clause.text for clause in verdict.clauses if clause.role == "place")
    assert verdict.bound == "mixed" and place.startswith(
        "allocating and freeing memory (a part of the overhead), 36.9 us"
    )


def test_unmodelled_work_that_no_finding_answers_is_told_by_its_kind_and_its_largest_op() -> None:
    product = replace(_KERNEL, op="aten::mm", us=60.0, share=0.6, bound="unknown", account="unknown.matmul")
    other = replace(product, op="aten::mul", us=65.0, share=0.65, account="unknown.pointwise")
    grounds = _grounds({"unknown.matmul": 60, "unknown.pointwise": 36, "overhead.kernel_gap": 4}, other, product)
    sentence = decide(grounds).sentence
    assert sentence.endswith("There is no advice for the matrix products (the largest: aten::mm, 60.0 %).")
    answer = replace(_SYNC, predicted_gain_us=Interval(10.0, 20.0), claims={"unknown.matmul": 20.0})
    assert "There is no advice" not in decide(grounds, [answer]).sentence


def test_a_finding_on_other_work_leaves_the_largest_part_unanswered() -> None:
    kernel = replace(_KERNEL, op="aten::softmax", us=60.0, share=0.6)
    grounds = _grounds({"memory": 60.0, "overhead.sync": 40.0}, kernel)
    other = replace(_SYNC, predicted_gain_us=Interval(10.0, 20.0), claims={"overhead.sync": 40.0})
    verdict = decide(grounds, [other])
    assert "There is no advice for aten::softmax. First: read the loss" in verdict.sentence
    for answer in ({"kernel:0": 50.0}, {"memory": 6.0}, {}):
        assert "no rule here" not in decide(grounds, [replace(other, claims=answer)]).sentence.lower()
    for little in (
        replace(other, claims={"kernel:0": 5.0}),
        replace(other, claims={"kernel:0": 50.0}, predicted_gain_us=Interval(0.1, 0.9)),
    ):
        assert "there is no advice" in decide(grounds, [little]).sentence.lower()


def test_sentence_about_a_wait_names_its_line_and_gives_it_no_share_of_others() -> None:
    first, second = IdleCause("sync", 50, 0.5, "train.py:57", 1), IdleCause("sync", 10, 0.1, "train.py:3", 1)
    shares = {"overhead.sync": 60, "compute": 40}
    sentence = decide(_grounds(shares, idle=(first, second))).sentence
    assert sentence.startswith(
        "Your device waits for the host to go on after a synchronisation: 60.0 of 100 us per step (60.0 %). "
        "Worst: train.py:57, 50.0 of 60.0 us. There is no advice"
    )
    sentence = decide(_grounds(shares, idle=(replace(first, us=60, share=0.6),))).sentence
    assert "(60.0 %). Worst: train.py:57. There is no advice for " in sentence


@pytest.mark.parametrize(
    ("engine_us", "words"), [(40.0, "train.py:57 (autograd between its ops)."), (20.0, "train.py:57.")]
)
def test_time_at_the_line_of_a_backward_pass_is_said_to_be_that_of_autograd(engine_us: float, words: str) -> None:
    engine = IdleCause("python", engine_us, engine_us / 100, "train.py:57", 1, "main > run_backward")
    own = IdleCause("python", 60 - engine_us, 0.6 - engine_us / 100, "train.py:57", 1, "main")
    sentence = decide(_grounds({"overhead.python": 60, "compute": 40}, idle=(engine, own))).sentence
    assert f"Worst: {words}" in sentence


def test_sentence_about_a_wait_without_a_known_line_names_none() -> None:
    sentence = decide(_grounds({"overhead.sync": 60, "compute": 40})).sentence
    assert "(60.0 %). There is no advice for " in sentence and "Worst" not in sentence


def test_inconclusive_sentence_names_the_largest_work_without_a_cost() -> None:
    kernel = replace(_KERNEL, op="mylib::odd", bound="unknown", reason="no formula for mylib::odd")
    sentence = decide(_grounds({"unknown": 80, "overhead.python": 20}, kernel)).sentence
    assert "most of it mylib::odd (no formula for mylib::odd)" in sentence


def test_two_sided_window_is_reported_with_its_figures() -> None:
    grounds = replace(_grounds({"overhead.python": 60, "memory": 40}), sides=TwoSided(0.57, 0.0, 0.964))
    sentence = decide(grounds).sentence
    assert (
        "For the first 57.0 % of the recording the device is idle, after that it works 96.4 % of the time" in sentence
    )


def test_long_names_are_cut() -> None:
    kernel = replace(_KERNEL, op=None, name="k" * 500)
    assert len(decide(_grounds({"memory": 100}, kernel)).sentence) < 350


@pytest.mark.parametrize("account", ACCOUNTS)
@pytest.mark.parametrize("host_only", [True, False])
def test_every_account_leads_to_a_sentence(account: str, host_only: bool) -> None:
    verdict = decide(replace(_grounds({account: 100.0}), host_only=host_only))
    assert verdict.bound == "inconclusive" or "there is no advice" in verdict.sentence.lower()
    assert "{" not in verdict.sentence


@pytest.mark.parametrize(("record_us", "is_told"), [(20.0, True), (5.0, False)])
def test_much_time_of_the_profilers_records_is_told_of_a_step_that_is_bound_by_overhead(
    record_us: float, is_told: bool
) -> None:
    accounts = {"overhead.python": 60, "compute": 40}
    words = f"the profiler's own records take {record_us:.1f} us of these 100 us or more"
    assert (words in decide(replace(_grounds(accounts), record_us=record_us)).sentence) == is_told
    compute = decide(replace(_grounds({"overhead.python": 30, "compute": 70}), record_us=record_us))
    assert "records" not in compute.sentence


@pytest.mark.parametrize(
    ("accounts", "words"),
    [
        (
            {"compute": 20, "unknown.convolution": 40, "overhead.python": 40},
            "60.0 % of 100 us per step. 40.0 of these 60.0 % are a guess ",
        ),
        (
            {"compute": 5, "unknown.convolution": 55, "overhead.python": 40},
            "100 us per step. Most of this is a guess ",
        ),
    ],
)
def test_a_guess_says_how_much_of_it_is_known(accounts: Mapping[str, float], words: str) -> None:
    verdict = decide(_grounds(accounts))
    assert verdict.is_guess and words in verdict.sentence


def test_verdict_says_when_work_without_a_cost_could_overturn_it() -> None:
    doubtful = decide(_grounds({"memory": 40, "unknown": 25, "compute": 20, "overhead.python": 15}))
    assert (
        doubtful.bound == "memory"
        and "25.0 % of the step could not be modelled, which could overturn this" in doubtful.sentence
    )
    firm = decide(_grounds({"memory": 60, "unknown": 15, "compute": 20, "overhead.python": 5}))
    assert firm.bound == "memory" and "overturn" not in firm.sentence


@pytest.mark.parametrize(
    ("accounts", "bound", "is_said"),
    [
        ({"overhead.profiler": 63, "overhead.dispatch": 22, "memory": 15}, "overhead", True),
        ({"overhead.profiler": 63, "overhead.dispatch": 5, "memory": 32}, "memory", True),
        ({"overhead.profiler": 3, "overhead.dispatch": 5, "memory": 92}, "memory", False),
        ({"overhead.profiler": 20, "overhead.dispatch": 5, "memory": 75}, "memory", True),
        ({"overhead.profiler": 90, "memory": 10}, "overhead", False),
    ],
)
def test_what_the_profiler_takes_is_not_judged(accounts: Mapping[str, float], bound: str, is_said: bool) -> None:
    verdict = decide(_grounds(accounts))
    assert verdict.bound == bound
    own = f"The profiler itself takes {accounts['overhead.profiler']:.1f} % of the recorded time and is not judged"
    assert (own in verdict.sentence) == is_said
    assert "the profiler itself (" not in verdict.sentence or accounts["overhead.profiler"] == 90


def test_doubt_is_judged_without_start_up_as_the_bound_is() -> None:
    # Without start-up 50 % are memory, 25 % compute and 25 % unmodelled; with it overhead would hide that.
    accounts = {"memory": 40.0, "compute": 20.0, "unknown": 20.0, "overhead.start_up": 20.0}
    assert "could overturn this" in decide(_grounds(accounts)).sentence
    # Overhead leads by 25 points; with start-up it would seem to lead by 40.
    accounts = {"memory": 15.0, "overhead.python": 35.0, "unknown": 30.0, "overhead.start_up": 20.0}
    assert "could overturn this" in decide(_grounds(accounts)).sentence


def test_shares_of_the_sentence_are_those_of_the_table() -> None:
    accounts = {"compute": 785.5, "memory": 107.3, "overhead.python": 107.2}
    grounds = _grounds(accounts)
    tenths = share_tenths(grounds.ledger.entries)
    assert sum(tenths.values()) == 1000
    (compute,) = [entry for entry in tenths if entry.group == "compute"]
    shown = describe_share(tenths, [compute])
    assert f"limits your device: 786 us of 1.00 ms per step ({shown})" in decide(grounds).sentence


def test_what_is_set_aside_and_too_little_to_show_changes_no_share() -> None:
    """A picture said 58.6 % of the step, its table 58.7 %, for 0.04 % of the profiler's own."""
    accounts = {"overhead.python": 586.6, "memory": 413.0, "overhead.profiler": 0.4}
    assert decide(_grounds(accounts)).share_words == "58.7 %"
    accounts = {"overhead.python": 486.6, "memory": 313.0, "overhead.profiler": 200.4}
    assert decide(_grounds(accounts)).share_words == "60.9 %"


def test_sentence_adds_up_the_shapes_of_one_op_before_it_names_the_largest() -> None:
    shapes = [replace(_KERNEL, op="aten::mul", shapes=f"[[{size}]]", us=20, share=0.2) for size in (1, 2, 3)]
    single = replace(_KERNEL, op="aten::add", us=35, share=0.35)
    assert "Largest: aten::mul, 60.0 us (60.0 %)" in decide(_grounds({"memory": 100}, *shapes, single)).sentence


@pytest.mark.parametrize(
    ("us", "accounts", "words"),
    [
        (
            45.0,
            {"memory": 55, "unknown.pointwise": 45},
            "Largest: aten::mul, 10.0 us (10.0 %). Besides: aten::sqrt, 45.0 us (45.0 %); its bound is not known.",
        ),
        (
            30.0,
            {"memory": 45, "unknown": 30, "compute": 25},
            "Largest: aten::mul, 10.0 us (10.0 %). But: 30.0 % of the step could not be modelled (aten::sqrt: 30.0 %)",
        ),
        (5.0, {"memory": 95, "unknown.pointwise": 5}, "Largest: aten::mul, 10.0 us (10.0 %). There is no advice"),
    ],
    ids=["longer", "so long that it is a doubt", "shorter"],
)
def test_sentence_names_an_op_of_unknown_bound_beside_the_largest_of_the_bound(
    us: float, accounts: dict[str, float], words: str
) -> None:
    root = replace(_KERNEL, op="aten::sqrt", us=us, share=us / 100, bound="unknown")
    sentence = decide(_grounds(accounts, _KERNEL, root)).sentence
    assert "Memory access" in sentence and words in sentence


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ({"Decoder > Linear": 20.0, "Head": 60.0}, ", 60.0 us of it in Head"),
        ({"Decoder > Linear": 38.0, "Head": 35.0, "": 7.0}, ""),
        ({"Head": 80.0}, ""),
        ({"": 60.0, "Head": 20.0}, ""),
    ],
    ids=["one has most", "none has most", "a single one", "most is outside"],
)
def test_the_module_with_most_of_the_largest_op_is_named_beside_its_line(modules: dict[str, float], words: str) -> None:
    product = replace(_KERNEL, op="aten::addmm", source="a.py:7", us=80.0, share=0.8)
    grounds = replace(_grounds({"memory": 100}, product), row_modules={0: modules})
    assert f"Largest: aten::addmm at a.py:7, 80.0 us (80.0 %){words}." in decide(grounds).sentence


def test_the_time_of_a_module_is_that_of_the_calls_that_are_told() -> None:
    """It read "aten::mm, 11.1 ms (30.1 %), 18.0 ms of it in GCN > GCNLayer": thin products were told apart."""
    product = replace(
        _KERNEL, op="aten::mm", source="a.py:7", bound="unknown", account="unknown.matmul", us=45.0, share=0.45
    )
    thin = replace(product, us=40.0, share=0.4, flops=1e6, bytes_low=1e6)
    other = replace(product, op="aten::bmm", us=5.0, share=0.05)
    modules = {0: {"GCN > Layer": 30.0, "Head": 15.0}, 1: {"GCN > Layer": 40.0}}
    accounts = {"unknown.matmul": 90, "overhead.python": 10}
    grounds = replace(_grounds(accounts, product, thin, other), row_modules=modules, host_only=True)
    said = decide(grounds).sentence
    assert "Largest: aten::mm at a.py:7, 45.0 us (45.0 %), 30.0 us of it in GCN > Layer." in said


def test_modules_of_an_op_are_told_by_their_class_and_the_one_around(tmp_path: Path) -> None:
    events = [frame("train.py(12): train", 0, 1000), step(0, 0, 999)]
    for at, modules in ((10.0, ("Model_0", "Layer_3", "Linear_7")), (510.0, ("Head_0",))):
        events += [frame(f"nn.Module: {name}", at, 400.0 - depth) for depth, name in enumerate(modules)]
        events.append(op("aten::addmm", at + 5, 300, dims=None))
    rows = grounds_of(case_of(tmp_path, events)).row_modules.values()
    assert {name for modules in rows for name in modules} == {"Layer > Linear", "Head"}


_ACCOUNTS = {"overhead.sync": 600.0, "compute": 400.0}
_SYNC = Finding(
    "item-sync",
    "A sync",
    (),
    Interval(200.0, 400.0),
    Interval(1.25, 1.667),
    "Read the loss every 100 steps.",
    None,
)


_GROUNDS = Grounds(ledger_of(_ACCOUNTS, 1000.0), (), ())


def _verdict(*findings: Finding, grounds: Grounds = _GROUNDS) -> Verdict:
    return decide(grounds, findings)


def test_the_first_finding_is_the_first_thing_to_do() -> None:
    verdict = _verdict(_SYNC, replace(_SYNC, advice="Something else."))
    assert verdict.sentence == (
        "Your device waits for the host to go on after a synchronisation: 600 us of 1.00 ms per step (60.0 %). "
        "First: read the loss every 100 steps (predicted: 1.25 to 1.67 times as fast)."
    )
    assert verdict.sentence.endswith(f"First: {verdict.first_step}.")


def test_the_first_finding_is_the_first_thing_to_do_however_little_it_gains() -> None:
    silent = replace(_SYNC, predicted_gain_us=None, predicted_speedup=None)
    assert _verdict(silent).first_step == "read the loss every 100 steps"
    open_gain = replace(silent, gain_reason="not predicted: only a trial shows it")
    assert _verdict(open_gain).first_step == "read the loss every 100 steps (not predicted: only a trial shows it)"
    assert "(" not in (_verdict(replace(open_gain, slug="record-anew")).first_step or "(")
    assert "(" not in (_verdict(replace(open_gain, confidence="high")).first_step or "(")
    little = replace(_SYNC, predicted_gain_us=Interval(0.0, 30.0), predicted_speedup=Interval(1.0, 1.03))
    assert _verdict(little).first_step == "read the loss every 100 steps (predicted: up to 1.03 times as fast)"
    assert _verdict(replace(silent, on_request=True)).first_step is None


def test_a_gain_within_the_noise_comes_after_one_that_shows_but_before_none() -> None:
    noisy = replace(_SYNC, advice="Pin the memory.", within_noise=True)
    assert "pin the memory (predicted: 1.25 to 1.67 times as fast; single steps differ" in _verdict(noisy).sentence
    assert "read the loss" in _verdict(noisy, _SYNC).sentence


def test_advice_that_makes_results_right_needs_no_gain() -> None:
    wrong = replace(_SYNC, advice="Call eval.", predicted_gain_us=None, predicted_speedup=None, corrects_results=True)
    assert _verdict(wrong, _SYNC).first_step == "call eval"


def test_a_file_that_was_cut_off_is_said_first() -> None:
    verdict = _verdict(_SYNC, grounds=replace(_GROUNDS, cut_off="the file ends inside an event"))
    assert verdict.sentence.startswith(
        "The file was cut off, so this judges only a part: the file ends inside an event."
    )


def test_the_sentence_on_a_straggler_stands_first_whatever_it_says() -> None:
    verdict = _verdict(_SYNC, grounds=replace(_GROUNDS, straggler=(Clause("late_rank", "Rank 2 is late. First: no"),)))
    assert verdict.sentence.startswith("Rank 2 is late. First: no. Your device waits")
    assert verdict.sentence.count("First:") == 2


def test_the_line_of_a_late_rank_is_named_once() -> None:
    late = (
        Clause("late_rank", "Rank 1 is late"),
        Clause("late_cause", "it spends 600 us at ddp.py:45", label="Why"),
    )
    waits = (IdleCause("sync", 600.0, 0.6, "ddp.py:45", 1),)

    def places(late_line: str) -> list[str]:
        grounds = replace(_GROUNDS, idle=waits, straggler=late, late_line=late_line)
        return [clause.text for clause in _verdict(_SYNC, grounds=grounds).clauses if clause.role == "place"]

    assert places("ddp.py:45") == [] and places("ddp.py:7") == ["ddp.py:45"]


def test_advice_for_right_results_promises_no_gain_that_may_be_a_loss() -> None:
    right = replace(_SYNC, slug="evaluation-mode", advice="Call model.eval().", corrects_results=True)
    maybe = replace(right, predicted_gain_us=Interval(-100.0, 100.0), predicted_speedup=Interval(0.91, 1.1))
    assert _verdict(maybe).sentence.endswith("First: call model.eval().")
    assert _verdict(right).sentence.endswith("First: call model.eval() (predicted: 1.25 to 1.67 times as fast).")


def test_next_to_no_unmodelled_work_raises_no_doubt() -> None:
    def doubts(unknown: float) -> bool:
        even = _grounds({"compute": 50.0 - unknown, "memory": 50.0 - unknown, "unknown": 2 * unknown})
        return "could overturn" in _verdict(grounds=even).sentence

    assert doubts(3.0) and not doubts(0.3)


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ("first touch of fresh pages", "the first touch of fresh pages of memory (page faults)"),
        ("aten::empty", "allocating and freeing memory"),
    ],
)
def test_an_account_of_memory_that_is_page_faults_says_so(detail: str, words: str) -> None:
    row = IdleCause(cause="allocator", us=50.0, share=0.5, source=None, calls=0.0, detail=detail, on_pages=True)
    grounds = replace(_grounds({"overhead.allocator": 60.0, "memory": 40.0}), host_only=True, idle=(row,))
    assert f"of your step is {words}" in decide(grounds).sentence
