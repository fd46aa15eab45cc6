"""Charged time folded by op, by module path and by source line, each split by group."""

import numpy as np
import pandas as pd

from bottleneck.analysis.charged import Charged
from bottleneck.analysis.ledger import ACCOUNTS
from bottleneck.analysis.timeline import Integers, tally
from bottleneck.records import GROUPS, Fold

_GROUP_OF_ACCOUNT = np.array([GROUPS.index(group) for group in ACCOUNTS.values()])


def fold_ops(rows: Charged) -> tuple[Fold, ...]:
    """Charged time by the op that pays for it; work without a known op is left out."""
    return _fold(rows, rows.op_codes("name"), rows.linked.ops["name"].cat.categories)


def fold_modules(rows: Charged) -> tuple[Fold, ...]:
    """Charged time by module path; work outside modules is left out."""
    return _fold(rows, rows.codes("module"), rows.labels("module"))


def fold_lines(rows: Charged) -> tuple[Fold, ...]:
    """Charged time by source line; work without a known line is left out."""
    return _fold(rows, rows.codes("source"), rows.labels("source"))


def _fold(rows: Charged, codes: Integers, labels: "pd.Index[str]") -> tuple[Fold, ...]:
    keep = np.flatnonzero((codes >= 0) & (rows.us > 0))
    size, groups = len(labels), len(GROUPS)
    us = tally(codes[keep], rows.us[keep], size)
    calls = tally(codes[keep], rows.runs[keep], size) / rows.repeats
    cell = codes[keep] * groups + _GROUP_OF_ACCOUNT[rows.account[keep]]
    split = tally(cell, rows.us[keep], size * groups).reshape(size, groups)
    used = np.flatnonzero(us)
    return tuple(
        Fold(
            name=str(labels[code]),
            calls=float(calls[code]),
            us=float(us[code]),
            share=float(us[code]) / rows.wall_us,
            shares=dict(zip(GROUPS, (split[code] / us[code]).tolist(), strict=True)),
        )
        for code in used[np.argsort(-us[used], kind="stable")].tolist()
    )
