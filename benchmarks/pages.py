"""Writes the generated parts of documentation pages, which are enclosed by two markers."""

from pathlib import Path


def write_between_markers(page: Path, name: str, text: str) -> None:
    """Replaces the text between the markers of this name on a page; ValueError when the page has no such markers."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    old = page.read_text(encoding="utf-8")
    if begin not in old or end not in old:
        raise ValueError(f"{page} has no markers {begin} and {end}")
    before, _, rest = old.partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
