"""Records the op calls of a step under fake tensors.

It also records from when to when each piece of the step's memory is held.
"""

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bottleneck.harness.inductor import SpelledArgument, spelled_columns, trace_type
from bottleneck.harness.lines import is_program
from bottleneck.harness.torch_private import (
    autograd_number,
    current_node,
    dispatch_mode_class,
    is_written,
    newest_number,
    schema_of,
    storage_key,
)
from bottleneck.schema.step_calls import BEFORE_THE_STEP, Phase, StepCall, Storage, StorageKind, TensorUse

# c10::ScalarType by number, as a trace holds dtype arguments.
_SCALAR_TYPES: Mapping[str, int] = {
    "torch.uint8": 0,
    "torch.int8": 1,
    "torch.int16": 2,
    "torch.int32": 3,
    "torch.int64": 4,
    "torch.float16": 5,
    "torch.float32": 6,
    "torch.float64": 7,
    "torch.complex64": 9,
    "torch.complex128": 10,
    "torch.bool": 11,
    "torch.bfloat16": 15,
    "torch.float8_e5m2": 23,
    "torch.float8_e4m3fn": 24,
}


def _op_names(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


# Ops that launch nothing though they are no views by their schemas.
_FREE = _op_names(
    """empty empty_like empty_strided new_empty new_empty_strided detach
    detach_ lift_fresh lift alias _unsafe_view _reshape_alias set_
    resize_ is_pinned record_stream _local_scalar_dense is_same_size item
    sym_size sym_stride sym_numel sym_storage_offset"""
)
# On a GPU it launches its kernels itself.
_KEPT = _op_names("native_batch_norm")
_OURS = str(Path(__file__).parents[1])
_SILENT = frozenset({"prim", "profiler"})
_ONE_NUMBER = 1.0
_THEIR_ITEM = "_item_without_bottleneck"
_THEIR_NUMPY = "_numpy_without_bottleneck"
_THEIR_TRUTH = "_bool_without_bottleneck"
_THEIR_CPU = "_cpu_without_bottleneck"
# A step counter of an optimizer, by which some choose between their early steps and all others.
_LATE_STEP = 1000.0


class DependsOnData(Exception):  # noqa: N818 - ends as a refusal in the words of the command
    """Raised where the step does what a value tells it to.

    A fake tensor has no value; ``asked`` says for what it was asked, ``branches`` that it decides which way to go.
    """

    def __init__(self, asked: str, *, branches: bool = False) -> None:
        super().__init__(asked)
        self.asked, self.branches = asked, branches


class UnknownNumber(float):
    """Value read from a fake tensor.

    It can be added up and printed. What it decides is asked of ``decide``, which gives what the user assumes.
    """

    decide: Callable[[str], bool]

    def __new__(cls, decide: Callable[[str], bool]) -> "UnknownNumber":
        """Stands for a number that nobody knows."""
        number = super().__new__(cls, _ONE_NUMBER)
        number.decide = decide
        return number

    def _refuse(self, *_: object) -> bool:
        raise DependsOnData("a number that was read from a tensor decides what the program does")

    def _decided(self, *_: object) -> bool:
        return self.decide("a number that was read from a tensor decides what the program does")

    __int__ = __round__ = __trunc__ = _refuse
    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _decided
    __hash__ = float.__hash__

    def _unknown(self, *_: object) -> "UnknownNumber":
        return UnknownNumber(self.decide)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _unknown
    __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = _unknown


@dataclass
class _Memory:
    """A storage that was seen; positions count recorded calls."""

    bytes: int
    created: int
    freed: int | None = None
    kind: StorageKind | None = None
    is_on_device: bool = False
    is_seen_alive: bool = field(default=True)


# Module and line of a call, null where unknown.
_CallPlace = tuple[str | None, str | None]


class CallRecorder(dispatch_mode_class()):  # type: ignore[misc]
    """Sees every op below autograd.

    Memory is followed from the beginning, calls only between ``start`` and ``stop``. ``replaced`` are ops that a CUDA
    device does otherwise, which autograd has replaced already wherever it is on.
    """

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True, so that code which dynamo has captured runs while ops are recorded."""
        return True

    def __init__(self, torch: Any, replaced: Mapping[Any, Any]) -> None:
        super().__init__()
        self.calls: list[StepCall] = []
        self.host_ops = 0
        self.returned_bytes = 0
        self.channels_last = False
        self.gradients = False
        self.read_numbers: set[str] = set()
        self.is_on = False
        self.in_optimizer = False
        self.counts_on_host = False
        self.modules: list[str] = []
        self._torch, self._replaced = torch, replaced
        self._their_item = getattr(torch.Tensor, _THEIR_ITEM, torch.Tensor.item)
        self._their_numpy = getattr(torch.Tensor, _THEIR_NUMPY, torch.Tensor.numpy)
        self._their_truth = getattr(torch.Tensor, _THEIR_TRUTH, torch.Tensor.__bool__)
        self._their_cpu = getattr(torch.Tensor, _THEIR_CPU, torch.Tensor.cpu)
        self.assumed: Mapping[str, bool] = {}
        self.decided: set[str] = set()
        self._memory: list[_Memory] = []
        self._number_of: dict[int, int] = {}
        self._watches: dict[int, Any] = {}
        self._makers: dict[int | None, list[int]] = {}
        self._forward_places: dict[int, _CallPlace] = {}
        self._ops_since = 0

    def start(self) -> None:
        """Begins to record; what is alive now was there before the step."""
        self.calls.clear()
        self._makers.clear()
        self._forward_places.clear()
        self.host_ops = self.returned_bytes = self._ops_since = 0
        for memory in self._memory:
            memory.created = BEFORE_THE_STEP
            memory.is_seen_alive = memory.freed is None
        self.is_on = True

    def stop(self) -> None:
        """Ends it; what is alive now outlives the step."""
        self.is_on = False

    def tag(self, tensors: Sequence[Any], kind: StorageKind) -> None:
        """Says what the memory of these tensors holds, as far as it was seen."""
        for tensor in tensors:
            number = self._number_of.get(storage_key(tensor.untyped_storage()))
            if number is not None:
                self._memory[number].kind = kind

    def take_to_device(self, tensor: Any) -> bool:
        """Tells whether the step made a tensor in the host's memory.

        It is asked where the program moves the tensor to the device. The calls that made it are work of the host then.
        A tensor that comes from one on the device, or from a parameter, was there already.
        """
        number = self._storage(tensor)
        if number is None or self._memory[number].is_on_device:
            return False
        makers = self._makers_on_host(number)
        for position in makers:
            self.calls[position] = replace(self.calls[position], on_host=True)
        self._memory[number].is_on_device = True
        return bool(makers)

    def _makers_on_host(self, number: int) -> set[int]:
        """Finds the calls that made a storage on the host.

        None did where one of them was given something on the device, or a parameter.
        """
        seen, rest, makers = {number}, [number], set[int]()
        while rest:
            number = rest.pop()
            memory = self._memory[number]
            if memory.is_on_device or memory.kind is not None:
                return set()
            makers.update(self._makers.get(number, ()))
            used = {use.storage for position in self._makers.get(number, ()) for use in self.calls[position].inputs}
            new = {storage for storage in used if storage is not None} - seen
            seen |= new
            rest += new
        return makers

    def storages(self) -> tuple[tuple[Storage, ...], Mapping[int, int]]:
        """Returns the memory of the step.

        The second result is the number there of each storage that the calls name.
        """
        alive = [number for number, memory in enumerate(self._memory) if memory.is_seen_alive]
        return tuple(self._as_storage(self._memory[number]) for number in alive), {
            number: position for position, number in enumerate(alive)
        }

    @staticmethod
    def _as_storage(memory: _Memory) -> Storage:
        otherwise: StorageKind = "input" if memory.created == BEFORE_THE_STEP else "activation"
        return Storage(memory.bytes, memory.kind or otherwise, memory.created, memory.freed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func.namespace in _SILENT:
            return func(*args, **options)
        if func in self._replaced:
            with self:
                return self._replaced[func](*args, **options)
        # Without autograd ops that only call others come here whole.
        if self._torch.is_inference_mode_enabled() and schema_of(func).name not in _KEPT:
            with self:
                result = func.decompose(*args, **options)
            if result is not NotImplemented:
                return result
        device = options.get("device")
        is_on_device = device is not None and self._torch.device(device).type not in ("cpu", "meta")
        if is_on_device:
            options = {**options, "device": self._torch.device("cpu")}
        result = func(*args, **options)
        if self.is_on:
            self._record(func, args, options, result)
        for tensor in _tensors(result):
            number = self._storage(tensor)
            if is_on_device and number is not None:
                self._memory[number].is_on_device = True
        return result

    def answer_reads(self) -> None:
        """Gives the program an answer where it reads a value that is not there."""
        setattr(self._torch.Tensor, _THEIR_ITEM, self._their_item)
        setattr(self._torch.Tensor, _THEIR_NUMPY, self._their_numpy)
        setattr(self._torch.Tensor, _THEIR_TRUTH, self._their_truth)
        setattr(self._torch.Tensor, _THEIR_CPU, self._their_cpu)
        self._torch.Tensor.cpu = lambda tensor, **options: self._take_to_host(tensor, **options)  # noqa: PLW0108 - likewise
        self._torch.Tensor.__bool__ = lambda tensor: self._read_truth(tensor)  # noqa: PLW0108 - a bound method gets no tensor
        self._torch.Tensor.numpy = lambda tensor, **options: self._read_array(tensor, **options)  # noqa: PLW0108 - likewise
        self._torch.Tensor.item = lambda tensor: self._read_number(tensor)  # noqa: PLW0108 - a bound method gets no tensor
        self._torch.Tensor.__float__ = lambda tensor: self._read_float(tensor)  # noqa: PLW0108 - likewise

    def _take_to_host(self, tensor: Any, **options: Any) -> Any:
        """Returns `tensor.cpu()`, and counts the bytes that come from the device.

        They are those of results of the step. The host waits for the copy. A move to a device of type 'cpu' says
        nothing: fake tensors are on no other.
        """
        number = self._storage(tensor) if self.is_on and not self.in_optimizer else None
        if number is not None and self._is_made_on_device(number):
            self._read("aten::_local_scalar_dense", tensor)
            self.returned_bytes += tensor.numel() * tensor.element_size()
        return self._their_cpu(tensor, **options)

    def _is_made_on_device(self, number: int) -> bool:
        memory = self._memory[number]
        return memory.created != BEFORE_THE_STEP and (memory.is_on_device or not self._makers_on_host(number))

    def _read_array(self, tensor: Any, **options: Any) -> Any:
        """The array of `tensor.numpy()`, which only a real tensor has."""
        if hasattr(tensor, "fake_mode"):
            raise DependsOnData("the program takes the values of a tensor as an array of NumPy")
        return self._their_numpy(tensor, **options)

    def _read_number(self, tensor: Any) -> Any:
        """Returns the value of `tensor.item()`.

        It is its own where a fake tensor knows it, else a number that decides nothing.
        """
        number = self._known(tensor)
        if number is not None:
            return number
        if self.in_optimizer:
            return _LATE_STEP
        if self.is_on:
            self._read("aten::_local_scalar_dense", tensor)
        return UnknownNumber(self._decide)

    def _decide(self, asked: str) -> bool:
        """Answers a condition on this line of the program as the user assumes.

        DependsOnData where nothing is assumed of it.
        """
        line = self._source() or "the program"
        if line not in self.assumed:
            raise DependsOnData(asked, branches=True)
        self.decided.add(line)
        return self.assumed[line]

    def _read_truth(self, tensor: Any) -> bool:
        """The value of `bool(tensor)`, as in `if tensor.any():`."""
        if not hasattr(tensor, "fake_mode") or self.in_optimizer or getattr(tensor, "constant", None) is not None:
            return bool(self._their_truth(tensor))
        if self.is_on:
            self._read("aten::_local_scalar_dense", tensor)
        return self._decide("a tensor decides what the program does")

    def _known(self, tensor: Any) -> Any:
        """Returns the value of a real tensor.

        That of a fake one too, if it was made from a number; null where there is none.
        """
        real = getattr(tensor, "constant", None) if hasattr(tensor, "fake_mode") else tensor
        return None if real is None else self._their_item(real)

    def _read_float(self, tensor: Any) -> float:
        """The value of `float(tensor)`, which can be no number of ours."""
        number = self._known(tensor)
        if number is not None:
            return float(number)
        place = self._source() or "the program"
        if self.is_on and not self.in_optimizer:
            self._read("aten::_local_scalar_dense", tensor)
            self.read_numbers.add(place)
        return _ONE_NUMBER

    def _read(self, name: str, tensor: Any) -> None:
        use = self._use(tensor)
        dims, strides = str([list(use.dims)]), str([list(use.strides)])
        self._append(
            StepCall(name, dims, f'["{use.type}"]', strides, '[""]', (use,), waits=True, source=self._source())
        )

    def _append(self, call: StepCall) -> None:
        for use in call.outputs:
            self._makers.setdefault(use.storage, []).append(len(self.calls))
        self.calls.append(call)
        self._ops_since = 0

    def _record(self, func: Any, args: tuple[Any, ...], options: Mapping[str, Any], result: Any) -> None:
        self.host_ops += 1
        self._ops_since += 1
        (module, source), phase = self._place()
        name = schema_of(func).name
        written = list(_tensors(result)) if result is not None else _mutated(func, args, options)
        is_move = name == "aten::_to_copy" and _is_same(args[0], result)
        is_count = self.in_optimizer and all(tensor.dim() == 0 for tensor in written)
        # An op on the counters of all parameters goes from one to the next on the host.
        counts_many = is_count and self.counts_on_host and len(written) > 1
        if name in _FREE or func.is_view or is_move or (is_count and not counts_many):
            return
        values = _in_order(func, args, options)
        if "convolution" in name and args[0].dim() > 3:
            self.channels_last |= not args[0].is_contiguous()
        position = len(self.calls)
        dims, types, strides, concrete = spelled_columns(map(_described, values))
        self._append(
            StepCall(
                name=name,
                dims=dims,
                types=types,
                strides=strides,
                concrete=concrete,
                inputs=tuple(self._use(tensor) for value in values for tensor in _tensors(value)),
                outputs=tuple(self._use(tensor, position) for tensor in written),
                phase=phase,
                module=module,
                source=source,
                host_ops=self._ops_since,
                on_host=counts_many,
            )
        )

    def _place(self) -> tuple[_CallPlace, Phase]:
        """Returns module, line and phase of the call.

        In a backward pass they are those of the forward call that it belongs to.
        """
        if self.in_optimizer:
            return (None, self._source()), "optimizer"
        node = current_node()
        if node is not None:
            self.gradients = True
            return self._forward_places.get(autograd_number(node), (None, None)), "backward"
        place = (self.modules[-1] if self.modules else None, self._source())
        # The node of this call was made just before, and has the number before the next one. Calls that make none
        # come later than the one whose number they find.
        self._forward_places.setdefault(newest_number(), place)
        return place, "forward"

    def _source(self) -> str | None:
        """The innermost line of the program."""
        frame = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if not file.startswith(_OURS) and is_program(file):
                return f"{Path(file).name}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def _use(self, tensor: Any, position: int | None = None) -> TensorUse:
        kind, number = trace_type(tensor.dtype), self._storage(tensor, position)
        return TensorUse(tuple(tensor.shape), tuple(tensor.stride()), kind, number)

    def _storage(self, tensor: Any, position: int | None = None) -> int | None:
        """The number of a tensor's memory, which is followed from now on."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse tensors
            return None
        key = storage_key(storage)
        number = self._number_of.get(key)
        if number is None:
            number = self._number_of[key] = len(self._memory)
            created = (len(self.calls) if position is None else position) if self.is_on else BEFORE_THE_STEP
            self._memory.append(_Memory(storage.nbytes(), created))
            self._watches[number] = weakref.ref(storage, partial(self._free, key, number))
        return number

    def _free(self, key: int, number: int, _: object) -> None:
        self._number_of.pop(key, None)
        self._watches.pop(number, None)
        memory = self._memory[number]
        if self.is_on:
            memory.freed = len(self.calls)
        elif not self.calls:
            memory.freed, memory.is_seen_alive = 0, False


def _is_same(given: Any, result: Any) -> bool:
    """True for a copy that only would have changed the device."""
    return bool(given.dtype == result.dtype and given.stride() == result.stride())


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "untyped_storage"):
        yield value


def _mutated(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> list[Any]:
    """The tensors that an op without a result writes."""
    values = zip(schema_of(func).arguments, _in_order(func, args, options), strict=True)
    return [tensor for argument, value in values if is_written(argument) for tensor in _tensors(value)]


def _in_order(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> list[Any]:
    """Arguments in the order of the schema, with the defaults of those not given."""
    return [
        args[position] if position < len(args) else options.get(argument.name, argument.default_value)
        for position, argument in enumerate(schema_of(func).arguments)
    ]


def _described(value: Any) -> SpelledArgument:
    """Sizes, type, strides and text of an argument as a trace spells them."""
    if isinstance(value, list | tuple):
        tensors = list(_tensors(value))
        if tensors:
            sizes = {tensor.element_size() for tensor in tensors}
            kind = f"TensorList[{sizes.pop()}]" if len(sizes) == 1 else "TensorList"
            return [list(tensor.shape) for tensor in tensors], kind, [], ""
        return [], "ScalarList", [], str([_spelled(item) for item in value]).replace("'", "")
    if hasattr(value, "untyped_storage"):
        return list(value.shape), trace_type(value.dtype), list(value.stride()), ""
    return [], "" if value is None else "Scalar", [], "" if value is None else _spelled(value)


def _spelled(value: Any) -> str:
    text = str(value)
    return str(_SCALAR_TYPES[text]) if text in _SCALAR_TYPES else text
