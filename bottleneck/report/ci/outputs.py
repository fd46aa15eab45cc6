"""Lists the gate's formats; JSON and OpenMetrics are made here."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from bottleneck.report import lazily
from bottleneck.report.ci.annotations import render_github, render_gitlab, render_sarif
from bottleneck.report.ci.junit import render as render_junit
from bottleneck.report.ci.phrases import verdict_of, verdict_words
from bottleneck.report.json_text import encode
from bottleneck.report.output import make_folder, write_bytes
from bottleneck.report.text import clean
from bottleneck.schema.gate_result import Gate
from bottleneck.schema.measurements import Ratio


@dataclass(frozen=True)
class GateFormat:
    """A format: the name of its file, and its renderer."""

    file: str
    render: Callable[[Gate], str]


_MEASUREMENT = {field.name for field in fields(Ratio)}  # those of Timing too
_HEAD = ("schema", "version", "verdict", "exit_code", "sentence")


def to_json(gate: Gate) -> str:
    """Renders the gate as JSON.

    ``verdict`` is that of all workloads together, which follows from the others.
    """
    tree = _known_measurements(msgspec.to_builtins(gate))
    return encode({**tree, "verdict": verdict_of(gate)}, _HEAD)


def _known_measurements(value: Any) -> Any:
    """Replaces ratios and timings that are not finite by null."""
    if isinstance(value, dict):
        if value.keys() == _MEASUREMENT and not all(map(math.isfinite, value.values())):
            return None
        return {key: _known_measurements(item) for key, item in value.items()}
    return [_known_measurements(item) for item in value] if isinstance(value, list | tuple) else value


_LABEL = 200
_Sample = tuple[dict[str, str], float | int]


def to_openmetrics(gate: Gate) -> str:
    """Renders counters and step ratios as OpenMetrics text.

    What is not known has no sample.
    """
    counters: list[_Sample] = []
    ratios: list[_Sample] = []
    for result in gate.results:
        # Each metric once: a creep budget holds the same value against another baseline.
        values_now = {change.metric: change.after for change in result.counters if change.after is not None}
        counters += [({"workload": result.name, "metric": metric}, value) for metric, value in values_now.items()]
        ratio = None if result.time is None else result.time.ratio  # candidate / base
        if ratio is not None:
            values = {"low": ratio.low, "median": ratio.median, "high": ratio.high}
            ratios += [({"workload": result.name, "bound": bound}, value) for bound, value in values.items()]
    families: dict[str, list[_Sample]] = {
        "bottleneck_gate_exit_code": [({"verdict": verdict_words(gate)}, gate.exit_code)],
        "bottleneck_gate_seconds": [({}, gate.seconds)],
        "bottleneck_counter": counters,
        "bottleneck_step_ratio": ratios,
    }
    lines = [line for name, samples in families.items() for line in _family(name, samples)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _family(name: str, samples: Iterable[_Sample]) -> list[str]:
    """Renders a family; of samples with like labels, the first."""
    values: dict[str, str] = {}
    for labels, value in samples:
        if math.isfinite(value):
            pairs = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
            values.setdefault(f"{{{pairs}}}" if pairs else "", f"{value}")
    return [f"# TYPE {name} gauge", *(f"{name}{labels} {value}" for labels, value in values.items())] if values else []


def _label(text: str) -> str:
    """Escapes a label's value, the unprintable made visible before."""
    return clean(text, _LABEL).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


GATE_FORMATS: Mapping[str, GateFormat] = {
    "terminal": GateFormat("gate.txt", lazily("ci.gate_document", "to_terminal")),
    "markdown": GateFormat("gate.md", lazily("ci.gate_document", "to_markdown")),
    "json": GateFormat("gate.json", to_json),
    "html": GateFormat("gate.html", lazily("ci.gate_document", "to_html")),
    "junit": GateFormat("junit.xml", render_junit),
    "sarif": GateFormat("gate.sarif", render_sarif),
    "github": GateFormat("annotations.txt", render_github),
    "gitlab": GateFormat("codequality.json", render_gitlab),
    "openmetrics": GateFormat("metrics.txt", to_openmetrics),
}


def write_formats(gate: Gate, folder: Path, names: Iterable[str]) -> tuple[Path, ...]:
    """Writes these formats into the folder; gives their paths.

    Each file is written whole or not at all.

    One that cannot be written keeps no other from being written: the first error is raised after all were tried, with
    the others in its notes.
    """
    errors: list[Exception] = []
    paths: list[Path] = []
    make_folder(folder)
    for form in (GATE_FORMATS[name] for name in dict.fromkeys(names)):
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
