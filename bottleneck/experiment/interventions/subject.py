"""Parts of a step that it can reach, and changes to it.

The parts are modules, optimizers, loaders and tensors.
"""

import gc
import importlib
import inspect
import itertools
import json
import random
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType, ModuleType
from typing import Any, Literal

from bottleneck.harness import forms, program
from bottleneck.harness.process_setup import sow
from bottleneck.harness.stopwatch import Step
from bottleneck.harness.torch_private import dataset_of, loader_iterator
from bottleneck.schema.measurements import TrialVerdict

# Far more than a step names; a walk that meets more than this has gone astray in somebody's data.
OBJECTS_AT_MOST, ITEMS_AT_MOST, DEPTH_AT_MOST = 20_000, 256, 8

_FUNCTIONS = (types.FunctionType, types.MethodType, partial)
# Iterators written in C reveal what they iterate over only to the garbage collector.
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
class Location:
    """A reference to an object: ``get`` gives the object there now, ``set`` replaces it.

    ``set`` is null where that cannot be done: in the frame of a generator, or within an iterator written in C.
    """

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], None] | None = None


@dataclass
class Reached:
    """Result of a walk: the wanted objects and the code passed.

    Each object comes with the references to it.
    """

    things: dict[int, tuple[Any, list[Location]]] = field(default_factory=dict)
    codes: list[types.CodeType] = field(default_factory=list)

    def of(self, kind: type) -> tuple[Any, ...]:
        """The objects of this type, in the order in which they were met."""
        return tuple(thing for thing, _ in self.things.values() if issubclass(type(thing), kind))


@dataclass(frozen=True)
class Walk:
    """Walk in breadth from a step.

    ``wanted`` are the types to be reported, into which it does not go.

    Of ``own`` (the globals of the program's file) those count that its code names. What lies in a wanted object beside
    its parts, such as the optimizer that a module carries, is found as well.
    """

    wanted: tuple[type, ...]
    own: dict[str, Any]

    def run(self, step: Step) -> Reached:
        """Everything wanted that the step reaches, within bounds."""
        reached, seen, keep = Reached(), set[int](), []
        waiting = deque([(0, Location("step", lambda: step))])
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

    def _inside(self, thing: Any, place: Location, reached: Reached) -> Iterator[Location]:
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

    def _in_callable(self, thing: Any, place: Location, reached: Reached) -> Iterator[Location]:
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

    def _in_function(self, function: types.FunctionType, reached: Reached) -> Iterator[Location]:
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

    def _in_generator(self, generator: Any, reached: Reached) -> Iterator[Location]:
        reached.codes.append(generator.gi_code)
        if generator.gi_frame is not None:
            yield from (_fixed(name, thing) for name, thing in generator.gi_frame.f_locals.items())
        if generator.gi_frame is not None and generator.gi_frame.f_globals is self.own:
            yield from (_item(self.own, name) for name in _names(generator.gi_code) if name in self.own)

    def _in_object(self, thing: Any) -> Iterator[Location]:
        """Yields references in the attributes of an object.

        Of a module it yields only those besides its submodules, parameters and buffers.
        """
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


def _names(code: types.CodeType) -> list[str]:
    return list(dict.fromkeys(name for inner in code_of([code]) for name in inner.co_names))


def _methods_called(function: Any, kind: type) -> list[types.CodeType]:
    """Finds the code of a method and of the methods it names.

    They are methods of its class, and those that they name in turn.
    """
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


def _fixed(name: str, thing: Any) -> Location:
    return Location(name, lambda: thing)


def _item(items: Any, key: Any) -> Location:
    return Location(str(key), lambda: items[key], partial(items.__setitem__, key))


def _in_mapping(items: dict[Any, Any]) -> Iterator[Location]:
    """Yields references by key where that is a text or a number.

    To look up another runs its code.
    """
    for key, value in itertools.islice(items.items(), ITEMS_AT_MOST):
        yield _item(items, key) if type(key) in (str, int) else _fixed("item", value)


def _in_container(thing: Any, place: Location) -> Iterator[Location]:
    if isinstance(thing, dict):
        return _in_mapping(thing)
    if isinstance(thing, set | frozenset):
        return (_fixed(place.name, item) for item in itertools.islice(thing, ITEMS_AT_MOST))
    if isinstance(thing, tuple):
        return (_member(place, index) for index in range(min(len(thing), ITEMS_AT_MOST)))
    return (_item(thing, index) for index in range(min(len(thing), ITEMS_AT_MOST)))


def _in_cells(names: tuple[str, ...], cells: tuple[types.CellType, ...]) -> Iterator[Location]:
    for name, cell in zip(names, cells, strict=False):
        try:
            _ = cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue
        yield Location(name, partial(getattr, cell, "cell_contents"), partial(setattr, cell, "cell_contents"))


def _in_slots(thing: Any) -> Iterator[Location]:
    for base in type(thing).__mro__:
        for name, slot in base.__dict__.items():
            if isinstance(slot, types.MemberDescriptorType) and not name.startswith("__"):
                try:
                    _ = slot.__get__(thing)
                except (AttributeError, TypeError):
                    continue
                yield Location(name, partial(slot.__get__, thing), partial(slot.__set__, thing))


def _member(place: Location, index: int) -> Location:
    """Returns the place of an item of a tuple.

    Another tuple takes its place where one of the items changes.
    """
    put = place.set
    if put is None:
        return Location(f"{place.name}[{index}]", lambda: place.get()[index])

    def replace(value: Any) -> None:
        items = place.get()
        put(tuple.__new__(type(items), [*items[:index], value, *items[index + 1 :]]))

    return Location(f"{place.name}[{index}]", lambda: place.get()[index], replace)


def _bound(method: types.MethodType, place: Location) -> Location:
    """Returns the place of the object of a bound method.

    The method of the same name of another object takes its place.
    """
    put = place.set
    if put is None:
        return _fixed(place.name, method.__self__)
    name = method.__func__.__name__
    return Location(place.name, lambda: place.get().__self__, lambda value: put(getattr(value, name)))


def _argument(function: Any, index: int) -> Location:
    def replace(value: Any) -> None:
        arguments = (*function.args[:index], value, *function.args[index + 1 :])
        function.__setstate__((function.func, arguments, function.keywords, function.__dict__))

    return Location(f"argument {index}", lambda: function.args[index], replace)


def _default(function: types.FunctionType, index: int) -> Location:
    def replace(value: Any) -> None:
        defaults = function.__defaults__ or ()
        function.__defaults__ = (*defaults[:index], value, *defaults[index + 1 :])

    return Location(f"default {index}", lambda: (function.__defaults__ or ())[index], replace)


class NotApplicable(Exception):  # noqa: N818 - a state, not an error
    """The step has nothing that this change could change.

    The message states what it needs.
    """

    verdict: TrialVerdict = "not applicable"


class Missing(Exception):  # noqa: N818
    """Something has to be installed first; the message states how to install it."""

    verdict: TrialVerdict = "missing"


Settings = tuple[tuple[str, str], ...] | Mapping[str, object]


@dataclass(frozen=True)
class Subject:
    """A step made afresh, and what it works with.

    That is found through its closure, its defaults and the file's globals.

    ``modules`` are the outermost ones only, ``iterators`` those under way of its loaders, ``tensors`` those that belong
    to no module. ``train`` states whether a step goes backward or updates parameters. ``places`` holds where each thing
    lies, ``codes`` is the code that the step consists of, as far as it was found. ``stands_for`` is the type of the
    device whose ops a step under fake tensors makes.
    """

    torch: Any
    step: Step
    modules: tuple[Any, ...] = ()
    optimizers: tuple[Any, ...] = ()
    loaders: tuple[Any, ...] = ()
    train: bool = False
    iterators: tuple[Any, ...] = ()
    tensors: tuple[Any, ...] = ()
    places: Mapping[int, tuple[Location, ...]] = field(default_factory=dict, repr=False)
    codes: tuple[CodeType, ...] = field(default=(), repr=False)
    stands_for: str | None = None

    def places_of(self, thing: Any) -> tuple[Location, ...]:
        """The references by which this object can be replaced."""
        locations = self.places.get(id(thing), ())
        return tuple(place for place in locations if place.set is not None and place.get() is thing)

    def replace(self, thing: Any, other: Any) -> None:
        """Puts another thing wherever this one lies.

        NotApplicable where the step holds it out of reach.
        """
        places = self.places_of(thing)
        if not places:
            kind = type(thing).__name__
            raise NotApplicable(f"needs the step to hold its {kind} in a variable or an attribute that can be set")
        for place in places:
            assert place.set is not None
            place.set(other)

    def replace_loader(self, loader: Any, other: Any) -> None:
        """Puts another loader in the place of this one.

        A fresh iterator comes where one of its iterators was.
        """
        under_way = [iterator for iterator in self.iterators if dataset_of(iterator) is loader.dataset]
        if self.places_of(loader) or not under_way:
            self.replace(loader, other)
        for iterator in under_way:
            self.replace(iterator, iter(other))

    def trained(self) -> tuple[Any, ...]:
        """Returns every parameter that takes part in training, once.

        They are those of the modules and optimizers, and every leaf that takes a gradient, in a fixed order.
        """
        reached = [parameter for module in self.modules for parameter in module.parameters()]
        reached += [
            weight for optimizer in self.optimizers for group in optimizer.param_groups for weight in group["params"]
        ]
        reached += [tensor for tensor in self.tensors if tensor.requires_grad and tensor.is_leaf]
        return tuple({id(parameter): parameter for parameter in reached}.values())

    def floating(self) -> Iterator[Any]:
        """Every floating-point tensor that it holds: parameters, buffers and loose tensors."""
        for module in self.modules:
            yield from (part for part in (*module.parameters(), *module.buffers()) if part.is_floating_point())
        yield from (tensor for tensor in self.tensors if tensor.is_floating_point())

    def device_types(self) -> set[str]:
        """Returns the types of devices that hold its tensors.

        They are {"cpu"}, {"cuda"} …, and empty where it holds none.
        """
        owned = [tensor for module in self.modules for tensor in (*module.parameters(), *module.buffers())]
        types = {tensor.device.type for tensor in (*owned, *self.tensors)}
        return types if self.stands_for is None or not types else {self.stands_for}


def make_subject(
    target: str,
    arguments: tuple[str, ...] = (),
    form: str = "workload",
    settings: Settings = (),
    train: bool = False,
    seed: int = 0,
) -> Subject:
    """Makes the step of a file that is loaded anew.

    Every generator of random numbers is set to the seed before.

    ``settings`` are the texts of ``--set``, or a mapping of values to be taken as they are. What the file or its
    workload raises comes through.
    """
    torch = load_torch(target, arguments)
    seed_all(torch, seed)
    module = program.load_file(target, arguments)
    if form == "model":
        make_step = forms.training_step if train else forms.inference_step
        return subject_of(make_step(module), module.__dict__, train=train)
    values = settings if isinstance(settings, Mapping) else {name: forms.parse_value(text) for name, text in settings}
    return subject_of(forms.step_with(module, values), module.__dict__, train=train)


def subject_of(step: Step, own: dict[str, Any] | None = None, *, train: bool = False) -> Subject:
    """The parts of this step; ``own`` are the globals of the program's file.

    It trains where that is stated, where it holds an optimizer, or where its code names a backward pass.
    """
    torch = importlib.import_module("torch")
    iterators = loader_iterator()
    kinds = (torch.nn.Module, torch.optim.Optimizer, torch.utils.data.DataLoader, iterators, torch.Tensor)
    reached = Walk(kinds, {} if own is None else own).run(step)
    modules = _outermost(reached.of(torch.nn.Module))
    optimizers = reached.of(torch.optim.Optimizer)
    return Subject(
        torch=torch,
        step=step,
        modules=modules,
        optimizers=optimizers,
        loaders=reached.of(torch.utils.data.DataLoader),
        train=bool(train or optimizers or _goes_backward(reached)),
        iterators=reached.of(iterators),
        tensors=_loose(reached.of(torch.Tensor), modules),
        places={key: tuple(places) for key, (_, places) in reached.things.items()},
        codes=tuple(reached.codes),
    )


def seed_all(torch: Any, seed: int) -> None:
    """Sets all generators of random numbers to a seed.

    They are Python's, numpy's (where it is loaded) and torch's, those of GPUs included.
    """
    random.seed(seed)
    sow(seed, torch)


def load_torch(target: str, arguments: tuple[str, ...]) -> Any:
    """Loads torch as the program brings it in.

    A file may set its environment first, so it is loaded once before seeding.
    """
    if "torch" not in sys.modules:
        program.load_file(target, arguments)
    return importlib.import_module("torch")


def default_parameters(module: ModuleType) -> dict[str, object]:
    """The parameters of `workload()` that have a default, with it."""
    parameters = inspect.signature(module.workload).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}


def _outermost(modules: tuple[Any, ...]) -> tuple[Any, ...]:
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    return tuple(module for module in modules if id(module) not in inner)


def _loose(tensors: tuple[Any, ...], modules: tuple[Any, ...]) -> tuple[Any, ...]:
    owned = {id(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers())}
    return tuple(tensor for tensor in tensors if id(tensor) not in owned)


def _goes_backward(reached: Reached) -> bool:
    names = [set(code.co_names) for code in code_of(reached.codes)]
    return any("backward" in called or {"autograd", "grad"} <= called for called in names)


# How close results have to stay: the same bits, the same sums in another order, or the precision that is named.
Precision = Literal["same", "reordered", "tf32", "fp16", "bf16", "int8", "other work"]


@dataclass(frozen=True)
class Change:
    """A change that `verify` can try.

    It is one function and one line in the table of changes.

    ``apply`` takes a subject that was made afresh, changes it in place where that helps, and gives back the step to
    call; it raises NotApplicable or Missing. ``environment`` and ``settings`` (parameters of the workload) hold before
    the program is loaded, in a process of its own where ``is_process_wide``. ``samples`` is how many times as many
    samples a changed step works on. ``sources`` is where the idea is explained. ``against`` makes, of
    another fresh subject, what the changed step is compared with where that is a part of the original only. ``tune``
    applies it with the values that a search chose.
    """

    name: str
    title: str
    precision: Precision
    apply: Callable[[Subject], Callable[[], object]] = lambda subject: subject.step
    is_process_wide: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Callable[[Mapping[str, object]], Mapping[str, object]] | None = None
    samples: float = 1.0
    against: Callable[[Subject], Callable[[], object]] | None = None
    tune: Callable[[Subject, Mapping[str, object]], Callable[[], object]] | None = None

    def with_values(self, values: Mapping[str, object]) -> "Change":
        """The change with these values, which its name holds for another process."""
        tune = self.tune
        assert tune is not None
        return replace(self, name=f"{self.name}:{json.dumps(values)}", apply=lambda subject: tune(subject, values))

    @property
    def is_remedy(self) -> bool:
        """True if one could keep it.

        It does the step's work, or as much for each sample. A bound is none.
        """
        return self.precision != "other work" or self.samples != 1.0


def change_named(changes: Mapping[str, Change], name: str) -> Change:
    """The change of this name, with the values that the name may hold."""
    base, _, values = name.partition(":")
    return changes[base].with_values(json.loads(values)) if values else changes[base]
