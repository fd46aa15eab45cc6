"""Time per step of each kernel, and rows of the report.

A row has the kernels of one kind.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.ledger import LedgerResult, is_wait
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import Confidence, KernelSummary, Regime, regime_of
from bottleneck.schema.device import ONEDNN_PEAK, Device
from bottleneck.schema.intervals import Flags, Floats, Integers, numbered, tally
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.op_names import MULTIPLIES
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.schema.tables import KERNEL_TIME, category
from bottleneck.system.working_memory import returns_memory
from bottleneck.units import ITEM_BYTES, SHORT_DTYPE, US_PER_S


class KernelTimes(Struct, frozen=True):
    """Row for row as KERNELS.

    ``us`` is charged time per step, mean over devices; ``runs`` is the part of the run that lies in the window, so that
    a sum of runs divided by ``repeats`` (steps times devices) is a count per step; ``account`` is the position in
    ACCOUNTS; ``op`` the row in OPS that stands for a kernel: the one that pays for it, else the one that issued it, -1
    for none. ``signature`` is the row in CALLS of its call: that of this op, or that of its replay match.
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
        """Gives codes of a category, or row references, of OPS.

        -1 for null and for kernels without op.
        """
        values = self.linked.ops[column]
        if not isinstance(values.dtype, pd.CategoricalDtype):
            return np.append(codes_of(values), -1)[self.op]
        # A trace has many times as many ops as kernels: their codes stay as narrow as they are.
        codes = values.cat.codes.to_numpy()
        return np.append(codes, codes.dtype.type(-1))[self.op].astype(np.int64)

    def table(self) -> pd.DataFrame:
        """KERNEL_TIME, for those who fold this time in their own way."""
        return KERNEL_TIME.check(
            pd.DataFrame(
                {
                    "us": self.us,
                    "runs": self.runs / self.repeats,
                    "account": category(self.account, list(ACCOUNTS)),
                    "op": _references(self.op),
                    "signature": _references(self.signature),
                    "row": _references(summary_rows(self)),
                }
            )
        )

    def _frame(self, column: str) -> pd.DataFrame:
        return self.linked.kernels if column in self.linked.kernels.columns else self.roofline


def lost_products(rows: KernelTimes) -> tuple[int, float]:
    """Counts the window's products without a recorded kernel.

    Also gives their FLOPs per step, where known.
    """
    linked = rows.linked
    if linked.losses is None:
        return 0, 0.0
    ops, (low, high) = linked.ops.iloc[linked.losses.products], linked.window.host_us
    mine = ops[(ops["ts_us"] >= low) & (ops["ts_us"] < high)]
    flops = np.append(rows.costs[["matrix_flops", "vector_flops"]].fillna(0.0).sum(axis=1).to_numpy(), 0.0)
    return len(mine), float(flops[codes_of(mine["signature"])].sum()) / max(len(linked.window.steps), 1)


def codes_of(column: "pd.Series[str]") -> Integers:
    """A category or a nullable row reference as integers, -1 for null."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.codes.to_numpy().astype(np.int64)
    return np.asarray(column.to_numpy(dtype=np.int64, na_value=-1), dtype=np.int64)


def _references(rows: Integers) -> "pd.arrays.IntegerArray":
    return pd.arrays.IntegerArray(rows.astype(np.int32), rows < 0)


@returns_memory
def time_kernels(
    linked: Linked, costs: pd.DataFrame, attribution: pd.DataFrame, roofline: pd.DataFrame, result: LedgerResult
) -> KernelTimes:
    """The rows behind all summaries."""
    steps = max(len(linked.window.steps), 1)
    owner, issuer = codes_of(attribution["op"]), codes_of(linked.kernels["op"])
    return KernelTimes(
        linked=linked,
        costs=costs,
        roofline=roofline,
        account=result.account,
        us=result.kernel_us / steps,
        runs=_inside(linked, result),
        repeats=steps * len(result.devices),
        op=np.where(owner < 0, issuer, owner),
        signature=signature_of(linked, attribution),
        result=result,
    )


def signature_of(linked: Linked, attribution: pd.DataFrame) -> Integers:
    """The row in CALLS of each row of KERNELS.

    It is that of its op, or that of its replay match; -1 for none.
    """
    carried = codes_of(attribution["signature"])
    return np.where(
        carried < 0, np.append(codes_of(linked.ops["signature"]), -1)[codes_of(linked.kernels["op"])], carried
    )


def _inside(linked: Linked, result: LedgerResult) -> Floats:
    """Gives the part of each run that lies in the window.

    A run without duration is in it or not.
    """
    frame = linked.ops if result.host_only else linked.kernels
    start, length = frame["ts_us"].to_numpy(), frame["dur_us"].to_numpy()
    low, high = linked.window.start_us, linked.window.end_us
    end = start + length
    part = np.clip(end, low, high) - np.clip(start, low, high)
    whole = ((start >= low) & (end <= high)).astype(np.float64)
    return np.asarray(np.divide(part, length, out=whole, where=(length > 0) & (whole == 0)))


_FLOORS = ("compute_us", "memory_us", "launch_us")
_WORK = ("flops", "bytes_low", "bytes_high")
_VOTES = ("engine", "confidence")
_KEYS = ("name", "bound", "source", "math_dtype")
_ACCOUNT_NAMES: tuple[str | None, ...] = tuple(ACCOUNTS)
# A program whose shapes change at every step has as many rows as calls. What totals are taken over is kept apart.
_MOST_ROWS = 5_000
_KEYS_OF_RARE = ("bound", "family", "math_dtype", "library")
_RARE = "other kernels"
# Shapes are text of the trace: long lists of tensors tell nothing more when shown whole.
_LONGEST_SHAPES = 200


class _Folds(Struct, frozen=True):
    """Values per fold and step.

    They are charged time, runs, floors and work (NaN when unknown), texts and reason (null if unknown).
    """

    us: Floats
    runs: Floats
    amounts: Mapping[str, Floats]
    texts: Mapping[str, Sequence[str | None]]
    reason: Sequence[Reason | None]


def fold_kernels(rows: KernelTimes) -> tuple[KernelSummary, ...]:
    """Folds kernels of one kind into one record, most time first.

    A kind is one name, op, shapes, dtype, bound, account and line.

    Floors are those of the charged time: a kernel that shares the device with another is charged part of its duration
    and carries the same part of its floors. Ops that a loader or compiler runs are waits, and left out. Of more than
    ``_MOST_ROWS`` those with the least time are one record per bound, account, family and dtype, without name or op.
    """
    keep, fold, first, rare = _same_rows(rows)
    if not keep.size:
        return ()
    folds = _without_names(_fold(rows, keep, fold, keep[first]), rare)
    return tuple(_summary(folds, place, rows.wall_us) for place in _by_time(folds.us).tolist())


def _same_rows(rows: KernelTimes) -> tuple[Integers, Integers, Integers, Flags]:
    """Gives the rows of KERNELS that count, and their records.

    These are the number of the record of each row, the first row of each record, and whether it is of rare ones.

    The first two have an element per row that counts, the others one per record.
    """
    keep = np.flatnonzero((rows.runs > 0) & ~is_wait(rows.account))
    same = [rows.codes(column)[keep] for column in _KEYS]
    fold, first = numbered(*same, rows.op_codes("name")[keep], rows.signature[keep], rows.account[keep])
    rare = np.ones(first.size, dtype=bool)
    rare[np.argsort(-tally(fold, rows.us[keep], first.size), kind="stable")[:_MOST_ROWS]] = False
    if rare.any():
        is_rare = rare[fold]
        kinds = [np.where(is_rare, rows.codes(column)[keep], -1) for column in _KEYS_OF_RARE]
        fold, first = numbered(np.where(is_rare, -1, fold), *kinds, np.where(is_rare, rows.account[keep], -1))
        rare = is_rare[first]
    return keep, fold, first, rare


def _by_time(us: Floats) -> Integers:
    """The order of the records in the analysis: most time first."""
    return np.argsort(-us, kind="stable")


def summary_rows(rows: KernelTimes) -> Integers:
    """Gives the position in ``fold_kernels`` of each row's record.

    The rows are those of KERNELS. -1 for none.
    """
    keep, fold, first, _ = _same_rows(rows)
    order = _by_time(tally(fold, rows.us[keep], first.size))
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    position = np.full(rows.us.size, -1, dtype=np.int64)
    position[keep] = place[fold]
    return position


def _without_names(folds: _Folds, rare: Flags) -> _Folds:
    """Gives the folds with one name for the rare ones.

    Only what these have in common is kept.
    """
    common: dict[str, str | None] = {"name": _RARE, "op": None, "shapes": None, "source": None, "data_dtype": None}
    marked = rare.tolist()
    texts = {
        name: [common[name] if mark else text for mark, text in zip(marked, texts, strict=True)]
        if name in common
        else texts
        for name, texts in folds.texts.items()
    }
    return replace(folds, texts=texts)


def _fold(rows: KernelTimes, keep: Integers, fold: Integers, first: Integers) -> _Folds:
    us, runs, size = rows.us[keep], rows.runs[keep], first.size
    dur = rows.linked.kernels["dur_us"].to_numpy()[keep]
    charged_runs = np.divide(us, dur, out=np.zeros_like(us), where=dur > 0)
    amounts = {
        name: _known_sum(fold, rows.roofline[name].to_numpy()[keep] * weight, size)
        for names, weight in (((*_FLOORS, "explained"), charged_runs), (_WORK, runs / rows.repeats))
        for name in names
    }
    done_us = tally(fold, dur * charged_runs, size)
    for rate, work in (("flops_per_s", rows.roofline["flops"]), ("bytes_per_s", _moved_bytes(rows))):
        done = _known_sum(fold, work.to_numpy(dtype=np.float64, na_value=np.nan)[keep] * charged_runs, size)
        amounts[rate] = np.divide(done * US_PER_S, done_us, out=np.full(size, np.nan), where=done_us > 0)
    texts = {name: _texts(rows.codes(name)[first], rows.labels(name)) for name in (*_KEYS, "family", "library")}
    texts["account"] = [_ACCOUNT_NAMES[code] for code in rows.account[first].tolist()]
    regime, reason = _judgements(rows, keep, fold, us)
    votes = {name: _texts(_majority(fold, rows.codes(name)[keep], us, size), rows.labels(name)) for name in _VOTES}
    return _Folds(
        us=tally(fold, us, size),
        runs=tally(fold, runs, size) / rows.repeats,
        amounts=amounts,
        texts={
            **texts,
            **votes,
            "regime": regime,
            **_op_texts(rows, first),
            "module": _common_modules(fold, rows.codes("module")[keep], rows.labels("module"), size),
        },
        reason=reason,
    )


def _moved_bytes(rows: KernelTimes) -> "pd.Series[float]":
    """Gives compulsory bytes per run.

    Of a copy or fill without a cost, it is the size that the trace states.
    """
    bytes_low = rows.roofline["bytes_low"]
    return bytes_low.where(bytes_low.notna(), rows.linked.kernels["bytes"].astype("Float64"))


def _judgements(
    rows: KernelTimes, keep: Integers, fold: Integers, us: Floats
) -> tuple[list[str | None], list[Reason | None]]:
    """Gives regime and reason per fold.

    They are voted on together: a reason for one regime says nothing of another.
    """
    regime, reason = (rows.codes(name)[keep] for name in ("regime", "reason"))
    reasons = [*rows.labels("reason"), None]
    winner = _majority(fold, (regime + 1) * len(reasons) + reason + 1, us, int(fold.max()) + 1)
    voted, why = np.divmod(winner, len(reasons))
    return _texts(voted - 1, rows.labels("regime")), [reasons[code] for code in (why - 1).tolist()]


def _texts(codes: Integers, labels: "pd.Index[str]") -> list[str | None]:
    texts = labels.to_list()
    return [None if code < 0 else str(texts[code]) for code in codes.tolist()]


def _op_texts(rows: KernelTimes, first: Integers) -> dict[str, list[str | None]]:
    """Name, shapes and dtype of the op that stands for each of these rows."""
    signature = rows.signature[first]
    names, dims, types = (rows.linked.trace.signatures[column].to_numpy() for column in ("name", "dims", "types"))
    ops = _texts(rows.op_codes("name")[first], rows.linked.ops["name"].cat.categories)
    dtype = rows.costs["math_dtype"].cat
    dtype_codes = np.append(dtype.codes.to_numpy().astype(np.int64), -1)[signature]
    return {
        "op": [str(names[row]) if row >= 0 else op for row, op in zip(signature.tolist(), ops, strict=True)],
        "shapes": [shapes_text(dims[row]) if row >= 0 else None for row in signature.tolist()],
        "op_dtype": _texts(dtype_codes, dtype.categories),
        "data_dtype": [data_dtype(types[row]) if row >= 0 else None for row in signature.tolist()],
    }


@lru_cache(maxsize=4096)
def data_dtype(types: object) -> str | None:
    """Gives the dtype of the first tensor of a call.

    Floating point comes first: masks and indices do not count. Null without tensors.
    """
    try:
        names = json.loads(types) if isinstance(types, str) else None
    except (ValueError, RecursionError):
        return None
    dtypes = [name for name in names if isinstance(name, str) and name in ITEM_BYTES] if isinstance(names, list) else []
    shown = [SHORT_DTYPE.get(name, name) for name in dtypes]
    return next((name for name in shown if name.startswith(("fp", "bf"))), next(iter(shown), None))


def shapes_text(dims: object) -> str | None:
    """Gives the shapes of a call as an analysis spells them.

    Long ones are cut. Null where they are not known.
    """
    if not isinstance(dims, str):
        return None
    text = "".join(dims.split()).replace(",", ", ")  # some writers spread the JSON of a trace over lines
    return text if len(text) <= _LONGEST_SHAPES else text[: _LONGEST_SHAPES - 1] + "…"


def _known_sum(fold: Integers, values: Floats, size: int) -> Floats:
    """Sums per fold; NaN where nothing is known."""
    is_known = ~np.isnan(values)
    total = tally(fold[is_known], values[is_known], size)
    return np.where(np.bincount(fold[is_known], minlength=size) > 0, total, np.nan)


def _majority(fold: Integers, codes: Integers, us: Floats, size: int) -> Integers:
    """Gives per fold the code with most of its time.

    -1 where all are null.
    """
    rows = np.flatnonzero(codes >= 0)
    winner = np.full(size, -1, dtype=np.int64)
    if rows.size:
        labels = int(codes.max()) + 1
        cell, inverse = np.unique(fold[rows] * labels + codes[rows], return_inverse=True)
        order = np.argsort(np.bincount(inverse, weights=us[rows]), kind="stable")
        winner[cell[order] // labels] = cell[order] % labels  # the last one written has the most time
    return winner


def _common_modules(fold: Integers, codes: Integers, labels: "pd.Index[str]", size: int) -> list[str | None]:
    """Gives per fold the leading part shared by all module paths.

    Null where there is none.
    """
    common: list[list[str] | None] = [None] * size
    inside = codes >= 0
    for cell in np.unique(fold[inside] * len(labels) + codes[inside]).tolist():
        place, path = cell // len(labels), str(labels[cell % len(labels)]).split(".")
        before = common[place]
        common[place] = path if before is None else _shared(before, path)
    return [".".join(path) if path else None for path in common]


def _shared(one: list[str], other: list[str]) -> list[str]:
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


def _shown_dtype(text: Mapping[str, str | None]) -> str | None:
    """Gives the dtype that a row of the report shows.

    It is that of the arithmetic on matrix units, which may be another than that of the data, else that of the data.

    Vector units widen half types: the dtype given is that which the user chose.
    """
    chosen = text["math_dtype"] if text["engine"] == "matrix" else None
    return chosen or text["data_dtype"] or text["math_dtype"] or text["op_dtype"]


def _summary(folds: _Folds, place: int, wall_us: float) -> KernelSummary:
    us = float(folds.us[place])
    amount = {name: None if np.isnan(values[place]) else float(values[place]) for name, values in folds.amounts.items()}
    text = {name: values[place] for name, values in folds.texts.items()}
    floors = [floor for name in _FLOORS if (floor := amount[name]) is not None]
    judged = amount["explained"] is not None and us > 0
    explained = min(max(floors) / us, 1.0) if judged and floors else None
    voted, reason = cast("Regime | None", text["regime"]), folds.reason[place]
    # The share of the whole row decides, so that it agrees with the figure beside it; its runs may lie in other bands.
    regime = regime_of(explained) if voted and explained is not None else voted
    if regime != voted and reason is not None and (regime == "near_roof" or reason.code == "unexplained"):
        reason = None
    return KernelSummary(
        name=text["name"] or "",
        family=text["family"] or "",
        op=text["op"],
        shapes=text["shapes"],
        module=text["module"],
        source=text["source"],
        dtype=_shown_dtype(text),
        engine=text["engine"],
        calls=float(folds.runs[place]),
        us=us,
        share=us / wall_us if wall_us else 0.0,
        flops=amount["flops"],
        bytes_low=amount["bytes_low"],
        bytes_high=amount["bytes_high"],
        compute_us=amount["compute_us"],
        memory_us=amount["memory_us"],
        launch_us=amount["launch_us"],
        bound=text["bound"] or "unknown",
        regime=regime,
        explained=explained,
        confidence=cast("Confidence", text["confidence"] or "low"),
        reason=None if reason is None else reason.words,
        headroom_us=None if explained is None else us * (1.0 - explained),
        flops_per_s=amount["flops_per_s"],
        bytes_per_s=amount["bytes_per_s"],
        account=text["account"],
        reason_code=None if reason is None else reason.code,
        library=text["library"],
    )


def against_onednn(row: KernelSummary, device: Device) -> KernelSummary:
    """Holds fp32 products of a CPU against the rate of oneDNN.

    So where that is the faster library.

    Rules on single calls judge them by the library that multiplies them, which may do its best.
    """
    usual, faster = (device.peaks_flops_per_s.get(peak) for peak in ("fp32_tensor", ONEDNN_PEAK))
    is_fp32_product = row.dtype == "fp32" and row.bound == "compute" and MULTIPLIES.match(row.name)
    if not usual or not faster or usual >= faster or not is_fp32_product or not row.compute_us or not row.explained:
        return row
    compute_us = row.compute_us * usual / faster
    explained = min(1.0, max(compute_us, row.memory_us or 0.0, row.launch_us or 0.0) / row.us)
    return replace(
        row,
        compute_us=compute_us,
        explained=explained,
        regime=regime_of(explained),
        headroom_us=row.us * (1.0 - explained),
        reason=Reason("slow_library").words,
        reason_code="slow_library",
    )
