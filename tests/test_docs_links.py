"""Every relative link of the README and of pages of docs and results leads to a file, and its anchor to a heading."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
RESULTS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "benchmarks" / "results").glob("*.md"))

_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    """The anchors of a page, as GitHub makes them of headings, and those that are written out."""
    prose = _FENCE.sub("", page)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {slug(heading) for heading in headings} | set(re.findall(r'<a id="([^"]+)">', prose))


def slug(heading: str) -> str:
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def broken_links(page_file: Path) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for target, anchor in _LINK.findall(_FENCE.sub("", page_file.read_text(encoding="utf-8"))):
        linked = page_file.parent / target if target else page_file
        if not linked.exists():
            yield target
        elif anchor and linked.suffix == ".md" and anchor not in anchors(linked.read_text(encoding="utf-8")):
            yield f"{target}#{anchor}"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", *PAGES, *RESULTS])
def test_every_link_leads_somewhere(name: str) -> None:
    assert list(broken_links(ROOT / name)) == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# The `one` heading, here\n", encoding="utf-8")
    page_file = tmp_path / "page.md"
    page_file.write_text(
        "[a](there.md#the-one-heading-here) [b](gone.md) [c](there.md#gone) [d](#no)", encoding="utf-8"
    )
    assert list(broken_links(page_file)) == ["gone.md", "there.md#gone", "#no"]


def test_the_index_links_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = {f"docs/{target}" for target, _ in _LINK.findall(index)}
    assert set(PAGES) - linked == {"docs/index.md"}
