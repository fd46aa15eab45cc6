"""Hooks of the documentation site: publishes what pages link to outside docs/, ranks pages in its search."""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "sample_traces"
_LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)(?:#against-([\w-]+))?")
# How the search treats a page, by the beginning of its path; the first row that fits holds. Pages on symptoms come
# before all others, how-to pages before references, and keys and tables do not come up at all.
SEARCH: Mapping[str, Mapping[str, Any]] = {
    "index.md": {"exclude": True},
    "howto/symptoms.md": {"boost": 8},
    "howto/compile-health.md": {"boost": 1},
    "howto/gpu-memory.md": {"boost": 1},
    "howto/servers.md": {"boost": 6},
    "howto/": {"boost": 4},
    "tutorial/": {"boost": 2},
    "reference/json.md": {"exclude": True},
    "reference/devices.md": {"exclude": True},
    "reference/gate-outputs.md": {"exclude": True},
    "explanation/verdicts.md": {"exclude": True},
    "explanation/advice_rules.md": {"exclude": True},
    "explanation/": {"boost": 0.5},
}


def published(docs: Path, page: Path, link: str, against: str | None = None) -> tuple[str, list[str] | Path] | None:
    """Path on the site of a link's target with the command that writes it, or the file to copy.

    Null where it lies in docs/ or outside the repository. A recording of sample_traces/ is published as the page of its
    report, or of its comparison with another recording.
    """
    target = (page.parent / link).resolve()
    if target.is_relative_to(docs) or not target.is_relative_to(ROOT):
        return None
    if target.parent == SAMPLES and target.is_dir():
        if against is not None:
            return f"pages/{against}-{target.name}.html", ["compare", str(SAMPLES / against), str(target)]
        return f"pages/{target.name}.html", ["report", str(target)]
    return (f"files/{target.relative_to(ROOT).as_posix()}.txt", target) if target.is_file() else None


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Adds what the pages link to outside docs/."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - mkdocs is there only when the site is built

    docs = Path(config.docs_dir).resolve()
    pages = [Path(page.abs_src_path) for page in files.documentation_pages() if page.abs_src_path]
    links = [(page, match) for page in pages for match in _LINK.finditer(page.read_text("utf-8"))]
    targets = dict(filter(None, (published(docs, page, match[1], match[2]) for page, match in links)))
    for path, source in targets.items():
        content = source.read_bytes() if isinstance(source, Path) else page_of(source)
        files.append(File.generated(config, path, content=content))
    return files


def page_of(command: list[str]) -> bytes:
    """The page that a command of ours writes.

    Raises RuntimeError where the command fails.
    """
    from bottleneck.cli import _run  # noqa: PLC0415 - only where the site is built

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        if status := _run([*command, "-o", str(file)]):
            raise RuntimeError(f"{command} ended with status {status}")
        return file.read_bytes().replace(f"{ROOT}/".encode(), b"")


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", **_: object) -> str:
    """Points links that leave docs/ to what is published of them, ranks the page, and adds the table of findings."""
    docs = Path(config.docs_dir).resolve()
    source = Path(page.file.abs_src_path or "")
    up = "../" * page.file.src_uri.count("/")
    page.meta["search"] = next((rank for start, rank in SEARCH.items() if page.file.src_uri.startswith(start)), {})

    def to_copy(match: re.Match[str]) -> str:
        target = published(docs, source, match[1], match[2])
        return f"]({up}{target[0]}" if target else match[0]

    if page.file.src_uri == "reference/findings.md":
        markdown = markdown.replace("\n## How to read", f"\n{findings_table(markdown)}\n## How to read", 1)
    return _LINK.sub(to_copy, markdown)


def findings_table(page: str) -> str:
    """A table of all findings by group: what is seen, and what to do, in the first sentence of each section."""
    lines = ["## All findings", "", "| finding | what you see | what to do |", "|---|---|---|"]
    for group in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title, _, body = group.partition("\n")
        sections = re.findall(r"^### ([\w-]+)\n(.*?)(?=^### |\Z)", body, re.MULTILINE | re.DOTALL)
        rows = [(name, _first_words(text, "Seen"), _first_words(text, "Change")) for name, text in sections]
        if any(seen for _, seen, _ in rows):
            lines.append(f"| **{title}** | | |")
            lines += [f"| [{name}](#{name}) | {seen} | {change} |" for name, seen, change in rows]
    return "\n".join([*lines, ""])


def _first_words(text: str, part: str) -> str:
    """The first sentence of a part of a finding's section, or its first line of code, fit for a cell."""
    match = re.search(
        rf"^\*\*{part}\*\*\s*(?:```\w*\n(?P<code>[^\n]+)|(?P<prose>.*?)(?:\n\n|\Z))", text, re.MULTILINE | re.DOTALL
    )
    if match is None:
        return ""
    words = (
        f"`{match['code'].strip()}`" if match["code"] else re.split(r"(?<=\.) ", " ".join(match["prose"].split()))[0]
    )
    return words.rstrip(":").replace("|", "\\|")
