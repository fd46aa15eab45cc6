"""CPU time and peak memory of reports on traces with ever more distinct names of kernels and ops.

    python -m benchmarks.many_names [--names 1000 --names 100000 --names 1000000]

Each name occurs once, as if a code generator numbered its kernels. Each report runs in a process of its own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_HEAD = '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}], "traceEvents": [\n'
_EVENTS = """\
{{"ph": "X", "pid": 1, "tid": 1, "ts": {at}0, "dur": 6, "cat": "cpu_op", "name": "generated::op_{at}", "args": {{
  "External id": {at}, "Input Dims": [[{size}, 64], [64, 64]], "Input type": ["float", "float"]}}}},
{{"ph": "X", "pid": 1, "tid": 1, "ts": {at}1, "dur": 4, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {{
  "External id": {at}, "correlation": {at}}}}},
{{"ph": "X", "pid": 0, "tid": 7, "ts": {at}3, "dur": 8, "cat": "kernel", "name": "generated_kernel_{at}", "args": {{
  "External id": {at}, "correlation": {at}, "device": 0, "stream": 7, "grid": [108, 1, 1], "block": [256, 1, 1]}}}}"""


def write_trace(path: Path, names: int) -> None:
    """A trace of one op, one launch and one kernel of 8 us for each name; the shapes are a thousand different ones."""
    with path.open("w") as file:
        file.write(_HEAD)
        for at in range(1, names + 1):
            file.write(_EVENTS.format(at=at, size=at % 1000) + (",\n" if at < names else "\n]}\n"))


def measure(path: Path) -> tuple[float, float]:
    """CPU seconds and peak memory in MB of a report on the trace."""
    words = [sys.executable, "-m", "bottleneck", "report", str(path)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the report ended with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Prints a line for each number of names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=int, action="append", help="repeat for several (default: 1000, 100000, 300000)")
    options = parser.parse_args()
    print("| names | trace | CPU time of the report | peak memory |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for names in options.names or (1_000, 100_000, 300_000):
            path = Path(folder) / "trace.json"
            write_trace(path, names)
            seconds, megabytes = measure(path)
            size = path.stat().st_size / 1e6
            print(f"| {names:,} | {size:.1f} MB | {seconds:.1f} s | {megabytes:.0f} MB |", flush=True)


if __name__ == "__main__":
    main()
