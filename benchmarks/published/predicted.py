"""Predicts the steps of the published cases: records them under fake tensors, and prices them on their devices."""

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.published.score import HeldGain, HeldTime
from benchmarks.published.stated import WHOLE_GRAPH, Case, StatedStep
from bottleneck.devices.match import device_by_name
from bottleneck.experiment.fake_variants import FakeWorker
from bottleneck.experiment.worker import Refused
from bottleneck.harness.messages import Program
from bottleneck.predict.changes import ChangedSteps, NoStep, verdict_of
from bottleneck.predict.gains import predict_gain
from bottleneck.predict.price import PricedWork, price_work
from bottleneck.schema.device import Device
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCalls


@dataclass(frozen=True)
class HeldCase:
    """A case with its predicted steps, gains and times; ``refused`` names the steps without a price, with reasons."""

    case: Case
    steps: Mapping[str, PricedWork]
    gains: tuple[HeldGain, ...]
    times: Mapping[str, HeldTime]
    refused: Mapping[str, str]


def hold(case: Case, keep: Path | None = None) -> HeldCase:
    """Predicts a case. Calls of its steps are kept in the folder ``keep``, and read there where they are."""
    device = device_by_name(case.device)
    steps: dict[str, PricedWork] = {}
    refused: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as workers:
        recorder = _Recorder(case, Path(scratch), workers, keep)
        for name, step in case.steps.items():
            try:
                steps[name] = _price(recorder.changed(step), step, device)
            except NoStep as state:
                refused[name] = state.reason
    gains = []
    for stated in case.gains:
        if stated.before in steps and stated.after in steps:
            gain = predict_gain(steps[stated.before], steps[stated.after])
            gains.append(HeldGain(stated, gain, verdict_of(gain)))
    times = {
        name: HeldTime(case.steps[name].us, work.us())  # type: ignore[arg-type]
        for name, work in steps.items()
        if case.is_step and case.steps[name].us is not None
    }
    return HeldCase(case, steps, tuple(gains), times, refused)


def _price(steps: ChangedSteps, step: StatedStep, device: Device) -> PricedWork:
    """The work of a step with its changes. One whose optimizer is captured too is all one graph, as in inference."""
    if WHOLE_GRAPH not in step.changes:
        return steps.price(step.changes, device)
    calls = steps.calls([name for name in step.changes if name != WHOLE_GRAPH])
    inside = tuple(replace(call, phase="other", module=None) for call in calls.calls)
    settings = replace(calls.settings, training=False)
    priced = price_work(replace(calls, calls=inside, settings=settings), device, "captured")
    if isinstance(priced, str):
        raise NoStep(priced)
    return priced


class _Recorder:
    """Records the steps of a case: one process for each choice of settings, started where it is needed."""

    def __init__(self, case: Case, scratch: Path, workers: ExitStack, keep: Path | None) -> None:
        self._case, self._scratch, self._stack, self._keep = case, scratch, workers, keep
        self._workers: dict[tuple[tuple[str, str], ...], FakeWorker] = {}
        self._changed: dict[tuple[tuple[str, str], ...], ChangedSteps] = {}

    def changed(self, step: StatedStep) -> ChangedSteps:
        """The steps of the program with the settings of one, by the changes made to it."""
        settings = step.settings
        if settings not in self._changed:
            self._changed[settings] = ChangedSteps(lambda changes: self._record(settings, changes), {})
        return self._changed[settings]

    def _record(self, settings: tuple[tuple[str, str], ...], changes: Sequence[str]) -> StepCalls:
        kept = None if self._keep is None else self._keep / f"{self._digest(settings, changes)}.json"
        if kept is not None and kept.exists():
            return msgspec.json.decode(kept.read_bytes(), type=StepCalls)
        try:
            calls = self._worker(settings).record(changes)
        except Refused as refused:
            raise NoStep(refused.reason, has_failed=refused.verdict == "failed") from None
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(msgspec.json.encode(calls))
        return calls

    def _digest(self, settings: tuple[tuple[str, str], ...], changes: Sequence[str]) -> str:
        program = self._case.file.read_text(encoding="utf-8").partition("def workload")[2]
        text = repr((self._case.file.stem, program, settings, tuple(changes)))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _worker(self, settings: tuple[tuple[str, str], ...]) -> FakeWorker:
        if settings not in self._workers:
            for worker in self._workers.values():  # one at a time: a large model's fake tensors take memory
                worker.close()
            program = Program(str(self._case.file), settings=settings)
            self._workers = {settings: self._stack.enter_context(FakeWorker(program, self._scratch / "stderr.txt"))}
        return self._workers[settings]
