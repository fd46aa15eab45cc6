"""Predicts changes of a program on devices that are not here: ``bottleneck verify --device``."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck import __version__
from bottleneck.errors import UsageError, WorkloadError
from bottleneck.schema.records import replace
from bottleneck.system.interrupts import answered

if TYPE_CHECKING:
    from bottleneck.harness.messages import Program
    from bottleneck.predict.changes import NoStep, Record, Tell
    from bottleneck.schema.device import Device
    from bottleneck.schema.memory_fit import MemoryFit
    from bottleneck.schema.predicted_changes import PredictedChanges
    from bottleneck.schema.predicted_step import Backend
    from bottleneck.schema.step_calls import StepCalls


def predict_elsewhere(
    program: "Program",
    devices: "Sequence[Device]",
    paces: Mapping[str, float],
    tries: Sequence[str],
    tell: "Tell",
) -> "PredictedChanges":
    """Predicts each change on these devices.

    Without names in ``tries`` it takes all changes that can be predicted. ``paces`` are those of hosts, by device.

    UsageError for a change that cannot be predicted, and where the step depends on values of its data; WorkloadError
    where the program fails as it is.
    """
    from bottleneck.experiment.interventions import CHANGES
    from bottleneck.predict.changes import PRICED, ChangedSteps, NoStep, predict_changes

    without = [name for name in tries if name not in PRICED]
    if without:
        raise UsageError(
            f"{without[0]} cannot be predicted for a device that is not here",
            fix=f"leave --device out to measure it, or choose from {', '.join(PRICED)}",
        )
    with changed_recorder(program) as record:
        steps = ChangedSteps(record, {name: CHANGES[name].samples for name in PRICED}, paces)
        try:
            answer = predict_changes(steps, devices, tuple(tries) or PRICED, tell)
        except NoStep as state:
            raise _without_price(program, state) from None
    return replace(answer, version=__version__)


def fits_elsewhere(
    program: "Program", devices: "Sequence[Device]", paces: Mapping[str, float], backend: "Backend"
) -> "list[MemoryFit | None]":
    """Finds for each device what makes the program's step fit into its memory.

    WorkloadError where the program fails as it is.
    """
    from bottleneck.predict.changes import NoStep
    from bottleneck.predict.memory_fit import fit_memory

    with changed_recorder(program) as record:
        steps: dict[tuple[str, ...], StepCalls | NoStep] = {}

        def once(changes: Sequence[str]) -> "StepCalls":
            """The step with these changes, which is the same for all devices."""
            if tuple(changes) not in steps:
                try:
                    steps[*changes] = record(changes)
                except NoStep as state:
                    steps[*changes] = state
            step = steps[*changes]
            if isinstance(step, NoStep):
                raise step
            return step

        try:
            return [fit_memory(once, device, backend, paces.get(device.name)) for device in devices]
        except NoStep as state:
            raise _without_price(program, state) from None


def _without_price(program: "Program", state: "NoStep") -> WorkloadError:
    return WorkloadError(
        f"the step of {program.target} cannot be predicted",
        why=state.reason,
        fix=state.fix or f"see what of it can be: bottleneck predict {program.target} --device NAME",
    )


@contextmanager
def changed_recorder(program: "Program") -> "Iterator[Record]":
    """Gives the function that records the program's step with changes under fake tensors.

    It raises NoStep where that cannot be had. Its processes end with the context.
    """
    from bottleneck.experiment.fake_variants import FakeWorker
    from bottleneck.experiment.worker import Refused
    from bottleneck.predict.changes import NoStep

    with (
        answered(),
        tempfile.TemporaryDirectory(prefix="bottleneck-", ignore_cleanup_errors=True) as scratch,
        ExitStack() as workers,
    ):

        def start() -> FakeWorker:
            return workers.enter_context(FakeWorker(program, Path(scratch) / "stderr.txt"))

        def no_step(refused: Refused) -> NoStep:
            return NoStep(refused.reason, has_failed=refused.verdict == "failed", fix=refused.fix)

        # A script ends with its step.
        worker = None if program.form == "script" else start()

        def record(changes: Sequence[str]) -> "StepCalls":
            nonlocal worker
            try:
                return (worker or start()).record(changes)
            except Refused as refused:
                if worker is None or not refused.has_died:
                    raise no_step(refused) from None
            # Torch may crash at what other changes left behind: this one gets a process of its own.
            worker = start()
            try:
                return worker.record(changes)
            except Refused as refused:
                worker = start() if refused.has_died else worker
                raise no_step(refused) from None

        yield record
