"""Runs one step of a program under fake tensors.

A process of its own does so and gives back its op calls. Fake tensors have sizes and no memory; ops on them compute
sizes and nothing else. So a step of a model of any size takes the time of its dispatches, on a machine without a GPU.
"""

import dataclasses
import gc
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bottleneck.errors import UsageError, WorkloadError
from bottleneck.harness import forms, program, torch_private
from bottleneck.harness.lines import is_program
from bottleneck.harness.messages import Program
from bottleneck.harness.module_paths import find_modules
from bottleneck.harness.process_setup import prefer_roots, seeders
from bottleneck.harness.stopwatch import Step
from bottleneck.harness.supervise import CHILD, describe_end, last_line, run_quietly
from bottleneck.harness.torch_state import TorchHook, ask
from bottleneck.schema.step_calls import EngineSettings, StepCall, StepCalls, Storage

if TYPE_CHECKING:
    from bottleneck.harness.call_recorder import CallRecorder
    from bottleneck.harness.cuda_ops import CudaChoices

_ENTRY = "bottleneck.harness.fake_step:run_fake_step"
_OURS = str(Path(__file__).parents[1])
_RESULT, _LOG = "calls.json", "stderr.txt"

# The first step makes the state of optimizers and the gradients; one like all others follows. Of a script the first two
# are left out: the first boundary may come amid a step.
_STEPS_BEFORE = 2
_CALLS_BEFORE = 1

_NO_MORE = object()

# Batch sizes that are tried beside that of the program, and how many calls may be recorded for all of them.
_FACTORS = (2.0, 0.5, 4.0, 0.25, 8.0, 16.0)
_MOST_CALLS = 12_000

_DATA_DEPENDENT = ("DataDependentOutputException", "DynamicOutputShapeException", "DependsOnData", "UnbackedSymInt")
_NO_VERSION = "the step calls an op that fake tensors do not have"
_NO_FAKE = "no fake impl registered"  # of a RuntimeError for a custom op without `register_fake`
_ARGPARSE = "error: the following arguments are required"
_TO_DO = "record the program on a GPU and predict from the trace: bottleneck predict TRACE --device NAME"


def fake_steps(asked: Program, *, other_sizes: bool = True) -> tuple[StepCalls, ...]:
    """Records the op calls of one step of the program.

    And the same at other batch sizes where it can be given one: the larger the step, the fewer are tried. Raises
    UsageError
    where the step depends on values of its data, WorkloadError where the program fails.
    """
    import msgspec

    with tempfile.TemporaryDirectory(prefix="bottleneck-") as place:
        result, log = Path(place) / _RESULT, Path(place) / _LOG
        words = dataclasses.replace(asked, arguments=())
        text = json.dumps({"program": dataclasses.asdict(words), "other_sizes": other_sizes})
        command = [sys.executable, CHILD, _ENTRY, str(result), text, *asked.arguments]
        ran = run_quietly(command, log, os.environ)
        if not result.exists():
            lacks_arguments = not asked.arguments and _ARGPARSE in ran.stderr
            runs = f"see that it runs: bottleneck run {asked.target}"
            pass_them = (
                f"its own arguments stand behind --: bottleneck predict --device NAME -- {asked.target} --epochs 3"
            )
            raise WorkloadError(
                f"{asked.target} ended before it had made a step under fake tensors",
                why=last_line(ran.stderr) or describe_end(ran.end, None, None),
                fix=pass_them if lacks_arguments else runs,
            )
        answer = msgspec.json.decode(result.read_bytes())
        if "refused" in answer:
            raise UsageError(answer["refused"], why=answer["why"], fix=answer["fix"])
        return msgspec.convert(answer["steps"], tuple[StepCalls, ...])


class StepDone(BaseException):
    """Ends a script whose step was recorded, or can not be.

    No program catches this by accident.
    """


def run_fake_step(result: str, text: str, *arguments: str) -> None:
    """Runs the program up to its recorded step.

    It is the entry point of the process, and leaves the calls or a refusal.
    """
    wanted = json.loads(text)
    asked = dataclasses.replace(Program.from_values(wanted["program"]), arguments=arguments)
    prefer_roots()
    TorchHook(seeders(asked.seed), {}).install()
    answer: Mapping[str, Any]
    try:
        answer = {"steps": _record(asked, other_sizes=wanted["other_sizes"])}
    except SystemExit as leave:
        if program.exit_status(leave.code):
            raise
        answer = _refusal("the program ended before it had made three steps", None, "let it make a few more steps")
    except Exception as error:  # the user's program, or what torch makes of it
        answer = refusal_of(error)
        if not answer:
            program.show_only_their_frames()
            raise
    # Records as their fields: the process of the program loads no library of ours.
    Path(result).write_text(json.dumps(answer, default=vars))
    # Threads, workers and exit handlers of the program may rely on tensors with values.
    program.leave_at_once()


def refusal_of(error: BaseException) -> Mapping[str, Any]:
    """The refusal that an error means; empty where the program itself failed."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    names = {type(one_error).__name__: one_error for one_error in chain}
    for name in _DATA_DEPENDENT:
        if name in names:
            asked = str(names[name]) if name == "DependsOnData" else _op_words(name, str(names[name]))
            where = _where(chain)
            is_branch = where is not None and getattr(names[name], "branches", False)
            fix = f"say which way it goes: --assume {where}=true (or false); or {_TO_DO}" if is_branch else _TO_DO
            return _refusal("the step depends on values of its data", where, fix, asked)
    if "UnsupportedOperatorException" in names:
        what = f"torch has no fake version of {names['UnsupportedOperatorException']}"
        return _refusal(_NO_VERSION, _where(chain), _TO_DO, what)
    lacking = next((str(one_error) for one_error in chain if _NO_FAKE in str(one_error)), None)
    if lacking is not None:
        return _refusal(
            _NO_VERSION, _where(chain), f"give it one with register_fake, or {_TO_DO}", lacking.split(". ")[0]
        )
    return {}


def _op_words(name: str, op: str) -> str:
    if name == "DynamicOutputShapeException":
        return f"the size of the result of {op} is known only when it runs"
    if "_local_scalar_dense" in op:
        return "the program reads a number from a tensor and goes on by it"
    return f"{op} needs the values of a tensor"


def _refusal(what: str, where: str | None, fix: str, why: str = "") -> Mapping[str, Any]:
    return {"refused": what + (f" at {where}" if where else ""), "why": why, "fix": fix}


def _where(chain: Sequence[BaseException]) -> str | None:
    """Finds the innermost line of the program in an error.

    It looks in the tracebacks of the error and its causes.
    """
    for error in reversed(chain):
        lines = [
            f"{Path(frame.filename).name}:{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)
            if is_program(frame.filename) and not frame.filename.startswith(_OURS)
        ]
        if lines:
            return lines[-1]
    return None


class FakeSession:
    """Process that runs programs under fake tensors.

    Their ops are those that a CUDA device would choose. ``mode`` is entered wherever code of the program runs; within
    ``compiling()`` torch.compile captures graphs, which else gives back what it gets. Ends the process where torch is
    too old.
    """

    def __init__(self) -> None:
        import torch

        refusal = torch_private.refuse_old(torch)
        if refusal is not None:
            sys.exit(refusal)
        from bottleneck.harness.cuda_ops import CudaChoices

        fake_tensors = torch_private.fake_tensors()
        choices = CudaChoices(torch, fake_tensors.FakeTensor)
        self.torch, self.compiling = torch, choices.compiling
        self.mode = fake_tensors.FakeTensorMode(allow_non_fake_inputs=True)
        self._steps = _StepRecorder(torch, choices, _load_real_batches(torch, self.mode))

    def follow(self, asked: Program, change: Callable[[Sequence[Any]], None] | None = None) -> StepCalls:
        """The third step of a script, which ends there.

        After its first step ``change`` may change the program's objects; it gets the optimizers that were seen.
        """
        with self.mode:
            self._steps.assume(asked.assumed)
            self._steps.follow(asked, change)
        return self._steps.result(asked)

    def repeat(self, asked: Program, make: Callable[[], tuple[Step, int | None]]) -> StepCalls:
        """Records the second call of the step that ``make`` makes.

        With its batch size where the program tells it.
        """
        with self.mode:
            self._steps.assume(asked.assumed)
            self._steps.repeat(make)
        return self._steps.result(asked)


def _record(asked: Program, *, other_sizes: bool) -> list[StepCalls]:
    """Records the step, after some that made what a step finds.

    Then it records the same at other batch sizes.
    """
    session = FakeSession()
    if asked.form == "script":
        return [session.follow(asked)]
    with session.mode:
        module = program.load_file(asked.target, asked.arguments)
    steps = [session.repeat(asked, partial(_step_of, asked, module))]
    for size in _other_sizes(steps[0]) if other_sizes else ():
        try:
            larger = _at_size(asked, module, size, steps[0].batch_size)
            step = session.repeat(larger, partial(_step_of, larger, module))
        except Exception as error:  # the user's program: a size that it cannot take
            note = f"the step at batch size {size} failed: {type(error).__name__}"
            steps[0] = dataclasses.replace(steps[0], notes=(*steps[0].notes, note))
            continue
        steps.append(dataclasses.replace(step, batch_size=size))
    return steps


def _step_of(asked: Program, module: Any) -> tuple[Step, int | None]:
    """Returns the step of a workload or a bare model.

    The second result is the batch size that a workload tells.
    """
    if asked.form != "workload":
        return (forms.training_step if asked.train else forms.inference_step)(module), None
    return forms.workload_step(module, asked.settings), workload_batch(module, asked.settings)


def workload_batch(module: Any, settings: tuple[tuple[str, str], ...]) -> int | None:
    """Returns the batch size of a workload by its parameter of that name.

    Null without one.
    """
    doubling = forms.workload_doubling(module, settings)
    size = None if doubling is None else doubling.batch_size
    return size if isinstance(size, int) else None


def _other_sizes(step: StepCalls) -> list[int]:
    """Batch sizes to try beside that of the step, the most telling first."""
    if step.batch_size is None or not step.calls:
        return []
    most = max(2, min(_MOST_CALLS // len(step.calls), len(_FACTORS)))
    sizes = [
        int(step.batch_size * factor)
        for factor in _FACTORS
        if step.batch_size * factor == int(step.batch_size * factor)
    ]
    return sizes[:most]


def _at_size(asked: Program, module: Any, size: int, usual: int | None) -> Program:
    """Returns the program at another batch size.

    By its parameter, or by inputs that all have the batch as first size.
    """
    if asked.form == "workload":
        settings = dict(asked.settings)
        return dataclasses.replace(asked, settings=(*{**settings, forms.BATCH: str(size)}.items(),))

    def resized(tensor: Any) -> Any:
        if tensor.dim() == 0 or tensor.shape[0] != usual:
            raise ValueError("the inputs have no batch dimension in common")
        return tensor.new_empty((size, *tensor.shape[1:]))

    first_inputs = module.__dict__.setdefault("_bottleneck_inputs", module.inputs)
    import torch

    module.inputs = torch_private.trees().tree_map_only(torch.Tensor, resized, first_inputs)
    return asked


def _load_real_batches(torch: Any, mode: Any) -> list[Any]:
    """Lets data loaders work on real tensors.

    They shuffle by values; their batches become fake ones. The list is of the loaders that the program uses.
    """
    from bottleneck.harness.cuda_ops import ON_HOST

    trees, fake_tensor = torch_private.trees(), torch_private.fake_tensors().FakeTensor
    used: list[Any] = []

    def as_fake(value: Any) -> Any:
        fake = value if isinstance(value, fake_tensor) else mode.from_tensor(value)
        setattr(fake, ON_HOST, True)
        return fake

    def batches(loader: Any) -> Iterator[Any]:
        used.append(loader)
        with torch_private.without_modes():
            iterator = theirs(loader)
        while True:
            with torch_private.without_modes():
                batch = next(iterator, _NO_MORE)
            if batch is _NO_MORE:
                return
            yield trees.tree_map_only(torch.Tensor, as_fake, batch)

    kind = torch.utils.data.DataLoader
    theirs, kind.__iter__ = kind.__iter__, batches
    return used


class _StepRecorder:
    """Runs a program up to its recorded step.

    It does so with a CallRecorder and hooks on optimizers and modules.
    """

    def __init__(self, torch: Any, choices: "CudaChoices", loaders: Sequence[Any]) -> None:
        self._torch, self._choices, self._loaders = torch, choices, loaders
        self._recorder = self._new_recorder()
        self._optimizers: dict[int, Any] = {}
        self._first_sizes: list[int] = []
        self._paths: dict[int, str] = {}
        self._seen = 0
        self._kept: list[Any] = []
        self._batch: int | None = None
        self._scales = False
        self._assumed: Mapping[str, bool] = {}
        self._change: Callable[[Sequence[Any]], None] | None = None
        self._watch()
        self._assume_no_overflow()

    def _new_recorder(self) -> "CallRecorder":
        from bottleneck.harness.call_recorder import CallRecorder

        recorder = CallRecorder(self._torch, self._choices.replaced)
        recorder.answer_reads()
        self._choices.take_to_device = recorder.take_to_device
        return recorder

    def assume(self, assumed: Sequence[tuple[str, bool]]) -> None:
        """Takes conditions on values of tensors, by line, to be so."""
        self._assumed = dict(assumed)
        self._recorder.assumed = self._assumed

    def _watch(self) -> None:
        """Listens to optimizers and modules."""
        from torch.nn.modules import module as modules
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(self._before_optimizer)
        register_optimizer_step_post_hook(self._after_optimizer)
        modules.register_module_forward_pre_hook(self._enter)
        modules.register_module_forward_hook(self._leave, always_call=True)

    def _assume_no_overflow(self) -> None:
        """Lets `GradScaler` take the step of its optimizer.

        The host reads whether a gradient overflowed, and goes on.
        """

        def take_step(_: Any, optimizer: Any, state: Mapping[str, Any], *arguments: Any, **options: Any) -> Any:
            for overflowed in state["found_inf_per_device"].values():
                overflowed.item()
            self._scales = True
            return optimizer.step(*arguments, **options)

        torch_private.replace_scaled_step(self._torch, take_step)

    def _before_optimizer(self, optimizer: Any, *_: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer
        self._recorder.in_optimizer = True
        groups = optimizer.param_groups
        self._recorder.counts_on_host = not any(group.get("fused") or group.get("capturable") for group in groups)

    def _after_optimizer(self, *_: Any) -> None:
        self._recorder.in_optimizer = False

    def _enter(self, module: Any, arguments: Any) -> None:
        stack = self._recorder.modules
        if not stack and self._recorder.is_on:
            tensors = [argument for argument in arguments if hasattr(argument, "shape") and len(argument.shape)]
            self._first_sizes += [int(tensors[0].shape[0])] if tensors else []
        outer = stack[-1] if stack else ""
        stack.append(self._paths.get(id(module)) or outer or type(module).__name__)

    def _leave(self, *_: Any) -> None:
        if self._recorder.modules:
            self._recorder.modules.pop()

    def repeat(self, make: Callable[[], tuple[Step, int | None]]) -> None:
        """Records a step that is made anew.

        With its batch size where it is known.
        """
        # What the steps at other sizes have left stays: torch 2.13 crashes where a fake optimizer is freed. The new
        # recorder does not know it, so that it is not counted.
        self._kept += [self._recorder, self._optimizers]
        self._optimizers = {}
        self._first_sizes = []
        self._recorder = self._new_recorder()
        self._recorder.assumed = self._assumed
        with self._recorder:
            step, self._batch = make()
            self._kept.append(step)
            for _ in range(_CALLS_BEFORE):
                step()
            self._start()
            result = step()
            self._recorder.stop()
            self._kept.append(result)
            self._tag()

    def follow(self, asked: Program, change: Callable[[Sequence[Any]], None] | None = None) -> None:
        """Runs a script up to the end of its third step.

        That step is recorded.
        """
        from bottleneck.harness.boundaries import Boundaries

        self._change = change
        boundaries = Boundaries(self._boundary, self._start_over)
        boundaries.watch(self._torch)
        try:
            with self._recorder:
                (program.run_module if asked.module else program.run_file)(asked.target, asked.arguments)
        except StepDone:
            return
        raise SystemExit(0)

    def _start_over(self, *_: Any) -> None:
        self._seen = 0
        self._recorder.stop()

    def _boundary(self) -> None:
        self._seen += 1
        passed = self._seen
        if self._change is not None:
            if self._seen == 1:
                self._change([*self._optimizers.values()])
            passed -= 1
        if passed == _STEPS_BEFORE:
            self._start()
        elif passed > _STEPS_BEFORE:
            self._recorder.stop()
            self._tag()
            raise StepDone

    def _start(self) -> None:
        gc.collect()
        self._paths = {number: held.places[0].path for number, held in find_modules(self._torch).items() if held.places}
        self._tag()
        self._choices.copied_bytes = 0
        self._recorder.start()

    def _tag(self) -> None:
        """Labels the memory of parameters, buffers, gradients and optimizer state."""
        modules = [one for one in gc.get_objects() if issubclass(type(one), self._torch.nn.Module)]
        parameters = {id(one): one for module in modules for one in module.parameters(recurse=False)}
        for optimizer in self._optimizers.values():
            parameters.update((id(one), one) for group in optimizer.param_groups for one in group["params"])
            state = [value for values in optimizer.state.values() for value in values.values()]
            tensors = [one for one in state if hasattr(one, "untyped_storage") and one.dim() > 0]
            self._recorder.tag(tensors, "optimizer state")
        self._recorder.tag([one for module in modules for one in module.buffers(recurse=False)], "buffer")
        self._recorder.tag([*parameters.values()], "parameter")
        self._recorder.tag([one.grad for one in parameters.values() if one.grad is not None], "gradient")

    def result(self, asked: Program) -> StepCalls:
        """The record of the step."""
        storages, numbers = self._recorder.storages()
        calls = [_renumbered(call, numbers) for call in self._recorder.calls]
        if self._loaders:
            storages = _without_datasets(storages, calls)
        return StepCalls(
            program=" ".join(asked.command),
            origin="fake step",
            calls=calls,
            settings=self._settings(),
            storages=storages,
            batch_size=self._batch_size(asked),
            host_ops=self._recorder.host_ops,
            copied_bytes=float(self._choices.copied_bytes) or None,
            returned_bytes=float(self._recorder.returned_bytes),
            left_out="the work of its data loader" if self._loaders else "",
            notes=tuple(self._notes()),
        )

    def _batch_size(self, asked: Program) -> int | None:
        """Returns the batch size of the program.

        The parameter of that name of a workload, else the first size of what the model is called with.
        """
        if asked.form == "workload":
            return self._batch
        return self._first_sizes[0] if len(set(self._first_sizes)) == 1 else None

    def _settings(self) -> EngineSettings:
        torch, recorder, choices = self._torch, self._recorder, self._choices
        return EngineSettings(
            matmul_allow_tf32=ask(lambda: torch.backends.cuda.matmul.allow_tf32),
            cudnn_allow_tf32=ask(lambda: torch.backends.cudnn.allow_tf32),
            float32_matmul_precision=ask(torch.get_float32_matmul_precision),
            cudnn_benchmark=ask(lambda: torch.backends.cudnn.benchmark),
            autocast=tuple(sorted(choices.autocast)),
            channels_last=recorder.channels_last,
            training=recorder.gradients,
            compiled=choices.uses_compile,
            origins={
                "matmul_allow_tf32": "torch.backends.cuda.matmul.allow_tf32",
                "cudnn_allow_tf32": "torch.backends.cudnn.allow_tf32",
                "float32_matmul_precision": "torch.get_float32_matmul_precision()",
                "cudnn_benchmark": "torch.backends.cudnn.benchmark",
                "autocast": "the autocast regions that the program entered",
                "channels_last": "the strides of what convolutions read",
                "training": "the backward pass of the step",
                "compiled": "calls of torch.compile",
            },
        )

    def _notes(self) -> Iterator[str]:
        for place in sorted(self._recorder.read_numbers):
            yield f"the value of float() at {place} was taken to be 1"
        for place, is_true in self._assumed.items():
            taken = "true" if is_true else "false"
            if place in self._recorder.decided:
                yield f"the condition at {place} was taken to be {taken}"
            else:
                yield f"no condition on a value of a tensor was met at {place}: --assume changes nothing there"
        if self._scales:
            yield "no gradient overflows: GradScaler takes every step of its optimizer"


def _renumbered(call: Any, numbers: Mapping[int, int]) -> Any:
    def use(each: Any) -> Any:
        return dataclasses.replace(each, storage=None if each.storage is None else numbers.get(each.storage))

    return dataclasses.replace(call, inputs=tuple(map(use, call.inputs)), outputs=tuple(map(use, call.outputs)))


def _without_datasets(storages: Sequence[Storage], calls: Sequence[StepCall]) -> tuple[Storage, ...]:
    """Returns the memory of a step without its data sets.

    Inputs of data loaders that no call reads are data sets, which the host holds.
    """
    used = {use.storage for call in calls for use in (*call.inputs, *call.outputs)}
    return tuple(
        dataclasses.replace(storage, bytes=0) if storage.kind == "input" and number not in used else storage
        for number, storage in enumerate(storages)
    )
