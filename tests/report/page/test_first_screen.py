"""Notebooks show the first screen of the page: the verdict in a frame in which nothing runs and nothing is loaded."""

import html
import re
from pathlib import Path

import pytest

import bottleneck
import bottleneck.pipeline
from bottleneck.report.page import first_screen
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.records import replace
from tests.report.samples import SAMPLES


def page_in(fragment: str) -> str:
    """The document that the frame holds."""
    given = 'sandbox="allow-same-origin" title="[^"]*" style="[^"]*" onload="[^"]*"'
    found = re.fullmatch(f'<iframe {given} srcdoc="([^"]*)"></iframe>', fragment)
    assert found is not None
    return html.unescape(found[1])


@pytest.mark.parametrize("analysis", SAMPLES.values(), ids=SAMPLES)
def test_the_frame_holds_the_verdict_and_nothing_active(analysis: Analysis) -> None:
    page = page_in(analysis._repr_html_())  # as of any analysis that the pipeline made
    assert 'id="summary"' in page and "<script" not in page and "<link" not in page
    assert not re.search(r"""(?:src|href)=["']?(?!#)[^"'#\s>]""", page)
    assert "default-src 'none'" in html.unescape(page)


def test_a_hostile_sentence_stays_text() -> None:
    analysis = next(iter(SAMPLES.values()))
    evil = '"></iframe><script>alert(1)</script>{{ 7*7 }}\u202e\ud800'
    fragment = first_screen(replace(analysis, verdict=replace(analysis.verdict, sentence=evil, clauses=())))
    page = page_in(fragment)
    assert "<script>alert" not in page and "{{ 7*7 }}" in page and "\u202e" not in page
    assert fragment.count("<iframe") == 1
    fragment.encode("utf-8")


def test_a_block_that_has_no_result_yet_shows_nothing(tmp_path: Path) -> None:
    assert bottleneck.record(tmp_path / "none", quiet=True)._repr_html_() is None
