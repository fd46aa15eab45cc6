"""KERNELS beside what the other stages say of each row, scaled to one step: the input of every summary."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bottleneck.analysis.ledger import ACCOUNTS, LedgerResult
from bottleneck.analysis.timeline import Floats, Integers
from bottleneck.tables import CHARGED, category
from bottleneck.tracing import Linked


@dataclass(frozen=True)
class Charged:
    """Row for row as KERNELS.

    ``us`` is charged time per step, mean over devices; ``runs`` is the part of the run that lies in the window, so that
    a sum of runs divided by ``repeats`` (steps times devices) is a count per step; ``account`` is the position in
    ACCOUNTS; ``op`` the row in OPS that stands for a kernel: the one that pays for it, else the one that issued it, -1
    for none. ``signature`` is the row in CALLS of the call that stands for it: that of this op, or that of a twin.
    """

    linked: Linked
    costs: pd.DataFrame
    roofline: pd.DataFrame
    account: Integers
    us: Floats
    runs: Floats
    repeats: int
    op: Integers
    signature: Integers
    result: LedgerResult

    @property
    def wall_us(self) -> float:
        """The step that shares are shares of."""
        return self.result.ledger.wall_us

    def codes(self, column: str) -> Integers:
        """Codes of a category of KERNELS or ROOFLINE; -1 for null."""
        return codes_of(self._frame(column)[column])

    def labels(self, column: str) -> "pd.Index[str]":
        """Texts behind ``codes``."""
        return self._frame(column)[column].cat.categories

    def op_codes(self, column: str) -> Integers:
        """Codes of a category, or row references, of OPS; -1 for null and for kernels without op."""
        return np.append(codes_of(self.linked.ops[column]), -1)[self.op]

    def table(self) -> pd.DataFrame:
        """CHARGED, for those who fold this time in their own way."""
        return CHARGED.check(
            pd.DataFrame(
                {
                    "us": self.us,
                    "runs": self.runs / self.repeats,
                    "account": category(self.account, list(ACCOUNTS)),
                    "op": _references(self.op),
                    "signature": _references(self.signature),
                }
            )
        )

    def _frame(self, column: str) -> pd.DataFrame:
        return self.linked.kernels if column in self.linked.kernels.columns else self.roofline


def codes_of(column: "pd.Series[str]") -> Integers:
    """A category or a nullable row reference as integers, -1 for null."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.codes.to_numpy().astype(np.int64)
    return np.asarray(column.to_numpy(dtype=np.int64, na_value=-1), dtype=np.int64)


def _references(rows: Integers) -> "pd.arrays.IntegerArray":
    return pd.arrays.IntegerArray(rows.astype(np.int32), rows < 0)


def charged_rows(
    linked: Linked, costs: pd.DataFrame, charges: pd.DataFrame, roofline: pd.DataFrame, result: LedgerResult
) -> Charged:
    """The rows behind all summaries."""
    steps = max(len(linked.window.steps), 1)
    payer, issuer = codes_of(charges["payer"]), codes_of(linked.kernels["op"])
    carried = codes_of(charges["signature"])
    return Charged(
        linked=linked,
        costs=costs,
        roofline=roofline,
        account=result.account,
        us=result.kernel_us / steps,
        runs=_inside(linked, result),
        repeats=steps * len(result.devices),
        op=np.where(payer < 0, issuer, payer),
        signature=np.where(carried < 0, np.append(codes_of(linked.ops["signature"]), -1)[issuer], carried),
        result=result,
    )


def _inside(linked: Linked, result: LedgerResult) -> Floats:
    """Part of each run that lies in the window; a run without duration lies in it or not."""
    frame = linked.ops if result.host_only else linked.kernels
    start, length = frame["ts_us"].to_numpy(), frame["dur_us"].to_numpy()
    low, high = linked.window.start_us, linked.window.end_us
    end = start + length
    part = np.clip(end, low, high) - np.clip(start, low, high)
    whole = ((start >= low) & (end <= high)).astype(np.float64)
    return np.asarray(np.divide(part, length, out=whole, where=(length > 0) & (whole == 0)))
