"""Times the report of a trace beside HolisticTraceAnalysis doing the same: breakdown, kernels, idle time, launches.

    python -m benchmarks.compare_readers [TRACE] [--megabytes 80 300 1000] [--python PYTHON]

TRACE is repeated up to each size. Each tool is a process of its own; CPU time and memory are that process's. PYTHON is
an interpreter that can import hta; without one, an environment is made in a temporary folder (`pip install
HolisticTraceAnalysis`). HTA counts no FLOPs, so that ours does more work here. TraceLens is not timed: what PyPI calls
TraceLens is another project, and its source is not on PyPI. Without TRACE, the op-dense one of segment-anything-fast
among the public traces beside a development checkout is taken.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.read_trace import compile_package
from benchmarks.repeat import repeat_trace

_TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
_DENSE = "pytorch-labs+segment-anything-fast__amg_example__asdf_False*.json.gz"

_COST = """
import json, resource, sys, time
began_s = time.perf_counter()
{work}
use = resource.getrusage(resource.RUSAGE_SELF)
children = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu_s = use.ru_utime + use.ru_stime + children.ru_utime + children.ru_stime
# Not ru_maxrss, in which the peak of the process that started this one counts.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
peak_mb = int(peak.split()[1]) * 1024 / 1e6
print("\\n" + json.dumps({{"wall_s": time.perf_counter() - began_s, "cpu_s": cpu_s, "peak_mb": peak_mb}}))
"""
_OURS = """
from bottleneck.cli import _run
assert _run(["report", sys.argv[1], "-f", "json", "-o", sys.argv[1] + ".out"]) == 0
"""
_HTA = """
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
analysis.get_temporal_breakdown(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)
"""


def cost(python: str, work: str, trace: Path) -> dict[str, float]:
    """Wall time, CPU time and peak memory of the work on the trace; RuntimeError with the tool's last words."""
    done = subprocess.run(
        [python, "-c", _COST.format(work=work), str(trace)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError("\n".join(done.stderr.splitlines()[-3:]))
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def make_environment(folder: Path) -> str:
    """An interpreter with HTA from the package index."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "HolisticTraceAnalysis"], check=True)
    return python


def main() -> None:
    """Prints a row for each size and tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--megabytes", nargs="+", type=int, default=[80, 300, 1000])
    parser.add_argument("--python", help="an interpreter that can import hta")
    given = parser.parse_args()
    trace = given.trace or next(iter(sorted(_TRACES.glob(_DENSE))), None)
    if trace is None:
        parser.error("name a trace")
    compile_package()
    with tempfile.TemporaryDirectory() as folder:
        python = given.python or make_environment(Path(folder) / "hta")
        print(f"{trace.name}\n{'':26}{'size':>9}{'wall':>10}{'CPU':>10}{'peak':>10}{'wall of ours':>14}")
        for megabytes in given.megabytes:
            path = Path(folder) / f"{megabytes}.json"
            repeat_trace(trace, path, megabytes * 10**6)
            ours_s = None
            for tool, interpreter, work in (("bottleneck report", sys.executable, _OURS), ("HTA", python, _HTA)):
                try:
                    told = cost(interpreter, work, path)
                except RuntimeError as error:
                    print(f"{tool:26}failed: {error}")
                    continue
                ours_s = ours_s or told["wall_s"]
                print(
                    f"{tool:26}{path.stat().st_size / 1e6:6.0f} MB{told['wall_s']:8.1f} s{told['cpu_s']:8.1f} s"
                    f"{told['peak_mb']:7.0f} MB{told['wall_s'] / ours_s:14.1f}",
                    flush=True,
                )
            path.unlink()


if __name__ == "__main__":
    main()
