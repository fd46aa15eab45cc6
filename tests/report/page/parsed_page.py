"""Reads a page as a parser of HTML does, for tests of what it says and holds."""

from html.parser import HTMLParser


class ParsedPage(HTMLParser):
    """The elements of a page in order, the text outside scripts and styles, and the text of each script and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self._open = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag if tag in self.inside else ""
        if self._open:
            self.inside[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.inside[self._open][-1] += data
        else:
            self.text.append(data.replace("\u00a0", " "))

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def embedded(self, name: str) -> str:
        scripts = [attrs for tag, attrs in self.tags if tag == "script"]
        return next(text for attrs, text in zip(scripts, self.inside["script"], strict=True) if attrs.get("id") == name)
