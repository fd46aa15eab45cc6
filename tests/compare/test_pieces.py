"""The work of a side: it partitions the busy accounts, from a case as from its analysis, whatever a file says."""

import json
import math
from pathlib import Path

import pytest

from bottleneck.compare.build import compare
from bottleneck.compare.pieces import BUSY_ACCOUNTS, UNLISTED, busy_us, find_work
from bottleneck.compare.sides import ComparedSide
from bottleneck.report.json_text import from_json, to_json
from bottleneck.schema.analysis import LedgerEntry
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.records import replace
from tests.compare.sides import side, work
from tests.trace_cache import explained

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture(scope="module", params=["mlp", "train_script"])
def case(request: pytest.FixtureRequest) -> Evidence:
    return explained(SAMPLES / request.param)


def test_what_kernels_are_charged_adds_up_to_the_accounts_of_the_ledger(case: Evidence) -> None:
    assert case.kernel_time is not None and len(case.kernel_time) == len(case.linked.kernels)
    charged = case.kernel_time.groupby("account", observed=False)["us"].sum()
    for entry in case.analysis.ledger:
        if entry.account in BUSY_ACCOUNTS:
            assert charged[entry.account] == pytest.approx(entry.us)


def test_a_case_and_its_analysis_tell_the_same_work(case: Evidence) -> None:
    whole, folded = ComparedSide("case", "", case=case), ComparedSide("analysis", "", saved=case.analysis)
    pieces = {name: find_work(one) for name, one in (("case", whole), ("analysis", folded))}
    busy = math.fsum(busy_us(whole))
    assert all(math.fsum(piece.us for piece in found) == pytest.approx(busy, rel=1e-9) for found in pieces.values())
    ops = [{piece.op for piece in found} for found in pieces.values()]
    assert ops[0] == ops[1]
    comparison = compare(whole, folded)
    assert comparison.change_us == 0 and comparison.conditions == ()
    assert {row.kind for row in comparison.rows} == {"same"}
    assert any("kernels are counted on both sides" in note for note in comparison.notes)


def test_a_case_is_the_same_as_itself_row_by_row(case: Evidence) -> None:
    comparison = compare(ComparedSide("A", "", case=case), ComparedSide("B", "", case=case))
    assert {row.kind for row in comparison.rows} == {"same"} and comparison.rows
    assert comparison.sentence.startswith("The step takes ") and comparison.sentence.endswith(" on both sides.")


def test_a_finished_analysis_survives_its_file_and_an_older_one(case: Evidence) -> None:
    text = to_json(case.analysis)
    data = json.loads(text)
    for key in ("telemetry", "queue", "collectives", "batch_test", "option_costs"):
        data.pop(key, None)
    older = from_json(json.dumps(data | {"schema": "bottleneck/analysis/2", "version": ""}))
    comparison = compare(ComparedSide("now", "", saved=from_json(text)), ComparedSide("then", "", saved=older))
    assert comparison.change_us == 0 and comparison.conditions == ()


def test_work_of_a_ledger_without_rows_is_a_row_of_its_own() -> None:
    full = side([work("aten::mm", 40.0), work("aten::add", 60.0, family="elementwise")])
    assert full.analysis is not None
    less = replace(full, saved=replace(full.analysis, kernels=full.analysis.kernels[:1]))
    comparison = compare(full, less)
    told = {row.name: (row.kind, row.after_us) for row in comparison.rows}
    assert told == {"aten::mm": ("same", 40.0), "aten::add": ("gone", 0.0), UNLISTED: ("new", 60.0)}
    assert any("belongs to no row" in note for note in comparison.notes)


def test_rows_beyond_their_ledger_are_brought_to_its_scale() -> None:
    full = side([work("aten::mm", 40.0), work("aten::add", 60.0, family="elementwise")])
    assert full.analysis is not None
    double = tuple(replace(row, us=2 * row.us) for row in full.analysis.kernels)
    comparison = compare(full, replace(full, saved=replace(full.analysis, kernels=double)))
    assert {row.after_us for row in comparison.rows} == {40.0, 60.0}


@pytest.mark.parametrize("us", [math.nan, math.inf, -math.inf, -5.0, 1e300, 0.0])
def test_times_that_are_none_are_left_out(us: float) -> None:
    plain = side([work("aten::mm", 40.0)], {"python": 10.0})
    assert plain.analysis is not None
    entry = LedgerEntry("overhead.sync", "overhead", us, 0.0)
    row = work("aten::add", us, us, family="elementwise")
    broken = replace(plain.analysis, ledger=(*plain.analysis.ledger, entry), kernels=(*plain.analysis.kernels, row))
    comparison = compare(plain, replace(plain, saved=broken))
    assert comparison.change_us == 0 and comparison.after.step_us == 50.0


def test_an_analysis_without_a_ledger_has_no_times() -> None:
    empty = side([])
    assert empty.analysis is not None
    nothing = replace(empty, saved=replace(empty.analysis, ledger=(), kernels=()))
    assert compare(nothing, empty).change_us is None and compare(nothing, nothing).rows == ()


def test_a_step_of_no_time_is_compared() -> None:
    some = side([work("aten::mm", 5.0)])
    assert some.analysis is not None
    no_time = tuple(replace(entry, us=0.0) for entry in some.analysis.ledger)
    empty = replace(some, saved=replace(some.analysis, ledger=no_time))
    assert compare(side([work("aten::mm", 5.0)]), empty).change_us == -5.0
    assert compare(empty, side([work("aten::mm", 5.0)])).sentence.startswith("The step takes 5.00 us more")


def test_an_account_of_a_later_version_is_a_wait() -> None:
    plain = side([work("aten::mm", 40.0)])
    assert plain.analysis is not None
    ledger = (*plain.analysis.ledger, LedgerEntry("overhead.telepathy", "overhead", 7.0, 0.1))
    comparison = compare(plain, replace(plain, saved=replace(plain.analysis, ledger=ledger)))
    assert [(bar.account, bar.change_us) for bar in comparison.idle] == [("overhead.telepathy", 7.0)]


@pytest.mark.parametrize(
    "name", ["", " ", "\x00", "a" * 100_000, "](http://x)", "(" * 5000, "\ud800", "aten::" + "_" * 9999]
)
def test_hostile_names_are_names(name: str) -> None:
    rows = [work(name, 5.0, name=name, shapes=name, source=name, family=name), work(None, 4.0, name=name, family=name)]
    comparison = compare(side(rows), side(rows), {name: frozenset({1})})
    assert {row.kind for row in comparison.rows} == {"same"}
    assert compare(side(rows), side([work("aten::mm", 9.0)])).change_us == 0
