"""Builds the repeatable step of a workload file.

Also of a file with ``model`` and ``inputs``.
"""

import ast
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from bottleneck.harness.machine import is_on_gpu
from bottleneck.harness.stopwatch import Step, within
from bottleneck.harness.workload import Doubling

# By which a process is told what to add to the step that it makes: "op:1", "sync:1", "slowdown:0.06:0".
VARIABLE = "BOTTLENECK_SELFTEST"


def with_injection(step: Step, environment: Mapping[str, str] | None = None) -> Step:
    """Returns the step with what this process was told to add to it.

    The step itself where it was told nothing.
    """
    order = (os.environ if environment is None else environment).get(VARIABLE, "")
    kind, _, amount = order.partition(":")
    return _KINDS[kind](step, *map(float, amount.split(":"))) if kind in _KINDS else step


def more_ops(step: Step, number: float) -> Step:
    """Returns the step with so many ops more.

    Each of them is one call of torch's dispatcher and, on a GPU, one kernel.
    """
    return _longer(step, number, lambda tensor: tensor.neg())


def more_syncs(step: Step, number: float) -> Step:
    """The step with so many more waits for a value."""
    return _longer(step, number, lambda tensor: tensor.item())


def _longer(step: Step, number: float, call: Callable[[Any], Any]) -> Step:
    tensor: Any = None

    def longer() -> Any:
        nonlocal tensor
        result = step()
        tensor = _one() if tensor is None else tensor
        for _ in range(int(number)):
            call(tensor)
        return result

    return longer


def slower(step: Step, share: float, least_us: float, clock: Callable[[], int] | None = None) -> Step:
    """Returns the step that goes on computing for this share of its time.

    And for so many microseconds at least. By the clock, not by an amount of work, so that the share holds whatever the
    step does now. On a GPU the work waits for the step and is waited for, or it would hide behind the step; it takes
    more than asked, then.
    """
    clock = Undisturbed() if clock is None else clock
    tensor: Any = None

    def longer() -> Any:
        nonlocal tensor
        started = clock()
        result = step()
        tensor = _one() if tensor is None else tensor
        _wait_for(tensor)
        until = clock() + max((clock() - started) * share, least_us * 1e3)
        is_over = False
        while not is_over:
            _wait_for(tensor.neg())
            is_over = clock() >= until
        return result

    return longer


class Undisturbed:
    """Clock that stands still while this thread waits for a processor.

    It is in nanoseconds, and others have the processor then. By the plain clock, a share of a step that got a third of
    a processor would be three times that share of its work: 6 % of a step of 5 ms took 30 to 60 % more on two cores
    that eight other processes were busy on. Where the system does not tell how long a thread waited (Linux: proc(5),
    schedstat), it is the plain clock.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def __call__(self) -> int:
        """The time now, counted from any point."""
        return time.perf_counter_ns() - self._waited_ns()

    def _waited_ns(self) -> int:
        if self._file < 0:
            return 0
        try:
            return int(os.pread(self._file, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0


_KINDS: Mapping[str, Callable[..., Step]] = {"op": more_ops, "sync": more_syncs, "slowdown": slower}


def _one() -> Any:
    """Returns a tensor of a single number where the step computes.

    torch is there once a step has run.
    """
    torch = sys.modules["torch"]
    return torch.ones(1, device="cuda" if is_on_gpu(torch) else "cpu")


def _wait_for(tensor: Any) -> None:
    """Waits for all that was asked of the tensor's GPU.

    Nothing is waited for on a CPU.
    """
    if tensor.is_cuda:
        sys.modules["torch"].cuda.synchronize()


BATCH = "batch_size"


def workload_step(module: ModuleType, settings: tuple[tuple[str, str], ...]) -> Step:
    """The step that `workload(**parameters)` returns, with its defaults overridden by the settings."""
    return step_with(module, {name: parse_value(text) for name, text in settings})


def step_with(module: ModuleType, values: Mapping[str, object]) -> Step:
    """The step that `workload(**parameters)` returns for these values."""
    step: Step = module.workload(**values)
    if not callable(step):
        sys.exit(f"workload() returned {type(step).__name__}, not a function without arguments to call as the step")
    if not _takes_nothing(step):
        sys.exit("the step that workload() returned takes arguments; it must be callable without any")
    return with_injection(step)


def workload_doubling(module: ModuleType, settings: tuple[tuple[str, str], ...]) -> Doubling | None:
    """Makes the same step at twice its batch size.

    Null for a workload without that parameter.
    """
    size: object
    if BATCH in dict(settings):
        size = parse_value(dict(settings)[BATCH])
    else:
        parameter = inspect.signature(module.workload).parameters.get(BATCH)
        if parameter is None:
            return None
        size = parameter.default
    return Doubling(size, lambda doubled: workload_step(module, (*settings, (BATCH, str(doubled)))))


def parse_value(text: str) -> Any:
    """The Python literal that the text spells, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _takes_nothing(step: Step) -> bool:
    try:
        inspect.signature(step).bind()
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def inference_step(module: ModuleType) -> Step:
    """One forward pass in evaluation mode, without gradients."""
    model, call = module.model.eval(), _bind_inputs(module)
    return with_injection(within(lambda: call(model), sys.modules["torch"].no_grad))


def training_step(module: ModuleType) -> Step:
    """Returns a training step of a bare model.

    A forward pass, the sum of the means of its floating-point outputs as loss, a backward pass and AdamW.
    """
    model, call = module.model.train(), _bind_inputs(module)
    optimizer = sys.modules["torch"].optim.AdamW(model.parameters())

    def step() -> Any:
        optimizer.zero_grad()
        loss = sum(output.float().mean() for output in _floating(call(model)))
        loss.backward()
        optimizer.step()
        return loss

    return with_injection(step)


def _bind_inputs(module: ModuleType) -> Callable[[Any], Any]:
    inputs = module.inputs
    if isinstance(inputs, Mapping):
        return lambda model: model(**inputs)
    if isinstance(inputs, tuple | list):
        return lambda model: model(*inputs)
    return lambda model: model(inputs)


def _floating(outputs: Any) -> Iterator[Any]:
    """Every differentiable tensor in the outputs, whatever the nesting of tuples, lists and mappings."""
    if isinstance(outputs, Mapping):
        outputs = list(outputs.values())
    if isinstance(outputs, tuple | list):
        for output in outputs:
            yield from _floating(output)
    elif hasattr(outputs, "requires_grad") and outputs.requires_grad:
        yield outputs
