"""Hooks of the documentation site: publish what its pages link to outside docs/, files and recordings (as pages)."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "sample_traces"
_LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)")


def published(docs: Path, page: Path, link: str) -> tuple[str, Path] | None:
    """Path on the site and source of a link's target, null where it lies in docs/ or outside the repository.

    A file is published as a copy, a recording of sample_traces/ as its page.
    """
    target = (page.parent / link).resolve()
    if target.is_relative_to(docs) or not target.is_relative_to(ROOT):
        return None
    if target.parent == SAMPLES and target.is_dir():
        return f"pages/{target.name}.html", target
    return (f"files/{target.relative_to(ROOT).as_posix()}.txt", target) if target.is_file() else None


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Adds what the pages link to outside docs/."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - mkdocs is there only when the site is built

    docs = Path(config.docs_dir).resolve()
    pages = [Path(page.abs_src_path) for page in files.documentation_pages() if page.abs_src_path]
    links = [(page, link) for page in pages for link in _LINK.findall(page.read_text("utf-8"))]
    found = dict(filter(None, (published(docs, page, link) for page, link in links)))
    for path, source in found.items():
        content = to_page(source) if source.is_dir() else source.read_bytes()
        files.append(File.generated(config, path, content=content))
    return files


def to_page(recording: Path) -> str:
    """The page of a recording."""
    from bottleneck.analysis.step_tracks import lay_out  # noqa: PLC0415 - only where the site is built
    from bottleneck.pipeline import explain  # noqa: PLC0415
    from bottleneck.report.page import to_html  # noqa: PLC0415

    explained = explain([recording])
    return to_html(explained.analysis, lay_out(explained))


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", **_: object) -> str:
    """Points links that leave docs/ to what is published of them."""
    docs = Path(config.docs_dir).resolve()
    source = Path(page.file.abs_src_path or "")
    up = "../" * page.file.src_uri.count("/")

    def to_copy(match: re.Match[str]) -> str:
        found = published(docs, source, match[1])
        return f"]({up}{found[0]}" if found else match[0]

    return _LINK.sub(to_copy, markdown)
