"""Conditions of a comparison: devices, dtypes, settings and measurements that differ, and those that do not."""

from typing import Any

import pytest

from bottleneck.compare.build import compare
from bottleneck.compare.sides import ComparedSide
from bottleneck.schema.analysis import Analysis, Caveat, Coverage
from bottleneck.schema.counters import Counts, Fingerprint
from bottleneck.schema.measurements import Timing
from bottleneck.schema.records import replace
from tests.compare.sides import side, stepped, work
from tests.report.samples import H100, NO_DEVICE, XEON

_ROWS = [work("aten::mm", 50.0, dtype="bf16", flops=1e9, source="a.py:1", module="Net_0")]
_FAST = replace(H100, name="AMD Instinct MI300X", kind="rocm", vendor="amd")


def _with(**changes: Any) -> ComparedSide:
    made = side(_ROWS)
    assert made.analysis is not None
    return replace(made, saved=replace(made.analysis, **changes))


def _plain() -> Analysis:
    made = side(_ROWS).analysis
    assert made is not None
    return made


def _said(before: ComparedSide, after: ComparedSide) -> list[tuple[str, str]]:
    return [(condition.what, condition.weight) for condition in compare(before, after).conditions]


@pytest.mark.parametrize(
    ("after", "what", "weight"),
    [
        (_with(device=_FAST), "device", "breaks"),
        (_with(device=replace(XEON, name=H100.name)), "kind of device", "breaks"),
        (_with(device=replace(NO_DEVICE, kind="cuda", name="unknown device")), "device name", "colours"),
        (_with(recording=replace(_plain().recording, world_size=8)), "ranks", "breaks"),
        (_with(steps=replace(_plain().steps, unprofiled_us=Timing(50.0, 49.0, 51.0, 9))), "step time", "breaks"),
        (_with(caveats=(Caveat("disturbed-profile", "…"),)), "measurement", "breaks"),
        (_with(recording=replace(_plain().recording, framework="PyTorch 2.1.0")), "framework", "colours"),
        (_with(steps=replace(_plain().steps, count=7)), "steps", "colours"),
        (_with(version="0.0.9"), "bottleneck", "colours"),
        (_with(coverage=Coverage(0.998, 0.2, ())), "modelled work", "colours"),
        (_with(kernels=(replace(_ROWS[0], dtype="fp32"),)), "dtype", "colours"),
        (_with(kernels=(replace(_ROWS[0], module=None),)), "modules known", "colours"),
        (_with(kernels=(replace(_ROWS[0], shapes=None),)), "shapes known", "colours"),
        (_with(kernels=(replace(_ROWS[0], source=None),)), "source lines known", "colours"),
        (_with(kernels=(replace(_ROWS[0], shapes="[[128, 64]]"),)), "sizes", "colours"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_differs_is_said_and_nothing_else(after: ComparedSide, what: str, weight: str) -> None:
    assert _said(side(_ROWS), after) == [(what, weight)]
    assert _said(after, side(_ROWS)) == [(what, weight)]
    assert _said(after, after) == []


def test_what_breaks_the_comparison_is_said_first() -> None:
    other = _with(device=_FAST, version="0.0.9", recording=replace(_plain().recording, framework="PyTorch 2.1.0"))
    assert [weight for _, weight in _said(side(_ROWS), other)] == ["breaks", "colours", "colours"]


def test_a_dtype_counts_by_its_arithmetic_and_not_by_the_number_of_its_kernels() -> None:
    casts = [work("aten::copy_", 30.0, shapes=f"[[{at}]]", dtype="fp32", flops=1e3, bound="memory") for at in range(9)]
    assert "dtype" not in dict(_said(side(_ROWS), side([*_ROWS, *casts])))


def _counted(values: dict[str, int], **facts: Any) -> ComparedSide:
    return ComparedSide("lock", "x.lock.toml", counts=Counts(values, Fingerprint(facts)))


def test_lock_files_are_compared_by_their_counters_alone() -> None:
    comparison = compare(_counted({"ops": 5, "syncs": 0}, torch="2.13"), _counted({"ops": 5, "syncs": 2}, torch="2.13"))
    assert [(each.name, each.before, each.after) for each in comparison.counters] == [("ops", 5, 5), ("syncs", 0, 2)]
    assert comparison.sentence == "1 of 2 counters differs: syncs 0 → 2; a side has no times."
    assert comparison.conditions == comparison.bars == comparison.rows == () and comparison.change_us is None


def test_facts_of_fingerprints_that_differ_are_said() -> None:
    told = compare(_counted({"ops": 5}, torch="2.12", python="3.11"), _counted({"ops": 5}, torch="2.13", python="3.11"))
    assert [(each.what, each.before, each.after) for each in told.conditions] == [("torch", "2.12", "2.13")]
    assert told.sentence == "No difference in 1 counter that both sides know; a side has no times."


def test_a_lock_file_against_a_recording_has_counters_and_no_times() -> None:
    recorded = replace(side(_ROWS), counts=Counts({"ops": 7, "launches": 3}, Fingerprint()))
    comparison = compare(_counted({"ops": 5}), recorded)
    assert comparison.before.step_us is None and comparison.after.step_us == 50.0 and comparison.bars == ()
    assert [(each.name, each.before, each.after) for each in comparison.counters] == [
        ("ops", 5, 7),
        ("launches", None, 3),
    ]


def test_without_any_counter_or_time_nothing_is_compared() -> None:
    assert compare(_counted({}), side(_ROWS)).sentence.startswith("Nothing can be compared")


def test_few_steps_are_said_to_tell_no_spread() -> None:
    one = side(_ROWS)
    assert any("too few to estimate their spread" in note for note in compare(one, one).notes)
    many = stepped(one, 0.01)
    assert not any("too few to estimate their spread" in note for note in compare(many, many).notes)
