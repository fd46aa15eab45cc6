"""Op calls made by hand, and the op calls that torch really records."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bottleneck.cost.call import Argument, Cost, Formulas, OpCall, Scalar, Tensor, TensorList, parse_call

HALF, BF16, LONG, BOOL = "c10::Half", "c10::BFloat16", "long int", "bool"


def tensor(*shape: int, dtype: str = "float", strides: tuple[int, ...] | None = None) -> Tensor:
    """A tensor argument, of floats by default."""
    return Tensor(shape, dtype, strides)


def tensors(*shapes: tuple[int, ...]) -> TensorList:
    """A list-of-tensors argument, whose dtype traces do not give."""
    return TensorList(shapes)


def cost_of(formulas: Formulas, name: str, *arguments: Tensor | TensorList | str | None) -> Cost:
    """The cost of a call of 'aten::name'; texts are scalars as the trace spells them."""
    parsed: tuple[Argument, ...] = tuple(Scalar(item) if isinstance(item, str) else item for item in arguments)
    return formulas[f"aten::{name}"](OpCall(f"aten::{name}", parsed))


def moved(cost: Cost) -> tuple[float, float]:
    """The interval of bytes."""
    return cost.bytes_low, cost.bytes_high


def record(work: Callable[[], object], path: Path) -> list[dict[str, Any]]:
    """The op events that the profiler of the installed torch writes for ``work``, outermost first."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        work()
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return sorted((event for event in events if event.get("cat") == "cpu_op"), key=lambda event: event["ts"])


def parse(event: Mapping[str, Any]) -> OpCall:
    """The call that a recorded event describes."""
    keys = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    texts = [json.dumps(event["args"][key]) if key in event["args"] else None for key in keys]
    return parse_call(event["name"], *texts)
