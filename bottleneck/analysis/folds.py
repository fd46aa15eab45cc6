"""Charged time folded by op, by module path and by source line, each split by group, with the idle time there."""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from bottleneck.analysis.charged import Charged
from bottleneck.analysis.ledger import ACCOUNTS, is_wait
from bottleneck.analysis.timeline import Integers, tally
from bottleneck.records import GROUPS, Fold, IdleCause

_GROUP_OF_ACCOUNT = np.array([GROUPS.index(group) for group in ACCOUNTS.values()])
_NO_WORK = dict.fromkeys(GROUPS, 0.0)


def fold_ops(rows: Charged) -> tuple[Fold, ...]:
    """Charged time by the op that pays for it; work without a known op is left out."""
    return _fold(rows, rows.op_codes("name"), rows.linked.ops["name"].cat.categories, {})


def fold_modules(rows: Charged, idle: Iterable[IdleCause]) -> tuple[Fold, ...]:
    """Charged and idle time by module path; work outside modules is left out."""
    waits = _sums((cause.module, cause.us) for cause in idle)
    return _fold(rows, rows.codes("module"), rows.labels("module"), waits)


def fold_lines(rows: Charged, idle: Iterable[IdleCause]) -> tuple[Fold, ...]:
    """Charged and idle time by source line; work without a known line is left out."""
    waits = _sums((cause.source, cause.us) for cause in idle)
    return _fold(rows, rows.codes("source"), rows.labels("source"), waits)


def _sums(waits: Iterable[tuple[str | None, float]]) -> dict[str, float]:
    """Idle time by name; that of unknown places is left out."""
    sums: dict[str, float] = {}
    for name, us in waits:
        if name is not None:
            sums[name] = sums.get(name, 0.0) + us
    return sums


def _fold(rows: Charged, codes: Integers, labels: "pd.Index[str]", idle_us: Mapping[str, float]) -> tuple[Fold, ...]:
    """Folds by name, most time first. What a data loader or a compiler runs is idle time."""
    keep = np.flatnonzero((codes >= 0) & (rows.us > 0) & ~is_wait(rows.account))
    size, groups = len(labels), len(GROUPS)
    us = tally(codes[keep], rows.us[keep], size)
    calls = tally(codes[keep], rows.runs[keep], size) / rows.repeats
    cell = codes[keep] * groups + _GROUP_OF_ACCOUNT[rows.account[keep]]
    split = tally(cell, rows.us[keep], size * groups).reshape(size, groups)
    worked = [
        Fold(
            name=str(labels[code]),
            calls=float(calls[code]),
            us=float(us[code]),
            share=float(us[code]) / rows.wall_us,
            shares=dict(zip(GROUPS, (split[code] / us[code]).tolist(), strict=True)),
            idle_us=idle_us.get(str(labels[code]), 0.0),
        )
        for code in np.flatnonzero(us).tolist()
    ]
    places = {fold.name for fold in worked}
    waited = [Fold(name, 0.0, 0.0, 0.0, _NO_WORK, waited) for name, waited in idle_us.items() if name not in places]
    return tuple(sorted((*worked, *waited), key=lambda fold: -(fold.us + fold.idle_us)))
