"""The tutorial on ten findings shows what the program prints."""

import re
from pathlib import Path

import pytest

from tests.advice.test_pages import PAGE as REFERENCE
from tests.advice.test_pages import sections
from tests.ten_findings import PAGE, SHOWN, SOURCES, told

_TEXT = PAGE.read_text(encoding="utf-8")
_FOUND = [(found["slug"], found["traces"], found["text"]) for found in SHOWN.finditer(_TEXT)]


def test_there_are_ten_of_them_each_of_another_rule_with_a_section() -> None:
    slugs = [slug for slug, _, _ in _FOUND]
    assert len(slugs) == len(set(slugs)) == len(re.findall(r"^## \d+\. ", _TEXT, re.MULTILINE)) == 10
    assert set(slugs) <= set(sections(REFERENCE.read_text(encoding="utf-8")))


def test_every_trace_has_its_origin_on_the_page() -> None:
    used = {name for _, traces, _ in _FOUND for name in traces.split()}
    rows = set(re.findall(r"^\| `([\w.-]+)` \| `[\w-]+/[\w.-]+` \| [^|\n]*`[^`\n]+`[^|\n]* \|", _TEXT, re.MULTILINE))
    assert used <= set(SOURCES) and used <= rows


@pytest.mark.parametrize(("slug", "traces_named", "text"), _FOUND, ids=lambda part: part.split("\n")[0][:40])
def test_the_page_shows_what_the_report_says(traces: Path, slug: str, traces_named: str, text: str) -> None:
    if not all((traces / SOURCES[name]).exists() for name in traces_named.split()):
        pytest.skip("a trace of the page is not in the folder")
    assert told(slug, traces_named, traces) == text, "python -m tests.ten_findings FOLDER writes it anew"
