"""The table of interventions: every row is complete, has a name of its own, and stands in the reference page."""

import re
from pathlib import Path
from typing import get_args

import pytest

from bottleneck.experiment.interventions import _TABLES, CHANGES
from bottleneck.experiment.interventions.subject import Change, Precision

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


def faults_of(change: Change) -> list[str]:
    """Everything that a row of the table lacks."""
    acts = change.apply is not Change.apply or change.settings is not None or bool(change.environment)
    return [
        fault
        for fault, is_there in {
            "its name is not in kebab-case": not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", change.name),
            "it has no title": not change.title.strip(),
            "its precision is unknown": change.precision not in get_args(Precision),
            "it changes nothing": not acts,
            "it works on no samples": not change.samples > 0,
            "its environment needs a process of its own": bool(change.environment) and not change.is_process_wide,
        }.items()
        if is_there
    ]


@pytest.mark.parametrize("change", CHANGES.values(), ids=lambda change: change.name)
def test_each_row_of_the_table_is_complete(change: Change) -> None:
    assert faults_of(change) == []


def test_an_incomplete_row_would_be_seen() -> None:
    assert len(faults_of(Change("No Title", "", "exact"))) == 4  # type: ignore[arg-type]
    assert faults_of(Change("set-flag", "sets a flag", "same", environment={"A": "1"})) != []
