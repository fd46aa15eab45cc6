"""What a step is made of: the modules, optimizers, loaders and tensors that it can reach, made afresh from its file."""

import importlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

from bottleneck.harness import forms, program
from bottleneck.harness.changes.outcomes import NotApplicable
from bottleneck.harness.changes.walk import Place, Reached, Walk, code_of

Settings = tuple[tuple[str, str], ...] | Mapping[str, object]


@dataclass(frozen=True)
class Subject:
    """A step made afresh, and what it works with, found through its closure, its defaults and the file's globals.

    ``modules`` are the outermost ones only, ``iterators`` those under way of its loaders, ``tensors`` those that belong
    to no module. ``train`` tells whether a step goes backward or updates parameters. ``parameters`` are those of
    `workload()` in force, defaults included. ``model`` and ``inputs`` are set for a bare model only. ``places`` tells
    where each thing lies, ``codes`` is the code that the step consists of, as far as it was found.
    """

    torch: Any
    step: Callable[[], Any]
    modules: tuple[Any, ...] = ()
    optimizers: tuple[Any, ...] = ()
    loaders: tuple[Any, ...] = ()
    train: bool = False
    iterators: tuple[Any, ...] = ()
    tensors: tuple[Any, ...] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)
    model: Any = None
    inputs: Any = None
    places: Mapping[int, tuple[Place, ...]] = field(default_factory=dict, repr=False)
    codes: tuple[CodeType, ...] = field(default=(), repr=False)

    def places_of(self, thing: Any) -> tuple[Place, ...]:
        """Where this thing lies now and can be replaced."""
        known = self.places.get(id(thing), ())
        return tuple(place for place in known if place.set is not None and place.get() is thing)

    def replace(self, thing: Any, other: Any) -> None:
        """Puts another thing wherever this one lies; NotApplicable where the step holds it out of reach."""
        places = self.places_of(thing)
        if not places:
            kind = type(thing).__name__
            raise NotApplicable(f"needs the step to hold its {kind} in a variable or an attribute that can be set")
        for place in places:
            assert place.set is not None
            place.set(other)

    def replace_loader(self, loader: Any, other: Any) -> None:
        """Puts another loader in the place of this one, and a fresh iterator where one of its iterators was."""
        under_way = [each for each in self.iterators if each.__dict__.get("_dataset") is loader.dataset]
        if self.places_of(loader) or not under_way:
            self.replace(loader, other)
        for each in under_way:
            self.replace(each, iter(other))

    def trained(self) -> tuple[Any, ...]:
        """Parameters of the modules and optimizers and every leaf that takes a gradient: once, in a fixed order."""
        found = [parameter for module in self.modules for parameter in module.parameters()]
        found += [each for optimizer in self.optimizers for group in optimizer.param_groups for each in group["params"]]
        found += [tensor for tensor in self.tensors if tensor.requires_grad and tensor.is_leaf]
        return tuple({id(parameter): parameter for parameter in found}.values())

    def floating(self) -> Iterator[Any]:
        """Every floating-point tensor that it holds: parameters, buffers and loose tensors."""
        for module in self.modules:
            yield from (each for each in (*module.parameters(), *module.buffers()) if each.is_floating_point())
        yield from (tensor for tensor in self.tensors if tensor.is_floating_point())

    def device_types(self) -> set[str]:
        """Where its tensors lie: {"cpu"}, {"cuda"} …; empty where it holds none."""
        owned = [tensor for module in self.modules for tensor in (*module.parameters(), *module.buffers())]
        return {tensor.device.type for tensor in (*owned, *self.tensors)}


def make_subject(
    target: str,
    arguments: tuple[str, ...] = (),
    form: str = "workload",
    settings: Settings = (),
    train: bool = False,
    seed: int = 0,
) -> Subject:
    """The step of a file that is loaded anew, with every generator of random numbers set to the seed before.

    ``settings`` are the texts of ``--set``, or a mapping of values to be taken as they are. What the file or its
    workload raises comes through.
    """
    torch = _torch(target, arguments)
    seed_all(torch, seed)
    module = program.load_file(target, arguments)
    own = module.__dict__
    if form == "model":
        make_step = forms.training_step if train else forms.inference_step
        return subject_of(make_step(module), own, train=train, model=own["model"], inputs=own["inputs"])
    values = settings if isinstance(settings, Mapping) else {name: forms.parse_value(text) for name, text in settings}
    step = forms.step_with(module, values)
    return subject_of(step, own, train=train, parameters={**_defaults(module), **values})


def subject_of(step: Callable[[], Any], own: dict[str, Any] | None = None, **more: Any) -> Subject:
    """What this step consists of; ``own`` are the globals of the program's file, ``more`` other fields of the subject.

    It trains where that is said, where it holds an optimizer, or where its code names a backward pass.
    """
    torch = importlib.import_module("torch")
    iterators = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
    kinds = (torch.nn.Module, torch.optim.Optimizer, torch.utils.data.DataLoader, iterators, torch.Tensor)
    reached = Walk(kinds, {} if own is None else own).run(step)
    modules = _outermost(reached.of(torch.nn.Module))
    optimizers = reached.of(torch.optim.Optimizer)
    train = bool(more.pop("train", False) or optimizers or _goes_backward(reached))
    return Subject(
        torch=torch,
        step=step,
        modules=modules,
        optimizers=optimizers,
        loaders=reached.of(torch.utils.data.DataLoader),
        train=train,
        iterators=reached.of(iterators),
        tensors=_loose(reached.of(torch.Tensor), modules),
        places={key: tuple(places) for key, (_, places) in reached.things.items()},
        codes=tuple(reached.codes),
        **more,
    )


def seed_all(torch: Any, seed: int) -> None:
    """Sets Python's, numpy's (where it is loaded) and torch's generators of random numbers, those of GPUs included."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
    torch.manual_seed(seed)


def _torch(target: str, arguments: tuple[str, ...]) -> Any:
    """Torch as the program brings it in: a file may set its environment first, so it is loaded once before seeding."""
    if "torch" not in sys.modules:
        program.load_file(target, arguments)
    return importlib.import_module("torch")


def _defaults(module: ModuleType) -> dict[str, object]:
    parameters = inspect.signature(module.workload).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def _outermost(modules: tuple[Any, ...]) -> tuple[Any, ...]:
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    return tuple(module for module in modules if id(module) not in inner)


def _loose(tensors: tuple[Any, ...], modules: tuple[Any, ...]) -> tuple[Any, ...]:
    owned = {id(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers())}
    return tuple(tensor for tensor in tensors if id(tensor) not in owned)


def _goes_backward(reached: Reached) -> bool:
    names = [set(code.co_names) for code in code_of(reached.codes)]
    return any("backward" in each or {"autograd", "grad"} <= each for each in names)
