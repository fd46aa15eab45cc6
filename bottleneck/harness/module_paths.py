"""Names the modules of a window by their attribute paths in the model.

That is 'encoder.layer.0.attention' for 'Attention_3'. The profiler numbers the modules of a class in the order of their
first calls. Its event tree also tells the address of each, by which the module is found among those that the program
holds; the export of the trace carries the table.
"""

import gc
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bottleneck.schema.op_names import LONGEST_MODULE_PATH, MODULE_PREFIX, MOST_MODULE_PATHS

# A module that several models hold is named in one of the first that do.
_MOST_OWNERS = 4
_MOST_MODULES = 100_000
_DEEPEST = 100


class ModelPath(NamedTuple):
    """Place of a module.

    The address and the class of the model that holds it, and its path there, '' of its own.
    """

    root: int
    model: str
    path: str


@dataclass(frozen=True)
class Held:
    """A module that the program holds: the address of its class, and its places."""

    kind: int
    places: tuple[ModelPath, ...]


def find_modules(torch: Any) -> Mapping[int, Held]:
    """The modules that the program holds, by address; empty where they cannot be read.

    A model is a module that no other one holds. Nothing is called that the program may have defined.
    """
    try:
        return _find(torch.nn.Module)
    except Exception:  # a class of the program that answers in another way than torch's own
        return {}


def _find(module: Any) -> Mapping[int, Held]:
    kinds = set(_subclasses(module))
    alive = {id(one): one for one in gc.get_objects() if type(one) in kinds}
    inner = {id(child) for parent in alive.values() for _, child in _children(parent)}
    places: dict[int, list[ModelPath]] = {}
    for root in (number for number in alive if number not in inner):
        model = type(alive[root]).__name__
        for number, path in itertools.islice(_walk(alive[root]), _MOST_MODULES):
            mine = places.setdefault(number, [])
            if len(mine) < _MOST_OWNERS:
                mine.append(ModelPath(root, model, path))
    return {number: Held(id(type(alive[number])), tuple(mine)) for number, mine in places.items() if number in alive}


def named_tensors(torch: Any) -> list[tuple[str, Any]]:
    """Returns the parameters and buffers of all models of the program.

    They are by names as 'Net.head.weight', each once. Wrappers of a model (of torch.compile, of
    DistributedDataParallel) leave its names as they are; of two models of one class the second is 'Net#2'. Empty where
    they cannot be read.
    """
    try:
        return list(_tensors(torch.nn.Module))
    except Exception:  # as in find_modules
        return []


def gradient_of(tensor: Any) -> Any:
    """The gradient that a tensor keeps, or None.

    To ask a tensor that keeps none, as a buffer in the middle of a graph, makes torch warn.
    """
    return tensor.grad if tensor.is_leaf or tensor.retains_grad else None


def instances_of(kind: Any) -> list[Any]:
    """The objects that the program holds of this class or one below it."""
    kinds = set(_subclasses(kind))
    return [one for one in gc.get_objects() if type(one) in kinds]


_WRAPPED = ("_orig_mod", "module")


def _tensors(module: Any) -> Iterator[tuple[str, Any]]:
    alive = instances_of(module)
    inner = {id(child) for one in alive for _, child in _children(one)}
    seen: set[int] = set()
    models: Counter[str] = Counter()
    for root in (one for one in alive if id(one) not in inner):
        model = _unwrapped(root)
        new = [(name, tensor) for name, tensor in tensors_of(model) if id(tensor) not in seen]
        if not new:
            continue
        kind = type(model).__name__
        models[kind] += 1
        prefix = kind if models[kind] == 1 else f"{kind}#{models[kind]}"
        for name, tensor in new:
            if id(tensor) not in seen:  # a weight that two layers share
                seen.add(id(tensor))
                yield f"{prefix}.{name}", tensor


def _unwrapped(module: Any) -> Any:
    children = _children(module)
    while len(children) == 1 and children[0][0] in _WRAPPED and not _held(module):
        module = children[0][1]
        children = _children(module)
    return module


def _held(module: Any) -> list[tuple[str, Any]]:
    """Parameters and buffers of the module itself."""
    tables = (module.__dict__.get(name) for name in ("_parameters", "_buffers"))
    return [
        (name, one) for table in tables if isinstance(table, dict) for name, one in table.items() if one is not None
    ]


def tensors_of(module: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields the parameters and buffers of a module by attribute paths.

    Those of modules inside it too.
    """
    for name, tensor in _held(module):
        yield f"{path}{name}", tensor
    if depth < _DEEPEST:
        for name, child in _children(module):
            yield from tensors_of(child, f"{path}{name}.", depth + 1)


def _subclasses(kind: Any) -> Iterator[Any]:
    waiting = [kind]
    while waiting:
        subclass = waiting.pop()
        yield subclass
        waiting += type.__subclasses__(subclass)


def _children(module: Any) -> list[tuple[str, Any]]:
    """Returns name and module of each attribute that is a module.

    None of a scripted one, whose container is another.
    """
    modules = module.__dict__.get("_modules")
    return [(name, child) for name, child in modules.items() if child is not None] if isinstance(modules, dict) else []


def _walk(root: Any) -> Iterator[tuple[int, str]]:
    """Yields address and path of each module in a model.

    A module comes once: by the first path that ``named_modules`` gives.
    """
    seen = set()
    waiting = [(root, "")]
    while waiting:
        module, path = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield id(module), path
        below = f"{path}." if path else ""
        waiting += [(child, f"{below}{name}") for name, child in reversed(_children(module))]


def attribute_paths(events: Iterable[Any], held: Mapping[int, Held]) -> dict[str, str]:
    """Returns the path of each module that the profiler's events name.

    Where it is known beyond doubt. With several models at work it begins with the class of its own: 'Generator.net.0'.
    A model itself goes by its class.
    """
    called = _called(events)
    at_work = {number for number, _ in called.values()}
    places = {
        name: min(held[number].places, key=lambda place: place.root not in at_work)
        for name, (number, kind) in called.items()
        if number in held and held[number].kind == kind
    }
    models = {place.root: place.model for place in places.values() if place.path}
    alike = Counter(models.values())
    alone = Counter(place.model for place in places.values() if not place.path)
    named = {}
    for name, place in places.items():
        if not place.path:
            path = place.model if alone[place.model] == 1 else ""
        elif len(models) == 1:
            path = place.path
        else:
            path = f"{place.model}.{place.path}" if alike[place.model] == 1 else ""
        if path and len(path) <= LONGEST_MODULE_PATH:
            named[name] = path
    return dict(itertools.islice(named.items(), MOST_MODULE_PATHS))


def _called(events: Iterable[Any]) -> dict[str, tuple[int, int]]:
    """Returns address and class of the module of each name in the trace.

    For names that stand for one module only.
    """
    by_name: dict[str, set[tuple[int, int]]] = {}
    for event in events:
        name = _name(event)
        if name.startswith(MODULE_PREFIX):
            module = event.extra_fields.module
            by_name.setdefault(name.removeprefix(MODULE_PREFIX), set()).add((module.self_ptr, module.cls_ptr))
    # Reports look a module up by the part of its path behind the last dot.
    unclear = {name.rpartition(".")[2] for name in by_name if "." in name}
    unclear.update(name for name, modules in by_name.items() if "." in name or len(modules) > 1)
    return {name: next(iter(modules)) for name, modules in by_name.items() if name not in unclear}


def _name(event: Any) -> str:
    """The event's name; empty where torch 2.13 has lost it."""
    try:
        return str(event.name)
    except UnicodeDecodeError:
        return ""
