"""Which lines of the working tree a change touches, as git tells the difference to a commit."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from bottleneck.experiment.git import git_in

_DIFF = (
    "diff",
    "--unified=0",
    "--find-renames",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--relative",
    "--ignore-submodules=all",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--diff-filter=ACMRT",
)
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}

# A source file is smaller; data that lies about need not be read.
_UNTRACKED_BYTES = 1 << 20


def touched_lines(root: Path, commit: str, until: str = "") -> Mapping[str, frozenset[int]] | None:
    """The lines, counted from 1, of each file under ``root`` that differ from the commit or are new.

    With ``until`` they are those of that commit, not of the working tree.

    Lines that are gone have no number. Files that git does not know and does not ignore are new as a whole. Null where
    git cannot tell.
    """
    git = git_in(root)
    if not commit or commit.startswith("-") or until.startswith("-"):
        return None
    if until:
        between = git(*_DIFF, commit, until, "--")
        return parse_diff(between.output) if between.is_good else None
    difference = git(*_DIFF, commit, "--")
    others = git("ls-files", "--others", "--exclude-standard", "-z")
    if not (difference.is_good and others.is_good):
        return None
    names = [os.fsdecode(name) for name in others.output.split(b"\0") if name]
    return {**parse_diff(difference.output), **{name: whole for name in names if (whole := _all_lines(root / name))}}


def parse_diff(text: bytes) -> dict[str, frozenset[int]]:
    """The lines on the new side of a `git diff -U0`, by file."""
    found: dict[str, set[int]] = {}
    name: str | None = None
    number = content = 0
    for line in text.split(b"\n"):
        if content and line[:1] in {b"+", b"-"}:  # a line of a file, which may look like anything
            content -= 1
            if line.startswith(b"+"):
                found.setdefault(name or "", set()).add(number)
                number += 1
        elif (hunk := _HUNK.match(line)) is not None:
            content, number = int(hunk[1] or 1) + int(hunk[3] or 1), int(hunk[2])
        elif line.startswith(b"+++ "):
            name = _name(line[4:])
    return {name: frozenset(lines) for name, lines in found.items() if name}


def _name(written: bytes) -> str | None:
    """The file that stands after `+++`, quoted as in C where it is odd; null for /dev/null."""
    bare = written.removesuffix(b"\t")
    if bare.startswith(b'"') and bare.endswith(b'"'):
        bare = _ESCAPE.sub(_unescaped, bare[1:-1])
    return os.fsdecode(bare[2:]) if bare.startswith(b"b/") else None


def _unescaped(match: "re.Match[bytes]") -> bytes:
    what = match[1]
    return bytes([int(what, 8) & 0xFF]) if len(what) == 3 else _LETTERS.get(what, what)


def _all_lines(path: Path) -> frozenset[int]:
    """The numbers of the lines of a text file; none for what is no file, too large, or binary."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _UNTRACKED_BYTES:
            return frozenset()
        data = path.read_bytes()
    except OSError:
        return frozenset()
    return frozenset() if b"\0" in data else frozenset(range(1, len(data.splitlines()) + 1))
