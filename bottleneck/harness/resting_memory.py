"""Sums the memory that models and optimizers hold from step to step.

The allocator's events of a recording begin with the recording. What was allocated before is found here, at a step
boundary: it reads sizes of tensors, and none of their values.
"""

import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any

from bottleneck.harness.module_paths import gradient_of, instances_of, named_tensors
from bottleneck.schema.measurements import RestingKind, RestingMemory

_MOST_TENSORS = 200_000


def find_resting_memory(torch: Any) -> tuple[RestingMemory, ...]:
    """Sums parameters, buffers, gradients and optimizer states by device.

    Tensors that share memory count once, as what comes first of these. Those whose memory torch does not tell count
    nothing.
    """
    sums: dict[int | None, dict[RestingKind, int]] = defaultdict(lambda: defaultdict(int))
    seen: set[tuple[int | None, int]] = set()
    for kind, tensor in islice(_held(torch), _MOST_TENSORS):
        with contextlib.suppress(Exception):  # a fake or sharded tensor, or one of a subclass
            storage = tensor.untyped_storage()
            device = None if tensor.device.type == "cpu" else tensor.device.index or 0
            key, size = (device, storage.data_ptr()), storage.nbytes()
            if key[1] and key not in seen:
                seen.add(key)
                sums[device][kind] += size
    return tuple(RestingMemory(device, dict(kinds)) for device, kinds in sums.items())


def _held(torch: Any) -> Iterator[tuple[RestingKind, Any]]:
    """Yields the tensors of models, then of optimizers."""
    optimizers = instances_of(sys.modules["torch.optim"].Optimizer) if "torch.optim" in sys.modules else []
    named = named_tensors(torch)
    parameters = [tensor for _, tensor in named if isinstance(tensor, torch.nn.Parameter)]
    parameters += [tensor for one in optimizers for group in one.param_groups for tensor in group["params"]]
    for tensor in parameters:
        yield "parameters", tensor
    for _, tensor in named:
        yield "buffers", tensor
    for tensor in parameters:
        if gradient_of(tensor) is not None:
            yield "gradients", tensor.grad
    for optimizer in optimizers:
        for state in list(optimizer.state.values()):
            for entry in list(state.values()) if isinstance(state, dict) else ():
                if isinstance(entry, torch.Tensor):
                    yield "optimizer state", entry
