"""Rules of fusion.

They concern chains of pointwise ops, norms beside them, attention by hand, and losses over large vocabularies.
"""

import math
import re

import numpy as np
from msgspec import Struct

from bottleneck.advice.dispatch import FUSED, compiled_parts, drawn_ahead, us_per_call
from bottleneck.advice.kernel_work import (
    PRODUCTS,
    KernelWork,
    has_backward_pass,
    loop_times,
    requires_gain,
    size_words,
    work_of,
)
from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    claims_of,
    format_count,
    format_range,
    is_compiled,
    outermost_frames,
    refuses_compiling,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import main_source
from bottleneck.advice.wasted_work import growing_join
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, Floats, Integers, some_rows
from bottleneck.schema.learned_rates import attention_share
from bottleneck.schema.op_names import IN_PLACE, at_known
from bottleneck.schema.records import replace
from bottleneck.schema.tables import FRESH_FROM_BYTES, text_matches
from bottleneck.units import counted, format_share, format_si, format_us

_NORMS = re.compile(r"norm|rsqrt|dropout|bernoulli")
# Times its floor that kernels take which the device holds back: by its clock, its power, or memory of the host.
_FAR_BEYOND = 20.0
# On a CPU, what a compiled loop takes of the time that an op takes beyond its bytes, at least and at most. Measured
# with Inductor's C++ on one thread, half a million to 16 million numbers: exp, tanh … cost as much as before; a layer
# norm becomes 1.4 times as long (ATen's has wide vectors for its statistics); random numbers take 1.8 times as long,
# but are drawn by all threads, by one before. What nothing explains (threads that wait for one another) may stay.
_KEPT_SPECIAL = (0.5, 1.0)
_KEPT_STATISTICS = (0.7, 1.5)
_KEPT_RANDOM = (1.2, 2.5)
_KEPT_OTHERS = (0.0, 0.5)
_STATISTICS = ("normalization", "softmax", "reduction")
_MANY_THREADS = 8


class Chains(Struct, frozen=True):
    """Chains by number, and the number of each row of the work.

    The number is -1 for a row in none. ``ops`` counts the ops of each chain, ``bytes`` what they move per run,
    ``fused_bytes`` what one pass of all would move at best, ``between_bytes`` what results between its ops hold.
    ``norm`` marks chains with a normalization or dropout, ``spared`` the rows of all ops but the first of each chain.
    ``low_us`` and ``high_us`` are, per row and step, what fusing saves at least and at most: less than nothing where a
    compiled loop may take longer.
    """

    of_row: Integers
    ops: Integers
    bytes: Floats
    fused_bytes: Floats
    between_bytes: Floats
    norm: Flags
    spared: Flags
    low_us: Floats
    high_us: Floats

    def where(self, chosen: Flags) -> Flags:
        """Mask of the rows in one of the chosen chains."""
        return np.append(chosen, False)[self.of_row]


class _Candidates(Struct, frozen=True):
    """Rows that may stand in chains, in order.

    They are places in the work, with the bytes of their largest tensor. ``opens`` marks the first row of a run,
    ``hands_on`` rows that hand their result to a row of another op, ``written`` are the bytes of that result, ``again``
    those that the next row reads of what stood before it.
    """

    place: Integers
    bytes: Floats
    opens: Flags
    hands_on: Flags
    written: Floats
    again: Floats


@remembered
def find_chains(evidence: Evidence) -> Chains:
    """Finds runs of the model's ops that a compiler would fuse.

    It would make one loop of each (``Evidence.loops``). They are in trace order. Neither the write nor the read of what
    lies between two ops is needed, unless the backward pass reads it too: in training, at worst only the read is
    spared. An op in place leaves nothing behind that others could read.
    """
    work = work_of(evidence)
    candidates = _candidates(work)
    chain = np.cumsum(candidates.opens) - 1
    ops = 1 + np.bincount(chain, weights=candidates.hands_on, minlength=1).astype(np.int64) if chain.size else chain
    computes = (
        np.bincount(chain, weights=~work.family("copy")[candidates.place], minlength=1) > 0 if chain.size else chain
    )
    long = (ops >= 2) & computes
    number = np.where(long, np.cumsum(long) - 1, -1)
    of_row = np.full(work.row.size, -1, dtype=np.int64)
    of_row[candidates.place] = number[chain]
    return _estimate(work, some_rows(candidates, of_row[candidates.place] >= 0), of_row, ops[long])


def _candidates(work: KernelWork) -> _Candidates:
    """The rows of loops whose time one pass over the bytes would make shorter."""
    loops, bytes_low = work.evidence.loops, work.roof("bytes_low")
    loop, elements = (loops[name].to_numpy()[work.row] for name in ("loop", "elements"))
    gains = work.bound("memory") | (work.bound("compute") & ~work.family("normalization"))
    gains |= work.bound("unknown") & work.family("pointwise")  # whichever of the two it is
    if not work.evidence.is_host_only:
        gains |= work.bound("overhead")
    else:
        gains &= ~drawn_ahead(work.evidence)
    gains &= work.in_model & np.isfinite(bytes_low)
    join = growing_join(work.evidence)
    if join is not None:
        gains &= ~join.rows  # the copies have to go, and are no pass to be fused
    place = np.flatnonzero((loop >= 0) & gains)
    count, op = elements[place], work.op[place]
    # A run of a loop ends at a row that gains nothing.
    broken = np.cumsum((loop >= 0) & ~gains)[place]
    linked = (np.diff(loop[place]) == 0) & (np.diff(broken) == 0)
    opens = np.append(True, ~linked)[: place.size]
    hands_on = np.append(linked & (np.diff(op) != 0), False)[: place.size]
    # No op moves less than one operand and its result: that bounds the width of types that are not recorded.
    widths = np.select([work.dtype("bf16", "fp16"), work.dtype("fp64", "int64")], [2.0, 8.0], 4.0)
    item = np.minimum(widths[place], bytes_low[place] / np.maximum(2 * count, 1.0))
    written, again = _handed_on(work, place, count, np.where(hands_on, item, 0.0))
    return _Candidates(place, count * item, opens, hands_on, written, again)


def _handed_on(work: KernelWork, place: Integers, count: Floats, item: Floats) -> tuple[Floats, Floats]:
    """Gives the bytes of results that rows hand to the next.

    The second array has the bytes that the next row reads again of an earlier result. ``item`` are the bytes of a
    number, 0 where nothing is handed on. A reduction writes what its bytes leave beyond its operand. After it, an op
    over whole rows reads them again, which a fused loop may still hold.
    """
    following = np.append(count[1:], np.nan)
    reduced = np.clip(work.roof("bytes_low")[place] - count * item, 0.0, None)
    result = np.where(work.family("reduction")[place], reduced, count * item)
    written = np.where(item > 0, np.minimum(result, following * item), 0.0)
    again = np.where(following > count, following * item, 0.0)
    return np.nan_to_num(written), np.nan_to_num(again)


def _estimate(work: KernelWork, found: _Candidates, of_row: Integers, ops: Integers) -> Chains:
    size, place = ops.size, found.place
    chain = of_row[place]

    def total(values: Floats) -> Floats:
        return np.bincount(chain, weights=values, minlength=size).astype(np.float64)

    between = found.written
    in_place = work.op_like(IN_PLACE)[place]
    takes_over = np.append(in_place[1:], False) | (not has_backward_pass(work.evidence))
    bytes_all = total(work.roof("bytes_low")[place])
    largest = np.zeros(size)
    np.maximum.at(largest, chain, found.bytes)
    least = np.minimum(largest, bytes_all)
    best = np.maximum(bytes_all - total(2 * between + found.again), least)
    worst = np.maximum(bytes_all - total(np.where(takes_over, 2.0, 1.0) * between), best)
    memory_us, us = total(work.memory_us()[place]), total(work.us[place])
    kept_least, kept_most = _kept_us(work, found)
    runs = np.maximum(total(np.ones(place.size)) / ops, 1.0)
    launch_us = total(np.nan_to_num(work.roof("launch_us"))[place]) / (ops * runs) * work.scale / work.evidence.steps
    reduces = total(work.family(*_STATISTICS)[place].astype(np.float64)) > 0
    fastest, slowest = loop_times(work.evidence, reduces)
    # Kernels that run at a small part of any ceiling are held back by the device, which does so with the fused one too.
    is_slow = us > _FAR_BEYOND * np.maximum(memory_us + total(kept_most), launch_us)
    reached = np.where(is_slow & (not work.evidence.is_host_only), us / bytes_all, 0.0)
    shortest = np.maximum(np.maximum(fastest * memory_us / bytes_all, reached) * best, launch_us) + total(kept_least)
    longest = np.maximum(np.maximum(slowest * memory_us / bytes_all, reached) * worst, launch_us) + total(kept_most)
    # Where the bandwidth is not known, one pass takes as long as at the fastest pace of the chain's ops.
    pace = np.full(size, np.inf)
    np.minimum.at(pace, chain, work.us[place] / work.roof("bytes_low")[place])
    shortest = np.where(memory_us > 0, shortest, np.minimum(np.maximum(shortest, pace * best), us))
    longest = np.maximum(longest, shortest)
    # How it would take the fused one is not known: of what fewer bytes save, half is certain.
    longest = np.where(reached > 0, np.maximum(longest, us - np.clip(us - shortest, 0.0, None) / 2), longest)
    parts = [np.clip(1.0 - after / np.maximum(us, 1e-12), -1.0, 1.0) for after in (longest, shortest)]
    low, high = (np.where(of_row >= 0, work.us * np.append(part, 0.0)[of_row], 0.0) for part in parts)
    norm = (total((work.family("normalization") | work.op_like(_NORMS))[place].astype(np.float64)) > 0) & (size > 0)
    first_op = np.full(size, -1, dtype=np.int64)
    first_op[chain[::-1]] = work.op[place[::-1]]
    spared = (of_row >= 0) & (work.op != np.append(first_op, -1)[of_row])
    made = total(np.where(in_place, 0.0, between))
    return Chains(of_row, ops, bytes_all, best, made, np.asarray(norm), spared, low, high)


def _kept_us(work: KernelWork, found: _Candidates) -> tuple[Floats, Floats]:
    """Gives the time beyond its bytes that fusing leaves of each candidate.

    A fused loop would take that time too. The two arrays are at least and at most.
    """
    place = found.place
    beyond = (work.us - work.memory_us())[place]
    # A copy that changes the order of its elements keeps its strides in a fused loop.
    special = (np.nan_to_num(work.cost("special_ops")[place]) > 0) | work.family("copy")[place]
    random = work.family("random")[place]
    if not work.evidence.is_host_only:
        extra_us = np.clip((work.compute_us() - work.memory_us())[place], 0.0, beyond)
        return extra_us, extra_us
    fresh = _fresh_us(work, found, beyond)
    result = np.where(found.hands_on, 0.0, fresh)
    results = fresh if has_backward_pass(work.evidence) else result
    statistics = work.family(*_STATISTICS)[place]
    # Threads that an op of the step has, as an interval where the recording does not state it.
    recording = work.evidence.recording
    threads = None if recording is None else recording.threads
    few, many = (threads, threads) if threads else (1, _MANY_THREADS)
    kinds = [random, statistics, special]
    least = np.select(kinds, [_KEPT_RANDOM[0] / many, _KEPT_STATISTICS[0], _KEPT_SPECIAL[0]], _KEPT_OTHERS[0])
    most = np.select(kinds, [_KEPT_RANDOM[1] / few, _KEPT_STATISTICS[1], _KEPT_SPECIAL[1]], _KEPT_OTHERS[1])
    return (beyond - fresh) * least + result, (beyond - fresh) * most + results


def _fresh_us(work: KernelWork, found: _Candidates, beyond: Floats) -> Floats:
    """The part of ``beyond`` that new pages for the result take, on a CPU."""
    rate, place = work.evidence.analysis.device.fresh_bytes_per_s, found.place
    written = found.bytes
    if rate is None:
        return np.zeros(place.size)
    makes_result = ~work.op_like(IN_PLACE)[place] & ~work.family("reduction")[place] & (written >= FRESH_FROM_BYTES)
    # An op with next to no arithmetic spends its time beyond the bytes on nothing else.
    plain = ~((np.nan_to_num(work.cost("special_ops")[place]) > 0) | work.family("random")[place])
    shown = makes_result & plain
    # Pages cost more on a busy machine than when they were calibrated: ops that do little else show it.
    shown_us = float(beyond[shown].sum() / written[shown].sum()) if shown.any() else 0.0
    expected_us = written * max(1e6 / rate * work.scale / work.evidence.steps, shown_us)
    return np.where(makes_result, np.where(plain, beyond, np.minimum(expected_us, beyond)), 0.0)


_LEAST_SHARE = 0.01
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


@requires_gain
def unfused_chain(evidence: Evidence) -> Draft | None:
    """Finds runs of memory-bound ops that one pass could replace (rule 16).

    They are two or more pointwise ops or reductions in a row. Gain: Sigma t less what one pass over the chain's outer
    bytes takes (``find_chains``), at most with a host that launches one kernel for each chain. On a CPU it is the calls
    that are spared. One change fuses all chains, so that only
    one finding covers them: this one, unless those with a norm take more of the time.
    """
    work, chains = work_of(evidence), find_chains(evidence)
    return None if _mostly_norms(work, chains) else _of_chains(work, chains)


@requires_gain
def unfused_norm(evidence: Evidence) -> Draft | None:
    """Finds normalization, activation, dropout and residual one by one (rule 21).

    Gain as for ``unfused_chain``.
    """
    work, chains = work_of(evidence), find_chains(evidence)
    draft = _of_chains(work, chains) if _mostly_norms(work, chains) else None
    return draft and replace(
        draft,
        slug="unfused-norm",
        title="Norm and dropout are not fused with their neighbours",
        advice="Let torch.compile fuse the normalization or dropout with the ops around it, or call a fused norm.",
        code=_NORM,
    )


def _mostly_norms(work: KernelWork, chains: Chains) -> bool:
    return work.us_of(chains.where(chains.norm)) > work.us_of(chains.where(~chains.norm))


def chain_passes_us(evidence: Evidence) -> Interval:
    """Gives the time per step that fusing all chains saves.

    It is less than nothing where a loop takes longer.
    """
    chains = find_chains(evidence)
    low, high = float(chains.low_us.sum()), float(chains.high_us.sum())
    return Interval(min(low, high), high)


def part_between_ops(evidence: Evidence, rows: Flags) -> float:
    """Gives the part (0-1) of the step's allocations between ops of chains.

    Those hold the results between the ops. Only chains count all of whose ops are among these ``rows`` of the work. 0
    without memory events.
    """
    memory, (low, high) = evidence.linked.trace.memory, evidence.linked.window.host_us
    at_us, taken = memory["ts_us"].to_numpy(), memory["bytes"].to_numpy(dtype=np.float64)
    counts = (taken > 0) & ~memory["on_device"].to_numpy() & (at_us >= low) & (at_us < high)
    total = float(taken[counts].sum())
    chains = find_chains(evidence)
    is_apart = np.isin(np.arange(chains.ops.size), chains.of_row[~rows])
    return min(float(chains.between_bytes[~is_apart].sum()) / total, 1.0) if total > 0 else 0.0


def _of_chains(work: KernelWork, chains: Chains) -> Draft | None:
    rows = chains.of_row >= 0
    if work.share(rows) < _LEAST_SHARE or refuses_compiling(work.evidence):
        return None
    high = chains.high_us
    steps, ops = work.evidence.steps, chains.ops
    passes = work.gain(chains.low_us, high)
    fused = _with_fewer_launches(work, chains, passes)
    # Beyond the time of the kernels themselves there is only what the device waits for now.
    whole_us = max(float(high.sum()), 0.0)
    issues = claims_of(work.evidence, *ISSUE_ACCOUNTS, most_us=max(0.0, fused.high - whole_us))
    calls = _calls_spared(work.evidence, float((ops - 1).sum()) / steps)
    high_us = min(fused.high, whole_us + math.fsum(issues.values())) + calls.high
    gain = Interval(max(0.0, min(fused.low, high_us) + calls.low), max(0.0, high_us))
    if gain.high <= 0:
        return None
    moved, needed = (float(amount.sum()) / steps for amount in (chains.bytes, chains.fused_bytes))
    return Draft(
        slug="unfused-chain",
        title="Elementwise ops in a row each read and write memory",
        advice="Fuse these elementwise ops into one pass with torch.compile (TorchScript or Triton can do it too).",
        code=_COMPILE,
        evidence=(
            f"{_counted(ops.size / steps, ops)} per step, in trace order, take "
            f"{format_us(work.us_of(rows))} ({format_share(work.share(rows))} of the step)",
            f"they move {format_si(moved, 'B')} per step; one pass of each needs about {format_si(needed, 'B')}",
            *work.describe(rows),
            *work.critical_path_note(high),
            *_spared_launches(work, chains, gain.high - passes.high - calls.high),
            *(["torch.compile already makes a part of the step, but not these"] if is_compiled(work.evidence) else []),
        ),
        gain_us=gain,
        claims={
            **work.claims(np.clip(high, 0.0, None)),
            **claims_of(
                work.evidence, *ISSUE_ACCOUNTS, "overhead.launch_floor", most_us=max(0.0, gain.high - whole_us)
            ),
        },
        tries=("compile",),
    )


def _with_fewer_launches(work: KernelWork, chains: Chains, passes: Interval) -> Interval:
    """Gives the gain where the host also launches but one kernel for each chain.

    Else it would set the pace where the device gets quicker. At least by that part of its time which compiled code
    saves for certain, of what it may save.
    """
    if work.evidence.is_host_only:
        return passes
    fewer = work.gain(chains.low_us, chains.high_us, chains.spared)
    least, most = compiled_parts(work.evidence)
    certain = least / most if most > 0 else 0.0
    return Interval(passes.low + certain * max(fewer.low - passes.low, 0.0), max(fewer.high, passes.high))


def _spared_launches(work: KernelWork, chains: Chains, saved_us: float) -> tuple[str, ...]:
    """Gives evidence that fewer launches bring the device its work earlier.

    None where they do not.
    """
    if saved_us <= 0:
        return ()
    spared = format_count(float(chains.spared.sum()) / work.evidence.steps)
    all_of_them = format_count(work.evidence.analysis.totals.launch_count)
    return (
        f"fused, {spared} of {counted(all_of_them, 'launch', 'launches')} per step fall away, which the device waits "
        f"for, or would once its kernels are shorter: up to {format_us(saved_us)} more",
    )


def _calls_spared(evidence: Evidence, count: float) -> Interval:
    """Gives the gain on a CPU of so many spared calls.

    ``count`` is per step. One call of compiled code is taken off. On a device the host's pace decides what launches are
    worth, and the critical path counts that.
    """
    if not evidence.is_host_only:
        return Interval(0.0, 0.0)
    low, high = (part * us_per_call(evidence) * count for part in FUSED)
    return Interval(low - _COMPILED_CALL_US, high)


def _counted(count: float, ops: Integers) -> str:
    """'1 chain of 8 ops', '12 chains of 2 to 7 ops'."""
    return f"{format_count(count)} chain{'s' * (count != 1)} of {counted(format_range(ops), 'op')}"


_SOFTMAX = re.compile(r"^aten::(?:_safe_)?_?softmax$")
_SOFTMAX_BACKWARD = re.compile(r"^aten::_softmax_backward_data$")
# Scaling, dropout and masks, each of them made, widened and filled in, around the softmax.
_BETWEEN = 24
_LAYER = re.compile(r"^aten::addmm$")
_FAST_PATH = re.compile(r"_transformer_encoder_layer_fwd|_native_multi_head_attention")
_MODULE = re.compile(r"functional\.py\(\d+\): multi_head_attention_forward$")
_OWN_ATTENTION = re.compile(r"scaled_dot_product|multi_head_attention")
# A fused kernel reaches 35-75 % of the matrix peak (FlashAttention-2, table 1), products at hand about as much.
_FLASH_SLACK = 2.0
# The fused backward pass has five products in place of four, as it works out the scores again, and reaches 80 % of the
# rate of the forward pass (FlashAttention-2, figures 4 and 5).
_BACKWARD_ARITHMETIC, _BACKWARD_PACE = 5 / 4, 1 / 0.8


@requires_gain
def unfused_attention(evidence: Evidence) -> Draft | None:
    """Finds a softmax between two batched products (rule 17).

    The scores go to memory and back several times. Gain: Sigma t of products, softmax and what lies between them, less
    the floor of the arithmetic of the two products, and what a fused kernel of such sizes takes at most.
    In training so does the backward pass, around the softmax's own: what stands between its four products is gone
    too, where their sizes are those of the scores.
    """
    work = work_of(evidence)
    forward = attention_rows(work)
    backward = attention_backward_rows(work) if forward.any() else forward
    rows = forward | backward
    if work.share(rows) < _LEAST_SHARE:
        return None
    arithmetic_us = np.where(backward, _BACKWARD_ARITHMETIC, 1.0) * work.compute_us()
    left = np.where(rows & work.family("matmul"), np.minimum(arithmetic_us, work.us), 0.0)
    high = np.where(rows, work.us - left, 0.0)
    low = _least_gain_us(work, forward, arithmetic_us)
    if not evidence.is_host_only:
        low = low + _least_gain_us(work, backward, _BACKWARD_PACE * arithmetic_us)
    if _inside_attention(work, forward, _FAST_PATH):
        return None  # what torch has for inference, which makes no other choice
    held = _inside_attention(work, forward, _OWN_ATTENTION)
    rows_of_forward = np.unique(work.op[forward & (work.op >= 0)])
    line = main_source(evidence, rows_of_forward.tolist())
    return Draft(
        slug="unfused-attention",
        title="Attention writes its scores to memory",
        evidence=(
            f"a softmax between two products, in trace order, takes {format_us(work.us_of(forward))} per "
            f"step ({format_share(work.share(forward))}) with them",
            *(
                [f"its backward pass {format_us(work.us_of(backward))} ({format_share(work.share(backward))})"]
                if backward.any()
                else []
            ),
            *work.describe(rows),
            *(["it is called by an attention op that could not take its fused kernel here"] if held else []),
            *work.critical_path_note(high),
        ),
        advice=(
            "Let attention take its fused kernel: without attention weights, dropout and mask tensors where it can."
            if held
            else f"Pass need_weights=False to nn.MultiheadAttention{at_known(line)}: without weights to return "
            "it calls scaled_dot_product_attention, which never writes the scores."
            if _calls_module(evidence, rows_of_forward)
            else f"Call scaled_dot_product_attention{at_known(line)}, which never writes the scores; "
            "nn.MultiheadAttention does so with need_weights=False."
        ),
        places=() if held else (line,),
        gain_us=work.gain(low, high),
        claims=work.claims(high),
        code=_SDPA_HELD if held else _SDPA,
        tries=() if held else ("fused-attention",),
        confidence="low",
    )


def _calls_module(evidence: Evidence, rows: Integers) -> bool:
    """True where most of these ops are inside of nn.MultiheadAttention's own function."""
    inside = outermost_frames(evidence, _MODULE).hold(evidence.linked.ops["ts_us"].to_numpy()[rows])
    return bool(rows.size and inside.mean() > 0.5)


def _least_gain_us(work: KernelWork, rows: Flags, floor_us: Floats) -> Floats:
    """Gives what fused attention saves at least of each row of one pass.

    On tensor cores its products reach the share of the peak that timings taught, less their spread.
    """
    products = rows & work.family("matmul")
    on_matrix = (work.evidence.linked.kernels["engine"] == "matrix").to_numpy()[work.row]
    if work.us_of(products & on_matrix) <= work.us_of(products) / 2:
        return np.where(rows, np.clip(work.us - _FLASH_SLACK * floor_us, 0.0, None), 0.0) / 2
    n, k = work.cost("n"), work.cost("k")
    share, spread = attention_share(work.evidence.analysis.device.architecture, np.fmin(n, k), np.fmax(n, k))
    left_us = np.divide(spread * floor_us, share, out=np.zeros(share.shape), where=products)
    # Its products are one kernel, which also takes the time of what stood between them.
    whole_us, fused_us = work.us_of(rows), float(left_us.sum())
    return np.where(rows, work.us * max(1.0 - fused_us / whole_us, 0.0), 0.0)


def attention_rows(work: KernelWork) -> Flags:
    """Masks the products and softmax of attention and all between them.

    The softmax follows the scores' product and feeds the next one. The scores have as many numbers as the softmax: m n
    per product of the first, m k of the second. A product with a bias is a layer (a head over classes), and no scores.
    """
    rows = np.zeros(work.row.size, dtype=bool)
    softmax = np.flatnonzero(work.op_like(_SOFTMAX))
    if not softmax.size:
        return rows
    product = np.flatnonzero(work.family("matmul"))
    count, random = work.elements(work.op_like(_SOFTMAX)), work.family("random")
    layer = work.op_like(_LAYER)
    m, n, k, batch = (work.cost(name) for name in ("m", "n", "k", "batch"))
    before, after = np.searchsorted(product, softmax) - 1, np.searchsorted(product, softmax)
    for at, first, last in zip(softmax.tolist(), before.tolist(), after.tolist(), strict=True):
        if first < 0 or last >= product.size:
            continue
        one, two = int(product[first]), int(product[last])
        scores = (m[one] * n[one] * batch[one], m[two] * k[two] * batch[two])
        # No fused kernel of a CPU draws random numbers.
        held = work.evidence.is_host_only and bool(random[one:two].any())
        if two - one <= _BETWEEN and scores[0] == scores[1] == count[at] and not (held or layer[one]):
            rows[one : two + 1] = True
    return rows


def attention_backward_rows(work: KernelWork) -> Flags:
    """Masks the backward pass of a softmax and of the attention around it.

    Two products stand before it and two after it. Those count, with all between them, whose largest matrix has as many
    numbers as the scores; else the softmax's own backward pass does.
    """
    softmax_rows = work.op_like(_SOFTMAX_BACKWARD)
    rows, product = softmax_rows.copy(), np.flatnonzero(work.family("matmul"))
    count = work.elements(softmax_rows)
    m, n, k, batch = (work.cost(name) for name in ("m", "n", "k", "batch"))
    largest = np.fmax(np.fmax(m * n, m * k), n * k) * batch
    for at in np.flatnonzero(softmax_rows).tolist():
        place = int(np.searchsorted(product, at))
        around = product[max(place - 2, 0) : place + 2]
        around = around[(largest[around] == count[at]) & (np.abs(around - at) <= _BETWEEN)]
        if around.size:
            rows[min(int(around[0]), at) : max(int(around[-1]), at) + 1] = True
    return rows


def _inside_attention(work: KernelWork, rows: Flags, calls: "re.Pattern[str]") -> bool:
    """True if such an op called most of these rows."""
    parent = work.evidence.linked.ops["parent"].to_numpy(dtype=np.int64, na_value=-1)
    is_own = np.append(text_matches(work.evidence.linked.ops["name"], calls.search), False)
    above, is_inside = work.op[rows].copy(), np.zeros(int(rows.sum()), dtype=bool)
    for _ in range(4):  # attention > math > softmax > _softmax is as deep as it nests
        above = np.append(parent, -1)[above]
        is_inside |= is_own[above]
    return bool(is_inside.mean() > 0.5) if is_inside.size else False


_LOSS = re.compile(r"^aten::(?:_log_softmax|_log_softmax_backward_data|nll_loss\w*|cross_entropy\w*)$")
_CASTS_LOGITS = re.compile(r"^aten::(?:to|_to_copy|copy_)$")
_VOCABULARY = 8192
_LARGE_PART = 0.2
# Of the step's time, where other work moves more bytes.
_LARGE_TIME = 0.08


@requires_gain
def vocabulary_loss(evidence: Evidence) -> Draft | None:
    """Finds cross-entropy over very many classes (rule 23).

    It moves a fifth of the step's bytes, or takes 8 % of its time. Casts of tensors as large as the logits count with
    it. The loss reads and writes as many numbers as logits four times and more. In parts that stay in cache, or in one
    kernel with the product, it does so once at most. Gain: between half of the loss ops' time and all but one read.
    """
    work = work_of(evidence)
    # Classes of a loss: the second size of its first tensor with as many, the last one of a softmax.
    rows = work.calls_that(
        work.op_like(_LOSS),
        lambda signature: any(size[-1] >= _VOCABULARY for size in work.sizes_of(signature) if len(size) >= 2),
    )
    rows |= _casts_of_logits(work, rows)
    moved, total = np.nan_to_num(work.roof("bytes_low")), evidence.analysis.totals.bytes_low or 0.0
    part = float(moved[rows].sum()) / evidence.steps / total if total else 0.0
    if work.share(rows) < (_LEAST_SHARE if part > _LARGE_PART else _LARGE_TIME):
        return None
    high = np.where(rows, work.us - work.memory_us() / 4, 0.0)
    return Draft(
        slug="vocabulary-loss",
        title="The loss over many classes moves its logits again and again",
        evidence=(
            f"the loss moves {format_share(min(part, 1.0))} of the step's bytes, "
            f"{format_si(float(moved[rows].sum()) / evidence.steps, 'B')} per step",
            *work.describe(rows),
            *work.critical_path_note(high),
        ),
        advice="Work out the loss in chunks of rows, or with a fused linear cross-entropy, so that logits stay small.",
        gain_us=work.gain(high / 2, high),
        claims=work.claims(high),
        code=_CHUNKED if has_backward_pass(evidence) else None,
        confidence="low",
    )


def _casts_of_logits(work: KernelWork, loss: Flags) -> Flags:
    """Masks the casts of tensors as large as the logits.

    They have as many numbers as the logits of these rows, and as many classes.
    """
    logits = {
        (math.prod(size), size[-1])
        for signature in np.unique(work.signature[loss]).tolist()
        for size in work.sizes_of(signature)
        if len(size) >= 2 and size[-1] >= _VOCABULARY
    }
    if not logits:
        return loss & False
    return work.calls_that(
        work.op_like(_CASTS_LOGITS),
        lambda call: any((math.prod(size), size[-1]) in logits for size in work.sizes_of(call) if len(size) >= 2),
    )


_LOG = re.compile(r"^aten::log_?$")
_CLASSES = 1024
# Of the time of a loss written out the library's keeps at least: its own passes over the logits.
_KEPT_OF_LOSS = 0.1


@requires_gain
def written_loss(evidence: Evidence) -> Draft | None:
    """Finds a cross-entropy written out over many classes.

    A softmax is followed by a logarithm of as many numbers. Gain: the time of the ops on such tensors, from half of
    what is no softmax to 90 % of all.
    """
    work = work_of(evidence)
    softmax = work.calls_that(work.op_like(_SOFTMAX), lambda call: bool(_classes_of(work, call)))
    logits = {size for call in np.unique(work.signature[softmax]).tolist() for size in _classes_of(work, call)}
    log = work.calls_that(work.op_like(_LOG), lambda call: bool(_classes_of(work, call) & logits))
    if not log.any():
        return None
    rows = work.calls_that(work.in_model & ~work.family(*PRODUCTS), lambda call: bool(_classes_of(work, call) & logits))
    if work.share(rows) < 2 * _LEAST_SHARE:
        return None
    of_softmax = softmax | work.op_like(_SOFTMAX_BACKWARD)
    low = np.where(rows & ~of_softmax, work.us / 2, 0.0)
    high = np.where(rows, work.us * (1 - _KEPT_OF_LOSS), 0.0)
    size = size_words(max(logits, key=math.prod))
    return Draft(
        slug="written-loss",
        title="A cross-entropy is written out over all classes",
        evidence=(
            f"softmax, log and {counted(round(np.count_nonzero(rows) / evidence.steps), 'op')} per step on {size} "
            f"numbers take {format_us(work.us_of(rows))} ({format_share(work.share(rows))})",
            *work.describe(rows),
            *work.critical_path_note(high),
        ),
        advice="Call F.cross_entropy with the logits and the classes by number (it takes label_smoothing, weights).",
        gain_us=work.gain(low, high),
        claims=work.claims(high),
        code="loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), label_smoothing=0.1)",
    )


def _classes_of(work: KernelWork, signature: int) -> set[tuple[int, ...]]:
    """Sizes of a call's tensors with many classes, the last dimension."""
    return {tuple(size) for size in work.sizes_of(signature) if len(size) >= 2 and size[-1] >= _CLASSES}


RULES = (unfused_chain, unfused_norm, unfused_attention, vocabulary_loss, written_loss)
