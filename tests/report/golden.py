"""Golden reports: what formats say of the analyses made by hand. ``python -m tests.report.golden`` writes them anew.

Look at the difference before committing it: each change must make the report truer or easier to read.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from bottleneck.report import analysis_json as datafile
from bottleneck.report import markdown, terminal
from tests.report import samples

FOLDER = Path(__file__).parents[1] / "golden" / "report"

GOLDEN: Mapping[str, Callable[[], str]] = {
    "gpu_overhead.txt": lambda: terminal.render(samples.gpu_overhead()),
    "gpu_overhead.ascii.txt": lambda: terminal.render(samples.gpu_overhead(), encoding="ascii"),
    "gpu_overhead.40.txt": lambda: terminal.render(samples.gpu_overhead(), 40),
    "gpu_overhead.md": lambda: markdown.render(samples.gpu_overhead()),
    "gpu_overhead.json": lambda: datafile.to_json(samples.gpu_overhead()),
    "cpu.txt": lambda: terminal.render(samples.cpu()),
    "multi_rank.txt": lambda: terminal.render(samples.multi_rank()),
    "inconclusive.txt": lambda: terminal.render(samples.inconclusive()),
    "hostile.md": lambda: markdown.render(samples.hostile()),
}


def main() -> None:
    """Writes every golden report."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in GOLDEN.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
