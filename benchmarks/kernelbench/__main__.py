"""Holds predicted step times against KernelBench's, which others measured on an H100, an A100 and a T4.

python -m benchmarks.kernelbench FOLDER            prints the tables
python -m benchmarks.kernelbench FOLDER --write    and puts them and the picture into benchmarks/results/kernelbench.md
python -m benchmarks.kernelbench FOLDER --ship     writes the learned rates and intervals of the package
"""

import argparse
import csv
import io
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.kernelbench.judge import (
    COMPILED,
    Held,
    Judged,
    Learned,
    floors,
    judge,
    learn,
    learn_errors,
    samples,
    speedups,
    speedups_inside,
    with_intervals,
    without_device,
    write_intervals,
)
from benchmarks.kernelbench.learn import Sample, device_times
from benchmarks.kernelbench.programs import read_steps, read_timings
from benchmarks.pages import write_between_markers
from bottleneck.predict.host_pace import slower_than_usual
from bottleneck.predict.interval import ANOTHER_BOARD, ANOTHER_HOST, GAIN, SPREADS
from bottleneck.predict.rates import KINDS
from bottleneck.schema.learned_rates import TABLE as RATES

PAGE = Path(__file__).parents[2] / "benchmarks/results/kernelbench.md"
PICTURE = PAGE.parents[2] / "docs/assets/predict-kernelbench.svg"
DEVICES = {"A100": "A100 40 GB", "H100": "H100 SXM", "T4": "T4"}
# A kind of work counts for a timing where it takes this part of its time.
_TAKES_PART = 0.1


def main() -> None:
    """Reads, learns, judges and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--ship", action="store_true")
    wanted = parser.parse_args()
    timings = read_timings(wanted.folder)
    steps, failed = read_steps(wanted.folder)
    for key, why in failed.items():
        print("left out:", *key, why)
    eager, compiled = samples(timings, steps)
    learned = learn(eager, compiled)
    judged = judge(eager, compiled, learned)
    if wanted.ship:
        write_rates(eager, compiled, learned, judged)
        write_spreads(judged)
    held = with_intervals(judged)
    floored = floors(timings, steps)
    parts = {
        "physics": physics_table(floored),
        "errors": error_table(held),
        "devices": device_table(eager, learned),
        "compiling": compile_table(judged),
        "worst": worst_table(judged),
        "rates": rates_table(),
    }
    for name, text in parts.items():
        print(f"\n{name}\n{text}")
        if wanted.write:
            write_between_markers(PAGE, name, text)
    if wanted.write:
        draw(judged)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def percent(share: float) -> str:
    """A share in percent with one decimal."""
    return f"{share * 100:.1f} %"


def physics_table(floored: Sequence) -> str:
    """Timings below their floor, and the nearest ones."""
    broken = [each for each in floored if each.is_broken]
    near = sorted(floored, key=lambda each: -each.floor_us / each.timing.us)[:5]
    rows = [
        (
            f"v{each.timing.version} {each.timing.level} {each.timing.name}",
            each.timing.machine,
            each.timing.backend,
            f"{each.floor_us / 1e3:.3g}",
            f"{each.timing.us / 1e3:.3g}",
            percent(each.floor_us / each.timing.us),
        )
        for each in [*broken, *(each for each in near if not each.is_broken)]
    ]
    heads = ("program", "machine", "backend", "floor (ms)", "measured (ms)", "floor / measured")
    return f"{len(broken)} of {len(floored)} timings lie below their floor. The nearest:\n\n{table(heads, rows)}"


def error_table(held: Sequence[Held]) -> str:
    """Errors and intervals by version, level and backend."""
    groups: dict[str, Callable[[Judged], bool]] = {
        "eager, large sizes (v2)": lambda one: one.timing.backend == "eager" and one.timing.version == "2",
        "eager, small sizes (v1)": lambda one: one.timing.backend == "eager" and one.timing.version == "1",
        **{
            f"eager, level {level}": lambda one, level=level: (
                one.timing.backend == "eager" and one.timing.level == f"level{level}"
            )
            for level in (1, 2, 3)
        },
        **{backend: lambda one, backend=backend: one.timing.backend == backend for backend in COMPILED},
        "all": lambda _: True,
    }
    rows = []
    for name, belongs in groups.items():
        some = [each for each in held if belongs(each.judged)]
        rows.append(
            (
                name,
                len(some),
                percent(statistics.median(each.judged.error for each in some)),
                percent(statistics.mean(each.is_inside for each in some)),
                f"{statistics.median(each.width for each in some):.2f}",
            )
        )
    return table(("timings", "number", "median error", "inside the interval", "median high / low"), rows)


def device_table(eager: Sample, learned: Learned) -> str:
    """Errors on devices that nothing was learned from."""
    rows = []
    for hardware, name in DEVICES.items():
        found = without_device(eager, learned, hardware)
        errors = [statistics.median(each.error for each in some) for some in found]
        rows.append((name, len(found[0]), *map(percent, errors)))
    heads = ("device left out", "timings", "median error, pace of its host known", "only its cloud known", "unknown")
    return table(heads, rows)


def compile_table(judged: Sequence[Judged]) -> str:
    """Signs of the change and speedups inside their intervals."""
    found = speedups(judged)
    inside = speedups_inside(found)
    rows = []
    for name, backends in {**{each: (each,) for each in COMPILED}, "all": COMPILED}.items():
        some = [row for row, each in enumerate(found) if each.after.timing.backend in backends]
        counted = [found[row] for row in some if found[row].counts]
        rows.append(
            (
                name,
                len(some),
                f"{percent(statistics.mean(each.is_right for each in counted))} of {len(counted)}",
                percent(statistics.mean(inside[row] for row in some)),
            )
        )
    return table(("backend", "pairs", "sign right where the change is above 5 %", "speedup inside its interval"), rows)


def worst_table(judged: Sequence[Judged]) -> str:
    """The ten largest errors of eager steps of the large sizes."""
    some = [each for each in judged if each.timing.backend == "eager" and each.timing.version == "2"]
    rows = [
        (
            f"{each.timing.level} {each.timing.name}",
            f"{each.us / 1e3:.3g}",
            f"{each.timing.us / 1e3:.3g}",
            f"{each.us / each.timing.us:.2f}",
        )
        for each in sorted(some, key=lambda each: -each.score)[:10]
    ]
    return table(("program (v2, H100)", "predicted (ms)", "measured (ms)", "ratio"), rows)


def rates_table() -> str:
    """What was learned."""
    with RATES.open(encoding="utf-8", newline="") as lines:
        rows = [tuple(row.values()) for row in csv.DictReader(lines)]
    return table(("rate", "value", "timings", "spread"), rows)


def write_rates(eager: Sample, compiled: Sample, learned: Learned, judged: Sequence[Judged]) -> None:
    """The rates with the number of timings in which each takes part, and by what factor those are off at the median."""
    score = {(each.timing, each.timing.backend): each.score for each in judged}
    parts: dict[str, list[float]] = {}
    for sample in (eager, compiled):
        found, total = device_times(sample, learned.rates)
        for code, kind in enumerate(KINDS):
            mine = np.bincount(sample.row, np.where(sample.work.kind == code, found.us, 0.0), len(sample.timings))
            some = np.flatnonzero(mine > _TAKES_PART * total)
            parts.setdefault(kind, []).extend(score[sample.timings[row], sample.timings[row].backend] for row in some)
    everything = [each.score for each in judged]
    hardware = {number: timing.hardware for number, timing in zip(eager.machine.tolist(), eager.timings, strict=True)}
    older = [slower_than_usual(hardware[number]) for number in range(len(learned.paces))]
    paces = np.log(learned.paces / older)
    values = {
        **learned.rates,
        "pace": math.exp(float(paces.mean())),
        "pace:spread": math.exp(float(paces.std(ddof=1))),
    }
    with RATES.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("name", "value", "timings", "spread"))
        for name, value in sorted(values.items()):
            mine = parts.get(name.split(":", maxsplit=1)[0], everything) or []
            spread = f"{math.exp(statistics.median(mine)):.2f}" if mine else ""
            writer.writerow((name, f"{value:.4g}", len(mine), spread))


def write_spreads(judged: Sequence[Judged]) -> None:
    """For each way to run a step its spreads, with the timings of which each makes the most, and its factors."""
    errors = learn_errors(judged)
    most = Counter((each.run, int(np.argmax(each.parts * errors.spreads[each.run] ** 2))) for each in judged)
    classes = Counter((each.run, each.calls) for each in judged)
    rows = [
        (f"{run}: {name}", f"{spreads[at]:.4f}", most[run, at])
        for run, spreads in errors.spreads.items()
        for at, name in enumerate(SPREADS)
    ]
    rows += [
        (f"{run}: {calls} calls", f"{factor:.3f}", classes[run, calls])
        for (run, calls), factor in errors.factors.items()
    ]
    write_intervals(rows, (GAIN, ANOTHER_HOST, ANOTHER_BOARD))


def draw(judged: Sequence[Judged]) -> None:
    """Predicted against measured per device, on logarithmic axes."""
    import matplotlib as mpl  # noqa: PLC0415 - for the picture only

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "predict", "svg.fonttype": "none"})
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above

    figure, axes = plt.subplots(1, len(DEVICES), figsize=(11, 3.9), sharey=True)
    for axis, (hardware, name) in zip(axes, DEVICES.items(), strict=True):
        some = [each for each in judged if hardware in each.timing.hardware]
        for eager, color, label in ((False, "#c2703d", "compiled"), (True, "#2b6cb0", "eager")):
            points = [each for each in some if (each.timing.backend == "eager") is eager]
            x, y = [each.timing.us / 1e3 for each in points], [each.us / 1e3 for each in points]
            axis.plot(x, y, ".", color=color, markersize=3, label=label, rasterized=False)
        ends = (0.01, 400.0)
        axis.plot(ends, ends, color="#444444", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title=name, xlabel="measured (ms)")
    axes[0].set_ylabel("predicted, program held out (ms)")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    PICTURE.write_text(shortened(text.getvalue()), encoding="utf-8")


def shortened(svg: str) -> str:
    """The picture with one decimal per coordinate, and the style of points in their marker instead of in each point."""
    style_of = dict(re.findall(r'<use xlink:href="#(m\w+)"[^>]* style="([^"]*)"', svg))
    for number, (name, style) in enumerate(style_of.items()):
        svg = re.sub(rf'(<path id="{name}"[^>]*?) style="[^"]*"', rf'\1 style="{style}"', svg)
        svg = re.sub(rf'(<use xlink:href="#{name}"[^>]*?) style="[^"]*"', r"\1", svg)
        svg = svg.replace(name, f"m{number}")
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL).replace("xlink:href", "href")
    return re.sub(r"\d+\.\d{2,}", lambda digits: f"{float(digits[0]):.1f}", re.sub(r"\n\s*", "\n", svg))


if __name__ == "__main__":
    main()
