"""Every format tells every kind of analysis."""

import pytest

from bottleneck.report import FORMATS
from bottleneck.schema.analysis import Analysis
from tests.report.samples import SAMPLES


@pytest.mark.parametrize("analysis", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_tells_every_analysis(name: str, analysis: Analysis) -> None:
    text = FORMATS[name](analysis)
    assert text.endswith("\n") and text.encode("utf-8")
