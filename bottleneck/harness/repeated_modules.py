"""Finds modules and lines with the same result in two steps, or in one.

Neither step is measured. A finding in two steps needs other calls that had new inputs.

Of each call the inputs and the output are kept in short: their sizes, and a sample of their numbers. Nothing of the
program is called or changed, and a bound on the time ends the look.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from bottleneck.harness.carried_rounds import CallPlace, CarriedRounds
from bottleneck.harness.lines import is_own_file
from bottleneck.harness.machine import is_on_gpu
from bottleneck.harness.torch_private import (
    count_modes,
    current_node,
    function_modes,
    innermost_function_mode,
    is_transformed,
    may_trace_hooks,
    version_of,
    without_functions,
)
from bottleneck.schema.measurements import RepeatedModule

# Processor time of the look, over both steps; calls of modules that are kept of one.
_MOST_SECONDS, _MOST_CALLS = 0.3, 2000
# Numbers that are kept of one tensor, tensors of one call, and levels of lists and dicts that are looked into.
_MOST_NUMBERS, _MOST_TENSORS, _DEEPEST = 1024, 16, 3
_MOST_FRAMES, _MOST_FOUND, _MOST_LINES = 60, 8, 40
# First numbers of a tensor that are kept to tell whether another one is its first rows.
_FIRST_NUMBERS, _ROUNDED = 256, 1e-4
# Calls of a module with other inputs, which later ones are compared with.
_MOST_DIFFERENT = 8
# Rounds of a loop in which a line gives the same.
_LEAST_ROUNDS = 4
_OURS = os.path.dirname(__file__)  # noqa: PTH120 - as plain text
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class _TensorSample:
    """A tensor in short: type, sizes, and evenly spaced numbers of it.

    ``first`` are its first numbers, ``place`` is its address and how often it was written to.
    """

    kind: str
    sizes: tuple[int, ...]
    numbers: Any
    first: Any
    place: tuple[int, int]

    def is_like(self, other: object) -> bool:
        """True for the same numbers, as far as they were kept."""
        if not isinstance(other, _TensorSample) or (self.kind, self.sizes) != (other.kind, other.sizes):
            return False
        return bool(self.numbers.equal(other.numbers))

    def begins(self, other: object) -> bool:
        """True for the first rows of another tensor, or all of them."""
        if not isinstance(other, _TensorSample) or self.sizes == other.sizes:
            return self.is_like(other)
        same = (self.kind, self.sizes[1:]) == (other.kind, other.sizes[1:]) and self.sizes[:1] < other.sizes[:1]
        # A product of fewer rows may be rounded in another order.
        return same and bool(self.first.allclose(other.first[: self.first.numel()], rtol=_ROUNDED, atol=_ROUNDED))

    def is_place_of(self, other: "_TensorSample") -> bool:
        """True if both are the same memory, which nothing wrote to in between."""
        return self.place == other.place


# What a call was given, or gave: samples of tensors, and plain values as they are.
_Values = tuple[object, ...]
# A module by its address, and which call of it in its step.
_Key = tuple[int, int]
# A line, and which call of torch from it in its step.
_Place = tuple[str, int]


@dataclass(frozen=True)
class _SeenCall:
    """The call of a module or of torch in a step.

    Holds the calls around it, its name in a trace, its line, its inputs and its output.
    """

    around: tuple[_Key, ...]
    label: str
    line: str | None
    given: _Values
    gave: _Values
    in_backward: bool = False

    def repeats(self, other: "_SeenCall") -> bool:
        """True if it was given the same as another call and gave the same.

        The first rows of the same memory count as the same.
        """
        samples = [(a, b) for a, b in zip(self.given, other.given, strict=False) if isinstance(a, _TensorSample)]
        if _are_alike(self.given, other.given):
            return _are_alike(self.gave, other.gave)
        is_part = all(isinstance(b, _TensorSample) and a.is_place_of(b) for a, b in samples)
        return is_part and _begin(self.given, other.given) and _begin(self.gave, other.gave)

    def gives_tensors(self) -> bool:
        """True if the output holds a tensor."""
        return any(isinstance(value, _TensorSample) for value in self.gave)


@dataclass(frozen=True)
class Repeats:
    """The modules and lines that gave the same in both steps.

    A line counts where all its calls of torch did. ``in_step`` are modules with calls in one step that repeat an
    earlier one, ``lines_in_step`` the rounds of a loop in each of which a line gave the same. Each round
    of a line of ``carried`` needs the one before.
    """

    modules: tuple[RepeatedModule, ...] = ()
    lines: tuple[str, ...] = ()
    in_step: tuple[RepeatedModule, ...] = ()
    lines_in_step: Mapping[str, int] = field(default_factory=dict)
    carried: tuple[str, ...] = ()


def _watching(torch: Any, note: Callable[[Any, Any, Any], None]) -> Any:
    """Makes a mode that notes each torch call and its output.

    Inside of it, calls go on as they are.
    """

    class Watch(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            output = function(*args, **(kwargs or {}))
            note(function, (args, kwargs or {}), output)
            return output

    return Watch()


class RepeatLook:
    """Looks at the calls of modules in two steps from ``start`` on.

    Each step is ended by ``end_step``.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock, self._left_s = clock, _MOST_SECONDS
        self._torch: Any = None
        self._removals: list[Any] = []
        self._before: dict[_Key, _SeenCall] | None = None
        self._now: dict[_Key, _SeenCall] = {}
        self._open: list[_Key] = []
        self._made: Counter[int] = Counter()
        self._labels: dict[int, str] = {}
        self._counts: Counter[str] = Counter()
        self._own: dict[str, bool] = {}
        self._mode: Any = None
        self._at_lines: dict[_Place, _SeenCall] = {}
        self._at_lines_before: dict[_Place, _SeenCall] = {}
        self._at_line: Counter[str] = Counter()
        self._is_library: dict[int, bool] = {}
        self._carried, self._carried_before = CarriedRounds(), tuple[str, ...]()
        self._is_cut = False
        # Addresses name modules only while these live.
        self._kept: list[Any] = []
        self._is_done = False

    @property
    def is_on(self) -> bool:
        """True from ``start`` to the end of the second step."""
        return bool(self._removals)

    def start(self, torch: Any) -> None:
        """Starts the look.

        Does nothing where a device would be waited for, or torch.compile would trace the hooks.
        """
        if torch is None or may_trace_hooks() or is_on_gpu(torch) or self._removals or self._is_done:
            return
        self._torch = torch
        module = torch.nn.modules.module
        # Older versions of torch know no inputs by name here: then nothing is looked at.
        self._removals.append(module.register_module_forward_hook(self._after_call, with_kwargs=True))
        self._removals.append(module.register_module_forward_pre_hook(self._before_call))
        # On top of a mode of the program it would not be the one that is taken off first.
        if function_modes() == 0:
            self._mode = _watching(torch, self._note_call)
            self._mode.__enter__()

    def release(self) -> None:
        """Takes off the watch of calls of torch once it is over.

        Waits while a mode of the program is open inside it.
        """
        if self._mode is not None and self._is_done and innermost_function_mode() is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def end_step(self, *, is_last: bool = False) -> Repeats | None:
        """Ends a step and gives what was the same in both.

        Null after the first step.
        """
        before, now = self._before, self._now
        if before is None and not is_last and self._left_s > 0:
            self._before, self._now = now, {}
            self._at_lines_before, self._at_lines = self._at_lines, {}
            carried, self._carried = self._carried, CarriedRounds()
            self._carried_before = carried.lines()
            for calls in (self._open, self._made, self._at_line):
                calls.clear()
            return None
        for removal in self._removals:
            removal.remove()
        is_whole = before is not None and self._left_s > 0
        repeats = Repeats(
            tuple(_repeated(before, now)) if before is not None and is_whole else (),
            tuple(_repeated_lines(self._at_lines_before, self._at_lines)) if is_whole and not self._is_cut else (),
            tuple(_same_in_step(now)) if is_whole else (),
            _lines_same_in_step(self._at_lines) if is_whole and not self._is_cut else {},
            tuple(dict.fromkeys((*self._carried_before, *self._carried.lines()))),
        )
        self._removals, self._before, self._now, self._kept, self._is_done = [], None, {}, [], True
        self._at_lines, self._at_lines_before, self._carried = {}, {}, CarriedRounds()
        self.release()
        return repeats

    def _before_call(self, module: Any, _arguments: Any) -> None:
        if self._left_s <= 0 or not self._is_usual():
            return
        if id(module) not in self._labels:
            kind = type(module).__name__
            self._labels[id(module)] = f"{kind}_{self._counts[kind]}"
            self._is_library[id(module)] = _is_of_library(module)
            self._counts[kind] += 1
            self._kept.append(module)
        self._open.append((id(module), self._made[id(module)]))
        self._made[id(module)] += 1

    def _after_call(self, module: Any, arguments: Any, keywords: Any, output: Any) -> None:
        at = next((at for at in reversed(range(len(self._open))) if self._open[at][0] == id(module)), None)
        if at is None:
            return
        key, around = self._open[at], tuple(self._open[:at])
        del self._open[at:]
        if self._left_s <= 0 or len(self._now) >= _MOST_CALLS or not self._is_usual():
            return
        began = self._clock()
        try:
            with without_functions(self._torch):
                given, gave = tuple(self._values_in((arguments, keywords))), tuple(self._values_in(output))
            line, in_backward = self._line(sys._getframe(1)), current_node() is not None
            self._now[key] = _SeenCall(around, self._labels[key[0]], line, given, gave, in_backward)
        except Exception:  # ours, in the middle of the program's own call
            return
        finally:
            self._left_s -= self._clock() - began

    def _note_call(self, function: Any, given: Any, output: Any) -> None:
        """Keeps a call of torch from a line of the program.

        Those that read or set an attribute make nothing.
        """
        name = getattr(function, "__name__", "")
        if self._left_s <= 0 or self._is_done or not self._is_usual():
            return
        began = self._clock()
        try:
            made = self._tensors_in(given[0][:1] if name == "__setitem__" else output)
            if name in {"__get__", "__set__"}:
                self._carried.pass_on(self._tensors_in(given), made)
                return
            frame = self._own_frame(sys._getframe(2), ours=True)
            if frame is None:
                return
            line = _place_in(frame)
            at = CallPlace(id(frame), frame.f_lasti, self._library_call())
            self._carried.note(name, line, at, self._tensors_in(given), made)
            if self._is_cut:
                return
            self._is_cut = len(self._at_lines) >= _MOST_CALLS
            place = (line, self._at_line[line])
            self._at_line[line] += 1
            # An assignment to a part of a tensor gives that tensor.
            samples = tuple(self._values_in(given[0][:1] if name == "__setitem__" else output))
            self._at_lines[place] = _SeenCall((), name, line, tuple(self._values_in(given)), samples)
        except Exception:  # ours, in the middle of the program's own call
            return
        finally:
            self._left_s -= self._clock() - began

    def _library_call(self) -> _Key | None:
        """Gives the open call of a library's module, if there is one."""
        call = None
        for key in reversed(self._open):
            if not self._is_library.get(key[0], False):
                break
            call = key
        return call

    def _is_usual(self) -> bool:
        """Tells whether torch itself answers ops.

        It does not where a program traces or maps its model.
        """
        return count_modes() == 0 and is_transformed() is False

    def _values_in(self, value: object, depth: int = 0) -> Iterator[object]:
        torch, kind = self._torch, type(value)
        if kind in (torch.Tensor, torch.nn.Parameter):
            yield self._sample(value)
        elif kind in _PLAIN:
            yield value
        elif isinstance(value, list | tuple) and depth < _DEEPEST:
            for item in tuple(value)[:_MOST_TENSORS]:
                yield from self._values_in(item, depth + 1)
        elif isinstance(value, dict) and depth < _DEEPEST:
            for name, item in list(dict.items(value))[:_MOST_TENSORS]:
                yield name if type(name) is str else kind.__name__
                yield from self._values_in(item, depth + 1)
        else:
            yield kind.__name__

    def _tensors_in(self, value: object, depth: int = 0) -> Iterator[Any]:
        if isinstance(value, self._torch.Tensor):
            yield value
        elif isinstance(value, list | tuple | dict) and depth < _DEEPEST:
            for item in tuple(dict.values(value) if isinstance(value, dict) else value)[:_MOST_TENSORS]:
                yield from self._tensors_in(item, depth + 1)

    def _sample(self, tensor: Any) -> object:
        if tensor.layout is not self._torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            return object()  # like no other
        with self._torch.no_grad():
            # An odd distance, so that not all numbers are of one column.
            numbers = self._some_numbers(tensor, tensor.numel(), max(1, tensor.numel() // _MOST_NUMBERS) | 1)
            first = self._some_numbers(tensor, min(tensor.numel(), _FIRST_NUMBERS), 1)
        place = (int(tensor.data_ptr()), version_of(tensor))
        return _TensorSample(str(tensor.dtype), tuple(int(size) for size in tensor.shape), numbers, first, place)

    def _some_numbers(self, tensor: Any, end: int, distance: int) -> Any:
        """Copies numbers at equal distances, in the order of rows.

        No copy is made of the whole tensor.
        """
        torch, tensor = self._torch, tensor.detach()
        if tensor.is_contiguous():
            return tensor.reshape(-1)[:end:distance].clone()
        at, places = torch.arange(0, end, distance), list[Any]()
        for size in reversed(tensor.shape):
            places.append(at % size)
            at = at // size
        return tensor[tuple(reversed(places))]

    def _line(self, frame: FrameType | None) -> str | None:
        """Gives the innermost line of the program's own files."""
        own = self._own_frame(frame)
        return None if own is None else _place_in(own)

    def _own_frame(self, frame: FrameType | None, *, ours: bool = False) -> FrameType | None:
        """Gives the innermost frame of the program's own files.

        With ``ours``, null where a hook of ours calls torch.
        """
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            file = frame.f_code.co_filename
            if ours and file.startswith(_OURS):
                return None
            if file not in self._own:
                self._own[file] = is_own_file(file)
            if self._own[file]:
                return frame
            frame = frame.f_back
        return None


def _is_of_library(module: Any) -> bool:
    """True unless a module's class is the program's own.

    Classes of scripted modules may raise where they are asked for what they lack.
    """
    try:
        return not is_own_file(type(module).forward.__code__.co_filename)
    except Exception:  # ours, in the middle of the program's own call
        return True


def _place_in(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119 - as plain text


def _repeated(before: dict[_Key, _SeenCall], now: dict[_Key, _SeenCall]) -> list[RepeatedModule]:
    """Finds the outermost modules whose calls gave the same in both steps.

    Empty unless a call outside of them was given other inputs.
    """
    both = {key: (before[key], call) for key, call in now.items() if key in before}
    same = {
        key
        for key, (one, other) in both.items()
        if other.gives_tensors() and _are_alike(one.given, other.given) and _are_alike(one.gave, other.gave)
    }
    outer = [key for key in same if not same & {*now[key].around}]
    is_varied = any(
        not _are_alike(one.given, other.given) for key, (one, other) in both.items() if not same & {*other.around}
    )
    if not is_varied:
        return []
    modules: list[RepeatedModule] = []
    for number in dict.fromkeys(key[0] for key in now if key in outer):
        mine = sorted(key[1] for key in outer if key[0] == number)
        call = now[number, mine[0]]
        calls = sum(key[0] == number for key in now)
        modules.append(RepeatedModule(call.label, call.line, calls, () if len(mine) == calls else tuple(mine)))
    return modules[:_MOST_FOUND]


def _repeated_lines(before: dict[_Place, _SeenCall], now: dict[_Place, _SeenCall]) -> list[str]:
    """Finds the lines whose calls gave the same tensors in both steps.

    Such a call also reads a tensor.

    Empty unless calls at other lines were given new inputs.
    """
    is_varied, changed, read = False, set[str](), Counter[str]()
    for (line, number), call in {**before, **now}.items():
        one, other = before.get((line, number)), now.get((line, number))
        if one is None or other is None or one.label != other.label:
            changed.add(line)
        elif not _are_alike(one.given, other.given):
            is_varied = True
            changed.add(line)
        elif not _are_alike(one.gave, other.gave):
            changed.add(line)
        read[line] += any(isinstance(value, _TensorSample) for value in call.given) and call.gives_tensors()
    lines = dict.fromkeys(line for line, _ in now if line not in changed and read[line])
    return list(lines)[:_MOST_LINES] if is_varied else []


def _same_in_step(now: dict[_Key, _SeenCall]) -> list[RepeatedModule]:
    """Finds modules with calls in one step that repeat an earlier one."""
    calls_of: dict[int, list[tuple[int, _SeenCall]]] = {}
    for (number, at), call in now.items():
        if not call.in_backward and call.gives_tensors():
            calls_of.setdefault(number, []).append((at, call))
    again = {number: repeats for number, calls in calls_of.items() if (repeats := _repeats_among(calls))}
    outer = [
        number for number in again if not any(key[0] in again for _, call in calls_of[number] for key in call.around)
    ]
    modules = []
    for number in outer[:_MOST_FOUND]:
        calls = calls_of[number]
        label, last = calls[0][1].label, dict(calls)[again[number][-1]]
        is_all = len(again[number]) == len(calls) - 1
        modules.append(RepeatedModule(label, last.line, len(calls), () if is_all else again[number]))
    return modules


def _repeats_among(calls: list[tuple[int, _SeenCall]]) -> tuple[int, ...]:
    """The numbers of the calls that repeat an earlier one."""
    firsts, again = list[_SeenCall](), list[int]()
    for at, call in calls:
        if any(call.repeats(one) for one in firsts):
            again.append(at)
        elif len(firsts) < _MOST_DIFFERENT:
            firsts.append(call)
    return tuple(again)


def _lines_same_in_step(at_lines: dict[_Place, _SeenCall]) -> dict[str, int]:
    """Counts the rounds of loops in which a line gives the same.

    Such a line reads tensors.
    """
    calls_of: dict[str, list[_SeenCall]] = {}
    for (line, _), call in at_lines.items():
        calls_of.setdefault(line, []).append(call)
    rounds = {line: _rounds(calls) for line, calls in list(calls_of.items())}
    return dict([(line, count) for line, count in rounds.items() if count][:_MOST_LINES])


def _rounds(calls: list[_SeenCall]) -> int:
    """Counts the rounds of a line that give the same, else 0."""
    first = calls[0]
    again = (at for at, call in enumerate(calls) if at and call.label == first.label and call.repeats(first))
    round_of = next(again, 0)
    if not round_of or len(calls) % round_of or len(calls) < _LEAST_ROUNDS * round_of:
        return 0
    # What is written in place is new in each round, though it may look the same, as zeros do.
    writes = any(call.label.endswith("_") and not call.label.startswith("__") for call in calls[:round_of])
    reads = all(_share_memory(call, first) for call in calls[::round_of])
    same = all(
        call.label == (earlier := calls[at % round_of]).label and call.repeats(earlier) for at, call in enumerate(calls)
    )
    tells = not writes and reads and same and any(call.gives_tensors() for call in calls[:round_of])
    return len(calls) // round_of if tells else 0


def _share_memory(one: _SeenCall, other: _SeenCall) -> bool:
    """Tells whether two calls read a tensor that is the same memory."""
    pairs = zip(one.given, other.given, strict=False)
    return any(isinstance(a, _TensorSample) and isinstance(b, _TensorSample) and a.is_place_of(b) for a, b in pairs)


def _begin(part: _Values, whole: _Values) -> bool:
    """Tells whether tensors are the first rows of others."""
    return len(part) == len(whole) and all(
        a.begins(b) if isinstance(a, _TensorSample) else type(a) is type(b) and a == b
        for a, b in zip(part, whole, strict=True)
    )


def _are_alike(one: _Values, other: _Values) -> bool:
    return len(one) == len(other) and all(
        a.is_like(b) if isinstance(a, _TensorSample) else type(a) is type(b) and a == b
        for a, b in zip(one, other, strict=True)
    )
