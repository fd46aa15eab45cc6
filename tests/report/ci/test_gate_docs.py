"""The page on the gate's outputs shows what they hold, and names all of them."""

import re
from pathlib import Path

import pytest

from bottleneck.report.ci.gate_document import MOST_BYTES
from bottleneck.report.ci.outputs import GATE_FORMATS
from tests.report.gates import GATES

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "gate-outputs.md").read_text(encoding="utf-8")
EXCERPTS = dict(re.findall(r"^```\w+ ([\w.]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
FORMS = {form.file: form for form in GATE_FORMATS.values()}


def test_every_file_has_an_excerpt() -> None:
    assert set(EXCERPTS) == set(FORMS)


@pytest.mark.parametrize("file", EXCERPTS)
def test_an_excerpt_holds_lines_of_that_file_in_their_order(file: str) -> None:
    written = iter(FORMS[file].render(GATES["slowed"]).splitlines())
    for line in EXCERPTS[file].splitlines():
        assert line.strip() == "…" or line in written, f"{line!r} is not in {file}, or not in this order"


@pytest.mark.parametrize("name", GATE_FORMATS)
def test_the_table_names_each_format_with_its_file(name: str) -> None:
    assert f"| `{name}` | `{GATE_FORMATS[name].file}` |" in PAGE


def test_the_size_of_a_comment_is_the_one_that_is_kept() -> None:
    assert f"at most {MOST_BYTES:,} bytes" in PAGE
