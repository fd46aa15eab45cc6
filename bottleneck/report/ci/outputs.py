"""Writes the gate's result in every requested format."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from bottleneck.errors import UsageError
from bottleneck.report.ci.annotations import render_github, render_gitlab, render_sarif
from bottleneck.report.ci.junit import render as render_junit
from bottleneck.report.ci.openmetrics import render as render_openmetrics
from bottleneck.report.ci.phrases import verdict_of
from bottleneck.report.json_text import encode
from bottleneck.report.output import write_bytes
from bottleneck.schema.gate_result import Gate
from bottleneck.schema.measurements import Ratio


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


def _html(gate: Gate) -> str:
    """A page for a browser."""
    from bottleneck.report.ci.gate_document import build  # noqa: PLC0415 - as above
    from bottleneck.report.page import document_to_html  # noqa: PLC0415 - jinja2 is loaded only where it is used

    return document_to_html(build(gate))


_MEASUREMENT = {field.name for field in fields(Ratio)}  # those of Timing too
_HEAD = ("schema", "version", "verdict", "exit_code", "sentence")


def to_json(gate: Gate) -> str:
    """The gate as JSON. ``verdict`` is that of all workloads together, which follows from the others."""
    tree = _known_measurements(msgspec.to_builtins(gate))
    return encode({**tree, "verdict": verdict_of(gate)}, _HEAD)


def _known_measurements(value: Any) -> Any:
    """The same tree with null for a ratio or timing that has a number which is not finite."""
    if isinstance(value, dict):
        if value.keys() == _MEASUREMENT and not all(map(math.isfinite, value.values())):
            return None
        return {key: _known_measurements(each) for key, each in value.items()}
    return [_known_measurements(each) for each in value] if isinstance(value, list | tuple) else value


GATE_FORMATS: Mapping[str, GateFormat] = {
    "terminal": GateFormat("gate.txt", _terminal),
    "markdown": GateFormat("gate.md", _markdown),
    "json": GateFormat("gate.json", to_json),
    "html": GateFormat("gate.html", _html),
    "junit": GateFormat("junit.xml", render_junit),
    "sarif": GateFormat("gate.sarif", render_sarif),
    "github": GateFormat("annotations.txt", render_github),
    "gitlab": GateFormat("codequality.json", render_gitlab),
    "openmetrics": GateFormat("metrics.txt", render_openmetrics),
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
