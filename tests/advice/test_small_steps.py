"""Rules for steps that are too small: batch, tiny network, loop over rows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bottleneck.advice.python_loops import looped_op
from bottleneck.advice.small_steps import larger_batch, small_network
from bottleneck.schema.analysis import Caveat
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import BatchProof, Ratio
from bottleneck.schema.records import replace
from tests import trace_cache
from tests.advice.cases import case_of, cpu_events, gpu_events, idle_row, with_analysis, with_ledger
from tests.advice.programs import Call, on_gpu
from tests.builders import complete, frame, op, step

OVERHEAD = {"compute": 10.0, "memory": 10.0, "overhead.dispatch": 30.0, "overhead.python": 50.0}


def cpu(folder: Path) -> Evidence:
    return case_of(folder, cpu_events(ops=10, op_us=3, every_us=8))


def tried(case: Evidence, low: float, median: float, high: float) -> Evidence:
    return with_analysis(case, batch_test=BatchProof(32, ratio=Ratio(median, low, high, 40)))


def test_a_step_that_hardly_grew_is_worth_what_was_measured_per_sample(tmp_path: Path) -> None:
    case = tried(with_ledger(cpu(tmp_path), OVERHEAD), 1.05, 1.1, 1.15)
    draft = larger_batch(case)
    assert draft is not None and draft.gain_us is not None
    assert (draft.gain_us.low, draft.gain_us.high) == (pytest.approx(42.5), pytest.approx(47.5))
    assert draft.tries == ("batch-x2",) and draft.confidence == "high" and draft.basis == "timed"
    assert "learning rate" not in draft.advice  # nothing is trained


def test_a_larger_batch_of_a_training_goes_with_its_learning_rate(tmp_path: Path) -> None:
    backward = op("autograd::engine::evaluate_function: MmBackward0", 70, 5)
    events = [*cpu_events(ops=10, op_us=3, every_us=8), backward]
    draft = larger_batch(tried(with_ledger(case_of(tmp_path, events), OVERHEAD), 1.05, 1.1, 1.15))
    assert draft is not None and draft.advice.endswith("(and the learning rate with it).")


def test_a_model_that_is_called_for_one_row_is_named_by_the_line_of_the_call(tmp_path: Path) -> None:
    events = [
        complete("train.py(12): train", "python_line", 0.5, 80),
        frame("nn.Module: Linear_0", 1, 78),
        *cpu_events(ops=10, op_us=3, every_us=8, name="aten::addmm", dims=[[1, 8], [8, 8]]),
    ]
    draft = larger_batch(tried(with_ledger(case_of(tmp_path, events), OVERHEAD), 1.05, 1.1, 1.15))
    assert draft is not None and draft.advice.startswith("Collect what the model is called for at train.py:12, 1 row")


def one_row(folder: Path, rows: int) -> Evidence:
    """A model of its own file that is called at one line for so many rows, and reads its weights for each."""
    events = [
        complete("train.py(12): train", "python_line", 0.5, 80),
        frame("nn.Module: Net_0", 1, 78),
        complete("model.py(5): forward", "python_line", 1.5, 77),
        *cpu_events(ops=10, op_us=3, every_us=8, name="aten::addmm", dims=[[rows, 8], [8, 8]]),
    ]
    return with_ledger(case_of(folder, events), {"memory": 55.0, "overhead.dispatch": 20.0, "compute": 25.0})


def test_a_model_that_reads_its_weights_for_each_row_takes_more_rows_in_the_same_time(tmp_path: Path) -> None:
    draft = larger_batch(one_row(tmp_path, 1))
    assert draft is not None and draft.gain_us is not None
    assert draft.advice.startswith("Collect what the model is called for at train.py:12, 1 row each time")
    assert (draft.gain_us.low, draft.gain_us.high) == (pytest.approx(37.5), pytest.approx(50))


def test_a_model_that_gets_a_batch_may_be_bound_by_memory_without_advice_on_rows(tmp_path: Path) -> None:
    assert larger_batch(one_row(tmp_path, 64)) is None


def test_twice_the_batch_may_take_less_time_than_once(tmp_path: Path) -> None:
    draft = larger_batch(tried(with_ledger(cpu(tmp_path), OVERHEAD), 0.8, 0.9, 1.0))
    assert draft is not None and draft.gain_us is not None
    assert (draft.gain_us.low, draft.gain_us.high) == (pytest.approx(50.0), pytest.approx(60.0))


def test_without_a_batch_test_the_ledger_bounds_the_gain(tmp_path: Path) -> None:
    draft = larger_batch(with_ledger(cpu(tmp_path), OVERHEAD))
    assert draft is not None and draft.gain_us is not None
    assert (draft.gain_us.low, draft.gain_us.high) == (pytest.approx(38), pytest.approx(50))
    assert sum(draft.claims.values()) == pytest.approx(50)


def products(grid: int) -> list[Call]:
    """Five products of 100 us with so many tiles each; an H100 has 132 multiprocessors."""
    return [Call("aten::mm", 100, [[512, 512], [512, 512]], "ampere_bf16_s16816gemm_bf16_64x64", grid)] * 5


@pytest.mark.parametrize(
    ("grid", "low", "high"),
    [(33, 0.5, 0.5), (66, 0.5, 0.5), (99, 0.0, 0.25)],
    ids=["a quarter of the device", "half of it", "three quarters: at best one and a half rounds, at worst two"],
)
def test_kernels_that_leave_the_device_empty_take_more_samples(
    tmp_path: Path, grid: int, low: float, high: float
) -> None:
    case = on_gpu(tmp_path, products(grid))
    draft = larger_batch(case)
    assert draft is not None and draft.gain_us is not None and draft.per == "sample"
    assert draft.gain_us.low == pytest.approx(low * 500, abs=1)
    assert draft.gain_us.high == pytest.approx(high * 500, abs=1)
    assert "132 multiprocessors" in draft.evidence[0]


def test_full_grids_and_collectives_ask_for_no_larger_batch(tmp_path: Path) -> None:
    assert larger_batch(on_gpu(tmp_path / "full", products(132))) is None
    small_blocks = [Call("aten::mul", 100, [[10**7], []], grid=1056)] * 5
    assert larger_batch(on_gpu(tmp_path / "pointwise", small_blocks)) is None
    collective = [replace(each, kernel="ncclDevKernel_AllReduce_Sum_f32_RING_LL") for each in products(8)]
    assert larger_batch(on_gpu(tmp_path / "collectives", collective)) is None


def test_one_image_does_not_fill_a_device_in_a_public_trace(traces: Path) -> None:
    case = trace_cache.evidence(traces / "pytorch+ao__tutorials__quantize_vit__bfloat16_at_05a20b2.json.gz")
    draft = larger_batch(case)
    assert draft is not None and draft.gain_us is not None
    assert 0.15 < draft.gain_us.low / case.step_us < draft.gain_us.high / case.step_us < 0.35


def test_a_step_that_grows_with_its_batch_is_left_alone(tmp_path: Path) -> None:
    case = with_ledger(cpu(tmp_path), OVERHEAD)
    assert larger_batch(tried(case, 1.7, 1.8, 1.9)) is None
    assert larger_batch(with_ledger(case, {"compute": 90.0, "overhead.python": 10.0})) is None


def test_a_batch_that_was_doubled_among_other_programs_proves_less(tmp_path: Path) -> None:
    case, contended = tried(cpu(tmp_path), 1.0, 1.05, 1.1), (Caveat("contended", "others used the processors"),)
    quiet, busy = larger_batch(case), larger_batch(with_analysis(case, caveats=contended))
    assert quiet is not None and busy is not None
    assert (quiet.confidence, busy.confidence) == ("high", "medium")
    assert quiet.gain_us == busy.gain_us  # steps of both sizes took turns, so that both were disturbed


def test_a_ledger_among_other_programs_says_nothing_of_a_larger_batch(tmp_path: Path) -> None:
    case = with_ledger(cpu(tmp_path), OVERHEAD)
    assert larger_batch(case) is not None
    assert larger_batch(with_analysis(case, caveats=(Caveat("contended", "others used the processors"),))) is None


def test_a_network_whose_arithmetic_is_nothing_beside_its_overhead_is_small(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(6, 3, 8, name="aten::mm", dims=[[24, 24], [24, 24]]))
    draft = small_network(with_ledger(case, OVERHEAD))
    assert draft is not None and draft.gain_us is None and draft.gain_reason
    assert "threads-1" in draft.tries


@pytest.mark.parametrize(("name", "is_told"), [("aten::mm", True), ("aten::mul", False)])
def test_the_smallest_networks_multiply_and_an_optimizer_alone_does_not(
    tmp_path: Path, name: str, is_told: bool
) -> None:
    """The network of `examples/small_network.py` needs 0.5 us of 167."""
    case = case_of(tmp_path, cpu_events(6, 3, 8, name=name, dims=[[4, 4], [4, 4]]))
    assert (small_network(with_ledger(case, OVERHEAD)) is not None) == is_told


def test_a_network_that_works_for_its_time_is_not_small(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(3, 900, 1000, name="aten::mm", dims=[[512, 512], [512, 512]]))
    assert small_network(with_ledger(case, OVERHEAD)) is None
    assert small_network(with_ledger(case, {"compute": 90.0, "overhead.python": 10.0})) is None


@pytest.mark.parametrize(("worked_us", "is_small"), [(5.0, True), (20.0, False)])
def test_a_network_without_sizes_is_small_by_the_time_that_its_ops_work(
    tmp_path: Path, worked_us: float, is_small: bool
) -> None:
    """Of 179 us per row that was predicted, ops worked for 12, and no advice shortened the rest."""
    case = case_of(tmp_path, cpu_events(6, 3, 8))
    case = with_analysis(case, coverage=replace(case.analysis.coverage, modelled_share=0.3))
    draft = small_network(with_ledger(case, {"unknown.matmul": worked_us, "overhead.python": 58.0 - worked_us}))
    assert (draft is not None) == is_small
    assert draft is None or draft.evidence[0].startswith("its ops work for 5.00 us of the 58.0 us step")


def rows_one_by_one(count: int, index: Callable[[int], int] = int) -> list[dict[str, object]]:
    events = [step(0, 0, 20 * count + 10), frame("loop.py(7): forward", 0, 20 * count + 10)]
    return [
        *events,
        *(
            op(name, 20 * at + shift, 3, dims=[[count, 8], [], []], concrete=["", "0", str(index(at))])
            for at in range(count)
            for shift, name in ((1, "aten::select"), (6, "aten::mul"))
        ),
    ]


def test_a_loop_over_rows_is_worth_the_overhead_at_its_line(tmp_path: Path) -> None:
    case = case_of(tmp_path, rows_one_by_one(40))
    draft = looped_op(case)
    assert draft is not None and draft.gain_us is not None
    assert draft.evidence[0] == "forward() (loop.py:7) calls aten::select 40 times per step"
    assert 0 < draft.gain_us.high <= case.step_us


def test_the_same_row_again_and_again_is_no_loop(tmp_path: Path) -> None:
    assert looped_op(case_of(tmp_path, rows_one_by_one(40, lambda _: 0))) is None


def unbound(count: int, name: str = "aten::mul", modules: bool = False) -> list[dict[str, object]]:
    """``for row in x`` of so many rows, which unbinds x once and then works on each row in its own call of a cell."""
    events: list[dict[str, object]] = [step(0, 0, 30 * count + 60), frame("loop.py(7): forward", 0, 30 * count + 60)]
    events += [op("aten::unbind", 2, 30, dims=[[count, 4, 8], []], concrete=["", "0"])]
    events += [op("aten::select", 3 + 0.5 * at, 0.4, dims=[[count, 4, 8], [], []]) for at in range(count)]
    for at in range(count):
        events += [frame(f"nn.Module: Cell_{at if modules else 0}", 45 + 30 * at, 25)]
        events += [frame("cell.py(3): forward", 45.5 + 30 * at, 24)]
        events += [op(name, 50 + 30 * at, 3, dims=[[4, 8], []])]
    return events


def test_a_loop_over_an_unbound_tensor_is_told_by_what_runs_on_each_row(tmp_path: Path) -> None:
    case = case_of(tmp_path, unbound(40))
    draft = looped_op(case)
    assert draft is not None and draft.gain_us is not None
    assert draft.evidence[0] == "forward() (cell.py:3) calls aten::mul 40 times per step"
    assert 0 < draft.gain_us.high <= case.step_us


def test_a_tensor_unbound_for_few_rows_or_for_other_layers_is_no_loop(tmp_path: Path) -> None:
    assert looped_op(case_of(tmp_path / "few", unbound(5))) is None
    assert looped_op(case_of(tmp_path / "layers", unbound(40, modules=True))) is None


def without_frames(count: int, sizes: list[int]) -> list[dict[str, object]]:
    """A step that unbinds [40, 4, 8] and runs two ops on such sizes again and again, in a trace without lines."""
    events: list[dict[str, object]] = [step(0, 0, 30 * count + 60)]
    events += [op("aten::unbind", 2, 30, dims=[[40, 4, 8], []], concrete=["", "0"])]
    for at in range(count):
        events += [
            op(name, 50 + 30 * at + 10 * late, 3, dims=[sizes, []])
            for late, name in enumerate(("aten::mul", "aten::add"))
        ]
    return events


def test_a_loop_over_an_unbound_tensor_is_told_without_lines_too(tmp_path: Path) -> None:
    draft = looped_op(case_of(tmp_path, without_frames(40, [4, 8])))
    assert draft is not None and draft.gain_us is not None
    assert draft.evidence == ("aten::mul runs 40 times per step, for one row each; the trace has no source lines",)
    assert "at no known line" not in draft.advice
    # At least one of two ops of each round can be done for all rows at once.
    assert draft.gain_us.high == pytest.approx(2 * draft.gain_us.low)


@pytest.mark.parametrize(("count", "sizes"), [(39, [4, 8]), (40, [4, 9])])
def test_fewer_ops_than_rows_or_on_other_sizes_are_no_loop(tmp_path: Path, count: int, sizes: list[int]) -> None:
    assert looped_op(case_of(tmp_path, without_frames(count, sizes))) is None


def test_layers_below_one_line_are_no_loop(tmp_path: Path) -> None:
    """24 layers of a library, each called anew from one line of the program, pick another row of a table."""
    events = rows_one_by_one(24)
    layers = [frame("layers.py(30): forward", 20 * at + 0.5, 18) for at in range(24)]
    wrapped = case_of(tmp_path, [*events, *layers])
    assert set(wrapped.linked.ops["source"]) == {"forward() (layers.py:30)"}
    assert looped_op(wrapped) is None


def test_a_few_rows_are_no_loop(tmp_path: Path) -> None:
    assert looped_op(case_of(tmp_path, rows_one_by_one(5))) is None


def test_a_loop_that_the_device_does_not_wait_for_is_worth_nothing(tmp_path: Path) -> None:
    case = case_of(tmp_path / "cpu", rows_one_by_one(40))
    device = case_of(tmp_path / "gpu", gpu_events(12, 100, 10))
    trace = replace(device.linked.trace, signatures=case.linked.trace.signatures)
    linked = replace(device.linked, trace=trace, ops=case.linked.ops, window=case.linked.window)
    hidden = replace(device, linked=linked)
    assert looped_op(hidden) is None
    waits = with_ledger(
        hidden, {"memory": 50.0, "overhead.python": 50.0}, [idle_row("python", 50.0, "forward() (loop.py:7)")]
    )
    assert looped_op(waits) is not None
