"""The rule for the optimizer's step: many kernels per parameter fire, fused and plain ones are silent."""

from pathlib import Path

import pytest

from bottleneck.advice.optimizers import foreach_optimizer, optimizer_share, unfused_optimizer
from bottleneck.advice.ranking import rank
from bottleneck.schema.analysis import Caveat, Interval
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, with_analysis
from tests.builders import Event, complete, frame, kernel, launch, op, step

NODE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def training(per_parameter: int, name: str = "aten::mul_", cls: str = "AdamW", device: bool = False) -> list[Event]:
    """One step: two gradients are accumulated, then the optimizer runs so many ops for each."""
    ops = 2 * per_parameter
    events = [step(0, 0, 100 + 10 * ops), frame("train.py(9): train", 0, 100 + 10 * ops)]
    events += [op(NODE, 10 + 10 * number, 5, external_id=500 + number) for number in range(2)]
    events.append(complete(f"Optimizer.step#{cls}.step", "user_annotation", 60, 10 * ops))
    for number in range(ops):
        at, key = 61 + 10.0 * number, number + 1
        events.append(op(name, at, 4, dims=[[64, 64], []], external_id=key))
        if device:
            events += [launch(key, at + 1, 2), kernel(key, at + 4, 2)]
    return events


def test_many_ops_per_parameter_are_worth_one_fused_call(tmp_path: Path) -> None:
    case = case_of(tmp_path, training(12), unprofiled_us=250.0)
    draft = unfused_optimizer(case)
    assert draft is not None and draft.gain_us is not None and draft.tries == ("fused-optimizer",)
    assert "24 kernels per step for 2 parameters in AdamW.step, 12.0 for each" in draft.evidence
    assert 0 < draft.gain_us.low < draft.gain_us.high < 250
    assert draft.code is not None and "torch.optim.AdamW" in draft.code
    # A fused pass spares calls and bytes, and what it claims of either is no more than the gain.
    assert {"overhead.launch_floor", "overhead.dispatch"} <= draft.claims.keys()
    assert sum(draft.claims.values()) <= draft.gain_us.high * (1 + 1e-9)


def test_an_update_that_the_program_writes_out_is_gone_for_the_most_part(tmp_path: Path) -> None:
    """An AdamW of 25 ops and new tensors for each parameter took 25 % of the step, of which fused=True spared 85 %."""
    case = case_of(tmp_path, training(25), unprofiled_us=620.0)
    draft = unfused_optimizer(case)
    assert draft is not None and draft.gain_us is not None and draft.cannot_lose
    # Fifty ops, one every 10 us.
    assert draft.gain_us.low == pytest.approx(0.6 * 500, rel=0.1)
    assert draft.gain_us.high == pytest.approx(0.95 * 500, rel=0.1)


def test_on_a_cpu_other_programs_stretch_the_optimizer_as_they_do_the_rest(tmp_path: Path) -> None:
    case = case_of(tmp_path, training(12), unprofiled_us=250.0)
    contended, sampled = (with_analysis(case, caveats=(Caveat(slug, "…"),)) for slug in ("contended", "sampled"))
    assert unfused_optimizer(contended) == unfused_optimizer(case) is not None
    assert unfused_optimizer(sampled) is None


def test_on_a_device_launches_are_worth_the_wait_for_them(tmp_path: Path) -> None:
    case = case_of(tmp_path, training(12, device=True))
    draft = unfused_optimizer(case)
    assert draft is not None and draft.gain_us is not None and "foreach-optimizer" in draft.tries
    idle = case.account_us("overhead.dispatch", "overhead.python", "overhead.launch", "overhead.launch_floor")
    assert draft.gain_us.high <= idle


def test_a_device_that_waits_for_an_optimizers_launches_gains_most_of_the_wait(tmp_path: Path) -> None:
    case = case_of(tmp_path, training(12, device=True))
    draft = unfused_optimizer(case)
    assert draft is not None and draft.gain_us is not None
    # Of 24 launches, one every 10 us, the last four of every ten fall away at least, and the last nine at most.
    assert draft.gain_us.low == pytest.approx(8 * 10, rel=0.1)
    assert draft.gain_us.high == pytest.approx(21 * 10, rel=0.1)


@pytest.mark.parametrize("within", [True, False])
def test_lists_of_tensors_count_in_the_optimizer_only(tmp_path: Path, within: bool) -> None:
    clipping = op("aten::_foreach_mul_", 62 if within else 40, 1, external_id=900)
    draft = unfused_optimizer(case_of(tmp_path, [*training(12), clipping], unprofiled_us=250.0))
    assert (draft is None) is within


def test_parameters_of_a_trace_from_windows_are_counted_too(tmp_path: Path) -> None:
    node = NODE.replace("torch::", "struct torch::")
    events = [event | {"name": node} if event["name"] == NODE else event for event in training(12)]
    draft = unfused_optimizer(case_of(tmp_path, events, unprofiled_us=250.0))
    assert draft is not None and "for 2 parameters" in draft.evidence[0]


def closure(per_parameter: int, device: bool = False) -> list[Event]:
    """The same step, called with a closure: forward and backward, 30 ops, run inside the optimizer's mark."""
    events = [event for event in training(per_parameter, device=device) if event["name"] != NODE]
    later = 400.0
    moved = [event | {"ts": event["ts"] + later} for event in events if event["ts"] > 60]
    around = [event | {"dur": event["dur"] + later} for event in events if event["ts"] <= 60]
    first = [complete("Optimizer.zero_grad#AdamW.zero_grad", "user_annotation", 365, 2)]
    for number in range(30):
        at, key = 61 + 10.0 * number, 100 + number
        first.append(op("aten::mul", at, 4, dims=[[64, 64], []], external_id=key))
        if device:
            first += [launch(key, at + 1, 2), kernel(key, at + 4, 2)]
    nodes = [op(NODE, 380 + 20 * number, 10, external_id=500 + number, tid=2) for number in range(2)]
    return [*around, *first, *nodes, *moved]


@pytest.mark.parametrize("device", [False, True])
def test_what_a_closure_runs_is_not_counted_as_the_optimizers(tmp_path: Path, device: bool) -> None:
    draft = unfused_optimizer(case_of(tmp_path / "many", closure(12, device)))
    assert draft is not None and "24 kernels per step for 2 parameters in AdamW.step, 12.0 for each" in draft.evidence
    assert unfused_optimizer(case_of(tmp_path / "few", closure(2, device))) is None


def test_the_share_of_the_optimizer_leaves_out_its_closure(tmp_path: Path) -> None:
    share = optimizer_share(case_of(tmp_path, closure(12)))
    assert (share.ops, share.work_us) == (24, pytest.approx(24 * 4, rel=0.01))
    assert share.overhead < 0.5


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (training(1), "plain SGD needs one op per parameter"),
        (training(12, name="aten::_fused_adamw_"), "it is fused already"),
        (training(12, name="aten::_foreach_mul_", device=True), "it goes through all of them at once"),
        (training(12, cls="LBFGS"), "there is no fused one"),
        ([event for event in training(12) if "Optimizer" not in event["name"]], "nothing marks an optimizer"),
    ],
)
def test_nothing_is_said_where(tmp_path: Path, events: list[Event], why: str) -> None:
    assert unfused_optimizer(case_of(tmp_path, events)) is None, why


def test_the_share_of_the_optimizer_is_what_lies_in_its_marks(tmp_path: Path) -> None:
    share = optimizer_share(case_of(tmp_path, training(12)))
    assert share.ops == 24
    assert share.work_us == pytest.approx(24 * 4, rel=0.01)
    assert 0.3 < share.overhead < 0.8
    assert optimizer_share(case_of(tmp_path / "none", training(12)[:4])).ops == 0


def test_a_step_that_is_open_when_the_profiler_stops_ends_with_the_window(tmp_path: Path) -> None:
    events = training(12)
    mark = next(event for event in events if event["name"].startswith("Optimizer.step"))
    window_end = next(event for event in events if event["name"].startswith("ProfilerStep"))
    later = window_end["ts"] + window_end["dur"]
    stretched = [event | {"dur": 20_000} if event is mark else event for event in events]
    ended = [event | {"dur": later - mark["ts"]} if event is mark else event for event in events]
    case, other = case_of(tmp_path / "open", stretched), case_of(tmp_path / "ended", ended)
    assert optimizer_share(case) == optimizer_share(other)
    name = str(mark["name"])
    assert case.mark_sums[name] == other.mark_sums[name]
    assert case.mark_sums[name].us < 400
    draft, same = unfused_optimizer(case), unfused_optimizer(other)
    assert draft is not None and same is not None and draft.gain_us == same.gain_us


def test_the_gain_comes_from_the_optimizers_phase_alone(tmp_path: Path) -> None:
    case = case_of(tmp_path, training(12), unprofiled_us=250.0)
    draft = unfused_optimizer(case)
    assert draft is not None and draft.phase == "optimizer"
    (finding,) = rank([replace(draft, gain_us=Interval(10.0, 240.0), claims={})], case.analysis)
    (phase,) = (each for each in case.analysis.phases if each.name == "optimizer")
    assert finding.predicted_gain_us is not None and finding.predicted_gain_us.high == pytest.approx(phase.us)


def test_less_of_the_optimizer_is_gained_where_fewer_calls_disappear(tmp_path: Path) -> None:
    parts = []
    for per_parameter in (4, 12, 60):
        case = case_of(tmp_path / str(per_parameter), training(per_parameter), unprofiled_us=250.0)
        draft = unfused_optimizer(case)
        (phase,) = (each for each in case.analysis.phases if each.name == "optimizer")
        assert draft is not None and draft.gain_us is not None
        parts.append(draft.gain_us.high / phase.us)
    # 8, 24 and 120 ops, of which one call stays, beside what a step takes without them.
    assert parts[0] < 0.6 < parts[1] < 0.8 < parts[2]


def test_passes_of_a_foreach_update_on_a_device_are_worth_one_fused_pass(tmp_path: Path) -> None:
    size = [[4096, 4096]] * 2
    update = complete("Optimizer.step#AdamW.step", "user_annotation", 20, 60)
    events = [step(0, 0, 90), frame("train.py(9): train", 0, 90), update]
    for number in range(9):
        key, at = number + 1, 21 + 6.0 * number
        events += [
            op("aten::_foreach_mul_", at, 5, dims=size, external_id=key),
            launch(key, at + 1, 2),
            kernel(key, 100 + 300.0 * number, 299, "multi_tensor_apply_kernel"),
        ]
    draft = foreach_optimizer(case_of(tmp_path, events))
    assert draft is not None and draft.gain_us is not None and "fused=True" in (draft.code or "")
    assert draft.gain_us.high == pytest.approx(9 * 299 * 12 / 19, rel=0.05)
    assert 0.55 * draft.gain_us.high < draft.gain_us.low < 0.65 * draft.gain_us.high
    fused = [event | {"name": event["name"].replace("_foreach_mul_", "_fused_adamw_")} for event in events]
    assert foreach_optimizer(case_of(tmp_path / "fused", fused)) is None


def single_ops(size: int, kernel_us: float, host_us: float = 10.0) -> list[Event]:
    """One step of AdamW over eight parameters of ``size`` x ``size`` numbers, with twelve kernels for each."""
    count = 8 * 12
    end = 100 + host_us * count
    events = [step(0, 0, end), frame("train.py(9): train", 0, end)]
    events += [op(NODE, 1 + number, 0.5, external_id=500 + number) for number in range(8)]
    events.append(complete("Optimizer.step#AdamW.step", "user_annotation", 60, host_us * count + 5))
    at = 0.0
    for number in range(count):
        issued, key = 61 + host_us * number, number + 1
        at = max(at + kernel_us + 1, issued + 4)
        events += [
            op("aten::mul_", issued, 0.8 * host_us, dims=[[size, size], []], external_id=key),
            launch(key, issued + 1, 2),
            kernel(key, at, kernel_us, "vectorized_elementwise_kernel"),
        ]
    return events


def test_a_device_that_sets_the_pace_gains_the_passes_that_one_fused_pass_spares(tmp_path: Path) -> None:
    # 8192 x 8192 numbers read and written: 537 MB, 160 us at the bandwidth of the H100 of these traces.
    draft = unfused_optimizer(case_of(tmp_path, single_ops(8192, 190.0)))
    assert draft is not None and draft.gain_us is not None
    low, high = (gain / (96 * 190.0) for gain in (draft.gain_us.low, draft.gain_us.high))
    assert 0.3 < low < high - 0.1 and high == pytest.approx(1 - 7 / 19, abs=0.05)


def test_a_host_that_sets_the_pace_gains_most_of_what_its_launches_take(tmp_path: Path) -> None:
    events = single_ops(64, 2.0)
    draft = unfused_optimizer(case_of(tmp_path, events))
    assert draft is not None and draft.gain_us is not None
    assert 0.2 * 960 < draft.gain_us.low < draft.gain_us.high < 1060


@pytest.mark.parametrize(
    ("cls", "framework", "is_told"),
    [("SGD", "PyTorch 2.2.1", False), ("SGD", "PyTorch 2.3.0+cpu", True), ("AdamW", "torch 2.2.1", True)],
)
def test_a_torch_without_the_fused_step_is_not_advised_to_use_it(
    tmp_path: Path, cls: str, framework: str, is_told: bool
) -> None:
    case = case_of(tmp_path, training(12, cls=cls), unprofiled_us=250.0, framework=framework)
    assert (unfused_optimizer(case) is not None) is is_told


def test_a_trace_in_the_words_of_old_profilers_is_of_a_torch_without_fused_steps(tmp_path: Path) -> None:
    """On a device a newer torch takes lists of tensors by itself."""
    events = [event | {"cat": "Operator"} if event["cat"] == "cpu_op" else event for event in training(12, device=True)]
    new, old = (
        unfused_optimizer(case_of(tmp_path / name, trace))
        for name, trace in (("new", training(12, device=True)), ("old", events))
    )
    assert new is not None and "fused=True" in (new.code or "") and new.tries
    assert old is not None and "fused=True" not in (old.code or "") and not old.tries
    assert old.advice.startswith("Update torch")


@pytest.mark.parametrize(("root", "is_certain"), [("aten::sqrt", True), ("aten::sqrt_", False)])
def test_large_results_in_new_memory_are_gone_with_a_fused_update(tmp_path: Path, root: str, is_certain: bool) -> None:
    """Every second op is the root of second moments, 9 us where ops in place take 4 us for as many bytes."""
    events = [
        event | {"args": {**event["args"], "Input Dims": [[1024, 1024], []]}}
        if event["name"] == "aten::mul_"
        else event
        for event in training(12)
    ]
    ops = [event for event in events if event["name"] == "aten::mul_"]
    for event in ops[::2]:
        event |= {"name": root, "dur": 9}
    draft = unfused_optimizer(case_of(tmp_path, events, unprofiled_us=250.0))
    assert draft is not None and draft.gain_us is not None
    assert (draft.gain_us.low == pytest.approx(0.9 * 12 * (9 - 4))) == is_certain
