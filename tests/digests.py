"""Digests of ranks made by hand or by a small simulation of a job, for tests of what the reduction says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bottleneck.schema.analysis import LedgerEntry
from bottleneck.schema.digest import CollectiveCalls, Message, RankDigest
from bottleneck.schema.linked_trace import ProcessGroup
from bottleneck.schema.measurements import StepTime, StepTimes
from bottleneck.schema.records import replace

EPOCH_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Place:
    """Where a rank is: its process groups, its host and the size of the job."""

    groups: tuple[ProcessGroup, ...] = ()
    host: str | None = None
    world: int | None = None


@dataclass(frozen=True)
class Call:
    """One collective of one rank: kind, process group, start, end and payload."""

    kind: str
    group: str
    start_us: float
    end_us: float
    payload: float | None = 1e6


def make_digest(
    rank: int,
    calls: Sequence[Call],
    ledger_us: Mapping[str, float],
    steps: Sequence[float],
    place: Place,
) -> RankDigest:
    """The digest of a rank whose steps begin at these times; the ledger adds up to one of them."""
    wall_us = sum(ledger_us.values())
    calls = sorted(calls, key=lambda call: call.start_us)
    sizes = {group.name: group.size for group in place.groups}
    messages = [Message(call.kind, "bf16", sizes.get(call.group), call.payload) for call in calls]
    distinct, names = list(dict.fromkeys(messages)), list(dict.fromkeys(call.group for call in calls))
    entries = [LedgerEntry(name, name.split(".")[0], us, us / wall_us) for name, us in ledger_us.items()]
    return RankDigest(
        path=f"rank{rank}.json",
        host=place.host,
        rank=rank,
        world_size=place.world,
        start_unix_ns=EPOCH_NS,
        steps=StepTimes(
            count=len(steps),
            wall_us=wall_us,
            profiled_us=None,
            unprofiled_us=None,
            perturbation=None,
            source="marks",
            each=tuple(StepTime(f"step {number}", wall_us) for number in range(len(steps))),
        ),
        ledger=tuple(entries),
        collectives=(),
        bound="compute",
        calls=CollectiveCalls(
            messages=tuple(distinct),
            groups=tuple(names),
            message=np.array([distinct.index(message) for message in messages], dtype=np.int64),
            group=np.array([names.index(call.group) for call in calls], dtype=np.int64),
            start_us=np.array([call.start_us for call in calls], dtype=np.float64),
            end_us=np.array([call.end_us for call in calls], dtype=np.float64),
            is_inside=np.ones(len(calls), dtype=bool),
        ),
        process_groups=place.groups,
        step_start_us=np.array(steps, dtype=np.float64),
        step_wall_us=np.full(len(steps), wall_us),
        set_aside=(None,) * len(steps),
    )


@dataclass(frozen=True)
class Work:
    """Work of every rank in a step."""

    us: float
    account: str = "compute"


@dataclass(frozen=True)
class Collective:
    """A collective in a step: kind, whose group, transfer time and payload."""

    kind: str
    group: str
    us: float
    payload: float = 1e6


# Two layers: an exchange within each host, then gradients among all ranks.
PROGRAM = (
    Work(500, "overhead.input"),
    Work(4000),
    Collective("all_gather", "host", 300),
    Work(2000, "memory"),
    Work(1500, "overhead.dispatch"),
    Collective("all_reduce", "world", 800, 4e6),
    Work(1000),
    Collective("all_reduce", "world", 400, 2e6),
)


def _nothing(_step: int, _rank: int) -> float:
    return 0.0


@dataclass(frozen=True)
class Job:
    """A job whose ranks all do the same, but for what is planted.

    ``pace`` multiplies all work of a rank; ``late_us`` is added to its first work, the loader's. ``links`` multiplies
    the transfers in the group of a host. ``clocks_us`` is by how much the wall clock of a host is ahead.
    """

    ranks: int = 128
    host_ranks: int = 8
    steps: int = 6
    program: tuple[Work | Collective, ...] = PROGRAM
    pace: Mapping[int, float] = field(default_factory=dict)
    late_us: Callable[[int, int], float] = _nothing
    links: Mapping[int, float] = field(default_factory=dict)
    clocks_us: Mapping[int, float] = field(default_factory=dict)
    noise: float = 0.01
    seed: int = 0

    def digests(self) -> list[RankDigest]:
        """The digests of all ranks."""
        random = np.random.default_rng(self.seed)
        host = np.arange(self.ranks) // self.host_ranks
        pace = np.array([self.pace.get(rank, 1.0) for rank in range(self.ranks)])
        at_us = np.zeros(self.ranks)
        starts: list[np.ndarray] = []
        calls: list[list[Call]] = [[] for _ in range(self.ranks)]
        ledgers: list[dict[str, float]] = [{} for _ in range(self.ranks)]
        for step in range(self.steps):
            starts.append(at_us.copy())
            for number, item in enumerate(self.program):
                before = at_us.copy()
                if isinstance(item, Work):
                    at_us = at_us + item.us * pace * (1 + self.noise * random.standard_normal(self.ranks).clip(-3, 3))
                    if number == 0:
                        at_us = at_us + [self.late_us(step, rank) for rank in range(self.ranks)]
                    account = item.account
                else:
                    at_us = self._after(item, at_us, host)
                    account = "communication"
                    for rank in range(self.ranks):
                        name = "0" if item.group == "world" else str(1 + host[rank])
                        calls[rank].append(Call(item.kind, name, before[rank], at_us[rank], item.payload))
                for rank, us in enumerate((at_us - before).tolist()):
                    ledgers[rank][account] = ledgers[rank].get(account, 0.0) + us / self.steps
        return [
            replace(
                make_digest(
                    rank,
                    calls[rank],
                    ledgers[rank],
                    [float(start[rank]) for start in starts],
                    Place(self.groups(rank), f"node-{host[rank]}", self.ranks),
                ),
                start_unix_ns=EPOCH_NS + round(1e3 * self.clocks_us.get(int(host[rank]), 0.0)),
            )
            for rank in range(self.ranks)
        ]

    def groups(self, rank: int) -> tuple[ProcessGroup, ...]:
        """The world, and the ranks of the host."""
        host = rank // self.host_ranks
        local = range(host * self.host_ranks, min((host + 1) * self.host_ranks, self.ranks))
        return (
            ProcessGroup("0", "default_pg", self.ranks, tuple(range(self.ranks))),
            ProcessGroup(str(1 + host), "mesh_tp", len(local), tuple(local)),
        )

    def _after(self, item: Collective, at_us: np.ndarray, host: np.ndarray) -> np.ndarray:
        """When each rank leaves a collective: after the last of its group has come, and the transfer."""
        group = np.zeros(self.ranks, dtype=np.int64) if item.group == "world" else host
        last = np.full(int(group.max()) + 1, -np.inf)
        np.maximum.at(last, group, at_us)
        factor = [self.links.get(int(each), 1.0) if item.group == "host" else 1.0 for each in host]
        return last[group] + item.us * np.array(factor)
