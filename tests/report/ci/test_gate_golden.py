"""Outputs of the gate read as they did when somebody last looked at them."""

import pytest

from tests.report.gate_golden import FOLDER, GOLDEN


@pytest.mark.parametrize("name", GOLDEN)
def test_an_output_reads_as_the_golden_one_does(name: str) -> None:
    golden = (FOLDER / name).read_text(encoding="utf-8")
    assert GOLDEN[name]() == golden, "look at the difference; python -m tests.report.gate_golden accepts it"


def test_every_golden_output_has_its_maker() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(GOLDEN)
