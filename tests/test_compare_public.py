"""Pairs of public traces: what is on screen adds up, and reads as what is known of the pair."""

from pathlib import Path

import pytest

from bottleneck.compare.compare import compare
from bottleneck.compare.sides import Compared
from bottleneck.gate.counting import count
from bottleneck.pipeline import explain
from bottleneck.report.comparison import build
from bottleneck.report.comparison_formats import render
from bottleneck.report.document import Table
from bottleneck.schema.comparison import Comparison

TRACELENS = "AMD-AGI+TraceLens__tests__traces__"
HTA = "facebookresearch+HolisticTraceAnalysis__tests__data__trace_diff__"
KINETO = "pytorch+kineto__tb_plugin__samples__resnet50_num_workers_"
TORCHREC = (
    "pytorch+torchrec__examples__golden_training__trace__sst_long_a2a_optimizer_5_qcomm__"
    "ip-172-31-16-248.us-east-2.compute.internal_"
)
PAIRS = {
    "devices": (
        f"{TRACELENS}h100__gaunernst_bert-small-uncased__1016001.json.gz",
        f"{TRACELENS}mi300__gaunernst_bert-small-uncased__1016001.json.gz",
    ),
    "trace diff": (f"{HTA}control__control.json.gz", f"{HTA}test__test.json.gz"),
    "loader": (
        f"{KINETO}0__worker0.1623143566756.pt.trace.json.gz",
        f"{KINETO}4__worker0_at_7bd25bd.pt.trace.json.gz",
    ),
    "ranks": (
        f"{TORCHREC}54105.1698958768306379521.pt.trace.json.gz",
        f"{TORCHREC}54108.1698958768415409766.pt.trace.json.gz",
    ),
}


@pytest.fixture(scope="module")
def compared(traces: Path) -> dict[str, Comparison]:
    """All pairs, compared once."""
    return {name: compare(*(_side(traces / file) for file in pair)) for name, pair in PAIRS.items()}


def _side(path: Path) -> Compared:
    case = explain([path])
    return Compared(path.name, str(path), case=case, counts=count(case))


def number(cell: str) -> float:
    """A cell as a person adds it up: what rounds to nothing counts nothing."""
    return 0.0 if cell[:1] in {"<", ">", ""} else float(cell)


@pytest.mark.parametrize("name", PAIRS)
def test_waterfall_rows_and_modules_of_a_pair_add_up_on_screen(compared: dict[str, Comparison], name: str) -> None:
    document = build(compared[name])
    assert document.waterfall is not None
    first, *falls, last = document.waterfall.falls
    changes = sum(number(fall.change) for fall in falls)
    assert number(first.before) + changes == pytest.approx(number(last.after), abs=1e-6)
    rows = {part.title.split(",")[0]: part.rows for part in document.parts if isinstance(part, Table)}
    *ops, step = rows["What changed"]
    assert sum(number(row.cells[4]) for row in ops) == pytest.approx(number(last.change), abs=1e-6)
    assert step.cells[4] == last.change
    busy = sum(number(row.cells[4]) for row in ops if row.cells[2])
    if "By module" in rows:
        assert number(rows["By module"][-1].cells[3]) == pytest.approx(busy, abs=1e-6)
    assert max(map(len, render(compared[name]).splitlines())) <= 80


def test_another_device_is_said_before_all_else(compared: dict[str, Comparison]) -> None:
    for name in ("devices", "trace diff"):
        condition = compared[name].conditions[0]
        assert condition.what == "device" and condition.weight == "breaks"
    text = render(compared["devices"])
    assert text.index("AMD Instinct MI300X") < text.index("Where the change comes from")


def test_layers_that_change_alike_are_one_line(compared: dict[str, Comparison]) -> None:
    rows = next(part for part in build(compared["devices"]).parts if isinstance(part, Table)).rows
    attention = next(row for row in rows if row.cells[0] == "aten::_flash_attention_forward")
    assert "in 4 modules" in attention.details and attention.cells[1] == "4"


def test_more_workers_take_the_wait_for_data_away(compared: dict[str, Comparison]) -> None:
    wait = next(bar for bar in compared["loader"].bars if bar.account == "overhead.input")
    assert wait.before_us > 30_000 and wait.after_us < 2_000


def test_ranks_of_one_job_do_the_same_work(compared: dict[str, Comparison]) -> None:
    ranks = compared["ranks"]
    assert ranks.change_us is not None and ranks.before.step_us is not None
    assert abs(ranks.change_us) < 0.01 * ranks.before.step_us
    assert not any(condition.weight == "breaks" for condition in ranks.conditions)
