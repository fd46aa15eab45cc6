"""Where torch tells of a step: the ways in which an optimizer, a module or a data loader calls us, and how to end them.

None of them leaves a frame of ours in the program's tracebacks: hooks are torch's own, and what torch does not hook is
watched through an attribute that it reads there.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Removal = Callable[[], None]

# The loader reads this at the start of each `next`, before it opens its own scope.
_READ_BY_LOADER = "_profile_name"
# A module reads this at each call, a compiled one too.
_READ_BY_COMPILED = "_compiled_call_impl"


@dataclass(frozen=True)
class Listener:
    """What to call: after an optimizer's step, before a module's call, at the start of a data loader's `next`.

    ``failed`` is told of what these raise: it is ours, in the middle of the program's own call. An order to exit comes
    through.
    """

    after_optimizer: Callable[[Any], None]
    before_module: Callable[[Any], None]
    before_batch: Callable[[Any], None]
    failed: Callable[[Exception], None]


def watch_optimizers(listener: Listener) -> Removal:
    """Tells of every step of every optimizer; costs a microsecond a step."""
    optimizers = importlib.import_module("torch.optim.optimizer")  # torch.optim hides its name

    def after(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        try:
            listener.after_optimizer(optimizer)
        except Exception as exc:
            listener.failed(exc)

    return optimizers.register_optimizer_step_post_hook(after).remove  # type: ignore[no-any-return]


def watch_modules(torch: Any, listener: Listener) -> Removal:
    """Tells of every module call, nested ones too; costs a few microseconds a call."""

    def before(module: Any, _arguments: Any) -> None:
        try:
            listener.before_module(module)
        except Exception as exc:
            listener.failed(exc)

    return torch.nn.modules.module.register_module_forward_pre_hook(before).remove  # type: ignore[no-any-return]


def is_optimizer_made() -> bool:
    """Whether the program has made an optimizer: the first of each class marks the step of its class (torch 2.13)."""
    module = sys.modules.get("torch.optim.optimizer")
    waiting = [module.Optimizer] if module is not None else []
    while waiting:
        kind = waiting.pop()
        if getattr(vars(kind).get("step"), "hooked", False):
            return True
        waiting += kind.__subclasses__()
    return False


def is_nested_call(torch: Any) -> bool:
    """Whether the module call that is being told of runs inside that of another module; walks up the stack."""
    called = torch.nn.Module._call_impl.__code__
    frame, depth = sys._getframe(1), 0
    while frame is not None and depth < 2:
        depth += frame.f_code is called
        frame = frame.f_back  # type: ignore[assignment]
    return depth > 1


def watch_loaders(listener: Listener) -> Removal | None:
    """Tells of every batch that is asked of a data loader; null while the program has not imported it."""
    module = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(module, "_BaseDataLoaderIter", None)
    return None if kind is None else _watch_attribute(kind, _READ_BY_LOADER, listener.before_batch, listener)


def watch_compiled(listener: Listener) -> Removal | None:
    """Tells of every call of a compiled module, for which the hook of `watch_modules` would not do: torch warns of it.

    Null while the compiler is not loaded.
    """
    module = sys.modules.get("torch._dynamo.eval_frame")
    kind = getattr(module, "OptimizedModule", None)
    return None if kind is None else _watch_attribute(kind, _READ_BY_COMPILED, listener.before_module, listener)


def watch_class(torch: Any, kind: Any, before_call: Callable[[Any], None], listener: Listener) -> Removal | None:
    """Tells of every call of modules of one class; null where the class does not call as torch's own do."""
    module = torch.nn.Module
    is_plain = kind.__call__ is module.__call__ and _READ_BY_COMPILED in vars(module)
    if not is_plain or any(_READ_BY_COMPILED in vars(each) for each in kind.__mro__ if each is not module):
        return None
    return _watch_attribute(kind, _READ_BY_COMPILED, before_call, listener)


def _watch_attribute(kind: Any, name: str, call_back: Callable[[Any], None], listener: Listener) -> Removal:
    """Calls back with the object whenever the attribute is read of one; its value stays where it was."""

    def read(instance: Any) -> Any:
        try:
            call_back(instance)
        except Exception as exc:
            listener.failed(exc)
        return instance.__dict__.get(name)

    def write(instance: Any, value: Any) -> None:
        instance.__dict__[name] = value

    assert name not in vars(kind), "neither class has the attribute itself"
    setattr(kind, name, property(read, write))

    def remove() -> None:
        if name in vars(kind):
            delattr(kind, name)

    return remove
