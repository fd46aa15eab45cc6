"""Exports a window under a torch older than 2.13.

Its own exporter is written in C++ and knows none of our lines. Its file is valid JSON only while no name holds a
quotation mark, so that names are mended first. Then our lines are added to its text, which is never parsed: the events
of a window take a hundred megabytes.
"""

import gzip
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bottleneck.harness.torch_private import event_tree

_GZIP_LEVEL = 5
_NAME = re.compile(
    rb'(?P<before>\n  \{\n    "ph": "X", "cat": "[^"\n]*", "name": ")(?P<name>.*?)(?P<after>", "pid": )', re.DOTALL
)
# Kineto writes each event over several lines, of which the last one holds a brace alone. None but its own marks of the
# end of the window comes last.
_FRAME = re.compile(
    rb'\n  \{\n    "ph": "X", "cat": "python_function", "name": (?P<name>"(?:[^"\\]|\\.)*"), "pid": .*?\n  \},',
    re.DOTALL,
)
_EVENTS = b'"traceEvents": ['
_BASE = re.compile(rb'"baseTimeNanoseconds": (\d+)')
_UNSAFE = re.compile(rb'["\\\x00-\x1f]')


@dataclass(frozen=True)
class NativeActivity:
    """Event of the profiler with what our lines are placed by.

    That is its name, start, process and thread.
    """

    event: Any

    def name(self) -> str:
        """The name."""
        return str(self.event.name())

    def timestamp(self) -> int:
        """Start on the Unix clock in nanoseconds."""
        return int(self.event.start_ns())

    def device_id(self) -> int:
        """The process: the profiler tells of others in other events only."""
        return os.getpid()

    def resource_id(self) -> int:
        """The thread as the system numbers it."""
        return int(self.event.device_resource_id())


def count_events(results: Any) -> int:
    """Counts the events that the export will hold.

    Those of the tree, where frames of Python are, or the ops alone.
    """
    waiting, count = list(event_tree(results)), 0
    while waiting:
        count += len(waiting)
        waiting = [child for event in waiting for child in event.children]
    return max(count, len(results.events()))


def export(results: Any, path: Path, metadata: Mapping[str, str]) -> None:
    """Writes the gzipped trace of the results `WithLines`; ``metadata`` holds JSON by name.

    OSError where the disk cannot take it.
    """
    plain = path.with_suffix(".json")
    try:
        results.save(str(plain))
        content = _NAME.sub(_mended, plain.read_bytes())
    finally:
        plain.unlink(missing_ok=True)
    content = _FRAME.sub(partial(_renamed, results), content)
    base = _BASE.search(content)
    lines = "".join(_spelled(line, int(base[1]) if base is not None else 0) for line in results.added())
    fields = "".join(f"{json.dumps(name)}: {value},\n" for name, value in metadata.items())
    start, opening, rest = content.partition(_EVENTS)
    with gzip.open(path, "wb", _GZIP_LEVEL) as file:
        file.write(start.replace(b"{", b"{\n" + fields.encode(), 1))
        file.write(opening + lines.encode() if rest.lstrip()[:1] == b"{" else opening)
        file.write(rest)


def _spelled(line: Any, base_ns: int) -> str:
    """The event of a line, with a comma behind it."""
    start_us, dur_us = _in_us(line.timestamp() - base_ns), _in_us(line.duration())
    where = f'"pid": {line.device_id()}, "tid": {line.resource_id()}'
    kind = f'"cat": {json.dumps(line.type())}, "name": {json.dumps(line.name())}'
    return f'\n{{"ph": "X", {kind}, {where}, "ts": {start_us}, "dur": {dur_us}}},'


def _renamed(results: Any, match: re.Match[bytes]) -> bytes:
    """Returns the event of a frame under the name of the results.

    Nothing where they leave it out.
    """
    before = json.loads(match["name"])
    name = results.renamed(before)
    if name is None:
        return b""
    return match[0] if name == before else match[0].replace(match["name"], json.dumps(name).encode(), 1)


def _in_us(time_ns: int) -> str:
    """Whole nanoseconds in microseconds, without rounding."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _mended(match: re.Match[bytes]) -> bytes:
    """The name as JSON spells it, where the exporter wrote it as it was."""
    name = match["name"]
    if _UNSAFE.search(name) is None:
        return match[0]
    try:
        json.loads(b'"%s"' % name)
    except ValueError:
        name = json.dumps(name.decode("utf-8", "replace"))[1:-1].encode()
    return match["before"] + name + match["after"]
