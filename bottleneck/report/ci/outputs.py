"""Writes the gate's result in every requested format."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn

from bottleneck.errors import TraceError, UsageError
from bottleneck.report.ci.phrases import verdict_of
from bottleneck.report.output import write_bytes
from bottleneck.schema.gate_result import GATE_SCHEMA, Gate
from bottleneck.schema.measurements import Ratio, Timing


@dataclass(frozen=True)
class GateFormat:
    """A format: the name of its file in the folder of `--out`, and what makes the text of it."""

    file: str
    render: Callable[[Gate], str]


def _terminal(gate: Gate) -> str:
    """Text of 80 columns without colour; ``gate_terminal.render`` takes a width, colours and an encoding."""
    from bottleneck.report.ci.gate_terminal import render  # noqa: PLC0415 - rich is loaded only where it is used

    return render(gate)


def _markdown(gate: Gate) -> str:
    from bottleneck.report.ci.gate_markdown import render  # noqa: PLC0415 - as above

    return render(gate)


def _json(gate: Gate) -> str:

    return to_json(gate)


def _junit(gate: Gate) -> str:
    from bottleneck.report.ci.junit import render  # noqa: PLC0415 - only the formats asked for are loaded

    return render(gate)


def _sarif(gate: Gate) -> str:
    from bottleneck.report.ci.annotations import render_sarif as render  # noqa: PLC0415 - as above

    return render(gate)


def _github(gate: Gate) -> str:
    from bottleneck.report.ci.annotations import render_github as render  # noqa: PLC0415 - as above

    return render(gate)


def _gitlab(gate: Gate) -> str:
    from bottleneck.report.ci.annotations import render_gitlab as render  # noqa: PLC0415 - as above

    return render(gate)


def _openmetrics(gate: Gate) -> str:
    from bottleneck.report.ci.openmetrics import render  # noqa: PLC0415 - as above

    return render(gate)


GATE_FORMATS: Mapping[str, GateFormat] = {
    "terminal": GateFormat("gate.txt", _terminal),
    "markdown": GateFormat("gate.md", _markdown),
    "json": GateFormat("gate.json", _json),
    "junit": GateFormat("junit.xml", _junit),
    "sarif": GateFormat("gate.sarif", _sarif),
    "github": GateFormat("annotations.txt", _github),
    "gitlab": GateFormat("codequality.json", _gitlab),
    "openmetrics": GateFormat("metrics.txt", _openmetrics),
}


def write_formats(gate: Gate, folder: Path, names: Iterable[str]) -> tuple[Path, ...]:
    """Writes these formats into the folder, each file whole or not at all; their paths.

    One that cannot be written keeps no other from being written: the first error is raised after all were tried, with
    the others in its notes. UsageError where a name is no format's, before anything is written.
    """
    chosen = [GATE_FORMATS[name] for name in _known(names)]
    errors: list[Exception] = []
    paths: list[Path] = []
    _make(folder)
    for form in chosen:
        try:
            write_bytes(form.render(gate).encode("utf-8", "backslashreplace"), folder / form.file)
            paths.append(folder / form.file)
        except Exception as exc:  # whatever it is, the other files are still to be written
            errors.append(exc)
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"and: {other}")
        raise errors[0]
    return tuple(paths)


def _known(names: Iterable[str]) -> tuple[str, ...]:
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in GATE_FORMATS:
            raise UsageError(f"there is no format {name!r:.80}", fix=f"name some of {', '.join(GATE_FORMATS)}")
    return wanted


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(
            f"cannot make the folder {folder}", why=exc.strerror or str(exc), fix="name a folder that can be written"
        ) from exc


_HEAD = ("schema", "version", "verdict", "exit_code", "sentence")


def to_json(gate: Gate) -> str:
    """The gate as indented JSON in ASCII, which ``read_gate`` reads back; what is not finite is null, as unknown.

    ``verdict`` is that of all workloads together, which follows from the others and is not read.
    """
    plain = {**_plain(gate), "verdict": verdict_of(gate)}
    return json.dumps({key: plain[key] for key in (*_HEAD, *plain)}, indent=1, ensure_ascii=True) + "\n"


def read_gate(text: str) -> Gate:
    """The gate in a text of ``to_json``, of this schema; TraceError says what is wrong with any other text.

    Keys that we do not know are ignored, so that a file of a later version of the same schema can be read.
    """
    import msgspec  # noqa: PLC0415 - loaded only where it is used

    try:
        tree = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as exc:
        raise _not_readable("this is no JSON", str(exc)) from exc
    if not isinstance(tree, dict) or "schema" not in tree:
        raise _not_readable("this is no gate.json", "it has no key 'schema'")
    if tree["schema"] != GATE_SCHEMA:
        raise _not_readable(f"the gate has schema {tree['schema']!r:.80}", f"this version reads {GATE_SCHEMA!r} only")
    try:
        return msgspec.convert(tree, Gate)
    except (msgspec.ValidationError, AssertionError, RecursionError) as exc:
        raise _not_readable("the gate breaks its schema", str(exc)) from exc


def _plain(value: Any) -> Any:
    """The record as dicts and lists, with null for floats that are not finite; a measurement without them is null."""
    if is_dataclass(value):
        tree = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return None if isinstance(value, Ratio | Timing) and None in tree.values() else tree
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _not_readable(what: str, why: str) -> TraceError:
    return TraceError(what, why=why, fix="make it again: bottleneck gate --out FOLDER --format json")
