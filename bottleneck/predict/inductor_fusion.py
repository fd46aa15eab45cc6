"""Gives the kernels that `torch.compile` runs for the loops of a step (cost/fusion.py).

A two-dimensional convolution runs in channels last where `decide_layout_opt` says so.
"""

import math
from dataclasses import dataclass

from bottleneck.cost.call import Cost, Unmodelled, parse_call
from bottleneck.cost.fusion import FusedLoop, fuse_calls, live_calls
from bottleneck.predict.rates import LAYOUTS
from bottleneck.predict.step_kernels import (
    FAMILY_OF,
    GROUPED_IN_CHANNELS_LAST,
    ConvolutionShape,
    Kernel,
    convolution_shape,
    cost_of,
    in_channels_last,
    split,
)
from bottleneck.predict.tensor_products import ALIGNED_BYTES
from bottleneck.predict.vector_products import unpacking_flops
from bottleneck.schema.predicted_step import Backend
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCall, StepCalls
from bottleneck.units import ITEM_BYTES

# Kernels for which 'max-autotune' has templates of its own beside those of the library (torch/_inductor/kernel).
AUTOTUNED = frozenset({"product", "convolution", "convolution channels last"})
# Speed of a convolution in channels last against contiguous (torch/_inductor/graph.py, decide_layout_opt).
_LAYOUT_WEIGHTS = {"grouped": GROUPED_IN_CHANNELS_LAST, "default": 0.823, "in_out": 0.725, "small": 0.783}


@dataclass(frozen=True)
class KernelGroup:
    """Calls that run together.

    Their positions in the step, and the kernels that run for them.
    """

    calls: tuple[int, ...]
    kernels: tuple[Kernel, ...]


def fuse(step: StepCalls, backend: Backend = "compile") -> tuple[list[KernelGroup], dict[Reason, int]]:
    """Returns the groups in the order of their first calls.

    And how many calls have no price for each reason. With a backend that autotunes, products and convolutions take the
    fastest of several kernels.
    """
    channels_last, autotunes = uses_channels_last(step), backend.startswith("max-autotune")
    groups: list[KernelGroup] = []
    unknown: dict[Reason, int] = {}
    for loop in fuse_calls(step, channels_last=channels_last, tunes=autotunes):
        call = step.calls[loop.calls[0]]
        kernels = _library_kernels(call, loop, channels_last, autotunes) if loop.is_library else [_kernel(step, loop)]
        if not isinstance(kernels, Reason):
            kernels = [_with_padding(kernel, call, step) for kernel in kernels]
        if isinstance(kernels, Reason):
            unknown[kernels] = unknown.get(kernels, 0) + 1
        else:
            groups.append(KernelGroup(tuple(loop.calls), tuple(kernels)))
    return groups, unknown


def _kernel(step: StepCalls, loop: FusedLoop) -> Kernel:
    """The kernel that Inductor generates for a loop."""
    if loop.is_product:
        return Kernel(
            "vector product",
            call=loop.calls[0],
            bytes=loop.bytes,
            flops=_unpacking(step, loop),
            launches=loop.launches,
            count=step.calls[loop.calls[0]].calls,
        )
    kind = "fused statistics" if loop.splits else "fused reduction" if loop.folds else "fused pointwise"
    return Kernel(
        kind, call=loop.calls[0], bytes=loop.bytes, launches=loop.launches, count=step.calls[loop.calls[0]].calls
    )


def _unpacking(step: StepCalls, loop: FusedLoop) -> float:
    """Returns the work of unpacking the narrow weights that a loop reads."""
    given = {use.storage: use for position in loop.calls for use in step.calls[position].inputs}
    return sum(unpacking_flops(math.prod(use.dims), ITEM_BYTES.get(use.type, 4.0)) for use in given.values())


def _library_kernels(call: StepCall, loop: FusedLoop, channels_last: bool, autotunes: bool) -> list[Kernel] | Reason:
    """Returns the kernels of a call that stays one of a library.

    Or the reason for having none.
    """
    if call.name == "aten::convolution":
        kernels = _convolution_kernels(call, loop, channels_last, autotunes)
    else:
        eager = split(call, loop.calls[0])
        kernels = eager if isinstance(eager, Reason) else list(eager)
    if isinstance(kernels, Reason) or not autotunes:
        return kernels
    return [replace(kernel, autotuned=kernel.kind in AUTOTUNED and not kernel.dilated) for kernel in kernels]


def _with_padding(kernel: Kernel, call: StepCall, step: StepCalls) -> Kernel:
    """Returns a kernel with the bytes that padding copies.

    They are known of a product whose rows are not aligned. Inductor times both ways and takes the quicker
    (torch/_inductor/fx_passes/pad_mm.py, should_pad). What a step makes is padded where it is made; what was there
    before is copied.
    """
    if kernel.kind != "product" or kernel.load_bytes >= ALIGNED_BYTES:
        return kernel
    given = [use for use in call.inputs if use.storage is not None and step.storages[use.storage].created < 0]
    return replace(kernel, padding_bytes=float(sum(2.0 * use.bytes for use in given)))


def _convolution_kernels(
    call: StepCall, loop: FusedLoop, channels_last: bool, autotunes: bool
) -> list[Kernel] | Reason:
    """Returns the kernel of a convolution and its copies.

    Its bias is a loop of its own.
    """
    cost, shape = cost_of(call), _convolution_shape(call)
    if isinstance(cost, Reason) or shape is None:
        return cost if isinstance(cost, Reason) else Reason("no_convolution_arguments")
    kernels = split(call, loop.calls[0])
    assert not isinstance(kernels, Reason)
    main = [kernel for kernel in kernels if kernel.kind not in ("pointwise", *LAYOUTS)]
    if channels_last and shape.dims == 2:
        return _in_channels_last(call, main[0], loop, cost, autotunes)
    return [*main, *(kernel for kernel in kernels if kernel.kind in LAYOUTS)]


def _in_channels_last(call: StepCall, main: Kernel, loop: FusedLoop, cost: Cost, autotunes: bool) -> list[Kernel]:
    """Returns the kernel in channels last, with its copies.

    They are of the weight, of a contiguous input, and of a result that is kept. The weight is copied in each step
    (torch/_inductor/kernel/conv.py, require_channels_last), unless its elements lie in the same order either way.

    Where kernels are chosen by timing, a window of one element is a product (torch/_inductor/kernel/conv.py,
    convert_1x1_conv_to_mm), which follows the settings of products: without TF32 unless the program allows it.
    """
    weight = call.inputs[1]
    if autotunes and main.kind == "pointwise convolution":
        kernels = [replace(main, kind="product")]
    else:
        kernels = [replace(in_channels_last(main, weight.dims), bytes=cost.bytes_low)]
    is_reordered = weight.dims[1] > 1 and weight.dims[2:] != (1, 1)
    copies = ((weight, is_reordered), (call.inputs[0], loop.moves_input), (call.outputs[0], loop.moves_result))
    copied = [use for use, is_copied in copies if is_copied]
    return [*kernels, *(Kernel("fused pointwise", call=main.call, bytes=2.0 * use.bytes) for use in copied)]


def uses_channels_last(step: StepCalls) -> bool:
    """True where Inductor runs the convolutions of a step in channels last."""
    work: dict[str, float] = dict.fromkeys(_LAYOUT_WEIGHTS, 0.0)
    for call in step.calls:
        if call.name != "aten::convolution" or len(call.inputs) < 2:
            continue
        shape = _convolution_shape(call)
        cost = cost_of(call)
        if shape is None or isinstance(cost, Reason):
            continue
        work[_layout_kind(call, shape)] += cost.matrix_flops + cost.vector_flops
    if step.settings.training:
        return sum(work.values()) > 0 and not work["grouped"] and not work["in_out"] and bool(work["default"])
    return 0 < sum(work[kind] * weight for kind, weight in _LAYOUT_WEIGHTS.items()) <= sum(work.values())


def _layout_kind(call: StepCall, shape: ConvolutionShape) -> str:
    weight = call.inputs[1].dims
    if shape.groups > 1 and weight[1] > 1:
        return "grouped"
    if weight[0] <= 64 and weight[1] <= 64:
        return "small"
    return "in_out" if weight[0] * 2 <= weight[1] and weight[2] > 1 else "default"


def _convolution_shape(call: StepCall) -> ConvolutionShape | None:
    try:
        return convolution_shape(parse_call(call.name, call.dims, call.types, call.strides, call.concrete, call.result))
    except (Unmodelled, LookupError, ValueError):
        return None


def copied_bytes(step: StepCalls, backend: Backend) -> float:
    """Counts bytes that a CUDA graph copies before each replay.

    They go into its own memory: the inputs of the step. Parameters and buffers are inputs too for the backend
    'cudagraphs', which takes no address as fixed since modules are inlined (torch/_dynamo/backends/cudagraphs.py,
    num_fw_fixed_arguments; PyTorch 2.5).
    """
    kinds = ("input", "parameter", "buffer") if backend == "cudagraphs" else ("input",)
    return float(sum(storage.bytes for storage in step.storages if storage.kind in kinds))


def least_bytes(step: StepCalls) -> float:
    """Counts bytes that no fusion spares.

    What was there before the step and is read, and what outlives it and is made.
    """
    size: dict[int, float] = {}
    live = [call for call, is_live in zip(step.calls, live_calls(step), strict=True) if is_live and not call.on_host]
    for call in live:
        # A gather reads some rows of a table, and which ones is not known.
        inputs = () if FAMILY_OF.get(call.name) in ("indexing", "recommendation") else call.inputs
        for use in (*inputs, *call.outputs):
            if use.storage is not None:
                size[use.storage] = max(size.get(use.storage, 0.0), use.bytes)
    read = {use.storage for call in live for use in call.inputs}
    total = 0.0
    for number, storage in enumerate(step.storages):
        if (storage.created < 0 and number in read) or (storage.created >= 0 and storage.freed is None):
            total += min(size.get(number, 0.0), float(storage.bytes))
    return total
