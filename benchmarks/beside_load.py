"""What `bottleneck run` says of a program beside other programs, held against what it says of it alone.

    python -m benchmarks.beside_load [--only NAME] [--others 2]
    python -m benchmarks.beside_load --write benchmarks/results/run.md      also into the page

Each program is recorded twice: alone, and beside as many processes that never rest as the machine has processors
(`--others` says how many). The bound, the first finding and the step are compared, and the shares of compute, memory
and overhead: `apart` is half the sum of their differences, 0 for the same shares and 1 for disjoint ones. Without
`--write` nothing is kept. On a machine that is not left alone the first recording is beside others too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pages import write_between_markers
from bottleneck.report.json_text import from_json
from bottleneck.schema.analysis import Analysis
from bottleneck.units import format_share, format_us

ROOT = Path(__file__).resolve().parents[1]
_CORPUS = "benchmarks/corpus/workloads"
PROGRAMS = (
    *(f"examples/{name}.py" for name in ("mlp", "small_network", "lenet", "transformer", "train_tabular")),
    *(
        f"{_CORPUS}/{name}.py"
        for name in (
            *("autoencoder", "click_model", "denoising_unet", "graph_convolution", "image_mixer", "lstm_language"),
            *("residual_cnn", "text_encoder", "two_towers"),
        )
    ),
)
_GROUPS = ("compute", "memory", "overhead")
_RESTLESS = "while True: pass"
_MOST_S = 300


@dataclass(frozen=True)
class Answer:
    """The answer of one recording: bound, shares of the groups, step, and the first finding."""

    bound: str
    shares: tuple[float, ...]
    step_us: float
    first: str
    is_off_load: bool


def answer_of(analysis: Analysis) -> Answer:
    """The part of an analysis that is compared."""
    return Answer(
        bound=analysis.verdict.bound,
        shares=tuple(analysis.verdict.shares.get(group, 0.0) for group in _GROUPS),
        step_us=analysis.steps.wall_us,
        first=analysis.findings[0].slug if analysis.findings else "-",
        is_off_load=analysis.has_load_taken_off,
    )


def record(program: str, folder: Path) -> Answer:
    """The answer of a recording of this program."""
    command = [sys.executable, "-m", "bottleneck", "run", "--quiet", "-o", str(folder), program]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=_MOST_S)
    return answer_of(from_json((folder / "analysis.json").read_text()))


@contextmanager
def others(count: int) -> Iterator[None]:
    """So many processes that never rest, as long as it is open."""
    running = [subprocess.Popen([sys.executable, "-c", _RESTLESS]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def apart(one: Answer, other: Answer) -> float:
    """Half the sum of the differences of the shares (0-1)."""
    return sum(abs(a - b) for a, b in zip(one.shares, other.shares, strict=True)) / 2


def table(pairs: Sequence[tuple[str, Answer, Answer]]) -> str:
    """The answers as a table in Markdown, with how many agree."""
    rows = ["| program | alone | beside others | shares apart | first finding alone | beside others |"]
    rows.append("|---|---|---|---|---|---|")
    for program, alone, beside in pairs:
        rows.append(
            f"| `{Path(program).name}` | {alone.bound}, {format_us(alone.step_us)} | "
            f"{beside.bound}, {format_us(beside.step_us)}{'' if beside.is_off_load else ' (nothing taken off)'} | "
            f"{format_share(apart(alone, beside))} | {alone.first} | {beside.first} |"
        )
    same = sum(alone.bound == beside.bound for _, alone, beside in pairs)
    first = sum(alone.first == beside.first for _, alone, beside in pairs)
    rows += ["", f"The same bound for {same} of {len(pairs)}, the same first finding for {first}."]
    return "\n".join(rows)


def main() -> None:
    """Records all programs both ways, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="one program, by its file's name")
    parser.add_argument("--others", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    chosen = [program for program in PROGRAMS if not options.only or Path(program).stem in options.only]
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for number, program in enumerate(chosen):
            alone = record(program, Path(folder) / f"{number}-alone")
            with others(options.others):
                beside = record(program, Path(folder) / f"{number}-beside")
            pairs.append((program, alone, beside))
            print(f"{program}: {alone.bound}, beside others {beside.bound}", file=sys.stderr, flush=True)
    text = table(pairs)
    print(text)
    if options.write is not None:
        write_between_markers(options.write, "beside-load", text)


if __name__ == "__main__":
    main()
