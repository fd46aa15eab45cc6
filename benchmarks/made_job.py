"""Makes the traces of a job of many ranks from one real rank trace, with three faults planted.

    python -m benchmarks.made_job FOLDER --ranks 1024 --megabytes 20 [--trace TRACE] [--seed 0] [--healthy]

The events of one rank are repeated up to the size, then given to each rank with times of its own. These follow from a
small simulation: work between collectives takes a rank a little more or less time than another, a collective ends for
all ranks of its group together, once the last one has come and the transfer is done. All-reduces are among all ranks,
send and receive among the eight ranks of a host. The times of a rank follow by one increasing map from the real
times, so that events stay nested and in order. Clocks of hosts differ by up to 2 ms.

Planted: a slow host (its work takes 15 % longer), a rank with a slow loader (20 ms more per step), a late link (the
transfers within one host take three times as long). Each rank's file lies in a folder of its host; faults.txt beside
the folders says where the faults are.

Without TRACE, a rank trace of torchrec among the public traces beside a development checkout is taken. TRACE may also
be trace.rank0.json.gz of a recording of ours by gloo (`bottleneck run --nproc-per-node 2 examples/ddp.py --slow-rank 0
--slow-ms 2`), which is not repeated. Its collectives are all among all ranks, so that no link can be late, its slow
host takes 50 % longer, and its loader is waited for where the program sleeps.

What runs beside a collective is stretched with it: the map is one for all streams.
"""

import argparse
import json
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from isal import igzip

from benchmarks.repeat import repeat_trace
from bottleneck.schema.intervals import Floats
from bottleneck.trace.damage import Damage
from bottleneck.trace.inflate import read_blocks

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
RANK_TRACES = "pytorch+torchrec*sst_long_a2a*.json.gz"

HOST_RANKS = 8
_NOISE, _LATE_LINK = 0.01, 3.0
# Of a small program on CPUs work is a sixth of the step: a host that is slower by 15 % would not be worth a name.
_SLOW_WORK, _SLOW_WORK_OF_OWN = 1.15, 1.5
_LOADER_US, _SLOW_LOADER_US = 200.0, 20_000.0
_LONGEST_TRANSFER_US = 2000.0
_CLOCK_US = 2000.0

_TIMES = re.compile(rb'"ts": (\d+)(?:, "dur": (\d+))?')
_STEP = re.compile(rb"ProfilerStep#\d+")
_NCCL_ARGS = re.compile(rb'("cat": "kernel", "name": "nccl[^"]*(SendRecv|AllReduce)[^}]*?"args": \{)')
_GROUPS = {b"SendRecv": b"@HOST@", b"AllReduce": b"@WORLD@"}

# Each process is sent the template, which takes as long as some ranks take to write.
_PROCESSES, _WORTH_PROCESSES = 2, 64


@dataclass(frozen=True)
class Faults:
    """Where the faults are; null for one that is not planted."""

    slow_host: int | None
    slow_loader: int | None
    late_link: int | None


@dataclass(frozen=True, eq=False)
class Template:
    """The text of one rank cut at its times, and the moments at which the simulation changes the pace.

    ``starts`` and ``ends`` are the real times of each event, in microseconds after the first. ``knots`` are the moments
    in order; ``kinds`` says what follows each: "work", "loader", or the group of a collective, "host" or "world".
    """

    pieces: list[bytes]
    starts: Floats
    ends: Floats
    has_duration: npt.NDArray[np.bool_]
    first_us: int
    knots: Floats
    kinds: tuple[str, ...]

    @property
    def has_links(self) -> bool:
        """True where there are collectives within hosts."""
        return "host" in self.kinds


def planted(ranks: int, has_links: bool = True) -> Faults:
    """Faults on hosts that are far apart: in a job of less than four hosts, those that have a place."""
    hosts = ranks // HOST_RANKS
    if hosts < 4:
        return Faults(None, ranks - 2, None)
    return Faults(hosts // 4, (hosts // 2) * HOST_RANKS + 3, 3 * hosts // 4 if has_links else None)


def make_template(trace: Path, megabytes: float) -> Template:
    """The template of a rank of so many megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        repeated = Path(folder) / "trace.json"
        is_own = b'"gloo:' in b"".join(read_blocks(trace, Damage()))
        repeat_trace(trace, repeated, 1 if is_own else int(megabytes * 1e6))
        text = _in_microseconds(repeated.read_bytes()) if is_own else repeated.read_bytes()
    text = _NCCL_ARGS.sub(lambda found: found[1] + _GROUPS[found[2]] + b",", _without_distributed(text))
    numbers = iter(range(10**6))
    events = json.loads(re.sub(rb"@JOB@", b"null", re.sub(rb"@(HOST|WORLD)@,", b"", text)))["traceEvents"]
    first_us = min(event["ts"] for event in events if event.get("ph") == "X" and event.get("cat") != "Trace")
    loaders, text = _with_loaders(text, events, first_us)
    text = _STEP.sub(lambda _: b"ProfilerStep#%d" % next(numbers), text)
    found = list(_TIMES.finditer(text))
    edges = [0, *(edge for match in found for edge in match.span()), len(text)]
    starts = np.array([int(match[1]) for match in found], float) - first_us
    ends = starts + np.array([int(match[2] or 0) for match in found], float)
    knots, kinds = _knots(events, first_us, loaders)
    return Template(
        pieces=[text[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)],
        starts=starts,
        ends=ends,
        has_duration=np.array([match[2] is not None for match in found]),
        first_us=first_us,
        knots=knots,
        kinds=kinds,
    )


def _in_microseconds(text: bytes) -> bytes:
    """The trace with whole microseconds, as older profilers wrote them, which keeps the nesting of its events."""
    trace = json.loads(text)
    for event in trace["traceEvents"]:
        start, dur = float(event.pop("ts", 0.0)), event.pop("dur", None)
        event["ts"] = int(start)
        if dur is not None:
            event["dur"] = int(start + float(dur)) - int(start)
    return json.dumps(trace).encode()


def _without_distributed(text: bytes) -> bytes:
    """The text with a mark in place of what it says about the job."""
    begin = re.search(rb'"distributedInfo": (?=\{)', text)
    if begin is None:
        return text
    rest = text[begin.end() :].decode()
    _, length = json.JSONDecoder().raw_decode(rest)
    return text[: begin.end()] + b"@JOB@" + rest[length:].encode()


def _with_loaders(text: bytes, events: Sequence[dict[str, Any]], first_us: int) -> tuple[list[float], bytes]:
    """The moments at which a loader is waited for, one per step, and the text with an event for each.

    Nothing runs then, and nothing is queued: a kernel that was launched before would be one that the device is late to
    start.
    """
    places = [*_sleeps(events), *_idle_instants(events)]
    added = [
        b'{\n    "ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter'
        b'.__next__", "pid": %d, "tid": %d,\n    "ts": %d, "dur": 1,\n    "args": {}\n  },\n  '
        % (int(event["pid"]), int(event["tid"]), moment)
        for moment, event in places
    ]
    moments = [float(moment - first_us) for moment, _ in places]
    start = text.index(b"{", text.index(b'"traceEvents"'))
    return moments, text[:start] + b"".join(added) + text[start:]


def _sleeps(events: Sequence[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """The first instant of each call of ``time.sleep`` at which no collective runs, with an event of its thread.

    A collective of a thread beside it may outlast the begin of the call. Made longer there, the wait would be one for
    other ranks.
    """
    collectives = [event for event in events if _group_of(event) is not None]
    found = []
    for event in events:
        if event.get("name") != "<built-in function sleep>":
            continue
        moment, end = event["ts"] + 1, event["ts"] + event["dur"] - 1
        for other in sorted(collectives, key=lambda one: one["ts"]):
            if other["ts"] <= moment + 1 and moment <= other["ts"] + other["dur"]:
                moment = other["ts"] + other["dur"] + 1
        if moment < end:
            found.append((moment, event))
    return found


def _idle_instants(events: Sequence[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """The first instant of each step at which nothing runs or is queued, with an event of its thread."""
    busy = [
        event
        for event in events
        if event.get("ph") == "X" and event["cat"] not in {"user_annotation", "gpu_user_annotation", "Trace"}
    ]
    launched = {
        event["args"]["correlation"]: event["ts"]
        for event in busy
        if event["cat"] == "cuda_runtime" and "correlation" in event.get("args", {})
    }
    work = [
        (
            min(event["ts"], launched.get(event.get("args", {}).get("correlation"), event["ts"])),
            event["ts"] + event["dur"],
        )
        for event in busy
    ]
    begins, ends = (np.sort(np.array(side)) for side in zip(*work, strict=True))
    found = []
    for step in (event for event in events if str(event.get("name")).startswith("ProfilerStep")):
        instants = np.arange(step["ts"] + 1, step["ts"] + step["dur"] - 2)
        # Open at an instant: begun before the end of the next microsecond and not ended at its begin.
        is_open = np.searchsorted(begins, instants + 2, "left") > np.searchsorted(ends, instants, "right")
        if not is_open.all():
            found.append((int(instants[~is_open][0]), step))
    return found


def _group_of(event: dict[str, Any]) -> str | None:
    """The group of a collective, "host" or "world"; null for another event."""
    if event.get("cat") == "kernel" and "nccl" in event["name"].lower():
        return "host" if "SendRecv" in event["name"] else "world"
    return "world" if event.get("cat") == "user_annotation" and event["name"].startswith("gloo:") else None


def _knots(events: Sequence[dict[str, Any]], first_us: int, loaders: Sequence[float]) -> tuple[Floats, tuple[str, ...]]:
    calls = sorted(
        (event["ts"] - first_us, event["dur"], group) for event in events if (group := _group_of(event)) is not None
    )
    spans = sorted(
        [(float(start), float(dur), kind) for start, dur, kind in calls] + [(at, 1.0, "loader") for at in loaders]
    )
    knots, kinds, last = [0.0], ["work"], 0.0
    for start, dur, kind in spans:
        if start <= last or dur <= 0:
            continue  # begins within the one before: left at its pace
        last = start + dur
        knots += [start, last]
        kinds += [kind, "work"]
    return np.array(knots), tuple(kinds)


def simulate(template: Template, ranks: int, faults: Faults, seed: int) -> Floats:
    """The time of each knot on each rank, in microseconds: ranks x knots."""
    random = np.random.default_rng(seed)
    host = np.arange(ranks) // HOST_RANKS
    pace = np.ones(ranks)
    if faults.slow_host is not None:
        pace[host == faults.slow_host] = _SLOW_WORK if template.has_links else _SLOW_WORK_OF_OWN
    at_us = np.zeros((ranks, template.knots.size))
    lengths = np.diff(template.knots)
    for knot, (length, kind) in enumerate(zip(lengths.tolist(), template.kinds, strict=False)):
        before = at_us[:, knot]
        noise = 1.0 + _NOISE * random.standard_normal(ranks).clip(-3, 3)
        if kind == "work":
            after = before + length * pace * noise
        elif kind == "loader":
            after = before + _LOADER_US * noise
            if faults.slow_loader is not None:
                after[faults.slow_loader] += _SLOW_LOADER_US
        else:
            transfer = np.full(ranks, min(length, _LONGEST_TRANSFER_US))
            if kind == "host" and faults.late_link is not None:
                transfer[host == faults.late_link] *= _LATE_LINK
            group = host if kind == "host" else np.zeros(ranks, int)
            last = np.full(group.max() + 1, -np.inf)
            np.maximum.at(last, group, before)
            after = last[group] + transfer
        at_us[:, knot + 1] = after
    return at_us


def rank_text(template: Template, at_us: Floats, rank: int, ranks: int, clock_us: float) -> bytes:
    """The trace of one rank."""
    past = float(template.ends.max()) + 1.0 - template.knots[-1]
    knots = np.append(template.knots, template.knots[-1] + past)
    times = np.append(at_us, at_us[-1] + past)
    origin = template.first_us + clock_us

    def mapped(moments: Floats) -> npt.NDArray[np.int64]:
        # Moments before the first event are metadata of the trace.
        inside = np.interp(moments, knots, times)
        return np.rint(np.where(moments < 0, moments, inside) + origin).astype(np.int64)

    starts = mapped(template.starts)
    durations = mapped(template.ends) - starts
    made = [template.pieces[0]]
    for piece, start, duration, has_duration in zip(
        template.pieces[1:], starts.tolist(), durations.tolist(), template.has_duration.tolist(), strict=True
    ):
        made.append(b'"ts": %d, "dur": %d' % (start, duration) if has_duration else b'"ts": %d' % start)
        made.append(piece)
    host = rank // HOST_RANKS
    world = _group_args("0", "default_pg", range(ranks))
    local = _group_args(str(host + 1), "mesh_local", range(host * HOST_RANKS, min((host + 1) * HOST_RANKS, ranks)))
    return (
        b"".join(made)
        .replace(b"@WORLD@", world)
        .replace(b"@HOST@", local)
        .replace(b"@JOB@", _job(rank, ranks, host) if template.has_links else _own_job(rank, ranks), 1)
    )


def _group_args(name: str, description: str, members: range) -> bytes:
    listed = ", ".join(map(str, members)) if len(members) <= 32 else f"{members[0]}, {members[1]}, ..., {members[-1]}"
    return (
        f'\n      "Process Group Name": "{name}", "Process Group Description": "{description}",'
        f'\n      "Process Group Ranks": "[{listed}]", "Group size": {len(members)}'
    ).encode()


def _job(rank: int, ranks: int, host: int) -> bytes:
    local = [*range(host * HOST_RANKS, min((host + 1) * HOST_RANKS, ranks))]
    groups = [
        {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "pg_size": ranks,
            "ranks": [*range(ranks)],
        },
        {
            "pg_name": str(host + 1),
            "pg_desc": "mesh_local",
            "backend_config": "cuda:nccl",
            "pg_size": len(local),
            "ranks": local,
        },
    ]
    info = {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_count": len(groups), "pg_config": groups}
    return json.dumps(info).encode()


def _own_job(rank: int, ranks: int) -> bytes:
    """The same as our recordings of gloo say it, which know no groups."""
    return json.dumps({"backend": "gloo", "rank": rank, "world_size": ranks}).encode()


@dataclass(frozen=True, eq=False)
class _Plan:
    """What the traces of a job are written from."""

    folder: Path
    template: Template
    at_us: Floats
    clocks_us: Floats
    compress: bool

    def write(self, rank: int) -> None:
        host, ranks = rank // HOST_RANKS, self.at_us.shape[0]
        place = self.folder / f"node-{host:04d}"
        place.mkdir(parents=True, exist_ok=True)
        text = rank_text(self.template, self.at_us[rank], rank, ranks, float(self.clocks_us[host]))
        # Names say nothing about the rank, so that only the file itself can.
        name = f"{(rank * 7919 + 13) % 100_003:06d}.pt.trace.json"
        if self.compress:
            (place / f"{name}.gz").write_bytes(igzip.compress(text, 1))
        else:
            (place / name).write_bytes(text)


def write_job(
    folder: Path,
    template: Template,
    ranks: int,
    *,
    seed: int = 0,
    healthy: bool = False,
    compress: bool = False,
) -> Faults:
    """Writes the traces of a job into folders of its hosts; returns the faults."""
    faults = Faults(None, None, None) if healthy else planted(ranks, template.has_links)
    clocks_us = np.random.default_rng(seed + 1).uniform(-_CLOCK_US, _CLOCK_US, -(-ranks // HOST_RANKS))
    plan = _Plan(folder, template, simulate(template, ranks, faults, seed), clocks_us, compress)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "faults.txt").write_text(f"{faults}\n")
    if ranks < _WORTH_PROCESSES:
        for rank in range(ranks):
            plan.write(rank)
        return faults
    told_s = time.monotonic()
    with ProcessPoolExecutor(_PROCESSES, mp_context=multiprocessing.get_context("fork")) as pool:
        for done, _ in enumerate(pool.map(plan.write, range(ranks), chunksize=8), 1):
            if time.monotonic() - told_s > 10:
                told_s = time.monotonic()
                print(f"made {done:,} of {ranks:,} ranks", file=sys.stderr, flush=True)
    return faults


def default_trace() -> Path:
    """A public rank trace; SystemExit where there is none."""
    found = sorted(TRACES.glob(RANK_TRACES))
    if not found:
        sys.exit("name a rank trace of a CUDA program with --trace")
    return found[1 % len(found)]


def main() -> None:
    """Writes one job and says what is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--megabytes", type=float, default=2.5, help="of each rank's trace")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--healthy", action="store_true", help="plant no faults")
    parser.add_argument("--gzip", action="store_true", help="write .json.gz")
    given = parser.parse_args()
    began_s = time.perf_counter()
    template = make_template(given.trace or default_trace(), given.megabytes)
    faults = write_job(given.folder, template, given.ranks, seed=given.seed, healthy=given.healthy, compress=given.gzip)
    size = sum(file.stat().st_size for file in given.folder.glob("*/*.json*"))
    print(f"{given.ranks} ranks, {size / 1e6:,.0f} MB, {time.perf_counter() - began_s:.0f} s; {faults}")


if __name__ == "__main__":
    main()
