"""The repeatable step that a workload file or a file with `model` and `inputs` gives."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from bottleneck.harness.batch import Doubling
from bottleneck.harness.injected import with_injection

BATCH = "batch_size"

Step = Callable[[], Any]


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
    """How to make the same step at twice its batch size; null for a workload without that parameter."""
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
    torch = sys.modules["torch"]

    def step() -> Any:
        with torch.no_grad():
            return call(model)

    return with_injection(step)


def training_step(module: ModuleType) -> Step:
    """A forward pass, the sum of the means of its floating-point outputs as loss, a backward pass and AdamW."""
    model, call = module.model.train(), _bind_inputs(module)
    optimizer = sys.modules["torch"].optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss = sum(output.float().mean() for output in _floating(call(model)))
        loss.backward()
        optimizer.step()

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
