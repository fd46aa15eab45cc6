"""Compares the memory of the process at two step boundaries.

It finds the variables that hold more tensors each time. A look reads types, lengths and references of the program's own
containers; it calls nothing of the program's. It is taken outside of the steps that are measured.
"""

import ast
import collections
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, GetSetDescriptorType, ModuleType
from typing import Any

from bottleneck.harness.lines import first_line, is_own_file
from bottleneck.harness.machine import available_bytes, is_on_gpu
from bottleneck.harness.window import resident_bytes
from bottleneck.schema.measurements import Keeper, MemoryGrowth

_SEQUENCES: tuple[type, ...] = (list, collections.deque)
_MAPPINGS: tuple[type, ...] = (dict, collections.OrderedDict, collections.defaultdict)
# Frames on the program's stack, variables of a scope, and processor time. A look at a hundred variables takes 0.2 ms.
_MOST_FRAMES, _MOST_VARIABLES, _MOST_SECONDS = 30, 3000, 0.02
_LONGEST_CHAIN = 5000
_MOST_KEEPERS = 4
_MOST_INNER, _MOST_PARTS = 50, 8
# Fewer steps tell nothing.
_LEAST_STEPS = 5
# A container grows with the steps if it gets an entry in so many of them.
_LEAST_PER_STEP = 0.5
_OPTIMIZED = 0x1  # CO_OPTIMIZED (inspect): the locals of a function, not those of a module or class
_ADDING = {"append", "appendleft", "extend", "extendleft", "insert", "update", "setdefault", "add", "__setitem__"}


@dataclass(frozen=True)
class _Holding:
    """Variable that holds tensors.

    Of a container its identity and length, of a sum the length of its graph.
    """

    name: str
    file: str
    length: int
    identity: int
    has_graph: bool
    is_sum: bool = False


class MemoryLook:
    """Memory of the process, and its variables that hold tensors.

    They are those at one step boundary. ``step`` is the function that is repeated where the harness repeats it: its
    variables are in no frame then.
    """

    def __init__(self, torch: Any, step: object = None, clock: Callable[[], float] = time.thread_time) -> None:
        self.host_bytes = resident_bytes()
        self.device_bytes: int | None = torch.cuda.memory_allocated() if is_on_gpu(torch) else None
        self._until_s, self._clock = clock() + _MOST_SECONDS, clock
        self._tensor = getattr(torch, "Tensor", None)
        self.holdings: dict[tuple[str, str], _Holding] = {}
        self._between: list[tuple[int, float]] = []
        for file, name, value in variables_of(sys._getframe(1), step):
            if self._clock() > self._until_s:
                break
            holding = self._holding(file, name, value)
            if holding is not None:
                self.holdings.setdefault((file, name), holding)

    def read_again(self, steps: int) -> None:
        """Reads the resident memory so many steps after this look.

        After 1, 2, 4, 8 … of them: one of these lies about halfway to the look that ends it.
        """
        if steps > 0 and not steps & (steps - 1):
            self._between.append((steps, resident_bytes()))

    def host_growth(self, later_bytes: float, steps: int) -> float:
        """Gives the growth per step of resident memory until a later look.

        Memory that grew in the first half alone was taken once: what it grew by in the second half counts then.
        """
        whole = (later_bytes - self.host_bytes) / steps
        halfway = min(self._between, key=lambda reading: abs(reading[0] - steps / 2), default=(0, self.host_bytes))
        left = steps - halfway[0]
        later = (later_bytes - halfway[1]) / left if left >= steps / 4 else whole
        return max(min(whole, later), 0.0)

    def _holding(self, file: str, name: str, value: object) -> _Holding | None:
        kind = type(value)
        if kind in _SEQUENCES or kind in _MAPPINGS:
            tensor = self._tensor_in(_last_of(value))
            if tensor is None:
                return None
            return _Holding(name, file, _length_of(value), id(value), self._has_graph(tensor))
        if self._is_plain(value) and self._has_graph(value):
            length = _additions(value)
            return _Holding(name, file, length, 0, has_graph=True, is_sum=True) if length else None
        return None

    def _tensor_in(self, value: object) -> Any:
        """Returns the tensor that an entry is, or that it holds.

        Null where it holds none.
        """
        if self._tensor is None:
            return None
        if self._tensor in type(value).__mro__:
            return value
        parts: Any = ()
        if type(value) in (tuple, list):
            parts = value
        elif type(value) in _MAPPINGS:
            parts = list(dict.values(value))  # type: ignore[arg-type]
        return next((part for part in parts[-_MOST_PARTS:] if self._tensor in type(part).__mro__), None)

    def _is_plain(self, value: object) -> bool:
        """True for a tensor of torch's own class.

        Others may run code of the program when they are read.
        """
        return type(value) is self._tensor

    def _has_graph(self, tensor: Any) -> bool:
        return self._is_plain(tensor) and bool(tensor.requires_grad) and not tensor.is_leaf


def growth_between(
    before: MemoryLook, after: MemoryLook, steps: int, torch: Any, left: Callable[[], int | None] = available_bytes
) -> MemoryGrowth | None:
    """Returns the growth per step of memory.

    And the variables that hold more tensors; null where too few steps lie between.
    """
    if steps < _LEAST_STEPS:
        return None
    host = before.host_growth(after.host_bytes, steps)
    on_device = before.device_bytes is not None and after.device_bytes is not None
    device = max((after.device_bytes or 0) - (before.device_bytes or 0), 0) / steps if on_device else None
    return MemoryGrowth(
        steps=steps,
        host_bytes=host if math.isfinite(host) else None,
        device_bytes=device,
        left_bytes=left(),
        device_left_bytes=int(torch.cuda.mem_get_info()[0]) if on_device else None,
        keepers=tuple(_keepers(before.holdings, after.holdings, steps)),
    )


def _keepers(
    before: Mapping[tuple[str, str], _Holding], after: Mapping[tuple[str, str], _Holding], steps: int
) -> Iterator[Keeper]:
    grown = []
    for key, now in after.items():
        then = before.get(key)
        is_same = then is not None and then.identity == now.identity and then.is_sum == now.is_sum
        per_step = (now.length - then.length) / steps if then is not None and is_same else 0.0
        if per_step >= _LEAST_PER_STEP:
            grown.append((now, per_step))
    # One list has several names where it is passed on: the innermost frame comes first.
    seen: set[int] = set()
    grown.sort(key=lambda row: not row[0].has_graph)
    for now, per_step in grown:
        if now.identity in seen and not now.is_sum:
            continue
        seen.add(now.identity)
        yield Keeper(now.name, line_that_adds(now.file, now.name), per_step, now.has_graph, now.is_sum)
        if len(seen) >= _MOST_KEEPERS:
            return


def variables_of(frame: FrameType | None, step: object) -> Iterator[tuple[str, str, object]]:
    """Yields file, name and value of the program's variables.

    They are of its frames, its main module and the step that is repeated.
    """
    scopes: list[tuple[str, Mapping[str, object]]] = []
    if type(step) is FunctionType:
        scopes += [(step.__code__.co_filename, _closure_of(step)), (step.__code__.co_filename, step.__globals__)]
    depth = 0
    while frame is not None and depth < _MOST_FRAMES:
        if is_own_file(frame.f_code.co_filename):
            scopes.append((frame.f_code.co_filename, locals_of(frame)))
            depth += 1
        frame = frame.f_back
    main = sys.modules.get("__main__")
    file = vars(main).get("__file__") if type(main) is ModuleType else None
    if isinstance(file, str) and not any(scope is vars(main) for _, scope in scopes):
        scopes.append((file, vars(main)))
    for file, scope in scopes:
        for name, value in list(scope.items())[:_MOST_VARIABLES]:
            if type(name) is str and not name.startswith("__"):
                yield file, name, value
                if name == "self":
                    yield from ((file, f"self.{key}", field) for key, field in fields_of(value))


def locals_of(frame: FrameType) -> Mapping[str, object]:
    """Returns the variables of a frame.

    Until Python 3.12 a function keeps the snapshot, and all in it alive: it is emptied.
    """
    if not frame.f_code.co_flags & _OPTIMIZED or sys.version_info >= (3, 13):
        return frame.f_locals
    if sys.gettrace() is not None:  # a debugger may write the snapshot back
        return {}
    snapshot = frame.f_locals
    variables = dict(snapshot)
    snapshot.clear()
    return variables


def _closure_of(function: FunctionType) -> Mapping[str, object]:
    variables: dict[str, object] = {}
    code: CodeType = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            variables[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return variables


def fields_of(instance: object) -> Iterator[tuple[str, object]]:
    """Yields the attributes that an object holds itself.

    None where reading them might run code of the program.
    """
    kind = type(instance)
    if kind.__getattribute__ is not object.__getattribute__:
        return
    slot = next((vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base)), None)
    if type(slot) is GetSetDescriptorType:
        for name, value in list(object.__getattribute__(instance, "__dict__").items())[:_MOST_VARIABLES]:
            if type(name) is str:
                yield name, value


def _length_of(container: Any) -> int:
    """Counts the entries of a container of an exact built-in type.

    Those of lists that are its values count too.
    """
    inner = list(dict.values(container))[:_MOST_INNER] if type(container) in _MAPPINGS else []
    return len(container) + sum(len(entry) for entry in inner if type(entry) in _SEQUENCES)


def _last_of(container: Any) -> object:
    """The newest entry, null for an empty one."""
    if not len(container):
        return None
    return next(reversed(dict.values(container))) if type(container) in _MAPPINGS else container[-1]


def _additions(tensor: Any) -> int:
    """Counts the additions in a row that made this tensor.

    Up to a bound.
    """
    node, count = tensor.grad_fn, 0
    while node is not None and count < _LONGEST_CHAIN and type(node).__name__ == "AddBackward0":
        following = [entry[0] for entry in node.next_functions if entry[0] is not None]
        node = next((entry for entry in following if type(entry).__name__ == "AddBackward0"), None)
        count += 1
    return count


def line_that_adds(file: str, name: str) -> str | None:
    """Finds the first line of a file, 'eval.py:16', that adds to a variable.

    Null where none is found. The text of the file is parsed, never run.
    """
    return first_line(lambda node: _adds_to(node, name), file)


def _adds_to(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDING:
        return _is_called(node.func.value, name)
    if isinstance(node, ast.AugAssign):
        target = node.target
        return _is_called(target.value if isinstance(target, ast.Subscript) else target, name)
    if isinstance(node, ast.Assign):
        places = [target.value for target in node.targets if isinstance(target, ast.Subscript)]
        is_sum = any(_is_called(target, name) for target in node.targets) and _adds(node.value, name)
        return is_sum or any(_is_called(place, name) for place in places)
    return False


def _adds(value: ast.expr, name: str) -> bool:
    """True for `name + x` and `x + name`."""
    return isinstance(value, ast.BinOp) and any(_is_called(side, name) for side in (value.left, value.right))


def _is_called(node: ast.expr, name: str) -> bool:
    """True for the variable, 'losses', or the attribute of one, 'self.losses'."""
    owner, _, attribute = name.rpartition(".")
    if isinstance(node, ast.Subscript):  # history["loss"].append(loss)
        return _is_called(node.value, name)
    if isinstance(node, ast.Attribute):
        return node.attr == attribute and isinstance(node.value, ast.Name) and node.value.id == owner
    return isinstance(node, ast.Name) and not owner and node.id == name
