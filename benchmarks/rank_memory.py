"""Measures the memory of the process that compares ranks, by ranks and collectives per rank, without traces.

    python -m benchmarks.rank_memory [--ranks 16 256 1024] [--calls 10000]

The digests are made, not read: three quarters of the calls are among all ranks, the others among the eight ranks of a
host, whose third rank is late by a tenth. They go through the same reading and reduction as those of traces, each
number of ranks in a process of its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from bottleneck.analysis.ranks import reduce_ranks
from bottleneck.mapping.rank_reading import RankReading
from bottleneck.schema.analysis import LedgerEntry
from bottleneck.schema.digest import CollectiveCalls, Message, RankDigest
from bottleneck.schema.linked_trace import ProcessGroup
from bottleneck.schema.measurements import StepTime, StepTimes
from bottleneck.schema.sources import TraceSource

_HOST_RANKS, _CALLS_PER_STEP = 8, 1000
_LATE_RANK = 3
_WORK_US, _TRANSFER_US = 100.0, 20.0


def make_digest(source: TraceSource, ranks: int, calls: int) -> RankDigest:
    """The digest of the rank whose number the path is."""
    rank = int(source.trace.name)
    host = rank // _HOST_RANKS
    members = range(host * _HOST_RANKS, min((host + 1) * _HOST_RANKS, ranks))
    end_us = (_WORK_US + _TRANSFER_US) * np.arange(1, calls + 1)
    early = np.random.default_rng(rank).uniform(0.0, 5.0, calls) + (0.0 if rank == _LATE_RANK else 10.0)
    begin_us = np.arange(0, calls, _CALLS_PER_STEP) * (_WORK_US + _TRANSFER_US)
    step_us = _CALLS_PER_STEP * (_WORK_US + _TRANSFER_US)
    is_host = np.arange(calls) % 4 == 3
    each = tuple(StepTime(f"ProfilerStep#{number}", step_us) for number in range(begin_us.size))
    return RankDigest(
        path=f"rank{rank}.json",
        host=f"node-{host:04}",
        rank=rank,
        world_size=ranks,
        start_unix_ns=10**18,
        steps=StepTimes(begin_us.size, step_us, None, None, None, source="marks", each=each),
        ledger=(
            LedgerEntry("compute", "compute", 0.8 * step_us, 0.8),
            LedgerEntry("communication", "communication", 0.2 * step_us, 0.2),
        ),
        collectives=(),
        bound="compute",
        calls=CollectiveCalls(
            messages=(Message("all_reduce", "bf16", ranks, 4e6), Message("all_gather", "bf16", len(members), 1e6)),
            groups=("0", str(host + 1)),
            message=is_host.astype(np.int64),
            group=is_host.astype(np.int64),
            start_us=end_us - _TRANSFER_US - early,
            end_us=end_us,
            is_inside=np.ones(calls, dtype=bool),
        ),
        process_groups=(
            ProcessGroup("0", "default_pg", ranks, tuple(range(ranks))),
            ProcessGroup(str(host + 1), "mesh_local", len(members), tuple(members)),
        ),
        step_start_us=begin_us,
        step_wall_us=np.full(begin_us.size, step_us),
    )


def reduce_made(ranks: int, calls: int) -> dict[str, float | str]:
    """Peak memory and time of this process for so many ranks."""
    began_s = time.process_time()
    sources = [TraceSource(Path(str(rank))) for rank in range(ranks)]
    results = RankReading().results(partial(make_digest, ranks=ranks, calls=calls), sources, "", lambda *_: None)
    digests = [found for _, found in results if isinstance(found, RankDigest)]
    read_s = time.process_time() - began_s
    job = reduce_ranks(digests).job
    return {
        "read_s": read_s,
        "reduce_s": time.process_time() - began_s - read_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "slow": ", ".join(one.name for one in job.slow),
    }


def main() -> None:
    """Prints a row for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 256, 1024])
    parser.add_argument("--calls", type=int, default=10_000)
    given = parser.parse_args()
    print(f"{'ranks':>6} {'calls':>7} {'digests MB':>11} {'parent MB':>10} {'keep s':>7} {'reduce s':>9}  slow")
    for ranks in given.ranks:
        made = f"reduce_made({ranks}, {given.calls})"
        child = f"import json; from benchmarks.rank_memory import reduce_made; print(json.dumps({made}))"
        done = subprocess.run([sys.executable, "-c", child], stdout=subprocess.PIPE, check=True)
        told = json.loads(done.stdout)
        size = 33e-6 * ranks * given.calls
        print(
            f"{ranks:6} {given.calls:7} {size:11.0f} {told['peak_mb']:10.0f} {told['read_s']:7.1f}"
            f" {told['reduce_s']:9.1f}  {told['slow']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
