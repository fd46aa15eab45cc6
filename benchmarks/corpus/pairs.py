"""Pairs of predicted and measured speedups: what a change was said to give a step, and what it gave.

One line of JSON per change that was tried on a case. The file is data of the repository; `benchmarks.corpus` adds to it
and `benchmarks.corpus.intervals` learns from it.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from bottleneck.experiment.interventions import CHANGES
from bottleneck.schema.analysis import Finding

PAIRS = Path(__file__).with_name("pairs.jsonl")

# A pair is set apart as noisy where its interval reaches further to one side than this, or where two copies of the
# unchanged step, which took turns with it, differ by more (both as logarithms).
NOISY = 0.10


@dataclass(frozen=True)
class Claim:
    """The speedup that one finding states for a change; without ends where it names the change but states no figure."""

    slug: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Pair:
    """One change tried on one case.

    ``claims`` are those of all findings that name the change, by the rules of revision ``predicted_by``; none is itself
    a prediction: no gain expected. ``speedup`` is measured: median, lower and upper end of the 95 % interval over
    ``rounds`` rounds of turns, null where the change could not be tried, for the reason in ``refused``.
    ``copies`` is how far two copies of the unchanged step came out apart, as a logarithm. ``step_us`` is the unchanged
    step during the turns, ``recorded_us`` the step of the recording that the prediction is based on. ``alone`` is true
    where each of the two copies had a process of its own. ``machine`` names the processor with its instruction sets:
    one name stands for several kinds of processors, and what bf16 is worth depends on the kind.
    """

    case: str
    file: str
    kind: str
    parameters: Mapping[str, int | float | str | bool]
    change: str
    claims: tuple[Claim, ...]
    speedup: tuple[float, float, float] | None
    refused: str | None = None
    rounds: int = 0
    copies: float | None = None
    alone: bool = False
    step_us: float | None = None
    recorded_us: float | None = None
    setup_s: float | None = None
    seconds: float = 0.0
    busy: float = 0.0
    threads: int = 1
    machine: str = ""
    torch: str = ""
    version: str = ""
    revision: str = ""
    predicted_by: str = ""
    created: str = ""

    @property
    def is_noisy(self) -> bool:
        """True if the machine was too busy for this pair to tell anything."""
        if self.speedup is None:
            return False
        _, low, high = self.speedup
        return math.log(high / low) / 2 > NOISY or abs(self.copies or 0.0) > NOISY

    @property
    def is_usable(self) -> bool:
        """True if it was measured, not noisy, and against copies that ran in the same way.

        A process with several copies of a step gives freed memory back to the system less often, so that a step which
        frees much is up to twice as fast there as alone.
        """
        return self.speedup is not None and not self.is_noisy and self.alone == runs_alone(self.change)

    @property
    def key(self) -> tuple[str, str, str]:
        """The machine, the case and the change, of which one pair counts."""
        return self.machine, self.case, self.change


def runs_alone(change: str) -> bool:
    """True for a change of the whole process, which can share one with no other copy of the step."""
    return change in CHANGES and (CHANGES[change].is_process_wide or bool(CHANGES[change].environment))


def claims_of(change: str, findings: Sequence[Finding]) -> tuple[Claim, ...]:
    """The claim of each finding that names this change, as its rule states it: learned intervals teach nothing new."""
    naming = [finding for finding in findings if change in finding.tries]
    return tuple(
        Claim(finding.slug, *((None, None) if (said := finding.stated_speedup) is None else (said.low, said.high)))
        for finding in naming
    )


def repredict(pair: Pair, findings: Sequence[Finding], revision: str) -> Pair:
    """The same measurement beside what other rules say of the same recording."""
    return replace(pair, claims=claims_of(pair.change, findings), predicted_by=revision)


def read_pairs(path: Path = PAIRS) -> list[Pair]:
    """The pairs of a file in its order, none where there is no file.

    Of each machine, case and change it is the last usable one, or the last where none is.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    kept: dict[tuple[str, str, str], Pair] = {}
    for pair in (msgspec.json.decode(line, type=Pair) for line in lines if line.strip()):
        if pair.key not in kept or not kept[pair.key].is_usable or pair.is_usable:
            kept[pair.key] = pair
    return list(kept.values())


def append_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Adds lines to the file, all of them in one write."""
    text = "".join(_line(pair) for pair in pairs)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Writes the file anew."""
    text = "".join(_line(pair) for pair in pairs)
    path.write_text(text, encoding="utf-8")


def _line(pair: Pair) -> str:
    return json.dumps({key: _rounded(value) for key, value in asdict(pair).items()}) + "\n"


def _rounded(value: object) -> object:
    """Five digits of each number: more were not measured."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return value
