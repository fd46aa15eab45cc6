"""Rules for a slow host: what fires on late launches, tiny kernels and tiny ops, and what stays silent."""

from pathlib import Path

import pytest

from bottleneck.advice.dispatch import (
    compile_gain_us,
    compiled_parts,
    eager_overhead,
    host_overhead,
    late_launches,
    tiny_kernels,
)
from bottleneck.schema.analysis import Interval
from bottleneck.schema.compile_health import CompileHealth, CudagraphSkip
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.learned_rates import fastest_host_us, host_units
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, cpu_events, gpu_events, with_analysis, with_ledger
from tests.builders import complete, frame, launch, memcpy, op

LATE = {"kernels": 40, "kernel_us": 3.0, "every_us": 20.0}


def test_launches_that_come_late_are_worth_the_idle_time_less_the_gaps_of_a_graph(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(**LATE))
    draft = late_launches(case)
    assert draft is not None and draft.gain_us is not None
    late_us = case.account_us("overhead.dispatch", "overhead.python", "overhead.launch", "overhead.kernel_gap")
    assert draft.gain_us.high == pytest.approx(late_us - 40 * 1.3 - 10)
    assert draft.gain_us.low == draft.gain_us.high / 2
    assert sum(draft.claims.values()) == pytest.approx(late_us - 10)
    assert "cuda-graph" in draft.tries and any("train.py:12" in words for words in draft.evidence)


def test_graphs_that_torch_did_not_capture_are_named_with_the_change_that_lets_it(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(**LATE))
    plain = late_launches(case)
    health = CompileHealth((), skips=(CudagraphSkip("mutation", "net.py:3", "mutated inputs"),))
    draft = late_launches(with_analysis(case, compile_health=health))
    assert draft is not None and plain is not None and plain.code is not None
    assert draft.evidence == (*plain.evidence, "torch captured no graph at net.py:3: it changes an input in place")
    assert draft.advice == f"{plain.advice} Return the new value in place of changing the input."
    assert draft.code == f"y = x + 1  # in place of x.add_(1) on an input\n{plain.code}"


def test_waiting_calls_make_the_gain_of_a_graph_doubtful(tmp_path: Path) -> None:
    events = gpu_events(**LATE)
    waits = [launch(900 + number, 815 + 5 * number, 4, "cudaStreamSynchronize") for number in range(4)]
    draft = late_launches(case_of(tmp_path, [*events, *waits]))
    assert draft is not None and draft.gain_us is not None
    assert draft.confidence == "low" and draft.gain_us.low == draft.gain_us.high / 4
    assert draft.advice.startswith("Take the calls that wait for the device (2 per step) out of the step, then")
    once = late_launches(case_of(tmp_path / "once", [*events, *waits[:2]]))
    assert once is not None and once.gain_us is not None and once.gain_us.low == once.gain_us.high / 2


def test_a_graph_lies_between_the_synchronizations_of_a_benchmark(tmp_path: Path) -> None:
    events = gpu_events(**LATE, steps=1)
    ends = [launch(900, 1, 4, "cudaDeviceSynchronize"), launch(901, 793, 4, "cudaDeviceSynchronize")]
    draft = late_launches(case_of(tmp_path / "ends", [*events, *ends]))
    assert draft is not None and draft.brief == "Run the step as a CUDA graph (torch.cuda.graph)"
    assert any("after the last launch (2 per step)" in words for words in draft.evidence)
    within = launch(902, 400, 4, "cudaDeviceSynchronize")
    draft = late_launches(case_of(tmp_path / "within", [*events, *ends, within]))
    assert draft is not None and draft.brief is not None
    assert draft.brief.startswith("Remove the host sync of the step (torch.cuda.synchronize(), train.py:12), then")


def test_waits_of_copies_from_pageable_memory_are_called_so(tmp_path: Path) -> None:
    """The driver's wait after such a copy was called .item(), and hunted for in vain."""
    events = gpu_events(**LATE, steps=1)

    def case(at_us: float, kind: str) -> Evidence:
        upload = [
            launch(900, at_us, 0.2, "cudaMemcpyAsync"),
            memcpy(900, at_us + 3, 2, 4096, f"HtoD ({kind} -> Device)"),
        ]
        wait = launch(901, at_us + 0.3, 0.3, "cudaStreamSynchronize")
        return case_of(tmp_path / f"{at_us}{kind}", [*events, *upload, wait])

    before, within = (late_launches(case(at_us, "Pageable")) for at_us in (0.1, 400.5))
    assert before is not None and before.brief == "Run the step as a CUDA graph (torch.cuda.graph)"
    assert any("1 copy of inputs from pageable memory" in words and "pin_memory" in words for words in before.evidence)
    assert within is not None and within.brief is not None
    assert within.brief.startswith("Remove the host sync of the step (copies from pageable memory), then")
    pinned = late_launches(case(400.5, "Pinned"))
    assert pinned is not None and "(a call such as .item() or .cpu())" in (pinned.brief or "")
    waited = late_launches(case_of(tmp_path / "event", [*events, launch(901, 400.5, 0.3, "cudaEventSynchronize")]))
    assert waited is not None and "(event.synchronize(), train.py:12)" in (waited.brief or "")


@pytest.mark.parametrize("launched", [4, 40])
def test_a_graph_holds_the_optimizer_where_that_launches_much(tmp_path: Path, launched: int) -> None:
    events = gpu_events(kernels=50, kernel_us=1, every_us=12, steps=1)
    mark = complete("Optimizer.step#AdamW.step", "user_annotation", 12 * (50 - launched) - 0.5, 12 * launched)
    draft = late_launches(case_of(tmp_path, [*events, mark]))
    assert draft is not None and draft.code is not None
    assert ("optimizer.step()" in draft.code) is (launched == 40)


def test_on_hip_the_graph_has_its_name(tmp_path: Path) -> None:
    events = [{**each, "name": each["name"].replace("cuda", "hip")} for each in gpu_events(**LATE)]
    draft = late_launches(case_of(tmp_path, events))
    assert draft is not None and "as a HIP graph" in draft.advice and "CUDA" not in draft.advice


def test_no_graph_holds_a_step_in_which_ops_compute_on_the_cpu(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(**LATE))
    accounts = {"compute": 200.0, "overhead.dispatch": 700.0}
    assert late_launches(with_ledger(case, {**accounts, "overhead.host_compute": 40.0})) is not None
    assert late_launches(with_ledger(case, {**accounts, "overhead.host_compute": 60.0})) is None


@pytest.mark.parametrize(("changing", "is_told"), [(0, True), (2, True), (20, False)])
def test_no_graph_holds_a_step_whose_sizes_change(tmp_path: Path, changing: int, is_told: bool) -> None:
    events = gpu_events(**LATE)
    second = [each for each in events if each["cat"] == "cpu_op"][LATE["kernels"] :]
    for each in second[:changing]:
        each["args"] = {**each["args"], "Input Dims": [[9, 9], [9, 9], []]}
    assert (late_launches(case_of(tmp_path, events)) is not None) == is_told


@pytest.mark.parametrize(("added", "grows"), [(1, True), (2, False)])
def test_a_cache_that_grows_by_a_token_is_to_be_static_before_a_graph(tmp_path: Path, added: int, grows: bool) -> None:
    events = gpu_events(**LATE, steps=4)
    calls = [each for each in events if each["cat"] == "cpu_op"]
    for number, each in enumerate(calls[:: LATE["kernels"] // 2]):
        cache = [1, 12, 30 + number // 2, 64]
        each["name"] = "aten::cat"
        each["args"] = {
            **each["args"],
            "Input Dims": [[cache, [1, 12, added, 64]], []],
            "Input type": ["TensorList", "Scalar"],
            "Concrete Inputs": ["", ""],
        }
    draft = late_launches(case_of(tmp_path, events))
    assert draft is not None
    assert draft.advice.startswith("Keep keys and values in a static cache") == grows
    assert ("with each token (30 to 33)" in " ".join(draft.evidence)) == grows


def test_a_host_that_is_ahead_of_the_device_has_no_launches_to_hide(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(kernels=20, kernel_us=200, every_us=10))
    assert late_launches(case) is None and eager_overhead(case) is None and host_overhead(case) is None


def test_eager_ops_that_starve_the_device_may_be_compiled(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(**LATE))
    draft = eager_overhead(case)
    assert draft is not None and draft.gain_us is not None and draft.tries == ("compile",)
    late_us = case.account_us("overhead.dispatch", "overhead.python", "overhead.launch")
    assert draft.gain_us.low < draft.gain_us.high == pytest.approx(0.8 * late_us)


def test_compiling_saves_more_where_more_ops_become_one_kernel(tmp_path: Path) -> None:
    few, many = (
        compiled_parts(case_of(tmp_path / str(count), gpu_events(kernels=count, kernel_us=3.0, every_us=20.0)))
        for count in (4, 40)
    )
    assert few[0] == 0.0
    assert few[1] < many[1]


def test_compiled_code_takes_a_call_of_its_graph_and_its_kernels_at_best(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(kernels=8, kernel_us=1.0, every_us=fastest_host_us()))
    least, most = compiled_parts(case)
    left = host_units("compiled step") + host_units("generated kernel")
    assert least == 0.0
    assert most == pytest.approx(1 - fastest_host_us() * left / case.step_us)


def test_what_is_compiled_already_is_not_told_to_be(tmp_path: Path) -> None:
    events = [*gpu_events(**LATE), op("Torch-Compiled Region: 0/0", 100, 5)]
    assert eager_overhead(case_of(tmp_path, events)) is None


def test_ops_inside_one_that_stays_a_call_are_not_fused(tmp_path: Path) -> None:
    def gain(name: str) -> Interval:
        around = [op(name, 1810 * number + 0.5, 1800) for number in range(2)]
        events = [*cpu_events(ops=300, op_us=2, every_us=6), *around]
        found = compile_gain_us(case_of(tmp_path / name, events, unprofiled_us=1500.0))
        assert found is not None
        return found

    kept, own = gain("aten::_embedding_bag_backward"), gain("aten::anything_else")
    assert kept.low < 0 and kept.high < 0.05 * own.high


def test_recurrent_layers_of_the_library_are_not_compiled(tmp_path: Path) -> None:
    def gain(module: str) -> Interval:
        around = [frame(f"nn.Module: {module}", 1810 * number + 0.5, 1800) for number in range(2)]
        events = [*cpu_events(ops=300, op_us=2, every_us=6), *around]
        found = compile_gain_us(case_of(tmp_path / module, events, unprofiled_us=1500.0))
        assert found is not None
        return found

    eager, compiled = gain("GRU_0"), gain("GRUOfOurs_0")
    assert eager.high <= 0 < compiled.low


def test_many_pointwise_ops_on_a_cpu_are_worth_compiling(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(ops=300, op_us=2, every_us=6), unprofiled_us=1500.0)
    draft, gain = host_overhead(case), compile_gain_us(case)
    assert draft is not None and gain is not None and draft.gain_us is not None
    assert 0 < draft.gain_us.low == gain.low < draft.gain_us.high <= gain.high
    assert sum(draft.claims.values()) == pytest.approx(draft.gain_us.high)
    assert "300 of them can be fused into loops, 0 stay library calls" in draft.evidence


def test_a_model_that_reads_numbers_again_and_again_is_not_compiled(tmp_path: Path) -> None:
    def told(name: str, reads: int, mark: str | None = None) -> bool:
        events = cpu_events(ops=300, op_us=2, every_us=6)
        for step_us in (0.0, 1810.0):
            events += [op("aten::item", step_us + 20 + 2 * at, 1) for at in range(reads)]
            events += [] if mark is None else [complete(mark, "user_annotation", step_us + 19, 44)]
        return host_overhead(case_of(tmp_path / name, events, unprofiled_us=1500.0)) is not None

    assert told("few", 3) and not told("many", 20)
    assert told("of the optimizer", 20, "Optimizer.step#Adam.step")


def test_a_few_products_cost_less_than_a_call_of_compiled_code(tmp_path: Path) -> None:
    events = cpu_events(ops=10, op_us=8, every_us=12, name="aten::mm", dims=[[8, 8], [8, 8]])
    case = case_of(tmp_path, events, unprofiled_us=100.0)
    gain = compile_gain_us(case)
    assert gain is not None and gain.low < 0
    assert host_overhead(case) is None


def test_training_pays_more_for_each_call_of_compiled_code(tmp_path: Path) -> None:
    backward = op("autograd::engine::evaluate_function: AddBackward0", 1, 5.5)
    events = cpu_events(ops=60, op_us=2, every_us=6, steps=1)
    without, with_ = (
        compile_gain_us(case_of(tmp_path / name, more, unprofiled_us=300.0))
        for name, more in (("a", events), ("b", [*events, backward]))
    )
    assert without is not None and with_ is not None and with_.high < without.high - 100


def test_each_call_of_an_outermost_module_enters_compiled_code(tmp_path: Path) -> None:
    events = cpu_events(ops=300, op_us=2, every_us=6, steps=1)
    once = [frame("nn.Module: Net_0", 1, 1800)]
    often = [frame("nn.Module: Net_0", 1 + 180 * number, 179) for number in range(10)]
    within = [*once, *(frame("nn.Module: Linear_0", 2 + 180 * number, 170) for number in range(10))]
    one, ten, nested = (
        compile_gain_us(case_of(tmp_path / name, [*events, *frames], unprofiled_us=1800.0))
        for name, frames in (("one", once), ("ten", often), ("nested", within))
    )
    assert one is not None and ten is not None and nested is not None
    assert one.low - ten.low == pytest.approx(9 * 100, rel=0.02)  # 100 times the smallest op, 1 us here
    assert nested.low == pytest.approx(one.low)


def test_ops_outside_of_modules_are_not_compiled(tmp_path: Path) -> None:
    events = cpu_events(ops=300, op_us=2, every_us=6, steps=1)
    whole, half = (
        compile_gain_us(case_of(tmp_path / str(us), [*events, frame("nn.Module: Net_0", 1, us)], unprofiled_us=1800.0))
        for us in (1800, 900)
    )
    assert whole is not None and half is not None
    assert half.high + 30 == pytest.approx((whole.high + 30) / 2, rel=0.02)


def test_a_call_of_compiled_code_costs_what_this_machine_was_calibrated_at(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(ops=60, op_us=2, every_us=6), unprofiled_us=300.0)
    quick, slow = (
        compile_gain_us(with_analysis(case, device=replace(case.analysis.device, compiled_call_us=us)))
        for us in (20.0, 120.0)
    )
    assert quick is not None and slow is not None
    assert quick.high - slow.high == pytest.approx(0.8 * 100.0)
    assert quick.low - slow.low == pytest.approx(2.1 * 100.0)


def test_the_ops_of_the_optimizer_are_no_part_of_what_compiling_the_model_saves(tmp_path: Path) -> None:
    events = cpu_events(ops=300, op_us=2, every_us=6, steps=1)
    mark = complete("Optimizer.step#SGD.step", "user_annotation", 900, 890)
    whole, part = (
        compile_gain_us(case_of(tmp_path / name, more, unprofiled_us=1500.0))
        for name, more in (("a", events), ("b", [*events, mark]))
    )
    assert whole is not None and part is not None and part.high < 0.6 * whole.high


def test_kernels_at_their_launch_floor_are_worth_half_to_all_of_it(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(kernels=20, kernel_us=3, every_us=10))
    case = with_ledger(case, {"memory": 1000.0, "overhead.launch_floor": 400.0, "overhead.python": 100.0})
    device = replace(case.analysis.device, launch_floor_us=1.8)
    many = with_analysis(case, totals=replace(case.analysis.totals, kernel_count=900.0), device=device)
    draft = tiny_kernels(many)
    assert draft is not None and draft.gain_us is not None
    assert (draft.gain_us.low, draft.gain_us.high) == (200.0, 400.0)
    assert draft.claims == {"overhead.launch_floor": 400.0}


def test_a_few_tiny_kernels_are_not_worth_a_word(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(kernels=20, kernel_us=3, every_us=10))
    assert tiny_kernels(case) is None


def test_a_value_that_python_reads_ends_a_call_of_compiled_code(tmp_path: Path) -> None:
    layers = [op("aten::addmm", 600 * number + 1, 2, dims=[[8], [4, 8], [8, 8]]) for number in range(10)]
    loops = [op("aten::relu", 600 * number + 10 + 6 * more, 2) for number in range(10) for more in range(50)]
    reads = [op("aten::_local_scalar_dense", 600 * number + 500, 2) for number in range(10)]
    steps = cpu_events(ops=1, op_us=2, every_us=6000, steps=1, name="aten::add")
    one, ten = (
        compile_gain_us(case_of(tmp_path / name, [*steps, *layers, *loops, *more], unprofiled_us=6000.0))
        for name, more in (("one", []), ("ten", reads))
    )
    assert one is not None and ten is not None
    assert one.low - ten.low == pytest.approx(9 * 100, rel=0.3)  # 100 times the smallest op, about 1 us here


def test_gradients_that_are_differentiated_themselves_keep_the_compiler_out(tmp_path: Path) -> None:
    events = cpu_events(ops=300, op_us=2, every_us=6)
    twice = op("autograd::engine::evaluate_function: TanhBackwardBackward0", 1, 5.5)
    once = op("autograd::engine::evaluate_function: TanhBackward0", 1, 5.5)
    assert compile_gain_us(case_of(tmp_path / "twice", [*events, twice], unprofiled_us=1500.0)) is None
    assert compile_gain_us(case_of(tmp_path / "once", [*events, once], unprofiled_us=1500.0)) is not None


def test_sparse_tensors_keep_the_compiler_out(tmp_path: Path) -> None:
    events = cpu_events(ops=300, op_us=2, every_us=6)
    product = op("aten::_sparse_addmm", 1, 5.5)
    assert compile_gain_us(case_of(tmp_path / "sparse", [*events, product], unprofiled_us=1500.0)) is None
