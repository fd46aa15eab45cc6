"""Things to do as lines for a terminal: numbered, with code to copy and commands that stay whole when broken."""

import re
from collections.abc import Sequence

from rich.text import Text

from bottleneck.report.grid import GLUE, wrapped
from bottleneck.report.layout import Remedies, Remedy
from bottleneck.report.look import Look

_PROSE = 600
_LABEL_WIDTH = 6
_CONTINUED = " \\"  # how a shell command goes on in the next line
_QUOTED = re.compile("'[^']*'")  # as shlex quotes; a break within would be part of the word
_NARROW = 40


def remedy_lines(part: Remedies, look: Look) -> list[Text]:
    """The ranked remedies, what they come to, those without a rank, and what is left out."""
    width = len(f"{len(part.items)}. ")
    out = _sentences(part.before, look)
    for number, remedy in enumerate(part.items, 1):
        out += _remedy(remedy, look, f"{number}. ".ljust(width), "bold")
    out += _sentences(part.sums, look)
    for heading, remedies in part.groups:
        out += _sentences((heading,), look)
        out += [line for remedy in remedies for line in _remedy(remedy, look, f"{look.glyphs.bullet} ", "")]
    return [*out, *_sentences(part.closing, look, "dim")]


def _sentences(texts: Sequence[str], look: Look, style: str = "") -> list[Text]:
    return [line for text in texts for line in wrapped(Text(look.text(text, _PROSE), style), look)]


def _remedy(remedy: Remedy, look: Look, lead: str, style: str) -> list[Text]:
    indent = len(lead)
    out = wrapped(Text(look.text(remedy.lead, _PROSE), style), look, indent, lead)
    for label, text in remedy.lines:
        out += _labelled(label, look.text(text, _PROSE), look, indent)
    inner = 0 if look.width < _NARROW else indent + _LABEL_WIDTH
    for line in remedy.code:
        out += _code_line(look.text(line, _PROSE), look, inner)
    if remedy.command is not None:
        out += _command(look.text(remedy.command, _PROSE), look, indent)
    return out


def _labelled(label: str, text: str, look: Look, indent: int) -> list[Text]:
    if look.width < _NARROW:
        return wrapped(Text(f"{label}: {text}"), look, indent)
    return wrapped(Text(text), look, indent + _LABEL_WIDTH, " " * indent + label.ljust(_LABEL_WIDTH))


def _code_line(line: str, look: Look, indent: int) -> list[Text]:
    """A line of code with its own indentation, which also holds where it has to be broken."""
    code = line.lstrip(" ")
    return wrapped(Text(code, "cyan"), look, indent + len(line) - len(code)) if code else [Text()]


def _command(command: str, look: Look, indent: int) -> list[Text]:
    """A command that can be copied: where it is too long for a line, a backslash says that it goes on."""
    whole = Text(_QUOTED.sub(lambda words: words[0].replace(" ", GLUE), command))
    if look.width < _NARROW:
        return wrapped(whole, look, indent, "try: ")
    narrower = Look(look.width - len(_CONTINUED), look.encoding)
    lines = wrapped(whole, narrower, indent + _LABEL_WIDTH, " " * indent + "try".ljust(_LABEL_WIDTH))
    return [*(Text(f"{line.plain}{_CONTINUED}") for line in lines[:-1]), *lines[-1:]]
