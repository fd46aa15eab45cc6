"""Holds two promises of `bottleneck sweep` against measurements: where the knee lies, and that the fit predicts.

python -m benchmarks.sweeps                               prints both tables
python -m benchmarks.sweeps --threads 1 --turns 60        as little as other programs can disturb
python -m benchmarks.sweeps --write benchmarks/results/ceilings.md
                                                          puts each between its markers of that page

The knee of examples/intensity.py over `repeat` = 1 … 256 is held against the ridge that calibration measured with
kernels of its own: promised within 25 %. Of sweeps that double the batch every size but the first and the last is left
out in turn, the fit made of the others, and its prediction held against what was measured: promised within 10 %. It
takes ten minutes (as often as `--repeats` says, and longer with `--seconds`) and a quiet machine, and fails when a
promise is broken.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.pages import write_between_markers
from bottleneck.experiment.curve_fit import fit_series
from bottleneck.schema.trials import Fit, Point, Sweep
from bottleneck.units import format_us

EXAMPLES = Path(__file__).parents[1] / "examples"
BYTES = 8.0  # per element of the chain: read once, written once
KNEE_TOLERANCE, FIT_TOLERANCE = 0.25, 0.10
INTENSITY = ("intensity.py", "repeat=1:256:x2")
BATCHES = (
    ("small_network.py", "batch_size=1:16384:x2"),
    ("mlp.py", "batch_size=1:16384:x2"),
    ("lenet.py", "batch_size=1:1024:x2"),
    ("transformer.py", "batch_size=1:32:x2"),
)


@dataclass(frozen=True)
class Prediction:
    """A batch size that was left out: what its step took, and what the fit of the others says (null: none holds)."""

    program: str
    value: float
    measured_us: float
    predicted_us: float | None

    @property
    def error(self) -> float | None:
        """How far the prediction is off, as a share of the measurement."""
        return None if self.predicted_us is None else self.predicted_us / self.measured_us - 1


def sweep(program: str, parameter: str, options: Sequence[str]) -> Sweep:
    """The sweep of an example, by the command that users have."""
    command = [sys.executable, "-m", "bottleneck.cli", "sweep", str(EXAMPLES / program), "--param", parameter]
    done = subprocess.run([*command, "-f", "json", *options], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the sweep of {program} ended with status {done.returncode}")
    return msgspec.convert(json.loads(done.stdout), Sweep)


def leave_one_out(found: Sweep) -> list[Prediction]:
    """A prediction for every measured size between the first and the last."""
    (parameter,) = found.parameters
    measured = [point for point in found.points if point.step_us is not None]
    predictions = []
    for left_out in measured[1:-1]:
        (fit,) = fit_series([point for point in measured if point is not left_out], [parameter])
        value = float(left_out.values[parameter])
        predicted = fit.step_us(value) if _covers(fit, value) else None
        predictions.append(Prediction(found.program[0], value, _us(left_out), predicted))
    return predictions


def _covers(fit: Fit, value: float) -> bool:
    return fit.over is not None and fit.over.low <= value <= fit.over.high


def knee_and_ridge(found: Sweep) -> tuple[float | None, float | None]:
    """The knee by the clock, and the operations per element at which the calibrated ceilings cross."""
    (fit,) = found.fits
    roof = next((roof for roof in found.roofs if roof.peak == "fp32_vector" and roof.flops_per_s), None)
    if roof is None or not roof.flops_per_s or not roof.bytes_per_s:
        return fit.knee, None
    return fit.knee, roof.flops_per_s / roof.bytes_per_s * BYTES


def tell_knee(found: Sweep) -> tuple[str, bool]:
    """The text on the intensity experiment, and whether its promise holds."""
    knee, ridge = knee_and_ridge(found)
    rows = [
        f"| {point.values['repeat']} | {format_us(_us(point))} | {_giga(point.flops_per_s)} | "
        f"{_giga(point.bytes_per_s.low if point.bytes_per_s else None)} | {point.bound} |"
        for point in found.points
        if point.step_us is not None
    ]
    lines = ["| repeat | step | GFLOP/s | GB/s | verdict |", "|---|---|---|---|---|", *rows, ""]
    if knee is None or ridge is None:
        return "\n".join([*lines, "**No knee** or no ridge: nothing can be compared."]), False
    off = knee / ridge - 1
    lines.append(
        f"The fit (t = {found.fits[0].model} of both parts) puts the knee at {knee:.1f} operations; the "
        f"calibrated ceilings cross at {ridge:.1f}: {off:+.0%} (promised: within {KNEE_TOLERANCE:.0%})."
    )
    return "\n".join(lines), abs(off) <= KNEE_TOLERANCE


def tell_predictions(predictions: Sequence[Prediction]) -> tuple[str, bool]:
    """The text on the sizes that were left out, and whether all predictions hold."""
    rows = [
        f"| {Path(each.program).name} | {each.value:g} | {format_us(each.measured_us)} | {_told(each)} |"
        for each in predictions
    ]
    errors = [abs(each.error) for each in predictions if each.error is not None]
    good = [error for error in errors if error <= FIT_TOLERANCE]
    without = len(predictions) - len(errors)
    lines = [
        "| program | batch left out | measured | predicted | off by |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"{len(good)} of {len(errors)} sizes that were left out are predicted within {FIT_TOLERANCE:.0%}; of {without} "
        "more the fit says itself that no line holds there.",
    ]
    return "\n".join(lines), bool(errors) and len(good) == len(errors)


def _told(prediction: Prediction) -> str:
    if prediction.predicted_us is None or prediction.error is None:
        return "none: no line holds there | -"
    return f"{format_us(prediction.predicted_us)} | {prediction.error:+.1%}"


def _us(point: Point) -> float:
    assert point.step_us is not None
    return point.step_us.median


def _giga(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e9:.1f}"


def main() -> int:
    """Runs both; the exit status is 1 when a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="page that holds the knee and fit markers")
    parser.add_argument("--threads", type=int, help="threads of every point")
    parser.add_argument("--repeats", type=int, default=1, help="how often every point is measured")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long every point is timed")
    parser.add_argument("--turns", type=int, default=0, help="rounds of turns that time all points of a sweep")
    parser.add_argument("--elements", type=int, default=32 * 2**20, help="numbers in the vector of the experiment")
    parser.add_argument("--only", choices=("knee", "fit"), help="run one of both")
    chosen = parser.parse_args()
    options = ["--repeats", str(chosen.repeats), "--seconds", str(chosen.seconds), "--turns", str(chosen.turns)]
    options += [] if chosen.threads is None else ["--threads", str(chosen.threads)]
    told = {}
    if chosen.only != "fit":
        told["knee"] = tell_knee(sweep(*INTENSITY, [*options, "--set", f"elements={chosen.elements}"]))
    if chosen.only != "knee":
        told["fit"] = tell_predictions([each for one in BATCHES for each in leave_one_out(sweep(*one, options))])
    for name, (text, _) in told.items():
        if chosen.write:
            write_between_markers(chosen.write, name, text)
        print(text, end="\n\n")
    return 0 if all(holds for _, holds in told.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
