"""Which counters of a step are the same in every process: examples counted under circumstances that should not matter.

Each program is counted once as it is and once under each circumstance: other hash seeds, one and two threads, without
the garbage collector. Prints a table of the counters that differ from the first count, tier by tier, and leaves it in
the folder of -o.

    python -m benchmarks.counts                     # everything, minutes
    python -m benchmarks.counts mlp compiled        # some programs
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bottleneck.errors import BottleneckError
from bottleneck.experiment.side import Side
from bottleneck.gate.count_program import count_program
from bottleneck.harness.messages import Program
from bottleneck.harness.target import find_form
from bottleneck.schema.counters import COUNTERS, Counts

ROOT = Path(__file__).parents[1]
EXAMPLES = ("mlp", "transformer", "lenet", "slow_loader", "pointwise", "matmul", "train_script")

# Run before each program where the circumstance says so; a folder with this file is on its path.
_WITHOUT_GC = "import gc\ngc.disable()\n"
_USUAL = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
CIRCUMSTANCES: Mapping[str, Mapping[str, str]] = {
    "as it is": _USUAL,
    "again": _USUAL,
    "hash seed": {**_USUAL, "PYTHONHASHSEED": "4242"},
    "2 threads": {**_USUAL, "OMP_NUM_THREADS": "2"},
    "no gc": {**_USUAL, "PYTHONPATH": "WITHOUT_GC"},
}

COMPILED = """
import torch
from torch import nn


def workload(batch=16):
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model)
    data = torch.randn(batch, 64)

    def step():
        optimizer.zero_grad()
        compiled(data).square().mean().backward()
        optimizer.step()

    return step
"""
WORKERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(400, 8), torch.randint(0, 2, (400,)))
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(100):
    for inputs, labels in DataLoader(data, batch_size=4, shuffle=True, num_workers=2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
"""
MADE = {"compiled": COMPILED, "workers": WORKERS}


@dataclass(frozen=True)
class Row:
    """A program under a circumstance: what differs from its first count, by counter, or why there is no count."""

    program: str
    circumstance: str
    differs: Mapping[str, str]
    reason: str | None = None


def compare_counts(first: Counts, other: Counts) -> dict[str, str]:
    """'27 -> 29' for each counter that differs; what is unstable within one process differs too."""
    found = {name: text for counts in (first, other) for name, text in counts.unstable.items() if name in COUNTERS}
    for name in COUNTERS:
        one, two = first.values.get(name), other.values.get(name)
        if one != two and name not in found:
            found[name] = f"{one} -> {two}"
    if first.sites != other.sites:
        found["(lines)"] = f"{len(set(map(repr, first.sites)) ^ set(map(repr, other.sites)))} differ"
    return found


def study(name: str, scratch: Path) -> list[Row]:
    """One program under every circumstance."""
    folder, target = _place(name, scratch)
    program = Program(target, form=find_form(folder / target))
    quiet = scratch / "without_gc"
    quiet.mkdir(exist_ok=True)
    (quiet / "sitecustomize.py").write_text(_WITHOUT_GC)
    first: Counts | None = None
    rows = []
    for number, (circumstance, environment) in enumerate(CIRCUMSTANCES.items()):
        told = {key: str(quiet) if value == "WITHOUT_GC" else value for key, value in environment.items()}
        try:
            side = Side(circumstance, folder, told)
            counts = count_program(program, scratch / f"{name}-{number}", side).counts
        except BottleneckError as error:
            rows.append(Row(name, circumstance, {}, f"{error.what}: {error.why}"))
            continue
        first = first or counts
        rows.append(Row(name, circumstance, compare_counts(first, counts)))
    return rows


def table(rows: Sequence[Row]) -> str:
    """Markdown: one line per program and circumstance."""
    lines = ["| program | circumstance | portable counters that differ | others |", "|---|---|---|---|"]
    for row in rows:
        cells = ["", ""]
        for name, text in row.differs.items():
            tier = COUNTERS[name].tier if name in COUNTERS else "backend"
            cells[tier != "portable"] += f"{name} {text}; "
        words = [cell.rstrip("; ") or "none" for cell in cells] if row.reason is None else [row.reason, ""]
        lines.append(f"| {row.program} | {row.circumstance} | {words[0]} | {words[1]} |")
    return "\n".join(lines)


def _place(name: str, scratch: Path) -> tuple[Path, str]:
    """The folder that a program starts in, and its file."""
    if name not in MADE:
        return ROOT, f"examples/{name}.py"
    folder = scratch / "made"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(MADE[name])
    return folder, f"{name}.py"


def main() -> None:
    """Counts, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=[*EXAMPLES, *MADE])
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.programs:
            rows += study(name, Path(scratch))
            print(table(rows[-len(CIRCUMSTANCES) :]), flush=True)
    if options.output is not None:
        options.output.write_text(table(rows) + "\n")


if __name__ == "__main__":
    main()
