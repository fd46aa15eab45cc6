"""Shortens names of kernels and recordings so that those of one report stay distinct."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from rich.cells import cell_len, set_cell_size

from bottleneck.schema.kernel_names import essential_name, plain_name, terse_name


def short_names(names: Sequence[str], width: int, ellipsis: str = "…") -> list[str]:
    """Shortens the names, each to at most ``width`` cells.

    Different names stay different as far as the width allows. The mildest shortening that fits is taken, and at last a
    cut in the middle. What is then still alike gets a number.
    """
    distinct = list(dict.fromkeys(names))
    chosen: dict[str, str] = {}
    for shortener in (str, plain_name, essential_name, terse_name):
        shorter = {name: shortener(name) for name in distinct if name not in chosen}
        taken = Counter([*shorter.values(), *chosen.values()])
        chosen |= {name: text for name, text in shorter.items() if cell_len(text) <= width and taken[text] == 1}
    for name in distinct:
        if name not in chosen:
            chosen[name] = _numbered(terse_name(name), width, ellipsis, set(chosen.values()))
    return [chosen[name] for name in names]


_RECORDING_CELLS = 28
_LAST_WORD = re.compile(r"[^_./ -]{0,12}[_./ -]*$")


def recording_names(paths: Sequence[str], width: int = _RECORDING_CELLS) -> list[str]:
    """Shortens paths of recordings, each to at most ``width`` cells.

    A longer one keeps the ends of its file name. Where different ones would then be alike, what all begin with goes.
    """
    names = [path if cell_len(path) <= width else cut_middle(PurePath(path).name or path, width) for path in paths]
    if len(set(names)) == len(set(paths)):
        return names
    alike = next((at for at, letters in enumerate(zip(*paths, strict=False)) if len(set(letters)) > 1), 0)
    word = _LAST_WORD.search(paths[0][:alike])
    start = alike if word is None else word.start()
    return [cut_end(f"…{path[start:]}", width) for path in paths]


def cut_middle(text: str, width: int, ellipsis: str = "…") -> str:
    """Cuts the text in the middle, to at most ``width`` cells.

    Its beginning and its end stay, where names of tuned kernels differ.
    """
    if cell_len(text) <= width:
        return text
    room = width - len(ellipsis)
    if room < 2:
        return _head(text, width)
    return _head(text, room - room // 2) + ellipsis + _tail(text, room // 2)


def cut_end(text: str, width: int, ellipsis: str = "…") -> str:
    """The text in at most ``width`` cells: its beginning."""
    if cell_len(text) <= width:
        return text
    return _head(text, width - len(ellipsis)) + ellipsis if width > len(ellipsis) else _head(text, width)


def cut_start(text: str, width: int, ellipsis: str = "…") -> str:
    """Cuts the text at its start, to at most ``width`` cells.

    Its end stays, where a path names the file and the line.
    """
    return cut_end(text[::-1], width, ellipsis[::-1])[::-1]


_PART = re.compile(r" > |\.")


def cut_place(text: str, width: int, ellipsis: str = "…") -> str:
    """Cuts a source or a module path to at most ``width`` cells.

    Of a source its end stays, of a module path its first part and its last ones; the last ones alone where they fit.
    """
    marks = list(_PART.finditer(text))
    if cell_len(text) <= width or ":" in text:
        return cut_start(text, width, ellipsis)
    if len(marks) < 2:
        return cut_middle(text, width, ellipsis)
    separator = marks[0][0]
    first = text[: marks[0].end()] + ellipsis + separator
    tails = [text[mark.end() :] for mark in marks[1:]]
    starts = (first, ellipsis + separator)
    fits = (start + tail for start in starts for tail in tails if cell_len(start + tail) <= width)
    return next(fits, cut_middle(text, width, ellipsis))


def _numbered(text: str, width: int, ellipsis: str, taken: set[str]) -> str:
    short, number = cut_middle(text, width, ellipsis), 2
    while short in taken and width > 8:
        mark = f" #{number}"
        short, number = cut_middle(text, width - len(mark), ellipsis) + mark, number + 1
    return short


def _head(text: str, width: int) -> str:
    return set_cell_size(text, width).rstrip() if width > 0 else ""


def _tail(text: str, width: int) -> str:
    return _head(text[::-1], width)[::-1] if width > 0 else ""
