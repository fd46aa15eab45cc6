"""Replays every public trace and every sample without a change, and says how far each replay is from what was measured.

    python -m benchmarks.replay [--traces FOLDER] [--plot FILE] [--write] [NAME_PART …]

``--write`` renews the table of ``benchmarks/results/simulator.md`` and the histogram beside it. A step that runs on the
host alone is a chain of work, which a replay adds up: it is exact by construction and counts apart.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.pages import write_between_markers
from bottleneck.errors import BottleneckError
from bottleneck.pipeline import examine
from bottleneck.report.plots import save_figure
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.sources import find_traces
from bottleneck.simulate.critical_path import path_times, replayed_ledger
from bottleneck.simulate.graph import graph_of
from bottleneck.simulate.replay import replay_once
from bottleneck.simulate.whatif import MOST_ERROR, MOST_HELD, check_replay

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "benchmarks/results/simulator.md"
HISTOGRAM = ROOT / "docs/assets/replay.png"
TRACES = ROOT.parent / "shared/traces"
HEADER = (
    "| trace | kind | steps | pieces of work | on device | error | delays kept | other account | settled "
    "| why no what-if |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|---:|---|"
)
_LONGEST_NAME = 64
_MUCH = 0.2
_MOST_SHOWN = 0.05  # of the histogram's axis: further errors are drawn at its end


@dataclass(frozen=True)
class Outcome:
    """The replay of one trace without a change; ``kind`` is 'device' or 'host only'.

    ``error``, ``held_share``, ``settled`` and ``reason`` are those of ReplayCheck. ``moved`` is the share of the step
    that the replay charges to another account of the ledger than the analysis did. ``pieces`` counts device work, and
    ``on_device`` is the share of the critical path on the device: the rest is the host's, which a replay adds up.
    """

    name: str
    kind: str
    steps: int
    pieces: int
    on_device: float
    error: float
    held_share: float
    settled: float
    moved: float
    reason: str | None

    @property
    def row(self) -> str:
        """A row of the table."""
        name = self.name if len(self.name) <= _LONGEST_NAME else f"…{self.name[1 - _LONGEST_NAME :]}"
        shares = (
            f"{self.on_device:.0%}",
            f"{self.error:+.2%}",
            f"{self.held_share:.1%}",
            f"{self.moved:.1%}",
            f"{self.settled:+.1%}",
        )
        cells = (f"`{name}`", self.kind, str(self.steps), str(self.pieces), *shares, self.reason or "")
        return f"| {' | '.join(cells)} |"


def measure(path: Path) -> Outcome | None:
    """The outcome of one trace or recording; null for a file that is no trace of a PyTorch program."""
    try:
        evidence = examine(find_traces(path)[0])
    except BottleneckError:
        return None
    check, graph = check_replay(evidence), graph_of(evidence)
    return Outcome(
        name=path.name,
        kind="host only" if evidence.is_host_only else "device",
        steps=graph.steps,
        pieces=graph.device.row.size,
        on_device=_on_device(evidence),
        error=check.error,
        held_share=check.held_share,
        settled=check.settled,
        moved=0.0 if evidence.is_host_only else _moved(evidence),
        reason=check.reason,
    )


def _on_device(evidence: Evidence) -> float:
    played = replay_once(graph_of(evidence))
    on_device_us = float(path_times(graph_of(evidence), played).device_us.sum())
    return on_device_us / played.wall_us if played.wall_us > 0 else 0.0


def _moved(evidence: Evidence) -> float:
    """Half of the sum of the differences between the shares of both ledgers."""
    played = replay_once(graph_of(evidence))
    if not played.wall_us > 0:
        return 0.0
    shares = {entry.account: entry.share for entry in evidence.analysis.ledger}
    for entry in replayed_ledger(evidence, played, played.wall_us):
        shares[entry.account] = shares.get(entry.account, 0.0) - entry.share
    return math.fsum(map(abs, shares.values())) / 2


def sentences(outcomes: Sequence[Outcome]) -> list[str]:
    """The counts, and median and 95th percentile of the errors."""
    replayed = [each for each in outcomes if each.reason is None]
    kinds = {
        "traces with device work": [each for each in outcomes if each.kind == "device"],
        f"of these, with at least {_MUCH:.0%} of the critical path on the device": [
            each for each in outcomes if each.kind == "device" and each.on_device >= _MUCH
        ],
        "traces of the host alone, a chain that is exact by construction": [
            each for each in outcomes if each.kind == "host only"
        ],
    }
    return [_sentence(name, mine, [each for each in mine if each in replayed]) for name, mine in kinds.items() if mine]


def _sentence(name: str, mine: Sequence[Outcome], replayed: Sequence[Outcome]) -> str:
    errors = np.abs([each.error for each in replayed] or [math.nan])
    held = [each.held_share for each in replayed] or [math.nan]
    return (
        f"{name}: {len(replayed)} of {len(mine)} replayed, error {np.median(errors):.2%} at the median, "
        f"{np.quantile(errors, 0.95):.2%} at the 95th percentile, {errors.max():.2%} at most; "
        f"delays that are kept make {np.median(held):.1%} of the step at the median, {max(held):.1%} at most"
    )


def histogram(outcomes: Sequence[Outcome]) -> Figure:
    """The errors of the traces with device work."""
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    errors = np.clip([each.error for each in outcomes if each.kind == "device"], -_MOST_SHOWN, _MOST_SHOWN) * 100
    axes.hist(errors, bins=np.linspace(-100 * _MOST_SHOWN, 100 * _MOST_SHOWN, 41), color="#0072b2")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_yticks([0, 1, 2, 5, 10, 20, 50], ["0", "1", "2", "5", "10", "20", "50"])
    axes.set_xlabel("error of the replayed step, % (further ones at the ends)")
    axes.set_ylabel("traces with device work")
    axes.set_title(f"Replays without a change: {errors.size} traces", loc="left")
    return figure


def main() -> None:
    """Prints the table, and writes it where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="NAME_PART")
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    paths = [path for path in sorted(chosen.traces.iterdir()) if path.suffix != ".csv"]
    paths += [path for path in sorted((ROOT / "sample_traces").iterdir()) if path.is_dir()]
    paths = [path for path in paths if not chosen.parts or any(part in path.name for part in chosen.parts)]
    outcomes = [outcome for path in paths if (outcome := measure(path)) is not None]
    left_out = f"{len(paths) - len(outcomes)} files are no traces of PyTorch and are refused"
    limits = f"no what-if beyond an error of {MOST_ERROR:.0%} or {MOST_HELD:.0%} of delays"
    lines = [*sentences(outcomes), f"{left_out}; {limits}"]
    table = "\n".join((HEADER, *(each.row for each in outcomes)))
    print("\n".join((table, "", *lines)))
    if chosen.write:
        text = "\n".join(f"- {line[:1].upper()}{line[1:]}." for line in lines)
        write_between_markers(PAGE, "replay", f"\n{text}\n\n{table}\n")
    if chosen.plot or chosen.write:
        save_figure(lambda: histogram(outcomes), chosen.plot or HISTOGRAM)


if __name__ == "__main__":
    main()
