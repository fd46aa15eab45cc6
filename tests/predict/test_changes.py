"""Changes priced on devices: which apply, what each brings, and the order in which they are best made."""

from collections.abc import Sequence

import pytest

from bottleneck.devices.match import device_by_name
from bottleneck.predict.changes import BACKENDS, PRICED, RUN, TF32, ChangedSteps, NoStep, predict_changes
from bottleneck.schema.device import Device, without_maker
from bottleneck.schema.predicted_changes import DeviceChanges, PredictedChanges
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCalls
from tests.predict.steps import call, in_dtype, step, use

A100, T4 = device_by_name("A100"), device_by_name("Tesla T4")
SIZE = 4096


def products(number: int = 4) -> StepCalls:
    made = [call("mm", [use(at, SIZE, SIZE), use(at + 1, SIZE, SIZE)], use(at + 2, SIZE, SIZE)) for at in range(number)]
    return replace(step(*made), settings=replace(step(*made).settings, matmul_allow_tf32=False))


class Program:
    """Stands for a program: bf16 halves its types, channels last does not apply, and checkpointing fails."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def record(self, changes: Sequence[str]) -> StepCalls:
        self.asked.append(tuple(changes))
        if "channels-last" in changes:
            raise NoStep("needs convolutions")
        if "checkpoint" in changes:
            raise NoStep("it raised", has_failed=True)
        calls = products(8 if "batch-x2" in changes else 4)
        return in_dtype(calls, "c10::BFloat16") if "bf16-autocast" in changes else calls


def answer(*devices: Device, names: Sequence[str] = PRICED) -> tuple[PredictedChanges, Program]:
    program, told = Program(), list[tuple[str, str]]()
    steps = ChangedSteps(program.record, {"batch-x2": 2.0})
    found = predict_changes(steps, devices, names, lambda *said: told.append(said))
    begun = [what for what, part in told if not part]
    orders = [f"the best order on {without_maker(device.name)}" for device in devices]
    assert begun == ["the step as it is", "each change alone", *orders]
    return found, program


def on(found: PredictedChanges, device: Device) -> DeviceChanges:
    return next(each for each in found.devices if each.device == device.name)


def test_every_change_is_run_or_has_a_price_of_its_own() -> None:
    assert {*RUN, *BACKENDS, TF32} == {*PRICED}


def test_each_change_has_a_gain_with_an_interval_most_gained_first() -> None:
    found, _ = answer(A100)
    alone = on(found, A100).alone
    assert [change.speedup for change in alone] == sorted((change.speedup for change in alone), reverse=True)
    assert all(change.interval.low <= change.speedup <= change.interval.high for change in alone)
    gains = {change.change: change for change in alone}
    assert gains["bf16-autocast"].verdict == gains["tf32"].verdict == "helps"
    assert gains["fused-optimizer"].verdict == "nothing"
    assert gains["batch-x2"].speedup == pytest.approx(1.0, abs=0.05)


def test_what_does_not_apply_is_told_with_the_reason() -> None:
    found, _ = answer(A100)
    refused = {change.change: change for change in found.refused}
    assert refused["channels-last"].reason == "needs convolutions" and not refused["channels-last"].has_failed
    assert refused["checkpoint"].has_failed


def test_a_device_without_the_units_has_no_such_change() -> None:
    found, _ = answer(A100, T4)
    assert {change.change for change in on(found, T4).refused} == {"bf16-autocast", "tf32"}
    assert not on(found, A100).refused
    assert "tf32" not in {change.change for change in on(found, T4).alone}


def test_the_order_begins_with_the_most_and_its_figures_multiply() -> None:
    found, _ = answer(A100)
    device = on(found, A100)
    assert device.order[0].change == "bf16-autocast" == device.alone[0].change
    product = 1.0
    for change in device.order:
        assert change.verdict == "helps"
        product *= change.speedup
    assert device.total is None or device.total.speedup == pytest.approx(product)
    ways = [change.change for change in device.order if change.change in BACKENDS]
    assert len(ways) <= 1 and not {"batch-x2", "checkpoint"} & {change.change for change in device.order}


def test_a_step_is_recorded_once_for_all_devices_and_ways_to_run_it() -> None:
    _, program = answer(A100, T4)
    assert len(program.asked) == len(set(program.asked))
    assert not any(name in BACKENDS or name == TF32 for asked in program.asked for name in asked)


def test_a_program_that_compiles_itself_is_not_told_to() -> None:
    program = Program()

    def record(changes: Sequence[str]) -> StepCalls:
        calls = program.record(changes)
        return replace(calls, settings=replace(calls.settings, compiled=True))

    found = predict_changes(ChangedSteps(record, {}), [A100], ["compile", "tf32"], lambda *_: None)
    assert [change.change for change in found.refused] == ["compile"]
    assert on(found, A100).step.backend == "compile"


def test_a_step_without_a_price_is_refused() -> None:
    def record(_: Sequence[str]) -> StepCalls:
        raise NoStep("the step depends on values")

    with pytest.raises(NoStep, match="depends on values"):
        predict_changes(ChangedSteps(record, {}), [A100], PRICED, lambda *_: None)


def test_a_given_pace_of_the_host_makes_no_interval_of_a_change_wider() -> None:
    gains = []
    for paces in ({}, {A100.name: 17.6}):
        steps = ChangedSteps(lambda _: stream_of_small_ops(), {}, paces)
        found = predict_changes(steps, [A100], ["cuda-graph"], lambda *_: None)
        gains.append(found.devices[0])
    unknown, known = gains
    assert unknown.step.by_host is not None
    assert known.step.by_host is None
    widths = [device.alone[0].interval.high / device.alone[0].interval.low for device in (known, unknown)]
    assert widths[0] < widths[1]


def stream_of_small_ops() -> StepCalls:
    return step(*(call("relu", [use(at, 1 << 16)], use(at + 1, 1 << 16)) for at in range(50)))
