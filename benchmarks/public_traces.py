"""Runs `bottleneck report` on every file in a folder of traces and tabulates the results in markdown.

python -m benchmarks.public_traces FOLDER                          prints the table
python -m benchmarks.public_traces FOLDER --write benchmarks/results/traces.md
                                                          puts it between the corpus markers of that page

Each file goes through the front door in a process of its own. A row shows the exit code, the verdict, the ledger's
relative error against the wall time, and the linked and modelled shares of the busy time; a rejected file shows the one
line that the user sees. The script fails when any file ends in another code than 0 or 3, prints a Python traceback, or
when a ledger does not add up.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pages import write_between_markers
from bottleneck.schema.analysis import REGIMES

HEADER = "| trace | exit | verdict | steps | wall/step ms | busy/step ms | ledger error | linked | modelled |"


@dataclass(frozen=True)
class Outcome:
    """Result of one file."""

    name: str
    code: int
    analysis: dict[str, Any] | None
    stderr: str

    @property
    def ledger_error(self) -> float:
        """Relative difference between the ledger's sum and the wall time of the step."""
        assert self.analysis is not None
        wall = self.analysis["steps"]["wall_us"]
        return abs(math.fsum(entry["us"] for entry in self.analysis["ledger"]) - wall) / wall

    @property
    def holds(self) -> bool:
        """No traceback, a documented exit code, and a ledger that adds up."""
        if "Traceback" in self.stderr or self.code not in {0, 3}:
            return False
        return self.analysis is None or self.ledger_error <= 1e-9


def report(path: Path) -> Outcome:
    """The outcome of the command on one file."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "analysis.json"
        command = [sys.executable, "-m", "bottleneck.cli", "report", str(path), "--format", "json", "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        analysis = json.loads(target.read_text()) if target.exists() else None
    return Outcome(path.name, done.returncode, analysis, done.stderr)


def row(outcome: Outcome) -> str:
    """One line of the table."""
    name = "`" + outcome.name.replace("__", "/").removesuffix(".gz").removesuffix(".json") + "`"
    if outcome.analysis is None:
        said = outcome.stderr.strip().splitlines()[0].split(": ", 2)[-1] if outcome.stderr.strip() else ""
        said = re.sub(rf"\S*{re.escape(outcome.name)}", "the file", said).replace("|", "\\|")
        return f"| {name} | {outcome.code} | refused: {said} | | | | | | |"
    analysis = outcome.analysis
    verdict, steps, coverage = analysis["verdict"], analysis["steps"], analysis["coverage"]
    regime = f" ({REGIMES[verdict['regime']].words})" if verdict["regime"] else ""
    cells = [
        name,
        str(outcome.code),
        f"{verdict['bound']}{regime} {verdict['share']:.1%}",
        str(steps["count"]),
        f"{steps['wall_us'] / 1e3:.3f}",
        f"{analysis['totals']['busy_us'] / 1e3:.3f}",
        f"{outcome.ledger_error:.0e}",
        _share(coverage["linked_share"]),
        _share(coverage["modelled_share"]),
    ]
    return "| " + " | ".join(cells) + " |"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def table(outcomes: list[Outcome]) -> str:
    """The whole table with its summary line."""
    refused = sum(outcome.analysis is None for outcome in outcomes)
    failed = [outcome.name for outcome in outcomes if not outcome.holds]
    summary = (
        f"{len(outcomes)} files: {len(outcomes) - refused} reports, {refused} refused, {len(failed)} broken promises."
    )
    lines = [summary, "", HEADER, "|---|---|---|---|---|---|---|---|---|", *map(row, outcomes)]
    return "\n".join(lines)


def main() -> int:
    """Runs over the folder; the exit status is 1 when a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path, help="page that holds the corpus markers")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    files = sorted(path for path in options.folder.iterdir() if path.name.endswith((".json", ".gz")))
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(report, files))
    text = table(outcomes)
    if options.write:
        write_between_markers(options.write, "corpus", text)
    else:
        print(text)
    for outcome in outcomes:
        if not outcome.holds:
            print(f"BROKEN {outcome.name}: exit {outcome.code}\n{outcome.stderr}", file=sys.stderr)
    return int(any(not outcome.holds for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
