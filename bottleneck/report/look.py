"""How text is set on one terminal: its width, the characters that its encoding has, and the colours of groups."""

from dataclasses import dataclass, field

from bottleneck.report.clean import clean

STYLES = {
    "compute": "green",
    "memory": "cyan",
    "overhead": "yellow",
    "communication": "magenta",
    "mixed": "yellow",
    "unknown": "dim",
    "inconclusive": "red",
}

# What people write in sentences, for encodings that lack it; anything else becomes an escape.
_PLAIN = str.maketrans(
    {
        "…": "...",
        "·": "-",
        "•": "*",
        "µ": "u",
        "→": "->",
        "≥": ">=",
        "≤": "<=",
        "“": '"',
        "”": '"',
        "±": "+/-",
        "≈": "~",
    }
    | {"\u2013": "-", "\u2014": "-", "\u00d7": "x", "\u03bc": "u", "\u2018": "'", "\u2019": "'"}
)


@dataclass(frozen=True)
class Glyphs:
    """The characters of one character set. ``bars`` differ in shape, so that a bar reads without colour."""

    bars: dict[str, str]
    rule: str
    dot: str
    bullet: str
    ellipsis: str
    levels: str  # of a strip: nothing, then from least to most


UNICODE = Glyphs(
    {"compute": "█", "memory": "▓", "overhead": "░", "communication": "▚", "unknown": "·"},
    "─",
    "·",
    "•",
    "…",
    "·▁▂▃▄▅▆▇█",
)
ASCII = Glyphs(
    {"compute": "#", "memory": "=", "overhead": "-", "communication": "+", "unknown": "?"},
    "-",
    "|",
    "*",
    "...",
    "._-=+*%#@",
)


@dataclass(frozen=True)
class Look:
    """A terminal: how wide it is and what it can encode."""

    width: int = 80
    encoding: str = "utf-8"
    glyphs: Glyphs = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "glyphs", UNICODE if self.encoding.lower().startswith("utf") else ASCII)

    def text(self, text: str, limit: int = 200) -> str:
        """The text made safe to show, in characters that the encoding has."""
        safe = clean(text, limit)
        if self.glyphs is UNICODE:
            return safe
        return safe.translate(_PLAIN).encode(self.encoding, "backslashreplace").decode(self.encoding)
