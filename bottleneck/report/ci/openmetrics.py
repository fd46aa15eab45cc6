"""The gate's counters as OpenMetrics text."""

import math
from collections.abc import Iterable

from bottleneck.report.ci.phrases import VERDICTS, verdict_of
from bottleneck.report.text import clean
from bottleneck.schema.gate_result import Gate, WorkloadResult

_LABEL = 200

_Sample = tuple[dict[str, str], float | int]


def render(gate: Gate) -> str:
    """Each family with its type and samples; what is not known has no sample."""
    results = gate.results
    families: dict[str, list[_Sample]] = {
        "bottleneck_gate_exit_code": [({"verdict": VERDICTS[verdict_of(gate)]}, gate.exit_code)],
        "bottleneck_gate_seconds": [({}, gate.seconds)],
        "bottleneck_counter": [sample for result in results for sample in _counters(result)],
        "bottleneck_step_ratio": [sample for result in results for sample in _ratio(result)],
    }
    lines = [line for name, samples in families.items() for line in _family(name, samples)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _counters(result: WorkloadResult) -> list[_Sample]:
    """Counters of this run, each metric once: a creep budget holds the same value against another baseline."""
    known = {change.metric: change.after for change in result.counters if change.after is not None}
    return [({"workload": result.name, "metric": metric}, value) for metric, value in known.items()]


def _ratio(result: WorkloadResult) -> list[_Sample]:
    """Candidate / base step time, with its interval."""
    ratio = None if result.time is None else result.time.ratio
    if ratio is None:
        return []
    values = {"low": ratio.low, "median": ratio.median, "high": ratio.high}
    return [({"workload": result.name, "bound": bound}, value) for bound, value in values.items()]


def _family(name: str, samples: Iterable[_Sample]) -> list[str]:
    """A family's lines; of samples whose labels are alike once cleaned, the first."""
    values: dict[str, str] = {}
    for labels, value in samples:
        if math.isfinite(value):
            values.setdefault(_labels(labels), f"{value}")
    return [f"# TYPE {name} gauge", *(f"{name}{labels} {value}" for labels, value in values.items())] if values else []


def _labels(labels: dict[str, str]) -> str:
    pairs = ",".join(f'{key}="{_value(text)}"' for key, text in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _value(text: str) -> str:
    """A label's value: backslash, quote and line feed escaped, the unprintable made visible before."""
    return clean(text, _LABEL).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
