"""Findings about copies to the device: worth only what the device waits for, and never more than the link allows."""

from pathlib import Path

import pytest

from bottleneck.advice.host import host_sync
from bottleneck.advice.transfers import (
    copied_bytes,
    copies_not_overlapped,
    copies_to_device,
    made_beside_device,
    made_on_host,
    offloaded_weights,
    pageable_copies,
    small_copies,
    waits_in_copies,
)
from bottleneck.pipeline import examine
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.sources import find_traces
from tests.advice.cases import case_of, cpu_events, with_ledger
from tests.builders import Event, frame, kernel, launch, memcpy, op, step, write_trace

PAGEABLE, PINNED = "HtoD (Pageable -> Device)", "HtoD (Pinned -> Device)"
LENGTH = 10_000.0
RULES = (pageable_copies, copies_not_overlapped, small_copies, made_on_host)


def copying(
    copy_us: float,
    nbytes: int,
    kind: str = PAGEABLE,
    count: int = 1,
    beside: bool = False,
    maker: tuple[str, str] | None = None,
) -> list[Event]:
    """Two steps of 10 ms: copies at first, then one kernel to the end, on another stream beside them if so wished.

    ``maker`` is the op before each copy, with the sizes that it was called with.
    """
    events = [frame("train.py(12): train", 0, 2 * LENGTH)]
    for number in range(2):
        at, correlation = number * LENGTH, 1000 * number + 1
        events.append(step(number, at, LENGTH - 1))
        every = copy_us + 20
        for index in range(count):
            now = at + 10 + every * index
            if maker is not None:
                name, sizes = maker
                events.append(
                    op(name, now - 8, 5, external_id=correlation + index, dims=[[], []], concrete=[sizes, "6"])
                )
            events += [
                op("aten::to", now, 15, external_id=correlation + index),
                op("aten::_to_copy", now + 1, 13, external_id=correlation + index),
                op("aten::copy_", now + 2, 11, external_id=correlation + index),
                launch(correlation + index, now + 3, 8, "cudaMemcpyAsync"),
                memcpy(correlation + index, now + 12, copy_us, nbytes, kind),
            ]
        start = at + 40 if beside else at + 40 + every * count
        last = correlation + 900
        events += [
            op("aten::mm", start - 25, 10, external_id=last),
            launch(last, start - 22, 5),
            kernel(last, start, at + LENGTH - 60 - start, stream=9),
        ]
    return events


def copying_case(folder: Path, *told: float, **more: object) -> Evidence:
    return case_of(folder, copying(*told, **more))  # type: ignore[arg-type]


def test_pinned_memory_is_worth_the_difference_of_the_two_rates(tmp_path: Path) -> None:
    # 60 MB at 20 GB/s; the link of an H100 makes 52 GB/s of them in the table, of which pinned copies reach 80 %.
    case = copying_case(tmp_path, 3_000.0, 60_000_000)
    draft = pageable_copies(case)
    assert draft is not None and draft.gain_us is not None and draft.tries == ("pin-memory",)
    assert draft.gain_us.high == pytest.approx(3_000 - 60e6 / (0.8 * 52e9) * 1e6, rel=0.02)
    assert draft.gain_us.high <= sum(draft.claims.values()) * (1 + 1e-9)
    assert "20.0 GB/s" in draft.evidence[0]


def test_of_a_copy_that_is_half_hidden_only_the_rest_can_be_won(tmp_path: Path) -> None:
    events = copying(3_000.0, 60_000_000)
    for event in events:
        if event["cat"] == "kernel":
            event["ts"], event["dur"] = event["ts"] - 1_500, event["dur"] + 1_500
    draft = pageable_copies(case_of(tmp_path, events))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(1_500 * (1 - 60e6 / (0.8 * 52e9) / 3e-3), rel=0.05)
    assert "20.0 GB/s" in draft.evidence[0]


def test_pinned_copies_seen_in_the_trace_tell_the_pace_of_the_link(tmp_path: Path) -> None:
    events = copying(3_000.0, 60_000_000)
    pinned = [memcpy(7, 30, 1_000, 24_000_000, PINNED)]
    draft = pageable_copies(case_of(tmp_path, [*events, launch(7, 20, 5, "cudaMemcpyAsync"), *pinned]))
    assert draft is not None and any("24.0 GB/s" in line for line in draft.evidence)


def test_results_copied_to_pageable_memory_count_too(tmp_path: Path) -> None:
    back = pageable_copies(copying_case(tmp_path / "back", 3_000.0, 60_000_000, kind="DtoH (Device -> Pageable)"))
    assert back is not None and back.gain_us is not None and back.title == "Results are copied to pageable memory"
    assert back.gain_us.high == pytest.approx(3_000 - 60e6 / (0.8 * 52e9) * 1e6, rel=0.02)
    events = copying(2_000.0, 40_000_000)
    results = [memcpy(7, 3_000, 3_000, 60_000_000, "DtoH (Device -> Pageable)"), launch(7, 20, 5, "cudaMemcpyAsync")]
    for event in events:
        if event["cat"] == "kernel":
            event["ts"], event["dur"] = event["ts"] + 6_000, event["dur"] - 6_000
    both = pageable_copies(case_of(tmp_path / "both", [*events, *results]))
    assert both is not None and both.gain_us is not None
    assert both.evidence[0].startswith("copies from and to pageable memory, 1.5 per step, move 70.0 MB")
    assert both.gain_us.high == pytest.approx(3_500 - 70e6 / (0.8 * 52e9) * 1e6, rel=0.05)
    assert pageable_copies(copying_case(tmp_path / "pinned", 3e3, 60_000_000, kind="DtoH (Device -> Pinned)")) is None


@pytest.mark.parametrize(("kind", "first"), [(PAGEABLE, ("pageable-copies",)), (PINNED, ())])
def test_what_is_not_pinned_cannot_run_beside_yet(tmp_path: Path, kind: str, first: tuple[str, ...]) -> None:
    draft = copies_not_overlapped(copying_case(tmp_path, 3_000.0, 60_000_000, kind=kind))
    assert draft is not None and draft.remedies == first


def test_copies_hide_behind_no_more_work_than_there_is(tmp_path: Path) -> None:
    with_work = copies_not_overlapped(copying_case(tmp_path / "work", 3_000.0, 60_000_000))
    events = [event for event in copying(3_000.0, 60_000_000) if event["cat"] != "kernel"]
    assert with_work is not None and with_work.advice.endswith("while this one is computed.")
    assert copies_not_overlapped(case_of(tmp_path / "copies", events)) is None
    back = [memcpy(900 + at, 4_000 + LENGTH * at, 2_000, 40_000_000, "DtoH (Device -> Pinned)") for at in range(2)]
    both_ways = copies_not_overlapped(case_of(tmp_path / "both", [*events, *back]))
    assert both_ways is not None and both_ways.gain_us is not None and "two ways" in both_ways.advice
    assert both_ways.gain_us.high <= 2_000


def test_copies_from_pinned_memory_are_not_called_pageable(tmp_path: Path) -> None:
    assert pageable_copies(copying_case(tmp_path, 3_000.0, 60_000_000, kind=PINNED)) is None


def test_a_copy_beside_a_kernel_is_worth_nothing(tmp_path: Path) -> None:
    case = copying_case(tmp_path, 3_000.0, 60_000_000, beside=True)
    assert [draft for rule in RULES if (draft := rule(case)) is not None] == []


def test_a_copy_that_kernels_wait_for_could_run_before(tmp_path: Path) -> None:
    draft = copies_not_overlapped(copying_case(tmp_path, 3_000.0, 60_000_000, kind=PINNED))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(3_000, rel=0.02)
    assert "train() (train.py:12)" in draft.evidence
    assert not any("pageable" in line for line in draft.evidence)


def test_where_a_step_is_its_copies_fewer_bytes_are_left_to_try(tmp_path: Path) -> None:
    case = copying_case(tmp_path / "most", 8_000.0, 40_000_000, kind="DtoH (Device -> Pinned)")
    draft = copied_bytes(case)
    assert draft is not None and draft.gain_us is None and draft.advice.startswith("Copy fewer bytes")
    assert "run at 5.00 GB/s" in draft.evidence[0]
    assert draft.code is not None and ".pin_memory()" in draft.code
    part = copying_case(tmp_path / "part", 3_000.0, 40_000_000, kind="DtoH (Device -> Pinned)")
    # Those that can be pinned, or run beside work, are those of other rules.
    pageable = copying_case(tmp_path / "pageable", 8_000.0, 40_000_000)
    assert copied_bytes(part) is None and copied_bytes(pageable) is None


def test_a_step_cannot_become_shorter_than_its_copies(tmp_path: Path) -> None:
    draft = copies_not_overlapped(copying_case(tmp_path, 8_000.0, 160_000_000, kind=PINNED))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high <= 2_001


def test_many_small_copies_are_better_packed(tmp_path: Path) -> None:
    case = copying_case(tmp_path / "many", 5.0, 256, count=40)
    draft = small_copies(case)
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high <= sum(draft.claims.values()) * (1 + 1e-9)
    assert "40 per step" in draft.evidence[0] or "40 copies" in draft.evidence[0]
    assert small_copies(copying_case(tmp_path / "few", 5.0, 256, count=4)) is None
    # Pinning makes no round trip shorter.
    assert pageable_copies(case) is None


def test_a_wait_belongs_to_the_copy_in_whose_call_it_was(tmp_path: Path) -> None:
    # Forty small copies whose calls hold the device for 8 us and more each, and one large copy that is issued early.
    many = copying(5.0, 256, count=40)
    large = [
        event
        for number in range(2)
        for event in (
            launch(5000 + number, number * LENGTH + 4_990, 5, "cudaMemcpyAsync"),
            memcpy(5000 + number, number * LENGTH + 5_000, 200, 400_000, PAGEABLE),
        )
    ]
    case = case_of(tmp_path, [*many, *large])
    small, copies = small_copies(case), copies_to_device(case)
    assert small is not None and copies is not None
    in_calls = sum(row.us for row in case.analysis.idle if (row.copy or "").endswith("to_device"))
    assert in_calls > 300 and sum(copies.waited_us(copies.small).values()) == pytest.approx(in_calls)
    assert not copies.waited_us(copies.large_pageable)
    assert pageable_copies(case) is None


def test_each_copy_belongs_to_one_rule_at_most(tmp_path: Path) -> None:
    made = copying(5.0, 256, count=40, maker=("aten::zeros", "[8, 8]"))
    case = case_of(tmp_path / "made", made)
    assert made_on_host(case) is not None and small_copies(case) is None
    for events in (made, copying(5.0, 256, count=40), copying(3_000.0, 60_000_000)):
        copies = copies_to_device(case_of(tmp_path / str(len(events)), events))
        assert copies is not None
        owners = copies.made.astype(int) + copies.small + copies.large_pageable
        assert owners.max() == owners.min() == 1


def test_a_wait_in_a_call_that_copies_is_no_other_waiting_call(tmp_path: Path) -> None:
    def waiting(count: int) -> Evidence:
        events = copying(5.0, 256, count=count)
        for event in events:
            event["name"] = event["name"].replace("MemcpyAsync", "Memcpy")
        return case_of(tmp_path / str(count), events)

    many, few = waiting(40), waiting(7)
    copied_us = waits_in_copies(many)[0]["overhead.sync"]
    assert copied_us == pytest.approx(sum(row.us for row in many.analysis.idle if row.cause == "sync"))
    assert small_copies(many) is not None and host_sync(many) is None
    assert small_copies(few) is None and host_sync(few) is not None


def test_tensors_that_the_device_could_fill_need_no_copy(tmp_path: Path) -> None:
    draft = made_on_host(copying_case(tmp_path / "made", 500.0, 10_000_000, maker=("aten::randn", "")))
    assert draft is not None and draft.gain_us is not None
    assert "aten::randn" in draft.evidence[0]
    assert draft.gain_us.high <= sum(draft.claims.values()) * (1 + 1e-9)
    assert made_on_host(copying_case(tmp_path / "stacked", 500.0, 10_000_000, maker=("aten::stack", ""))) is None
    assert made_on_host(copying_case(tmp_path / "alone", 500.0, 10_000_000)) is None


def test_the_time_in_which_the_host_fills_a_tensor_counts_while_the_device_waits(tmp_path: Path) -> None:
    shown = copying_case(tmp_path, 500.0, 10_000_000, maker=("aten::randn", ""))
    accounts = {"transfer": 500.0, "overhead.host_compute": 5.0, "memory": 9495.0}
    draft = made_on_host(with_ledger(shown, accounts))
    assert draft is not None and draft.claims["overhead.host_compute"] == pytest.approx(5.0, rel=1e-3)
    assert "another 5.00 us while they are made" in draft.evidence[2]
    assert "torch.randn(…, device=device)" in (draft.code or "")
    beside = copying_case(tmp_path / "b", 500.0, 10_000_000, maker=("aten::randn", ""), count=2)
    busy = made_on_host(with_ledger(beside, accounts | {"overhead.host_compute": 50.0}))
    assert busy is not None and busy.claims["overhead.host_compute"] == pytest.approx(10.0, rel=1e-2)


def test_a_tensor_of_another_size_than_the_copied_one_is_not_it(tmp_path: Path) -> None:
    same = copying_case(tmp_path / "same", 500.0, 8_000_000, maker=("aten::zeros", "[2000, 1000]"))
    other = copying_case(tmp_path / "other", 500.0, 8_000_000, maker=("aten::zeros", "[3, 5]"))
    assert made_on_host(same) is not None
    assert made_on_host(other) is None


def test_copies_of_unknown_size_are_not_called_small_and_have_no_rate(tmp_path: Path) -> None:
    case = copying_case(tmp_path, 3_000.0, 0, kind="HtoD (Host -> Device)")
    assert pageable_copies(case) is None and small_copies(case) is None
    draft = copies_not_overlapped(case)
    assert draft is not None and "B)" not in draft.evidence[0]


def test_a_step_on_the_host_copies_nothing(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(4, 100.0, 120.0))
    assert [draft for rule in RULES if (draft := rule(case)) is not None] == []


def offloading(weight: tuple[int, int], data: tuple[int, int], *, copied_first: bool = False) -> list[Event]:
    """Two steps, each of four layers whose weight is copied to the device; or all copies before the products."""
    events, shape = list[Event](), list(weight)
    for number in range(8):
        at = (number * 100.0 if copied_first else number * 2_000.0) + 10
        used = 2_000.0 * number + 1_500
        first, second = 2 * number + 1, 2 * number + 2
        events += [
            op("aten::copy_", at, 15, external_id=first, dims=[shape, shape]),
            launch(first, at + 3, 8, "cudaMemcpyAsync"),
            memcpy(first, at + 12, 80 if copied_first else 1_400, 28_000_000, PAGEABLE),
            op("aten::linear", used, 20, external_id=second, dims=[list(data), shape]),
            launch(second, used + 3, 5),
            kernel(second, used + 30, 300),
        ]
    return [step(0, 0, 8_000), step(1, 8_000, 8_000), *events]


def test_weights_that_are_copied_for_each_use_are_no_batches(tmp_path: Path) -> None:
    case = case_of(tmp_path, offloading((4096, 1024), (1, 1024)))
    draft = offloaded_weights(case)
    assert draft is not None and draft.gain_us is not None
    assert draft.evidence[0].startswith("copies of weights, 4 per step, move 112 MB at 20.0 GB/s")
    # All of 4 times 1400 us; or what is left beside copies at the pace of pinned memory.
    assert draft.gain_us.high == pytest.approx(4 * 1_400, rel=0.05)
    assert draft.gain_us.low == pytest.approx(case.step_us - 4 * 28e6 / (0.8 * 52e9) * 1e6, rel=0.05)
    assert all(rule(case) is None for rule in (pageable_copies, copies_not_overlapped, copied_bytes))


@pytest.mark.parametrize(("data", "copied_first"), [((4096, 1024), False), ((1, 1024), True)], ids=["data", "once"])
def test_batches_and_a_model_that_moves_once_are_no_offloaded_weights(
    tmp_path: Path, data: tuple[int, int], copied_first: bool
) -> None:
    case = case_of(tmp_path, offloading((4096, 1024), data, copied_first=copied_first))
    assert offloaded_weights(case) is None and pageable_copies(case) is not None


def beside_a_device(folder: Path, around: str) -> Evidence:
    """Numbers drawn by the CPU of a machine with a device, inside such an op, in half of a step."""
    folder.mkdir(parents=True)
    events = [op("aten::mm", 0, 500, dims=[[64, 64], [64, 64]]), op(around, 510, 490), op("aten::bernoulli_", 515, 480)]
    return examine(find_traces(write_trace(folder / "trace.json", events))[0])


def test_masks_of_dropout_are_no_tensors_made_beside_a_device(tmp_path: Path) -> None:
    """16 % of a forward pass on a CPU were its masks; they were called tensors to make on the device."""
    made = made_beside_device(beside_a_device(tmp_path / "made", "aten::rand"))
    assert made is not None and "aten::rand on the CPU take 480 us" in made.evidence[0]
    assert made_beside_device(beside_a_device(tmp_path / "mask", "aten::dropout")) is None
