"""Prices of graph breaks by the regions of a trace, counted by hand."""

from pathlib import Path

import pytest

from bottleneck.analysis.compile_regions import price_compile
from bottleneck.schema.compile_health import BreakHealth, CompileHealth, CudagraphSkip, GraphHealth
from bottleneck.schema.linked_trace import Linked
from tests.advice.cases import case_of
from tests.builders import complete, op, step

CALL = "## Call CompiledFxGraph fabc ##"


def annotation(name: str, ts: float, dur: float) -> dict[str, object]:
    return complete(name, "user_annotation", ts, dur)


def broken_step(at: float = 0.0) -> list[dict[str, object]]:
    """One step of 100 us: two graphs with an op between them, the second behind a lookup of 5 us."""
    return [
        op("TorchDynamo Cache Lookup", at + 1, 4),
        op("Torch-Compiled Region: 0/0", at + 10, 80),
        annotation(CALL, at + 15, 20),
        op("aten::mul", at + 20, 10),
        op("aten::item", at + 40, 6),
        op("TorchDynamo Cache Lookup", at + 50, 5),
        op("Torch-Compiled Region: 1/0", at + 60, 25),
        annotation(CALL, at + 70, 10),
        op("aten::add", at + 72, 5),
    ]


def linked(folder: Path, *events: dict[str, object], steps: int = 1) -> Linked:
    marks = [step(number, 100.0 * number, 100.0) for number in range(steps)]
    return case_of(folder, [*marks, *events]).linked


HEALTH = CompileHealth(
    graphs=(GraphHealth("0/0", "forward", "net.py:10", ops=3), GraphHealth("1/0", "forward", "net.py:14", ops=2)),
    breaks=(BreakHealth("value", "net.py:14", "Tensor.item", 1, ("0/0",)),),
)


def test_a_break_costs_the_time_from_the_end_of_a_graph_to_the_start_of_the_next(tmp_path: Path) -> None:
    priced = price_compile(HEALTH, linked(tmp_path, *broken_step()), 1, 1.0)
    assert priced is not None
    (one,) = priced.breaks
    assert one.price_us == (35.0 - 6.0, 35.0) and one.price_reason is None
    assert (one.eager_ops, one.eager_calls) == (("aten::item",), 1.0)


def test_calls_guards_and_kernels_are_per_step_and_go_to_the_innermost_graph(tmp_path: Path) -> None:
    events = [*broken_step(), *broken_step(100.0)]
    priced = price_compile(HEALTH, linked(tmp_path, *events, steps=2), 2, 0.5)
    assert priced is not None
    first, second = priced.graphs
    assert (first.calls, first.guards_us, second.calls, second.guards_us) == (1.0, 2.0, 1.0, 2.5)
    assert second.kernels == 1.0
    assert priced.breaks[0].price_us == (14.5, 17.5)


def test_the_entry_of_one_more_backward_pass_is_in_the_higher_price(tmp_path: Path) -> None:
    backward = [op("CompiledFunctionBackward", 91, 8), annotation(CALL, 93, 5)]
    priced = price_compile(HEALTH, linked(tmp_path, *broken_step(), *backward), 1, 1.0)
    assert priced is not None
    assert priced.breaks[0].price_us == (29.0, 38.0)


def test_what_autograd_does_around_a_graph_is_part_of_the_gap(tmp_path: Path) -> None:
    """Each graph has a function of autograd around it: one less where the break is gone."""
    around = [op("CompiledFunction", 12, 26), op("CompiledFunction", 65, 17)]
    priced = price_compile(HEALTH, linked(tmp_path, *broken_step(), *around), 1, 1.0)
    assert priced is not None and priced.breaks[0].price_us == (29.0, 35.0)
    unmarked = [event for event in broken_step() if event["name"] != CALL]
    priced = price_compile(HEALTH, linked(tmp_path / "unmarked", *unmarked, *around), 1, 1.0)
    assert priced is not None and priced.breaks[0].price_us == (21.0, 27.0)


def test_all_gaps_of_a_function_that_lie_behind_one_break_are_its_price(tmp_path: Path) -> None:
    """A function without a graph calls another, and goes on behind it: two gaps of one line."""
    events = [
        op("Torch-Compiled Region: 0/0", 10, 80),
        op("Torch-Compiled Region: 1/0", 20, 20),
        annotation(CALL, 25, 10),
        op("Torch-Compiled Region: 2/0", 50, 30),
        annotation(CALL, 60, 10),
    ]
    health = CompileHealth(graphs=(), breaks=(BreakHealth("print", "net.py:5", "", 1, ("0/0",)),))
    priced = price_compile(health, linked(tmp_path, *events), 1, 1.0)
    assert priced is not None
    assert priced.breaks[0].price_us == (15.0 + 20.0, 35.0)


def test_a_break_that_no_step_meets_costs_no_step_anything(tmp_path: Path) -> None:
    other = BreakHealth("print", "net.py:30", "", 1, ("7/0",))
    priced = price_compile(CompileHealth((), (other,)), linked(tmp_path, *broken_step()), 1, 1.0)
    assert priced is not None
    assert (priced.breaks[0].price_us, priced.breaks[0].price_reason) == (None, "not-entered")


def test_without_marks_of_graphs_a_price_is_not_known(tmp_path: Path) -> None:
    events = [event for event in broken_step() if event["name"] != CALL]
    priced = price_compile(HEALTH, linked(tmp_path, *events), 1, 1.0)
    assert priced is not None
    assert (priced.breaks[0].price_us, priced.breaks[0].price_reason) == (None, "no-calls")


def test_a_bare_trace_tells_the_graphs_that_ran(tmp_path: Path) -> None:
    priced = price_compile(None, linked(tmp_path, *broken_step()), 1, 1.0)
    assert priced is not None
    assert [(one.compile_id, one.calls, one.ops) for one in priced.graphs] == [("0/0", 1.0, None), ("1/0", 1.0, None)]


def test_a_step_without_compiled_code_has_no_record(tmp_path: Path) -> None:
    assert price_compile(None, linked(tmp_path, op("aten::mul", 10, 5)), 1, 1.0) is None


@pytest.mark.parametrize("cause", ["mutation", "cpu"])
def test_a_skip_has_no_price_where_there_is_no_device(tmp_path: Path, cause: str) -> None:
    skipped = CompileHealth((GraphHealth("0/0", "forward", None),), skips=(CudagraphSkip(cause, "net.py:3", ""),))
    priced = price_compile(skipped, linked(tmp_path, *broken_step()), 1, 1.0)
    assert priced is not None
    assert (priced.skips[0].price_us, priced.skips[0].price_reason) == (None, "no-device")


def test_the_parts_of_prices_are_never_more_than_the_step(tmp_path: Path) -> None:
    breaks = (HEALTH.breaks[0], BreakHealth("print", "net.py:20", "", 1, ("1/0",)))
    priced = price_compile(CompileHealth(HEALTH.graphs, breaks), linked(tmp_path, *broken_step()), 1, 1.0)
    assert priced is not None
    assert sum(one.price_us[1] for one in priced.breaks if one.price_us) <= 100.0
