"""Predicts the host's time for issuing a step from its ops by kind.

It combines that with the time of the device.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from bottleneck.cost.call import OpCall, Unmodelled, parse_call
from bottleneck.predict.host_work import host_work_us
from bottleneck.predict.rates import LIBRARY_KINDS
from bottleneck.predict.step_kernels import FAMILY_OF, Kernel
from bottleneck.schema.device_facts import board_of
from bottleneck.schema.intervals import Floats
from bottleneck.schema.predicted_step import Backend
from bottleneck.schema.step_calls import StepCall, StepCalls

_KIND_OF_FAMILY = {
    "convolution": "convolution",
    "matmul": "product",
    "normalization": "norm",
    "recurrent": "recurrent",
    "attention": "product",
    "reduction": "reduction",
    "passes": "reduction",
    "sort": "reduction",
    "pooling": "reduction",
}
# Other reductions keep positions.
_PLAIN_REDUCTIONS = frozenset({"sum", "mean", "linalg_vector_norm", "var", "std"})
# What the host does before the first kernel: it enters the program, checks guards of compiled code, or starts a graph.
LEADS = ("first", "compiled step", "graph step")
HOST_KINDS = (
    *("op", "new op", "reduction", "convolution", "depthwise", "product", "norm", "recurrent", "logsumexp", "view"),
    *("generated kernel", "library kernel"),
)
# Ways to run a step that launch the kernels of eager mode.
EAGER_KERNELS = ("eager", "cudagraphs", "captured")
# Exponent of the smooth maximum of the two times: the longer one hides the shorter one.
_SHARPNESS = 6.0
# A server is of the time of its GPUs. From 2017 to 2023 the clock of single threads went from 3.1 to 3.9 GHz (AWS m5
# and m7i), and their instructions per clock grew 1.18 and 1.19 times (Intel on Sunny Cove and Golden Cove): 1.77 times
# in six years.
_FASTER_PER_YEAR = 1.10
_YEAR = 2022


def host_kind(call: StepCall) -> str:
    """Returns the kind of a call, one of HOST_KINDS.

    The host's time for a call is learned per kind.
    """
    name = call.name.removeprefix("aten::")
    if name.endswith("logsumexp"):
        return "logsumexp"
    if "softmax" in name or name in _PLAIN_REDUCTIONS:
        return "op"
    parsed = _parsed(call) if name == "convolution" else None
    # ATen has depthwise kernels of its own, for which cuDNN chooses nothing (ConvUtils.h, use_cudnn_depthwise).
    if parsed is not None and (parsed.integer(8) or 1) > 1 and parsed.tensor(1).shape[1] == 1:
        return "depthwise"
    return _KIND_OF_FAMILY.get(FAMILY_OF.get(call.name, ""), "op")


def _adds_bias(call: StepCall) -> bool:
    """True for a convolution with a bias.

    An op of its own adds it (ATen's Convolution.cpp).
    """
    parsed = _parsed(call) if call.name == "aten::convolution" else None
    return parsed is not None and parsed.optional_tensor(2) is not None


def _parsed(call: StepCall) -> OpCall | None:
    try:
        return parse_call(call.name, call.dims, call.types, call.strides, call.concrete)
    except (Unmodelled, LookupError):
        return None


def host_counts(step: StepCalls, backend: Backend, kernels: Sequence[Kernel]) -> dict[str, float]:
    """Counts the ops of each kind that the host issues.

    Views and ops that only call others are 'view'. Compiled code checks its guards once and launches its kernels
    itself; a CUDA graph is one launch. Both hold modules: an optimizer issues its ops one by one.
    """
    counts = dict.fromkeys((*LEADS, *HOST_KINDS), 0.0)
    updates = [call for call in step.calls if call.phase == "optimizer"]
    if backend == "captured":
        # Modules that train are two graphs, one for each direction.
        counts["graph step"] = 2.0 if step.settings.training else 1.0
        _count_ops(counts, _outside_modules(step))
    elif replays_graph(step, backend):
        counts["graph step"] = 1.0
        _count_ops(counts, updates)
    elif backend in EAGER_KERNELS:
        counts["first" if backend == "eager" else "compiled step"] = 1.0
        _count_ops(counts, step.calls)
    else:
        counts["compiled step"] = 1.0
        for kernel in kernels:
            if step.calls[kernel.call].phase != "optimizer":
                kind = "library kernel" if kernel.kind in LIBRARY_KINDS else "generated kernel"
                counts[kind] += kernel.launches * kernel.count
        _count_ops(counts, updates)
    return counts


def _outside_modules(step: StepCalls) -> list[StepCall]:
    """Returns the calls that no captured module makes.

    A step that does not train, and makes none in modules, is one graph.
    """
    in_modules = [call for call in step.calls if call.module is not None and call.phase != "optimizer"]
    if not in_modules and not step.settings.training:
        return []
    return [call for call in step.calls if call.module is None or call.phase == "optimizer"]


def _count_ops(counts: dict[str, float], calls: Sequence[StepCall]) -> None:
    """Adds the ops that the host issues one by one."""
    # The first call of an op in a step finds the caches of the processor without it.
    counts["new op"] += float(len({call.name for call in calls}))
    for call in calls:
        counts["view" if call.on_host else host_kind(call)] += call.calls
        counts["op"] += call.calls if _adds_bias(call) else 0.0
        counts["view"] += max(call.host_ops - 1, 0) * call.calls


def replays_graph(step: StepCalls, backend: Backend) -> bool:
    """True where the step is launched as a CUDA graph.

    The backend 'cudagraphs' runs a step that writes to its inputs or buffers op by op instead
    (torch/_dynamo/backends/cudagraphs.py, check_for_skip); a batch norm in training counts its batches in a buffer.
    Inductor knows the addresses of buffers, so that its graphs may write to them.
    """
    if backend == "cudagraphs":
        return not any(_writes_to_what_was_there(step, call) for call in step.calls)
    return backend in ("captured", "reduce-overhead", "max-autotune")


def _writes_to_what_was_there(step: StepCalls, call: StepCall) -> bool:
    if call.phase == "optimizer":
        return False
    if not step.storages:
        return _counts_its_batches(call)
    written = {use.storage for use in call.outputs if use.storage is not None}
    return any(step.storages[number].created < 0 for number in written if number < len(step.storages))


def _counts_its_batches(call: StepCall) -> bool:
    """True for a batch norm in training.

    A trace does not tell what its ops write to.
    """
    parsed = _parsed(call) if call.name.endswith("batch_norm") else None
    return parsed is not None and parsed.flag(5) is True


def host_time_units(counts: Mapping[str, float], rates: Mapping[str, float]) -> tuple[float, float]:
    """Returns the host's times before the first kernel and for issuing.

    As multiples of its time for one op.
    """
    lead, issue = (sum(counts[kind] * rates[f"host:{kind}"] for kind in kinds) for kinds in (LEADS, HOST_KINDS))
    return lead, issue


def own_work_units(step: StepCalls, rates: Mapping[str, float]) -> tuple[float, float]:
    """Returns the host's own work before the first kernel and beside the device.

    As multiples of its time for one op. In a loop the device works on the step before meanwhile, unless the host waits
    for it in each step.
    """
    work = sum(host_work_us(step).values()) / rates["pace"]
    return (work, 0.0) if any(call.waits for call in step.calls) else (0.0, work)


def slower_than_usual(device_name: str) -> float:
    """Returns the factor by which a device's host is slower than usual.

    The usual pace is kept for hosts of some years.
    """
    return float(_FASTER_PER_YEAR ** (_YEAR - board_of(device_name).year))


def pace_of_op(op_us: float, rates: Mapping[str, float]) -> float:
    """Returns the pace of a host that issues an elementwise op in this time.

    That is what `bottleneck calibrate` measures on a machine with the device: a loop of the same op.
    """
    return op_us / rates["host:op"]


def step_us(device_us: Floats, lead_us: Floats, issue_us: Floats, rates: Mapping[str, float]) -> Floats:
    """Returns the time of a step that starts on an idle device.

    It ends when the device is done; all in microseconds. The device waits for the host's ``lead_us``. From then on it
    works while the host issues, for ``issue_us``.
    """
    on_device = device_us + rates["latency"]
    return np.asarray(lead_us + (on_device**_SHARPNESS + issue_us**_SHARPNESS) ** (1 / _SHARPNESS))


def sensitivities(device_us: Floats, lead_us: Floats, issue_us: Floats, rates: Mapping[str, float]) -> Floats:
    """Returns by how much the step grows, relatively, with its times.

    Those of the device, of the host's start and of its issuing.
    """
    whole = step_us(device_us, lead_us, issue_us, rates)
    device = (whole - lead_us) * ((device_us + rates["latency"]) / (whole - lead_us)) ** _SHARPNESS / whole
    start = lead_us / whole
    return np.array([device, start, 1.0 - device - start])
