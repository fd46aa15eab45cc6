"""Chooses the pieces whose measurement would decide a step's findings.

The step is a recorded one, and the most promising pieces come first.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypedDict

import numpy as np

from bottleneck.advice.fusion import attention_rows, find_chains
from bottleneck.advice.hand_written import find_hand_written
from bottleneck.advice.kernel_work import PRODUCTS, KernelWork, has_backward_pass, work_of
from bottleneck.advice.measured import LIBRARY_OP
from bottleneck.advice.quantities import optimizer_names, outermost_spans
from bottleneck.experiment.pieces.kinds import seconds_of
from bottleneck.experiment.pieces.specs import OpCallSpec, PieceSpec
from bottleneck.schema.analysis import Finding
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags, Integers
from bottleneck.schema.op_names import OPTIMIZER_STEP
from bottleneck.units import counted

# Pieces of one kind for a finding, and of all: more would be beyond any usual budget.
_MOST_OF_ONE, _MOST = 4, 16
# Findings without a gain of their own are tried as if they promised this part of their work.
_UNKNOWN_PROMISE = 0.1
_LEAST_OF_STEP = 0.002
_LONGEST_NAMES = 3

_OPTIMIZERS = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})
# Ops of which an optimizer's step runs one per parameter, the surest first.
_PER_PARAMETER = ("aten::addcdiv_", "aten::addcmul_", "aten::lerp_", "aten::mul_", "aten::add_")
_SOFTMAX = re.compile(r"^aten::(?:_safe_)?_?softmax$")
_SCALAR_BYTES = 64
_IMAGES = ("convolution", "pooling", "normalization")

# The evidence and the finding -> its pieces, largest first.
_Choose = Callable[[Evidence, Finding], Iterator[PieceSpec]]


def choose_pieces(evidence: Evidence, findings: Sequence[Finding]) -> tuple[PieceSpec, ...]:
    """Chooses pieces of these findings by the gain per measured second.

    The gain is the one that a second of measuring decides about. Empty where none can be.
    """
    candidates = [
        piece
        for finding in findings
        if finding.slug in CHOOSERS
        for choose in CHOOSERS[finding.slug]
        for piece in islice(choose(evidence, finding), _MOST_OF_ONE)
        if piece.promise_us >= _LEAST_OF_STEP * evidence.step_us
    ]
    seen: set[str] = set()
    ordered = []
    while candidates:
        best = max(candidates, key=lambda piece: piece.promise_us / seconds_of(piece, seen)[1])
        candidates.remove(best)
        seen.add(best.kind)
        ordered.append(best)
    return tuple(ordered[:_MOST])


def _promise_us(finding: Finding, share: float, us: float) -> float:
    """Returns the gain promised by the finding's formula at most.

    It is for this share of the finding's work.
    """
    if finding.predicted_gain_us is None:
        return _UNKNOWN_PROMISE * us
    return max(finding.predicted_gain_us.high * share, 0.0)


class _Where(TypedDict):
    source: str | None
    module: str | None


def _where(work: KernelWork, rows: Integers) -> _Where:
    """Returns the source line and module with most time of these rows.

    Null where none is known.
    """

    def longest(column: str) -> str | None:
        names = work.evidence.linked.kernels[column].cat
        codes = names.codes.to_numpy()[work.row[rows]].astype(np.int64)
        us = np.bincount(codes + 1, weights=work.us[rows], minlength=1)
        us[0] = 0.0
        return str(names.categories[int(us.argmax()) - 1]) if us.any() else None

    return {"source": longest("source"), "module": longest("module")}


def _chains(evidence: Evidence, finding: Finding) -> Iterator[PieceSpec]:
    work = work_of(evidence)
    keeps = has_backward_pass(evidence)
    total_us = work.us_of(find_chains(evidence).of_row >= 0)
    for signatures, runs in _runs_of_chains(work, evidence):
        ops = tuple(_call(work, signature) for signature in signatures)
        rows = np.concatenate(runs)
        us = float(work.us[rows].sum())
        yield PieceSpec(
            kind="chain",
            finding=finding.slug,
            change="compile",
            what=f"{_names(ops)} on {ops[0].sizes}",
            calls=len(runs) / evidence.steps,
            recorded_us=us,
            share=us / total_us,
            ops=ops,
            settings={"keeps": keeps},
            promise_us=_promise_us(finding, us / total_us, us),
            **_where(work, rows),
        )


def _runs_of_chains(work: KernelWork, evidence: Evidence) -> list[tuple[tuple[int, ...], list[Integers]]]:
    """Groups chains of the same calls, those with the most time first.

    Each group has the signatures of the calls, and the rows of each run.
    """
    of_row = find_chains(evidence).of_row
    ordered = np.argsort(of_row, kind="stable")
    ordered = ordered[of_row[ordered] >= 0]
    kinds: dict[tuple[int, ...], list[Integers]] = {}
    for rows in np.split(ordered, np.flatnonzero(np.diff(of_row[ordered])) + 1):
        if rows.size:
            kinds.setdefault(tuple(work.signature[_firsts(work, rows)].tolist()), []).append(rows)
    complete = [(signatures, runs) for signatures, runs in kinds.items() if min(signatures) >= 0]
    return sorted(complete, key=lambda chain: -float(work.us[np.concatenate(chain[1])].sum()))


def _firsts(work: KernelWork, rows: Integers) -> Integers:
    """The first row of each op of a chain."""
    return rows[np.concatenate(([True], np.diff(work.op[rows]) != 0))]


def _hand_written(evidence: Evidence, finding: Finding) -> Iterator[PieceSpec]:
    """Yields norms, softmax and GELU that the model writes out.

    Each is written op by op, and stands beside the one op of the library.
    """
    work = work_of(evidence)
    is_chained = find_chains(evidence).of_row >= 0
    total_us, loop = work.us_of(is_chained), evidence.loops["loop"].to_numpy()[work.row]
    # Reductions fill their result first, and copy their scalars.
    firsts = np.flatnonzero(work.in_model & ~work.family("fill") & ~(work.roof("bytes_low") <= _SCALAR_BYTES))
    firsts = _firsts(work, firsts)
    names = np.append(work.evidence.linked.trace.signatures["name"].astype(str).to_numpy(dtype=object), "?")
    runs_of: dict[tuple[str, tuple[int, ...]], list[Integers]] = {}
    for written in find_hand_written(names[work.signature[firsts]].tolist()):
        held = firsts[written.first : written.first + written.count]
        signatures = tuple(work.signature[held].tolist())
        if loop[held[0]] == loop[held[-1]] >= 0:
            runs_of.setdefault((written.op, signatures), []).append(np.arange(held[0], held[-1] + 1))
    joined = {key: (len(runs), np.concatenate(runs)) for key, runs in runs_of.items()}
    for (op, signatures), (runs, rows) in sorted(joined.items(), key=lambda item: -float(work.us[item[1][1]].sum())):
        ops = tuple(_call(work, item) for item in signatures)
        us = float(work.us[rows].sum())
        share = float(work.us[rows[is_chained[rows]]].sum()) / total_us
        yield PieceSpec(
            kind="library-op",
            finding=finding.slug,
            change=LIBRARY_OP,
            what=f"{op} for {counted(len(ops), 'op')} on {ops[0].sizes}",
            calls=runs / evidence.steps,
            recorded_us=us,
            share=share,
            ops=ops,
            settings={"op": op},
            promise_us=_promise_us(finding, share, us),
            **_where(work, rows),
        )


def _names(ops: Sequence[OpCallSpec]) -> str:
    names = [op.name.removeprefix("aten::") for op in ops]
    more = len(names) - _LONGEST_NAMES
    return ", ".join(names[:_LONGEST_NAMES]) + (f" and {counted(more, 'op')} more" if more > 0 else "")


def _call(work: KernelWork, signature: int) -> OpCallSpec:
    name = str(work.evidence.linked.trace.signatures["name"].iloc[signature])
    columns = (work.text_column(column, signature) for column in ("dims", "types", "concrete", "strides"))
    return OpCallSpec(name, *columns)


def _groups(work: KernelWork, rows: Flags) -> Iterator[tuple[int, Integers, float]]:
    """Groups the calls of these rows by signature, longest first.

    Each group has the signature, its rows, and how often the step runs it.
    """
    chosen = np.flatnonzero(rows & (work.signature >= 0))
    us = np.bincount(work.signature[chosen], weights=work.us[chosen], minlength=1)
    for signature in np.argsort(-us, kind="stable").tolist():
        mine = chosen[work.signature[chosen] == signature]
        if not mine.size:
            return
        calls = np.unique(work.op[mine]).size / work.evidence.steps
        yield signature, mine, calls


def _claimed_us(evidence: Evidence, finding: Finding) -> float:
    """The time of the kernels that the gain of the finding comes from."""
    rows = [int(name.removeprefix("kernel:")) for name in finding.claims if name.startswith("kernel:")]
    return math.fsum(evidence.analysis.kernels[row].us for row in rows)


def _op_pieces(kind: str, change: str, choose: Callable[[KernelWork], Flags], **settings: object) -> _Choose:
    """Makes a chooser of pieces of one op each.

    Of the rows that are chosen, those with the most time are taken.
    """

    def pieces(evidence: Evidence, finding: Finding) -> Iterator[PieceSpec]:
        work = work_of(evidence)
        rows = choose(work)
        total_us = max(_claimed_us(evidence, finding), work.us_of(rows))
        for signature, mine, calls in _groups(work, rows):
            call, us = _call(work, signature), float(work.us[mine].sum())
            share = us / total_us if total_us > 0 else 0.0
            yield PieceSpec(
                kind=kind,
                finding=finding.slug,
                change=change,
                what=f"{call.name.removeprefix('aten::')} on {call.sizes}",
                calls=calls,
                recorded_us=us,
                share=share,
                ops=(call,),
                settings=settings,
                promise_us=_promise_us(finding, share, us),
                **_where(work, mine),
            )

    return pieces


def _wide_products(work: KernelWork) -> Flags:
    # Fused attention of a CPU keeps a result in fp32 for its backward pass: it cannot be narrowed call by call.
    return work.dtype("fp32") & work.family("matmul", "convolution", "recurrent") & work.in_model


def _narrow_products(evidence: Evidence, finding: Finding) -> Iterator[PieceSpec]:
    peaks = evidence.analysis.device.peaks_flops_per_s
    dtype = "bfloat16" if peaks.get("bf16_tensor") else "float16"
    yield from _op_pieces("narrow-product", "bf16-autocast", _wide_products, dtype=dtype)(evidence, finding)


def _images(work: KernelWork) -> Flags:
    if not work.evidence.is_host_only:
        return np.zeros(work.row.size, dtype=bool)
    return work.calls_that(
        work.family(*_IMAGES), lambda signature: any(len(sizes) == 4 for sizes in work.sizes_of(signature)[:3])
    )


def _uneven_products(work: KernelWork) -> Flags:
    return work.family("matmul") & work.in_model


def _optimizer(evidence: Evidence, finding: Finding) -> Iterator[PieceSpec]:
    work, marks = work_of(evidence), outermost_spans(evidence, OPTIMIZER_STEP)
    names = optimizer_names(evidence)
    if len(names) != 1 or names[0] not in _OPTIMIZERS or not marks.start.size:
        return
    ops = evidence.linked.ops
    inside = marks.hold(np.append(ops["ts_us"].to_numpy(), np.nan)[work.op])
    sizes, per_op = _parameter_sizes(work, inside)
    if not sizes:
        return
    calls = marks.start.size / evidence.steps
    us = marks.total() / evidence.steps * evidence.host_scale
    for change in finding.tries:
        if change not in {"fused-optimizer", "foreach-optimizer"}:
            continue
        yield PieceSpec(
            kind="optimizer",
            finding=finding.slug,
            change=change,
            what=f"{names[0]}.step over {counted(len(sizes), 'parameter')}",
            calls=calls,
            recorded_us=us if evidence.is_host_only else None,
            share=1.0,
            settings={"class": names[0], "sizes": sizes, "has_momentum": per_op == "aten::mul_"},
            promise_us=_promise_us(finding, 1.0, us),
            **_where(work, np.flatnonzero(inside)),
        )


def _parameter_sizes(work: KernelWork, inside: Flags) -> tuple[list[list[int]], str]:
    """Returns the sizes of parameters that an optimizer updates in a step.

    The second value is the op that shows them.
    """
    signatures = work.evidence.linked.trace.signatures
    names = np.append(signatures["name"].astype(str).to_numpy(dtype=object), "")
    for op in _PER_PARAMETER:
        rows = np.flatnonzero(inside & (names[work.signature] == op))
        sizes: list[list[int]] = []
        for signature in np.unique(work.signature[rows]).tolist():
            first = work.sizes_of(signature)[:1]
            times = round(np.count_nonzero(work.signature[rows] == signature) / work.evidence.steps)
            if first and first[0]:
                sizes += [list(first[0])] * times
        if sizes:
            return sizes, op
    return [], ""


def _attention(evidence: Evidence, finding: Finding) -> Iterator[PieceSpec]:
    work = work_of(evidence)
    rows = attention_rows(work)
    products = np.flatnonzero(rows & work.family("matmul"))
    softmax = np.flatnonzero(rows & work.op_like(_SOFTMAX))
    m, n, k, batch = (work.cost(name) for name in ("m", "n", "k", "batch"))
    kinds: dict[tuple[float, ...], list[int]] = {}
    for at in softmax.tolist():
        before, after = np.searchsorted(products, at) - 1, np.searchsorted(products, at)
        if before < 0 or after >= products.size:
            continue
        one, two = int(products[before]), int(products[after])
        shape = tuple(float(value) for value in (batch[one], m[one], n[one], k[one], n[two]))
        kinds.setdefault(shape, []).append(at)
    trains = has_backward_pass(evidence)
    for shape, places in sorted(kinds.items(), key=lambda value: -len(value[1]) * math.prod(value[0])):
        if not all(math.isfinite(value) for value in shape):
            continue
        settings = dict(zip(("batch", "m", "n", "k", "d"), map(int, shape), strict=True))
        share = len(places) / max(softmax.size, 1)
        yield PieceSpec(
            kind="attention",
            finding=finding.slug,
            change="fused-attention",
            what="softmax(q @ k) @ v on {batch} x {m} x {n}, width {d}".format(**settings),
            calls=len(places) / evidence.steps,
            # The backward pass is spread over the step, and is measured with the forward pass.
            recorded_us=None if trains else work.us_of(rows) * share,
            share=share,
            settings={**settings, "trains": trains},
            promise_us=_promise_us(finding, share, work.us_of(rows) * share),
            **_where(work, np.array(places)),
        )


def _fewer_threads(change: str) -> _Choose:
    def pieces(evidence: Evidence, finding: Finding) -> Iterator[PieceSpec]:
        recording = evidence.recording
        if recording is None or recording.threads is None or recording.processors is None:
            return
        fewer = 1 if change == "threads-1" else recording.processors
        if fewer >= recording.threads:
            return
        choose = _small_products if change == "threads-1" else _all_work
        yield from _op_pieces("threads", change, choose, threads=recording.threads, fewer=fewer)(evidence, finding)

    return pieces


def _small_products(work: KernelWork) -> Flags:
    return work.family(*PRODUCTS) & work.has_reason("small_product")


def _all_work(work: KernelWork) -> Flags:
    return work.family(*PRODUCTS, "pointwise", "normalization", "softmax", "reduction")


CHOOSERS: Mapping[str, tuple[_Choose, ...]] = {
    "unfused-chain": (_chains, _hand_written),
    "unfused-norm": (_chains, _hand_written),
    "half-precision": (_narrow_products,),
    "channels-first": (_op_pieces("layout", "channels-last", _images),),
    "misaligned-products": (_op_pieces("padded-product", "pad", _uneven_products),),
    "unfused-optimizer": (_optimizer,),
    "unfused-attention": (_attention,),
    "threads-for-small-work": (_fewer_threads("threads-1"),),
    "too-many-threads": (_fewer_threads("threads-cores"),),
}
