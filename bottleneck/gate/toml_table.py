"""Reads TOML files that people edit; errors name key and remedy."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from bottleneck.errors import BottleneckError
from bottleneck.system.files import read_file

# Far above any real file; a parser in Python takes seconds for these.
_LIMIT_BYTES = 4_000_000
_QUOTES_AND_DOTS = re.compile(r"\\.|[\"'.]")
_CONFLICTS = ("<<<<<<< ", ">>>>>>> ", "||||||| ")
_Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class TomlTable:
    """A table of a TOML file with its path in the file.

    Its errors are of the kind ``failure``, name the file and the key, and end in ``fix``.
    """

    data: Mapping[str, object]
    file: Path
    failure: type[BottleneckError]
    fix: str = ""
    path: tuple[str, ...] = ()

    def error(self, key: str, why: str, fix: str = "") -> BottleneckError:
        """The error about a key of this table."""
        keys = (*self.path, key)
        place = ".".join(part if _is_bare(part) else shown(part) for part in keys)
        return self.failure(f"{self.file} is not valid: {place}", why=why, fix=fix or self.fix)

    def refuse_others(self, known: Iterable[str], fix: str = "") -> None:
        """Fails at the first unknown key, and names the nearest."""
        names = list(known)
        for key in self.data:
            if key not in names:
                near = difflib.get_close_matches(key[:_SHOWN_CHARACTERS], names, n=1, cutoff=0.5)
                hint = f"; the nearest is {near[0]}" if near else f"; known are {', '.join(names)}"
                raise self.error(key, f"there is no such key{hint}", fix)

    def value(self, key: str, kind: Any, what: str, default: object = None) -> Any:
        """Reads a value of this type, which an error calls ``what``.

        Null as a default means that the key has none.
        """
        value = self.data.get(key, default)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:  # its own words name no key
            end = "; it is missing" if value is None else f", and is {shown(value)}"
            raise self.error(key, f"this has to be {what}{end}") from None

    def section(self, key: str) -> "TomlTable":
        """The table under a key; empty where there is none."""
        return replace(self, data=self.value(key, dict[str, Any], "a table", {}), path=(*self.path, key))

    def sections(self, key: str) -> tuple["TomlTable", ...]:
        """The tables of an array of tables; empty where there is none."""
        rows = self.value(key, list[dict[str, Any]], "an array of tables", [])
        return tuple(replace(self, data=row, path=(*self.path, f"{key}[{n}]")) for n, row in enumerate(rows))

    def text(self, key: str, default: str | None = None) -> str:
        """A text; without a default it has to be there."""
        return str(self.value(key, str, "a text in quotes", default))

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty where there is none."""
        return tuple(self.value(key, tuple[str, ...], "a list of texts", ()))

    def whole(self, key: str, default: int | None = None) -> int:
        """Reads a whole number from 0 to 2^63 - 1.

        Without a default it has to be there.
        """
        return int(self.value(key, _Whole, "a whole number, 0 or more", default))

    def number(self, key: str) -> float:
        """A finite number; 0 where it is missing."""
        return float(self.value(key, _Finite, "a finite number", 0.0))

    def wholes(self) -> dict[str, int]:
        """This table, all of whose values are whole numbers."""
        return {key: self.whole(key) for key in self.data}

    def plain_texts(self) -> dict[str, str]:
        """This table, all of whose values are texts."""
        return {key: self.text(key) for key in self.data}


def read_toml(path: Path, failure: type[BottleneckError], fix: str, parts: int | None = None) -> TomlTable:
    """Reads the root table of a file.

    ``failure`` where it cannot be read, is no TOML or holds an unresolved merge.

    ``parts`` is the largest number of dots outside quotes in a line: tomllib takes time by the square of a key's parts.
    """
    try:
        data = read_file(path, _LIMIT_BYTES)
    except OSError as exc:
        raise failure(f"cannot read {path}: {exc.strerror}", fix=fix) from exc
    try:
        text = data.decode("utf-8")
        _refuse_conflict(path, text, failure)
        for number, line in enumerate(text.split("\n"), 1):
            if parts is not None and line.count(".") > parts and _bare_dots(line) > parts:
                raise failure(f"{path} is not valid", why=f"line {number} holds a key of over {parts} parts", fix=fix)
        return TomlTable(tomllib.loads(text), path, failure, fix)
    except RecursionError as exc:
        raise failure(f"{path} is not valid", why="its values are nested too deeply", fix=fix) from exc
    except ValueError as exc:  # of TOML, of UTF-8, and of a number with thousands of digits
        raise failure(f"{path} is not valid TOML", why=str(exc)[: 2 * _SHOWN_CHARACTERS], fix=fix) from exc


def _bare_dots(line: str) -> int:
    quote, dots = "", 0
    for match in _QUOTES_AND_DOTS.finditer(line):
        mark = match[0] if quote != "'" else match[0][-1]
        if quote:
            quote = "" if mark == quote else quote
        elif mark in "\"'":
            quote = mark
        else:
            dots += mark[-1] == "."
    return dots


def _refuse_conflict(path: Path, text: str, failure: type[BottleneckError]) -> None:
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(_CONFLICTS):
            raise failure(
                f"{path} holds an unresolved merge (line {number})",
                why=f"the line is {shown(line)}",
                fix="take one side (git checkout --theirs FILE), then write it anew: bottleneck gate --update",
            )


def _is_bare(key: str) -> bool:
    """True for a key that TOML shows without quotes."""
    return key.isascii() and key.replace("-", "_").replace("[", "_").replace("]", "_").isidentifier()


def shown(value: object) -> str:
    """Shows a value in an error, short and without control characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a table of thousands of levels
        return f"a very large {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
