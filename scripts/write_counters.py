"""Writes the table of counters into the reference page on the gate: ``python -m scripts.write_counters``.

The table is made from the counters and their default budgets; a test checks that the page is current.
"""

from pathlib import Path

from bottleneck.gate.settings import default_budgets
from bottleneck.schema.counters import COUNTERS, Counter

PAGE_FILE = Path(__file__).parents[1] / "docs" / "reference" / "gate.md"
BEGIN = "<!-- written by scripts/write_counters.py: begin -->"
END = "<!-- written by scripts/write_counters.py: end -->"

_HEADINGS = ("counter", "tier", "counts, per step", "unit", "usual budget", "below half")


def table() -> str:
    """One line per counter, with its headings."""
    rows = [_HEADINGS, ("---",) * len(_HEADINGS), *map(_cells, COUNTERS.values())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page(text: str) -> str:
    """The page with its table renewed; the text around it is written by hand."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}{END}{rest.split(END)[1]}"


def _cells(counter: Counter) -> tuple[str, ...]:
    return (
        f"`{counter.name}`",
        counter.tier,
        counter.meaning,
        counter.unit or "",
        f"`{default_budgets()[counter.name].text}`",
        "an error" if counter.must_exist else "fine",
    )


if __name__ == "__main__":
    PAGE_FILE.write_text(page(PAGE_FILE.read_text(encoding="utf-8")), encoding="utf-8")
