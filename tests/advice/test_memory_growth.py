"""The rule on memory that grows from step to step."""

from pathlib import Path
from typing import Any

import pytest

from bottleneck.advice import advise
from bottleneck.advice.memory_growth import memory_grows
from bottleneck.schema.finding_order import in_reading_order
from bottleneck.schema.measurements import Keeper, MemoryGrowth, Timing
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, cpu_events, gpu_events, with_recording
from tests.analysis.frames import CPU
from tests.builders import Event, op

LOSSES = Keeper("losses", "eval.py:16", has_graph=True)
EVALUATION = MemoryGrowth(steps=35, host_bytes=5e6, left_bytes=20_000_000_000, keepers=(LOSSES,))


def recorded(folder: Path, growth: MemoryGrowth | None, events: list[Event] | None = None) -> Any:
    events = cpu_events(10, 200, 300) if events is None else events
    return case_of(folder, events, unprofiled_us=3010.0, memory_growth=growth, device=fresh())


def fresh() -> Any:
    return replace(CPU, fresh_bytes_per_s=5e9)


def test_an_evaluation_that_keeps_graphs_is_told_first_with_its_line_and_its_end(tmp_path: Path) -> None:
    case = recorded(tmp_path, EVALUATION)
    draft = memory_grows(case)
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    # 5 MB at 5 GB/s are 1 ms of new pages.
    assert (draft.gain_us.low, draft.gain_us.high) == pytest.approx((-250.0, 1000.0))
    assert "5.00 MB per step in 35 steps: the 20.0 GB that were left are full after 4,000 steps" in draft.evidence[0]
    assert draft.evidence[1] == "`losses` grows at eval.py:16, and keeps the graph that made each tensor"
    assert "torch.no_grad()" in draft.advice and "eval.py:16" in draft.advice
    assert draft.tries == ("inference-mode",) and advise(case)[0].slug == "memory-grows"


def test_training_that_keeps_its_losses_is_told_to_keep_the_number(tmp_path: Path) -> None:
    node = op("autograd::engine::evaluate_function: MulBackward0", 20, 40)
    summed = Keeper("total", "train.py:30", has_graph=True, is_sum=True)
    draft = memory_grows(
        recorded(tmp_path, replace_keepers(EVALUATION, summed, host_bytes=3e3), [*cpu_events(10, 200, 300), node])
    )
    assert draft is not None and draft.gain_us is None and draft.gain_reason is not None and not draft.comes_first
    assert draft.code == "total += loss.item()" and draft.tries == ()
    assert draft.evidence == ("`total` is added to at train.py:30, and keeps the graph that made each tensor",)


def replace_keepers(growth: MemoryGrowth, *keepers: Keeper, host_bytes: float) -> MemoryGrowth:
    return MemoryGrowth(growth.steps, host_bytes, left_bytes=growth.left_bytes, keepers=keepers)


def test_memory_that_grows_without_a_known_variable_is_told_from_a_megabyte_on(tmp_path: Path) -> None:
    draft = memory_grows(recorded(tmp_path / "a", MemoryGrowth(60, 2e6)))
    assert draft is not None and draft.title == "Memory grows by 2.00 MB in each step" and not draft.comes_first
    assert memory_grows(recorded(tmp_path / "b", MemoryGrowth(60, 0.2e6))) is None
    # Batches of new sizes made a training grow by 66.5 MB in each of its first 8 steps, and less and less after them.
    assert memory_grows(recorded(tmp_path / "early", MemoryGrowth(8, 66.5e6))) is None
    assert memory_grows(recorded(tmp_path / "device", MemoryGrowth(8, None, 66.5e6))) is not None
    assert memory_grows(recorded(tmp_path / "held", replace_keepers(EVALUATION, LOSSES, host_bytes=5e6))) is not None
    # An allocator that takes 30 MB once.
    assert memory_grows(recorded(tmp_path / "c", MemoryGrowth(20, 1.5e6))) is None


def test_predictions_without_graphs_and_memory_that_shrinks_are_left_alone(tmp_path: Path) -> None:
    numbers = Keeper("predictions", "eval.py:20")
    assert memory_grows(recorded(tmp_path / "a", replace_keepers(EVALUATION, numbers, host_bytes=4e3))) is None
    assert memory_grows(recorded(tmp_path / "b", MemoryGrowth(60, 0.0))) is None
    assert memory_grows(recorded(tmp_path / "c", None)) is None


def test_a_gain_that_the_steps_cannot_show_hides_no_memory_that_runs_full(tmp_path: Path) -> None:
    cached = replace_keepers(EVALUATION, Keeper("cache", "data.py:11"), host_bytes=2e6)
    events = cpu_events(10, 200, 300)
    noisy, steady = (
        case_of(
            tmp_path / name,
            events,
            unprofiled=Timing(3010.0, 3010.0 - half_us, 3010.0 + half_us, 100),
            memory_growth=cached,
            device=fresh(),
        )
        for name, half_us in (("noisy", 500.0), ("steady", 30.0))
    )
    # 2 MB at 5 GB/s are 0.4 ms of new pages.
    draft = memory_grows(steady)
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high == pytest.approx(400.0)
    finding = next(one for one in advise(noisy) if one.slug == "memory-grows")
    assert finding.predicted_gain_us is None and not finding.within_noise
    assert finding.gain_reason == "it keeps memory from running full" and finding.places == ("data.py:11",)


def with_memory(events: list[Event], amounts: list[int], length: float, *, device: bool) -> list[Event]:
    """The events with one allocation in each step, which is never freed."""
    kind, number = (1, 0) if device else (0, -1)
    return [
        *events,
        *(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": 100,
                "tid": 100,
                "ts": length * index + 5,
                "s": "t",
                "args": {
                    "Device Type": kind,
                    "Device Id": number,
                    "Bytes": amount,
                    "Addr": 1000 + index,
                    "Total Allocated": sum(amounts[: index + 1]),
                },
            }
            for index, amount in enumerate(amounts)
        ),
    ]


def test_a_trace_whose_steps_all_keep_as_much_is_told_without_a_line(tmp_path: Path) -> None:
    events = cpu_events(10, 200, 300, steps=6)
    growing = with_memory(events, [20_000_000] * 6, 3010, device=False)
    draft = memory_grows(case_of(tmp_path / "more", growing, device=fresh()))
    assert draft is not None and draft.evidence[0].startswith("memory of the host grew by 20.0 MB per step in ")
    # Adam's moments: the first step only.
    once = with_memory(events, [100_000_000, 0, 0, 0, 0, 0], 3010, device=False)
    assert memory_grows(case_of(tmp_path / "once", once, device=fresh())) is None


def test_a_device_that_fills_up_is_told_without_a_gain(tmp_path: Path) -> None:
    growth = MemoryGrowth(40, 1e3, device_bytes=30e6, device_left_bytes=3_000_000_000)
    draft = memory_grows(with_recording(gpu_case(tmp_path), memory_growth=growth))
    assert draft is not None and draft.gain_us is None
    assert draft.evidence == (
        "memory of the device grew by 30.0 MB per step in 40 steps: the 3.00 GB that were left are full after "
        "100 steps",
    )


def gpu_case(folder: Path) -> Any:
    return case_of(folder, gpu_events(10, 20, 40), command=("eval.py",))


def test_the_headline_names_the_variable_before_a_finding_without_a_gain(tmp_path: Path) -> None:
    found = advise(recorded(tmp_path, EVALUATION))[0]
    later = replace(found, slug="growing-steps", advice="Find what grows.", predicted_gain_us=None)
    for ranked in ([found, later], [later, found]):
        assert in_reading_order(ranked, 3010.0, "overhead")[0] is ranked[0]
