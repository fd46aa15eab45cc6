"""Rules on the start: each speaks of a large part, and where the start was sampled only."""

from pathlib import Path

import pytest

from bottleneck.advice import start_up
from bottleneck.report.start_up import start_up_table
from bottleneck.schema.compile_health import CompileHealth, Recompile
from bottleneck.schema.start_up import START_FINDINGS, StartLedger, StartPart
from tests.advice.cases import case_of, with_analysis
from tests.builders import frame, op

PARTS = {
    "own-code-at-start": StartPart("program", "build()", 3.0, "train.py:9"),
    "heavy-import": StartPart("import", "plots", 3.0, "train.py:2"),
    "compiles-at-start": StartPart("compile", "forward()", 3.0, "train.py:4", is_cold=True),
    "tunes-at-start": StartPart("autotune", "Triton", 3.0, "train.py:5"),
    "slow-weights": StartPart("weights", "torch.load", 3.0, "train.py:6", bytes=300_000_000),
}


def slugs_of(folder: Path, part: StartPart, *, is_sampled: bool = True, called: str = "train.py(1): f") -> set[str]:
    rest = StartPart("import", "torch", 4.0)
    start = StartLedger(rest.seconds + part.seconds, 0.1, (rest, part), 1, is_sampled=is_sampled)
    evidence = case_of(folder, [frame(called, 0, 100), op("aten::mul", 1, 90)], start_up=start)
    return {draft.slug for rule in start_up.RULES if (draft := rule(evidence)) is not None}


@pytest.mark.parametrize("slug", PARTS)
def test_a_large_part_is_found_and_a_small_or_unsampled_one_is_not(slug: str, tmp_path: Path) -> None:
    part = PARTS[slug]
    small = StartPart(part.kind, part.name, 0.3, part.source)
    assert slugs_of(tmp_path / "large", part) == {slug}
    assert slugs_of(tmp_path / "small", small) == set()
    assert slugs_of(tmp_path / "plain", part, is_sampled=False) == set()


def test_recompiles_are_told_as_a_part_of_what_compiling_took(tmp_path: Path) -> None:
    rows = tuple(
        Recompile(f"0/{at}", "forward", "net.py:10", "size", "…", "8", str(8 + at), "x", 0, "0/0", float(at))
        for at in (1, 2)
    )
    start = StartLedger(7.0, 0.1, (StartPart("import", "torch", 4.0), PARTS["compiles-at-start"]), 1, is_sampled=True)
    plain = case_of(tmp_path, [frame("train.py(1): f", 0, 100), op("aten::mul", 1, 90)], start_up=start)
    case = with_analysis(plain, compile_health=CompileHealth((), recompiles=rows))
    draft = start_up.compiles_at_each_start(case)
    assert draft is not None
    assert draft.evidence[-1] == "2 recompiles took 3.00 s in all, the longest for size 0 of x: 8, then 10 at net.py:10"


def test_an_import_that_the_steps_call_is_not_named(tmp_path: Path) -> None:
    assert slugs_of(tmp_path, PARTS["heavy-import"], called="site-packages/plots/draw.py(3): draw") == set()


def test_weights_at_the_speed_of_storage_are_not_named(tmp_path: Path) -> None:
    assert slugs_of(tmp_path, StartPart("weights", "torch.load", 3.0, "train.py:6", bytes=6_000_000_000)) == set()


def test_the_names_of_the_findings_are_those_of_the_rules() -> None:
    assert set(PARTS) == START_FINDINGS


def test_the_table_of_a_start_adds_up_and_has_the_start_before_beside_it() -> None:
    parts = (*PARTS.values(), StartPart("import", "torch", 4.4444))
    start = StartLedger(19.4444, 0.5, parts, 1, True, earlier_s=30.0, earlier=(StartPart("import", "plots", 9.0),))
    table = start_up_table(start)
    assert table is not None
    rows = [(row.role, row.cells) for row in table.rows]
    assert sum(float(cells[2]) for role, cells in rows if role == "plain") == pytest.approx(float(rows[-1][1][2]))
    assert ("part", ("plots", "train.py:2", "3.00", "9.00", "")) in rows
    assert ("part", ("torch.load", "300 MB at 100 MB/s, train.py:6", "3.00", "0.00", "")) in rows
    assert ("part", ("forward()", "train.py:4", "3.00", "0.00", "cold")) in rows


def test_a_line_stands_once_in_its_row_and_no_bytes_are_called_nothing() -> None:
    """The row of a compilation read 'mlp.py:18  mlp.py:18', the note '0.00 B came from storage'."""
    part = StartPart("compile", "mlp.py:18", 4.0, "mlp.py:18")
    table = start_up_table(StartLedger(4.0, 0.1, (part,), 1, True, storage_bytes=0))
    assert table is not None
    assert [row.cells[:2] for row in table.rows if row.role == "part"] == [("mlp.py:18", "")]
    assert "Nothing came from storage; the rest was in memory already." in table.notes
