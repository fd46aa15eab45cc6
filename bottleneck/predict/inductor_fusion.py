"""Groups the calls of a step as Inductor fuses them, and gives the kernels that `torch.compile` runs for each group.

Inductor fuses ops that walk over the same elements (torch/_inductor/scheduler.py): chains of pointwise ops, and a
reduction with the ops before and behind it. Products, convolutions, recurrent layers and attention stay kernels of
libraries. A norm over more than a block holds is two kernels: one that computes the statistics, and one that normalizes
and is fused with the ops that follow. A two-dimensional convolution runs in channels last where
`decide_layout_opt` says so.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bottleneck.cost.call import Cost, Unmodelled, parse_call
from bottleneck.predict.rates import LAYOUTS
from bottleneck.predict.step_kernels import (
    FAMILY_OF,
    ConvolutionShape,
    Kernel,
    convolution_shape,
    cost_of,
    split,
    tensor_bytes,
)
from bottleneck.schema.predicted_step import Backend
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCall, StepCalls, TensorUse

_LIBRARY = frozenset({"matmul", "attention", "recurrent", "linear algebra", "vision", "quantized"})
# A block of a generated kernel reads a row of more elements than this more than once.
_LONGEST_ROW = 32_768
# Constants of Reduction.num_splits (torch/_inductor/ir.py), for a device of this many multiprocessors.
_MULTIPROCESSORS, _THREADS_PER_MULTIPROCESSOR, _THREADS = 108, 2048, 256
_LEAST_PER_THREAD, _MOST_PER_THREAD = 32, 512
_LONGEST_UNSPLIT, _VALUES_PER_THREAD, _RESULTS_PER_BLOCK = 8192, 4, 128
# Above this a pooling window is left to ATen (torch/_inductor/lowering.py).
_LARGEST_WINDOW = 25
_IMAGE_DIMS = 4
# More tensors than this are concatenated by copies (torch/_inductor/config.py, max_pointwise_cat_inputs).
_MOST_CONCATENATED = 8
# Kernels for which 'max-autotune' has templates of its own beside those of the library (torch/_inductor/kernel).
AUTOTUNED = frozenset({"product", "convolution", "convolution channels last"})
# Speed of a convolution in channels last against contiguous (torch/_inductor/graph.py, decide_layout_opt).
_LAYOUT_WEIGHTS = {"grouped": 1.358, "default": 0.823, "in_out": 0.725, "small": 0.783}


@dataclass(frozen=True)
class KernelGroup:
    """Calls that run together: their positions in the step, and the kernels that run for them."""

    calls: tuple[int, ...]
    kernels: tuple[Kernel, ...]


@dataclass
class _FusedLoop:
    """A group that is still being filled. ``sizes`` are the numbers of elements that it walks over."""

    calls: list[int] = field(default_factory=list)
    sizes: set[int] = field(default_factory=set)
    reads: dict[tuple[int, int], float] = field(default_factory=dict)
    writes: dict[tuple[int, int], float] = field(default_factory=dict)
    folds: bool = False
    splits: bool = False
    launches: float = 1.0
    reads_again: float = 0.0
    kernels: list[Kernel] = field(default_factory=list)
    is_library: bool = False


def fuse(step: StepCalls, backend: Backend = "compile") -> tuple[list[KernelGroup], dict[str, int]]:
    """The groups in the order of their first calls, and how many calls have no price for each reason.

    With a backend that autotunes, products and convolutions take the fastest of several kernels.
    """
    return _Fusion(step, backend).run()


def uses_channels_last(step: StepCalls) -> bool:
    """True where Inductor runs the convolutions of a step in channels last."""
    work: dict[str, float] = dict.fromkeys(_LAYOUT_WEIGHTS, 0.0)
    for call in step.calls:
        if call.name != "aten::convolution" or len(call.inputs) < 2:
            continue
        shape = _convolution_shape(call)
        cost = cost_of(call)
        if shape is None or isinstance(cost, str):
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


def reduction_kernels(length: float, results: float, is_strided: bool) -> int:
    """The number of kernels that a reduction is split into, one after the other; ``length`` elements make one result.

    With few results each is shared out among blocks, whose parts the next kernel reduces. The elements of a strided
    reduction do not lie next to one another (torch/_inductor/ir.py, Reduction.num_splits).
    """
    total = length * results
    threads = _MULTIPROCESSORS * _THREADS_PER_MULTIPROCESSOR
    per_thread: float = _LEAST_PER_THREAD
    if is_strided and results > 1:
        if length <= _LEAST_PER_THREAD or results >= 64 * _MULTIPROCESSORS:
            return 1
        blocks, at_once = math.ceil(results / _RESULTS_PER_BLOCK), _VALUES_PER_THREAD
        wanted = math.ceil(threads / _THREADS / blocks)
    else:
        if length <= _LONGEST_UNSPLIT or results >= 2 * _MULTIPROCESSORS:
            return 1
        wanted, at_once = math.ceil(threads / (2 * _THREADS) / results), _THREADS
    if total >= _MOST_PER_THREAD * threads:
        per_thread = _MOST_PER_THREAD
    elif total >= _LEAST_PER_THREAD * threads:
        per_thread = max(length / (at_once * wanted), 1.0)
    parts = math.ceil(length / (per_thread * at_once))
    return 1 if parts <= 1 else 1 + reduction_kernels(parts, results, is_strided)


def _reduced(call: StepCall) -> tuple[float, bool]:
    """The number of elements that make one result, and whether they lie apart in memory."""
    x = call.inputs[0]
    if "softmax" in call.name:
        try:
            where = parse_call(call.name, call.dims, call.types, call.strides, call.concrete).integer(1) or 0
        except Unmodelled:
            where = -1
        length = float(x.dims[where]) if x.dims else 1.0
        return length, bool(x.dims) and where % len(x.dims) != len(x.dims) - 1
    length = math.prod(x.dims) / max(math.prod(call.outputs[0].dims), 1)
    try:
        over = parse_call(call.name, call.dims, call.types, call.strides, call.concrete).integers(1) or ()
    except Unmodelled:
        over = ()
    return length, bool(over) and length > 1 and all(each % max(len(x.dims), 1) != len(x.dims) - 1 for each in over)


class _Fusion:
    """Walks over the calls once. Each write to a storage makes a new version of it, which one loop produces."""

    def __init__(self, step: StepCalls, backend: Backend) -> None:
        self.step = step
        self.autotunes = backend.startswith("max-autotune")
        self.loops: list[_FusedLoop] = []
        self.version: dict[int, int] = {}
        self.maker: dict[tuple[int, int], _FusedLoop] = {}
        self.readers: dict[tuple[int, int], list[_FusedLoop]] = {}
        self.unknown: dict[str, int] = {}
        self.channels_last = uses_channels_last(step)
        self.in_channels_last: set[int] = set()
        self.copied: set[tuple[int, int]] = set()
        self.unnumbered = -1

    def run(self) -> tuple[list[KernelGroup], dict[str, int]]:
        for position, (call, is_live) in enumerate(zip(self.step.calls, live_calls(self.step), strict=True)):
            if is_live:
                self._add(position, call)
        alive = {(number, self.version.get(number, 0)) for number in self._kept()}
        wanted: dict[tuple[int, int], set[int]] = {key: {-1} for key in alive}
        for index, loop in enumerate(self.loops):
            for key in loop.reads:
                wanted.setdefault(key, set()).add(index)
        groups = [self._group(index, loop, wanted) for index, loop in enumerate(self.loops)]
        return [group for group in groups if group.kernels], self.unknown

    def _kept(self) -> Iterable[int]:
        return (number for number, storage in enumerate(self.step.storages) if storage.freed is None)

    def _add(self, position: int, call: StepCall) -> None:
        family, name = FAMILY_OF.get(call.name), call.name.removeprefix("aten::")
        if name == "convolution":
            self._add_convolution(position, call)
        elif family in _LIBRARY or (family == "pooling" and self._is_large_window(call)) or not call.outputs:
            kernels = split(call, position)
            if isinstance(kernels, str):
                self.unknown[kernels] = self.unknown.get(kernels, 0) + 1
                return
            self._finish_library(position, call, list(kernels))
        elif name == "cat" and len(call.inputs) > 1:
            self._add_concatenation(position, call)
        elif name in ("native_batch_norm", "native_group_norm", "cudnn_batch_norm", "native_layer_norm"):
            self._add_norm(position, call, name)
        else:
            self._add_loop(position, call, family)
        if name != "convolution" and any(self._number(use) in self.in_channels_last for use in call.inputs):
            self.in_channels_last |= {self._number(use) for use in call.outputs if len(use.dims) == _IMAGE_DIMS}

    @staticmethod
    def _is_large_window(call: StepCall) -> bool:
        try:
            size = parse_call(call.name, call.dims, call.types, call.strides, call.concrete).integers(1) or (1,)
        except Unmodelled:
            return True
        dims = 3 if "3d" in call.name else 2
        area = math.prod(size) if len(size) > 1 else size[0] ** dims
        return area > _LARGEST_WINDOW or "max_pool3d" in call.name

    def _add_convolution(self, position: int, call: StepCall) -> None:
        cost = cost_of(call)
        shape = _convolution_shape(call)
        if isinstance(cost, str) or shape is None:
            why = cost if isinstance(cost, str) else "the arguments of the convolution were not recorded"
            self.unknown[why] = self.unknown.get(why, 0) + 1
            return
        kernels = split(call, position)
        assert not isinstance(kernels, str)
        moved = self.channels_last and shape.dims == 2
        main = [each for each in kernels if each.kind not in ("pointwise", *LAYOUTS)]
        layout = [each for each in kernels if each.kind in LAYOUTS]
        if moved:
            main, layout = self._in_channels_last(call, main[0], cost), []
        self._finish_library(position, call, [*main, *layout])
        if len(call.inputs) > 2:
            out = call.outputs[0]
            self._extend(position, [out], [out], {math.prod(out.dims)})
        if moved:
            self.in_channels_last.add(self._number(call.outputs[0]))

    def _in_channels_last(self, call: StepCall, main: Kernel, cost: Cost) -> list[Kernel]:
        """The kernel in channels last, with copies of the weight, of a contiguous input, and of a result that is kept.

        The weight is copied in each step (torch/_inductor/kernel/conv.py, require_channels_last), unless its elements
        lie in the same order either way.

        Where kernels are chosen by timing, a window of one element is a product (torch/_inductor/kernel/conv.py,
        convert_1x1_conv_to_mm), which follows the settings of products: without TF32 unless the program allows it.
        """
        kind = "depthwise convolution" if main.kind == "depthwise convolution" else "convolution"
        if kind == "depthwise convolution" and len(set(call.inputs[1].dims[2:])) > 1:
            kind = "uneven depthwise convolution"
        if self.autotunes and main.kind == "pointwise convolution":
            kernels = [replace(main, kind="product")]
        else:
            kernels = [replace(main, kind=f"{kind} channels last", bytes=cost.bytes_low)]
        x, weight, out = call.inputs[0], call.inputs[1], call.outputs[0]
        if weight.dims[1] > 1 and math.prod(weight.dims[2:]) > 1:
            kernels.append(Kernel("fused pointwise", call=main.call, bytes=2.0 * tensor_bytes(weight)))
        number = self._number(x)
        if number not in self.in_channels_last and (number, self.version.get(number, 0)) not in self.maker:
            kernels.append(Kernel("fused pointwise", call=main.call, bytes=2.0 * tensor_bytes(x)))
        kept = self._number(out) < len(self.step.storages) and self.step.storages[self._number(out)].freed is None
        if kept and len(call.inputs) == 2:
            kernels.append(Kernel("fused pointwise", call=main.call, bytes=2.0 * tensor_bytes(out)))
        return kernels

    def _finish_library(self, position: int, call: StepCall, kernels: list[Kernel]) -> None:
        if self.autotunes:
            kernels = [replace(each, autotuned=each.kind in AUTOTUNED and not each.dilated) for each in kernels]
        loop = _FusedLoop(calls=[position], kernels=kernels, is_library=True)
        self.loops.append(loop)
        for use in call.inputs:
            loop.reads[self._key(use)] = tensor_bytes(use)
        for use in call.outputs:
            self._write(loop, use)

    def _add_norm(self, position: int, call: StepCall, name: str) -> None:
        """One loop where it walks over its rows one by one, else a loop that folds and one that normalizes."""
        x = call.inputs[0]
        numel = math.prod(x.dims)
        rows = self._rows(call, name)
        is_strided = len(x.dims) == 2 or self._number(x) in self.in_channels_last
        by_row = name == "native_layer_norm" or (name.endswith("batch_norm") and x.dims[0] == 1)
        kernels = reduction_kernels(numel / max(rows, 1), rows, is_strided and not by_row)
        outputs = call.outputs[:1]
        if by_row and kernels == 1:
            loop = self._extend(position, call.inputs, outputs, {numel})
            loop.folds = True
            return
        loop = self._extend(position, call.inputs[:1], [], {numel})
        loop.folds = loop.splits = True
        loop.launches = max(loop.launches, kernels)
        self._extend(position, call.inputs, outputs, {numel}, fresh=True)

    @staticmethod
    def _rows(call: StepCall, name: str) -> float:
        dims = call.inputs[0].dims
        if name in ("native_layer_norm", "native_group_norm") and len(call.outputs) > 1:
            return float(math.prod(call.outputs[1].dims))
        return float(dims[1]) if len(dims) > 1 else 1.0

    def _add_concatenation(self, position: int, call: StepCall) -> None:
        """One loop that computes its few inputs itself where all are pointwise, else copies of many inputs.

        See `cat` in torch/_inductor/lowering.py. Copies of one input into several results are one kernel.
        """
        makers = [self.maker.get(self._key(use)) for use in call.inputs]
        is_few = len(call.inputs) <= _MOST_CONCATENATED
        loop = _FusedLoop(calls=[position], sizes={math.prod(use.dims) for use in call.outputs})
        for use, maker in zip(call.inputs, makers, strict=True):
            is_computed = is_few and maker is not None and not (maker.is_library or maker.folds)
            reads = maker.reads if maker is not None and is_computed else {self._key(use): tensor_bytes(use)}
            for key, size in reads.items():
                loop.reads[key] = max(loop.reads.get(key, 0.0), size)
                self.readers.setdefault(key, []).append(loop)
        if not is_few:
            copied = {self._key(use) for use in call.inputs}
            loop.launches = float(len(copied - self.copied))
            self.copied |= copied
        self.loops.append(loop)
        for use in call.outputs:
            self._write(loop, use)

    def _add_loop(self, position: int, call: StepCall, family: str | None) -> None:
        sizes = {math.prod(use.dims) for use in call.outputs} | {math.prod(use.dims) for use in call.inputs}
        largest = {max(sizes, default=0)}
        folds = family in ("reduction", "loss", "passes") or "softmax" in call.name or call.name.endswith("logsumexp")
        if family == "pooling":
            largest = {math.prod(call.outputs[0].dims)}
        outputs = call.outputs[:1] if family == "pooling" else call.outputs
        if folds and call.inputs and outputs:
            self._add_reduction(position, call, largest)
        else:
            self._extend(position, call.inputs, outputs, largest)

    def _add_reduction(self, position: int, call: StepCall, sizes: set[int]) -> None:
        """One loop, with what follows on the same elements, unless the reduction is split among blocks."""
        x, results = call.inputs[0], {math.prod(use.dims) for use in call.outputs}
        is_softmax = "softmax" in call.name
        length, is_strided = _reduced(call)
        kernels = reduction_kernels(length, math.prod(x.dims) / max(length, 1.0), is_strided)
        if is_softmax and kernels > 1:
            loop = self._extend(position, call.inputs, [], sizes)
            loop.folds = loop.splits = True
            # The maximum, and the sum of the exponentials.
            loop.launches, loop.reads_again = 2.0 * kernels, tensor_bytes(x)
            self._extend(position, call.inputs, call.outputs, sizes, fresh=True)
            return
        # Negative sizes: only other reductions walk over the elements of one that is split.
        split = {-size for size in sizes}
        loop = self._extend(position, call.inputs, call.outputs, sizes | split)
        loop.folds = True
        loop.launches = max(loop.launches, kernels)
        loop.sizes = results | split if kernels > 1 else loop.sizes | results
        if is_softmax and max(x.dims, default=0) > _LONGEST_ROW:
            loop.reads_again += tensor_bytes(x)

    def _extend(
        self,
        position: int,
        inputs: Sequence[TensorUse],
        outputs: Sequence[TensorUse],
        sizes: set[int],
        fresh: bool = False,
    ) -> _FusedLoop:
        """The loop that takes the call on: that of a producer that walks over the same elements, else a new one."""
        loop = None if fresh else self._fitting(inputs, sizes)
        if loop is None:
            loop = _FusedLoop()
            self.loops.append(loop)
        loop.calls += [] if position in loop.calls else [position]
        loop.sizes |= sizes
        for use in inputs:
            key = self._key(use)
            if self.maker.get(key) is not loop:
                loop.reads[key] = max(loop.reads.get(key, 0.0), tensor_bytes(use))
                self.readers.setdefault(key, []).append(loop)
        for use in outputs:
            self._write(loop, use)
        return loop

    def _fitting(self, inputs: Sequence[TensorUse], sizes: set[int]) -> _FusedLoop | None:
        """A loop over these sizes that makes one of the inputs or reads it too, if no other input depends on it."""
        keys = [self._key(use) for use in inputs]
        makers = [self.maker[key] for key in keys if key in self.maker]
        for loop in (*reversed(makers), *(reader for key in keys for reader in reversed(self.readers.get(key, [])))):
            is_open = not loop.is_library and not loop.splits and bool(loop.sizes & sizes)
            if is_open and not any(other is not loop and self._depends(other, loop) for other in makers):
                return loop
        return None

    def _depends(self, loop: _FusedLoop, on: _FusedLoop) -> bool:
        """True where a loop needs what another one makes, directly or through others."""
        seen, rest = {id(loop)}, [loop]
        while rest:
            for key in rest.pop().reads:
                maker = self.maker.get(key)
                if maker is on:
                    return True
                # What ended before the other began needs nothing of it.
                if maker is not None and maker.calls[-1] >= on.calls[0] and id(maker) not in seen:
                    seen.add(id(maker))
                    rest.append(maker)
        return False

    def _number(self, use: TensorUse) -> int:
        if use.storage is not None:
            return use.storage
        self.unnumbered -= 1
        return self.unnumbered

    def _key(self, use: TensorUse) -> tuple[int, int]:
        number = self._number(use)
        return number, self.version.get(number, 0)

    def _write(self, loop: _FusedLoop, use: TensorUse) -> None:
        number = self._number(use)
        self.version[number] = self.version.get(number, 0) + 1
        key = number, self.version[number]
        self.maker[key] = loop
        loop.writes[key] = tensor_bytes(use)

    def _group(self, index: int, loop: _FusedLoop, wanted: dict[tuple[int, int], set[int]]) -> KernelGroup:
        if loop.is_library:
            return KernelGroup(tuple(loop.calls), tuple(loop.kernels))
        written = sum(size for key, size in loop.writes.items() if wanted.get(key, set()) - {index})
        total = sum(loop.reads.values()) + written + loop.reads_again
        if not written and not loop.splits and not loop.folds:
            return KernelGroup(tuple(loop.calls), ())
        kind = "fused statistics" if loop.splits else "fused reduction" if loop.folds else "fused pointwise"
        kernel = Kernel(kind, call=loop.calls[0], bytes=total, launches=loop.launches)
        return KernelGroup(tuple(loop.calls), (replace(kernel, count=self.step.calls[loop.calls[0]].calls),))


def live_calls(step: StepCalls) -> list[bool]:
    """For each call, True where its result reaches what outlives the step: a compiler drops the others."""
    lasting = {number for number, storage in enumerate(step.storages) if storage.freed is None or storage.created < 0}
    needed, live = set(lasting), [True] * len(step.calls)
    for position in range(len(step.calls) - 1, -1, -1):
        call = step.calls[position]
        made = {use.storage for use in call.outputs}
        live[position] = not made or None in made or bool(made & needed) or call.waits
        if live[position]:
            needed |= {use.storage for use in call.inputs if use.storage is not None}
    return live


def copied_bytes(step: StepCalls, backend: Backend) -> float:
    """Bytes that a CUDA graph copies into its own memory before each replay: the inputs of the step.

    Parameters and buffers are inputs too for the backend 'cudagraphs', which takes no address as fixed since modules
    are inlined (torch/_dynamo/backends/cudagraphs.py, num_fw_fixed_arguments; PyTorch 2.5).
    """
    kinds = ("input", "parameter", "buffer") if backend == "cudagraphs" else ("input",)
    return float(sum(storage.bytes for storage in step.storages if storage.kind in kinds))


def least_bytes(step: StepCalls) -> float:
    """Bytes that no fusion spares: what was there before the step and is read, and what outlives it and is made."""
    size: dict[int, float] = {}
    live = [call for call, is_live in zip(step.calls, live_calls(step), strict=True) if is_live]
    for call in live:
        # A gather reads some rows of a table, and which ones is not known.
        inputs = () if FAMILY_OF.get(call.name) in ("indexing", "recommendation") else call.inputs
        for use in (*inputs, *call.outputs):
            if use.storage is not None:
                size[use.storage] = max(size.get(use.storage, 0.0), tensor_bytes(use))
    read = {use.storage for call in live for use in call.inputs}
    total = 0.0
    for number, storage in enumerate(step.storages):
        if (storage.created < 0 and number in read) or (storage.created >= 0 and storage.freed is None):
            total += min(size.get(number, 0.0), float(storage.bytes))
    return total
