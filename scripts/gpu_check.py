"""Checks that need a GPU, in one go: calibration twice, a recording of each workload, and a table of what came out.

``python -m scripts.gpu_check FOLDER`` leaves everything in FOLDER; ``--device cpu --scale 0.05`` rehearses it on a CPU.
Clocks and other settings of the device are left as they are found.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WORKLOADS = Path(__file__).with_name("gpu_workloads.py")
_BOTTLENECK = (sys.executable, "-m", "bottleneck.cli")

# Kind, dtype, and what should hold it back (null: nobody knows before).
CASES: tuple[tuple[str, str, str | None], ...] = (
    ("gemm", "bfloat16", "compute"),
    ("gemm", "float32", "compute"),
    ("elementwise", "float32", "memory"),
    ("normalise", "bfloat16", "memory"),
    ("tiny", "float32", "overhead"),
    ("asks", "float32", "overhead"),
    ("transformer", "bfloat16", None),
    ("compiled", "bfloat16", None),
    ("replayed", "bfloat16", None),
    ("convolution", "float32", None),
    ("convolution", "bfloat16", None),
)
_GPU_ONLY = ("replayed",)


@dataclass(frozen=True)
class Check:
    """The device, the size of the workloads, and the longest time that one of them may take."""

    folder: Path
    device: str
    scale: float
    limit_s: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the whole check and prints it as markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--limit-s", type=float, default=120.0, help="for one workload")
    check = Check(**vars(parser.parse_args(arguments)))
    check.folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    _say(_of("doctor", check, "doctor"))
    _say(_calibrations(check))
    _say("| workload | dtype | expected | verdict | share | step | with profiler | modelled | explained | seconds |")
    _say("|---|---|---|---|---|---|---|---|---|---|")
    for kind, dtype, expected in CASES:
        if check.device.startswith("cuda") or kind not in _GPU_ONLY:
            _say(_row(check, kind, dtype, expected))
    _say(f"\n{time.monotonic() - begin:.0f} s in all")


def _calibrations(check: Check) -> str:
    """The ceilings of two measurements in a row, and by how much they differ."""
    first, second = (_peaks(check, number) for number in (1, 2))
    rows = [
        f"| {name} | {first[name]:.4g} | {second[name]:.4g} | {second[name] / first[name] - 1:+.1%} |"
        for name in sorted(first.keys() & second.keys())
    ]
    return "\n".join(["| ceiling | first | second | differ |", "|---|---|---|---|", *rows, ""])


def _peaks(check: Check, number: int) -> dict[str, float]:
    target = check.folder / f"calibration{number}.json"
    _of(f"calibrate{number}", check, "calibrate", "--fresh", "--device", check.device, "-f", "json", "-o", str(target))
    if not target.exists():
        return {}
    device = json.loads(target.read_text())["device"]
    figures = {**device["peaks_flops_per_s"], "bandwidth": device["bandwidth_bytes_per_s"]}
    return {name: float(figure) for name, figure in figures.items() if figure}


def _row(check: Check, kind: str, dtype: str, expected: str | None) -> str:
    name, begin = f"{kind}-{dtype}", time.monotonic()
    settings = {"kind": kind, "dtype": dtype, "device": check.device, "scale": str(check.scale)}
    options = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
    folder = check.folder / name
    _of(name, check, "run", "--force", "-o", str(folder), *options, str(_WORKLOADS))
    seconds = time.monotonic() - begin
    if not (folder / "analysis.json").exists():
        return f"| {kind} | {dtype} | {expected or ''} | no analysis: see {name}.txt | | | | | | {seconds:.0f} |"
    analysis: dict[str, Any] = json.loads((folder / "analysis.json").read_text())
    steps, verdict, coverage = analysis["steps"], analysis["verdict"], analysis["coverage"]
    unprofiled = (steps["unprofiled_us"] or {}).get("median")
    cells = (
        kind,
        dtype,
        expected or "",
        " ".join(filter(None, (verdict["bound"], verdict["regime"]))),
        _percent(verdict["share"]),
        "" if unprofiled is None else f"{unprofiled:.0f} us",
        "" if steps["perturbation"] is None else f"{steps['perturbation']:.2f}x",
        _percent(coverage["modelled_share"]),
        _percent(_explained(analysis)),
        f"{seconds:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def _explained(analysis: dict[str, Any]) -> float | None:
    """The part of the kernels' time that a floor explains; null where no kernel is explained."""
    told = [(each["us"], each["explained"]) for each in analysis["kernels"] if each["explained"] is not None]
    total_us = sum(us for us, _ in told)
    return sum(us * share for us, share in told) / total_us if total_us else None


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _of(name: str, check: Check, *arguments: str) -> str:
    """The output of a command of bottleneck, which is kept beside the files that it leaves."""
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            [*_BOTTLENECK, *arguments], check=False, capture_output=True, text=True, timeout=check.limit_s
        )
        text = f"{done.stdout}{done.stderr}"
    except subprocess.TimeoutExpired as exc:
        text = f"{name} took more than {exc.timeout:.0f} s"
    (check.folder / f"{name}.txt").write_text(text)
    return text


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
