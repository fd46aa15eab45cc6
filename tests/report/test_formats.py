"""Every format renders every kind of analysis, and reports read as the golden ones do."""

import pytest

from bottleneck.report import FORMATS, render_report
from bottleneck.schema.analysis import Analysis
from tests.report.golden import FOLDER, GOLDEN
from tests.report.samples import SAMPLES


@pytest.mark.parametrize("name", GOLDEN)
def test_a_report_reads_as_the_golden_one_does(name: str) -> None:
    golden = (FOLDER / name).read_text(encoding="utf-8")
    assert GOLDEN[name]() == golden, "look at the difference; python -m tests.report.golden accepts it"


def test_every_golden_report_has_its_maker() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(GOLDEN)


@pytest.mark.parametrize("analysis", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.render is not None])
def test_every_format_tells_every_analysis(name: str, analysis: Analysis) -> None:
    text = render_report(analysis, name)
    assert text.endswith("\n") and text.encode("utf-8")
