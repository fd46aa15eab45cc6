"""How often what was measured lies inside what was predicted: findings of many workloads, tried on this machine.

python -m benchmarks.advice                               every workload of benchmarks/advised, and some examples
python -m benchmarks.advice mlp conv_layout               only those
python -m benchmarks.advice --budget 30 --write benchmarks/results/advice.md
                                                          puts it between the advice markers of that page

Each workload is recorded, and every change that one of its findings names is tried by `bottleneck verify`: original
and changed in turns. A prediction is met where its interval and the interval of the measured speedup overlap. A change
that no finding predicted anything for, but that is tried here (`BLIND`), is predicted to have no effect: it should be
reported as no effect, not as faster.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pages import write_between_markers

_ROOT = Path(__file__).parents[1]
_ADVISED = Path(__file__).parent / "advised"

# What is tried besides what the findings name: changes that should do nothing for that workload.
BLIND = {"one_product": ("gc-freeze", "set-to-none", "inference-mode"), "pointwise": ("gc-freeze",)}

_EXAMPLES = ("mlp", "pointwise", "matmul", "slow_loader", "transformer")


@dataclass(frozen=True)
class Result:
    """One application of a rule: speedups as (low, high)."""

    workload: str
    change: str
    findings: tuple[str, ...]
    predicted: tuple[float, float] | None
    measured: tuple[float, float, float] | None
    verdict: str
    reason: str | None

    @property
    def is_met(self) -> bool | None:
        """Whether prediction and measurement overlap; null where one of them is missing."""
        if self.predicted is None or self.measured is None:
            return None
        low, _, high = self.measured
        return low <= self.predicted[1] and high >= self.predicted[0]

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured speedup itself lies in the predicted interval: the stricter reading."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted[0] <= self.measured[1] <= self.predicted[1]


def main() -> None:
    """Prints the table and the shares; writes them to a page if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds per change")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    results: list[Result] = []
    for path in _find(asked.workloads):
        print(f"{path.stem} …", file=sys.stderr, flush=True)
        found = _try(path, asked.budget)
        for result in found:
            print(f"  {_row(result)}", file=sys.stderr, flush=True)
        results += found
    text = render(results)
    print(text)
    if asked.write is not None:
        write_between_markers(asked.write, "advice", text)


def _find(names: Sequence[str]) -> list[Path]:
    paths = [_ROOT / "examples" / f"{name}.py" for name in _EXAMPLES] + sorted(_ADVISED.glob("*.py"))
    return [path for path in paths if path.exists() and (not names or path.stem in names)]


def _try(path: Path, budget_s: float) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "recording"
        _run("run", "-o", str(recording), str(path))
        results = _verify(path, recording, (), budget_s)
        blind = BLIND.get(path.stem, ())
        return results + (_verify(path, recording, blind, budget_s) if blind else [])


def _verify(path: Path, recording: Path, changes: Sequence[str], budget_s: float) -> list[Result]:
    tries = ("--try", ",".join(changes)) if changes else ()
    done = _run("verify", "--format", "json", "--budget", str(budget_s), *tries, str(recording))
    return [_result(path.stem, trial) for trial in json.loads(done)["trials"]]


def _result(workload: str, trial: dict[str, Any]) -> Result:
    predicted, speedup = trial["predicted_speedup"], trial["speedup"]
    return Result(
        workload=workload,
        change=trial["change"],
        findings=tuple(trial["findings"]),
        predicted=None if predicted is None else (predicted["low"], predicted["high"]),
        measured=None if speedup is None else (speedup["low"], speedup["median"], speedup["high"]),
        verdict=trial["verdict"],
        reason=trial["reason"],
    )


def _run(*arguments: str) -> str:
    command = [sys.executable, "-m", "bottleneck.cli", *arguments]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def render(results: Sequence[Result]) -> str:
    """The table, and above it how many predictions were met."""
    judged = [result for result in results if result.is_met is not None]
    met, inside = sum(result.is_met is True for result in judged), sum(result.is_inside is True for result in judged)
    blind = [result for result in results if result.predicted is None and result.measured is not None]
    still = sum(result.verdict in {"no effect", "inconclusive"} for result in blind)
    workloads = len({result.workload for result in results})
    lines = [
        f"{workloads} workloads, {len(judged)} predictions tried: {inside} measured inside the predicted interval"
        f"{_share(inside, len(judged))}, {met} with intervals that overlap{_share(met, len(judged))}. "
        f"{len(blind)} changes that nothing was predicted for: {still} without a proven effect.",
        "",
        "| workload | change | finding | predicted | measured | verdict | met |",
        "|---|---|---|---|---|---|---|",
        *map(_row, results),
    ]
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f" ({part / whole:.0%})" if whole else ""


def _row(result: Result) -> str:
    predicted = "none" if result.predicted is None else "{:.2f} to {:.2f}x".format(*result.predicted)
    measured = "-" if result.measured is None else "{1:.2f}x ({0:.2f} to {2:.2f})".format(*result.measured)
    met = "-" if result.is_met is None else "inside" if result.is_inside else "overlaps" if result.is_met else "no"
    verdict = f"{result.verdict}: {result.reason}" if result.measured is None and result.reason else result.verdict
    cells = (result.workload, result.change, ", ".join(result.findings), predicted, measured, verdict, met)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    main()
