"""Folds collectives by kind and size.

Each has the bytes that it carries, its pace on the links, and how much of its time is waiting.

A collective ends for no rank before the last one has come, so its duration is transfer and waiting together. The
quickest call of one size waited least: its time stands for the transfer of all, and the rest is waiting.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.kernel_rows import KernelTimes
from bottleneck.schema.analysis import CollectiveSummary
from bottleneck.schema.digest import CollectiveCalls, Message
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.records import replace
from bottleneck.schema.tables import as_integers
from bottleneck.units import ITEM_BYTES, SHORT_DTYPE, US_PER_S

NO_SIZES = "no message sizes in the trace"
NO_GROUP = "the number of ranks is not in the trace"
ONE_CALL = "one call of this size: transfer and waiting cannot be told apart"


class Kind(Struct, frozen=True):
    """A kind of collective.

    It says which side is its payload, and how often a link carries it among n ranks (nccl-tests).
    """

    name: str
    pattern: str
    gives_more: bool = False
    passes: float = 1.0
    shared: bool = True

    def factor(self, ranks: int) -> float:
        """Bytes over each link per byte of payload."""
        return self.passes * ((ranks - 1) / ranks if self.shared else 1.0)


# Over lower-case names without underscores: kernels say AllGather, arguments _allgather_base or allgather_into_tensor.
KINDS = (
    Kind("reduce_scatter", "reducescatter"),
    Kind("all_reduce", "allreduce|crossdevicereduce", passes=2.0),
    Kind("all_gather", "allgather", gives_more=True),
    Kind("all_to_all", "alltoall|all2all"),
    Kind("broadcast", "broadcast", shared=False),
    Kind("send_recv", "sendrecv|^send|^recv", shared=False),
    Kind("scatter", "scatter"),
    Kind("gather", "gather", gives_more=True),
    Kind("reduce", "reduce", shared=False),
    Kind("barrier", "barrier", shared=False),
)
_NO_OTHER = Kind("", "", passes=0.0, shared=False)

# Element types as collectives spell them, as ops do.
_SPELLED = {
    "Float": "float",
    "Double": "double",
    "Half": "c10::Half",
    "BFloat16": "c10::BFloat16",
    "Long": "long",
    "Int": "int",
    "Short": "short",
    "Char": "signed char",
    "Byte": "unsigned char",
    "Bool": "bool",
    "ComplexFloat": "c10::complex<float>",
}


class Pace(Struct, frozen=True):
    """The quickest of so many calls."""

    us: float
    calls: int


class _CollectiveCall(NamedTuple):
    """One call in the trace.

    It has its kernel, the op that issued it, the op around that, and its arguments.
    """

    kernel: str
    op: str
    around: str
    dims: str | None
    types: str | None
    around_dims: str | None
    around_types: str | None
    collective: str | None
    given: int | None
    taken: int | None
    ranks: int | None
    dtype: str | None


_SHAPES = ("dims", "types")
_ARGS = ("collective", "input_elements", "output_elements", "group_size", "message_dtype")


def fold_collectives(rows: KernelTimes) -> tuple[CollectiveSummary, ...]:
    """Folds collectives of the window by message, most time first.

    Each has the pace of the quickest call of the whole trace.
    """
    linked = rows.linked
    members, code, messages = _messages(linked)
    if not members.size:
        return ()
    paces = _paces(linked, members, code, messages)
    dur, runs = linked.kernels["dur_us"].to_numpy()[members], rows.runs[members]
    size = len(messages)
    calls = np.bincount(code, weights=runs, minlength=size) / rows.repeats
    spent = np.bincount(code, weights=dur * runs, minlength=size) / rows.repeats
    exposed = np.minimum(np.bincount(code, weights=rows.us[members], minlength=size), spent)
    forward = np.bincount(code, weights=runs * _before_backward(linked, members), minlength=size) / rows.repeats
    summaries = [
        replace(_summary(message, paces[message], *amounts), forward_calls=early)
        for message, early, *amounts in zip(
            messages, forward.tolist(), calls.tolist(), spent.tolist(), exposed.tolist(), strict=True
        )
        if amounts[0] > 0
    ]
    return tuple(sorted(summaries, key=lambda one: (-one.us, one.name, one.bytes or 0.0)))


def _before_backward(linked: Linked, members: Integers) -> Flags:
    """Marks collectives issued before the first backward node of a step."""
    ops, kernels = linked.ops, linked.kernels
    node = ops["is_autograd"].to_numpy() & ops["step"].notna().to_numpy()
    if not node.any():
        return np.zeros(members.size, dtype=bool)
    first = ops["ts_us"][node].groupby(as_integers(ops["step"])[node]).min()
    begun = first.reindex(as_integers(kernels["step"])[members]).to_numpy()
    issued = kernels["launch_ts_us"].to_numpy(dtype=np.float64, na_value=np.nan)[members]
    return np.asarray(issued < begun)


def quickest_calls(several: Iterable[CollectiveCalls]) -> Mapping[Message, Pace]:
    """The quickest call of each message over the calls of several ranks."""
    paces: dict[Message, Pace] = {}
    for calls in several:
        quickest = np.full(len(calls.messages), np.inf)
        np.minimum.at(quickest, calls.message, calls.end_us - calls.start_us)
        counts = np.bincount(calls.message, minlength=quickest.size)
        for message, us, count in zip(calls.messages, quickest.tolist(), counts.tolist(), strict=True):
            earlier = paces.get(message, Pace(math.inf, 0))
            paces[message] = Pace(min(earlier.us, us), earlier.calls + count)
    return paces


def repaced(
    collectives: Sequence[CollectiveSummary], quickest: Mapping[Message, Pace]
) -> tuple[CollectiveSummary, ...]:
    """The same collectives beside the quickest calls of all ranks."""
    return tuple(
        replace(
            _summary(message, quickest[message], one.calls, one.us, one.exposed_us), forward_calls=one.forward_calls
        )
        if (message := message_of(one)) in quickest
        else one
        for one in collectives
    )


def with_transfer(one: CollectiveSummary, share: float) -> CollectiveSummary:
    """Gives a collective with its transfer as a share of its time.

    The share follows from the ranks that came last.
    """
    transfer_us = one.us * min(share, 1.0)
    said = "transfer is the time of the rank that came last"
    reason = said if one.bytes is not None else f"{one.reason}; {said}"
    return replace(one, transfer_us=transfer_us, wait_us=one.us - transfer_us, reason=reason)


def messages_of(linked: Linked, rows: Integers) -> list[Message]:
    """The message of each of these collectives, by their rows in KERNELS."""
    members, code, messages = _messages(linked)
    place = np.full(len(linked.kernels), -1, dtype=np.int64)
    place[members] = code
    return [messages[position] for position in place[rows].tolist()]


def message_of(one: CollectiveSummary) -> Message:
    """The message that a summary tells of."""
    payload = None if one.bytes is None else float(round(one.bytes / one.calls))
    return Message(one.name, one.dtype, one.group_size, payload)


def _summary(message: Message, pace: Pace, calls: float, us: float, exposed_us: float) -> CollectiveSummary:
    payload, ranks = message.payload, message.group_size
    sized = payload is not None
    factor = kind_of(message.name).factor(ranks) if ranks else None
    paced = sized and pace.calls > 1
    transfer_us = min(pace.us * calls, us) if paced else None
    return CollectiveSummary(
        name=message.name,
        dtype=message.dtype,
        group_size=ranks,
        calls=calls,
        us=us,
        exposed_us=exposed_us,
        bytes=payload * calls if payload is not None else None,
        bus_bytes_per_s=payload * factor / pace.us * US_PER_S if payload and factor and pace.us else None,
        transfer_us=transfer_us,
        wait_us=None if transfer_us is None else us - transfer_us,
        reason=NO_SIZES if not sized else NO_GROUP if not ranks else None if paced else ONE_CALL,
    )


def kind_of(name: str) -> Kind:
    """Gives the kind that a collective or kernel is named after.

    It is a kind without a name where there is none.
    """
    squashed = name.lower().replace("_", "")
    return next((kind for kind in KINDS if re.search(kind.pattern, squashed)), _NO_OTHER)


def _messages(linked: Linked) -> tuple[Integers, Integers, list[Message]]:
    """Gives the collectives of KERNELS and their messages.

    They are rows of KERNELS, the message of each as a position, and the distinct messages.
    """
    kernels = linked.kernels
    members = np.flatnonzero((kernels["kind"] == "collective").to_numpy())
    if not members.size:
        return members, members, []
    calls = _calls(linked, members)
    distinct = {call: _message(call) for call in dict.fromkeys(calls)}
    messages = list(dict.fromkeys(distinct.values()))
    place = {message: position for position, message in enumerate(messages)}
    return members, np.array([place[distinct[call]] for call in calls], dtype=np.int64), messages


def _calls(linked: Linked, members: Integers) -> list[_CollectiveCall]:
    kernels, ops, signatures = linked.kernels, linked.ops, linked.trace.signatures
    args = linked.trace.device_args.set_index("event").reindex(kernels["event"].to_numpy()[members])
    recorded = [args[name].astype(object).where(args[name].notna(), None).tolist() for name in _ARGS]
    name = np.append(ops["name"].astype(object).to_numpy(), "")
    parent, signature = (
        np.append(ops[column].to_numpy(dtype=np.int64, na_value=-1), -1) for column in ("parent", "signature")
    )
    op = kernels["op"].to_numpy(dtype=np.int64, na_value=-1)[members]
    shapes = [
        np.append(signatures[column].to_numpy(), [None])[signature[row]].tolist()
        for row in (op, parent[op])
        for column in _SHAPES
    ]
    kernel = kernels["name"].astype(object).to_numpy()[members].tolist()
    rows = zip(kernel, name[op].tolist(), name[parent[op]].tolist(), *shapes, *recorded, strict=True)
    return [_CollectiveCall(*row) for row in rows]


def _message(call: _CollectiveCall) -> Message:
    """Gives the message of a call.

    It follows from its arguments, else from the shapes of its op or of the one around, else it is unknown.

    The op may know more than the kernel: an all-to-all runs as sends, and newer libraries have one kernel for all.
    """
    named = (kind_of(name) for name in (call.collective or "", call.op, call.around, call.kernel))
    kind = next((kind for kind in named if kind.name), _NO_OTHER)
    elements, spelled = (call.taken if kind.gives_more else call.given), _SPELLED.get(call.dtype or "", call.dtype)
    if elements is None:
        elements, spelled = _from_shapes(call, kind)
    item = ITEM_BYTES.get(spelled or "")
    payload = None if elements is None or item is None else float(round(elements * item))
    ranks = call.ranks if call.ranks is not None and call.ranks > 0 else None
    return Message(kind.name or call.kernel, SHORT_DTYPE.get(spelled or "", spelled), ranks, payload)


# What one rank holds of what goes in or comes out is smaller than the payload: both sides have to be known.
_SIDES_DIFFER = frozenset({"all_gather", "gather", "scatter", "reduce_scatter"})
# Kernels that add up are named for the dtype; those that only move bytes are not.
_REDUCED = re.compile(r"(?:Sum|Prod|Max|Min|MinMax|PreMulSum|SumPostDiv)_(_*[a-z]\w*?)(?=_[A-Z]|\(|$)")
_KERNEL_DTYPES = {
    "f16": "c10::Half",
    "half": "c10::Half",
    "__half": "c10::Half",
    "bf16": "c10::BFloat16",
    "__nv_bfloat16": "c10::BFloat16",
    "hip_bfloat16": "c10::BFloat16",
    "f32": "float",
    "float": "float",
    "f64": "double",
    "double": "double",
}


def _from_shapes(call: _CollectiveCall, kind: Kind) -> tuple[int | None, str | None]:
    """Gives elements and dtype of the payload by recorded tensors.

    These are tensors of the op, else of the op around. Null where unknown.

    The first argument of `record_param_comms` is what goes in. c10d's own ops have the result first, and the payload is
    the larger side. A list of tensors has no dtype: the name of a kernel that reduces gives it.
    """
    reduced = _REDUCED.search(call.kernel)
    by_kernel = None if reduced is None else _KERNEL_DTYPES.get(reduced[1])
    around = (call.around_dims, call.around_types) if _ISSUES.match(call.around) else (None, None)
    for dims, types in ((call.dims, call.types), around):
        tensors = _tensors(dims, types, by_kernel)
        if not tensors:
            continue
        if kind.name not in _SIDES_DIFFER:
            return tensors[0]
        if len(tensors) > 1:
            return max(tensors, key=lambda tensor: tensor[0])
        if not kind.gives_more and call.op == _RECORD and dims == call.dims:
            return tensors[0]
    return None, None


_RECORD = "record_param_comms"
_ISSUES = re.compile(r"_?c10d(?:_functional)?::")


def _tensors(dims: str | None, types: str | None, listed: str | None) -> list[tuple[int, str]]:
    """Gives elements and dtype of the leading tensor arguments.

    Of lists of tensors the dtype is ``listed``.
    """
    try:
        sizes, names = json.loads(dims or "[]"), json.loads(types or "[]")
    except (ValueError, RecursionError):
        return []
    tensors = []
    for size, name in zip(sizes, names, strict=False) if isinstance(sizes, list) and isinstance(names, list) else ():
        count = _elements(size)
        if count is not None and isinstance(name, str) and name in ITEM_BYTES:
            tensors.append((count, name))
        elif isinstance(size, list) and size and listed is not None:
            counts = [_elements(inner) for inner in size]
            if all(count is not None for count in counts):
                tensors.append((sum(count or 0 for count in counts), listed))
    return tensors


def _elements(size: object) -> int | None:
    """Gives the elements of a tensor of this size.

    Null for what is no size with dimensions.
    """
    if not (isinstance(size, list) and size):
        return None
    return math.prod(size) if all(type(length) is int and length >= 0 for length in size) else None


def _paces(linked: Linked, members: Integers, code: Integers, messages: Sequence[Message]) -> dict[Message, Pace]:
    dur: Floats = linked.kernels["dur_us"].to_numpy()[members]
    quickest = pd.Series(dur).groupby(code).agg(["min", "size"])
    return {messages[place]: Pace(float(us), int(calls)) for place, us, calls in quickest.itertuples()}
