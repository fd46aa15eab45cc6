"""Keeps what findings predicted beside what `verify` measured, for the scoreboard and for later intervals."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from bottleneck.advice.interval_table import RuleTrial
from bottleneck.experiment.interventions import CHANGES
from bottleneck.schema.analysis import Finding, Interval
from bottleneck.schema.measurements import TrialVerdict
from bottleneck.schema.trials import Score, Trial, Verification

_FORMAT = "bottleneck/score/1"
UNNAMED = "no-finding"
# What states that a change gains nothing, and up to which speedup that is right (docs/explanation/predictions.md).
NO_GAIN = frozenset({"compile-does-not-pay", "half-precision-does-not-pay", UNNAMED})
_NO_EFFECT = 1.05
# Verdicts by which a prediction is scored: the change worked, and its speed was measured.
_JUDGED = frozenset({"faster", "slower", "no effect"})

# The base of a prediction: pieces of the step that were timed, or the formula of a rule.
Basis = Literal["measured", "formula"]


@dataclass(frozen=True)
class ScoreEntry:
    """One change tried for one finding: speedups as low and high, and as median, low and high; null where unknown.

    ``predicted`` is what the user was told, ``stated`` what the rule alone says. ``finding`` is ``UNNAMED`` for a
    change that no finding names: that nobody advises it predicts that it gains nothing. ``basis`` is null where no
    figure was predicted, and in lines from before it was kept.
    """

    created: str
    finding: str
    change: str
    verdict: TrialVerdict
    predicted: tuple[float, float] | None
    measured: tuple[float, float, float] | None
    program: str = ""
    version: str = ""
    format: str = _FORMAT
    stated: tuple[float, float] | None = None
    device: str = ""
    basis: Basis | None = None


def entries_of(done: Verification, findings: Sequence[Finding], created: str, device: str = "") -> list[ScoreEntry]:
    """An entry for each change that was tried on the whole step and each finding that names it, or for none that does.

    What only bounds a gain is no change that a finding could advise.
    """
    entries = []
    for trial in (trial for trial in done.trials if not trial.is_part):
        naming = [finding for finding in findings if trial.change in finding.tries]
        known = CHANGES.get(trial.change)
        silent = [None] if known is not None and known.is_remedy else []
        entries += [_entry(finding, trial, done, created, device) for finding in naming or silent]
    return entries


def _entry(finding: Finding | None, trial: Trial, done: Verification, created: str, device: str) -> ScoreEntry:
    measured = trial.speedup
    return ScoreEntry(
        created=created,
        finding=UNNAMED if finding is None else finding.slug,
        change=trial.change,
        verdict=trial.verdict,
        predicted=None if finding is None else _ends(finding.predicted_speedup),
        measured=None if measured is None else (measured.median, measured.low, measured.high),
        program=next((Path(word).name for word in done.program if word.endswith(".py")), ""),
        version=done.version,
        stated=None if finding is None else _ends(finding.stated_speedup),
        device=device,
        basis=None if finding is None else basis_of(finding),
    )


def basis_of(finding: Finding) -> Basis | None:
    """The base of the gain that a finding states, or denies; null where its rule states none."""
    if finding.measured:
        return "measured"
    return None if finding.stated_speedup is None else "formula"


def _ends(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (interval.low, interval.high)


def trials_of(entries: Iterable[ScoreEntry], basis: Basis = "formula") -> tuple[RuleTrial, ...]:
    """The judged trials of rules that stated an interval on this base, on a device that is known.

    Lines that do not state their base count as formulas, which most of them were.
    """
    return tuple(
        RuleTrial(entry.finding, Interval(*entry.stated), entry.measured[0], entry.device)
        for entry in entries
        if entry.verdict in _JUDGED and entry.stated is not None and entry.measured is not None and entry.device
        if (entry.basis or "formula") == basis
    )


def append_entries(path: Path, entries: Iterable[ScoreEntry]) -> None:
    """Adds lines to the scoreboard, all of them in one write, so that two verifications do not mix theirs."""
    text = "".join(json.dumps(asdict(entry)) + "\n" for entry in entries)
    if text:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)


def read_entries(path: Path) -> list[ScoreEntry]:
    """The entries of the scoreboard; lines that are none of ours are passed over."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [entry for line in lines if (entry := _read(line)) is not None]


def _read(line: str) -> ScoreEntry | None:
    import msgspec

    try:
        entry = msgspec.json.decode(line, type=ScoreEntry)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return entry if entry.format == _FORMAT else None


def scores(entries: Sequence[ScoreEntry]) -> tuple[Score, ...]:
    """A score for each rule, in the order of their names."""
    return tuple(_score(name, entries) for name in sorted({entry.finding for entry in entries}))


def _score(name: str, entries: Sequence[ScoreEntry]) -> Score:
    own = [entry for entry in entries if entry.finding == name]
    judged = [
        (entry.predicted, entry.measured)
        for entry in own
        if entry.verdict in _JUDGED and entry.predicted is not None and entry.measured is not None
    ]
    inside = [low <= median <= high for (low, high), (median, _, _) in judged]
    near = [low <= most and least <= high for (low, high), (_, least, most) in judged]
    ratios = [
        _gain(median) / predicted
        for (low, high), (median, _, _) in judged
        if (predicted := (_gain(low) + _gain(high)) / 2) > 0
    ]
    right = [kept for entry in own if (kept := _went_as_predicted(entry)) is not None]
    return Score(
        finding=name,
        applied=len(own),
        right=statistics.fmean(right) if right else None,
        count=len(judged),
        inside=statistics.fmean(inside) if inside else None,
        near=statistics.fmean(near) if near else None,
        ratio=statistics.median(ratios) if ratios else None,
    )


def _gain(speedup: float) -> float:
    """The share of the step that is saved."""
    return 1 - 1 / speedup


def _went_as_predicted(entry: ScoreEntry) -> bool | None:
    """True if a promised gain made the step faster, or what promised none at most 5 % faster; null where unknown."""
    if entry.verdict not in _JUDGED or entry.measured is None:
        return None
    told = entry.stated or entry.predicted
    if told is not None:
        return (entry.measured[0] > 1) == (told[0] * told[1] > 1)
    return entry.measured[0] <= _NO_EFFECT if entry.finding in NO_GAIN else None
