"""Hooks of the documentation site: publishes the files outside docs/ that its pages link to."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)")


def file_outside(docs: Path, page: Path, link: str) -> str | None:
    """The path of a link's target below the repository, or None where the target lies in docs/ or is no file."""
    target = (page.parent / link).resolve()
    if target.is_relative_to(docs) or not target.is_relative_to(ROOT) or not target.is_file():
        return None
    return target.relative_to(ROOT).as_posix()


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Adds a copy of each linked file under files/."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - mkdocs is there only when the site is built

    docs = Path(config.docs_dir).resolve()
    outside = {
        path
        for page in files.documentation_pages()
        if page.abs_src_path
        for link in _LINK.findall(Path(page.abs_src_path).read_text("utf-8"))
        if (path := file_outside(docs, Path(page.abs_src_path), link))
    }
    for path in sorted(outside):
        files.append(File.generated(config, f"files/{path}.txt", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:  # noqa: ARG001 - mkdocs names its arguments
    """Points links that leave docs/ to the copies."""
    docs = Path(config.docs_dir).resolve()
    source = Path(page.file.abs_src_path or "")
    up = "../" * page.file.src_uri.count("/")

    def to_copy(match: re.Match[str]) -> str:
        path = file_outside(docs, source, match[1])
        return f"]({up}files/{path}.txt" if path else match[0]

    return _LINK.sub(to_copy, markdown)
