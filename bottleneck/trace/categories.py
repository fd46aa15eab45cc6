"""Maps raw event categories and names to the categories of EVENTS.

They are those of every era and vendor. Source of the raw names: Kineto's libkineto/include/ActivityType.h and real
traces of PyTorch 1.4 to 2.12.
"""

import re
from collections.abc import Collection
from typing import Literal

from bottleneck.schema.op_names import MARK_PREFIXES
from bottleneck.trace.vendors import category_of_vendor

Role = Literal["op", "launch", "device", "frame", "plain"]

# Annotations of these names are work: gloo and similar backends mark the work of their threads per collective.
HOST_COLLECTIVE, _CARRIERS = "host collective", ("gloo:", "mpi:", "ucc:")

# Category -> raw categories in lower case that are no vendor's own; those are in vendors.tsv. All others are 'other'.
_RAW_NAMES = {
    "op": "cpu_op operator",
    "annotation": "user_annotation",
    "python": "python_function",
    "line": "python_line",
    "runtime": "runtime driver glow_runtime privateuse1_runtime privateuse1_driver",
    "kernel": "kernel concurrent_kernel",
    "copy": "memcpy gpu_memcpy",
    "fill": "memset gpu_memset",
    "gpu_annotation": "gpu_user_annotation",
    "counter": "hardware_counters",
    "profiler": "overhead trace external_correlation",
}
_BY_RAW_NAME = {raw: category for category, raws in _RAW_NAMES.items() for raw in raws.split()}
_BY_RAW_NAME[HOST_COLLECTIVE] = "collective"

# Raw categories that `implied_category` gives to events without one, so that they are counted by kind.
LEGACY_OP, LEGACY_KERNEL, ASCEND_TASK, ASCEND_HOST = "CPU functions", "CUDA functions", "Task Type", "CANN"
NO_CATEGORY, MANY_CATEGORIES = "(none)", "(many more)"
_IMPLIED = {LEGACY_OP.lower(): "op", LEGACY_KERNEL.lower(): "kernel", "task type": "kernel", "cann": "runtime"}

_ROLES: dict[str, Role] = {
    "op": "op",
    "collective": "op",
    "runtime": "launch",
    "kernel": "device",
    "copy": "device",
    "fill": "device",
    "python": "frame",
}

# Nodes of autograd, which have no namespace in their names.
_NODE = re.compile(r"Backward\d*$")

# MTIA reports everything its command processors do under one category; waits and copies go by name.
_MTIA_RAW = "mtia_ccp_events"
_MTIA = {"event_wait": "sync", "event_record": "sync", "dma_request": "copy"}


def category_of(raw: str) -> str:
    """The category of a raw one, whatever its case."""
    lower = raw.lower()
    return _BY_RAW_NAME.get(lower) or _IMPLIED.get(lower) or category_of_vendor(lower) or "other"


def role_of(raw: str) -> Role:
    """The set of arguments that the reader decodes for events of a raw category."""
    return _ROLES.get(category_of(raw), "plain")


def depends_on_name(raw: str) -> bool:
    """True where `category_by_name` may differ from `category_of`."""
    return category_of(raw) == "op" or raw == _MTIA_RAW


def category_by_name(raw: str, name: str) -> str:
    """The category where the name overrules the raw category."""
    category = category_of(raw)
    # Until 1.11 (and on Ascend) marks of the profiler and the optimizer are written as ordinary ops.
    if category == "op" and name.startswith(MARK_PREFIXES):
        return "annotation"
    if category == "op" and is_host_collective(name):
        return "collective"
    if raw == _MTIA_RAW:
        return _MTIA.get(name, category)
    return category


def range_names(raw: str, names: Collection[str]) -> frozenset[str]:
    """Gives the names among those of ops that are ranges of the program.

    Legacy arrays write ``record_function`` ranges as ops. Ops have a namespace from 1.6 on, but for nodes of autograd;
    where none has one, nothing tells them apart.
    """
    if raw.lower() != LEGACY_OP.lower() or not any("::" in name for name in names):
        return frozenset()
    return frozenset(name for name in names if "::" not in name and not _NODE.search(name))


def is_host_collective(name: str) -> bool:
    """True for the names of annotations that are collectives executed by a host thread."""
    return name.startswith(_CARRIERS)


def implied_category(pid: object, args: bytes) -> str:
    """Gives the raw category that pid and arguments of an event imply.

    For events without one of their own; NO_CATEGORY when nothing implies one. Legacy ``autograd.profiler`` arrays (to
    1.7, and builds without Kineto) name it in ``pid``; torch_npu in ``args``.
    """
    if pid in {LEGACY_OP, LEGACY_KERNEL}:
        return str(pid)
    if b'"Task Type"' in args:
        return ASCEND_TASK
    return ASCEND_HOST if b'"connection_id"' in args else NO_CATEGORY
