"""The scoreboard of predictions as a table for people, as markdown and as JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from bottleneck.report.clean import clean
from bottleneck.report.markdown import prose
from bottleneck.trials import Score

_TITLES = ("rule", "tried", "judged", "inside", "touching", "measured/predicted")
_NONE = "no prediction has been verified on this machine yet: bottleneck verify FILE"
_MEANING = (
    "inside: the measured speedup lies in the predicted interval; touching: the two intervals meet. The last column "
    "is the median of the gains."
)


def _terminal(scores: Sequence[Score]) -> str:
    """A table of at most 80 columns, if slugs are not longer than theirs."""
    if not scores:
        return _NONE + "\n"
    rows = [_TITLES, *(_cells(score) for score in scores)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_TITLES))]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", *_MEANING.split("; ")]) + "\n"


def _markdown(scores: Sequence[Score]) -> str:
    if not scores:
        return prose(_NONE) + "\n"
    lines = ["| " + " | ".join(_TITLES) + " |", "|---|" + "---:|" * (len(_TITLES) - 1)]
    lines += ["| " + " | ".join(prose(cell) for cell in _cells(score)) + " |" for score in scores]
    return "\n".join([*lines, "", prose(_MEANING)]) + "\n"


def _json(scores: Sequence[Score]) -> str:
    return json.dumps({"scores": [asdict(score) for score in scores]}, indent=1) + "\n"


def _cells(score: Score) -> tuple[str, ...]:
    ratio = "-" if score.ratio is None else f"{score.ratio:.2f}"
    counts = (str(score.applied), str(score.count))
    return (clean(score.finding, 40), *counts, _share(score.inside), _share(score.near), ratio)


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


FORMATS: Mapping[str, Callable[[Sequence[Score]], str]] = {
    "terminal": _terminal,
    "markdown": _markdown,
    "json": _json,
}
