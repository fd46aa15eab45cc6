"""Looks at values of tensors in the host's memory.

It looks for subnormal numbers, NaN, zeros, and gradients that nobody uses.

It looks in and after one step that is not measured, at what the program's frames, modules and optimizers hold. Nothing
of the program is called or changed, and a bound on the time ends the look.
"""

import ast
import math
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType, ModuleType
from typing import Any

from bottleneck.harness.lines import first_line, is_own_file
from bottleneck.harness.machine import is_on_gpu
from bottleneck.harness.memory_growth import fields_of, locals_of, variables_of
from bottleneck.harness.module_paths import gradient_of, instances_of, named_tensors, tensors_of
from bottleneck.harness.torch_private import count_modes, may_trace_hooks, version_of
from bottleneck.schema.measurements import OddTensor, SpareGradients, ValuePlace, ValuesLook

# Processor time of the look in the step, of each look after it, and numbers of one tensor that are looked at.
_MOST_SECONDS, _MOST_NUMBERS = 0.1, 2**16
# In a row, of a tensor that holds more.
_STRETCH = 64
_LEAST_NUMBERS = 64
_MOST_FRAMES, _MOST_OWN_FRAMES = 60, 3
_MOST_VARIABLES, _MOST_PARTS = 300, 8
_MOST_ODD = 6
# Of the numbers: fewer subnormal ones cost nothing.
_LEAST_SHARE = 1e-5
_MOST_NAMES, _MOST_CALLS = 6, 5000
# Zeros of a matrix of so many numbers that are worth telling; one of nothing else is still to be filled.
_LEAST_ZEROS, _LEAST_MATRIX = 0.95, 2**16
_MATRICES: frozenset[ValuePlace] = frozenset({"variable", "parameter", "buffer", "input"})
# As integers: the sign cut off, and the bits of the exponent.
_BITS = {
    "torch.float32": ("int32", 0x7FFFFFFF, 0x7F800000),
    "torch.float64": ("int64", 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000),
    "torch.bfloat16": ("int16", 0x7FFF, 0x7F80),
}
# Links and masks: of these only zeros are told.
_WHOLE = frozenset({"torch.bool", "torch.uint8", "torch.int8", "torch.int16", "torch.int32", "torch.int64"})


class ValueLook:
    """Looks at values from ``start`` to ``stop``, and again at each ``look_at_rest``."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._torch: Any = None
        self._removals: list[Any] = []
        self._left_s = 0.0
        self._seen: set[tuple[object, ...]] = set()
        self._numbers, self._is_busy = 0, False
        self._odd: dict[tuple[str, str], OddTensor] = {}
        self._zeros: dict[tuple[str, str], OddTensor] = {}
        self._before: _Gradients | None = None
        self._spare: SpareGradients | None = None
        self._own: dict[str, bool] = {}
        self._calls: dict[int, _ModuleCall] = {}
        self._counts: Counter[str] = Counter()

    @property
    def is_on(self) -> bool:
        """True while it looks at the calls of modules."""
        return bool(self._removals)

    def start(self, torch: Any) -> None:
        """Starts the look.

        Does nothing where a device or torch.compile is in use: the one does not mind, the other would trace hooks.
        """
        if torch is None or may_trace_hooks() or is_on_gpu(torch) or self._removals:
            return
        self._torch, self._left_s = torch, _MOST_SECONDS
        module = torch.nn.modules.module
        self._removals = [
            module.register_module_forward_pre_hook(self._before_call),
            module.register_module_forward_hook(self._after_call),
        ]

    def stop(self) -> None:
        """Ends the look at calls."""
        removals, self._removals = self._removals, []
        for removal in removals:
            removal.remove()

    def look_at_rest(self, torch: Any, step: object = None) -> None:
        """Looks at variables, parameters, gradients and states of optimizers, at a step boundary.

        ``step`` is the function that is repeated where the harness repeats it.
        """
        if torch is None or is_on_gpu(torch):
            return
        self._torch = torch
        self._left_s = _MOST_SECONDS
        named = named_tensors(torch)
        optimizers = instances_of(sys.modules["torch.optim"].Optimizer) if "torch.optim" in sys.modules else []
        self._note_gradients(named, optimizers)
        for file, name, value in variables_of(sys._getframe(1), step):
            for inner, tensor in self._tensors_in(name, value):
                self._see("variable", inner, tensor, partial(line_that_makes, file, name))
        kinds: Mapping[bool, ValuePlace] = {True: "parameter", False: "buffer"}
        for name, tensor in named:
            place = kinds[type(tensor) is torch.nn.Parameter]
            self._see(place, name, tensor, partial(line_of_buffer, name.rpartition(".")[2]))
            self._see("gradient", name, gradient_of(tensor))
        for optimizer in optimizers:
            for state in list(optimizer.state.values())[:_MOST_VARIABLES]:
                for name, entry in list(state.items()) if type(state) is dict else ():
                    self._see("state", f"{type(optimizer).__name__}.{name}", entry)

    def result(self) -> ValuesLook | None:
        """The finds so far; null where no tensor was looked at."""
        if not self._numbers:
            return None
        zeros = sorted(_once(self._zeros.values()), key=lambda tensor: -math.prod(tensor.sizes))
        odd = sorted(self._odd.values(), key=lambda tensor: (-tensor.nan_share, -tensor.subnormal_share))
        return ValuesLook(
            self._numbers, _flushes(self._torch), tuple(odd[:_MOST_ODD]), self._spare, tuple(zeros[:_MOST_ODD])
        )

    def _before_call(self, module: Any, arguments: Any) -> None:
        if self._is_busy or self._left_s <= 0:
            return
        frames = self._own_frames(sys._getframe(1))
        line = next((_line_of(frame) for frame in frames), None)
        self._note_call(module, arguments, line)
        for tensor in arguments if isinstance(arguments, tuple) else (arguments,):
            self._see("input", type(module).__name__, tensor, lambda: line)
        for frame in frames:
            if frame.f_code.co_name != "<module>":
                self._look_at_locals(frame)

    def _note_call(self, module: Any, arguments: Any, line: str | None) -> None:
        """Keeps the first call of each module, without keeping the module."""
        if id(module) in self._calls or len(self._calls) >= _MOST_CALLS:
            return
        kind = type(module).__name__
        given = arguments if isinstance(arguments, tuple) else ()
        needs_gradient = any(self._is_plain(argument) and argument.requires_grad for argument in given)
        self._calls[id(module)] = _ModuleCall(weakref.ref(module), f"{kind}_{self._counts[kind]}", line, needs_gradient)
        self._counts[kind] += 1

    def _after_call(self, module: Any, _arguments: Any, output: Any) -> None:
        if self._is_busy or self._left_s <= 0:
            return
        line = next(map(_line_of, self._own_frames(sys._getframe(1))), None)
        for tensor in output if isinstance(output, tuple) else (output,):
            self._see("output", type(module).__name__, tensor, lambda: line)

    def _look_at_locals(self, frame: FrameType) -> None:
        for name, value in list(locals_of(frame).items())[:_MOST_VARIABLES]:
            if type(value) is self._torch.Tensor:
                self._see("variable", name, value, lambda: _line_of(frame))

    def _own_frames(self, frame: FrameType | None) -> list[FrameType]:
        """The innermost frames of the program's own files."""
        frames: list[FrameType] = []
        for _ in range(_MOST_FRAMES):
            if frame is None or len(frames) >= _MOST_OWN_FRAMES:
                break
            file = frame.f_code.co_filename
            if file not in self._own:
                self._own[file] = is_own_file(file)
            if self._own[file]:
                frames.append(frame)
            frame = frame.f_back
        return frames

    def _tensors_in(self, name: str, value: object) -> Iterator[tuple[str, Any]]:
        """The tensors that a variable is or holds, one level deep, with names."""
        kind = type(value)
        if kind is self._torch.Tensor:
            yield name, value
        elif isinstance(value, list | tuple) and kind in (list, tuple):
            yield from ((name, part) for part in value[:_MOST_PARTS])
        elif isinstance(value, dict) and kind is dict:
            yield from ((name, part) for part in list(value.values())[:_MOST_PARTS])
        elif _is_own_class(kind) and self._torch.nn.Module not in kind.__mro__:
            yield from ((f"{name}.{key}", part) for key, part in fields_of(value))

    def _see(self, place: ValuePlace, name: str, tensor: Any, source: Callable[[], str | None] = lambda: None) -> None:
        """Counts the odd numbers of a tensor in the host's memory, once.

        Errors are ignored.
        """
        if self._left_s <= 0 or not self._is_plain(tensor) or self._is_busy:
            return
        began, self._is_busy = self._clock(), True
        try:
            self._count(place, name, tensor, source)
        except Exception:  # ours, in the middle of the program's own call
            return
        finally:
            self._is_busy = False
            self._left_s -= self._clock() - began

    def _is_plain(self, tensor: Any) -> bool:
        torch = self._torch
        return type(tensor) in (torch.Tensor, torch.nn.Parameter)

    def _count(self, place: ValuePlace, name: str, tensor: Any, source: Callable[[], str | None]) -> None:
        torch = self._torch
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return
        sizes = tuple(int(size) for size in tensor.shape)
        is_matrix = _is_matrix(sizes) and tensor.numel() >= _LEAST_MATRIX and place in _MATRICES
        is_read = str(tensor.dtype) in _BITS
        if not is_read and not (is_matrix and str(tensor.dtype) in _WHOLE):
            return
        key = (place, name, tensor.data_ptr(), tensor.numel(), version_of(tensor))
        if tensor.numel() < _LEAST_NUMBERS or key in self._seen or self._is_watched():
            return
        self._seen.add(key)
        with torch.no_grad():
            numbers = _sample(tensor.detach())
            subnormal, nan = _odd_numbers(torch, numbers) if is_read else (0, 0)
            filled = int(torch.count_nonzero(numbers))
        count = numbers.numel()
        self._numbers += count
        if is_matrix and 0 < filled <= (1 - _LEAST_ZEROS) * count:
            held = OddTensor(place, name, sizes=sizes[-2:], source=source(), zero_share=1 - filled / count)
            self._zeros.setdefault((place, name), held)
        earlier = self._odd.get((place, name))
        is_more = earlier is None or subnormal / count > earlier.subnormal_share
        if (subnormal < _LEAST_SHARE * count and not nan) or not is_more:
            return
        self._odd[place, name] = OddTensor(place, name, subnormal / count, nan / count, sizes, source())

    def _is_watched(self) -> bool:
        """Tells whether a mode would see what we compute.

        True as well if this torch does not tell.
        """
        return count_modes() != 0

    def _note_gradients(self, named: list[tuple[str, Any]], optimizers: Iterable[Any]) -> None:
        """Notes parameters with a gradient that no optimizer has.

        A later look notes which of them stayed as they were.
        """
        now = _Gradients.of(named, optimizers, self._is_plain)
        if self._before is not None:
            self._spare = now.spare_since(self._before, tuple(self._calls.values()))
        else:
            self._before = now


@dataclass(frozen=True)
class _ModuleCall:
    """The first call of a module.

    Holds its name in a trace, the line, and whether an input of it needs a gradient.
    """

    module: Callable[[], Any]
    label: str
    line: str | None
    needs_gradient: bool


@dataclass(frozen=True)
class _Loose:
    """A parameter with a gradient that no optimizer has.

    Holds its address, its size, and samples of both.
    """

    address: int
    numbers: int
    values: tuple[float, ...]
    gradient: float


@dataclass(frozen=True)
class _Gradients:
    """The parameters with gradients that no optimizer has, by name.

    ``trained`` names those that one has.
    """

    loose: Mapping[str, _Loose]
    trained: frozenset[str]

    @classmethod
    def of(
        cls, named: list[tuple[str, Any]], optimizers: Iterable[Any], is_plain: Callable[[Any], bool]
    ) -> "_Gradients":
        """Those of the parameters of these names that have a gradient now."""
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        held = {id(parameter) for group in groups for parameter in group["params"]}
        loose, trained = {}, set()
        for name, tensor in named:
            if id(tensor) in held:
                trained.add(name)
            elif is_plain(tensor) and tensor.is_leaf and tensor.requires_grad and is_plain(tensor.grad):
                values = tuple(tensor.detach().reshape(-1)[:_MOST_PARTS].tolist())
                gradient = float(_strided(tensor.grad).double().abs().sum())
                loose[name] = _Loose(id(tensor), tensor.numel(), values, gradient)
        return cls(loose, frozenset(trained))

    def spare_since(self, before: "_Gradients", calls: Sequence[_ModuleCall]) -> SpareGradients | None:
        """Finds the parameters that stayed as they were while their gradients changed.

        Null where there are none.
        """
        both = [name for name in self.loose if name in before.loose and self.trained]
        still = [name for name in both if self.loose[name].values == before.loose[name].values]
        fresh = [name for name in still if self.loose[name].gradient != before.loose[name].gradient]
        if not still or 2 * len(fresh) < len(still):
            return None
        spare = {self.loose[name].address for name in still}
        spare_calls = list(_calls_of(spare, calls))
        return SpareGradients(
            parameters=len(still),
            numbers=sum(self.loose[name].numbers for name in still),
            trained=len(self.trained),
            modules=_outermost(still, self.trained | (self.loose.keys() - set(still))),
            calls=tuple(call.label for call in spare_calls[:_MOST_NAMES]),
            source=next((call.line for call in spare_calls), None),
            passes_on=any(call.needs_gradient for call in spare_calls),
        )


def _calls_of(spare: Collection[int], calls: Sequence[_ModuleCall]) -> Iterator[_ModuleCall]:
    """The calls of the outermost modules all of whose parameters with gradients are these."""
    inside: set[int] = set()
    for call in calls:
        held = (
            {id(tensor) for _, tensor in tensors_of(call.module()) if tensor.requires_grad} if call.module() else set()
        )
        if held and held <= set(spare) and not held <= inside:
            inside |= held
            yield call


def _outermost(names: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """The shortest beginnings of these dotted names that begin none of the others."""
    taken = {prefix for name in others for prefix in _prefixes(name)}
    beginnings = (next((prefix for prefix in _prefixes(name) if prefix not in taken), name) for name in names)
    return tuple(sorted(set(beginnings), key=lambda name: (name.count("."), name))[:_MOST_NAMES])


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _is_matrix(sizes: Sequence[int]) -> bool:
    """True for a matrix, as one of a batch of 1 too."""
    return len(sizes) >= 2 and all(size == 1 for size in sizes[:-2])


def _once(tensors: Iterable[OddTensor]) -> Iterable[OddTensor]:
    """Leaves each matrix one name.

    It is that of a variable before others, of known origin before others, and the last that was seen.
    """
    names: dict[tuple[object, ...], tuple[tuple[bool, bool], OddTensor]] = {}
    for tensor in tensors:
        key, rank = (tensor.sizes, tensor.zero_share), (tensor.place == "variable", tensor.source is not None)
        if key not in names or rank >= names[key][0]:
            names[key] = rank, tensor
    return [tensor for _, tensor in names.values()]


def _strided(tensor: Any) -> Any:
    """Evenly spaced numbers of a tensor, not too many."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _MOST_NUMBERS)]


def _sample(tensor: Any) -> Any:
    """Gives all numbers of a tensor in a row.

    Of a large one, evenly spaced stretches.
    """
    count = tensor.numel()
    if not tensor.is_contiguous():
        rows = max(1, math.ceil(tensor.shape[0] * min(1.0, _MOST_NUMBERS / count)))
        tensor = tensor[:: max(1, tensor.shape[0] // rows)].contiguous()
        count = tensor.numel()
    flat = tensor.view(-1)
    # An odd distance, so that not all stretches begin where rows do.
    apart = max(_STRETCH * count // _MOST_NUMBERS, _STRETCH) | 1
    return flat if count <= _MOST_NUMBERS else flat.unfold(0, _STRETCH, apart).reshape(-1)


def _odd_numbers(torch: Any, numbers: Any) -> tuple[int, int]:
    """Counts subnormal numbers and NaN.

    It reads them as integers, so that no arithmetic meets them.
    """
    kind, magnitude, exponent = _BITS[str(numbers.dtype)]
    bits = numbers.view(getattr(torch, kind)) & magnitude
    subnormal = int(torch.count_nonzero(bits)) - int(torch.count_nonzero(bits & exponent))
    return max(subnormal, 0), int((bits > exponent).sum())


def _flushes(torch: Any) -> bool:
    """Tells whether the processor takes subnormal numbers for 0.

    As this thread has it set.
    """
    return bool((torch.tensor([1e-30]) * torch.tensor([1e-10])).view(torch.int32).item() == 0)


def _is_own_class(kind: type) -> bool:
    """True for a class that a file of the program defines."""
    module = sys.modules.get(kind.__module__) if isinstance(kind.__module__, str) else None
    if type(module) is not ModuleType:
        return False
    file = vars(module).get("__file__")
    return isinstance(file, str) and is_own_file(os.path.abspath(file))  # noqa: PTH100 - as plain text


def _line_of(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119 - as plain text


def line_that_makes(file: str, name: str) -> str | None:
    """Finds the first line of a program's file that assigns a variable.

    'train.py:34', null where none does.
    """
    owner, _, attribute = name.rpartition(".")
    return first_line(lambda node: _assigns(node, owner, attribute or name), file)


def line_of_buffer(name: str) -> str | None:
    """Finds the program's first line that makes this parameter or buffer.

    A module holds it by this name. Null where no line does.
    """
    return first_line(lambda node: _registers(node, name) or _assigns(node, "self", name))


def _registers(node: ast.AST, name: str) -> bool:
    """True for `self.register_buffer("name", …)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return False
    first = node.args[0]
    is_name = isinstance(first, ast.Constant) and first.value == name
    return is_name and node.func.attr in {"register_buffer", "register_parameter"}


def _assigns(node: ast.AST, owner: str, name: str) -> bool:
    """True for `name = …`, or `owner.name = …` where there is an owner."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return any(ast.unparse(part) == (f"{owner}.{name}" if owner else name) for part in parts)
