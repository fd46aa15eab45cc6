"""The limits of ``bottleneck compare --fail-on``: read as those of pyproject.toml, and held against a comparison."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.errors import UndecidedError, UsageError

if TYPE_CHECKING:
    from bottleneck.schema.comparison import Comparison
    from bottleneck.schema.gate_result import Limit

_STEP, _STEP_METRIC = "step", "step_us"


def parse_limits(text: str | None) -> "tuple[Limit, ...]":
    """The limits that 'step=+3%,syncs=+0' spells; UsageError says what is wrong."""
    from bottleneck.gate.limits import read_limits
    from bottleneck.gate.toml_table import TomlTable

    if text is None:
        return ()
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    data = {_STEP_METRIC if name.strip() == _STEP else name.strip(): limit.strip() for name, _, limit in pairs}
    if not data or len(data) < len(pairs):
        raise UsageError(f"--fail-on {text} names nothing, or something twice", fix="write it as step=+3%,syncs=+0")
    fix = "write it as step=+3%,syncs=+0,h2d_bytes=+10MB"
    limits = read_limits(TomlTable(data, Path("--fail-on"), UsageError, fix))
    for name in limits:
        if name.startswith("module:"):
            raise UsageError(
                f"--fail-on {name}: compare holds the whole step alone", fix="bottleneck gate limits modules"
            )
    return tuple(limits.values())


def broken(limits: "Sequence[Limit]", comparison: "Comparison") -> list[str]:
    """A line for each limit that the change is beyond; UndecidedError where one cannot be held against anything."""
    told = []
    for limit in limits:
        before, after = _values(limit.metric, comparison)
        if before is None or after is None:
            raise UndecidedError(
                f"--fail-on {limit.metric}: not known of both sides",
                why="the comparison lists what is known, and why the rest is not",
                fix="name two recordings that have it, or leave this limit out",
            )
        if not limit.allows(before, after):
            told.append(f"over the limit: {limit.metric} {before:,.0f} -> {after:,.0f}, allowed {limit.text}")
    return told


def _values(metric: str, comparison: "Comparison") -> tuple[float | None, float | None]:
    if metric == _STEP_METRIC:
        return comparison.before.step_us, comparison.after.step_us
    found = next((each for each in comparison.counters if each.name == metric), None)
    return (None, None) if found is None else (found.before, found.after)
