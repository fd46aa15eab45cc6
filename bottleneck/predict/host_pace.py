"""Predicts the time that the host needs to issue a step: ops by kind, at the pace of a machine."""

from collections.abc import Mapping, Sequence

from bottleneck.cost import OP_FAMILIES
from bottleneck.predict.rates import LIBRARY_KINDS
from bottleneck.predict.step_kernels import Kernel
from bottleneck.schema.predicted_step import Backend
from bottleneck.schema.step_calls import StepCall, StepCalls

_KIND_OF_FAMILY = {
    "convolution": "convolution",
    "matmul": "product",
    "normalization": "norm",
    "recurrent": "recurrent",
    "attention": "product",
}
_FAMILY_OF = {name: family for family, formulas in OP_FAMILIES.items() for name in formulas}
HOST_KINDS = (
    *("op", "convolution", "product", "norm", "recurrent", "logsumexp", "view"),
    *("compiled step", "generated kernel", "library kernel", "graph step"),
)
GRAPHS = frozenset({"cudagraphs", "reduce-overhead", "max-autotune"})


def host_kind(call: StepCall) -> str:
    """Kind of a call by which the cost of its issue is learned; see HOST_KINDS."""
    if call.name.endswith("logsumexp"):
        return "logsumexp"
    if "softmax" in call.name:
        return "op"
    return _KIND_OF_FAMILY.get(_FAMILY_OF.get(call.name, ""), "op")


def host_counts(step: StepCalls, backend: Backend, kernels: Sequence[Kernel]) -> dict[str, float]:
    """Number of ops of each kind that the host issues; views and ops that only call others are 'view'.

    Compiled code checks its guards once and launches its kernels itself; a CUDA graph is one launch.
    """
    counts = dict.fromkeys(HOST_KINDS, 0.0)
    if backend in GRAPHS:
        counts["graph step"] = 1.0
    elif backend != "eager":
        counts["compiled step"] = 1.0
        for kernel in kernels:
            kind = "library kernel" if kernel.kind in LIBRARY_KINDS else "generated kernel"
            counts[kind] += kernel.launches * kernel.count
    else:
        for call in step.calls:
            counts[host_kind(call)] += call.calls
            counts["view"] += max(call.host_ops - 1, 0) * call.calls
    return counts


def host_units(counts: Mapping[str, float], rates: Mapping[str, float]) -> float:
    """The issue of a step in units of the pace, without what precedes its first op."""
    return sum(count * rates[f"host:{kind}"] for kind, count in counts.items())
