"""Compares the peak memory and time of an export for Perfetto with those of the report of the same trace.

    python -m benchmarks.export                     the largest public trace
    python -m benchmarks.export TRACE --mb 300      TRACE, repeated until it has 300 MB

Each command runs in a process of its own; the export must not take more memory than the report.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.repeat import repeat_trace

_TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
_LARGEST = "AMD-AGI+TraceLens__tests__traces__inference__xdit_flux.1_aiter_sage__profile_trace_rank_0.json.gz"


def measure(*arguments: str) -> tuple[float, float]:
    """Seconds and peak MB (10^6 bytes) of `bottleneck report` with these arguments; RuntimeError where it fails."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "bottleneck", "report", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - began, usage.ru_maxrss * 1024 / 1e6


def main() -> None:
    """Prints one line per command, and the ratio of their peaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path, default=_TRACES / _LARGEST)
    parser.add_argument("--mb", type=int, help="repeat the trace until it has so many MB")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = asked.trace
        if asked.mb:
            trace = Path(folder) / "repeated.json"
            repeat_trace(asked.trace, trace, asked.mb * 10**6)
        print(f"{asked.trace.name}: {trace.stat().st_size / 1e6:.0f} MB on disk")
        outputs = {"report": f"{folder}/analysis.json", "export": f"{folder}/annotated.json.gz"}
        peaks = {}
        for name, output in outputs.items():
            seconds, peaks[name] = measure(str(trace), "--all", "-o", output)
            size = Path(output).stat().st_size / 1e6
            print(f"{name}: {seconds:.1f} s, peak {peaks[name]:.0f} MB, writes {size:.1f} MB")
        print(f"the export takes {peaks['export'] / peaks['report']:.2f} times the memory of the report")


if __name__ == "__main__":
    main()
