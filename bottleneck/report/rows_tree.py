"""Builds the tree of the step's time from the rows of an analysis.

The page shows it where no Python frames are at hand.
"""

from collections.abc import Iterator

from bottleneck.report.analysis_tables import call_words
from bottleneck.schema.accounts import ACCOUNTS, UNMODELLED, UNMODELLED_BY_FAMILY, label_of
from bottleneck.schema.analysis import Analysis, KernelSummary
from bottleneck.schema.time_tree import NodeKind, TimeTree, TreePiece, fold_pieces

_ACCOUNT_OF_BOUND = {row.bound: key for key, row in ACCOUNTS.items() if row.bound is not None}


def account_of(row: KernelSummary) -> str:
    """Gives the account of a kernel.

    Analyses of before it was stated have it by the bound.
    """
    account = row.account or _ACCOUNT_OF_BOUND.get(row.bound, UNMODELLED)
    return UNMODELLED_BY_FAMILY.get(row.family, account) if row.account is None and account == UNMODELLED else account


def tree_of_rows(analysis: Analysis) -> TimeTree:
    """Builds the tree by module and op.

    It is by op alone where no module is known.
    """
    has_modules = any(row.module for row in analysis.kernels) or any(row.module for row in analysis.idle)
    return fold_pieces(_pieces(analysis), "modules" if has_modules else "ops")


def _pieces(analysis: Analysis) -> Iterator[TreePiece]:
    for at, row in enumerate(analysis.kernels):
        calls: tuple[tuple[str, NodeKind], ...] = ((row.op or row.name, "op"), (call_words(row), "op"))
        yield TreePiece((*_modules(row.module), *calls), account_of(row), row.us, kernel=at)
    for at, idle in enumerate(analysis.idle):
        account = f"overhead.{idle.cause}"
        where: tuple[tuple[str, NodeKind], ...] = ((idle.detail or label_of(account), "frame"),)
        yield TreePiece((*_modules(idle.module), *where), account, idle.us, idle=at)


def _modules(path: str | None) -> tuple[tuple[str, NodeKind], ...]:
    return tuple((name, "module") for name in (path or "").replace(" > ", ".").split(".") if name)
