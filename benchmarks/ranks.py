"""Measures the report of a made job: time per rank and memory of the process that compares, by number of ranks.

    python -m benchmarks.ranks [--ranks 16 64 256 1024] [--megabytes 20] [--jobs 1 2] [--folder FOLDER]

Each job is made by benchmarks.made_job in a temporary folder and removed afterwards; each report is a process of its
own. CPU time is of all processes, so that it tells the work where other programs have the processors; peak memory is
that of the process that compares, alone. A job is read by one process up to --one-process-up-to ranks only.

At the end: the time that a rank takes beside a fixed part (a line through all rows of a number of processes, the
rows weighted as one), by how much the time per rank differs, and how much of the time of one process the work takes
that two share. The status is 1 where a report does not name exactly the planted faults.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.made_job import planted

_CHILD = """
import json, resource, sys
from bottleneck.cli import _run
code = _run(sys.argv[1:])
own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
cpu_s = sum(use.ru_utime + use.ru_stime for use in (own, others))
print(json.dumps({"code": code, "cpu_s": cpu_s, "peak_mb": own.ru_maxrss / 1024}))
"""


@dataclass(frozen=True)
class Row:
    """One report of a job."""

    ranks: int
    jobs: int
    wall_s: float
    cpu_s: float
    peak_mb: float


def report(job: Path, jobs: int, output: Path) -> dict[str, float]:
    """Wall time, CPU time of all processes and peak memory of the comparing one."""
    began_s = time.perf_counter()
    command = [sys.executable, "-c", _CHILD, "report", str(job), "-j", str(jobs), "-f", "json", "-o", str(output)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    assert told["code"] == 0, f"the report ended with {told['code']}"
    return {**told, "wall_s": time.perf_counter() - began_s}


def named(job: Mapping[str, Any]) -> set[str]:
    """The faults that the report of a job names."""
    return {one["name"] for one in job["slow"]} | {f"link of {one['host']}" for one in job["slow_links"]}


def expected(ranks: int) -> set[str]:
    """The names of the faults that are planted in a job."""
    faults = planted(ranks)
    places = (
        ("host node-{:04d}", faults.slow_host),
        ("rank {}", faults.slow_loader),
        ("link of node-{:04d}", faults.late_link),
    )
    return {name.format(at) for name, at in places if at is not None}


def fixed_and_marginal(rows: Sequence[Row]) -> tuple[float, float]:
    """Fixed CPU seconds and those per rank, by a line through the rows that is relatively closest to them."""
    ranks, cpu_s = (np.array([getattr(row, name) for row in rows], float) for name in ("ranks", "cpu_s"))
    sides = np.stack([1.0 / cpu_s, ranks / cpu_s], axis=1)
    fixed_s, each_s = np.linalg.lstsq(sides, np.ones(len(rows)), rcond=None)[0].tolist()
    return fixed_s, each_s


def summary(rows: Sequence[Row]) -> list[str]:
    """The lines below the table."""
    lines = []
    for jobs in sorted({row.jobs for row in rows}):
        mine = [row for row in rows if row.jobs == jobs]
        if len(mine) < 2:
            continue
        fixed_s, each_s = fixed_and_marginal(mine)
        as_is = [row.cpu_s / row.ranks for row in mine]
        beside = [(row.cpu_s - fixed_s) / row.ranks for row in mine]
        lines.append(
            f"-j {jobs}: {1e3 * each_s:.0f} ms of CPU per rank and {fixed_s:.1f} s once; most over least per rank "
            f"{max(as_is) / min(as_is):.2f}, without the fixed part {max(beside) / min(beside):.2f}"
        )
    for ranks in sorted({row.ranks for row in rows}):
        found = {row.jobs: row for row in rows if row.ranks == ranks}
        if {1, 2} <= found.keys():
            one, two = found[1], found[2]
            lines.append(
                f"{ranks:,} ranks: two processes are {one.wall_s / two.wall_s:.2f} times as fast as one (efficiency "
                f"{one.wall_s / two.wall_s / 2:.0%}), and take {two.cpu_s / one.cpu_s:.2f} times the CPU time"
            )
    return lines


def measure(ranks: int, given: argparse.Namespace) -> tuple[list[Row], bool]:
    """A row for each number of processes, and whether each report named exactly the planted faults."""
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    rows, is_exact = [], True
    try:
        _check_room(folder, ranks * given.megabytes * (0.1 if given.gzip else 1.1))
        make = ["-m", "benchmarks.made_job", str(folder / "job"), "--ranks", str(ranks)]
        make += ["--megabytes", str(given.megabytes), *(["--gzip"] if given.gzip else [])]
        began_s = time.perf_counter()
        subprocess.run([sys.executable, *make], stdout=subprocess.DEVNULL, check=True)
        size = sum(file.stat().st_size for file in folder.glob("job/*/*.json*")) / 1e6
        print(f"{ranks:,} ranks, {size:,.0f} MB made in {time.perf_counter() - began_s:.0f} s", file=sys.stderr)
        for jobs in given.jobs:
            if jobs == 1 and ranks > given.one_process_up_to:
                continue
            output = folder / f"{jobs}.json"
            told = report(folder / "job", jobs, output)
            rows.append(Row(ranks, jobs, told["wall_s"], told["cpu_s"], told["peak_mb"]))
            found = named(json.loads(output.read_text())["job"])
            missed, others = sorted(expected(ranks) - found), sorted(found - expected(ranks))
            is_exact = is_exact and not missed and not others
            says = (
                f"missed: {missed}; not planted: {others}"
                if missed or others
                else f"exactly: {', '.join(sorted(found))}"
            )
            print(
                f"{ranks:6} {size:7.0f} {jobs:5} {told['wall_s']:8.1f} {1e3 * told['cpu_s'] / ranks:12.0f} "
                f"{told['peak_mb']:10.0f} {os.getloadavg()[0]:5.1f}  {says}",
                flush=True,
            )
    finally:
        shutil.rmtree(folder)
    return rows, is_exact


def _check_room(folder: Path, megabytes: float) -> None:
    free = shutil.disk_usage(folder).free / 1e6
    if free < megabytes + 1000:
        sys.exit(f"{folder.parent} has {free:,.0f} MB free and the job takes {megabytes:,.0f}: name another --folder")


def main() -> int:
    """Prints a row for each number of ranks and processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--megabytes", type=float, default=20, help="of each rank's trace as JSON")
    parser.add_argument("--gzip", action="store_true", help="write .json.gz, a tenth of the size")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--one-process-up-to", type=int, default=256, metavar="RANKS")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    head = f"{'ranks':>6} {'MB':>7} {'jobs':>5} {'wall s':>8} {'CPU ms/rank':>12} {'parent MB':>10} {'load':>5}  named"
    print(head, flush=True)
    rows: list[Row] = []
    is_exact = True
    for ranks in given.ranks:
        found, is_right = measure(ranks, given)
        rows, is_exact = [*rows, *found], is_exact and is_right
    print("\n".join(summary(rows)))
    return 0 if is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
