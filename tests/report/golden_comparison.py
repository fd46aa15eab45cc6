"""Golden comparisons: of those made by hand and of sample recordings. ``python -m tests.report.golden_comparison``.

Look at the difference before committing it: each change must make the text truer or easier to read.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from bottleneck.report.comparison_formats import render, to_json, to_markdown
from tests.report import comparisons

FOLDER = Path(__file__).parents[1] / "golden" / "comparison"

GOLDEN: Mapping[str, Callable[[], str]] = {
    "slower.txt": lambda: render(comparisons.slower()),
    "slower.40.txt": lambda: render(comparisons.slower(), 40),
    "slower.md": lambda: to_markdown(comparisons.slower()),
    "slower.json": lambda: to_json(comparisons.slower()),
    "devices.ascii.txt": lambda: render(comparisons.devices(), encoding="ascii"),
    "lock.txt": lambda: render(comparisons.lock()),
    "unchanged.txt": lambda: render(comparisons.unchanged()),
    "hostile.md": lambda: to_markdown(comparisons.hostile()),
}


def main() -> None:
    """Writes every golden comparison."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in GOLDEN.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
