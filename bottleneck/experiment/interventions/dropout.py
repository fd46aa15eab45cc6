"""The change that draws the masks of dropout from random bits."""

import functools
from typing import Any

from bottleneck.experiment.interventions.subject import Change, NotApplicable, Subject
from bottleneck.harness.stopwatch import Step


def _draw_from_bits(subject: Subject) -> Step:
    """Makes nn.Dropout in training draw its masks from random bits.

    It is the module that the finding dropout-masks proposes.
    """
    torch = subject.torch
    if subject.device_types() - {"cpu"}:
        raise NotApplicable("needs a step on the CPU: a device draws masks in the kernel that applies them")
    layers = [
        part
        for module in subject.modules
        for part in module.modules()
        # Of exactly this type: a subclass may do something else.
        if type(part) is torch.nn.Dropout and part.training and 0 < part.p < 1
    ]
    if not layers:
        raise NotApplicable("needs modules of nn.Dropout in training")
    for layer in layers:
        layer.forward = functools.partial(drop_by_bits, torch, layer)
    return subject.step


def drop_by_bits(torch: Any, layer: Any, x: Any) -> Any:
    """Leaves a part of the numbers out, and scales the others.

    A number of 64 random bits has the masks of four.
    """
    if not layer.training or not layer.p:
        return x
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    keep = bits[: x.numel()].view(x.shape) >= round(layer.p * 65536) - 32768
    return x * keep.to(x.dtype).mul_(1 / (1 - layer.p))


CHANGES = (Change("dropout-bits", "draw the masks of dropout from random bits", "reordered", _draw_from_bits),)
