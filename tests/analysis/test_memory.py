"""Memory of programs whose allocations are known: the peak, what lives at it, of which kind, and what is not known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bottleneck.analysis.memory import NO_EVENTS, NONE_IN_WINDOW, measure_memory
from bottleneck.pipeline import Options, analyse
from bottleneck.schema.analysis import Analysis, MemoryUse
from bottleneck.schema.measurements import RestingKind, RestingMemory
from tests.builders import Event, complete, kernel, launch, op, write_trace
from tests.samples import recordings
from tests.trace.traces import linked as linked_of
from tests.trace_cache import analysed


def memory(ts: float, size: int, address: int, total: int | None = None, **more: Any) -> Event:
    """An allocation (a free, where ``size`` is negative) on device 0; ``device=None`` is the host."""
    device = more.pop("device", 0)
    args = {"Bytes": size, "Addr": address, "Device Id": -1 if device is None else device, **more}
    args["Device Type"] = 0 if device is None else 1
    if total is not None:
        args |= {"Total Allocated": total, "Total Reserved": 2 * total if device is not None else 0}
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100, "tid": 100} | {
        "ts": ts,
        "args": args,
    }


BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


def training(events: Sequence[Event]) -> list[Event]:
    """A step: forward ops from 0 to 100, backward from 100 to 200, the optimizer from 200 to 300; one kernel."""
    step = complete("Optimizer.step#AdamW.step", "user_annotation", 200, 100)
    host = [op("aten::mm", 10, 40), op("aten::relu", 60, 30), op(BACKWARD, 100, 100), step, op("aten::add_", 210, 60)]
    return [*host, launch(1, 20, 5), kernel(1, 30, 250), *events]


def whole(folder: Path, events: Sequence[Event]) -> Analysis:
    return analyse([write_trace(folder / "trace.json", [*events])], Options(whole=True))


def used(folder: Path, events: Sequence[Event]) -> MemoryUse:
    """The record, whose parts add up to the peak in every case."""
    found = whole(folder, events).memory
    assert found is not None
    assert sum(part.bytes for part in found.kinds) == found.peak_bytes
    assert sum(row.bytes for row in found.allocations) + found.other_bytes + found.earlier_bytes == found.peak_bytes
    assert max(point[1] for point in found.curve) == found.peak_bytes
    return found


def kinds(found: MemoryUse) -> dict[str, int]:
    return {part.kind: part.bytes for part in found.kinds}


def test_the_peak_is_the_highest_total_and_its_instant(tmp_path: Path) -> None:
    found = used(tmp_path, training([memory(20, 100, 1, 100), memory(30, 50, 2, 150), memory(80, -50, 2, 100)]))
    assert (found.device, found.peak_bytes, found.reserved_bytes) == (0, 150, 300)
    assert found.peak_at_us == pytest.approx(20.0)  # the first op begins at 10
    assert [point[1] for point in found.curve] == [0, 100, 150, 100]


def test_a_result_of_a_forward_op_is_an_activation_and_its_workspace_a_temporary(tmp_path: Path) -> None:
    found = used(
        tmp_path,
        training([memory(20, 100, 1, 100), memory(21, 30, 2, 130), memory(40, -30, 2, 100), memory(150, -100, 1, 0)]),
    )
    assert kinds(found) == {"activations": 100, "temporaries": 30}


def test_what_outlives_the_backward_pass_is_a_gradient(tmp_path: Path) -> None:
    events = [memory(120, 64, 1, 64), memory(130, 16, 2, 80), memory(140, -16, 2, 64), memory(290, -64, 1, 0)]
    assert kinds(used(tmp_path, training(events))) == {"gradients": 64, "temporaries": 16}


def test_what_the_optimizer_keeps_is_its_state(tmp_path: Path) -> None:
    events = [memory(220, 64, 1, 64), memory(230, 16, 2, 80), memory(240, -16, 2, 64)]
    found = used(tmp_path, training(events))
    assert kinds(found) == {"optimizer state": 64, "temporaries": 16}
    state = next(row for row in found.allocations if row.kind == "optimizer state")
    assert (state.op, state.longest_us) == ("aten::add_", None)


def test_memory_from_before_is_told_by_gradients_as_far_as_they_do(tmp_path: Path) -> None:
    """400 bytes lived before: parameters as large as the gradients, twice that for Adam, and 100 of something else."""
    found = used(tmp_path, training([memory(120, 100, 1, 500), memory(290, -100, 1, 400)]))
    assert found.earlier_bytes == 400
    assert kinds(found) == {"optimizer state": 200, "parameters": 100, "gradients": 100, "unknown": 100}
    told = {part.kind: part.reason for part in found.kinds}
    assert told["unknown"] == "allocated before recording began" and told["parameters"]
    assert next(part for part in found.kinds if part.kind == "parameters").count is None


def test_without_gradients_memory_from_before_is_unknown(tmp_path: Path) -> None:
    found = used(tmp_path, [op("aten::mm", 10, 40), memory(20, 100, 1, 500), memory(60, -100, 1, 400)])
    assert kinds(found) == {"unknown": 400, "activations": 100}


def test_an_allocation_outside_ops_is_unknown_with_the_reason(tmp_path: Path) -> None:
    found = used(tmp_path, [op("aten::mm", 10, 40), memory(55, 100, 1, 100), op("aten::mm", 60, 10)])
    assert found.kinds[0].kind == "unknown" and "outside of forward" in (found.kinds[0].reason or "")


def test_an_allocating_op_stands_for_the_op_that_called_it(tmp_path: Path) -> None:
    inner = op("aten::empty", 15, 10)
    found = used(tmp_path, [op("aten::mm", 10, 40), inner, memory(20, 100, 1, 100)])
    assert [row.op for row in found.allocations] == ["aten::mm"]


def test_an_address_that_is_used_again_is_another_allocation(tmp_path: Path) -> None:
    events = [memory(20, 100, 1, 100), memory(25, -100, 1, 0), memory(30, 40, 1, 40), memory(80, 70, 2, 110)]
    found = used(tmp_path, training(events))
    assert (found.peak_bytes, sorted(row.bytes for row in found.allocations)) == (110, [40, 70])


def test_memory_that_only_falls_is_highest_at_the_start(tmp_path: Path) -> None:
    found = used(tmp_path, training([memory(20, -100, 1, 300), memory(30, -50, 2, 250)]))
    assert (found.peak_bytes, found.peak_at_us, found.earlier_bytes) == (400, 0.0, 400)


def test_of_two_devices_the_fuller_one_counts_and_not_the_host(tmp_path: Path) -> None:
    events = [
        memory(20, 100, 1, 100),
        memory(21, 900, 1, 900, device=1),
        memory(22, 5000, 3, 5000, device=None),
    ]
    assert (used(tmp_path, training(events)).device, used(tmp_path, training(events)).peak_bytes) == (1, 900)


def test_without_a_device_the_host_counts_and_says_its_limit(tmp_path: Path) -> None:
    found = used(tmp_path, [op("aten::mm", 10, 40), memory(20, 100, 1, 100, device=None)])
    assert found.device is None and found.reserved_bytes is None
    assert "since recording began" in (found.reason or "")


def test_of_the_host_the_totals_of_torch_are_not_taken(tmp_path: Path) -> None:
    """They still hold what an earlier profiler saw allocated, and nobody saw freed."""
    found = used(tmp_path, [op("aten::mm", 10, 40), memory(20, 100, 1, 9100, device=None)])
    assert (found.peak_bytes, found.earlier_bytes) == (100, 0)
    assert "no totals" not in (found.reason or "")


def resting(**kinds: int) -> list[RestingMemory]:
    names: dict[str, RestingKind] = {"parameters": "parameters", "gradients": "gradients", "state": "optimizer state"}
    return [RestingMemory(None, {names[name]: size for name, size in kinds.items()})]


def test_what_was_at_rest_is_added_to_what_the_host_allocates(tmp_path: Path) -> None:
    events = training([memory(20, 100, 1, device=None), memory(120, 40, 2, device=None)])
    linked = linked_of(tmp_path, events)
    plain, _ = measure_memory(linked)
    found, _ = measure_memory(linked, resting(parameters=1000, gradients=700, state=2000))
    assert plain is not None and found is not None
    assert found.peak_bytes == plain.peak_bytes + 3000
    assert [used - 3000 for _, used, _ in found.curve] == [used for _, used, _ in plain.curve]
    sizes = {part.kind: part.bytes for part in found.kinds}
    # The backward pass makes the gradients anew: those of the step before are gone.
    assert (sizes["parameters"], sizes["optimizer state"], sizes["gradients"]) == (1000, 2000, 40)
    assert sum(sizes.values()) == found.peak_bytes and found.earlier_bytes == 3000


def test_gradients_that_no_step_makes_anew_are_kept_ones(tmp_path: Path) -> None:
    linked = linked_of(tmp_path, training([memory(20, 100, 1, device=None)]))
    found, _ = measure_memory(linked, resting(gradients=700))
    assert found is not None
    assert {part.kind: part.bytes for part in found.kinds}["gradients"] == 700


def test_events_without_totals_and_addresses_still_give_a_curve(tmp_path: Path) -> None:
    first, second = memory(20, 100, 1), memory(30, -60, 1)
    for event in (first, second):
        del event["args"]["Addr"]
    found = used(tmp_path, training([first, second]))
    assert (found.peak_bytes, found.earlier_bytes, found.allocations) == (100, 100, ())
    assert "no totals" in (found.reason or "") and "no addresses" in (found.reason or "")


def test_lost_frees_do_not_make_more_live_than_there_is(tmp_path: Path) -> None:
    found = used(tmp_path, training([memory(20, 100, 1, 100), memory(30, 80, 2, 120)]))
    assert (found.peak_bytes, [row.bytes for row in found.allocations]) == (120, [80])
    assert "are missing" in (found.reason or "")


def test_no_events_and_none_in_the_window_are_told_apart(tmp_path: Path) -> None:
    nothing = whole(tmp_path, training([]))
    assert (nothing.memory, nothing.memory_reason) == (None, NO_EVENTS)
    path = write_trace(tmp_path / "late.json", training([memory(20, 100, 1, 100)]))
    late = analyse([path], Options(stretch_us=(150.0, 250.0)))
    assert (late.memory, late.memory_reason) == (None, NONE_IN_WINDOW)


@pytest.mark.parametrize("recording", recordings(), ids=lambda path: path.name)
def test_samples_have_a_record_or_a_reason(recording: Path) -> None:
    analysis = analysed(recording)
    assert (analysis.memory is None) is (analysis.memory_reason is not None)
    if analysis.memory is not None:
        assert sum(part.bytes for part in analysis.memory.kinds) == analysis.memory.peak_bytes


def test_a_program_with_known_sizes(tmp_path: Path) -> None:
    """A linear layer of 64 to 32 on 16 rows: 8192 and 128 bytes of gradients, 2048 of its result."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(64, 32)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    batch = torch.randn(16, 64)

    def step() -> None:
        model(batch).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with torch.autograd.profiler.profile(profile_memory=True, record_shapes=True, use_kineto=True) as profiler:
        step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    found = analyse([tmp_path / "trace.json"], Options(whole=True)).memory
    assert found is not None
    by_kind = kinds(found)
    assert by_kind["gradients"] == 64 * 32 * 4 + 32 * 4
    assert found.peak_bytes == sum(by_kind.values())
    activations = sorted(row.bytes for row in found.allocations if row.kind == "activations")
    assert not activations or activations[-1] <= 2 * 16 * 32 * 4
