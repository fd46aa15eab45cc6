"""Figures of these tests have the style with which they are saved."""

from collections.abc import Iterator

import matplotlib as mpl
import pytest

from bottleneck.report.plots import STYLE


@pytest.fixture(autouse=True)
def _style() -> Iterator[None]:
    with mpl.rc_context(fname=STYLE):
        yield
