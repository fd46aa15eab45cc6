"""The cost of the profiled window to a script: time, as printed and as the script saw it, and memory that stays.

python -m benchmarks.overhead                                           prints the tables
python -m benchmarks.overhead --rounds 5 --write benchmarks/results/run.md
                                                                        puts them between the overhead markers there

Time: benchmarks/stamped.py under `bottleneck run` with its default options. "Printed" is the perturbation that the
report shows, "seen" the same from the script's own clock for the same steps. Memory: a training of 10,000 steps of the
tiny network, bare and under `run`: how much more is resident at the end, and was at the peak. Options: what the
recordings of examples say that each option of the profiler costs. All are medians over the rounds, with the range.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.disturbance import SCRIPT, launch
from benchmarks.pages import write_between_markers
from bottleneck.report.json_text import from_json
from bottleneck.schema.measurements import OptionCosts, ProfilerOption
from bottleneck.schema.recording import Recording, read_recording

STEPS = {"mlp": 3000, "transformer": 200, "resnet": 120}
EXAMPLES = ("mlp", "transformer")
_LONG = 10_000
_MB = 1e6
OPTIONS: tuple[ProfilerOption, ...] = ("ops", "shapes", "stacks", "memory", "all")


@dataclass(frozen=True)
class Window:
    """One run: microseconds of an unprofiled step, and profiled over unprofiled as printed and as the script saw it."""

    unprofiled_us: float
    printed: float
    seen: float


def measure_window(model: str) -> Window:
    """A run of the model with default options."""
    stamps, recording, printed = _run(model, STEPS[model])
    assert recording.unprofiled is not None
    return Window(recording.unprofiled.median, printed, _seen(stamps, recording))


def _run(model: str, steps: int) -> tuple[dict[str, list[int]], Recording, float]:
    """The script's stamps, the recording, and the perturbation in the report."""
    with tempfile.TemporaryDirectory() as folder:
        out, target = Path(folder) / "stamps.json", Path(folder) / "recording"
        options = ["-m", "bottleneck.cli", "run", "-o", str(target)]
        said = launch([sys.executable, *options, str(SCRIPT), model, str(steps), str(out)], {})
        if not (target / "analysis.json").exists():
            sys.exit(f"no report was made: {said}")
        times = from_json((target / "analysis.json").read_text(encoding="utf-8")).steps
        assert times.perturbation is not None
        return json.loads(out.read_text(encoding="utf-8")), read_recording(target), times.perturbation


def _seen(stamps: dict[str, list[int]], recording: Recording) -> float:
    """The ratio by the script's clock; its steps and the recording's marks meet on the wall clock."""
    marks_ns = recording.traces[0].step_marks_ns
    assert recording.timed_ns is not None
    timed, profiled = (_between(stamps, *span) for span in (recording.timed_ns, (marks_ns[0], marks_ns[-1])))
    return float(np.mean(profiled) / np.median(timed))


def _between(stamps: dict[str, list[int]], begin_ns: int, end_ns: int) -> np.ndarray:
    """The script's steps in a stretch of the wall clock; a step ends for us a moment before it ends for the script."""
    wall_ns = np.array(stamps["wall_ns"])
    ends_ns, steps_ns = wall_ns[1:] - wall_ns[0] + stamps["unix_ns"], np.diff(wall_ns)
    return steps_ns[(ends_ns > begin_ns + steps_ns / 2) & (ends_ns < end_ns + steps_ns / 2)]


def measure_memory() -> tuple[float, float]:
    """Megabytes more than bare at the end of a long training, and at its peak."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "stamps.json"
        launch([sys.executable, str(SCRIPT), "mlp", str(_LONG), str(out)], {})
        bare = json.loads(out.read_text(encoding="utf-8"))
    ours, _, _ = _run("mlp", _LONG)
    differences = [(ours[name] - bare[name]) / _MB for name in ("resident_bytes", "peak_bytes")]
    return differences[0], differences[1]


def measure_options(example: str) -> OptionCosts | None:
    """The costs of the profiler's options, from a recording of the example."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "recording"
        options = ["-m", "bottleneck.cli", "run", "--no-batch-test", "-o", str(target)]
        launch([sys.executable, *options, f"examples/{example}.py"], {})
        return read_recording(target).option_costs


def options_table(found: dict[str, list[OptionCosts | None]]) -> list[str]:
    """A row per example: the profiled step over the unprofiled one by option, medians over the rounds."""
    rows = []
    for example, rounds in found.items():
        known = [{cost.option: cost.ratio.median for cost in each.costs} for each in rounds if each and each.costs]
        cells = [_range([costs[option] for costs in known], "{:.2f}") if known else "-" for option in OPTIONS]
        rows.append(f"| examples/{example}.py | {' | '.join(cells)} |")
    head = "| steps of | ops alone | ops, shapes | ops, stacks | ops, memory | all of them |"
    return [head, "|---|---:|---:|---:|---:|---:|", *rows]


def windows_table(found: dict[str, list[Window]]) -> list[str]:
    """A row per model."""
    rows = []
    for model, windows in found.items():
        apart = [window.printed / window.seen - 1 for window in windows]
        cells = (
            model,
            f"{statistics.median(window.unprofiled_us for window in windows):.4g} us",
            _range([window.printed for window in windows], "{:.2f}"),
            _range([window.seen for window in windows], "{:.2f}"),
            _range(apart, "{:+.1%}"),
        )
        rows.append(f"| {' | '.join(cells)} |")
    head = "| steps | unprofiled | printed | seen by the script | printed / seen - 1 |"
    return [head, "|---|---:|---:|---:|---:|", *rows]


def _range(values: Sequence[float], form: str) -> str:
    low, middle, high = (form.format(value) for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low} to {high})"


def main() -> None:
    """Measures in rounds of all models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    windows: dict[str, list[Window]] = {model: [] for model in STEPS}
    costs: dict[str, list[OptionCosts | None]] = {example: [] for example in EXAMPLES}
    memory = []
    for index, model in itertools.product(range(options.rounds), (*STEPS, "memory", "options")):
        print(f"round {index + 1} of {options.rounds}: {model}", file=sys.stderr)
        if model == "memory":
            memory.append(measure_memory())
        elif model == "options":
            for example in EXAMPLES:
                costs[example].append(measure_options(example))
        else:
            windows[model].append(measure_window(model))
    rest, peak = (_range([pair[place] for pair in memory], "{:+.0f}") for place in (0, 1))
    told = (
        f"Memory after {_LONG:,} steps of the tiny network, against the bare script: {rest} MB; at the peak: {peak} MB."
    )
    text = "\n".join([*windows_table(windows), "", told, "", *options_table(costs)])
    print(text)
    if options.write:
        write_between_markers(options.write, "overhead", text)


if __name__ == "__main__":
    main()
