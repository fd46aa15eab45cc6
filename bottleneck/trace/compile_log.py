"""Reads torch's own logs of its compiler (``TORCH_TRACE=FOLDER``).

They become the same records as those of a recording.

A log has one line of JSON per record, behind the time and place of the log call, and the record's payload behind it,
indented by a tab (`torch/_logging/_internal.py`, ``TorchLogsFormatter``). Records that are not needed are passed over
undecoded; nothing in a log is executed.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from bottleneck.errors import TraceError
from bottleneck.schema.compile_health import (
    METRICS,
    BreakEvent,
    CompileEvents,
    CompileLog,
    frames_in,
    is_own_file,
    summarize,
)
from bottleneck.schema.op_names import file_of
from bottleneck.system.files import cannot_read

# How torch names its logs; a rank stands between: dedicated_log_torch_trace_rank_0_ab12cd.log.
_NAMES = "dedicated_log_torch_trace_*.log"
_NAMED_RANK = re.compile(r"_rank_(\d{1,7})_")
# 'V1129 05:47:11.226000 26750 torch/_dynamo/utils.py:2350] {"…' and without a process number before torch 2.5.
_RECORD = re.compile(rb"^[VDIWEC]\d{4} [\d:.]{8,20} [^\]\n]{1,300}\] (?=\{)")
_BREAK = re.compile(
    r"^Graph break in user code at (?P<place>[^\n]*)\n(?:Graph Break Reason|Reason): (?P<text>.*?)"
    r"(?:\nUser code traceback:\n(?P<stack>.*?))?(?:\nTraceback \(most recent|\Z)",
    re.DOTALL,
)
_LONGEST_LINE, _LONGEST_PAYLOAD = 2**23, 2**22
_MOST_RECORDS = 100_000
_KERNELS = re.compile(r"= async_compile\.\w{1,40}\(|\bextern_kernels\.\w{1,60}\(")
_BACKWARD = "tangents_"
_BREAKS, _GUARDS, _CODE, _METRICS = "dynamo_graph_break_reason", "dynamo_cpp_guards_str", "output_code", "metrics"
_RECOMPILES, _VERSION = "recompile_reasons", "torch_version"
# A record is decoded if its line holds one of these.
_WANTED = tuple(
    f'"{name}"'.encode()
    for name in (_BREAKS, _GUARDS, "inductor_output_code", "compilation_metrics", _RECOMPILES, _VERSION)
)


def compile_log_files(path: Path) -> list[Path]:
    """Returns the logs at a path: the file, or those of a folder.

    Empty where it is something else, so that other readers have their turn.
    """
    try:
        if path.is_dir():
            return sorted(file for file in path.glob(_NAMES) if file.is_file())
        if not path.is_file() or path.suffix != ".log":
            return []
        with path.open("rb") as file:
            return [path] if _RECORD.match(file.readline(4096)) else []
    except OSError as exc:
        raise cannot_read(path, exc) from exc


def read_compile_logs(path: Path) -> tuple[CompileLog, ...]:
    """Reads the logs at a path, those with the most time of compiling first.

    Logs of processes that compiled nothing are left out. Raises TraceError where none is left or one cannot be read.
    """
    logs = []
    for file in compile_log_files(path):
        try:
            with file.open("rb") as content:
                logs.append(_read(file, content))
        except OSError as exc:
            raise cannot_read(file, exc) from exc
    full = [log for log in logs if log.health.graphs or log.health.breaks]
    if not full:
        raise TraceError(
            f"{path} holds no compilation",
            why="the program compiled nothing in the processes that wrote these logs, or the logs were cut off"
            if logs
            else "it has no dedicated_log_torch_trace_*.log",
            fix="run it again with an empty folder: TORCH_TRACE=FOLDER python FILE",
        )
    return tuple(sorted(full, key=lambda log: -(log.health.seconds or 0.0)))


class _Record(Struct):
    """A decoded line with its payload."""

    fields: dict[str, Any]
    payload: str = ""


def _read(file: Path, content: BinaryIO) -> CompileLog:
    reader = _LogReader(content)
    metrics: list[dict[str, Any]] = []
    breaks: list[BreakEvent] = []
    recompiles: dict[str, list[str]] = {}
    guards: dict[str, str] = {}
    kernels: dict[str, int] = {}
    version = None
    for record in reader.records():
        key = _compile_id(record.fields)
        kind = _kind(record.fields)
        if kind == _METRICS:
            fields = record.fields["compilation_metrics"]
            if isinstance(fields, dict):
                metrics.append({**{name: fields.get(name) for name in METRICS}, "compile_id": key})
        elif kind == _BREAKS and (match := _BREAK.match(record.payload)):
            breaks.append(BreakEvent(match["text"], frames_in(match["stack"] or ""), key))
        elif kind == _RECOMPILES and key is not None:
            recompiles[key] = _reasons(record.payload)
        elif kind == _GUARDS and key is not None:
            guards[key] = record.payload
        elif kind == _CODE and key is not None and _BACKWARD not in record.payload:
            kernels.setdefault(key, len(_KERNELS.findall(record.payload)))
        elif kind == _VERSION:
            version = _version(record.payload)
    rank = _NAMED_RANK.search(file.name)
    events = CompileEvents(
        metrics=[one for one in metrics if one["compile_id"]],
        breaks=breaks,
        recompiles=recompiles,
        guards=guards,
        kernels=kernels,
        is_partial=reader.damaged > 0,
    )
    return CompileLog(
        path=str(file),
        health=summarize(events, file_of, is_own_file),
        damaged=reader.damaged,
        rank=None if rank is None else int(rank[1]),
        torch_version=version,
    )


class _LogReader:
    """Reads records one by one.

    A log of any size takes little memory.
    """

    def __init__(self, content: BinaryIO) -> None:
        self._content = content
        self.damaged = 0
        self._seen = 0

    def records(self) -> Iterator[_Record]:
        """Yields the wanted records, each once its payload is read."""
        record: _Record | None = None
        payload: list[bytes] = []
        size = 0
        for line in self._lines():
            if line.startswith(b"\t"):
                if record is not None and size < _LONGEST_PAYLOAD:
                    payload.append(line[1:])
                    size += len(line)
                continue
            if record is not None:
                yield self._with_payload(record, payload)
            record, payload, size = self._decoded(line), [], 0
        if record is not None:
            yield self._with_payload(record, payload)

    def _lines(self) -> Iterator[bytes]:
        while line := self._content.readline(_LONGEST_LINE):
            if line.endswith(b"\n") or len(line) < _LONGEST_LINE:
                yield line
                continue
            self.damaged += 1
            while (rest := self._content.readline(_LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass

    def _decoded(self, line: bytes) -> _Record | None:
        match = _RECORD.match(line)
        if match is None:
            self.damaged += bool(line.strip())
            return None
        if not any(name in line for name in _WANTED) or self._seen >= _MOST_RECORDS:
            return None
        try:
            fields = msgspec.json.decode(line[match.end() :])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
            self.damaged += 1
            return None
        if not isinstance(fields, dict):
            self.damaged += 1
            return None
        self._seen += 1
        return _Record(fields)

    @staticmethod
    def _with_payload(record: _Record, payload: list[bytes]) -> _Record:
        return _Record(record.fields, b"".join(payload).decode("utf-8", "replace"))


def _kind(fields: dict[str, Any]) -> str:
    if "compilation_metrics" in fields:
        return _METRICS
    if "inductor_output_code" in fields:
        return _CODE
    if _GUARDS in fields:
        return _GUARDS
    artifact = fields.get("artifact")
    name = artifact.get("name") if isinstance(artifact, dict) else None
    return name if isinstance(name, str) else ""


def _version(payload: str) -> str | None:
    """Returns torch's version from its record, which is an object or a plain text."""
    try:
        content = msgspec.json.decode(payload.encode())
    except (msgspec.DecodeError, RecursionError):
        return None
    version = content.get("pytorch_version") if isinstance(content, dict) else content
    return version[:60] if isinstance(version, str) else None


def _compile_id(fields: dict[str, Any]) -> str | None:
    """Returns '0/1' of a record; null for records outside of a compilation."""
    frame, again = fields.get("frame_id"), fields.get("frame_compile_id")
    return f"{frame}/{again}" if isinstance(frame, int) and isinstance(again, int) else None


def _reasons(payload: str) -> list[str]:
    """Returns the reasons of each earlier graph.

    One alone is plain text, several are a list.
    """
    text = payload.strip()
    if text.startswith("["):
        try:
            reasons = msgspec.json.decode(text.encode())
        except (msgspec.DecodeError, RecursionError):
            return [text]
        return [reason for reason in reasons if isinstance(reason, str)] if isinstance(reasons, list) else []
    return [text]
