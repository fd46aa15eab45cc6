"""Chooses the pieces of a recorded step whose measurement would decide its findings, most promising first."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from bottleneck.advice.fusion import attention_rows, find_chains
from bottleneck.advice.kernel_work import PRODUCTS, KernelWork, has_backward_pass, work_of
from bottleneck.advice.quantities import optimizer_names, outermost_spans
from bottleneck.experiment.pieces.kinds import KINDS
from bottleneck.experiment.pieces.specs import OpCallSpec, PieceSpec
from bottleneck.schema.analysis import Finding
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags
from bottleneck.schema.op_names import OPTIMIZER_STEP
from bottleneck.units import counted

# Pieces of one finding, and of all: more would be beyond any usual budget.
_MOST_OF_ONE, _MOST = 4, 16
# Findings without a gain of their own are tried as if they promised this part of their work.
_UNKNOWN_PROMISE = 0.1
_LEAST_OF_STEP = 0.002
_LONGEST_NAMES = 3

_OPTIMIZERS = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})
# Ops of which an optimizer's step runs one per parameter, the surest first.
_PER_PARAMETER = ("aten::addcdiv_", "aten::addcmul_", "aten::lerp_", "aten::mul_", "aten::add_")
_SOFTMAX = re.compile(r"^aten::(?:_safe_)?_?softmax$")
_IMAGES = ("convolution", "pooling", "normalization")

# The evidence and the finding -> its pieces, largest first.
_Choose = Callable[[Evidence, Finding], Iterator[PieceSpec]]


def choose_pieces(evidence: Evidence, findings: Sequence[Finding]) -> tuple[PieceSpec, ...]:
    """The pieces of these findings, by the gain that a second of measuring decides about; empty where none can be."""
    found = [
        piece
        for finding in findings
        if finding.slug in CHOOSERS
        for piece in _of_finding(evidence, finding)
        if piece.promise_us >= _LEAST_OF_STEP * evidence.step_us
    ]
    seen: set[str] = set()
    ordered = []
    while found:
        best = max(found, key=lambda piece: piece.promise_us / _seconds(piece.kind, seen))
        found.remove(best)
        seen.add(best.kind)
        ordered.append(best)
    return tuple(ordered[:_MOST])


def _seconds(kind: str, seen: set[str]) -> float:
    return KINDS[kind].seconds + (0.0 if kind in seen else KINDS[kind].first_s)


def _of_finding(evidence: Evidence, finding: Finding) -> list[PieceSpec]:
    pieces = []
    for piece in CHOOSERS[finding.slug](evidence, finding):
        pieces.append(piece)
        if len(pieces) == _MOST_OF_ONE:
            break
    return pieces


def _promise_us(finding: Finding, share: float, us: float) -> float:
    """The gain that the finding's formula promises for this share of its work at most."""
    if finding.predicted_gain_us is None:
        return _UNKNOWN_PROMISE * us
    return max(finding.predicted_gain_us.high * share, 0.0)


def _chains(evidence: Evidence, finding: Finding) -> Iterator[PieceSpec]:
    work, chains = work_of(evidence), find_chains(evidence)
    total_us = work.us_of(chains.of_row >= 0)
    kinds: dict[tuple[int, ...], list[float]] = {}
    for chain in range(chains.ops.size):
        rows = np.flatnonzero(chains.of_row == chain)
        firsts = rows[np.concatenate(([True], np.diff(work.op[rows]) != 0))]
        kinds.setdefault(tuple(work.signature[firsts].tolist()), []).append(float(work.us[rows].sum()))
    keeps = has_backward_pass(evidence)
    for signatures, us in sorted(kinds.items(), key=lambda each: -math.fsum(each[1])):
        if min(signatures) < 0:
            continue
        ops = tuple(_call(work, each) for each in signatures)
        share = math.fsum(us) / total_us
        yield PieceSpec(
            kind="chain",
            finding=finding.slug,
            change="compile",
            what=f"{_names(ops)} on {ops[0].sizes}",
            calls=len(us) / evidence.steps,
            recorded_us=math.fsum(us),
            share=share,
            ops=ops,
            settings={"keeps": keeps},
            promise_us=_promise_us(finding, share, math.fsum(us)),
        )


def _names(ops: Sequence[OpCallSpec]) -> str:
    names = [each.name.removeprefix("aten::") for each in ops]
    more = len(names) - _LONGEST_NAMES
    return ", ".join(names[:_LONGEST_NAMES]) + (f" and {counted(more, 'op')} more" if more > 0 else "")


def _call(work: KernelWork, signature: int) -> OpCallSpec:
    name = str(work.evidence.linked.trace.signatures["name"].iloc[signature])
    columns = (work.text_column(column, signature) for column in ("dims", "types", "concrete", "strides"))
    return OpCallSpec(name, *columns)


def _groups(work: KernelWork, rows: Flags) -> Iterator[tuple[int, float, float]]:
    """The calls of these rows by signature: it, their time per step, and how often the step runs it; longest first."""
    chosen = np.flatnonzero(rows & (work.signature >= 0))
    us = np.bincount(work.signature[chosen], weights=work.us[chosen], minlength=1)
    for signature in np.argsort(-us, kind="stable").tolist():
        mine = chosen[work.signature[chosen] == signature]
        if not mine.size:
            return
        calls = np.unique(work.op[mine]).size / work.evidence.steps
        yield signature, float(us[signature]), calls


def _claimed_us(evidence: Evidence, finding: Finding) -> float:
    """The time of the kernels that the gain of the finding comes from."""
    rows = [int(name.removeprefix("kernel:")) for name in finding.claims if name.startswith("kernel:")]
    return math.fsum(evidence.analysis.kernels[row].us for row in rows)


def _op_pieces(kind: str, change: str, choose: Callable[[KernelWork], Flags], **settings: object) -> _Choose:
    """Pieces of one op each: of the rows that are chosen, those with the most time."""

    def pieces(evidence: Evidence, finding: Finding) -> Iterator[PieceSpec]:
        work = work_of(evidence)
        rows = choose(work)
        total_us = max(_claimed_us(evidence, finding), work.us_of(rows))
        for signature, us, calls in _groups(work, rows):
            call = _call(work, signature)
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
        work.family(*_IMAGES), lambda each: any(len(sizes) == 4 for sizes in work.sizes_of(each)[:3])
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
        )


def _parameter_sizes(work: KernelWork, inside: Flags) -> tuple[list[list[int]], str]:
    """The sizes of the parameters that an optimizer updates in one step, and the op that shows them."""
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
    kinds: dict[tuple[float, ...], int] = {}
    for at in softmax.tolist():
        before, after = np.searchsorted(products, at) - 1, np.searchsorted(products, at)
        if before < 0 or after >= products.size:
            continue
        one, two = int(products[before]), int(products[after])
        shape = tuple(float(each) for each in (batch[one], m[one], n[one], k[one], n[two]))
        kinds[shape] = kinds.get(shape, 0) + 1
    trains = has_backward_pass(evidence)
    for shape, count in sorted(kinds.items(), key=lambda each: -each[1] * math.prod(each[0])):
        if not all(math.isfinite(each) for each in shape):
            continue
        settings = dict(zip(("batch", "m", "n", "k", "d"), map(int, shape), strict=True))
        share = count / max(softmax.size, 1)
        yield PieceSpec(
            kind="attention",
            finding=finding.slug,
            change="fused-attention",
            what="softmax(q @ k) @ v on {batch} x {m} x {n}, width {d}".format(**settings),
            calls=count / evidence.steps,
            # The backward pass is spread over the step, and is measured with the forward pass.
            recorded_us=None if trains else work.us_of(rows) * share,
            share=share,
            settings={**settings, "trains": trains},
            promise_us=_promise_us(finding, share, work.us_of(rows) * share),
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
    return work.family(*PRODUCTS) & work.reason_like(re.compile("^small product"))


def _all_work(work: KernelWork) -> Flags:
    return work.family(*PRODUCTS, "pointwise", "normalization", "softmax", "reduction")


CHOOSERS: Mapping[str, _Choose] = {
    "unfused-chain": _chains,
    "unfused-norm": _chains,
    "half-precision": _narrow_products,
    "channels-first": _op_pieces("layout", "channels-last", _images),
    "misaligned-products": _op_pieces("padded-product", "pad", _uneven_products),
    "unfused-optimizer": _optimizer,
    "unfused-attention": _attention,
    "threads-for-small-work": _fewer_threads("threads-1"),
    "too-many-threads": _fewer_threads("threads-cores"),
}
