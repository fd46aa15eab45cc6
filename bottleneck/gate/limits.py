"""Parses limits ("+3%", "+2", "+10MB") of pyproject.toml and --fail-on, and defines the default limits."""

import re
from collections.abc import Mapping
from pathlib import Path

from bottleneck.errors import UsageError
from bottleneck.gate.toml_table import TomlTable, shown
from bottleneck.schema.counters import COUNTERS, MODULE_COUNTERS
from bottleneck.schema.gate_result import Limit

STEP = "step_us"
MODULE_PREFIX = "module:"
# The step by the names that people write.
_STEP_NAMES = ("step_us", "step_ms")

_TIMES = {"us": 1.0, "ms": 1e3, "s": 1e6}
_BYTES = {"B": 1, "KB": 10**3, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_FLOPS = {"FLOP": 1, "kFLOP": 10**3, "MFLOP": 10**6, "GFLOP": 10**9, "TFLOP": 10**12}
_SCALES: Mapping[str | None, Mapping[str, float]] = {None: {}, "B": _BYTES, "FLOP": _FLOPS, "us": _TIMES}
_AMOUNT = re.compile(r"(\+?)([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(%|[A-Za-z]{1,8})?")
# FLOPs and bytes repeat exactly too; allocated memory does except for workspaces that a library requests.
_DEFAULT_TEXTS = {name: "+1%" if name in {"peak_bytes", "allocated_bytes"} else "+0" for name in COUNTERS}
# Below 20 us a step is shorter than what two clocks of the same machine agree on.
_STEP_DEFAULT = Limit(STEP, relative=0.03, floor=20.0, text="+3%")


def default_budgets() -> dict[str, Limit]:
    """The limits of what pyproject.toml does not name."""
    budgets = {name: Limit(name, *_growth(name, text), text=text) for name, text in _DEFAULT_TEXTS.items()}
    return {**budgets, STEP: _STEP_DEFAULT}


def read_limits(section: TomlTable, *, of_anchor: bool = False) -> dict[str, Limit]:
    """The limits of a table, by metric; those of an anchor are of counters of the whole step only."""
    limits: dict[str, Limit] = {}
    for key in section.data:
        metric = _metric(section, key)
        if of_anchor and metric not in COUNTERS:
            raise section.error(
                key, "an anchor holds the counters of a step, no times and no modules", "give it a budget instead"
            )
        if metric in limits:
            raise section.error(key, f"{metric} has two limits")
        limits[metric] = _read_limit(section, key, metric)
    return limits


def limits_of_option(option: str, text: str | None) -> tuple[Limit, ...]:
    """The limits of an option's value ('step=+3%,syncs=+0'); UsageError where it is not valid."""
    if text is None:
        return ()
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    data = {STEP if name.strip() == "step" else name.strip(): limit.strip() for name, _, limit in pairs}
    if not data or len(data) < len(pairs):
        raise UsageError(f"{option} {text} names nothing, or something twice", fix="write it as step=+3%,syncs=+0")
    fix = "write it as step=+3%,syncs=+0,h2d_bytes=+10MB"
    limits = read_limits(TomlTable(data, Path(option), UsageError, fix))
    for name in limits:
        if name.startswith(MODULE_PREFIX):
            raise UsageError(
                f"{option} {name}: compare holds the whole step alone", fix="bottleneck gate limits modules"
            )
    return tuple(limits.values())


def split_module_metric(metric: str) -> tuple[str, str] | None:
    """The pattern of module paths and the counter of 'module:PATTERN.COUNTER'; null for any other metric."""
    if not metric.startswith(MODULE_PREFIX):
        return None
    pattern, _, counter = metric.removeprefix(MODULE_PREFIX).rpartition(".")
    return pattern, counter


def _metric(section: TomlTable, key: str) -> str:
    parts = split_module_metric(key)
    if parts is None:
        section_of = TomlTable({key: None}, section.file, section.failure, section.fix, section.path)
        section_of.refuse_others((*COUNTERS, *_STEP_NAMES))
        return STEP if key in _STEP_NAMES else key
    pattern, counter = parts
    if not pattern or counter not in MODULE_COUNTERS:
        names = ", ".join(MODULE_COUNTERS)
        raise section.error(key, f"a limit of modules is written module:PATTERN.COUNTER, with one of {names}")
    return key


def _read_limit(section: TomlTable, key: str, metric: str) -> Limit:
    value = section.data[key]
    if not isinstance(value, dict):
        relative, absolute = _parse(section, key, metric, value)
        return Limit(metric, relative, absolute, text=str(value))
    part = section.section(key)
    part.refuse_others(("max", "floor"))
    text = part.text("max")
    relative, absolute = _parse(part, "max", metric, text)
    return Limit(metric, relative, absolute, _floor(part, metric), text)


def _parse(section: TomlTable, key: str, metric: str, value: object) -> tuple[float | None, float | None]:
    if not isinstance(value, str):
        raise section.error(key, f"a limit is a text in quotes, and this is {shown(value)}", _FIX)
    try:
        return _growth(metric, value)
    except ValueError as exc:
        raise section.error(key, str(exc), _FIX) from exc


def _floor(section: TomlTable, metric: str) -> float:
    if "floor" not in section.data:
        return 0.0
    text = section.text("floor")
    try:
        relative, absolute = _growth(metric, text if text.startswith("+") else f"+{text}")
    except ValueError as exc:
        raise section.error("floor", str(exc), _FIX) from exc
    if absolute is None or relative is not None:
        raise section.error("floor", f"a floor is an amount, and this is {shown(text)}", _FIX)
    return absolute


_FIX = 'write "+0", "+2", "+3%", "+10MB" (bytes), "+0.2ms" (the step), or { max = "+3%", floor = "0.2ms" }'


def _growth(metric: str, text: str) -> tuple[float | None, float | None]:
    """The share and the amount that a text allows, one of them null; ValueError where it is not valid."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"this is no limit: {shown(text)}")
    sign, digits, unit = match.groups()
    if not sign:
        raise ValueError(f"a limit is the growth that is allowed, and begins with +: {shown('+' + text.strip())}")
    if unit == "%":
        return float(digits) / 100, None
    return None, float(digits) * _scale(metric, unit, digits)


def _scale(metric: str, unit: str | None, digits: str) -> float:
    parts = split_module_metric(metric)
    name = parts[1] if parts else metric
    scales = _SCALES["us" if name == STEP else COUNTERS[name].unit]
    if unit is None:
        if name == STEP and float(digits):
            raise ValueError(f"{name} is a time, whose amount has a unit: {', '.join(scales)}")
        if "." in digits:
            raise ValueError(f"{name} is counted in whole numbers")
        return 1.0
    if unit not in scales:
        units = f"the units {', '.join(scales)}, or %" if scales else "no unit but %"
        raise ValueError(f"{name} has {units}; this is {shown(unit)}")
    return scales[unit]
