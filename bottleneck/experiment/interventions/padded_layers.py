"""Pads a vocabulary: embeddings and layers of classes get rows that nobody uses."""

from collections.abc import Iterator
from typing import Any

from bottleneck.experiment.interventions.subject import Change, NotApplicable, Subject
from bottleneck.harness.stopwatch import Step

# Rows of so many numbers fill whole tiles of matrix units; a layer of fewer classes costs next to nothing.
_MULTIPLE, _CLASSES = 64, 1024


def pad_vocabulary(subject: Subject) -> Step:
    """Rounds the rows of embeddings and layers of classes up to multiples of 64.

    The added rows are zero, and no target names them. A layer whose results another layer takes is left alone.
    """
    torch = subject.torch
    parts = list(dict.fromkeys(part for module in subject.modules for part in module.modules()))
    taken = {size for part in parts for size in _inputs(part)}
    odd = [(part, name) for part in parts for name in _rows_of(torch, part) if _is_odd(getattr(part, name), taken)]
    if not odd:
        raise NotApplicable(f"needs an embedding or a layer of classes whose rows are no multiple of {_MULTIPLE}")
    sizes: dict[int, Any] = {}
    for part, name in odd:
        count = -(-getattr(part, name) // _MULTIPLE) * _MULTIPLE
        for parameter in (part.weight, getattr(part, "bias", None)):
            if parameter is not None and parameter.shape[0] != count:
                sizes[id(parameter)] = (parameter, tuple(parameter.shape))
                parameter.data, parameter.grad = _padded(parameter.data, count), None
        setattr(part, name, count)
    for optimizer in subject.optimizers:
        for parameter, size in sizes.values():
            state = optimizer.state.get(parameter, {})
            for key, value in state.items():
                if hasattr(value, "shape") and tuple(value.shape) == size:
                    state[key] = _padded(value, parameter.shape[0])
    return subject.step


def _rows_of(torch: Any, part: Any) -> Iterator[str]:
    """Yields the attribute with the number of rows.

    Of exactly these types: a subclass may do something else.
    """
    if type(part) is torch.nn.Embedding:
        yield "num_embeddings"
    if type(part) is torch.nn.Linear and part.out_features >= _CLASSES:
        yield "out_features"


def _inputs(part: Any) -> Iterator[int]:
    """Yields the sizes that a layer expects of its input."""
    if isinstance(size := getattr(part, "in_features", None), int):
        yield size
    yield from (size for size in (getattr(part, "normalized_shape", None) or ()) if isinstance(size, int))


def _is_odd(count: int, taken: set[int]) -> bool:
    return count % _MULTIPLE > 0 and count >= _CLASSES and count not in taken


def _padded(tensor: Any, count: int) -> Any:
    whole = tensor.new_zeros((count, *tensor.shape[1:]))
    whole[: tensor.shape[0]] = tensor
    return whole


CHANGES = (
    Change(
        "pad-vocabulary",
        f"round a vocabulary up to a multiple of {_MULTIPLE} (the added classes are never used)",
        "other work",
        pad_vocabulary,
    ),
)
