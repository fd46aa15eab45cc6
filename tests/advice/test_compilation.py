"""Rules on compilation: compiling in the step, graph breaks, where it does not pay, other backends."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bottleneck.advice.compilation import (
    compile_break_even,
    compile_does_not_pay,
    compiling_in_step,
    graph_breaks,
    join_compiled,
    other_backends,
    whole_gain_us,
)
from bottleneck.advice.dispatch import compile_gain_us
from bottleneck.advice.fusion import unfused_chain
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.compile_health import BreakHealth, CompileHealth, Recompile
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import PageFaults
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, cpu_events, gpu_events, idle_row, with_analysis, with_ledger
from tests.advice.programs import Call, on_cpu
from tests.analysis.frames import CPU
from tests.builders import op

PRODUCTS = {"name": "aten::mm", "dims": [[8, 8], [8, 8]]}


def test_compiling_in_later_steps_is_worth_half_to_all_of_it(tmp_path: Path) -> None:
    row = idle_row("compile", 300.0, detail="torch/_dynamo/convert_frame.py: _compile")
    case = with_ledger(case_of(tmp_path, cpu_events(4, 5, 9)), {"memory": 700.0, "overhead.compile": 300.0}, [row])
    draft = compiling_in_step(case)
    assert draft is not None and draft.gain_us is not None
    assert (draft.gain_us.low, draft.gain_us.high) == (150.0, 300.0)
    assert "train.py:12" in draft.evidence[1]


def test_compiling_in_the_only_step_may_be_over_with_it(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(4, 5, 9, steps=1))
    draft = compiling_in_step(with_ledger(case, {"memory": 700.0, "overhead.compile": 300.0}))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.low == 0


def test_a_step_that_compiles_nothing_is_not_reported_of_it(tmp_path: Path) -> None:
    assert compiling_in_step(case_of(tmp_path, cpu_events(4, 5, 9))) is None


def regions(frames: int) -> list[dict[str, object]]:
    """One step that enters so many compiled regions, with Python in between."""
    plain = cpu_events(frames, 20, 60, steps=1, name="aten::mul")
    return [*plain, *(op(f"Torch-Compiled Region: {at}/0", 1 + 60.0 * at, 40) for at in range(frames))]


def test_each_break_costs_a_call_of_compiled_code_but_no_more_than_there_is(tmp_path: Path) -> None:
    case = case_of(tmp_path, regions(6))
    draft = graph_breaks(case)
    assert draft is not None and draft.gain_us is not None
    assert 0 < draft.gain_us.low <= draft.gain_us.high <= case.step_us
    assert draft.evidence[0] == "6 compiled regions are entered 6 times per step"


def priced(case: Evidence, *prices: tuple[float, float], **others: Any) -> Evidence:
    """The case with breaks of these prices, each at a line of its own, the causes in turns."""
    breaks = tuple(
        BreakHealth(("print", "value")[at % 2], f"net.py:{at + 1}", "", price_us=price, price_reason=None)
        for at, price in enumerate(prices)
    )
    return with_analysis(case, compile_health=CompileHealth((), breaks, **others))


def test_breaks_with_prices_are_named_the_dearest_first_and_gain_what_they_cost(tmp_path: Path) -> None:
    case = with_ledger(case_of(tmp_path, cpu_events(4, 5, 9)), {"memory": 500.0, "overhead.dispatch": 500.0})
    draft = graph_breaks(priced(case, (10.0, 20.0), (30.0, 50.0)))
    assert draft is not None and draft.gain_us == Interval(40.0, 70.0)
    assert draft.evidence == (
        "it reads a tensor's value on the host at net.py:2: 30.0 to 50.0 us per step",
        "it prints at net.py:1: 10.0 to 20.0 us per step",
    )
    assert draft.advice.startswith(
        "Move .item() out of the compiled function, or keep the value as a tensor at net.py:2"
    )
    assert draft.code is not None and draft.code.startswith("total += loss.detach()")


def test_breaks_gain_no_more_than_the_host_takes_and_small_ones_are_silent(tmp_path: Path) -> None:
    case = with_ledger(case_of(tmp_path, cpu_events(4, 5, 9)), {"memory": 900.0, "overhead.dispatch": 100.0})
    draft = graph_breaks(priced(case, (150.0, 200.0)))
    assert draft is not None and draft.gain_us == Interval(100.0, 100.0)
    assert graph_breaks(priced(case, (1.0, 2.0))) is None


def test_many_breaks_are_told_by_their_number(tmp_path: Path) -> None:
    case = with_ledger(case_of(tmp_path, cpu_events(4, 5, 9)), {"memory": 500.0, "overhead.dispatch": 500.0})
    draft = graph_breaks(priced(case, *((5.0, 10.0 + at) for at in range(7))))
    assert draft is not None and len(draft.evidence) == 5 and draft.evidence[-1] == "and 3 more lines"


def test_compiling_in_the_step_names_the_guard_that_failed_with_code(tmp_path: Path) -> None:
    case = with_ledger(case_of(tmp_path, cpu_events(4, 5, 9)), {"memory": 700.0, "overhead.compile": 300.0})
    again = Recompile("0/1", "forward", "net.py:10", "size", "…", "8", "9", "ids", 1, "0/0", 2.5)
    draft = compiling_in_step(priced(case, recompiles=(again,)))
    assert draft is not None
    assert draft.evidence[-1] == "compiled again at net.py:10: size 1 of ids: 8, then 9 (2.50 s)"
    assert draft.code == "torch._dynamo.mark_dynamic(ids, 1)"


def test_one_region_is_whole_however_often_it_is_entered(tmp_path: Path) -> None:
    again = [*cpu_events(6, 20, 60, steps=1), *(op("Torch-Compiled Region: 0/0", 1 + 60.0 * at, 40) for at in range(6))]
    assert graph_breaks(case_of(tmp_path / "one", again)) is None
    assert graph_breaks(case_of(tmp_path / "none", cpu_events(6, 20, 60))) is None


def few_products(folder: Path) -> Evidence:
    return case_of(folder, cpu_events(10, 3, 12, **PRODUCTS), unprofiled_us=100.0)


def test_where_compiled_code_costs_what_it_saves_that_is_said(tmp_path: Path) -> None:
    draft = compile_does_not_pay(few_products(tmp_path))
    assert draft is not None and draft.gain_us is None and draft.gain_reason
    assert "costs" in draft.evidence[1]


def test_where_compiling_pays_or_hardly_matters_nothing_is_said_against_it(tmp_path: Path) -> None:
    many = case_of(tmp_path / "many", cpu_events(300, 2, 6), unprofiled_us=1500.0)
    assert compile_does_not_pay(many) is None
    busy = with_ledger(few_products(tmp_path / "busy"), {"compute": 900.0, "overhead.python": 50.0})
    assert compile_does_not_pay(busy) is None
    assert compile_does_not_pay(case_of(tmp_path / "gpu", gpu_events(12, 3, 20))) is None


def seen(case: Evidence, steps: int) -> Evidence:
    return with_analysis(case, steps=replace(case.analysis.steps, seen=steps))


def test_a_run_too_short_to_pay_for_compiling_is_told_how_long_it_would_have_to_be(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(300, 2, 6), unprofiled_us=1500.0)
    draft = compile_break_even(seen(case, 100))
    assert draft is not None and draft.gain_us is None
    assert "100 steps seen" in draft.evidence[0]


def test_a_long_run_and_one_of_unknown_length_are_left_to_the_finding_itself(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(300, 2, 6), unprofiled_us=1500.0)
    assert compile_break_even(seen(case, 1_000_000)) is None
    assert compile_break_even(case) is None
    assert compile_break_even(seen(few_products(tmp_path / "few"), 100)) is None


def square(us: float) -> list[Call]:
    return [Call("aten::mm", us, [[1000, 1000], [1000, 1000]])]


def test_eager_inference_in_products_is_worth_comparing_compilers(tmp_path: Path) -> None:
    draft = other_backends(on_cpu(tmp_path, square(22_000)))
    assert draft is not None
    assert draft.gain_us is None
    assert "backend-openvino" in draft.tries
    assert "torchscript" in draft.tries


@pytest.mark.parametrize(
    "extra",
    [
        Call("autograd::engine::evaluate_function: MmBackward0", 10, []),
        Call("Torch-Compiled Region: 0/0", 10, []),
        Call("aten::mul_", 300_000, [[25_000_000], []]),
    ],
    ids=["training", "compiled", "hardly any products"],
)
def test_no_other_compilers_for(tmp_path: Path, extra: Call) -> None:
    assert other_backends(on_cpu(tmp_path, [*square(22_000), extra])) is None


N = 25_000_000  # 100 MB of fp32
CHAIN = [Call("aten::mul_", 20_000, [[N], []])] * 4


def test_findings_that_one_compilation_answers_are_one_with_the_gain_of_it_all(tmp_path: Path) -> None:
    case = on_cpu(tmp_path, CHAIN)
    chain, whole = unfused_chain(case), whole_gain_us(case)
    assert chain is not None and whole is not None
    other = replace(chain, slug="host-overhead", title="Python takes time", gain_us=Interval(1.0, 2.0))
    apart = replace(chain, slug="vocabulary-loss")
    joined = join_compiled(case, [other, chain, apart])
    assert [draft.slug for draft in joined] == ["unfused-chain", "vocabulary-loss"]
    assert joined[0].gain_us == whole
    assert joined[0].evidence[-1] == "the same change answers that python takes time"


def draft_of(slug: str, gain_us: Interval | None, tries: tuple[str, ...]) -> Draft:
    return Draft(slug, slug, (), "", gain_us, tries=tries)


def test_compiling_the_whole_step_is_another_way_to_what_the_model_gains(tmp_path: Path) -> None:
    case = on_cpu(tmp_path, CHAIN)
    chain = unfused_chain(case)
    assert chain is not None
    fused = draft_of("unfused-optimizer", Interval(10_000.0, 20_000.0), ("fused-optimizer",))
    tries = [draft.tries for draft in join_compiled(case, [chain, fused])]
    assert tries == [("compile", "compile-step"), ("fused-optimizer", "compile-step")]


def test_compiling_the_whole_step_is_no_way_where_the_model_in_it_loses_more(tmp_path: Path) -> None:
    case = few_products(tmp_path)
    whole = whole_gain_us(case)
    assert whole is not None and whole.low < 0
    words = draft_of("compile-does-not-pay", None, ("compile", "compile-step"))
    little = draft_of("unfused-optimizer", Interval(0.0, 1.0), ("fused-optimizer",))
    assert [draft.tries for draft in join_compiled(case, [words, little])] == [words.tries, little.tries]
    much = replace(little, gain_us=Interval(-whole.low + 0.4 * case.step_us, -whole.low + 0.5 * case.step_us))
    tries = [draft.tries for draft in join_compiled(case, [words, much])]
    assert tries == [("compile",), ("fused-optimizer", "compile-step")]


@pytest.mark.parametrize(("layout_us", "low"), [(Interval(100.0, 200.0), 0.0), (Interval(-300.0, 200.0), -300.0)])
def test_compiling_gains_nothing_by_a_layout_that_can_be_had_alone(
    tmp_path: Path, layout_us: Interval, low: float
) -> None:
    case = on_cpu(tmp_path, CHAIN)
    chain, whole = unfused_chain(case), whole_gain_us(case)
    assert chain is not None and whole is not None
    layout = draft_of("channels-first", layout_us, ("channels-last",))
    gain = join_compiled(case, [layout, chain])[1].gain_us
    assert gain == Interval(whole.low + low, whole.high)


def test_compiling_gains_no_more_than_timed_pieces_of_its_chains_saved(tmp_path: Path) -> None:
    case = on_cpu(tmp_path, CHAIN)
    chain, calls, whole = unfused_chain(case), compile_gain_us(case), whole_gain_us(case)
    assert chain is not None and calls is not None and whole is not None
    timed = replace(chain, gain_us=Interval(4000.0, 9000.0), basis="timed")
    gain = join_compiled(case, [timed])[0].gain_us
    assert gain is not None and gain.high < whole.high
    assert gain.high == pytest.approx(calls.high + 9000.0)
    # A piece that hardly saves anything leaves no reason to compile.
    slow = replace(chain, gain_us=Interval(1.0, 2.0), basis="timed")
    assert join_compiled(case, [slow]) == []


def memory_of(count: int, each_bytes: int) -> pd.DataFrame:
    """Allocations of so many blocks by the host, one each 10 us."""
    known = {"ts_us": 10.0 * np.arange(1, count + 1), "bytes": np.full(count, each_bytes), "on_device": False}
    return pd.DataFrame(known)


def test_a_fused_loop_takes_no_new_pages_for_results_between_its_ops(tmp_path: Path) -> None:
    count, rate = 4, 4e9
    chain = [Call("aten::mul", 20_000, [[N], []])] * count
    device = replace(CPU, fresh_bytes_per_s=rate)

    def gain_of(name: str, faults: PageFaults | None) -> Interval:
        case = on_cpu(tmp_path / name, chain, steps=1, device=device, page_faults=faults)
        trace = replace(case.linked.trace, memory=memory_of(count, 4 * N))
        found = whole_gain_us(replace(case, linked=replace(case.linked, trace=trace)))
        assert found is not None
        return found

    pages_us = 2048 * 4096 / rate * 1e6
    plain, touched, seen = (
        gain_of(name, faults)
        for name, faults in (
            ("plain", None),
            ("touched", PageFaults(4096, profiled=0.0, unprofiled=2048.0)),
            ("seen", PageFaults(4096, profiled=2048.0, unprofiled=2048.0)),
        )
    )
    assert touched.high - plain.high == pytest.approx(0.75 * pages_us)  # three of four results lie between ops
    assert touched.low - plain.low == pytest.approx(0.75 * pages_us / 2)
    assert seen == plain


@pytest.mark.parametrize(("columns", "least", "most"), [(2048, 0.7, 8.0), (128, 0.0, 2.0), (64, 0.0, 0.0)])
def test_a_product_of_a_transposed_matrix_with_a_vector_gets_slower_by_compiling(
    tmp_path: Path, columns: int, least: float, most: float
) -> None:
    def gain_of(name: str, strides: list[int]) -> Interval:
        dims = [[columns], [columns, 8192], [8192]]
        call = Call("aten::addmv_", 5000, dims, more={"strides": [[1], strides, [1]]})
        gain = whole_gain_us(on_cpu(tmp_path / name, [*CHAIN, call]))
        assert gain is not None
        return gain

    by_rows, by_columns = gain_of("rows", [8192, 1]), gain_of("columns", [1, columns])
    costs = (by_rows.low - by_columns.low, by_rows.high - by_columns.high)
    assert costs == pytest.approx((most * 5000, least * 5000), rel=1e-4)


def test_picking_rows_by_index_may_become_a_loop_of_its_bytes(tmp_path: Path) -> None:
    more = {"types": ["float", "Scalar", "long int"], "concrete": ["", "0", ""]}
    pick = Call("aten::index_select", 3000, [[2000, 64], [], [16_000]], more=more)
    backward = Call("autograd::engine::evaluate_function: IndexBackward0", 10, [])
    plain, picking = (
        whole_gain_us(on_cpu(tmp_path / name, calls)) for name, calls in (("plain", CHAIN), ("picks", [*CHAIN, pick]))
    )
    assert plain is not None and picking is not None
    assert picking.low == pytest.approx(plain.low, rel=0.01)
    assert plain.high + 2000 < picking.high < plain.high + 3100
    held = whole_gain_us(on_cpu(tmp_path / "held", [*CHAIN, replace(pick, inside=backward.name)]))
    assert held is not None and held.high < plain.high + 100


def test_compiling_that_does_not_pay_as_a_whole_is_not_advised_for_a_part(tmp_path: Path) -> None:
    case = on_cpu(tmp_path, [*CHAIN[:2], *[Call("aten::bernoulli_", 20_000, [[N], []])] * 2])
    chain = unfused_chain(on_cpu(tmp_path / "chain", CHAIN))
    assert chain is not None
    assert join_compiled(case, [chain]) == []


def test_findings_of_a_device_stay_apart(tmp_path: Path) -> None:
    case = case_of(tmp_path / "gpu", gpu_events(12, 3, 20))
    chain = unfused_chain(on_cpu(tmp_path, CHAIN))
    assert chain is not None
    assert join_compiled(case, [chain]) == [chain]
