"""Small programs on a CPU whose ledger is known before there is a trace: what its threads did, in microseconds.

As for the programs on a GPU, the list of what the time *is* comes first, and the events are invented to make it true.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bottleneck.schema.device import Device
from tests.builders import Event, complete, frame, op, step
from tests.laws.programs import MAIN, ORIGIN_US, SECONDS_PER_US, Ids, Told

WORKER = 400
BYTES_PER_S, FLOPS_PER_S, FLOOR_US = 1e10, 1e11, 1.0
# A machine whose every level of memory has one speed, so that the size of a tensor plays no part.
CPU = Device(
    name="a CPU",
    vendor=None,
    kind="cpu",
    count=1,
    peaks_flops_per_s={"fp32_tensor": FLOPS_PER_S, "fp32_vector": FLOPS_PER_S},
    bandwidth_bytes_per_s=BYTES_PER_S,
    launch_floor_us=FLOOR_US,
    source="measured",
    ridge_flops_per_byte={},
    bandwidth_by_bytes=((1.0, BYTES_PER_S), (1e12, BYTES_PER_S)),
)
EXPLAINED = 0.8

# Account of a stretch in which one thread does one thing. Work goes by the bound of its op.
ACCOUNTS: Mapping[str, str] = {
    "memory op": "memory",
    "compute op": "compute",
    "unknown op": "unknown",
    "tiny op": "overhead.launch_floor",
    "view": "overhead.dispatch",
    "empty": "overhead.allocator",
    "python": "overhead.python",
    "loader": "overhead.input",
    "collector": "overhead.gc",
    "load by ops": "overhead.input",
}
WORK = ("memory op", "compute op", "unknown op")
SHORTEST_US = {"memory op": 8, "compute op": 8, "unknown op": 8, "load by ops": 4}
TINY_OP_US = 2


@dataclass(frozen=True)
class Span:
    """A stretch of the main thread's time; with ``beside``, the worker runs an op of that kind all the while.

    ``lead_us`` and ``tail_us`` are spent in an op that only calls the one which works.
    """

    kind: str
    us: int
    beside: str | None = None
    lead_us: int = 0
    tail_us: int = 0

    @property
    def whole_us(self) -> int:
        """The stretch with what the calling op adds to it."""
        return self.lead_us + self.us + self.tail_us


@dataclass(frozen=True)
class HostProgram:
    """Steps of spans."""

    steps: tuple[tuple[Span, ...], ...]


def known(spans: tuple[Span, ...]) -> Told:
    """The contents of a step, added up from the account of each microsecond."""
    accounts: Counter[str] = Counter()
    for span in spans:
        accounts["overhead.dispatch"] += span.lead_us + span.tail_us
        if span.beside is None:
            accounts[ACCOUNTS[span.kind]] += span.us
        elif span.kind == "python":  # a thread that works while the other runs Python leaves nothing to wait for
            accounts[ACCOUNTS[span.beside]] += span.us
        else:
            accounts[ACCOUNTS[span.kind]] += span.us / 2
            accounts[ACCOUNTS[span.beside]] += span.us / 2
    return Told(accounts=accounts, wall_us=sum(span.whole_us for span in spans))


def emit(program: HostProgram) -> list[Event]:
    """The trace of a program."""
    events: list[Event] = []
    ids, at = Ids(), ORIGIN_US
    for number, spans in enumerate(program.steps):
        events.append(step(number, at, sum(span.whole_us for span in spans)))
        for span in spans:
            if span.lead_us:
                events.append(op("aten::matmul", at, span.whole_us, tid=MAIN, external_id=ids.next()))
            events += _emit_kind(span.kind, at + span.lead_us, span.us, MAIN, ids)
            if span.beside:
                events += _emit_kind(span.beside, at + span.lead_us, span.us, WORKER, ids)
            at += span.whole_us
    events.append(frame("train.py(3): <module>", ORIGIN_US - 7, at - ORIGIN_US + 9))
    return events


def _emit_kind(kind: str, at: float, us: int, tid: int, ids: Ids) -> list[Event]:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    match kind:
        case "python":
            return []
        case "loader":
            return [complete(loader, "user_annotation", at, us, tid=tid)]
        case "load by ops":
            stack = op("custom::decode", at, us, tid=tid, external_id=ids.next())
            return [complete(loader, "user_annotation", at, us, tid=tid), stack]
        case "collector":
            return [frame("<built-in function collect>", at, us, tid=tid)]
    name, dims = _described(kind, us)
    return [op(name, at, us, tid=tid, external_id=ids.next(), dims=dims)]


def _described(kind: str, us: int) -> tuple[str, list[list[int]] | None]:
    """Op and dims of work that takes ``EXPLAINED`` of its time at the machine's peak, or of no work at all."""
    work_us = EXPLAINED * us * SECONDS_PER_US
    side = round((work_us * FLOPS_PER_S / 2) ** (1 / 3))
    return {
        "memory op": ("aten::relu", [[math.floor(work_us * BYTES_PER_S / 8)]]),
        "compute op": ("aten::mm", [[side, side], [side, side]]),
        "unknown op": ("custom::step", None),
        "tiny op": ("aten::relu", [[1]]),
        "view": ("aten::view", [[8, 8], []]),
        "empty": ("aten::empty", [[]]),
    }[kind]
