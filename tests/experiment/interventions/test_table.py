import re
from pathlib import Path

import pytest

from bottleneck.experiment.interventions import _TABLES, CHANGES

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "changes.md"


def rows() -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines()]
    return {row[0].strip("`"): row for row in cells if re.fullmatch(r"`[\w-]+`", row[0])}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_has_a_row_with_its_precision(name: str) -> None:
    assert name in rows(), f"docs/reference/changes.md has no row for {name}"
    _, what, precision, needs = rows()[name]
    assert what and needs and precision == CHANGES[name].precision
    assert ("own process" in what) is CHANGES[name].is_process_wide


def test_the_page_has_no_row_for_a_change_that_is_gone() -> None:
    assert set(rows()) <= set(CHANGES)


def test_no_two_changes_share_a_name() -> None:
    assert len(CHANGES) == sum(map(len, _TABLES))
