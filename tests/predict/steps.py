"""Op calls made by hand, for the tests of the prices."""

import json
import math

from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import EngineSettings, StepCall, StepCalls, Storage, TensorUse

SETTINGS = EngineSettings(matmul_allow_tf32=False, cudnn_allow_tf32=True, float32_matmul_precision="highest")


def strides_of(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(dims[position + 1 :]) for position in range(len(dims)))


def use(storage: int, *dims: int, dtype: str = "float") -> TensorUse:
    return TensorUse(dims, strides_of(dims), dtype, storage)


def call(name: str, inputs: list[TensorUse], output: TensorUse, scalars: tuple[str, ...] = ()) -> StepCall:
    """A call whose tensors come first and whose other arguments are these texts."""
    empty: list[list[int]] = [[] for _ in scalars]
    return StepCall(
        name=f"aten::{name}",
        dims=json.dumps([*(list(one.dims) for one in inputs), *empty]),
        types=json.dumps([*(one.type for one in inputs), *("Scalar" if text else "" for text in scalars)]),
        strides=json.dumps([*(list(one.strides) for one in inputs), *empty]),
        concrete=json.dumps([*("" for _ in inputs), *scalars]),
        inputs=tuple(inputs),
        outputs=(output,),
    )


def convolution(channels: int, filters: int, window: int = 3, groups: int = 1) -> StepCall:
    """A two-dimensional convolution of 8 images of 56 x 56, of storages 0 and 1 into 2."""
    x, weight = use(0, 8, channels, 56, 56), use(1, filters, channels // groups, window, window)
    pad = window // 2
    texts = ("", "[1, 1]", f"[{pad}, {pad}]", "[1, 1]", "False", "[0, 0]", str(groups))
    return call("convolution", [x, weight], use(2, 8, filters, 56, 56), texts)


def step(*calls: StepCall, kept: tuple[int, ...] = (), given: tuple[int, ...] = (0,)) -> StepCalls:
    """A step of these calls; ``given`` storages are inputs, ``kept`` ones and the last result outlive it."""
    uses = [one for each in calls for one in (*each.inputs, *each.outputs)]
    last = calls[-1].outputs[0].storage
    storages = []
    for number in range(max(one.storage or 0 for one in uses) + 1):
        size = max((4 * math.prod(one.dims) for one in uses if one.storage == number), default=0)
        made = [at for at, each in enumerate(calls) if any(one.storage == number for one in each.outputs)]
        freed = None if number in (*kept, last) or not made else len(calls)
        kind = "input" if number in given else "activation" if made else "parameter"
        storages.append(Storage(size, kind, (made or [-1])[0], freed))  # type: ignore[arg-type]
    return StepCalls("by hand", "fake step", calls, SETTINGS, storages=storages, host_ops=len(calls))


def in_dtype(step_calls: StepCalls, dtype: str) -> StepCalls:
    """The same step on tensors of another type."""

    def changed(one: StepCall) -> StepCall:
        return replace(
            one,
            types=one.types.replace('"float"', f'"{dtype}"'),
            inputs=tuple(replace(each, type=dtype) for each in one.inputs),
            outputs=tuple(replace(each, type=dtype) for each in one.outputs),
        )

    return replace(step_calls, calls=tuple(map(changed, step_calls.calls)))
