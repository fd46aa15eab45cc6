"""Prices each change of a program on devices that are not here.

Alone, and in the order in which they are best made. The changed program is run under fake tensors, so that its ops,
types, layouts and sizes are those that the change makes. A price needs no rule for a change. Compilers and graphs
change no op: they are prices of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from bottleneck.predict.answer import work_by_kind
from bottleneck.predict.gains import PredictedGain, predict_gain
from bottleneck.predict.peak_memory import fits, step_memory
from bottleneck.predict.price import PricedWork, price_work, step_of
from bottleneck.schema.device import Device, without_maker
from bottleneck.schema.predicted_changes import (
    DeviceChanges,
    PredictedChange,
    PredictedChanges,
    PredictedVerdict,
    RefusedChange,
)
from bottleneck.schema.predicted_step import Backend
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCalls

TF32 = "tf32"
_NO_PACES: Mapping[str, float] = MappingProxyType({})
BACKENDS: Mapping[str, Backend] = {
    "compile": "compile",
    "cuda-graph": "captured",
    "compile-reduce-overhead": "reduce-overhead",
    "compile-max-autotune": "max-autotune",
}
# Changes that make other ops, and so are run.
RUN = (
    "bf16-autocast",
    "fused-attention",
    "channels-last",
    "fold-batchnorm",
    "pad-vocabulary",
    "inference-mode",
    "fused-optimizer",
    "set-to-none",
    "batch-x2",
    "checkpoint",
)
PRICED = (TF32, *RUN, *BACKENDS)
# They save memory, or make another step: nobody makes them to be faster, and they are in no order of changes.
_OTHER_STEPS = frozenset({"batch-x2", "checkpoint"})
# What a device must have for a change.
_NEEDS = {
    "bf16-autocast": ("bf16_tensor", "it has no units for products in bf16"),
    TF32: ("tf32_tensor", "it has no units for products in TF32"),
}
_NOTHING = 0.01
_ALONE = "each change alone"
_MOST_IN_ORDER = 5

# Says what is priced now, and which part of it; an empty part begins something new.
Tell = Callable[[str, str], None]
# Gives the calls of the step with these changes; raises `NoStep` where there are none.
Record = Callable[[Sequence[str]], StepCalls]


class NoStep(Exception):  # noqa: N818 - an outcome, not an error of ours
    """The step with these changes cannot be had; ``has_failed`` where the changed program failed.

    ``fix`` says what its user may do; '' where nothing is known.
    """

    def __init__(self, reason: str, *, has_failed: bool = False, fix: str = "") -> None:
        super().__init__(reason)
        self.reason, self.has_failed, self.fix = reason, has_failed, fix


class ChangedSteps:
    """Steps of a program by the changes that were made to it.

    Each is recorded once, and priced once on each device.
    """

    def __init__(self, record: Record, samples: Mapping[str, float], paces: Mapping[str, float] = _NO_PACES) -> None:
        self._record, self._samples, self._paces = record, samples, paces
        self._steps: dict[tuple[str, ...], StepCalls | NoStep] = {}
        self._priced: dict[tuple[frozenset[str], Backend, str], PricedWork] = {}

    def calls(self, changes: Sequence[str]) -> StepCalls:
        """The step with these changes; raises NoStep."""
        run = tuple(name for name in RUN if name in changes)
        if run not in self._steps:
            try:
                self._steps[run] = self._record(run)
            except NoStep as state:
                self._steps[run] = state
        step = self._steps[run]
        if isinstance(step, NoStep):
            raise step
        if TF32 not in changes:
            return step
        return replace(step, settings=replace(step.settings, matmul_allow_tf32=True, float32_matmul_precision="high"))

    def price(self, changes: Sequence[str], device: Device) -> PricedWork:
        """The work of the step with these changes on a device; raises NoStep."""
        key = (frozenset(changes), self.backend(changes), device.name)
        if key not in self._priced:
            priced = price_work(self.calls(changes), device, self.backend(changes), self.pace(device))
            if isinstance(priced, str):
                raise NoStep(priced)
            self._priced[key] = priced
        return self._priced[key]

    def pace(self, device: Device) -> float | None:
        """The pace of the device's host; null where it is not known."""
        return self._paces.get(device.name)

    def backend(self, changes: Sequence[str]) -> Backend:
        """The way in which the step with these changes is run."""
        own: Backend = "compile" if self.calls(()).settings.compiled else "eager"
        return next((BACKENDS[name] for name in reversed(changes) if name in BACKENDS), own)

    def samples(self, changes: Sequence[str]) -> float:
        """Returns the samples of the step with these changes.

        As a multiple of those of the step as it is.
        """
        samples = 1.0
        for name in changes:
            samples *= self._samples.get(name, 1.0)
        return samples


def predict_changes(
    steps: ChangedSteps, devices: Sequence[Device], names: Sequence[str], tell: Tell
) -> PredictedChanges:
    """Predicts the gain of each change on each device, and their order.

    Raises NoStep where the step as it is has no price.
    """
    tell("the step as it is", "")
    as_it_is = steps.calls(())
    refused: dict[str, RefusedChange] = {}
    tell(_ALONE, "")
    for name in names:
        tell(_ALONE, name)
        try:
            if name in BACKENDS and as_it_is.settings.compiled:
                raise NoStep("the program compiles its step already")
            if name == TF32 and as_it_is.settings.matmul_allow_tf32:
                raise NoStep("the program allows it already")
            steps.calls((name,))
        except NoStep as state:
            refused[name] = RefusedChange(name, state.reason, state.has_failed)
    tried = [name for name in names if name not in refused]
    return PredictedChanges(
        program=as_it_is.program,
        batch_size=as_it_is.batch_size,
        op_calls=len(as_it_is.calls),
        training=as_it_is.settings.training,
        devices=tuple(_on_device(steps, device, tried, tell) for device in devices),
        refused=tuple(refused.values()),
        notes=as_it_is.notes,
    )


def _on_device(steps: ChangedSteps, device: Device, names: Sequence[str], tell: Tell) -> DeviceChanges:
    before = steps.price((), device)
    lacking = {name: why for name, (peak, why) in _NEEDS.items() if peak not in device.peaks_flops_per_s}
    alone = [_change(steps, device, (), name, before) for name in names if name not in lacking]
    alone.sort(key=lambda change: -change.speedup)
    order = _order(steps, device, alone, tell)
    whole = tuple(change.change for change in order)
    memory = step_memory(steps.calls(()))
    as_it_is = step_of(before)
    return DeviceChanges(
        device=device.name,
        step=replace(as_it_is, kernels=()),
        peak_bytes=None if memory is None else memory.peak_bytes,
        alone=tuple(alone),
        order=tuple(order),
        total=_change(steps, device, whole[:-1], whole[-1], before) if len(whole) > 1 else None,
        refused=tuple(RefusedChange(name, why) for name, why in lacking.items() if name in names),
        memory_bytes=device.memory_bytes,
        fits=None if memory is None or device.memory_bytes is None else fits(memory.peak_bytes, device.memory_bytes),
        work=work_by_kind(steps.calls(()), as_it_is),
    )


def _order(steps: ChangedSteps, device: Device, alone: Sequence[PredictedChange], tell: Tell) -> list[PredictedChange]:
    """The changes in the order of their gains, each given the ones before it."""
    made: list[PredictedChange] = []
    what = f"the best order on {without_maker(device.name)}"
    tell(what, "")
    left = [change.change for change in alone if change.change not in _OTHER_STEPS and change.verdict != "hurts"]
    while left and len(made) < _MOST_IN_ORDER:
        names = tuple(change.change for change in made)
        before = steps.price(names, device)
        candidates = []
        for name in left:
            if made:
                tell(what, f"{name} after {', '.join(names)}")
            try:
                candidates.append(_change(steps, device, names, name, before))
            except NoStep:  # the two do not go together
                continue
        best = max(candidates, key=lambda change: change.speedup, default=None)
        if best is None or best.verdict != "helps":
            # Of those within their own error, another may still be certain.
            best = max((one for one in candidates if one.verdict == "helps"), key=lambda one: one.speedup, default=None)
        if best is None:
            break
        made.append(best)
        left = [name for name in left if name != best.change and not _excludes(best.change, name)]
    return made


def _excludes(made: str, name: str) -> bool:
    """True for another way to run a step that is compiled or captured already."""
    return made in BACKENDS and name in BACKENDS


def _change(steps: ChangedSteps, device: Device, made: Sequence[str], name: str, before: PricedWork) -> PredictedChange:
    """The figures of a change after others, held against ``before``."""
    names = (*made, name)
    after = steps.price(names, device)
    gain = predict_gain(before, after, steps.samples(names))
    memory = step_memory(steps.calls(names))
    return PredictedChange(
        change=name,
        verdict=verdict_of(gain),
        speedup=gain.speedup,
        interval=gain.interval,
        step=replace(step_of(after), kernels=()),
        peak_bytes=None if memory is None else memory.peak_bytes,
    )


def verdict_of(gain: PredictedGain) -> PredictedVerdict:
    """Gives the side of 1 on which the interval lies."""
    low, high = gain.interval.low, gain.interval.high
    if abs(gain.speedup - 1) < _NOTHING and high - low < 4 * _NOTHING:
        return "nothing"
    return "helps" if low > 1 else "hurts" if high < 1 else "open"
