"""Findings about many ranks: exposed collectives, the rank that all wait for, and data that every rank reads."""

from collections.abc import Mapping
from dataclasses import replace as replace_evidence
from pathlib import Path

import pytest

from bottleneck.advice.distributed import (
    every_rank_reads_all,
    exposed_communication,
    late_rank,
    pipeline_bubble,
    small_all_reduces,
    transfers_steadily,
)
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import CollectiveSummary, Interval, LedgerEntry, RankSummary
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.job import JobSummary, SlowRank
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, gpu_events, idle_row, with_analysis, with_ledger
from tests.builders import complete, frame, op

LEDGER = {"compute": 600.0, "communication": 300.0, "overhead.python": 100.0}


def collective(name: str = "all_reduce", exposed_us: float = 300.0, **more: object) -> CollectiveSummary:
    """Two collectives per step of 25 MB each, half of their time waiting, unless told otherwise."""
    told: dict[str, object] = {"dtype": "fp32", "calls": 2.0, "us": 400.0, "bytes": 50e6, "transfer_us": 200.0}
    return CollectiveSummary(
        **{  # type: ignore[arg-type]
            "name": name,
            "group_size": 8,
            "exposed_us": exposed_us,
            "bus_bytes_per_s": None,
            "wait_us": 200.0,
            "reason": None,
            **told,
            **more,
        }
    )


def rank(number: int, skew_us: float | None, **us: float) -> RankSummary:
    """A rank with this ledger; accounts are spelt with an underscore for the dot."""
    ledger = {name.replace("_", ".", 1) if name.startswith("overhead") else name: each for name, each in us.items()}
    wall_us = sum(ledger.values())
    entries = tuple(LedgerEntry(name, ACCOUNTS[name].group, each, each / wall_us) for name, each in ledger.items())
    return RankSummary(number, f"rank {number}.json", wall_us, entries, skew_us, "overhead")


def case_with(
    folder: Path,
    *collectives: CollectiveSummary,
    ranks: tuple[RankSummary, ...] = (),
    ledger: Mapping[str, float] = LEDGER,
    trains: bool = True,
    more: tuple[str, ...] = (),
) -> Evidence:
    names = (*(("autograd::engine::evaluate_function: MmBackward0",) if trains else ()), *more)
    backward = [op(name, 1 + 3 * at, 2) for at, name in enumerate(names)]
    case = with_ledger(case_of(folder, [*gpu_events(4, 30.0, 40.0), *backward]), ledger)
    return with_analysis(case, collectives=collectives, ranks=ranks)


BOTH = (rank(0, 1.0, compute=600, communication=300), rank(1, 1.0, compute=600, communication=300))


def test_only_the_transfer_can_be_hidden_and_only_beside_kernels(tmp_path: Path) -> None:
    draft = exposed_communication(case_with(tmp_path, collective(), ranks=BOTH))
    assert draft is not None and draft.gain_us is not None
    assert (draft.gain_us.low, draft.gain_us.high) == (100.0, 200.0)
    assert draft.claims == {"communication": 200.0}
    little = {"compute": 50.0, "communication": 300.0, "overhead.python": 100.0}
    draft = exposed_communication(case_with(tmp_path, collective(), ranks=BOTH, ledger=little))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high == 50.0


def test_gradients_in_fp32_are_halved_where_a_replay_saves_more_by_that(tmp_path: Path) -> None:
    saved_us = {"set collective=0.5x": 280.0, "set collective=0.7500x": 150.0, "overlap collective": 120.0}

    def predict(_: Evidence, changes: object) -> float:
        assert isinstance(changes, tuple)
        return saved_us[changes[0]]

    case = replace_evidence(case_with(tmp_path, collective(), ranks=BOTH), predict=predict)
    draft = exposed_communication(case)
    assert draft is not None and draft.brief is not None and draft.gain_us is not None
    assert draft.brief.startswith("Reduce gradients in half precision") and draft.gain_us.high == 280.0
    # What was waiting stays, and casts read and write 150 MB more.
    bandwidth = case.analysis.device.bandwidth_bytes_per_s
    assert draft.gain_us.low == pytest.approx(150.0 - (0 if bandwidth is None else 150e6 / bandwidth * 1e6))
    saved_us["overlap collective"] = 290.0
    draft = exposed_communication(replace_evidence(case, predict=predict))
    assert draft is not None and draft.brief is None


def test_of_one_rank_alone_nothing_is_promised(tmp_path: Path) -> None:
    draft = exposed_communication(case_with(tmp_path, collective(transfer_us=None, wait_us=None, bytes=None)))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.low == 0 and draft.confidence == "low"
    assert "all ranks together" in draft.advice


def test_collectives_that_are_hidden_or_short_are_no_finding(tmp_path: Path) -> None:
    short = {"compute": 900.0, "communication": 80.0}
    assert exposed_communication(case_with(tmp_path, collective(exposed_us=80.0), ranks=BOTH, ledger=short)) is None
    alone = {"communication": 300.0, "overhead.python": 100.0}
    assert exposed_communication(case_with(tmp_path, collective(), ranks=BOTH, ledger=alone)) is None


FILLED = {"compute": 450.0, "communication": 500.0, "overhead.python": 50.0}


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("all_gather", "bf16", "within a node"),
        ("all_reduce", "fp32", "Send in bf16, which halves the bytes. Move fewer bytes per sample"),
        ("all_to_all", "bf16", "send only what the receiver uses"),
    ],
)
def test_a_link_that_is_never_free_is_to_carry_fewer_bytes(tmp_path: Path, name: str, dtype: str, words: str) -> None:
    one = collective(name, 500.0, dtype=dtype, us=950.0, transfer_us=940.0, wait_us=10.0, bus_bytes_per_s=42e9)
    case = case_with(tmp_path, one, ledger=FILLED)
    draft = exposed_communication(case)
    assert draft is not None and words in draft.advice
    assert draft.gain_us == Interval(0.25 * 475.0, 475.0)
    assert any("42.0 GB/s" in line for line in draft.evidence)
    assert any("at most" in line or "the most that the transfer takes" in line for line in draft.evidence)
    assert transfers_steadily(case)


def test_where_transfers_exceed_twice_the_work_samples_per_reduction_are_to_grow(tmp_path: Path) -> None:
    told = {"us": 620.0, "transfer_us": 610.0, "wait_us": 10.0, "dtype": "bf16", "bus_bytes_per_s": 3.6e9}
    ledger = {"compute": 250.0, "communication": 500.0, "overhead.python": 50.0}
    draft = exposed_communication(case_with(tmp_path, collective("all_reduce", 500.0, **told), ledger=ledger))
    assert draft is not None and draft.per == "sample" and draft.gain_us == Interval(250.0, 375.0)
    assert "moves 3.60 GB/s" in draft.advice and "a larger batch on each rank" in draft.advice
    busy = {**ledger, "compute": 400.0}
    overlaps = exposed_communication(case_with(tmp_path / "busy", collective(exposed_us=500.0, **told), ledger=busy))
    assert overlaps is not None and overlaps.per == "step" and "while the backward pass" in overlaps.advice
    split = collective("all_reduce", 500.0, **told, forward_calls=1.0)
    layers = exposed_communication(case_with(tmp_path / "layers", split, ledger=ledger))
    assert layers is not None and "layers that are split" in layers.advice


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"us": 950.0, "transfer_us": 800.0, "wait_us": 150.0}, id="calls differ: some wait"),
        pytest.param({"us": 950.0, "transfer_us": 950.0, "wait_us": 0.0, "calls": 1.0}, id="two calls in all"),
        pytest.param({"us": 600.0, "transfer_us": 590.0, "wait_us": 10.0}, id="the link is free for a while"),
    ],
)
def test_a_link_that_is_free_or_waits_is_not_told_to_carry_less(tmp_path: Path, told: dict[str, float]) -> None:
    draft = exposed_communication(case_with(tmp_path, collective("all_gather", 500.0, **told), ledger=FILLED))
    assert draft is not None and "fewer bytes" not in draft.advice


@pytest.mark.parametrize(
    ("one", "word"),
    [
        (collective(), "bf16"),
        (collective(dtype="bf16"), "no_sync"),
        (collective(calls=2.0, bytes=2 * 1e5), "one message"),
        (collective("all_to_all"), "async_op"),
        (collective("all_gather"), "forward_prefetch"),
        (collective("all_gather", bytes=2 * 128.0), "one message"),
        (collective("all_gather", bytes=None), "async_op"),
    ],
)
def test_the_remedy_is_that_of_the_longest_kind(tmp_path: Path, one: CollectiveSummary, word: str) -> None:
    draft = exposed_communication(case_with(tmp_path, one, collective("barrier", exposed_us=1.0), ranks=BOTH))
    assert draft is not None and word in (draft.code or "")


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter"])
def test_without_a_backward_pass_nothing_reduces_gradients(tmp_path: Path, name: str) -> None:
    draft = exposed_communication(case_with(tmp_path, collective(name), ranks=BOTH, trains=False))
    assert draft is not None and "backward" not in draft.advice and "gradients" not in draft.advice
    assert "no_sync" not in (draft.code or "") and "comm_hook" not in (draft.code or "")


def test_many_all_reduces_of_few_bytes_are_better_bucketed(tmp_path: Path) -> None:
    # 40 of 100 KB: 10 us each, 4 us at the quickest; a bucket would hold all of them.
    small = collective(calls=40.0, bytes=40 * 1e5, us=400.0, exposed_us=300.0, transfer_us=160.0)
    draft = small_all_reduces(case_with(tmp_path, small, ranks=BOTH))
    assert draft is not None and draft.gain_us is not None and "bucket_cap_mb" in (draft.code or "")
    assert draft.gain_us.high == pytest.approx(300 * 39 / 40)
    assert draft.gain_us.low == pytest.approx(4 * 39 * 300 / 400)
    assert draft.claims == {"communication": pytest.approx(draft.gain_us.high)}
    # Without a backward pass they are no gradients, and each layer may need the result of the one before.
    assert small_all_reduces(case_with(tmp_path / "served", small, ranks=BOTH, trains=False)) is None


def test_few_all_reduces_and_those_of_buckets_are_left_alone(tmp_path: Path) -> None:
    few = collective(calls=4.0, bytes=4e5)
    buckets = collective(calls=40.0, bytes=40 * 25e6)
    unknown = collective(calls=40.0, bytes=None)
    assert small_all_reduces(case_with(tmp_path, few, buckets, unknown, ranks=BOTH)) is None


def test_small_all_reduces_are_no_exposed_communication_too(tmp_path: Path) -> None:
    small = collective(calls=40.0, bytes=40 * 1e5, exposed_us=250.0)
    assert exposed_communication(case_with(tmp_path, small, collective(exposed_us=50.0), ranks=BOTH)) is None


def test_a_late_rank_costs_what_the_others_wait_for_it(tmp_path: Path) -> None:
    ranks = (
        rank(0, 5.0, compute=500, communication=400, overhead_python=100),
        rank(1, 200.0, compute=500, communication=50, overhead_python=100, overhead_input=350),
        rank(2, 3.0, compute=500, communication=400, overhead_python=100),
    )
    ledger = {"compute": 500.0, "communication": 50.0, "overhead.input": 450.0}
    case = case_with(tmp_path, collective(), ranks=ranks, ledger=ledger)
    assert case.analysis.steps.wall_us == 1000
    case = with_analysis(case, idle=(idle_row("input", 450.0, "data.py:7"),))
    draft = late_rank(case)
    assert draft is not None and draft.gain_us is not None
    assert "rank 1" in draft.title
    # 196 us beyond the others at each of two collectives; the others are 350 us longer in theirs.
    assert draft.gain_us.low == 175.0
    assert draft.gain_us.high == pytest.approx(392.0)
    assert draft.claims == {"overhead.input": 350.0, "compute": pytest.approx(42.0)}
    assert any("waiting for data" in line for line in draft.evidence)
    assert any("data.py:7" in line for line in draft.evidence)
    assert draft.code == f"# diagnosis: bottleneck report '{ranks[1].path}'"
    # A command for the report that is being read leads nowhere.
    read = replace(case.analysis.recording, path=ranks[1].path)
    ours = late_rank(with_analysis(case, recording=read))
    assert ours is not None and ours.code is None


def test_a_late_rank_whose_line_is_known_is_to_be_changed_there(tmp_path: Path) -> None:
    ranks = (rank(0, 5.0, memory=600, communication=400), rank(1, 400.0, memory=990, communication=10))
    late = SlowRank(
        "rank 1", (1,), None, 400.0, 380.0, 0.4, "all_reduce", None, True, "words", "train.py:15", 390.0, 0.0
    )
    job = JobSummary(2, 1, (), (late,), (), (), None, None, None)
    ledger = {"memory": 990.0, "communication": 10.0}
    case = case_with(tmp_path, collective(calls=1.0), ranks=ranks, ledger=ledger)
    known = late_rank(with_analysis(case, job=job))
    assert known is not None and known.gain_us is not None
    assert known.advice == "Take what rank 1 alone does at train.py:15 out of its step, or share it among the ranks."
    assert "it spends 390 us per step at train.py:15, the others 0 us" in known.evidence
    assert (known.gain_us.low, known.gain_us.high) == (pytest.approx(0.7 * 390), 390.0)
    unknown = late_rank(with_analysis(case, job=replace(job, slow=(replace(late, line=None),))))
    assert unknown is not None and unknown.advice.startswith("Find why rank 1 takes 390 us more in memory bandwidth")


def test_ranks_that_come_in_turns_or_cannot_be_matched_name_nobody(tmp_path: Path) -> None:
    assert late_rank(case_with(tmp_path, collective(), ranks=BOTH)) is None
    in_turns = tuple(replace(each, skew_us=150.0) for each in BOTH)
    assert late_rank(case_with(tmp_path, collective(), ranks=in_turns)) is None
    assert late_rank(case_with(tmp_path, collective())) is None
    unmatched = tuple(replace(each, skew_us=None) for each in BOTH)
    assert late_rank(case_with(tmp_path, collective(), ranks=unmatched)) is None


def loader_events(draws: int, other: str = "torch/utils/data/sampler.py(343): __iter__") -> list[dict[str, object]]:
    """One batch whose sampler runs so many times for it, besides the batch sampler."""
    events = gpu_events(4, 30.0, 40.0, steps=1)
    events.append(complete("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", 5, 60))
    events.append(frame(other, 6, 50))
    events += [frame("torch/utils/data/sampler.py(182): __iter__", 7 + index, 0.5) for index in range(draws)]
    return events


def of_ranks(case: Evidence, world: int) -> Evidence:
    return replace(case, linked=replace(case.linked, trace=replace(case.linked.trace, world_size=world)))


def test_a_sampler_that_draws_on_each_of_several_ranks_is_reported(tmp_path: Path) -> None:
    case = case_of(tmp_path, loader_events(32))
    draft = every_rank_reads_all(of_ranks(case, 4))
    assert draft is not None and draft.gain_us is None and "4 times fewer" in (draft.gain_reason or "")
    assert every_rank_reads_all(of_ranks(case, 1)) is None


def test_a_sampler_that_deals_out_its_indices_is_fine(tmp_path: Path) -> None:
    assert every_rank_reads_all(of_ranks(case_of(tmp_path / "dealt", loader_events(0)), 4)) is None
    shared = loader_events(32, "torch/utils/data/distributed.py(107): __iter__")
    assert every_rank_reads_all(of_ranks(case_of(tmp_path / "shared", shared), 4)) is None


def test_without_frames_nobody_knows_the_sampler(tmp_path: Path) -> None:
    assert every_rank_reads_all(of_ranks(case_of(tmp_path, gpu_events(4, 30.0, 40.0)), 4)) is None


def test_sums_of_split_layers_are_no_gradients(tmp_path: Path) -> None:
    """A model that is split over ranks sums activations in the forward pass: no buckets, no compression hook."""
    small = collective(calls=80.0, us=400.0, bytes=80 * 0.5e6, transfer_us=300.0)
    assert small_all_reduces(case_with(tmp_path / "gradients", small)) is not None
    split = replace(small, forward_calls=40.0)
    assert small_all_reduces(case_with(tmp_path / "split", split)) is None
    large = collective(forward_calls=1.0)
    draft = exposed_communication(case_with(tmp_path / "large", large, ranks=BOTH))
    assert draft is not None and "split over ranks" in draft.advice and "bf16" in draft.advice
    assert draft.code is not None and "comm_hook" not in draft.code
    narrow = exposed_communication(case_with(tmp_path / "narrow", replace(large, dtype="bf16"), ranks=BOTH))
    assert narrow is not None and "bf16" not in narrow.advice


def test_no_gradients_are_summed_in_inference(tmp_path: Path) -> None:
    draft = exposed_communication(case_with(tmp_path, collective(), ranks=BOTH, trains=False))
    assert draft is not None and "split over ranks" in draft.advice


def test_sums_beside_updates_are_of_gradients_whatever_else_the_trace_holds(tmp_path: Path) -> None:
    case = case_with(tmp_path, collective(), ranks=BOTH, trains=False, more=("aten::_foreach_add_",))
    draft = exposed_communication(case)
    assert draft is not None and "backward pass" in draft.advice and "split over ranks" not in draft.advice


def test_sums_of_gradients_are_told_of_the_backward_pass(tmp_path: Path) -> None:
    draft = exposed_communication(case_with(tmp_path, collective(), ranks=BOTH))
    assert draft is not None and "backward pass" in draft.advice and "split over ranks" not in draft.advice


def test_a_stage_that_waits_for_its_neighbours_is_told_of_more_micro_batches(tmp_path: Path) -> None:
    case = with_ledger(case_of(tmp_path, gpu_events(10, 50, 60)), LEDGER)
    waits = collective("send_recv", wait_us=390.0, transfer_us=10.0)
    draft = pipeline_bubble(with_analysis(case, collectives=(waits,)))
    assert draft is not None and draft.gain_us is not None and "micro-batches" in draft.advice
    assert draft.gain_us.low == pytest.approx(90) and draft.gain_us.high == pytest.approx(225)
    for other in (replace(waits, wait_us=100.0), replace(waits, exposed_us=20.0), replace(waits, name="all_reduce")):
        assert pipeline_bubble(with_analysis(case, collectives=(other,))) is None


def accumulated(folder: Path, passes: int, calls: float, updates: int = 1) -> Evidence:
    """One step with so many forward passes and updates, and gradients that are summed so often."""
    marks = [complete("DistributedDataParallel.forward", "user_annotation", 2 + 8 * at, 5) for at in range(passes)]
    marks += [complete("Optimizer.step#SGD.step", "user_annotation", 80 + 6 * at, 5) for at in range(updates)]
    events = [*gpu_events(4, 30.0, 40.0, steps=1), op("autograd::engine::evaluate_function: MmBackward0", 1, 2), *marks]
    return with_analysis(with_ledger(case_of(folder, events), LEDGER), collectives=(collective(calls=calls),))


def test_gradients_of_accumulated_batches_are_reduced_once(tmp_path: Path) -> None:
    draft = exposed_communication(accumulated(tmp_path / "each", 4, 8.0))
    assert draft is not None and "no_sync" in (draft.code or "") and draft.gain_us is not None
    assert draft.gain_us == Interval(0.5 * 0.75 * 300.0, 0.75 * 300.0)
    for name, case in {
        "once": accumulated(tmp_path / "once", 4, 1.0),
        "one pass": accumulated(tmp_path / "pass", 1, 8.0),
        "two optimizers": accumulated(tmp_path / "two", 4, 8.0, updates=2),
    }.items():
        other = exposed_communication(case)
        assert other is None or "no_sync" not in (other.code or ""), name


@pytest.mark.parametrize(("name", "hook"), [("gloo:all_reduce", "fp16_"), ("nccl:all_reduce", "bf16_")])
def test_the_hook_is_one_that_the_backend_takes(tmp_path: Path, name: str, hook: str) -> None:
    """That for bf16 raises on gloo."""
    draft = exposed_communication(case_with(tmp_path, collective(), ranks=BOTH, more=(name,)))
    assert draft is not None and f"default_hooks.{hook}compress_hook" in (draft.code or "")
