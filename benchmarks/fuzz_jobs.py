"""Makes jobs of 4 to 64 ranks with planted faults and damaged files, and checks whom their reports name.

    python -m benchmarks.fuzz_jobs [--jobs 1000] [--seed 1] [--first 0] [--job N] [--keep FOLDER]

Each job is a number: all of it follows from seed and number, so that `--job N` repeats one. A small simulation gives
the times of all ranks: loader, Python, kernels, and collectives of each host and of all ranks, which end for all of
their ranks together. At most one fault is planted: kernels, a line of Python or a loader that take a rank longer, or
the link of a host. Beside it files are damaged: a rank has a second file (a copy, one of an earlier run in which it was
slow, or a newer one that is cut off), files are cut off, empty or missing, clocks are off by up to seconds. What a rank
is called is told by its trace, or by the name of its file alone.

Each job goes through `report`. Printed is every job whose report names an innocent rank or link, misses the planted
one, or does not tell which files it left out; then the counts. Exit status 1 where there was such a job.
"""

import argparse
import collections
import contextlib
import gzip
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bottleneck import cli
from bottleneck.schema.intervals import Floats
from tests.builders import H100, Event, complete, frame, kernel, launch, op, step

Fault = Literal["kernels", "python", "loader", "link"]
FAULTS: tuple[Fault | None, ...] = ("kernels", "python", "loader", "link", None)
SIZES = (4, 4, 5, 6, 6, 8, 8, 8, 12, 12, 16, 24, 32, 64)
_STEPS, _EPOCH_NS = 6, 1_700_000_000_000_000_000
_LOADER_US, _PYTHON_US, _KERNEL_US, _TRANSFER_US, _NOISE = 400.0, 300.0, 2000.0, 500.0, 0.01
# Of a step of 8 ms; those of groups and links add to the transfers of each step.
_EXTRA_US = (2500.0, 6000.0)
_LEAST_HOSTS_OF_LINKS = 3
_BAD, _LOST = 1, 99


@dataclass(frozen=True)
class Job:
    """What is planted in a job, and what is wrong with its files.

    ``twice`` names the kind of the second file by rank, ``clocks_us`` by how much the clock of a rank is ahead.
    """

    ranks: int
    host_ranks: int
    fault: Fault | None
    at: int
    extra_us: float
    names: Literal["named", "told", "both"]
    compress: bool
    cut: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    twice: dict[int, str] = field(default_factory=dict)
    clocks_us: dict[int, float] = field(default_factory=dict)

    @property
    def hosts(self) -> int:
        """Hosts, the last of which may have fewer ranks."""
        return -(-self.ranks // self.host_ranks)

    def expected(self) -> set[str]:
        """The names of what is planted."""
        if self.fault is None:
            return set()
        return {f"link of node-{self.at}"} if self.fault == "link" else {f"rank {self.at}"}


def make_job(chance: random.Random) -> Job:
    """A job drawn at random; the files of the planted rank, or of the host of a planted link, are there and whole."""
    ranks, host_ranks = chance.choice(SIZES), chance.choice((2, 4, 8))
    hosts = -(-ranks // host_ranks)
    fault = chance.choice(FAULTS)
    whole_hosts = ranks // host_ranks
    if fault == "link" and whole_hosts < _LEAST_HOSTS_OF_LINKS:
        fault = "kernels"
    at = chance.randrange(whole_hosts if fault == "link" else ranks)
    kept = {at}
    if fault == "link":
        # Of fewer links whose ranks are all there, none can be told to be slow.
        equal = [(at + more) % whole_hosts for more in range(_LEAST_HOSTS_OF_LINKS)]
        kept = {host * host_ranks + rank for host in equal for rank in range(host_ranks)}
    spare = [*({*range(ranks)} - kept)]
    chance.shuffle(spare)
    most = max(0, min(len(spare), ranks // 4 if fault is not None else ranks // 2))
    lost = spare[: chance.choice((0, 0, 1, 2, most)) if most > 1 else most * chance.randrange(2)][:most]
    kinds = [chance.choice(("cut", "empty", "missing")) for _ in lost]
    whole = [rank for rank in range(ranks) if rank not in lost]
    twice = {
        rank: chance.choice(("copy", "earlier", "cut")) for rank in chance.sample(whole, chance.choice((0, 0, 1, 2)))
    }
    clocks = {}
    if chance.random() < 0.5:
        reach_us = chance.choice((100.0, 2000.0, 5e6))
        host_us = [chance.uniform(-reach_us, reach_us) for _ in range(hosts)]
        clocks = {rank: host_us[rank // host_ranks] for rank in range(ranks)}
    elif chance.random() < 0.3:
        clocks = {chance.randrange(ranks): chance.choice((-3e6, 5000.0, 9e6))}
    return Job(
        *(ranks, host_ranks, fault, at, chance.uniform(*_EXTRA_US)),
        names=chance.choice(("named", "told", "both")),
        compress=chance.random() < 0.5,
        cut=tuple(rank for rank, kind in zip(lost, kinds, strict=True) if kind == "cut"),
        empty=tuple(rank for rank, kind in zip(lost, kinds, strict=True) if kind == "empty"),
        missing=tuple(rank for rank, kind in zip(lost, kinds, strict=True) if kind == "missing"),
        twice=twice,
        clocks_us=clocks,
    )


@dataclass(frozen=True, eq=False)
class Times:
    """When each part of each step begins and ends on each rank: parts x (ranks, steps), in microseconds."""

    begins: dict[str, Floats]
    ends: dict[str, Floats]


_PARTS = ("loader", "python", "kernels", "local", "more", "world")


def simulate(job: Job, seed: str, slow: dict[int, float] | None = None) -> Times:
    """The times of a job; ``slow`` adds to the kernels of some ranks beside what is planted."""
    chance = np.random.default_rng([*seed.encode()])
    host = np.arange(job.ranks) // job.host_ranks
    begins = {part: np.zeros((job.ranks, _STEPS)) for part in _PARTS}
    ends = {part: np.zeros((job.ranks, _STEPS)) for part in _PARTS}
    at_us = np.zeros(job.ranks)
    usual = {"loader": _LOADER_US, "python": _PYTHON_US, "kernels": _KERNEL_US, "more": _KERNEL_US}
    for number in range(_STEPS):
        at_us = at_us + 20.0
        for part in _PARTS:
            begins[part][:, number] = at_us
            if part in usual:
                spent = usual[part] * (1 + _NOISE * chance.standard_normal(job.ranks).clip(-3, 3))
                if part == job.fault:
                    spent[job.at] += job.extra_us
                for rank, us in (slow or {}).items():
                    spent[rank] += us if part == "kernels" else 0.0
                at_us = at_us + spent
            else:
                at_us = _collective(job, part, at_us, host)
            ends[part][:, number] = at_us
            at_us = at_us + 10.0
    return Times(begins, ends)


def _collective(job: Job, part: str, at_us: Floats, host: np.ndarray) -> Floats:
    group = host if part == "local" else np.zeros(job.ranks, int)
    last = np.full(int(group.max()) + 1, -np.inf)
    np.maximum.at(last, group, at_us)
    transfer = np.full(last.size, _TRANSFER_US)
    if part == "local" and job.fault == "link":
        transfer[job.at] += job.extra_us
    return np.asarray(last[group] + transfer[group])


def rank_events(job: Job, times: Times, rank: int) -> list[Event]:
    """The trace of a rank: the host does what comes first and issues the rest, then waits for the device."""
    events: list[Event] = []
    host = rank // job.host_ranks
    local = range(host * job.host_ranks, min((host + 1) * job.host_ranks, job.ranks))

    def told(name: str, group: range) -> dict[str, object]:
        return {
            "Collective name": "allreduce",
            "In msg nelems": 1_000_000,
            "Out msg nelems": 1_000_000,
            "Group size": len(group),
            "dtype": "Float",
            "Process Group Name": name,
            "Process Group Description": "default_pg" if name == "0" else "mesh_local",
        }

    for number in range(_STEPS):
        begin, end = ({part: float(side[part][rank, number]) for part in _PARTS} for side in (times.begins, times.ends))
        first = 100 * number
        issue_us = end["python"]
        last = end["world"] + 5
        events += [
            step(number, begin["loader"] - 10, last - begin["loader"] + 14),
            complete(
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                "user_annotation",
                begin["loader"],
                end["loader"] - begin["loader"],
            ),
            frame("train.py(31): augment", begin["python"], end["python"] - begin["python"]),
        ]
        for place, part in enumerate(("kernels", "local", "more", "world")):
            at_us, correlation = issue_us + 2.0 * place, first + place + 1
            name = "ampere_sgemm_128x64_tn"
            args: dict[str, object] = {}
            if part in {"local", "world"}:
                name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                args = told(str(host + 1), local) if part == "local" else told("0", range(job.ranks))
            dims = [[2048, 2048], [2048, 2048]]
            issuer = "aten::mm" if not args else "c10d::allreduce_"
            events += [
                op(issuer, at_us, 1.8, dims=dims, external_id=correlation),
                launch(correlation, at_us + 0.2, 1.2),
                kernel(correlation, begin[part], end[part] - begin[part], name, args=args),
            ]
        events.append(
            complete(
                "cudaDeviceSynchronize",
                "cuda_runtime",
                issue_us + 9,
                last - issue_us - 9,
                args={"correlation": first + 50},
            )
        )
    return events


def rank_document(job: Job, events: Sequence[Event], rank: int, start_ns: int) -> dict[str, Any]:
    """The trace as JSON, with its rank where the traces of the job tell theirs."""
    host = rank // job.host_ranks
    local = [*range(host * job.host_ranks, min((host + 1) * job.host_ranks, job.ranks))]
    groups = [
        {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "pg_size": job.ranks,
            "ranks": [*range(job.ranks)],
        },
        {
            "pg_name": str(host + 1),
            "pg_desc": "mesh_local",
            "backend_config": "cuda:nccl",
            "pg_size": len(local),
            "ranks": local,
        },
    ]
    info = {"backend": "nccl", "rank": rank, "world_size": job.ranks, "pg_count": 2, "pg_config": groups}
    if job.names == "named":
        del info["rank"]
    return {
        "schemaVersion": 1,
        "deviceProperties": [H100],
        "distributedInfo": info,
        "baseTimeNanoseconds": start_ns + round(1e3 * job.clocks_us.get(rank, 0.0)),
        "traceEvents": [*events],
    }


def write_job(folder: Path, job: Job, seed: str) -> None:
    """Writes the files of a job, each into the folder of its host."""
    times = simulate(job, seed)
    earlier = (
        simulate(job, f"{seed} earlier", dict.fromkeys(job.twice, 20_000.0))
        if "earlier" in job.twice.values()
        else None
    )
    for rank in range(job.ranks):
        if rank in job.missing:
            continue
        place = folder / f"node-{rank // job.host_ranks}"
        place.mkdir(parents=True, exist_ok=True)
        name = f"{(rank * 7919 + 13) % 100_003:06d}" if job.names == "told" else f"trace.rank{rank}"
        content = _content(job, times, rank, _EPOCH_NS)
        if rank in job.cut:
            content = content[: len(content) // 2]
        if rank in job.empty:
            content = b""
        suffix = ".json.gz" if job.compress else ".json"
        (place / f"{name}{suffix}").write_bytes(content)
        kind = job.twice.get(rank)
        if kind == "copy":
            (place / f"{name}.copy{suffix}").write_bytes(content)
        elif kind == "earlier" and earlier is not None:
            (place / f"{name}.earlier{suffix}").write_bytes(_content(job, earlier, rank, _EPOCH_NS - 3600 * 10**9))
        elif kind == "cut":
            newer = _content(job, times, rank, _EPOCH_NS + 60 * 10**9)
            (place / f"{name}.later{suffix}").write_bytes(newer[: len(newer) // 2])


def _content(job: Job, times: Times, rank: int, start_ns: int) -> bytes:
    text = json.dumps(rank_document(job, rank_events(job, times, rank), rank, start_ns)).encode()
    return gzip.compress(text, 1) if job.compress else text


def faults_of(job: Job, analysis: dict[str, Any]) -> list[str]:
    """What is wrong with the report of a job, in words."""
    found = analysis["job"]
    named = {one["name"] for one in found["slow"]} | {f"link of {one['host']}" for one in found["slow_links"]}
    wrong = [f"names {name}" for name in sorted(named - job.expected())]
    wrong += [f"misses {name}" for name in sorted(job.expected() - named)]
    damaged = {*job.cut, *job.empty, *job.missing}
    wrong += [
        f"has rank {one['rank']}" for one in analysis["ranks"] if one["rank"] not in {*range(job.ranks)} - damaged
    ]
    if len(analysis["ranks"]) != job.ranks - len(damaged):
        wrong.append(f"compares {len(analysis['ranks'])} ranks of {job.ranks - len(damaged)}")
    slugs = {caveat["slug"]: caveat["message"] for caveat in analysis["caveats"]}
    if "unnumbered-ranks" in slugs:
        wrong.append("says that ranks are not told apart")
    if bool(job.twice) != ("repeated-ranks" in slugs):
        wrong.append(f"tells of repeated ranks: {slugs.get('repeated-ranks')}")
    if (job.cut or job.empty) and "left-out-ranks" not in slugs:
        wrong.append("does not tell what is left out")
    told = slugs.get("missing-ranks", "").partition("given of ")[2]
    gone = {*job.missing, *job.empty}
    named, _, rest = told.partition(" and ") if told.endswith(" more") else (told.replace(" and ", ", "), "", "0")
    listed = {int(number) for number in re.findall(r"\d+", named)}
    wrong += [f"misses rank {rank}, which is there" for rank in sorted(listed - gone)]
    # It names the first few; an empty file has no rank where its name tells none, and then may count as missing.
    if len(listed) + int(rest.partition(" ")[0]) < len(job.missing):
        wrong.append(f"does not miss all of {sorted(job.missing)}: {told}")
    return wrong


def check_job(seed: int, number: int, keep: Path | None = None) -> tuple[Job, list[str]]:
    """A job, and what is wrong with its report; made and read in a process of its own."""
    job = make_job(random.Random(f"{seed}:{number}"))
    folder = keep or Path(tempfile.mkdtemp(prefix="fuzz-job-"))
    output = folder / "wrong.json"
    child = os.fork()
    if not child:
        status = _LOST
        try:
            write_job(folder / "job", job, f"{seed}:{number}")
            answer = folder / "analysis.json"
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
                code = cli._run(["report", str(folder / "job"), "-j", "1", "--format", "json", "-o", str(answer)])
            wrong = (
                faults_of(job, json.loads(answer.read_text())) if code == 0 else [f"exit {code}: {errors.getvalue()}"]
            )
            output.write_text(json.dumps(wrong))
            status = 0
        except Exception:
            output.write_text(json.dumps([traceback.format_exc()]))
        finally:
            os._exit(status)
    os.waitpid(child, 0)
    wrong = json.loads(output.read_text()) if output.exists() else ["the process was lost"]
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return job, wrong


def main() -> None:
    """Makes and checks the jobs, and prints those that went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    parser.add_argument("--job", type=int, help="this one alone")
    parser.add_argument("--keep", type=Path, help="with --job: a folder for its files")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.jobs) if options.job is None else [options.job]
    kinds: collections.Counter[str] = collections.Counter()
    ranks = bad = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-jobs-") as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        check_job(0, 0)
        for done, number in enumerate(numbers, 1):
            job, wrong = check_job(options.seed, number, options.keep)
            kinds[job.fault or "healthy"] += 1
            ranks += job.ranks
            if wrong or options.job is not None:
                bad += bool(wrong)
                print(f"job {number}: {'; '.join(wrong) or 'right'}\n  {job}", flush=True)
            if done % 10 == 0:
                print(f"{done:,} jobs done", file=sys.stderr, flush=True)
    planted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"{sum(kinds.values()):,} jobs of {ranks:,} ranks ({planted}); {bad} reports wrong")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
