"""What `bottleneck run` adds to a program: plain and recorded times of six programs, in turns.

    python -m benchmarks.run_cost [--rounds 3]
    python -m benchmarks.run_cost --rounds 3 --write benchmarks/results/run.md     also into the page

Three are scripts: plain is `python SCRIPT`. Three are workloads: plain is Python that imports the file, makes the step
and calls it once. Seconds are of the wall clock, the median over the rounds with the range; the ceilings of this CPU
are measured before, and our modules are compiled as pip compiles what it installs. One row more is the first run on a
machine, which measures the ceilings.
"""

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.pages import write_between_markers

ROOT = Path(__file__).resolve().parents[1]
_ONCE = "import runpy, sys; runpy.run_path(sys.argv[1])['workload']()()"
_TINY = "import torch\ndef workload():\n    x = torch.ones(64, 64)\n    return lambda: x @ x\n"
# Each program: its words, and whether it is a workload.
_PROGRAMS: Mapping[str, tuple[Sequence[str], bool]] = {
    "train_script.py": (("examples/train_script.py",), False),
    "train_script.py --epochs 30": (("examples/train_script.py", "--epochs", "30"), False),
    "train_tabular.py --steps 100": (("examples/train_tabular.py", "--steps", "100"), False),
    "a product of 64 x 64": (("tiny.py",), True),
    "mlp.py": (("examples/mlp.py",), True),
    "transformer.py": (("examples/transformer.py",), True),
}


def seconds_of(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Wall seconds of a command that must succeed."""
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=dict(environment), capture_output=True, check=True)
    return time.perf_counter() - began


def plain(words: Sequence[str], *, is_workload: bool) -> list[str]:
    """The command that runs a program without us."""
    return [sys.executable, *(("-c", _ONCE) if is_workload else ()), *words]


def recorded(words: Sequence[str], output: Path) -> list[str]:
    """The command that records it."""
    return [sys.executable, "-m", "bottleneck", "run", "--quiet", "-o", str(output), *words]


def measure(rounds: int, folder: Path) -> tuple[dict[str, tuple[list[float], list[float]]], float]:
    """Plain and recorded seconds of each program, and those of a first run, which measures the ceilings."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    compileall.compile_dir(ROOT / "bottleneck", quiet=2)
    tiny = folder / "tiny.py"
    tiny.write_text(_TINY)
    first_s = seconds_of(recorded([str(tiny)], folder / "first"), environment)
    seen: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in _PROGRAMS}
    for number in range(rounds):
        for place, (name, (words, is_workload)) in enumerate(_PROGRAMS.items()):
            here = [str(tiny)] if words == ("tiny.py",) else words
            commands = (plain(here, is_workload=is_workload), recorded(here, folder / f"{number}-{place}"))
            for times, command in zip(seen[name], commands, strict=True):
                times.append(seconds_of(command, environment))
    return seen, first_s


def table(seen: Mapping[str, tuple[Sequence[float], Sequence[float]]], first_s: float) -> str:
    """The seconds as a table in Markdown."""
    rows = ["| program | plain, s | under `run`, s | added, s |", "|---|---|---|---|"]
    for name, (plain_s, run_s) in seen.items():
        added = [after - before for before, after in zip(plain_s, run_s, strict=True)]
        rows.append(f"| `{name}` | {shown(plain_s)} | {shown(run_s)} | {shown(added)} |")
    usual_s = statistics.median(seen["a product of 64 x 64"][1])
    rows.append(
        f"| the first run on a machine, `a product of 64 x 64` | | {first_s:.1f} | {first_s - usual_s:.1f} more |"
    )
    return "\n".join(rows)


def shown(seconds: Sequence[float]) -> str:
    """The median with the range."""
    return f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"


def main() -> None:
    """Prints the table, and writes it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = table(*measure(options.rounds, Path(folder)))
    print(text)
    if options.write is not None:
        write_between_markers(options.write, "run-cost", text)


if __name__ == "__main__":
    main()
