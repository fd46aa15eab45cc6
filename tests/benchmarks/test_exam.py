import ast
import re
from pathlib import Path

import pytest

from benchmarks.exam import ROWS, figures_on, table


def test_rows_that_are_not_run_keep_their_figures() -> None:
    rows = table({1: "52/52", 8: "3/4; fails: x"}, {})
    page = f"before\n<!-- exam:begin -->\n{rows}\n<!-- exam:end -->\n| 2 | a | b | c |"
    assert figures_on(page)[1] == "52/52"
    assert figures_on(page)[8] == "3/4; fails: x"
    assert figures_on(page)[2] == "not run"
    assert "| 52/52 |" in table({2: "22/22"}, figures_on(page))
    assert set(figures_on(page)) == set(ROWS)


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "benchmarks" / "results" / "exam.md"


def _missing(page: str) -> list[str]:
    """The tests and benchmarks that a page names and that do not exist."""
    missing = []
    for file, name in set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)", page)):
        path = ROOT / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None
        if tree is None or name not in {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}:
            missing.append(f"{file}::{name}")
    modules = set(re.findall(r"`python -m (benchmarks\.\w+)", page))
    return missing + [module for module in modules if not (ROOT / f"{module.replace('.', '/')}.py").is_file()]


def test_every_test_that_the_table_names_exists() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)] == list(range(1, 52))
    assert _missing(page) == []


@pytest.mark.parametrize("name", ["`tests/test_cli.py::test_nothing`", "`python -m benchmarks.nothing`"])
def test_a_name_of_nothing_is_found(name: str) -> None:
    assert _missing(name) == [name.strip("`").removeprefix("python -m ")]


def test_what_is_held_names_what_shows_it() -> None:
    rows = re.findall(r"^\| \d+ \|[^|]*\| ([^|]*) \| ([^|]*) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {state for state, _ in rows} <= {"held", "partly", "not held", "not possible here"}
    assert all("`" in shown for state, shown in rows if state in {"held", "partly"})
