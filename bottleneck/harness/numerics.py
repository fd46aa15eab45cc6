"""Digests what a step returns, and what it makes of the parameters.

A gate holds outputs to a lock-file by it.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bottleneck.harness.module_paths import named_tensors
from bottleneck.harness.stopwatch import Step
from bottleneck.schema.numerics import Numerics, TensorDigest

# Beyond these no copy of the parameters is made, and no further tensor is looked at.
_MOST_COPIED_BYTES = 4e9
_MOST_TENSORS = 300
_DEEPEST = 6
# A fixed sign per element: one bit of its index times a large odd number (Knuth's multiplicative hash).
_FACTOR, _BIT = 2654435761, 17
_LARGEST = 1e300


def take_numerics(step: Step, torch: Any, steps: int) -> Numerics:
    """Takes so many steps, and digests what they return and change.

    The digests are of what the first and the last return, and of all parameters after them, with their gradients.
    """
    before = _copies(torch)
    tensors: dict[str, TensorDigest] = {}
    for number in range(1, steps + 1):
        result = step()
        if number in {1, steps}:
            tensors |= _digests_of(result, f"returned of step {number}", torch)
        del result
    gradients: dict[str, TensorDigest] = {}
    for name, tensor in itertools.islice(named_tensors(torch), _MOST_TENSORS):
        tensors[name] = digest(tensor, torch, before.get(id(tensor)))
        if tensor.is_leaf and tensor.grad is not None:
            gradients[name] = digest(tensor.grad, torch)
    reason = "" if tensors else "the step returns no numbers, and no module with parameters is alive"
    return Numerics(steps, tensors, gradients=gradients, reason=reason)


def _copies(torch: Any) -> dict[int, Any]:
    """Copies all parameters to the host, by address.

    Empty where they would take gigabytes.
    """
    tensors = [tensor for _, tensor in itertools.islice(named_tensors(torch), _MOST_TENSORS)]
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors) > _MOST_COPIED_BYTES:
        return {}
    return {id(tensor): tensor.detach().to("cpu", copy=True) for tensor in tensors}


def _digests_of(result: Any, name: str, torch: Any) -> dict[str, TensorDigest]:
    tensors = itertools.islice(_numbers(result, name, torch, 0), _MOST_TENSORS)
    return {path: digest(tensor, torch) for path, tensor in tensors}


def _numbers(value: Any, name: str, torch: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yields the tensors and numbers in what a step returned.

    Whatever the nesting of tuples, lists and mappings.
    """
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, bool | int | float):
        yield name, torch.tensor(float(value), dtype=torch.float64)
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _numbers(entry, f"{name}[{key!r:.40}]", torch, depth + 1)
    elif depth < _DEEPEST and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, entry in enumerate(value):
            yield from _numbers(entry, f"{name}[{index}]", torch, depth + 1)


def digest(tensor: Any, torch: Any, before: Any = None) -> TensorDigest:
    """Digests a tensor.

    ``before`` is a copy of what it was before the steps.
    """
    with torch.no_grad():
        values = _flat(tensor, torch)
        is_finite = torch.isfinite(values)
        nan, count = int(torch.isnan(values).sum()), values.numel()
        values = torch.where(is_finite, values, torch.zeros_like(values))
        signs = _signs(count, torch)
        norm, projection = _norm_and_projection(values, signs)
        moved = moved_projection = None
        if before is not None and before.shape == tensor.shape:
            change = values - torch.where(is_finite, _flat(before, torch), torch.zeros_like(values))
            moved, moved_projection = _norm_and_projection(change, signs)
    return TensorDigest(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        nan=nan,
        inf=int(count - int(is_finite.sum())) - nan,
        norm=norm,
        mean=_finite(values.mean()) if count else 0.0,
        projection=projection,
        moved=moved,
        moved_projection=moved_projection,
    )


def _flat(tensor: Any, torch: Any) -> Any:
    """Returns all elements in float64 on the host.

    The parts of complex numbers come one after the other.
    """
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.to("cpu", torch.float64).reshape(-1)


def _signs(count: int, torch: Any) -> Any:
    index = torch.arange(count, dtype=torch.int64)
    return 1.0 - 2.0 * ((index * _FACTOR >> _BIT) & 1).to(torch.float64)


def _norm_and_projection(values: Any, signs: Any) -> tuple[float, float]:
    return _finite(values.norm()), _finite((values * signs).sum())


def _finite(value: Any) -> float:
    """Returns the finite number.

    One whose square or sum float64 cannot hold is the largest that a file holds.
    """
    number = float(value)
    return number if math.isfinite(number) else _LARGEST
