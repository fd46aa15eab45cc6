"""Golden reports: what formats say of the analyses made by hand. ``python -m tests.report.golden`` writes them anew.

Look at the difference before committing it: each change must make the report truer or easier to read.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from bottleneck.report.analysis_document import to_markdown, to_terminal
from bottleneck.report.json_text import to_json
from bottleneck.report.terminal import TerminalStyle
from tests.report import samples

FOLDER = Path(__file__).parents[1] / "golden" / "report"

GOLDEN: Mapping[str, Callable[[], str]] = {
    "gpu_overhead.txt": lambda: to_terminal(samples.gpu_overhead()),
    "gpu_overhead.ascii.txt": lambda: to_terminal(samples.gpu_overhead(), TerminalStyle(encoding="ascii")),
    "gpu_overhead.40.txt": lambda: to_terminal(samples.gpu_overhead(), TerminalStyle(40)),
    "gpu_overhead.md": lambda: to_markdown(samples.gpu_overhead()),
    "gpu_overhead.json": lambda: to_json(samples.gpu_overhead()),
    "cpu.txt": lambda: to_terminal(samples.cpu()),
    "multi_rank.txt": lambda: to_terminal(samples.multi_rank()),
    "inconclusive.txt": lambda: to_terminal(samples.inconclusive()),
    "hostile.md": lambda: to_markdown(samples.hostile()),
}


def main() -> None:
    """Writes every golden report."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in GOLDEN.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
