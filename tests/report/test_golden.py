"""Reports read as they did when somebody last looked at them."""

import pytest

from tests.report.golden import FOLDER, GOLDEN


@pytest.mark.parametrize("name", GOLDEN)
def test_a_report_reads_as_the_golden_one_does(name: str) -> None:
    golden = (FOLDER / name).read_text(encoding="utf-8")
    assert GOLDEN[name]() == golden, "look at the difference; python -m tests.report.golden accepts it"


def test_every_golden_report_has_its_maker() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(GOLDEN)
