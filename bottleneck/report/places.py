"""Tables of the user's own places: work and waiting by source line and by module, rounded so that they re-add."""

import math
from collections.abc import Sequence

from bottleneck.records import Analysis, Fold
from bottleneck.report.layout import Column, Row, Table
from bottleneck.report.numbers import Scale, apportion_groups, percents, scale_of


def lines(analysis: Analysis, top: int) -> Table | None:
    """Work and waiting by source line; null where less than two lines are known."""
    return _places("By source line", analysis.lines, analysis, top)


def modules(analysis: Analysis, top: int) -> Table | None:
    """Work and waiting by module path; null where less than two modules are known."""
    return _places("By module", analysis.modules, analysis, top)


def _places(title: str, folds: Sequence[Fold], analysis: Analysis, top: int) -> Table | None:
    known = sorted((fold for fold in folds if _all_us(fold) > 0), key=lambda fold: -_all_us(fold))
    if len(known) < 2 or analysis.steps.wall_us <= 0:
        return None
    cut = top if len(known) > top + 1 else len(known)
    shown, hidden = known[:cut], known[cut:]
    parts = [(fold.us, fold.idle_us) for fold in shown]
    if hidden:
        parts.append((math.fsum(fold.us for fold in hidden), math.fsum(fold.idle_us for fold in hidden)))
    scale = scale_of(math.fsum(us for part in parts for us in part))
    *each, total = _numbers(parts, scale, analysis.steps.wall_us)
    rows = [Row((fold.name, *cells)) for fold, cells in zip(shown, each, strict=False)]
    rest = [Row((f"{len(hidden)} more", *each[-1]), "rest")] if hidden else []
    heads = ("work", "waiting", f"both, {scale.unit}", "share")
    return Table(
        title,
        (Column("at", "place"), *(Column(head, "number") for head in heads)),
        (*rows, *rest, Row(("all of these", *total), "total")),
    )


def _all_us(fold: Fold) -> float:
    return fold.us + fold.idle_us


def _numbers(parts: Sequence[tuple[float, float]], scale: Scale, wall_us: float) -> list[tuple[str, ...]]:
    """Work, waiting, both and their share of the step, for each part and for the sum: they re-add both ways."""
    columns = list(zip(*parts, strict=True))
    rounded = apportion_groups([[scale.quanta(us) for us in part] for part in parts])
    cells = [
        tuple(scale.show(number, us) for number, us in zip((*pair, sum(pair)), (*part, math.fsum(part)), strict=True))
        for pair, part in zip(rounded, parts, strict=True)
    ]
    sums = [(sum(pair[at] for pair in rounded), math.fsum(columns[at])) for at in (0, 1)]
    sums.append((sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]))
    cells.append(tuple(scale.show(number, us) for number, us in sums))
    shares = percents([math.fsum(part) / wall_us for part in parts])
    return [(*row, share) for row, share in zip(cells, shares, strict=True)]
