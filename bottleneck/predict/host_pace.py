"""Predicts the host's time for issuing a step from its ops by kind, and combines it with the time of the device."""

from collections.abc import Mapping, Sequence

import numpy as np

from bottleneck.predict.rates import LIBRARY_KINDS
from bottleneck.predict.step_kernels import FAMILY_OF, Kernel
from bottleneck.schema.intervals import Floats
from bottleneck.schema.predicted_step import Backend
from bottleneck.schema.step_calls import StepCall, StepCalls

_KIND_OF_FAMILY = {
    "convolution": "convolution",
    "matmul": "product",
    "normalization": "norm",
    "recurrent": "recurrent",
    "attention": "product",
}
HOST_KINDS = (
    *("op", "convolution", "product", "norm", "recurrent", "logsumexp", "view"),
    *("compiled step", "generated kernel", "library kernel", "graph step"),
)
GRAPHS = frozenset({"cudagraphs", "reduce-overhead", "max-autotune"})
# Exponent of the smooth maximum of the two times: the longer one hides the shorter one.
_SHARPNESS = 6.0


def host_kind(call: StepCall) -> str:
    """The kind of a call, one of HOST_KINDS; the host's time for a call is learned per kind."""
    if call.name.endswith("logsumexp"):
        return "logsumexp"
    if "softmax" in call.name:
        return "op"
    return _KIND_OF_FAMILY.get(FAMILY_OF.get(call.name, ""), "op")


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
    """The host's time for issuing a step, as a multiple of its time for one op, without what precedes the first op."""
    return sum(count * rates[f"host:{kind}"] for kind, count in counts.items())


def step_us(device_us: Floats, host_us: Floats, pace_us: Floats, rates: Mapping[str, float]) -> Floats:
    """Time of a step that starts on an idle device and ends when the device is done; all in microseconds.

    ``pace_us`` is the host's time for one op. The time before the first kernel, in which the host enters the program,
    is learned as a multiple of it.
    """
    on_device = device_us + rates["latency"]
    on_host = host_us + rates["host:first"] * pace_us
    return np.asarray((on_device**_SHARPNESS + on_host**_SHARPNESS) ** (1 / _SHARPNESS))
