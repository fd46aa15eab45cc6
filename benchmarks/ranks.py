"""Measures the report of a made job: time per rank and memory of the process that reduces it, by number of ranks.

    python -m benchmarks.ranks [--ranks 16 64 256 1024] [--megabytes 4] [--jobs 1 2] [--folder FOLDER]

Each job is made by benchmarks.made_job in a temporary folder and removed afterwards; each report is a process of its
own. CPU time is of all processes, so that it tells the work where other programs have the processors; peak memory is
that of the process that reduces, alone.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_CHILD = """
import json, resource, sys
from bottleneck.cli import _run
code = _run(sys.argv[1:])
own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
cpu_s = sum(use.ru_utime + use.ru_stime for use in (own, others))
print(json.dumps({"code": code, "cpu_s": cpu_s, "peak_mb": own.ru_maxrss / 1024}))
"""


def report(job: Path, jobs: int, output: Path) -> dict[str, float]:
    """Wall time, CPU time of all processes and peak memory of the reducing one."""
    began_s = time.perf_counter()
    command = [sys.executable, "-c", _CHILD, "report", str(job), "-j", str(jobs), "-f", "json", "-o", str(output)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    assert told["code"] == 0, f"the report ended with {told['code']}"
    return {**told, "wall_s": time.perf_counter() - began_s}


def main() -> None:
    """Prints a row for each number of ranks and processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    print(f"{'ranks':>6} {'MB':>7} {'jobs':>5} {'wall s':>8} {'CPU ms/rank':>12} {'parent MB':>10}  slow")
    for ranks in given.ranks:
        folder = Path(tempfile.mkdtemp(dir=given.folder))
        try:
            make = ["-m", "benchmarks.made_job", str(folder / "job"), "--ranks", str(ranks)]
            subprocess.run(
                [sys.executable, *make, "--megabytes", str(given.megabytes)], stdout=subprocess.DEVNULL, check=True
            )
            size = sum(file.stat().st_size for file in folder.rglob("*.json")) / 1e6
            for jobs in given.jobs:
                output = folder / f"{jobs}.json"
                told = report(folder / "job", jobs, output)
                job = json.loads(output.read_text())["job"]
                slow = [one["name"] for one in job["slow"]] + [f"link of {one['host']}" for one in job["slow_links"]]
                cpu_ms = 1e3 * told["cpu_s"] / ranks
                print(
                    f"{ranks:6} {size:7.0f} {jobs:5} {told['wall_s']:8.1f} {cpu_ms:12.0f} {told['peak_mb']:10.0f}"
                    f"  {', '.join(slow[:4])}",
                    flush=True,
                )
            print("      ", (folder / "job" / "faults.txt").read_text().strip(), f"load {os.getloadavg()[0]:.1f}")
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
