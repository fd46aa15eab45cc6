"""The documentation site: its list of pages, and the files outside docs/ that it publishes."""

from pathlib import Path

import pytest
import yaml

from scripts.docs_hooks import published

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
    ("link", "path"),
    [
        ("../../ci/perf.yml", "files/ci/perf.yml.txt"),
        ("../../sample_traces/mlp", "pages/mlp.html"),
        ("../reference/gate.md", None),
        ("../../../../../../../../../etc/hostname", None),
        ("../../no_such_file", None),
    ],
    ids=["file-of-the-repository", "recording", "page", "file-of-the-machine", "missing"],
)
def test_only_files_and_recordings_of_the_repository_are_published(link: str, path: str | None) -> None:
    found = published(DOCS, DOCS / "howto" / "gate-in-ci.md", link)
    assert (found and found[0]) == path
