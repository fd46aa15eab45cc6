"""The change that keeps less for the backward pass.

Parts of the network are computed again there.
"""

import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

from bottleneck.experiment.interventions.subject import Change, NotApplicable, Subject
from bottleneck.harness.stopwatch import Step

# In runs of fewer layers there is next to nothing between their inputs and outputs that need not be kept.
_LAYERS_AT_LEAST = 4
# Of models of transformers, and of diffusers.
_SWITCHES = "gradient_checkpointing_enable", "enable_gradient_checkpointing"


def _checkpoint(subject: Subject) -> Step:
    """The step with the blocks of its networks recomputed in the backward pass.

    Blocks are the children, with layers of their own, of the outermost `nn.Sequential` or `nn.ModuleList`; a sequence
    of single layers is cut into about as many runs as each run has layers (Chen et al. 2016, arXiv 1604.06174).
    Batch norms in recomputed parts update their statistics twice. A model with a switch of its own, as those of
    `transformers` and `diffusers` have, is recomputed by that: it knows what must not happen twice, such as adding keys
    and values to a cache.
    """
    if not subject.train:
        raise NotApplicable("needs a step that trains: without a backward pass nothing is kept")
    switched = [module for module in subject.modules if _switches_itself(module)]
    others = [module for module in subject.modules if module not in switched]
    containers = [holder for module in others for holder in _containers(subject.torch, module)]
    if not sum(_recompute_parts(subject.torch, container) for container in containers) and not switched:
        raise NotApplicable(f"needs blocks in an nn.Sequential or nn.ModuleList, or {_LAYERS_AT_LEAST} layers in a row")
    return subject.step


def _switches_itself(module: Any) -> bool:
    """Tells whether the model has a switch for recomputing, which is then on.

    Such switches only work in training mode.
    """
    switch = next((getattr(module, name) for name in _SWITCHES if callable(getattr(module, name, None))), None)
    if switch is None or not module.training:
        return False
    try:
        switch()
    except (NotImplementedError, ValueError):  # this kind of model supports none
        return False
    return True


def _containers(torch: Any, module: Any) -> Iterator[Any]:
    """The outermost sequences and lists of more than one part."""
    if isinstance(module, torch.nn.Sequential | torch.nn.ModuleList) and len(module) > 1:
        yield module
        return
    for child in module.children():
        yield from _containers(torch, child)


def _recompute_parts(torch: Any, container: Any) -> int:
    """The number of parts that will be recomputed."""
    blocks = [child for child in container if any(True for _ in child.children())]
    for block in blocks:
        recompute_block(block)
    if blocks or type(container) is not torch.nn.Sequential or len(container) < _LAYERS_AT_LEAST:
        return len(blocks)
    runs = _runs(list(container))
    # Of the last run all is needed at once, as the backward pass begins with it.
    parts = [_recomputed(_in_turn(run)) for run in runs[:-1]]
    container.forward = _in_turn([*parts, *runs[-1]])
    return len(parts)


def recompute_block(block: Any) -> None:
    """Lets a module compute its forward pass again in the backward pass."""
    block.forward = _recomputed(block.forward)


def _runs(layers: list[Any]) -> list[list[Any]]:
    size = math.ceil(math.sqrt(len(layers)))
    return [layers[start : start + size] for start in range(0, len(layers), size)]


def _in_turn(parts: list[Any]) -> Callable[[Any], Any]:
    def forward(values: Any) -> Any:
        for part in parts:
            values = part(values)
        return values

    return forward


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint

    def again(*positional: Any, **named: Any) -> Any:
        return checkpoint(forward, *positional, use_reentrant=False, **named)

    return again


CHANGES = (Change("checkpoint", "torch.utils.checkpoint on the blocks of the network", "same", _checkpoint),)
