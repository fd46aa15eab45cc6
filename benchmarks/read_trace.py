"""Measures time and peak memory of reading a trace, beside orjson.loads of the same bytes, at two sizes.

    python benchmarks/read_trace.py [TRACE] [--megabytes 50 1000] [--report] [--jobs 1 2] [--without-orjson] [--at-once]

TRACE is repeated up to each size in a temporary folder that is removed afterwards. Every figure comes from a process
of its own, with the processes that it starts: the CPU time of all of them; as peak memory the process's own largest
resident set, or the largest sum of proportional set sizes of all, taken every 100 ms, where that is more. Without
TRACE, the largest of the public traces beside a development checkout is taken.

The package is compiled before, as pip compiles what it installs; a checkout may not be.

With --at-once two readers of one process each run at the same time, and the row is that of the one that took longer:
by how much its CPU time exceeds that of one alone is what the processors take from each other.
"""

import argparse
import contextlib
import gc
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# ruff: noqa: PLC0415 - a child must import nothing but what it measures

_TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"


def prepare_orjson(path: Path, _jobs: int) -> Callable[[], object]:
    """Parsing the whole file with the fastest general parser, collector off as is fair."""
    import orjson

    gc.disable()
    return lambda: orjson.loads(path.read_bytes())


def prepare_read(path: Path, jobs: int) -> Callable[[], object]:
    """Reading the file into a Trace."""
    from bottleneck.trace.read import read_trace

    return lambda: read_trace(path, jobs)


def prepare_report(path: Path, jobs: int) -> Callable[[], object]:
    """The whole report command on the file, imports included."""
    from bottleneck import cli

    output = str(path.with_suffix(".analysis.json"))
    arguments = ["report", str(path), "--format", "json", "-o", output, "--jobs", str(jobs)]

    def report() -> None:
        code = cli._run(arguments)
        assert code == 0, f"bottleneck report ended with {code}"

    return report


JOBS: dict[str, Callable[[Path, int], Callable[[], object]]] = {
    "orjson.loads": prepare_orjson,
    "read_trace": prepare_read,
    "bottleneck report": prepare_report,
}


def main() -> None:
    """Prints one row per size and job."""
    arguments = _arguments()
    if arguments.job:
        print(json.dumps(_cost_of(JOBS[arguments.job](arguments.trace, arguments.jobs[0]))))
        return
    if arguments.repeat_to:
        _write_repetition(arguments.trace, arguments.repeat_to, arguments.megabytes[0])
        return
    compile_package()
    jobs = [] if arguments.without_orjson else [("orjson.loads", 1)]
    ours = ["read_trace", *(["bottleneck report"] if arguments.report else [])]
    jobs += [(name, number) for name in ours for number in arguments.jobs]
    print(f"{arguments.trace.name}\n{'':26}{'size':>9}{'CPU':>10}{'of orjson':>11}", end="")
    print(f"{'wall':>10}{'of orjson':>11}{'peak':>10}{'of size':>9}")
    for megabytes in arguments.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            _compare(arguments.trace, Path(folder) / "trace.json", megabytes, jobs, at_once=arguments.at_once)


def compile_package() -> None:
    """Compiles the modules of this checkout that have changed: PYTHONDONTWRITEBYTECODE may forbid to keep them."""
    package = Path(__file__).resolve().parents[1] / "bottleneck"
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(package)], check=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, default=None, help="a trace, .json or .json.gz")
    parser.add_argument("--megabytes", nargs="+", type=int, default=[50, 1000], help="sizes to repeat it to")
    parser.add_argument("--report", action="store_true", help="also measure the whole report command")
    parser.add_argument("--jobs", nargs="+", type=int, default=[1], help="processes to decode in, one row each")
    parser.add_argument("--without-orjson", action="store_true", help="for sizes that orjson has no memory for")
    parser.add_argument("--at-once", action="store_true", help="also measure two readers that run at the same time")
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


def _compare(trace: Path, path: Path, megabytes: int, jobs: list[tuple[str, int]], *, at_once: bool) -> None:
    # In a process of its own, because children inherit the peak memory of this one.
    _child(trace, "--repeat-to", str(path), "--megabytes", str(megabytes))
    size = path.stat().st_size / 1e6
    base = None
    for job, number in jobs:
        cost = _cost_of_child(path, job, number)
        base = base or (cost if job == "orjson.loads" else {"cpu_s": float("nan"), "wall_s": float("nan")})
        _print_row(job + (f" -j {number}" if number > 1 else ""), size, cost, base)
    if at_once:
        with ThreadPoolExecutor(2) as pool:
            both = [*pool.map(lambda _: _cost_of_child(path, "read_trace", 1), range(2))]
        _print_row("one of two read_trace", size, max(both, key=lambda cost: cost["cpu_s"]), base or {})


def _cost_of_child(path: Path, job: str, jobs: int) -> dict[str, float]:
    text, sampled_mb = _child(path, "--job", job, "--jobs", str(jobs))
    cost: dict[str, float] = json.loads(text)
    return {**cost, "peak_mb": max(cost["peak_mb"], sampled_mb)}


def _print_row(name: str, size: float, cost: dict[str, float], base: dict[str, float]) -> None:
    print(
        f"{name:26}{size:6.0f} MB"
        f"{cost['cpu_s']:8.2f} s{cost['cpu_s'] / base['cpu_s']:11.2f}"
        f"{cost['wall_s']:8.2f} s{cost['wall_s'] / base['wall_s']:11.2f}"
        f"{cost['peak_mb']:7.0f} MB{cost['peak_mb'] / size:9.2f}",
        flush=True,
    )


def _child(trace: Path, *options: str) -> tuple[str, float]:
    """What a process of this program writes, and the largest sum of memory of it and its children that was seen."""
    command = [sys.executable, __file__, str(trace), *options]
    largest_mb = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        found: list[str] = []
        reader = threading.Thread(target=lambda: found.append(child.stdout.read()))  # type: ignore[union-attr]
        reader.start()
        while reader.is_alive():
            largest_mb = max(largest_mb, _tree_mb(child.pid))
            reader.join(0.1)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return found[0], largest_mb


def _tree_mb(pid: int) -> float:
    """Proportional set sizes of a process and its children; 0 without any, whose own peak the system keeps."""
    total_kb = 0
    # One that ends meanwhile has no memory left to count.
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        # To add up a process of many gigabytes takes long, and holds it up.
        for process in (str(pid), *children) if children else ():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
                total_kb += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total_kb * 1024 / 1e6


def _cost_of(job: Callable[[], object]) -> dict[str, float]:
    start_s, cpu_s = time.perf_counter(), _cpu_s()
    job()
    return {
        "cpu_s": _cpu_s() - cpu_s,
        "wall_s": time.perf_counter() - start_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
    }


def _cpu_s() -> float:
    """CPU time of this process and of those that it started and that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main()
