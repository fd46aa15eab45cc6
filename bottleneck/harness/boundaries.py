"""Detects training steps in an unmodified script from optimizer, module and data-loader hooks.

None of them leaves a frame of ours in the program's tracebacks: hooks are torch's own, and what torch does not hook is
watched through an attribute that it reads there.
"""

import functools
import importlib
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, ClassVar

from bottleneck.harness import marks
from bottleneck.harness.lines import program_lines
from bottleneck.harness.torch_private import (
    READ_BY_COMPILED,
    READ_BY_LOADER,
    batches_given,
    call_code,
    dataset_of,
    exported_module,
    loader_iterator,
    optimized_module,
)
from bottleneck.schema.recording import StepSource
from bottleneck.units import counted

Removal = Callable[[], None]


def is_optimizer_made() -> bool:
    """True if the program has made an optimizer.

    The first of each class marks the step of its class (torch 2.13).
    """
    module = sys.modules.get("torch.optim.optimizer")
    waiting = [module.Optimizer] if module is not None else []
    while waiting:
        kind = waiting.pop()
        if getattr(vars(kind).get("step"), "hooked", False):
            return True
        waiting += kind.__subclasses__()
    return False


@functools.cache
def learns() -> bool:
    """True if the program's text calls a backward pass."""
    return any(".backward(" in line for _, lines in program_lines() for line in lines)


def is_nested_call(torch: Any) -> bool:
    """True if the module call that is being told of runs inside another.

    It walks up the stack.
    """
    called = call_code(torch)
    frame, depth = sys._getframe(1), 0
    while frame is not None and depth < 2:
        depth += frame.f_code is called
        frame = frame.f_back  # type: ignore[assignment]
    return depth > 1


def watch_class(torch: Any, kind: Any, before_call: Callable[[Any], None]) -> Removal | None:
    """Tells of every call of modules of one class.

    Null where the class does not call as torch's own do.
    """
    module = torch.nn.Module
    is_plain = kind.__call__ is module.__call__ and READ_BY_COMPILED in vars(module)
    if not is_plain or any(READ_BY_COMPILED in vars(base) for base in kind.__mro__ if base is not module):
        return None
    return watch_attribute(kind, READ_BY_COMPILED, before_call)


def watch_attribute(
    kind: Any, name: str, on_read: Callable[[Any], None] | None, on_write: Callable[[Any], None] | None = None
) -> Removal:
    """Calls back with the object whenever its attribute is read, or written.

    The value stays where it was.
    """

    def read(instance: Any) -> Any:
        if on_read is not None:
            on_read(instance)
        try:
            return instance.__dict__[name]
        except KeyError:
            if on_write is None:
                return None
            raise AttributeError(name) from None

    def write(instance: Any, value: Any) -> None:
        instance.__dict__[name] = value
        if on_write is not None:
            on_write(instance)

    assert name not in vars(kind), "neither class has the attribute itself"
    setattr(kind, name, property(read, write))

    def remove() -> None:
        if name in vars(kind):
            delattr(kind, name)

    return remove


class OptimizerHook:
    """A hook of all optimizers that can be removed at any time.

    Torch goes through its hooks as it calls them: to take one out then would raise in the program. Such a hook stays,
    does nothing, and goes when the next one is made.
    """

    _left: ClassVar[list[Removal]] = []

    def __init__(self, register: Callable[[Any], Any], call: Callable[[Any], None]) -> None:
        while self._left:
            self._left.pop()()
        self._call: Callable[[Any], None] | None = call
        self._handle = register(self)

    def __call__(self, optimizer: Any, *_: Any) -> None:
        """Calls back, unless it was removed."""
        call = self._call
        if call is not None:
            call(optimizer)

    def remove(self) -> None:
        """Ends the calls."""
        self._call = None
        if _is_running(OptimizerHook.__call__.__code__):
            self._left.append(self._handle.remove)
        else:
            self._handle.remove()


def _is_running(code: CodeType) -> bool:
    """True if some thread is in a call of this code."""
    for frame in sys._current_frames().values():
        at: FrameType | None = frame
        while at is not None:
            if at.f_code is code:
                return True
            at = at.f_back
    return False


# Asked once for each process: a system call in each step costs as much as all else that counts a turn.
_process = os.getpid()


def _note_fork() -> None:
    global _process  # noqa: PLW0603 - a process has one number
    _process = os.getpid()


os.register_at_fork(after_in_child=_note_fork)


# A module repeats from its second call on; a loader that had no repeating module for so many batches is on its own,
# and one that had several calls in each of so many is the step.
_REPEATED, _LONE_BATCHES, _CROWDED_BATCHES = 2, 3, 2
# After how many turns of others a silent leader is replaced: a generator is trained once in five steps of its critic.
_PATIENCE = {"optimizer": 20, "module": 4, "loader": 20}
_MORE_PATIENCE = 4
# Calls of one module between calls of others that may make one step: two of a sampler, up to eight of a draft model.
_MOST_GROUPED = 8
# For so long calls and batches make no steps where an optimizer is there that has not stepped yet: reinforcement
# learning plays thousands of rounds before it learns.
_LEARNING_BEGINS_S = 10.0

# What is not listened to any more once there is a better source.
_WORSE: dict[StepSource, tuple[StepSource, ...]] = {
    "none": (),
    "mark": ("optimizer", "module", "loader"),
    "optimizer": ("module", "loader"),
    "module": (),
    "loader": ("module",),
}
_FIXED_NAMES = ("optimizer", "module", "loader")
_MOST_NAMES = 8


class Leader:
    """The one among several optimizers (modules, loaders) whose turns count.

    They count in the thread in which it was first met. It is the first, until it is gone, or has kept still while
    others had more than ``patience`` turns. The patience grows each time, or two that work by turns would replace each
    other for ever.
    """

    def __init__(self, patience: float, on_gone: Callable[[], None] = lambda: None) -> None:
        self.turns = 0
        self._patience = patience
        self._on_gone = on_gone
        self._others = 0
        self._reference: weakref.ref[Any] | None = None
        self._number: int | None = None
        self._place: tuple[int, int] | None = None

    def is_led_by(self, one: Any) -> bool:
        """True if this one leads, without counting a turn."""
        return self._number == id(one)

    def takes_turn(self, one: Any) -> bool:
        """Counts a turn: whether it was the leader's, which this one may have become."""
        place = _process, threading.get_ident()
        if self._number is None:
            self._lead(one, place)
        elif place != self._place:
            return False
        elif self._number != id(one):
            self._others += 1
            if self._others <= self._patience:
                return False
            self._patience *= _MORE_PATIENCE
            self._lead(one, place)
        self._others = 0
        self.turns += 1
        return True

    def goes_on(self, one: Any) -> bool:
        """Counts a turn if this one leads, here.

        It is the quick way for what comes in each step.
        """
        if self._number != id(one) or self._place != (_process, threading.get_ident()):
            return False
        self._others = 0
        self.turns += 1
        return True

    @property
    def leading(self) -> Any:
        """Returns the one that leads.

        Null where there is none, or where it cannot be told when it goes.
        """
        return None if self._reference is None else self._reference()

    def _lead(self, one: Any, place: tuple[int, int]) -> None:
        self._number, self._place, self.turns = id(one), place, 0
        try:
            self._reference = weakref.ref(one, self._resign)
        except TypeError:  # a list as a data set
            self._reference = None

    def _resign(self, reference: weakref.ref[Any]) -> None:
        if reference is self._reference:
            self._number = self._reference = None
            self._on_gone()


class CallGroups:
    """Groups the calls of the leading module that make one step together.

    A guided sampler calls its text encoder twice before its denoiser, and a draft model speaks several times for each
    call of its target. Two groups of one size in a row, with calls of other modules between them, make that size the
    step's. More calls than ``_MOST_GROUPED`` are steps of their own, with something rare between them.
    """

    def __init__(self) -> None:
        self.size = 1
        self._calls = self._calls_before = 0

    def begins(self) -> bool:
        """Counts a call of the leader; true if it begins a group."""
        self._calls += 1
        return (self._calls - 1) % self.size == 0

    def end(self) -> None:
        """Ends the group: another module is called."""
        if self._calls == 0:
            return
        if self._calls == self._calls_before <= _MOST_GROUPED:
            self.size = self._calls
        self._calls_before, self._calls = self._calls, 0


class Boundaries:
    """Calls back at each step boundary.

    It also does before the first boundary of each source that is better than the one before. A boundary is the end of
    an optimizer's step; where there is none, the start of a call of the outermost module that repeats; where there is
    none, or several calls belong to each batch, the start of a data loader's `next`. A call of `bottleneck.step()`
    overrules them all. ``wanted`` is what the user named, which alone counts then; ``thread`` the only one in which
    steps are looked for, null for that in which each leader is first met. ``on_first`` is called as the first batch is
    taken or the first module called, whichever is earlier, unless an optimizer has stepped before.
    """

    def __init__(
        self,
        on_boundary: Callable[[], None],
        on_new_source: Callable[[StepSource, str], None],
        wanted: str | None = None,
        thread: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        self.met: list[str] = []
        self.problem: str | None = None
        self._on_boundary = on_boundary
        self._on_new_source = on_new_source
        self._on_first = on_first
        self._on_other: Callable[[], None] = lambda: None
        self._wanted = wanted
        self._thread, self._own_process = thread, _process
        self._clock = clock
        self._waits_since_s: float | None = None
        self._is_class_wanted = wanted is not None and wanted not in _FIXED_NAMES
        self._current: tuple[StepSource, str] = ("none", "")
        self._torch: Any = None
        # Modules that were called inside of others; what is gone may come back as another at the same address.
        self._inner: set[int] = set()
        self._optimizers = Leader(_PATIENCE["optimizer"])
        self._modules = Leader(math.inf if self._is_class_wanted else _PATIENCE["module"], self._inner.clear)
        self._loaders = Leader(_PATIENCE["loader"])
        self._marks = Leader(math.inf)
        self._groups = CallGroups()
        self._calls_of_batch = self._crowded = 0
        self._is_first_of_epoch = False
        self._removals: dict[str, Removal] = {}
        self._is_narrow = self._is_compiled = False

    def watch(self, torch: Any) -> None:
        """Begins to listen to optimizers, modules, and loaders if they are loaded already."""
        self._torch = torch
        marks.listen(self._after_mark)
        # Torch's own hooks: a microsecond for a step, a few for each call of a module, nested ones too.
        optimizers = importlib.import_module("torch.optim.optimizer")  # torch.optim hides its name
        after = OptimizerHook(optimizers.register_optimizer_step_post_hook, self._after_optimizer)
        self._removals["optimizer"] = after.remove
        hooked = torch.nn.modules.module.register_module_forward_pre_hook(self._safely(self._before_module))
        self._removals["module"] = hooked.remove
        self.watch_loaders()

    def watch_loaders(self) -> None:
        """Listens to loaders as well, once the program has imported them."""
        if self._removals and "loader" not in self._removals and not self._is_worse("loader"):
            kind = loader_iterator()
            self._watch("loader", kind, READ_BY_LOADER, self._before_batch)

    def tell_other_optimizers(self, on_other: Callable[[], None]) -> None:
        """Calls back where an optimizer's step ends that is no boundary.

        It does so while optimizers are listened to.
        """
        self._on_other = on_other

    def watch_compiled(self) -> None:
        """Listens to compiled and exported modules instead of all.

        The compiler would trace the hook.
        """
        if "module" in self._removals:
            self._forget("module")
            self._removals["module"] = lambda: None
            self._is_compiled = self._is_narrow = True
            # The hook of all modules would not do for these: torch warns of it.
            self._watch_calls(optimized_module())
            self.watch_exported()

    def watch_exported(self) -> None:
        """Listens to the modules of exported programs too, once the program has imported them."""
        if self._is_compiled and "module" in self._removals:
            self._watch_calls(exported_module())

    def _watch_calls(self, kind: Any) -> None:
        """Watches the calls of one more class of modules.

        The program may not have imported it yet.
        """
        if kind is None or READ_BY_COMPILED in vars(kind):
            return
        before, added = (
            self._removals["module"],
            watch_attribute(kind, READ_BY_COMPILED, self._safely(self._before_module)),
        )

        def remove() -> None:
            before()
            added()

        self._removals["module"] = remove

    def tell(self, source: StepSource, name: str) -> None:
        """Ends a step that something else has found."""
        self._boundary(source, name)

    def narrow(self) -> None:
        """Listens to the leading module's class alone where calls are the steps.

        The hook of all modules costs microseconds for every module inside. Others can take the lead no more.
        """
        leader = self._modules.leading
        if self._current[0] != "module" or leader is None or "module" not in self._removals:
            return
        removal = watch_class(self._torch, type(leader), self._safely(self._before_leader))
        if removal is not None:
            self._forget("module")
            self._removals["module"] = removal
            self._is_narrow = True

    def only_tell(self, on_boundary: Callable[[], None], on_lost: Callable[[], None]) -> bool:
        """True if from now on only steps of the present source are told of.

        That costs a microsecond each. ``on_lost`` is called where a better source is found. False where it would cost
        more, as the hook of all modules does; nothing is watched then.
        """
        source, _ = self._current
        is_cheap = source in {"mark", "optimizer", "loader"} or (source == "module" and self._is_narrow)
        if not is_cheap or self.problem is not None:
            self.forget()
            return False

        def lose(_source: StepSource, _name: str) -> None:
            self.forget()
            on_lost()

        self._forget(*(other for other in _WORSE if other in _WORSE[source]))
        self._on_boundary, self._on_new_source = on_boundary, lose
        return True

    @property
    def has_waited(self) -> bool:
        """True if calls or batches were passed over for an optimizer.

        The optimizer then never stepped.
        """
        return self._waits_since_s is not None and self._current[0] == "none"

    def forget(self) -> None:
        """Ends all of it; the program goes on at full speed."""
        marks.forget(self._after_mark)
        self._forget(*self._removals)

    def _fail(self, exc: Exception) -> None:
        self.problem = f"{type(exc).__name__}: {exc}"
        self.forget()

    def _safely(self, call_back: Callable[[Any], None]) -> Callable[..., None]:
        """Calls back without disturbing the program, in whose own call this is.

        An order to exit comes through.
        """

        def call(thing: Any, *_: Any) -> None:
            try:
                call_back(thing)
            except Exception as exc:
                self._fail(exc)

        return call

    def _watch(self, source: str, kind: Any, attribute: str, call_back: Callable[[Any], None]) -> None:
        """Watches what reads an attribute of objects of this class.

        Null where the program has not imported it yet.
        """
        if kind is not None:
            self._removals[source] = watch_attribute(kind, attribute, self._safely(call_back))

    def _is_here(self) -> bool:
        """True in the thread that is measured.

        It is not so in a fork: a loader's worker may call modules of its own.
        """
        return self._own_process == _process and self._thread in {None, threading.get_ident()}

    def _is_worse(self, source: StepSource) -> bool:
        return source in _WORSE[self._current[0]]

    def _forget(self, *sources: str) -> None:
        for source in sources:
            removal = self._removals.pop(source, None)
            if removal is not None:
                removal()

    def _after_mark(self) -> None:
        if self._is_here() and self._marks.takes_turn(self):
            self._boundary("mark", "bottleneck.step()")

    def _before_leader(self, module: Any) -> None:
        if self._current[0] == "module" and self._modules.goes_on(module):
            self._calls_of_batch += 1
            if self._groups.begins():
                self._on_boundary()

    def _after_optimizer(self, optimizer: Any) -> None:
        """Looks at the end of an optimizer's step, safely."""
        try:
            if self._current[0] == "optimizer" and self._optimizers.goes_on(optimizer):
                self._on_boundary()
            else:
                self._on_other()
                self._meet_optimizer(optimizer)
        except Exception as exc:
            self._fail(exc)

    def _meet_optimizer(self, optimizer: Any) -> None:
        if self._is_worse("optimizer") or not self._is_here():
            return
        name = type(optimizer).__name__
        self._meet(f"optimizer {name}")
        if self._is_wanted("optimizer", name) and self._optimizers.takes_turn(optimizer):
            self._boundary("optimizer", f"optimizer.step of {name}")

    def _before_module(self, module: Any) -> None:
        if id(module) in self._inner or self._is_worse("module") or not self._is_here():
            return
        if not self.met:
            self._on_first()
        name = _class_of(module)
        if not self._is_class_wanted and not self._modules.is_led_by(module) and is_nested_call(self._torch):
            self._inner.add(id(module))
            return
        self._meet(f"module {name}")
        if not self._is_wanted("module", name):
            self._inner.add(id(module))
        elif self._modules.takes_turn(module):
            self._before_turn(name)
        elif not self._modules.is_led_by(module):
            self._groups.end()

    def _before_turn(self, name: str) -> None:
        """Looks at a call of the leading module."""
        self._calls_of_batch += 1
        if self._modules.turns == 1:
            self._groups = CallGroups()
        if self._groups.begins() and (self._modules.turns >= _REPEATED or self._current[0] == "module"):
            size = self._groups.size
            self._boundary("module", f"call of {name}" if size == 1 else f"{counted(size, 'call')} of {name}")

    def _before_batch(self, iterator: Any) -> None:
        if self._is_worse("loader") or not self._is_here():
            return
        if not self.met:
            self._on_first()
        self._meet("loader")
        if not self._is_wanted("loader", "DataLoader") or not self._loaders.takes_turn(dataset_of(iterator)):
            return
        was_first, self._is_first_of_epoch = self._is_first_of_epoch, batches_given(iterator) == 0
        calls, self._calls_of_batch = self._calls_of_batch, 0
        # The last `next` of an epoch, which finds nothing, has ended its last step; the first of the next ends none.
        if self._is_first_of_epoch and not was_first:
            return
        self._crowded = self._crowded + 1 if calls > 1 else 0
        if self._is_loader_the_step():
            self._boundary("loader", "next of DataLoader")

    def _is_loader_the_step(self) -> bool:
        source, _ = self._current
        if source == "module":
            return self._crowded >= _CROWDED_BATCHES
        return source == "loader" or self._loaders.turns >= (_REPEATED if self._wanted else _LONE_BATCHES)

    def _boundary(self, source: StepSource, name: str) -> None:
        if source in _WORSE["optimizer"] and self._current[0] == "none" and self._waits_for_optimizer():
            return
        if self._current != (source, name):
            self._current = source, name
            self._forget(*_WORSE[source])
            self._on_new_source(source, name)
        self._on_boundary()

    def _waits_for_optimizer(self) -> bool:
        """True if an optimizer's steps may be still to come.

        A block of a program may be one that does not learn.
        """
        may_come = is_optimizer_made() or (self._makes_data() and learns())
        if self._wanted is not None or self._thread is not None or not may_come:
            return False
        now_s = self._clock()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        return now_s - self._waits_since_s < _LEARNING_BEGINS_S

    def _makes_data(self) -> bool:
        """True if the leading module has nothing to learn.

        A simulation that makes the data of a training is often written as one.
        """
        leader = self._modules.leading
        parameters = getattr(leader, "parameters", None)
        return parameters is not None and next(iter(parameters()), None) is None

    def _is_wanted(self, source: str, name: str) -> bool:
        return self._wanted is None or self._wanted in (source, name)

    def _meet(self, name: str) -> None:
        if name not in self.met and len(self.met) < _MOST_NAMES:
            self.met.append(name)


class ToldBoundaries(Boundaries):
    """Takes the steps that it is told of.

    Something else of ours listens to torch already.
    """

    def watch(self, torch: Any) -> None:
        """Listens to nothing."""

    def watch_loaders(self) -> None:
        """Listens to nothing."""

    def watch_compiled(self) -> None:
        """Listens to nothing."""

    def narrow(self) -> None:
        """There is nothing to listen to less of."""


def _class_of(module: Any) -> str:
    """Returns the class of a module.

    Of the compiled form of a module it is the class of that.
    """
    modules = module.__dict__.get("_modules")
    # A scripted module has a container of its own kind there.
    compiled = modules.get("_orig_mod") if isinstance(modules, dict) else None
    return type(module if compiled is None else compiled).__name__
