"""Finds what a step can reach - closures, defaults, bound objects, containers - without running any of its code."""

import dis
import gc
import itertools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

# Far more than a step names; a walk that meets more than this has gone astray in somebody's data.
OBJECTS_AT_MOST, ITEMS_AT_MOST, DEPTH_AT_MOST = 20_000, 256, 8

_FUNCTIONS = (types.FunctionType, types.MethodType, partial)
# Iterators written in C tell nothing of what they go through but to the garbage collector.
_ITERATORS: tuple[type, ...] = (
    itertools.cycle,
    itertools.chain,
    itertools.islice,
    enumerate,
    zip,
    map,
    filter,
    type(iter([])),
)
# Of their subclasses nobody knows what an access runs.
_CONTAINERS = (dict, OrderedDict, defaultdict, list, deque, set, frozenset)
_PARTS = ("_modules", "_parameters", "_buffers")
_ATOMS = (int, float, complex, str, bytes, bytearray, type(None), type, types.ModuleType, types.BuiltinFunctionType)


@dataclass(frozen=True)
class Place:
    """Where an object was found: ``get`` gives what is there now, ``set`` puts another in its stead.

    ``set`` is null where that cannot be done: in the frame of a generator, or within an iterator written in C.
    """

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], None] | None = None


@dataclass
class Reached:
    """What a walk met: each object that was wanted with the places where it lies, and the code that it passed."""

    things: dict[int, tuple[Any, list[Place]]] = field(default_factory=dict)
    codes: list[types.CodeType] = field(default_factory=list)

    def of(self, kind: type) -> tuple[Any, ...]:
        """The objects of this type, in the order in which they were met."""
        return tuple(thing for thing, _ in self.things.values() if issubclass(type(thing), kind))


@dataclass(frozen=True)
class Walk:
    """A walk in breadth from a step: ``wanted`` are the types to be reported, into which it does not go.

    Of ``own`` (the globals of the program's file) those count that its code names. What lies in a wanted object beside
    its parts, such as the optimizer that a module carries, is found as well.
    """

    wanted: tuple[type, ...]
    own: dict[str, Any]

    def run(self, step: Callable[[], Any]) -> Reached:
        """Everything wanted that the step reaches, within bounds."""
        reached, seen, keep = Reached(), set[int](), []
        waiting = deque([(0, Place("step", lambda: step))])
        while waiting and len(seen) < OBJECTS_AT_MOST:
            depth, place = waiting.popleft()
            thing = place.get()
            if issubclass(type(thing), _ATOMS):
                continue
            if issubclass(type(thing), self.wanted):
                reached.things.setdefault(id(thing), (thing, []))[1].append(place)
            if id(thing) in seen or depth > DEPTH_AT_MOST:
                continue
            seen.add(id(thing))
            keep.append(thing)  # an object made on the way must not leave its id to another
            waiting.extend((depth + 1, inner) for inner in self._inside(thing, place, reached))
        return reached

    def _inside(self, thing: Any, place: Place, reached: Reached) -> Iterator[Place]:
        if issubclass(type(thing), _FUNCTIONS):
            yield from self._in_callable(thing, place, reached)
        elif type(thing) in _CONTAINERS or issubclass(type(thing), tuple):
            yield from _in_container(thing, place)
        elif type(thing) is types.GeneratorType:
            yield from self._in_generator(thing, reached)
        elif type(thing) in _ITERATORS:
            yield from (_fixed(place.name, item) for item in gc.get_referents(thing)[:ITEMS_AT_MOST])
        else:
            yield from self._in_object(thing)

    def _in_callable(self, thing: Any, place: Place, reached: Reached) -> Iterator[Place]:
        if isinstance(thing, types.MethodType):
            yield _bound(thing, place)
            yield _fixed(place.name, thing.__func__)
            reached.codes += _methods_called(thing.__func__, type(thing.__self__))
        elif isinstance(thing, partial):
            yield _fixed(place.name, thing.func)
            yield from (_argument(thing, index) for index in range(len(thing.args[:ITEMS_AT_MOST])))
            yield from _in_mapping(thing.keywords)
        else:
            yield from self._in_function(thing, reached)

    def _in_function(self, function: types.FunctionType, reached: Reached) -> Iterator[Place]:
        yield from _in_mapping(function.__dict__)
        if _is_of_torch(function.__globals__):
            return
        code = function.__code__
        reached.codes.append(code)
        yield from _in_cells(code.co_freevars, function.__closure__ or ())
        yield from (_default(function, index) for index in range(len(function.__defaults__ or ())))
        yield from _in_mapping(function.__kwdefaults__ or {})
        if function.__globals__ is self.own:
            yield from (_item(self.own, name) for name in _names(code) if name in self.own)

    def _in_generator(self, generator: Any, reached: Reached) -> Iterator[Place]:
        reached.codes.append(generator.gi_code)
        if generator.gi_frame is not None:
            yield from (_fixed(name, thing) for name, thing in generator.gi_frame.f_locals.items())
        if generator.gi_frame is not None and generator.gi_frame.f_globals is self.own:
            yield from (_item(self.own, name) for name in _names(generator.gi_code) if name in self.own)

    def _in_object(self, thing: Any) -> Iterator[Place]:
        """What lies in its attributes; of a module only what is beside its submodules, parameters and buffers."""
        attributes = _attributes(thing)
        if issubclass(type(thing), self.wanted) and "_parameters" not in attributes:
            return
        yield from (_item(attributes, name) for name in list(attributes) if name not in _PARTS)
        if _is_of_torch({"__name__": type(thing).__module__}):
            return
        call = next((base.__dict__["__call__"] for base in type(thing).__mro__ if "__call__" in base.__dict__), None)
        if type(call) is types.FunctionType and not _is_of_torch(call.__globals__):
            yield _fixed("__call__", types.MethodType(call, thing))
        yield from _in_slots(thing)


def code_of(codes: list[types.CodeType]) -> Iterator[types.CodeType]:
    """These code objects and those of the functions that they define."""
    waiting = list(codes)
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def instructions_of(codes: list[types.CodeType]) -> Iterator[list[dis.Instruction]]:
    """The instructions of each code object, those of inner functions included."""
    return (list(dis.get_instructions(code)) for code in code_of(codes))


def _names(code: types.CodeType) -> list[str]:
    return list(dict.fromkeys(name for inner in code_of([code]) for name in inner.co_names))


def _methods_called(function: Any, kind: type) -> list[types.CodeType]:
    """The code of the methods of this class that a method of it names, and those that they name in turn."""
    methods = {
        name: value
        for base in reversed(kind.__mro__)
        for name, value in base.__dict__.items()
        if isinstance(value, types.FunctionType) and not _is_of_torch(value.__globals__)
    }
    waiting = [function] if isinstance(function, types.FunctionType) else []
    met: dict[int, types.CodeType] = {}
    while waiting:
        code = waiting.pop().__code__
        if id(code) not in met:
            met[id(code)] = code
            waiting += [methods[name] for name in _names(code) if name in methods]
    return list(met.values())


def _attributes(thing: Any) -> dict[str, Any]:
    try:
        attributes = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


def _is_of_torch(names: dict[str, Any]) -> bool:
    return str(names.get("__name__", "")).partition(".")[0] in {"torch", "torchvision", "functorch"}


def _fixed(name: str, thing: Any) -> Place:
    return Place(name, lambda: thing)


def _item(items: Any, key: Any) -> Place:
    return Place(str(key), lambda: items[key], partial(items.__setitem__, key))


def _in_mapping(items: dict[Any, Any]) -> Iterator[Place]:
    """By key where that is a text or a number: to look up another runs its code."""
    for key, value in itertools.islice(items.items(), ITEMS_AT_MOST):
        yield _item(items, key) if type(key) in (str, int) else _fixed("item", value)


def _in_container(thing: Any, place: Place) -> Iterator[Place]:
    if isinstance(thing, dict):
        return _in_mapping(thing)
    if isinstance(thing, set | frozenset):
        return (_fixed(place.name, item) for item in itertools.islice(thing, ITEMS_AT_MOST))
    if isinstance(thing, tuple):
        return (_member(place, index) for index in range(min(len(thing), ITEMS_AT_MOST)))
    return (_item(thing, index) for index in range(min(len(thing), ITEMS_AT_MOST)))


def _in_cells(names: tuple[str, ...], cells: tuple[types.CellType, ...]) -> Iterator[Place]:
    for name, cell in zip(names, cells, strict=False):
        try:
            _ = cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue
        yield Place(name, partial(getattr, cell, "cell_contents"), partial(setattr, cell, "cell_contents"))


def _in_slots(thing: Any) -> Iterator[Place]:
    for base in type(thing).__mro__:
        for name, slot in base.__dict__.items():
            if isinstance(slot, types.MemberDescriptorType) and not name.startswith("__"):
                try:
                    _ = slot.__get__(thing)
                except (AttributeError, TypeError):
                    continue
                yield Place(name, partial(slot.__get__, thing), partial(slot.__set__, thing))


def _member(place: Place, index: int) -> Place:
    """An item of a tuple: another tuple takes its place where one of them changes."""
    put = place.set
    if put is None:
        return Place(f"{place.name}[{index}]", lambda: place.get()[index])

    def replace(value: Any) -> None:
        items = place.get()
        put(tuple.__new__(type(items), [*items[:index], value, *items[index + 1 :]]))

    return Place(f"{place.name}[{index}]", lambda: place.get()[index], replace)


def _bound(method: types.MethodType, place: Place) -> Place:
    """The object of a bound method: the method of the same name of another object takes its place."""
    put = place.set
    if put is None:
        return _fixed(place.name, method.__self__)
    name = method.__func__.__name__
    return Place(place.name, lambda: place.get().__self__, lambda value: put(getattr(value, name)))


def _argument(function: Any, index: int) -> Place:
    def replace(value: Any) -> None:
        arguments = (*function.args[:index], value, *function.args[index + 1 :])
        function.__setstate__((function.func, arguments, function.keywords, function.__dict__))

    return Place(f"argument {index}", lambda: function.args[index], replace)


def _default(function: types.FunctionType, index: int) -> Place:
    def replace(value: Any) -> None:
        defaults = function.__defaults__ or ()
        function.__defaults__ = (*defaults[:index], value, *defaults[index + 1 :])

    return Place(f"default {index}", lambda: (function.__defaults__ or ())[index], replace)
