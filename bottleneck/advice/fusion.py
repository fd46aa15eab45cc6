"""Rules of fusing: chains of pointwise ops, norms beside them, attention by hand, losses over large vocabularies."""

import re
from dataclasses import dataclass

import numpy as np

from bottleneck.advice.chains import Chains, chains_of
from bottleneck.advice.draft import Draft
from bottleneck.advice.eager import MELTED, us_per_call
from bottleneck.advice.measures import PER_CALL, claims_of, format_count, is_compiled, runs_on_host
from bottleneck.advice.work import (
    Flags,
    Integers,
    Work,
    by_signature,
    claims_of_rows,
    elements,
    gain_of,
    goes_backward,
    part_on_path,
    share,
    sizes_of,
    told,
    work_of,
    worth_telling,
)
from bottleneck.case import Case
from bottleneck.records import Interval
from bottleneck.units import format_share, format_si, format_us

_WORTH_TELLING = 0.01
# Calling compiled code costs its guards and wrappers: 20-60 us measured on a CPU, which a device hides (rule 4 is
# about hosts that are slow).
_COMPILED_CALL_US = 60.0

_COMPILE = "model = torch.compile(model)  # or @torch.compile on the function that holds these lines"
_NORM = (
    "model = torch.compile(model)\n"
    "# or the fused ops: F.layer_norm(x, (x.shape[-1],), w, b), F.rms_norm(x, (x.shape[-1],), w)"
)
_SDPA = "out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=causal)"
_SDPA_HELD = (
    "self.attention = nn.MultiheadAttention(width, heads, dropout=0.0)\n"
    "out, _ = self.attention(x, x, x, need_weights=False)  # no mask tensor where is_causal=True says it"
)
_CHUNKED = (
    "def chunked_loss(hidden, weight, target, rows=1024):\n"
    "    def part(h, t):\n"
    '        return F.cross_entropy(h @ weight.T, t, reduction="sum")\n'
    "    pieces = zip(hidden.split(rows), target.split(rows))\n"
    "    return sum(checkpoint(part, h, t, use_reentrant=False) for h, t in pieces) / target.numel()"
)


@dataclass(frozen=True)
class _Words:
    slug: str
    title: str
    advice: str
    code: str


_CHAIN_WORDS = _Words(
    slug="unfused-chain",
    title="Neighbouring pointwise ops pass over memory one by one",
    advice="Fuse the chain into one pass with torch.compile (TorchScript or hand-written Triton can do it too).",
    code=_COMPILE,
)
_NORM_WORDS = _Words(
    slug="unfused-norm",
    title="Normalization, dropout and what stands beside them pass over memory one by one",
    advice="Let torch.compile fuse the normalization or dropout with the ops around it, or call a fused norm.",
    code=_NORM,
)


@worth_telling
def unfused_chain(case: Case) -> Draft | None:
    """Rule 16: two and more pointwise ops or reductions in a row, each bound by memory.

    Gain: Sigma t - what one pass over the chain's outer bytes takes (chains.find_chains), and on a CPU the calls that
    are spared. One change fuses all chains, so that only one finding tells of them: this one, unless those with a norm
    take more of the time.
    """
    work = work_of(case)
    chains = chains_of(work)
    return None if _mostly_norms(work, chains) else _of_chains(work, chains, _CHAIN_WORDS)


@worth_telling
def unfused_norm(case: Case) -> Draft | None:
    """Rule 21: normalization, activation, dropout and residual one by one. Gain as for ``unfused_chain``."""
    work = work_of(case)
    chains = chains_of(work)
    return _of_chains(work, chains, _NORM_WORDS) if _mostly_norms(work, chains) else None


def _mostly_norms(work: Work, chains: Chains) -> bool:
    return float(work.us[chains.where(chains.norm)].sum()) > float(work.us[chains.where(~chains.norm)].sum())


def _of_chains(work: Work, chains: Chains, words: _Words) -> Draft | None:
    rows = chains.of_row >= 0
    if share(work, rows) < _WORTH_TELLING:
        return None
    high = chains.high_us
    steps, ops = work.case.steps, chains.ops
    passes = gain_of(work, chains.low_us, high)
    calls = _calls_spared(work.case, float((ops - 1).sum()) / steps)
    gain = Interval(max(0.0, passes.low + calls.low), max(0.0, passes.high + calls.high))
    if gain.high <= 0:
        return None
    moved, needed = (float(amount.sum()) / steps for amount in (chains.bytes, chains.fused_bytes))
    held = part_on_path(work, high)
    return Draft(
        slug=words.slug,
        title=words.title,
        advice=words.advice,
        code=words.code,
        evidence=(
            f"{_counted(ops.size / steps, ops)} per step, in trace order, take "
            f"{format_us(float(work.us[rows].sum()))} ({format_share(share(work, rows))} of the step)",
            f"they move {format_si(moved, 'B')} per step; one pass of each needs about {format_si(needed, 'B')}",
            *told(work, rows),
            *([held] if held else []),
            *(["torch.compile already makes a part of the step, but not these"] if is_compiled(work.case) else []),
        ),
        gain_us=gain,
        claims={
            **claims_of_rows(work, np.clip(high, 0.0, None)),
            **claims_of(work.case, *PER_CALL, "overhead.launch_floor", most_us=max(0.0, gain.high - passes.high)),
        },
        tries=("compile",),
    )


def _calls_spared(case: Case, count: float) -> Interval:
    """What it is worth that so many ops per step are no longer called, on a CPU, less one call of compiled code.

    On a device the host's pace decides what launches are worth: the critical path counts that.
    """
    if not runs_on_host(case):
        return Interval(0.0, 0.0)
    low, high = (part * us_per_call(case) * count for part in MELTED)
    return Interval(low - _COMPILED_CALL_US, high)


def _counted(count: float, ops: Integers) -> str:
    """'1 chain of 8 ops', '12 chains of 2 to 7 ops'."""
    low, high = int(ops.min()), int(ops.max())
    sizes = f"{low}" if low == high else f"{low} to {high}"
    return f"{format_count(count)} chain{'s' * (count != 1)} of {sizes} ops"


_SOFTMAX = re.compile(r"^aten::(?:_safe_)?_?softmax$")
_SOFTMAX_BACKWARD = re.compile(r"^aten::_softmax_backward_data$")
_BETWEEN = 8  # scaling, masking and dropout around the softmax
_OWN_ATTENTION = re.compile(r"scaled_dot_product|multi_head_attention")
# A fused kernel reaches 35-75 % of the matrix peak (FlashAttention-2, table 1), products at hand about as much.
_FLASH_SLACK = 2.0


@worth_telling
def unfused_attention(case: Case) -> Draft | None:
    """Rule 17: a softmax between two batched products: the scores go to memory and back several times.

    Gain: Sigma t of products, softmax and what lies between them, less the larger floor of the two products, once over
    and twice over (a fused kernel reaches half of the peak and more). Its backward pass is the larger gain again in
    training; only that of the softmax itself is counted.
    """
    work = work_of(case)
    forward = _attention_rows(work)
    rows = forward | (work.op_like(_SOFTMAX_BACKWARD) if forward.any() else np.zeros(work.row.size, dtype=bool))
    if share(work, rows) < _WORTH_TELLING:
        return None
    compute = np.nan_to_num(work.roof("compute_us")) * work.scale / case.steps
    left = np.where(forward & work.family("matmul"), np.minimum(compute, work.us), 0.0)
    high = np.where(rows, work.us - left, 0.0)
    low = np.where(forward, np.clip(work.us - _FLASH_SLACK * left, 0.0, None), 0.0) / 2
    held = _inside_attention(work, forward)
    on_path = part_on_path(work, high)
    return Draft(
        slug="unfused-attention",
        title="Attention writes its scores to memory",
        evidence=(
            f"a softmax between two products, in trace order, takes {format_us(float(work.us[forward].sum()))} per "
            f"step ({format_share(share(work, forward))}) with them",
            *told(work, rows),
            *(["it is called by an attention op that could not take its fused kernel here"] if held else []),
            *([on_path] if on_path else []),
        ),
        advice=(
            "Let attention take its fused kernel: without attention weights, dropout and mask tensors where it can."
            if held
            else "Call scaled_dot_product_attention, which never writes the scores."
        ),
        gain_us=gain_of(work, low, high),
        claims=claims_of_rows(work, high),
        code=_SDPA_HELD if held else _SDPA,
        confidence="low",
    )


def _attention_rows(work: Work) -> Flags:
    """Products, softmax and all between, where the softmax follows the scores' product and feeds the next one.

    The scores have as many numbers as the softmax: m n per product of the first, m k of the second.
    """
    rows = np.zeros(work.row.size, dtype=bool)
    softmax = np.flatnonzero(work.op_like(_SOFTMAX))
    if not softmax.size:
        return rows
    product = np.flatnonzero(work.family("matmul"))
    count, random = elements(work, work.op_like(_SOFTMAX)), work.family("random")
    m, n, k, batch = (work.cost(name) for name in ("m", "n", "k", "batch"))
    before, after = np.searchsorted(product, softmax) - 1, np.searchsorted(product, softmax)
    for at, first, last in zip(softmax.tolist(), before.tolist(), after.tolist(), strict=True):
        if first < 0 or last >= product.size:
            continue
        one, two = int(product[first]), int(product[last])
        scores = (m[one] * n[one] * batch[one], m[two] * k[two] * batch[two])
        # No fused kernel of a CPU draws random numbers.
        held = runs_on_host(work.case) and bool(random[one:two].any())
        if two - one <= _BETWEEN and scores[0] == scores[1] == count[at] and not held:
            rows[one : two + 1] = True
    return rows


def _inside_attention(work: Work, rows: Flags) -> bool:
    """Whether an op of attention called most of these rows."""
    parent = work.case.linked.ops["parent"].to_numpy(dtype=np.int64, na_value=-1)
    names = work.case.linked.ops["name"].cat
    own = np.array([_OWN_ATTENTION.search(str(name)) is not None for name in names.categories], dtype=bool)
    is_own = np.append(np.append(own, False)[names.codes.to_numpy()], False)
    above, found = work.op[rows].copy(), np.zeros(int(rows.sum()), dtype=bool)
    for _ in range(4):  # attention > math > softmax > _softmax is as deep as it nests
        above = np.append(parent, -1)[above]
        found |= is_own[above]
    return bool(found.mean() > 0.5) if found.size else False


_LOSS = re.compile(r"^aten::(?:_log_softmax|_log_softmax_backward_data|nll_loss\w*|cross_entropy\w*)$")
_VOCABULARY = 8192
_LARGE_PART = 0.2


@worth_telling
def vocabulary_loss(case: Case) -> Draft | None:
    """Rule 23: cross-entropy over a large vocabulary, where the logits are more than a fifth of the step's bytes.

    The loss reads and writes as many numbers as logits four times and more; in parts that stay in cache, or in one
    kernel with the product, once at most. Gain: between half of the loss ops' time and all but one read.
    """
    work = work_of(case)
    rows = _loss_rows(work)
    moved, total = np.nan_to_num(work.roof("bytes_low")), case.analysis.totals.bytes_low or 0.0
    part = float(moved[rows].sum()) / case.steps / total if total else 0.0
    if part <= _LARGE_PART or share(work, rows) < _WORTH_TELLING:
        return None
    high = np.where(rows, work.us - work.memory_us() / 4, 0.0)
    on_path = part_on_path(work, high)
    return Draft(
        slug="vocabulary-loss",
        title="The loss over a large vocabulary moves its logits again and again",
        evidence=(
            f"the loss moves {format_share(min(part, 1.0))} of the step's bytes, "
            f"{format_si(float(moved[rows].sum()) / case.steps, 'B')} per step",
            *told(work, rows),
            *([on_path] if on_path else []),
        ),
        advice="Work out the loss in chunks of rows, or with a fused linear cross-entropy, so that logits stay small.",
        gain_us=gain_of(work, high / 2, high),
        claims=claims_of_rows(work, high),
        code=_CHUNKED if goes_backward(case) else None,
        confidence="low",
    )


def _loss_rows(work: Work) -> Flags:
    named = work.op_like(_LOSS)
    wide = [each for each in np.unique(work.signature[named]).tolist() if _widest(sizes_of(work, each)) >= _VOCABULARY]
    return by_signature(work, named, wide)


def _widest(sizes: tuple[tuple[int, ...], ...]) -> int:
    """Classes of a loss: the second size of its first tensor with as many, the last one of a softmax."""
    return max((size[-1] for size in sizes if len(size) >= 2), default=0)


RULES = (unfused_chain, unfused_norm, unfused_attention, vocabulary_loss)
