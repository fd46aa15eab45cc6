"""Gives the advice rules the kernels of the window with their costs.

It also prices what shorter kernels are worth.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import TypeGuard

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.advice.quantities import format_times, has_backward_marks, mark_spans
from bottleneck.advice.ranking import Draft, SourcedLine
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import AtAnyPace, Evidence, ShorterKernels, remembered
from bottleneck.schema.intervals import Flags, Floats, Integers, numbered, union
from bottleneck.schema.kernel_dtypes import kernel_dtype
from bottleneck.schema.kernel_names import name_in_sentence
from bottleneck.schema.learned_rates import fused_share
from bottleneck.schema.op_names import at_known
from bottleneck.schema.tables import OVER_LINK, as_integers, text_matches
from bottleneck.units import SHORT_DTYPE, format_share, format_us

Size = tuple[int, ...]
Sizes = tuple[Size, ...]

PRODUCTS = ("matmul", "convolution", "attention", "recurrent")
# Marks of what is no part of the model: another rule's, or a wait.
_OUTSIDE_MODEL = re.compile(r"^Optimizer\.(?:step|zero_grad)#|^enumerate\(DataLoader\)")
_BACKWARD = re.compile(r"^aten::\w+_backward")
_NAME_LIMIT = 1000
_LONGEST = 80
_SLOWER_MEMORY = 3.0
LEAST_GAIN = 0.001  # of the step
_SETS_THE_PACE = 0.8  # of the step that a device works
# What a compiled loop takes at most, as a multiple of its floor: on a CPU measured 1.2 to 1.7 (Inductor's C++ on a
# chain of 8 multiplications of 16 million numbers). A device reaches the share of its bandwidth that timings taught
# (schema/learned_rates.py), less where it reduces.
_SLACK = 2.0


def size_words(size: Iterable[int]) -> str:
    """'64x128'."""
    return "x".join(map(str, size))


def broadcast(sizes: Sequence[Size]) -> Size:
    """The sizes of what an elementwise op makes of operands of these sizes."""
    rank = max(map(len, sizes), default=0)
    padded = [(1,) * (rank - len(size)) + tuple(size) for size in sizes]
    return tuple(max(column) for column in zip(*padded, strict=True))


class KernelWork(Struct, frozen=True):
    """The rows of KERNELS in the window that work or copy.

    They do so on the device, and are in the order of stream, then start. Arrays have an element per such row. ``row``
    is the row in KERNELS, ``us`` its duration per step of the window, scaled to the unprofiled step and without the
    time for which the process of a CPU was held up in it, ``op`` its row in OPS and ``signature`` that in
    CALLS, -1 for none. Floors (``roof``) and costs (``cost``) are of one run.
    """

    evidence: Evidence
    row: Integers
    us: Floats
    scale: float
    op: Integers
    signature: Integers

    def roof(self, column: str) -> Floats:
        """Gives an amount of ROOFLINE.

        NaN where unknown.
        """
        return np.asarray(self.evidence.roofline[column].to_numpy()[self.row], dtype=np.float64)

    def is_text(self, table: pd.DataFrame, column: str, *texts: str) -> Flags:
        """Masks the rows whose category is one of these texts.

        The category is of KERNELS or ROOFLINE.
        """
        return _match_rows(table[column], lambda text: text in texts, self.row)

    def bound(self, *bounds: str) -> Flags:
        """Mask of the rows with one of these bounds."""
        return self.is_text(self.evidence.roofline, "bound", *bounds)

    def cost(self, column: str) -> Floats:
        """Gives an amount of COSTS.

        NaN for a row without a cost formula.
        """
        return np.append(self.evidence.costs[column].to_numpy(dtype=np.float64), np.nan)[self.signature]

    def family(self, *families: str) -> Flags:
        """Mask of the rows whose cost formula is of one of these families."""
        return _match_rows(self.evidence.costs["family"], lambda text: text in families, self.signature)

    def dtype(self, *dtypes: str) -> Flags:
        """Mask of the rows whose arithmetic is in one of these dtypes."""
        return _match_rows(self.evidence.costs["math_dtype"], lambda text: text in dtypes, self.signature)

    def reads(self, *dtypes: str) -> Flags:
        """Masks the rows whose op reads a tensor of these dtypes.

        Vector units may compute in another.
        """
        spelled = [json.dumps(name) for name, short in SHORT_DTYPE.items() if short in dtypes]
        types = [str(text)[:_NAME_LIMIT] for text in self.evidence.linked.trace.signatures["types"]]
        holds = np.array([*(any(name in text for name in spelled) for text in types), False], dtype=bool)
        return np.asarray(holds[self.signature])  # -1: no op

    def op_like(self, pattern: "re.Pattern[str]", *, above: bool = False) -> Flags:
        """Masks the rows with an op whose name the pattern finds.

        With ``above``, the op above that may have it.
        """
        ops = self.evidence.linked.ops
        op = np.append(as_integers(ops["parent"]), -1)[self.op] if above else self.op
        return _match_rows(ops["name"], pattern.search, op)

    def kernel_like(self, pattern: "re.Pattern[str]") -> Flags:
        """Masks the rows whose kernel (CPU: op) the pattern finds by name."""
        return _match_rows(self.evidence.linked.kernels["name"], pattern.search, self.row)

    def kernel_holds(self, *dtypes: str) -> Flags:
        """Masks the rows whose kernel's name gives one of these dtypes.

        That is the dtype of its data, in the spelling of traces.
        """
        names = self.evidence.linked.kernels["name"]
        return _match_rows(names, lambda name: kernel_dtype(name, None) in dtypes, self.row)

    def has_reason(self, *codes: str) -> Flags:
        """Mask of the rows whose reason in ROOFLINE has one of these codes."""
        column = self.evidence.roofline["reason"].cat
        wanted = [reason.code in codes for reason in column.categories]
        return np.append(np.array(wanted, dtype=bool), False)[column.codes.to_numpy()[self.row]]

    def reason_number(self, name: str) -> Floats:
        """Gives a number of the reason of each row.

        NaN where its reason has none of that name.
        """
        column = self.evidence.roofline["reason"].cat
        numbers = [reason.number(name) for reason in column.categories]
        return np.append(np.array(numbers, dtype=np.float64), np.nan)[column.codes.to_numpy()[self.row]]

    def inside(self, mark: "re.Pattern[str]") -> Flags:
        """Masks the rows issued inside a mark of such a name.

        A mark is an annotation or op, see ``mark_spans``.
        """
        events, at_us = self.evidence.linked.trace.events, self.evidence.linked.ops["ts_us"].to_numpy()
        marks = np.flatnonzero(text_matches(events["name"], mark.search, _NAME_LIMIT))
        return union(*mark_spans(self.evidence, marks)).hold(np.append(at_us, np.nan)[self.op])

    @property
    def in_model(self) -> Flags:
        """Mask of the rows issued outside of optimizers and loaders, which other rules cover."""
        return _model_rows(self.evidence)

    def floor_us(self) -> Floats:
        """Gives the larger floor of arithmetic and bytes, per step.

        It is scaled like ``us``, and at most that. 0 if unknown.
        """
        floor = np.fmax(self.roof("compute_us"), self.roof("memory_us"))
        return np.minimum(np.nan_to_num(floor) * self.scale / self.evidence.steps, self.us)

    def memory_slowdown(self) -> Floats:
        """Returns by how many times memory is slower than calibrated.

        Work far from its floors shows that. At most three times.
        """
        return np.clip(self.us / np.maximum(self.floor_us(), 1e-9), 1.0, _SLOWER_MEMORY)

    def memory_us(self) -> Floats:
        """Gives the floor of the bytes, per step.

        It is scaled like ``us``, and at most that. 0 if unknown.
        """
        return np.minimum(np.nan_to_num(self.roof("memory_us")) * self.scale / self.evidence.steps, self.us)

    def compute_us(self) -> Floats:
        """Gives the floor of the arithmetic, per step and scaled like ``us``.

        0 if unknown.
        """
        return np.asarray(np.nan_to_num(self.roof("compute_us")) * self.scale / self.evidence.steps)

    def us_of(self, rows: Flags) -> float:
        """Microseconds per step that these rows take."""
        return float(self.us[rows].sum())

    def share(self, rows: Flags) -> float:
        """Share of the step (0-1) that these rows take."""
        return self.evidence.share_of_step(self.us_of(rows))

    def mean(self, values: Floats, rows: Flags) -> float:
        """Mean of the values of these rows, weighted by their time."""
        return float(np.average(values[rows], weights=self.us[rows]))

    def gain(self, low_us: Floats, high_us: Floats, spared: Flags | None = None) -> Interval:
        """Gives the step's gain if each row takes less by these amounts.

        The amounts are per step, as ``KernelWork.us``, at least and at most. Rows that take longer (less than nothing)
        count against the others, and a step that gets longer gains nothing. The host does not launch the ``spared``
        rows at all.
        """
        low = self._saved_on_critical_path_us(np.minimum(low_us, self.us), spared)
        high = self._saved_on_critical_path_us(np.minimum(high_us, self.us), spared)
        return Interval(max(0.0, min(low, high)), max(0.0, low, high))

    def _saved_on_critical_path_us(self, less_us: Floats, spared: Flags | None = None) -> float:
        """Gives the step's gain in a replay with such shorter kernels.

        On a CPU ops run one after the other.
        """
        whole, predict = float(less_us.sum()), self.evidence.predict
        if self.evidence.is_host_only or predict is None:
            return whole
        if spared is None and not less_us.any():
            return 0.0
        # Of work without a launch no replay tells who waits for whom, nor of a host whose ops are not recorded: there a
        # device that is busy sets the pace.
        is_alone = self.evidence.linked.kernels["launch"].isna().to_numpy()[self.row]
        is_alone |= self.evidence.linked.ops.empty
        busy = self.evidence.share_of_step(self.evidence.analysis.totals.busy_us)
        alone_us = float(less_us[is_alone].sum()) * busy if busy >= _SETS_THE_PACE else 0.0
        less_us = np.where(is_alone, 0.0, less_us)
        if spared is None and not less_us.any():
            return alone_us
        saved_us = (predict(self.evidence, self._shorter(less_us, spared)) or 0.0) + alone_us
        return saved_us if spared is not None else min(saved_us, max(whole, 0.0))

    def most_at_any_pace(self, less_us: Floats) -> float:
        """Gives the step's largest gain over the paces of the host.

        It may be as quick as without the profiler.
        """
        predict = self.evidence.predict
        if self.evidence.is_host_only or predict is None or not less_us.any():
            return 0.0
        return predict(self.evidence, AtAnyPace((), self._shorter(less_us, None))) or 0.0

    def _shorter(self, less_us: Floats, spared: Flags | None) -> ShorterKernels:
        less, dropped = np.zeros(len(self.evidence.linked.kernels)), None
        less[self.row] = less_us * self.evidence.steps / self.scale
        if spared is not None:
            dropped = np.zeros(less.size, dtype=bool)
            dropped[self.row[spared]] = True
        return ShorterKernels(less, dropped)

    def critical_path_note(self, less_us: Floats) -> tuple[str, ...]:
        """Gives evidence that the host's pace makes a faster device worth less.

        None where it does not.
        """
        whole = float(less_us.sum())
        if self.evidence.is_host_only or not whole:
            return ()
        part = min(self._saved_on_critical_path_us(less_us) / whole, 1.0)
        if part > 0.95:
            return ()
        words = f"{format_share(part)} of that time is on the critical path"
        return (f"{words}: elsewhere the device waits for the host anyway",)

    def claims(self, less_us: Floats) -> Mapping[str, float]:
        """Claims on the rows of the analysis' kernels, in microseconds per step."""
        charged = self.evidence.kernel_time
        assert charged is not None, "kernels are timed before advice is given"
        row = as_integers(charged["row"])[self.row]
        total = np.bincount(row[row >= 0], weights=less_us[row >= 0])
        return {f"kernel:{at}": float(total[at]) for at in np.flatnonzero(total > 0).tolist()}

    def describe(self, rows: Flags, most: int = 3) -> tuple[str, ...]:
        """Describes these rows by op, line and sizes, longest first.

        Each description has time per step, share of the step, and runs.
        """
        places = np.flatnonzero(rows)
        if not places.size:
            return ()
        source = self.evidence.linked.kernels["source"].cat
        sources = source.codes.to_numpy()[self.row[places]].astype(np.int64)
        names = self._name_codes()[places]
        fold, first = numbered(names, sources, self.signature[places])
        us, runs = np.bincount(fold, weights=self.us[places]), np.bincount(fold) / self.evidence.steps
        lines = []
        for one in np.argsort(-us, kind="stable")[:most].tolist():
            at = sources[first[one]]
            line = source.categories[at] if at >= 0 else None
            place = at_known(line)
            sizes = self._shown_sizes(int(self.signature[places[first[one]]]))
            part = format_share(float(us[one]) / self.evidence.step_us) if self.evidence.step_us > 0 else "?"
            words = f"{self._name(int(places[first[one]]))}{place}: {format_us(float(us[one]))} per step ({part}), "
            lines.append(SourcedLine(f"{words}{format_times(float(runs[one]))}{sizes}", line))
        return tuple(lines)

    def _name_codes(self) -> Integers:
        """One number per name shown: that of the op, else of the kernel."""
        ops, kernels = self.evidence.linked.ops["name"].cat, self.evidence.linked.kernels["name"].cat
        of_op = np.append(ops.codes.to_numpy().astype(np.int64), -1)[self.op]
        return np.where(of_op >= 0, of_op, len(ops.categories) + kernels.codes.to_numpy().astype(np.int64)[self.row])

    def call_name(self, place: int) -> str:
        """Names the op of a row, with its sizes where they are known."""
        return f"{name_in_sentence(self._whole_name(place))}{self._shown_sizes(int(self.signature[place]))}"

    def _whole_name(self, place: int) -> str:
        op = int(self.op[place])
        frame = self.evidence.linked.ops if op >= 0 else self.evidence.linked.kernels
        return str(frame["name"].iloc[op if op >= 0 else int(self.row[place])])

    def _name(self, place: int) -> str:
        text = self._whole_name(place)
        return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"

    def _shown_sizes(self, signature: int) -> str:
        sizes = self.sizes_of(signature)
        shown = ", ".join(size_words(size) for size in sizes[:3] if size)
        return f" on {shown}" if shown and len(shown) <= _LONGEST else ""

    def sizes_of(self, signature: int) -> Sizes:
        """Gives the sizes of every argument of a call.

        () for what is no tensor, and for a call without recorded sizes.
        """
        return tuple(tuple(dims) if is_size(dims) else () for dims in self.text_column("dims", signature))

    def tensors_of(self, signature: int) -> list[Size]:
        """Gives the sizes of a call's tensors, those in lists included.

        A number that autograd wrapped is none.
        """
        sizes: list[Size] = []
        types = self.text_column("types", signature)
        for dims, kind in zip(self.text_column("dims", signature), types, strict=False):
            if is_size(dims) and (dims or not isinstance(kind, str) or kind not in _NUMBER_TYPES):
                sizes.append(tuple(dims))
            elif isinstance(dims, list):
                sizes += [tuple(member) for member in dims if is_size(member)]
        return sizes

    def argument_sizes(self, signature: int) -> list[list[Size]]:
        """Gives the sizes of the tensors of each argument: several for a list."""
        arguments: list[list[Size]] = []
        for dims in self.text_column("dims", signature):
            if is_size(dims):
                arguments.append([tuple(dims)] if dims else [])
            elif isinstance(dims, list):
                arguments.append([tuple(member) for member in dims if is_size(member)])
        return arguments

    def text_column(self, column: str, signature: int) -> tuple[object, ...]:
        """Gives a text of CALLS as a tuple.

        The columns are 'dims', 'types', 'concrete', 'strides' and 'result'. () where there is none.
        """
        return _list_in(_texts_of(self.evidence)[column][signature]) if signature >= 0 else ()

    def elements(self, rows: Flags) -> Floats:
        """Gives the numbers in the largest tensor of each call, lists included.

        NaN where sizes are unknown, and for other rows.
        """
        largest = np.full(len(self.evidence.costs) + 1, np.nan)
        for signature in np.unique(self.signature[rows]).tolist():
            counts = [math.prod(map(float, size)) for size in self.tensors_of(signature) if size]
            if counts:
                largest[signature] = max(counts)
        largest[-1] = np.nan
        return np.where(rows, largest[self.signature], np.nan)

    def largest_calls(self, rows: Flags) -> Flags:
        """Masks the rows whose call is among their thousand longest.

        It is among the calls with the most time of these rows.
        """
        us = np.bincount(self.signature[rows] + 1, weights=self.us[rows], minlength=1)
        if us.size <= _MOST_COMPARED:
            return rows
        return np.asarray(rows & np.isin(self.signature, np.argsort(-us, kind="stable")[:_MOST_COMPARED] - 1))

    def calls_that(self, rows: Flags, hold: Callable[[int], bool]) -> Flags:
        """Masks the rows whose call passes a test, run once per call."""
        passing = [signature for signature in np.unique(self.signature[rows]).tolist() if hold(signature)]
        return np.asarray(rows & np.isin(self.signature, passing))


@remembered
def _texts_of(evidence: Evidence) -> Mapping[str, Sequence[object]]:
    """The texts of each column of CALLS."""
    calls = evidence.linked.trace.signatures
    return {name: calls[name].to_list() for name in ("dims", "types", "concrete", "strides", "result")}


@lru_cache(maxsize=4096)
def _list_in(text: object) -> tuple[object, ...]:
    """Gives the JSON list in a text, whose parts are read-only.

    () where there is none.
    """
    try:
        read = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return ()
    return tuple(read) if isinstance(read, list) else ()


def _match_rows(column: "pd.Series[str]", holds: Callable[[str], object], rows: Integers) -> Flags:
    """Mask of those rows of a table (-1: none) whose category passes a test."""
    passes = [bool(holds(str(text)[:_NAME_LIMIT])) for text in column.cat.categories]
    if not any(passes):
        return np.zeros(rows.size, dtype=bool)
    codes = column.cat.codes.to_numpy()
    return np.asarray(np.append(np.array(passes, dtype=bool), False)[np.append(codes, codes.dtype.type(-1))[rows]])


def has_backward_pass(evidence: Evidence) -> bool:
    """True if the step runs a backward pass.

    It is known by its marks or, in old traces, by the names of ops.
    """
    return has_backward_marks(evidence) or any(_BACKWARD.search(name) for name in evidence.op_sums)


@remembered
def _model_rows(evidence: Evidence) -> Flags:
    return ~work_of(evidence).inside(_OUTSIDE_MODEL)


@remembered
def work_of(evidence: Evidence) -> KernelWork:
    """The kernels of this evidence with their costs."""
    kernels, ops = evidence.linked.kernels, evidence.linked.ops
    over_link = kernels["copy_way"].isin(OVER_LINK)
    device_copy = ((kernels["kind"] == "copy") & ~over_link).to_numpy()
    works = kernels["kind"].isin(("compute", "fill")).to_numpy() & ~evidence.attribution["dispatches"].to_numpy()
    row = np.flatnonzero((works | device_copy) & evidence.kernels_in_window)
    row = row[np.lexsort((kernels["ts_us"].to_numpy()[row], kernels["stream"].cat.codes.to_numpy()[row]))]
    owner, issuer = (as_integers(frame[name])[row] for frame, name in ((evidence.attribution, "op"), (kernels, "op")))
    op = np.where(owner < 0, issuer, owner)
    carried = as_integers(evidence.attribution["signature"])[row]
    us = kernels["dur_us"].to_numpy()[row] / evidence.steps
    held_us = np.minimum(_held_us(evidence)[issuer], us)
    us, busy_us = us - held_us, evidence.analysis.totals.busy_us
    scale = min(1.0, busy_us / us.sum()) if us.sum() > 0 and busy_us > 0 else 1.0
    signature = np.where(carried < 0, np.append(as_integers(ops["signature"]), -1)[op], carried)
    return KernelWork(evidence, row, us * scale, scale, op, signature)


def _held_us(evidence: Evidence) -> Floats:
    """Gives how long each row of OPS was held up on a CPU.

    Per step; 0 for a row without an op (-1).
    """
    held = np.zeros(len(evidence.linked.ops) + 1)
    if evidence.is_host_only:
        held[evidence.held_up["op"].to_numpy()] = evidence.held_up["beyond_us"].to_numpy() / evidence.steps
    return held


def loop_times(evidence: Evidence, reduces: Flags) -> tuple[Floats, Floats]:
    """Gives the time of fused loops.

    It is a multiple of each loop's floor. The two arrays are at least and at most.
    """
    if evidence.is_host_only:
        return np.ones(reduces.size), np.full(reduces.size, _SLACK)
    pointwise, reduction = fused_share("pointwise"), fused_share("reduction")
    usual = np.where(reduces, 1 / reduction[0], 1 / pointwise[0])
    spread = np.where(reduces, reduction[1], pointwise[1])
    return usual, np.maximum(usual * spread, _SLACK)


def requires_gain(rule: Callable[[Evidence], Draft | None]) -> Callable[[Evidence], Draft | None]:
    """Gives the same rule, silent if the critical path leaves no gain.

    A device that waits for its host has no gain.
    """

    @wraps(rule)
    def gaining_rule(evidence: Evidence) -> Draft | None:
        draft = rule(evidence)
        if draft is None or draft.gain_us is None or draft.gain_us.high >= LEAST_GAIN * evidence.step_us:
            return draft
        return None

    return gaining_rule


def is_size(value: object) -> TypeGuard[list[int]]:
    """True for the sizes of one tensor."""
    return isinstance(value, list) and all(type(one) is int and 0 <= one < 2**53 for one in value)


_NUMBER_TYPES = frozenset({"", "Scalar", "ScalarList", "TensorList", "double", "long int", "bool"})
# Calls that rules hold against each other, pair by pair; a model has hundreds of distinct ones.
_MOST_COMPARED = 1000


def has_double(work: KernelWork, call: int) -> bool:
    """True if a tensor with dimensions of a call is of fp64.

    A number that Python gave is wrapped as one without.
    """
    types = work.text_column("types", call)
    return any(kind == "double" and size for kind, size in zip(types, work.sizes_of(call), strict=False))
