"""Measures CPU time and peak memory of reading a trace, beside orjson.loads of the same bytes, at two sizes.

    python benchmarks/read_trace.py [TRACE] [--megabytes 50 1000] [--report]

TRACE is repeated up to each size in a temporary folder that is removed afterwards. Every figure comes from a process
of its own. Without TRACE, the largest of the public traces beside a development checkout is taken.
"""

import argparse
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# ruff: noqa: PLC0415 - a child must import nothing but what it measures

_TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"


def prepare_orjson(path: Path) -> Callable[[], object]:
    """Parsing the whole file with the fastest general parser, collector off as is fair."""
    import orjson

    gc.disable()
    return lambda: orjson.loads(path.read_bytes())


def prepare_read(path: Path) -> Callable[[], object]:
    """Reading the file into a Trace."""
    from bottleneck.trace.read import read_trace

    return lambda: read_trace(path)


def prepare_report(path: Path) -> Callable[[], object]:
    """The whole report command on the file, imports included."""
    from bottleneck import cli

    arguments = ["report", str(path), "--format", "json", "-o", str(path.with_suffix(".analysis.json"))]

    def report() -> None:
        code = cli._run(arguments)
        assert code == 0, f"bottleneck report ended with {code}"

    return report


JOBS: dict[str, Callable[[Path], Callable[[], object]]] = {
    "orjson.loads": prepare_orjson,
    "read_trace": prepare_read,
    "bottleneck report": prepare_report,
}


def main() -> None:
    """Prints one row per size and job."""
    arguments = _arguments()
    if arguments.job:
        print(json.dumps(_cost_of(JOBS[arguments.job](arguments.trace))))
        return
    if arguments.repeat_to:
        _write_repetition(arguments.trace, arguments.repeat_to, arguments.megabytes[0])
        return
    jobs = [name for name in JOBS if arguments.report or name != "bottleneck report"]
    print(f"{arguments.trace.name}\n{'':24}{'size':>9}{'CPU':>10}{'of orjson':>11}{'peak':>10}{'of size':>9}")
    for megabytes in arguments.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            _compare(arguments.trace, Path(folder) / "trace.json", megabytes, jobs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, default=None, help="a trace, .json or .json.gz")
    parser.add_argument("--megabytes", nargs="+", type=int, default=[50, 1000], help="sizes to repeat it to")
    parser.add_argument("--report", action="store_true", help="also measure the whole report command")
    parser.add_argument("--job", choices=list(JOBS), help=argparse.SUPPRESS)
    parser.add_argument("--repeat-to", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trace is None:
        files = sorted(_TRACES.glob("*.gz"), key=lambda path: path.stat().st_size)
        if not files:
            parser.error("name a trace")
        arguments.trace = files[-1]
    return arguments


def _write_repetition(source: Path, target: Path, megabytes: int) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from repeat import repeat_trace

    repeat_trace(source, target, megabytes * 10**6)


def _compare(trace: Path, path: Path, megabytes: int, jobs: list[str]) -> None:
    # In a process of its own, because children inherit the peak memory of this one.
    _child(trace, "--repeat-to", str(path), "--megabytes", str(megabytes))
    size = path.stat().st_size / 1e6
    base_s = None
    for job in jobs:
        cost = json.loads(_child(path, "--job", job))
        base_s = base_s or cost["cpu_s"]
        print(
            f"{job:24}{size:6.0f} MB{cost['cpu_s']:8.2f} s{cost['cpu_s'] / base_s:11.2f}"
            f"{cost['peak_mb']:7.0f} MB{cost['peak_mb'] / size:9.2f}",
            flush=True,
        )


def _child(trace: Path, *options: str) -> str:
    command = [sys.executable, __file__, str(trace), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _cost_of(job: Callable[[], object]) -> dict[str, float]:
    start_s = time.process_time()
    job()
    return {
        "cpu_s": time.process_time() - start_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
    }


if __name__ == "__main__":
    main()
