"""Keeps each prediction beside its measurement, over all verifications on this machine: rules earn their intervals."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bottleneck.records import Finding
from bottleneck.trials import Score, Trial, TrialVerdict, Verification

_FORMAT = "bottleneck/score/1"
# Verdicts that say something of a prediction: the change worked, and its speed was measured.
_JUDGED = frozenset({"faster", "slower", "no effect"})


@dataclass(frozen=True)
class Entry:
    """One change tried for one finding: speedups as low and high, and as median, low and high; null where unknown."""

    created: str
    finding: str
    change: str
    verdict: TrialVerdict
    predicted: tuple[float, float] | None
    measured: tuple[float, float, float] | None
    program: str = ""
    version: str = ""
    format: str = _FORMAT


def entries_of(done: Verification, findings: Sequence[Finding], created: str) -> list[Entry]:
    """An entry for each finding and each change that was tried for it on the whole step, as predictions are."""
    return [
        _entry(finding, trial, done, created)
        for trial in done.trials
        for finding in findings
        if trial.change in finding.tries and not trial.is_part
    ]


def _entry(finding: Finding, trial: Trial, done: Verification, created: str) -> Entry:
    predicted, measured = finding.predicted_speedup, trial.speedup
    return Entry(
        created=created,
        finding=finding.slug,
        change=trial.change,
        verdict=trial.verdict,
        predicted=None if predicted is None else (predicted.low, predicted.high),
        measured=None if measured is None else (measured.median, measured.low, measured.high),
        program=next((Path(word).name for word in done.program if word.endswith(".py")), ""),
        version=done.version,
    )


def append_entries(path: Path, entries: Iterable[Entry]) -> None:
    """Adds lines to the scoreboard, all of them in one write, so that two verifications do not mix theirs."""
    text = "".join(json.dumps(asdict(entry)) + "\n" for entry in entries)
    if text:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)


def read_entries(path: Path) -> list[Entry]:
    """The entries of the scoreboard; lines that are none of ours are passed over."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [entry for line in lines if (entry := _read(line)) is not None]


def _read(line: str) -> Entry | None:
    import msgspec  # noqa: PLC0415 - only where a scoreboard is read

    try:
        entry = msgspec.json.decode(line, type=Entry)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return entry if entry.format == _FORMAT else None


def scores(entries: Sequence[Entry]) -> tuple[Score, ...]:
    """A score for each rule, in the order of their names."""
    return tuple(_score(name, entries) for name in sorted({entry.finding for entry in entries}))


def _score(name: str, entries: Sequence[Entry]) -> Score:
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
    return Score(
        finding=name,
        applied=len(own),
        count=len(judged),
        inside=statistics.fmean(inside) if inside else None,
        near=statistics.fmean(near) if near else None,
        ratio=statistics.median(ratios) if ratios else None,
    )


def _gain(speedup: float) -> float:
    """The share of the step that is saved."""
    return 1 - 1 / speedup
