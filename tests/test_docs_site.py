"""The documentation site: its list of pages, and the files outside docs/ that it publishes."""

import re
from pathlib import Path

import pytest
import yaml

from scripts.docs_hooks import SEARCH, findings_table, published
from tests.advice.test_pages import PAGE, all_slugs

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def listed(rows: object) -> list[str]:
    """The pages in a list of mkdocs.yml, in order, those of its sections too."""
    if isinstance(rows, str):
        return [rows]
    inner = rows.values() if isinstance(rows, dict) else rows
    return [page for row in inner for page in listed(row)]


def test_the_site_lists_every_page_of_docs_once() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = listed(settings["nav"])
    assert sorted(pages) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize(
    ("link", "against", "path"),
    [
        ("../../ci/perf.yml", None, "files/ci/perf.yml.txt"),
        ("../../sample_traces/mlp", None, "pages/mlp.html"),
        ("../../sample_traces/mlp", "matmul", "pages/matmul-mlp.html"),
        ("../reference/gate.md", None, None),
        ("../../../../../../../../../etc/hostname", None, None),
        ("../../no_such_file", None, None),
    ],
    ids=["file-of-the-repository", "recording", "comparison", "page", "file-of-the-machine", "missing"],
)
def test_only_files_and_recordings_of_the_repository_are_published(
    link: str, against: str | None, path: str | None
) -> None:
    found = published(DOCS, DOCS / "howto" / "gate-in-ci.md", link, against)
    assert (found and found[0]) == path


def test_the_table_of_findings_has_what_is_seen_and_what_to_do_of_each() -> None:
    table = findings_table(PAGE.read_text(encoding="utf-8"))
    rows = re.findall(r"^\| \[([\w-]+)\]\(#\1\) \| (.*?) \| (.*?) \|$", table, re.MULTILINE)
    assert {name for name, _, _ in rows} == all_slugs()
    assert [name for name, seen, change in rows if not seen.strip() or not change.strip()] == []


def test_a_row_of_the_table_is_the_first_sentence_or_the_first_line_of_code() -> None:
    page = "# P\n\n## Host\n\n### one\n\n**Seen** A | b. More.\n\n**Change** \n\n```python\ncode()\n```\n"
    assert findings_table(page).splitlines()[-2:] == ["| **Host** | | |", "| [one](#one) | A \\| b. | `code()` |"]


def test_every_row_of_the_search_ranks_a_page() -> None:
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert [start for start in SEARCH if not any(page.startswith(start) for page in pages)] == []


def test_the_explanation_is_at_most_25_000_words() -> None:
    pages = [path.read_text(encoding="utf-8") for path in (DOCS / "explanation").rglob("*.md")]
    assert len(pages) > 10
    assert sum(len(page.split()) for page in pages) <= 25_000, "tables and details go to benchmarks/results/"


def test_every_change_that_the_cheat_sheet_and_symptoms_name_can_be_tried() -> None:
    pages = [(DOCS / "howto" / f"{name}.md").read_text(encoding="utf-8") for name in ("cheat-sheet", "symptoms")]
    known = set(re.findall(r"^\| `([\w-]+)` \|", (DOCS / "reference" / "changes.md").read_text("utf-8"), re.MULTILINE))
    tried = {name for page in pages for names in re.findall(r"--try ([a-z\d,-]+)", page) for name in names.split(",")}
    cells = re.findall(r"^\| \*\*(?:[^|]*\|){2}([^|]*)\|", pages[0], re.MULTILINE)
    tried |= {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)} - {"all"}
    assert len(tried) > 8
    assert tried - known == set()


# A section of a page of docs/explanation -> the pages of benchmarks/results that hold the figures of its tables.
SUMMARIES = {
    ("predict.md", "How wrong it is"): ("kernelbench.md", "accuracy.md"),
    ("predictions.md", "What it is worth"): ("predictions.md",),
    ("simulator.md", "How far off it is"): ("simulator.md",),
    ("accuracy.md", "Products on tensor cores"): ("accuracy.md",),
    ("accuracy.md", "Machines that nothing was learned from"): ("accuracy.md",),
    ("scale.md", "Many ranks"): ("ranks.md",),
}


def figures(text: str) -> set[str]:
    """The numbers with a decimal point in the rows of the tables of a text."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return {number for row in rows for number in re.findall(r"\d+\.\d+", row)}


@pytest.mark.parametrize(("page", "heading"), SUMMARIES, ids=str)
def test_the_figures_of_a_summary_are_those_of_the_results(page: str, heading: str) -> None:
    text = (DOCS / "explanation" / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    results = [ROOT / "benchmarks" / "results" / name for name in SUMMARIES[page, heading]]
    written = {number for path in results for number in re.findall(r"\d+\.\d+", path.read_text(encoding="utf-8"))}
    assert figures(section)
    assert figures(section) - written == set()
    assert figures("| off | 98765.4 % |\n12345.6\n") - written == {"98765.4"}, "a figure of no table is noticed"
