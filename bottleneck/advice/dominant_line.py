"""Names the line whose ops take most of the step.

It says what makes such ops cheaper, where no other rule explains the line. In a trace without lines it names the op.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import PRODUCTS, KernelWork, work_of
from bottleneck.advice.quantities import format_per_step
from bottleneck.advice.ranking import FITS_ALL, OF_KINDS, Draft
from bottleneck.advice.removal import roots_of
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags
from bottleneck.schema.op_names import at_source, forward_of, is_line
from bottleneck.units import format_share, format_us

# Of the step: what a line takes at least, with its backward pass; what another finding may gain at most.
_LEAST, _EXPLAINED = 0.35, 0.1
# Of the line's time in the forward pass: what ops of one kind take at least.
_OF_ONE_KIND = 0.5
# Of the line's time: from this part in products on, the advice on products stands.
_PRODUCTS_TAKE = 0.4
_CALLS_ALL = re.compile(r"\.backward\(|\.step\(|\bautograd\.grad\(")


class OpKind(Struct, frozen=True):
    """A kind of op, with what usually makes such ops cheaper.

    It has the names of its ops, the word for them, and code.
    """

    names: "re.Pattern[str]"
    words: str
    cheaper: str
    code: str


def _kind(names: str, words: str, cheaper: str, code: str) -> OpKind:
    return OpKind(re.compile(rf"^(?:aten::|torchvision::|quantized::)?_?(?:{names})_?(?:\.|$)"), words, cheaper, code)


# The first row that an op's name matches is its kind.
OP_KINDS: Sequence[OpKind] = (
    _kind(
        r"linalg_\w+|svd\w*|symeig|geqrf|householder_product|orgqr|lu_\w+|triangular_solve|cholesky\w*|inverse|lstsq"
        r"|matrix_exp|pinverse|slogdet|logdet|det|matrix_power",
        "decompositions and solutions of linear systems",
        "factorise once and keep the factor for all right-hand sides (lu_factor and lu_solve, cholesky_solve); solve "
        "instead of inverting; use what is known of the matrix (symmetric, triangular, diagonal, low rank, one for the "
        "whole batch); renew it only every so many steps",
        "lu, pivots = torch.linalg.lu_factor(a)  # once\nx = torch.linalg.lu_solve(lu, pivots, b)",
    ),
    _kind(
        r"sort|argsort|msort|topk|unique\w*|kthvalue|median|nanmedian|quantile|nanquantile|mode|searchsorted|bucketize"
        r"|histc|histogram\w*|bincount|randperm|unique_dim|unique_consecutive|isin\w*",
        "sorting and selecting",
        "take only what is used (topk, kthvalue, amax in place of a sort; sorted=False), sort once and keep the order, "
        "sort fewer or smaller keys, or count with bincount where the keys are whole numbers",
        "values = scores.topk(k, sorted=False).values  # in place of a sort of all",
    ),
    _kind(
        r"bilinear|trilinear",
        "bilinear forms (x W y)",
        "multiply by matrices (x @ W laid out as inputs x (outputs * inputs), then with y) in place of nn.Bilinear, "
        "and factorise it (a weight for each pair of features and output): (U x) * (V y) with few rows is a "
        "low-rank form of the same",
        "z = torch.einsum('bi,oij->boj', x, w); out = torch.einsum('boj,bj->bo', z, y)  # or u(x) * v(y): low rank",
    ),
    _kind(
        r"cdist\w*|pdist\w*|euclidean_dist|pairwise_distance|cosine_similarity",
        "distances between all pairs",
        "compare by a product of matrices (|a|^2 + |b|^2 - 2 a @ b.T, without the root where only the order counts), "
        "keep the norms of what does not change, and leave out pairs that cannot matter (blocks, cells, an index of "
        "nearest neighbours)",
        "squared = (a * a).sum(1, keepdim=True) + (b * b).sum(1) - 2 * a @ b.T",
    ),
    _kind(
        r"upsample\w*|interpolate|grid_sampler\w*|affine_grid\w*|im2col\w*|col2im\w*|unfold\w*|fold|roi_align\w*"
        r"|pixel_shuffle|reflection_pad\w*|replication_pad\w*|constant_pad_nd|pad",
        "resizing, padding and unfolding of images",
        "do it on fewer channels or at a smaller size (resize last, after the channels are reduced), once instead of "
        "in each step where the input is the same, and without writing it: padding= of the convolution, a convolution "
        "in place of unfold, views (as_strided, Tensor.unfold) in place of copies",
        "y = F.interpolate(head(x), size=size)  # channels first reduced, then enlarged",
    ),
    _kind(
        r"(?:adaptive_)?(?:max|avg)_pool\w*|lp_pool\w*|fractional_max_pool\w*",
        "pooling",
        "pool with smaller windows one after the other (a window of 9 is two of 5), by a stride, or along one "
        "dimension after the other; lay images by pixels (channels_last)",
        "x = x.to(memory_format=torch.channels_last)",
    ),
    _kind(
        r"index_put\w*|index_add\w*|index_copy\w*|index_fill\w*|scatter\w*|gather\w*|index_select\w*|index|take\w*"
        r"|masked_select\w*|masked_scatter\w*|nonzero\w*|segment_reduce\w*|index_reduce\w*|put",
        "gathering and scattering by index",
        "move fewer numbers (select before what makes them wide; slices or views where the places are regular), whole "
        "rows that lie together in place of single numbers, sorted indices, and one call in place of several; sums by "
        "group can be a product with a sparse matrix or torch.segment_reduce on sorted groups",
        "out = torch.zeros(groups, width).index_add_(0, group, rows)  # rows, not numbers",
    ),
    _kind(
        r"where|masked_fill\w*|s_where|clamp\w*|[gln]e|eq|gt|lt|logical_\w+|bitwise_\w+|tril\w*|triu\w*",
        "masks and choices",
        "compute only what the mask keeps (index first, then compute), make the mask once ahead of the loop, and "
        "leave the choice to an op that knows it (is_causal=True, a loss with ignore_index)",
        "picked = mask.nonzero().squeeze(1)\nout.index_copy_(0, picked, f(x[picked]))  # f of the kept rows only",
    ),
    _kind(
        r"cumsum\w*|cumprod\w*|cummax\w*|cummin\w*|logcumsumexp\w*|diff",
        "running sums and products",
        "take the sum along the last dimension (numbers that lie together), over fewer or shorter rows, or as a "
        "product with a triangular matrix for short ones; where only the end is used, an ordinary sum",
        "total = x.sum(-1)  # where only the last of x.cumsum(-1) is used",
    ),
    _kind(
        r"fft_\w+|stft|istft|hann_window|hamming_window",
        "Fourier transforms",
        "use rfft for real numbers, lengths of small prime factors (2, 3, 5), one call for the whole batch, and "
        "transform once what stays the same (windows, filters)",
        "spectrum = torch.fft.rfft(x, n=2 ** math.ceil(math.log2(length)))",
    ),
    _kind(
        r"cross_entropy\w*|nll_loss\w*|log_softmax\w*|softmax\w*|logsumexp\w*|ctc_loss\w*|kl_div\w*"
        r"|binary_cross_entropy\w*|bce\w*|gumbel\w*",
        "softmax and losses over all classes",
        "compute them where they count (rows that are not padding, the last position in generation), in pieces that "
        "are not kept (a fused linear and cross entropy), with sampled or grouped classes where there are many, and "
        "once: cross_entropy takes the scores themselves",
        "loss = F.cross_entropy(head(hidden[kept]), target[kept])  # rows that count",
    ),
    _kind(
        r"embedding\w*|embedding_bag\w*|renorm\w*",
        "look-ups in tables",
        "look up each id once (unique ids, then index), with sparse gradients (sparse=True and an optimizer that "
        "knows them), without max_norm, and sum bags in the look-up (nn.EmbeddingBag)",
        "table = nn.EmbeddingBag(rows, width, mode='sum', sparse=True)",
    ),
    _kind(
        r"normal|uniform|bernoulli\w*|multinomial\w*|exponential|random|rand\w*|cauchy|geometric|log_normal|poisson"
        r"|standard_gamma\w*|sample_dirichlet|dirichlet\w*|binomial",
        "random numbers",
        "draw fewer (of the size that is used, whole rows or channels), draw many steps' worth at once, or "
        "use a cheaper kind (random_ of whole numbers, bernoulli_ in place); on a CPU they come from one generator, "
        "one after the other",
        "noise = torch.empty_like(x).normal_()  # into memory that is kept: noise.normal_()",
    ),
    _kind(
        r"lgamma|digamma|polygamma|igamma\w*|erfinv|special_\w+|i0e?|i1e?|mvlgamma|ndtri\w*|bessel\w*|xlogy|zeta",
        "special functions",
        "compute them for distinct arguments only (a table for whole numbers, then index), once where the argument "
        "stays, or by an approximation of a few products",
        "table = torch.lgamma(torch.arange(most + 1.0))  # once\ny = table[counts]",
    ),
    _kind(
        r"fake_quantize\w*|quantize\w*|dequantize\w*|choose_qparams\w*|fused_moving_avg_obs\w*|aminmax\w*",
        "quantizing and its observers",
        "convert once, ahead of the loop (torch.ao.quantization.convert; packed weights), switch observers off after "
        "calibration, and stay in one type between layers",
        "model.apply(torch.ao.quantization.disable_observer)",
    ),
    _kind(
        r"cat|stack|hstack|vstack|concat\w*|copy|clone|contiguous|repeat\w*|tile|roll|flip\w*|rot90|to_copy|fill|zero"
        r"|zeros\w*|ones\w*|full\w*|chunk_cat|block_diag|diag_embed|kron|meshgrid|as_strided_copy|permute_copy"
        r"|expand_copy|select_backward|slice_backward\w*",
        "copies of tensors",
        "write into a tensor that is kept (out=, in place, slices of one made beforehand), join once and not in each "
        "step, broadcast in place of repeating, and take views in place of copies",
        "buffer[at : at + n] = part  # in place of torch.cat([buffer, part])",
    ),
    _kind(
        r"pow|exp\w*|log\w*|sin\w*|cos\w*|tan\w*|a?sinh?|a?cosh?|a?tanh?|atan2|erfc?|sigmoid|log_sigmoid\w*|sqrt|rsqrt"
        r"|float_power|softplus\w*|mish\w*|hypot|fmod|remainder|floor_divide|polar|angle|logaddexp\w*|nan_to_num",
        "elementwise functions",
        "compute them for fewer numbers (before broadcasting, where a mask keeps them), once where the argument stays, "
        "by cheaper ones (x * x for pow(2), rsqrt, a sum of exponents in place of a product), and fused into one pass "
        "(torch.compile)",
        "y = x * x  # in place of x.pow(2.0)",
    ),
    _kind(
        r"sum\w*|mean|nansum|nanmean|norm|linalg_vector_norm|var\w*|std\w*|max|min|amax|amin|argmax|argmin|all|any|prod"
        r"|count_nonzero|trace|dist|equal|allclose|isclose|isnan|isfinite|isinf",
        "sums and other reductions",
        "reduce along the dimension whose numbers lie together, once for several results (var_mean, aminmax), on "
        "what is used, as a product with ones or einsum where a large product is summed up, and not in every step "
        "where it is only looked at",
        "if step % 100 == 0:\n    log(x.norm())",
    ),
)


# Calls of layers, whose work is what a network is for.
_LAYERS = re.compile(
    r"^aten::(?:linear|_?conv\w*|matmul|b?mm|addmm|baddbmm|einsum|layer_norm|batch_norm|group_norm|instance_norm"
    r"|rms_norm|(?:alpha_|feature_)?dropout|scaled_dot_product_attention|_native_multi_head_attention"
    r"|_transformer_encoder_layer_fwd|lstm|gru|rnn_\w+|(?:lstm|gru)_cell|rnn_\w+_cell)$"
)


class _DominantLine(Struct, frozen=True):
    """A line with most of the step.

    It has the rows of its work, their time per step, and the kind of its ops.
    """

    source: str
    rows: Flags
    us: float
    kind: OpKind


class _DominantOp(Struct, frozen=True):
    """An op with much of the step, in a trace without lines.

    It has the rows of its work, their time per step, and its kind.
    """

    name: str
    rows: Flags
    us: float
    kind: OpKind


def with_dominant_line(evidence: Evidence, drafts: Sequence[Draft]) -> list[Draft]:
    """Adds a draft on the line with most of the step.

    It is added where none of the drafts explains that line. Of a trace without lines the draft is on an op.
    """
    dominant = _dominant(evidence) or _dominant_op(evidence)
    op = dominant.name if isinstance(dominant, _DominantOp) else None
    if dominant is None or any(_explains(evidence, draft, dominant.us, op) for draft in drafts):
        return list(drafts)
    if isinstance(dominant, _DominantOp):
        draft = _words_on_op(evidence, dominant)
        return [draft, *drafts] if draft.comes_first else [*drafts, draft]
    return [_words_on(evidence, dominant), *drafts]


# Findings on the rest of the step.
_OF_THE_REST = frozenset(
    {"input-wait", "step-waits", "python-line", "host-overhead", "eager-overhead", "unfused-optimizer"}
)


def _explains(evidence: Evidence, draft: Draft, us: float, op: str | None) -> bool:
    """True for a finding that explains the step or so much of its time.

    It says where much of the step goes, or why the line or op with that time takes it. What is known of other ops of a
    kind says nothing of this ``op``.
    """
    if draft.comes_first or draft.corrects_results:
        return True
    if draft.gain_us is None or draft.slug in FITS_ALL:
        return False
    most_us = draft.gain_us.high
    if draft.slug in _OF_THE_REST:
        return most_us >= us
    if draft.slug in OF_KINDS:
        rows = [f"kernel:{at}" for at, row in enumerate(evidence.analysis.kernels) if row.op == op]
        own_us = most_us if op is None else math.fsum(draft.claims.get(row, 0.0) for row in rows)
        return own_us >= us / 2
    return evidence.share_of_step(most_us) >= _EXPLAINED


@remembered
def _dominant(evidence: Evidence) -> _DominantLine | None:
    """Finds the line whose ops take 35 % of the step.

    The time is with their backward pass, and half of it is of one kind.
    """
    if evidence.is_incomplete:
        return None
    work = work_of(evidence)
    longest = _longest_line(evidence, work)
    if longest is None:
        return None
    source, rows, forward = longest
    us = work.us_of(rows)
    # A backward pass takes some times as long as its forward pass: a line far beyond that takes gradients itself.
    kind = _main_kind(evidence, work, forward if work.us_of(forward) >= _LEAST_FORWARD * us else rows)
    is_bilinear = kind is not None and kind.names.search("aten::bilinear") is not None
    if not is_bilinear and work.us_of(rows & work.family(*PRODUCTS)) >= _PRODUCTS_TAKE * us:
        return None
    return None if kind is None else _DominantLine(source, rows, us, kind)


def _words_on(evidence: Evidence, line: _DominantLine) -> Draft:
    """Writes the draft on a line with 35 % of the step.

    The time is with their backward pass, and half or more is of one kind. No gain is predicted, as the time of another
    form of the line is not known.
    """
    work, kind, text = work_of(evidence), line.kind, evidence.source_texts.get(line.source, "")
    reached = work.mean(np.nan_to_num(work.roof("explained")), line.rows)
    place = f"{at_source(line.source)}{f' (`{text}`)' if text and len(text) <= _LONGEST_TEXT else ''}"
    return Draft(
        slug="dominant-line",
        title=f"One line takes {format_share(evidence.share_of_step(line.us))} of the step: {kind.words}",
        evidence=(
            f"the ops {place} take {format_per_step(evidence, line.us)}, with their backward pass, most of it "
            f"{kind.words}",
            f"they reach {format_share(reached)} of what arithmetic and bandwidth of the device allow for their sizes",
            *work.describe(line.rows),
        ),
        advice=f"Make the {kind.words} {place} cheaper: they take most of the step, and no other rule explains them. "
        f"Usual ways: {kind.cheaper}.",
        places=(line.source,),
        code=kind.code,
        gain_reason=f"at most the {format_us(line.us)} that this line takes; what another form of it takes is only "
        "known once it has run",
        comes_first=True,
    )


# Of the step: what an op takes at least in a trace without lines, for a condition to be worth a try.
_LEAST_OF_OP = 0.2
# Where neither lines nor sizes tell what an op is for: when another way would do, and that way.
_CONDITIONS: Sequence[tuple["re.Pattern[str]", str]] = (
    (
        re.compile(r"^aten::(?:sort|argsort|msort)$"),
        "If only the first values of the order are used, take them with torch.topk (amax or kthvalue for one): no sort "
        "is needed",
    ),
    (
        re.compile(r"^aten::(?:cat|concat\w*|stack|hstack|vstack)$"),
        "If it appends to a tensor that is kept (a queue, a cache), make that tensor once at its full size and write "
        "into its place: joining copies all of it in each step",
    ),
)


@remembered
def _dominant_op(evidence: Evidence) -> _DominantOp | None:
    """Finds the op with 35 % of the step, in a trace without lines.

    It is of a kind. Of an op that has a condition 20 % are enough. Ops inside of layers and of the backward pass are
    left out.
    """
    rows = evidence.analysis.kernels
    if evidence.is_incomplete or evidence.recording is not None or any(row.source for row in rows):
        return None
    if evidence.linked.ops.empty:
        return None
    work, ops = work_of(evidence), evidence.linked.ops
    names, codes = [str(category) for category in ops["name"].cat.categories], ops["name"].cat.codes.to_numpy()
    roots = np.append(roots_of(evidence), -1)[work.op]
    is_layer = np.array([bool(_LAYERS.search(name)) for name in names], dtype=bool)
    is_plain = work.in_model & (work.op >= 0)
    is_plain[is_plain] &= ~is_layer[codes[roots[is_plain]]] & ~ops["is_autograd"].to_numpy()[roots[is_plain]]
    code = np.where(is_plain, codes[np.maximum(work.op, 0)], -1)
    us = np.bincount(code + 1, weights=work.us, minlength=len(names) + 1)[1:]
    for at in np.argsort(-us, kind="stable").tolist():
        kind, least = _kind_of(names[at]), _LEAST if _condition_of(names[at]) is None else _LEAST_OF_OP
        if kind is not None and evidence.share_of_step(float(us[at])) >= least:
            return _DominantOp(names[at], code == at, float(us[at]), kind)
    return None


def _condition_of(name: str) -> str | None:
    return next((words for pattern, words in _CONDITIONS if pattern.search(name)), None)


def _words_on_op(evidence: Evidence, op: _DominantOp) -> Draft:
    """Writes the draft on an op whose line is not known."""
    share, condition = evidence.share_of_step(op.us), _condition_of(op.name)
    usual = f"Make {op.name} cheaper where that can be. Usual ways: {op.kind.cheaper}"
    return Draft(
        slug="dominant-line",
        title=f"{op.name} takes {format_share(share)} of the step: {op.kind.words}",
        evidence=(
            f"{op.name} takes {format_per_step(evidence, op.us)}, and the trace does not tell what it is for",
            *work_of(evidence).describe(op.rows),
        ),
        advice=f"{condition or usual}.",
        code=op.kind.code,
        gain_reason=f"at most the {format_us(op.us)} that this op takes; with_stack=True and record_shapes=True "
        "would show what it is for",
        comes_first=share >= _LEAST and condition is not None,
    )


_LONGEST_TEXT = 80
# Of the time of a line with its backward pass: less in the forward pass does not tell what the line is for.
_LEAST_FORWARD = 0.1


def _longest_line(evidence: Evidence, work: KernelWork) -> tuple[str, Flags, Flags] | None:
    """Gives the line with most work and its rows.

    The second mask has the rows outside of the backward pass. Null where no line takes 35 %.
    """
    column = evidence.linked.kernels["source"].cat
    names = [forward_of(str(text)) for text in column.categories]
    lines = sorted({name for name in names if _does_work(evidence, name)})
    if not lines:
        return None
    number = {name: at for at, name in enumerate(lines)}
    line = np.append(np.array([number.get(name, -1) for name in names], dtype=np.int64), -1)[
        column.codes.to_numpy()[work.row]
    ]
    line = np.where(work.in_model, line, -1)
    us = np.bincount(line + 1, weights=work.us, minlength=len(lines) + 1)[1:]
    at = int(np.argmax(us))
    if evidence.share_of_step(float(us[at])) < _LEAST:
        return None
    rows = line == at
    ops = evidence.linked.ops
    is_node = np.append(ops["is_autograd"].to_numpy(), False)
    root = np.append(roots_of(evidence), -1)[work.op]
    return lines[at], rows, rows & ~is_node[root]


def _does_work(evidence: Evidence, name: str) -> bool:
    """True for a line that does something itself.

    One that only runs the backward pass or an optimizer does not.
    """
    return is_line(name) and _CALLS_ALL.search(evidence.source_texts.get(name, "")) is None


def _main_kind(evidence: Evidence, work: KernelWork, rows: Flags) -> OpKind | None:
    """Gives the kind that takes half or more of these rows' time.

    It is by the op that works, and else by what called it.
    """
    names = [str(category) for category in evidence.linked.ops["name"].cat.categories]
    kinds = [_kind_of(name) for name in names]
    codes = evidence.linked.ops["name"].cat.codes.to_numpy()
    root = np.append(roots_of(evidence), -1)[work.op]
    us: dict[OpKind, float] = {}
    for place in np.flatnonzero(rows & (work.op >= 0)).tolist():
        outer = codes[root[place]]
        kind = None if _LAYERS.search(names[outer]) else kinds[outer] or kinds[codes[work.op[place]]]
        if kind is not None:
            us[kind] = us.get(kind, 0.0) + float(work.us[place])
    most = max(us, key=lambda kind: us[kind], default=None)
    return most if most is not None and us[most] >= _OF_ONE_KIND * work.us_of(rows) else None


def _kind_of(name: str) -> OpKind | None:
    return next((kind for kind in OP_KINDS if kind.names.search(name)), None)
