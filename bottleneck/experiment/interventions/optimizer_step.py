"""Changes to how parameters are updated.

One kernel updates many of them, and gradients are dropped rather than zeroed.
"""

import dis
import inspect
from collections.abc import Sequence
from functools import partial
from types import CodeType
from typing import Any

from bottleneck.experiment.interventions.subject import Change, NotApplicable, Subject, code_of
from bottleneck.harness.stopwatch import Step
from bottleneck.harness.torch_private import takes_scaled_gradients


def fuse_optimizers(subject: Subject) -> Step:
    """Lets optimizers update all parameters in one kernel.

    The kernel does the arithmetic of a step at once.
    """
    return _switch(subject, "fused", {"fused": True, "foreach": False})


def batch_optimizers(subject: Subject) -> Step:
    """Lets optimizers make each operation of an update in one call.

    The call works on all parameters.
    """
    return _switch(subject, "foreach", {"foreach": True, "fused": False})


def drop_gradients(subject: Subject) -> Step:
    """The step in which `zero_grad` drops gradients, whatever its argument."""
    if not any(_zeroes(code) for code in code_of(list(subject.codes))):
        raise NotApplicable("needs a step that calls zero_grad(set_to_none=False); gradients are dropped by default")
    for holder in (*subject.optimizers, *subject.modules):
        holder.__dict__["zero_grad"] = partial(_drop, holder)
    return subject.step


def _drop(holder: Any, *_: Any, **__: Any) -> None:
    type(holder).zero_grad(holder, set_to_none=True)


def _zeroes(code: CodeType) -> bool:
    """Returns whether this code calls `zero_grad` with False.

    Its bytecode shows it, and no earlier call lies between.
    """
    is_near = False
    for instruction in dis.get_instructions(code):
        if instruction.argval == "zero_grad":
            is_near = True
        elif is_near and instruction.opname.startswith("LOAD_") and instruction.argval is False:
            return True
        elif instruction.opname.startswith("CALL"):
            is_near = False
    return False


def _switch(subject: Subject, flag: str, switches: dict[str, bool]) -> Step:
    if not subject.optimizers:
        raise NotApplicable("needs a step that holds an optimizer")
    reasons = [_refusal(optimizer, flag) or _rebuild(optimizer, switches) for optimizer in subject.optimizers]
    if all(reasons):
        raise NotApplicable("; ".join(dict.fromkeys(filter(None, reasons))))
    return subject.step


def _refusal(optimizer: Any, flag: str) -> str | None:
    """Why an optimizer cannot have this flag, or has nothing to gain from it."""
    name = type(optimizer).__name__
    if flag not in inspect.signature(type(optimizer)).parameters:
        return f"needs an optimizer with a {flag} implementation; {name} has none"
    groups = optimizer.param_groups
    if all(group.get("fused") for group in groups):
        return f"needs an optimizer that is not fused yet; {name} is"
    if flag == "foreach" and all(_is_batched(group) for group in groups):
        return f"needs an optimizer that goes from parameter to parameter; {name} takes all at once already"
    return None


def _is_batched(group: dict[str, Any]) -> bool:
    """Returns whether the group's update is batched.

    It is set, or torch sets it by itself, as it does for parameters on a GPU.
    """
    if group.get("foreach") is None:
        return all(parameter.is_cuda for parameter in group["params"])
    return bool(group["foreach"])


def _rebuild(optimizer: Any, switches: dict[str, bool]) -> str | None:
    """Gives an optimizer the settings of one made with these switches.

    Its state, hooks and place stay.

    The reason why torch would not make such a one, if so.
    """
    kind = type(optimizer)
    accepted = inspect.signature(kind).parameters
    settings = {name: value for name, value in {**optimizer.defaults, **switches}.items() if name in accepted}
    groups = [{**group, **switches, "params": _named(group)} for group in optimizer.param_groups]
    for group in groups:
        group.pop("param_names", None)
    try:
        fresh = kind(groups, **settings)
    except (RuntimeError, ValueError, TypeError) as error:
        return f"needs other parameters: {error}"
    for old, new in zip(optimizer.param_groups, fresh.param_groups, strict=True):
        old.update({name: value for name, value in new.items() if name != "params"})
    optimizer.defaults = fresh.defaults
    for name, value in vars(fresh).items():
        vars(optimizer).setdefault(name, value)
    takes_scaled_gradients(optimizer, like=fresh)
    _move_counts(optimizer)
    return None


def _named(group: dict[str, Any]) -> Sequence[Any]:
    names = group.get("param_names")
    return list(zip(names, group["params"], strict=True)) if names else group["params"]


def _move_counts(optimizer: Any) -> None:
    """Fused kernels count steps where the parameters lie, the others on the host."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            state = optimizer.state.get(parameter, {})
            if hasattr(state.get("step"), "to"):
                state["step"] = state["step"].to(parameter.device)


CHANGES = (
    Change("fused-optimizer", "update all parameters in one kernel: fused=True", "reordered", fuse_optimizers),
    Change("foreach-optimizer", "update all parameters in a few calls: foreach=True", "reordered", batch_optimizers),
    Change(
        "set-to-none", "drop gradients instead of zeroing them: zero_grad(set_to_none=True)", "same", drop_gradients
    ),
)
