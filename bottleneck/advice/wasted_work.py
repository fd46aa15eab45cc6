"""Rules on work near the roof that need not be done.

Repeated sequences and copies, and padding.
"""

import math
import re
from itertools import pairwise

import numpy as np
from msgspec import Struct

from bottleneck.advice.data_loading import loader_kinds
from bottleneck.advice.discarded_branches import runs_each_expert
from bottleneck.advice.kernel_work import (
    PRODUCTS,
    KernelWork,
    Size,
    has_backward_pass,
    is_size,
    requires_gain,
    work_of,
)
from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    claims_of,
    format_per_step,
    model_call,
    model_runs,
    ops_in_window,
    record_again,
    rows_of_ops,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import main_source, program_rows
from bottleneck.schema.accounts import UNMODELLED, UNMODELLED_ACCOUNTS, UNMODELLED_BY_FAMILY
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.measurements import Padding
from bottleneck.schema.op_names import at_known, at_source
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import US_PER_S, counted, format_share, format_us

# Lengths in a row that differ by one token each; a loop over prefixes of a few words is none.
_LEAST_LENGTHS, _LEAST_TOKENS = 4, 8
# Of the lengths one after the other, so many have to grow by the usual amount: a new prompt begins anew.
_ALIKE = 0.75
# Of the calls: others whose rows are no multiple of what they grow by.
_MOST_UNEVEN = 0.1
# Of the products of the step.
_LEAST_SHARE = 0.3
_MOST_GROUPS = 200
# What is left of a call with a cache: its weights are read, at this part of the bandwidth at worst. A small GPT at 96
# tokens became 4.9 to 5.3 times as fast.
_READ_AT, _CERTAIN = 0.4, 0.8
_FIRST = 0.2  # of the step: what makes it the first thing to do


class _Growth(Struct, frozen=True):
    """Products whose rows grow by the same number from call to call.

    Places in the work, rows at each, and the step.
    """

    places: Integers
    rows: Floats
    per_call: float


def no_kv_cache(evidence: Evidence) -> Draft | None:
    """Finds a whole sequence that is computed for each new token.

    The rows of products grow by one token from call to call. Gain: of all ops over the sequence all but one of T parts,
    less the reading of the weights, which stays: at most at the full bandwidth, at least 80 % of it with the weights
    read at 40 %.
    """
    work = work_of(evidence)
    products = np.flatnonzero(work.family("matmul"))
    if has_backward_pass(evidence):
        return None
    if not products.size:
        return _by_time(evidence)  # no sizes are recorded
    growing = [growth for growth in _growths(work, products) if growth is not None]
    if not growing:
        return None
    # Most layers grow by the same number of rows: the batch.
    per_call = float(np.median([growth.per_call for growth in growing]))
    places, rows = (
        np.concatenate(parts) for parts in zip(*((growth.places, growth.rows) for growth in growing), strict=True)
    )
    tokens = rows / per_call
    less_us = _less_us(work, places, rows, per_call)
    # With those of weights whose sizes other products have too, on rows that do not grow.
    places = np.union1d(places, products[less_us[products] > 0])
    if work.us[places].sum() < _LEAST_SHARE * work.us[products].sum():
        return None
    whole_us, weights_us = float(less_us.sum()), _weights_us(work, places)
    low_us = _CERTAIN * (whole_us - weights_us / _READ_AT)
    if low_us <= 0:
        return None
    first, last = int(tokens.min()), int(tokens.max())
    line = model_call(evidence)
    return Draft(
        slug="no-kv-cache",
        title="Each new token computes the whole sequence again",
        evidence=(
            f"the rows of products grow by {counted(int(per_call), 'row')} from call to call: sequences of {first} to "
            f"{last} tokens in the recorded steps",
            f"ops over the sequence take {format_us(float(work.us[less_us > 0].sum()))} per step, and a single token "
            f"needs about a {last}th of that",
            *work.describe(_mask(work, places)),
        ),
        advice="Keep keys and values of past tokens (a KV cache), and pass the newest token only"
        f"{'' if line is None else f' in the call of the model {at_source(line)}'}.",
        places=(line,),
        code="out = model(token, past_key_values=cache, use_cache=True)  # Hugging Face: model.generate does this",
        gain_us=Interval(low_us, whole_us - weights_us),
        claims=work.claims(less_us),
        comes_first=evidence.share_of_step(low_us) >= _FIRST,
    )


# Calls of one model in a step, of which the last quarter takes so much longer than the first; and how evenly they grow.
_LEAST_CALLS, _LONGER, _EVENLY = 8, 1.5, 0.8
_LAST_ONLY = "hidden = decoder(token, cache)\nlogits = head(hidden[:, -1:])  # of the last position only"


def _by_time(evidence: Evidence) -> Draft | None:
    """Finds the same without sizes, by the times of a model's calls.

    In each of several steps they take longer and longer. A single token takes as long as the quickest call at best, and
    as the first quarter of the calls at worst; that all of the growth is the sequence's is a guess.
    """
    runs, seen, low_us, high_us = model_runs(evidence), [], 0.0, 0.0
    for (module, source), mine in runs.groupby(["module", "source"], sort=False):
        calls = len(mine) // evidence.steps
        if evidence.steps < 2 or calls < _LEAST_CALLS or len(mine) % evidence.steps:
            continue
        us = mine["us"].to_numpy(dtype=np.float64).reshape(evidence.steps, calls)
        usual_us, quarter = np.median(us, axis=0), calls // 4
        begin_us, end_us = float(usual_us[:quarter].mean()), float(usual_us[-quarter:].mean())
        ranks = np.argsort(np.argsort(usual_us, kind="stable"), kind="stable")
        if end_us >= _LONGER * begin_us and np.corrcoef(ranks, np.arange(calls))[0, 1] >= _EVENLY:
            seen.append((float(us.sum()) / evidence.steps, str(module), str(source), calls, begin_us, end_us))
            low_us += max(seen[-1][0] - calls * begin_us, 0.0) / 2
            high_us += seen[-1][0] - calls * float(us.min())
    if evidence.share_of_step(math.fsum(us for us, *_ in seen)) < _LEAST_SHARE:
        return None
    seen.sort(reverse=True)
    return Draft(
        slug="no-kv-cache",
        title="Each call of a model takes longer than the one before, as over a longer and longer sequence",
        evidence=tuple(
            f"{module} takes {format_per_step(evidence, us)} in {counted(calls, 'call')}: the first quarter of them "
            f"{format_us(begin_us)} each, the last {format_us(end_us)}"
            for us, module, _, calls, begin_us, end_us in seen
        ),
        advice="Where it is given all tokens so far, keep keys and values of past ones (a KV cache), pass the newest "
        f"only, and let the last layer work on the last position{at_known(seen[0][2])}.",
        brief="Keep keys and values of past tokens (a KV cache), and let the last layer work on the last position only",
        places=(seen[0][2],),
        code=_LAST_ONLY,
        gain_us=Interval(low_us, high_us),
        confidence="low",
    )


def _mask(work: KernelWork, places: Integers) -> Flags:
    mask = np.zeros(work.us.size, dtype=bool)
    mask[places] = True
    return mask


def _growths(work: KernelWork, products: Integers) -> list[_Growth | None]:
    """Returns the growth of each weight's products, in the order of time.

    Null where the rows do not grow evenly.
    """
    at_us = work.evidence.linked.kernels["ts_us"].to_numpy()[work.row[products]]
    groups: dict[tuple[int, ...], list[tuple[float, int, int]]] = {}
    shapes = {code: _rows_and_weight(work, code) for code in np.unique(work.signature[products]).tolist()}
    for place, start, signature in zip(
        products.tolist(), at_us.tolist(), work.signature[products].tolist(), strict=True
    ):
        shape = shapes[signature]
        if shape is not None and (shape[1] in groups or len(groups) < _MOST_GROUPS):
            groups.setdefault(shape[1], []).append((start, place, shape[0]))
    return [_growth(sorted(calls)) for calls in groups.values()]


def _rows_and_weight(work: KernelWork, signature: int) -> tuple[int, tuple[int, ...]] | None:
    """Returns rows of the input of a product, and the sizes of its weight.

    Null where that is no matrix.
    """
    sizes = [size for size in work.sizes_of(signature) if len(size) >= 2]
    if len(sizes) < 2 or len(sizes[-1]) != 2 or 0 in sizes[0]:
        return None
    return math.prod(sizes[0][:-1]), sizes[-1]


def _growth(calls: list[tuple[float, int, int]]) -> _Growth | None:
    places, rows = np.array([place for _, place, _ in calls]), np.array([rows for *_, rows in calls], dtype=np.float64)
    lengths = rows[np.concatenate(([True], np.diff(rows) != 0))]
    steps = np.diff(lengths)
    if lengths.size < _LEAST_LENGTHS or not (steps > 0).any():
        return None
    usual = float(np.median(steps[steps > 0]))
    is_usual = steps == usual
    uneven = np.flatnonzero(np.concatenate(([True], ~is_usual, [True])))
    is_even = np.count_nonzero(is_usual) >= _ALIKE * steps.size and np.diff(uneven).max() >= _LEAST_LENGTHS
    # A search by beams begins with one row.
    whole = rows % usual == 0
    shortest, longest = (float(bound) / usual for bound in (lengths.min(), lengths.max()))
    is_long = shortest >= _LEAST_TOKENS or longest >= 2 * _LEAST_TOKENS
    if not is_even or not is_long or np.count_nonzero(~whole) > _MOST_UNEVEN * rows.size:
        return None
    return _Growth(places[whole], rows[whole], usual)


def _less_us(work: KernelWork, places: Integers, rows: Floats, per_call: float) -> Floats:
    """Returns time of each kernel over the sequence beyond one token.

    The kernels are those whose sizes hold its length.
    """
    at_us = work.evidence.linked.kernels["ts_us"].to_numpy()[work.row]
    order = np.argsort(at_us[places], kind="stable")
    instants, now = at_us[places][order], rows[order]
    current = now[np.clip(np.searchsorted(instants, at_us, side="right") - 1, 0, None)]
    later = now[np.clip(np.searchsorted(instants, at_us, side="left"), None, now.size - 1)]
    sizes = {candidate: _numbers(work, candidate) for candidate in np.unique(work.signature).tolist()}
    less = np.zeros(work.us.size)
    for place, (signature, before, after) in enumerate(
        zip(work.signature.tolist(), current.tolist(), later.tolist(), strict=True)
    ):
        length = next(
            (
                candidate
                for candidate in (before, after)
                if sizes[signature] & {int(candidate), int(candidate / per_call)}
            ),
            None,
        )
        if length is not None:
            less[place] = work.us[place] * (1 - per_call / length)
    return less


def _numbers(work: KernelWork, signature: int) -> set[int]:
    """All sizes of the tensors of a call, and their rows."""
    sizes = [size for size in work.sizes_of(signature) if size]
    return {number for size in sizes for number in (*size, math.prod(size[:-1]))}


def _weights_us(work: KernelWork, places: Integers) -> float:
    """Returns time per step to read the weights of these products.

    At the full bandwidth, which a single token needs as well.
    """
    bandwidth = work.evidence.analysis.device.bandwidth_bytes_per_s
    if not bandwidth:
        return 0.0
    nbytes = 0.0
    for signature in work.signature[places].tolist():
        sizes = [size for size in work.sizes_of(signature) if len(size) >= 2]
        nbytes += 4.0 * math.prod(sizes[-1])
    return min(nbytes / work.evidence.steps / bandwidth * US_PER_S, float(work.us[places].sum()))


_JOINS = re.compile(r"^aten::_?(?:cat|concat|concatenate|[hvd]?stack)$")
# Steps one after the other whose joins grow by as many numbers each.
_LEAST_STEPS = 3


class GrowingJoin(Struct, frozen=True):
    """Joins at one line of all that was kept before with a step's part.

    Such as ``kept = torch.cat([kept, new])``. ``rows`` masks them in the work, ``less_us`` is per row what is not the
    copy of the new part, ``new_share`` the part of the joined numbers that is new. ``bytes`` is what a step moves.
    ``is_read`` tells that other ops of each step take the whole, as attention does of a cache: it cannot wait until
    the loop is over.
    """

    source: str
    rows: Flags
    less_us: Floats
    bytes: float
    new_share: float
    is_read: bool


@remembered
def growing_join(evidence: Evidence) -> GrowingJoin | None:
    """Finds joins that copy in each step what was copied before.

    They are of the line with most time in them. Each joins as many numbers more than in the step before, and the
    largest part is what that step has joined, or the parts are more in number.
    """
    work = work_of(evidence)
    joins = np.flatnonzero(work.op_like(_JOINS) & (work.signature >= 0))
    kernels = evidence.linked.kernels.iloc[work.row[joins]]
    source, step = kernels["source"].cat.codes.to_numpy(), kernels["step"].to_numpy(dtype=np.int64, na_value=-1)
    several = [
        join
        for code in np.unique(source[source >= 0]).tolist()
        if (join := _join_of(work, joins[source == code], step[source == code])) is not None
    ]
    return max(several, key=lambda join: work.us_of(join.rows), default=None)


def _join_of(work: KernelWork, places: Integers, steps: Integers) -> GrowingJoin | None:
    """Returns those of the joins at one line that grow from step to step.

    Null where none do.
    """
    numbers, counts = np.unique(steps[steps >= 0], return_counts=True)
    if numbers.size < _LEAST_STEPS or np.ptp(counts) or np.any(np.diff(numbers) != 1):
        return None
    by_step = np.stack([places[steps == number] for number in numbers.tolist()])
    less_us, total, added = np.zeros(work.us.size), 0.0, 0.0
    for calls in by_step.T:
        parts = [_parts_of(work, int(work.signature[place])) for place in calls.tolist()]
        sums = np.array([math.fsum(row) for row in parts])
        if not _grow(parts, sums):
            continue
        new = float(sums[1] - sums[0])
        less_us[calls] = work.us[calls] * (1 - new / sums)
        total, added = total + float(sums.mean()), added + new
    rows = less_us > 0
    if not rows.any():
        return None
    source = work.evidence.linked.kernels["source"].iloc[int(work.row[np.flatnonzero(rows)[0]])]
    moved = float(np.nansum(work.roof("bytes_low")[rows])) / work.evidence.steps
    return GrowingJoin(str(source), rows, less_us, moved, added / total, _is_read(work, rows))


# What moves a tensor, or only looks at it, computes nothing from it.
_MOVES = re.compile(r"^aten::(?:cat|stack|concat\w*|index\w*|gather|slice|select|view|_?copy\w*|clone|to|_to_copy)$")


def _is_read(work: KernelWork, joins: Flags) -> bool:
    """True if ops that compute take tensors of the size made here."""
    sizes = {joined_size(work, number) for number in np.unique(work.signature[joins]).tolist()} - {None}
    others = np.unique(work.signature[~joins & (work.signature >= 0) & ~work.op_like(_MOVES)]).tolist()
    return any(size in sizes for number in others for size in work.sizes_of(number))


def joined_size(work: KernelWork, signature: int) -> Size | None:
    """Returns the size of what a call joins.

    Null where its parts or its dimension are not recorded.
    """
    dims, concrete = (
        work.text_column("dims", signature),
        [str(value) for value in work.text_column("concrete", signature)],
    )
    parts = [part for part in dims[0] if is_size(part)] if dims and isinstance(dims[0], list) else []
    if not parts or len(concrete) < 2 or re.fullmatch(r"-?\d", concrete[1]) is None:
        return None
    at = int(concrete[1])
    if len({len(part) for part in parts}) > 1 or not -len(parts[0]) <= at < len(parts[0]):
        return None
    joined = list(parts[0])
    joined[at] = sum(part[at] for part in parts)
    return tuple(joined)


def _grow(parts: list[list[int]], sums: Floats) -> bool:
    """True if the same join takes in what it has joined before.

    In one step after the other.
    """
    more = np.diff(sums)
    if more[0] <= 0 or np.any(more != more[0]):
        return False
    keeps = all(max(later) == before for later, before in zip(parts[1:], sums.tolist(), strict=False))
    return keeps or all(len(later) > len(before) for before, later in pairwise(parts))


def _parts_of(work: KernelWork, signature: int) -> list[int]:
    """Counts the numbers in each of the tensors that a call joins.

    None where their sizes are not recorded.
    """
    dims = work.text_column("dims", signature)
    parts = dims[0] if dims and isinstance(dims[0], list) else []
    return [math.prod(part) for part in parts if is_size(part)]


# Of the ids; and of the time that they are worth: norms and losses skip some.
_LEAST_PADDING, _PADDED = 0.1, (0.6, 1.1)
# In a row: fewer are as soon a text that repeats one id at its end, as a model does that has not learned yet.
_LEAST_IDS = 16
_COMPUTED = ("compute", "memory")
# What has no cost, as a product of quantized numbers, is computed on padding too.
_UNKNOWN_PRODUCTS = tuple(sorted({UNMODELLED_BY_FAMILY[family] for family in PRODUCTS}))
# A remark that padding is not known: most of the step is computed, on so many rows of so many ids.
_MOSTLY, _ROWS, _COLUMNS = 0.6, 4, 32
_EMBEDDING = re.compile(r"^aten::embedding$")


_PADS = "aten::pad_sequence"


def padded_inputs(evidence: Evidence) -> Draft | None:
    """Finds rows of ids or frames that end in padding, on which ops compute.

    The recorded program sampled it. Gain: the padded share of compute and memory time and of products without a known
    cost, from 60 % to 110 % of it; at most, ops on pairs of ids lose the padding of both.
    """
    padding = None if evidence.recording is None else evidence.recording.padding
    if padding is None or padding.share < _LEAST_PADDING or padding.columns < _LEAST_IDS:
        return None
    are_frames = padding.unit == "frame"
    part, squared = (1.0, 0.0) if are_frames else _parts_on_whole_rows(evidence, padding)
    all_us = sum(evidence.group_us(group) for group in _COMPUTED)
    all_us += sum(evidence.account_us(account) for account in _UNKNOWN_PRODUCTS)
    work_us, squared_us = part * all_us, squared * all_us
    # Ops on pairs of a row's ids lose the padding of both.
    most_us = padding.share * (work_us - squared_us) + (1 - (1 - padding.share) ** 2) * squared_us
    low_us = min(_PADDED[0] * padding.share, 0.9) * work_us
    high_us = min(_PADDED[1] * most_us, 0.9 * work_us)
    if evidence.share_of_step(high_us) < _LEAST_SHARE_OF_PADDING:
        return None
    is_by_batch = are_frames or _PADS in evidence.op_sums
    line = None if are_frames else main_source(evidence, _lookups(evidence, padding))
    made = "in the loader's collate_fn" if loader_kinds(evidence) else "where the rows become one tensor"
    what = "zeros at their end" if are_frames else "one id repeated at an end"
    return Draft(
        slug="padded-inputs",
        title="Ops compute on padding",
        evidence=(
            f"{format_share(padding.share)} of the {padding.unit}s in {counted(padding.rows, 'row')} of up to "
            f"{counted(padding.columns, padding.unit)} are {what}"
            + (f"; they are looked up{at_known(line)}" if line else ""),
            f"arithmetic and bytes of ops on these rows take {format_us(work_us)} per step",
        ),
        advice=(
            f"Batch rows of like length (bucketing){_before(line)}: a batch is padded to its longest row. Or pack "
            "several into one row."
            if is_by_batch
            else f"Pad each batch to its longest row only{_before(line)}, batch rows of like length (bucketing), or "
            "pack several into one row."
        ),
        places=(line,),
        code="order = sorted(range(len(rows)), key=lambda at: len(rows[at]))  # batches are cut from this order"
        if is_by_batch
        else f"torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # {made}: no fixed length",
        removes=True,
        gain_us=Interval(low_us, high_us),
        claims=claims_of(evidence, *_COMPUTED, *_UNKNOWN_PRODUCTS, most_us=high_us),
        changes_results=True,
    )


def _before(line: str | None) -> str:
    """' before p14.py:34'; empty where the line is not known."""
    return f" before {line}" if line else ""


def _lookups(evidence: Evidence, padding: Padding) -> list[int]:
    """Gives the embeddings that look up padded ids, or all embeddings."""
    work, rows = work_of(evidence), rows_of_ops(evidence, ("aten::embedding",))
    signatures = as_integers(evidence.linked.ops["signature"])[rows].tolist()
    own = [
        row
        for row, signature in zip(rows.tolist(), signatures, strict=True)
        if any(size[-1:] == (padding.columns,) for size in work.sizes_of(signature)[1:2])
    ]
    return own or rows.tolist()


# Of the step: what padding takes that is worth a change.
_LEAST_SHARE_OF_PADDING = 0.02
# A row may have lost its first or last ids, or got marks around it.
_MARKS = range(-2, 3)


def _parts_on_whole_rows(evidence: Evidence, padding: Padding) -> tuple[float, float]:
    """Gives the parts of the work on whole rows of ids, and on pairs.

    Pairs are those of a row's ids. A size of theirs is the rows' length, or that times their number, or they are called
    once for each id of all rows. Those on pairs, as of attention, have the length twice. A program that packs its rows,
    or stops at their ends, works on fewer. 1 and 0 where sizes were not recorded.
    """
    work, lengths = work_of(evidence), [padding.columns + more for more in _MARKS]
    # A lookup of positions may have been counted as one row more.
    sizes = {*lengths, *(rows * length for rows in (padding.rows, padding.rows - 1) for length in lengths)}
    calls = dict(zip(*(column.tolist() for column in np.unique(work.signature, return_counts=True)), strict=True))

    def is_whole(signature: int) -> bool:
        tensors = [size for argument in work.argument_sizes(signature) for size in argument]
        per_step = calls.get(signature, 0) / evidence.steps
        at_each_id = round(per_step) in lengths and any(size[:1] == (padding.rows,) for size in tensors)
        return at_each_id or any(length in sizes for size in tensors for length in size)

    def is_of_pairs(signature: int) -> bool:
        tensors = [size for argument in work.argument_sizes(signature) for size in argument]
        # Heads make more matrices of them than there are rows; one of each row may be as wide as the row is long.
        return any(
            math.prod(size[:-2]) > padding.rows and all(length in lengths for length in size[-2:])
            for size in tensors
            if len(size) > 2
        )

    is_product = work.is_text(evidence.roofline, "family", *PRODUCTS)
    is_work = work.bound("compute", "memory") | (is_product & work.bound("unknown"))
    judged = is_work & (work.signature >= 0)
    if not judged.any() or not work.us[judged].sum() > 0:
        return 1.0, 0.0
    whole = work.calls_that(judged, is_whole)
    all_us = float(work.us[judged].sum())
    return float(work.us[whole].sum()) / all_us, float(work.us[work.calls_that(whole, is_of_pairs)].sum()) / all_us


# Of the padded share of a step's work, what batches of like length save: a training on 12 utterances, a batch of which
# 63 % was padding, took 11 to 40 % less with the longest one apart (torch 2.13, EPYC, one thread).
_BUCKETED = (0.15, 0.9)
_RECURRENT = frozenset({"aten::gru", "aten::lstm", "aten::rnn_tanh", "aten::rnn_relu"})


def ragged_batch(evidence: Evidence) -> Draft | None:
    """Finds rows of unlike length that are padded to the longest.

    Their sizes are those of ``pad_sequence``. Gain: the padded share of arithmetic, bytes and unmodelled work, where a
    recurrence runs as long as the longest row also of dispatching; from 15 to 90 % of it.
    """
    if evidence.recording is not None and evidence.recording.padding is not None:
        return None
    rows, work = rows_of_ops(evidence, (_PADS,)), work_of(evidence)
    batches = [_parts_of(work, signature) for signature in as_integers(evidence.linked.ops["signature"])[rows].tolist()]
    padded = math.fsum(len(lengths) * max(lengths, default=0) for lengths in batches)
    share = 1 - math.fsum(math.fsum(lengths) for lengths in batches) / padded if padded else 0.0
    is_recurrent = any(name in evidence.op_sums for name in _RECURRENT)
    accounts = (*_COMPUTED, *UNMODELLED_ACCOUNTS, *(ISSUE_ACCOUNTS if is_recurrent else ()))
    work_us = math.fsum(evidence.account_us(account) for account in accounts)
    low_us, high_us = (part * share * work_us for part in _BUCKETED)
    if share < _LEAST_PADDING or evidence.share_of_step(high_us) < _LEAST_PADDING:
        return None
    lengths = max(batches, key=lambda batch: len(batch) * max(batch, default=0))
    line = main_source(evidence, rows.tolist())
    return Draft(
        slug="padded-inputs",
        title="Rows of unlike length are padded to the longest",
        evidence=(
            f"{counted(len(lengths), 'row')} of {min(lengths)} to {max(lengths)} numbers make a batch of which "
            f"{format_share(share)} is padding{at_known(line)}",
            f"arithmetic, bytes{' and the calls of the recurrence' if is_recurrent else ''} take {format_us(work_us)} "
            "per step",
        ),
        advice=f"Batch rows of like length (bucketing){at_known(line)}: sort them by length, cut the order into "
        "batches, and draw the batches in random order."
        + (" A recurrence takes as many steps as its longest row has." if is_recurrent else ""),
        places=(line,),
        code="order = sorted(range(len(rows)), key=lambda row: len(rows[row]))\n"
        "batches = [order[start : start + size] for start in range(0, len(order), size)]  # shuffle these",
        gain_us=Interval(low_us, high_us),
        claims=claims_of(evidence, *accounts, most_us=high_us),
        removes=True,
        changes_results=True,
    )


def padding_not_known(evidence: Evidence) -> Draft | None:
    """Finds a step on rows of ids whose padding a trace does not show.

    Most of the step is computed on them. Without sizes, a mask that is made of the ids shows that there is padding.
    """
    if evidence.recording is not None and evidence.recording.padding is not None:
        return None
    if evidence.share_of_step(sum(evidence.group_us(group) for group in (*_COMPUTED, UNMODELLED))) < _MOSTLY:
        return None
    work = work_of(evidence)
    sizes_of_calls = [work.sizes_of(signature) for signature in np.unique(_embedded(evidence)).tolist()]
    rows = [sizes[1] for sizes in sizes_of_calls if len(sizes) > 1 and len(sizes[1]) == 2]
    large = [size for size in rows if size[0] >= _ROWS and size[1] >= _COLUMNS]
    if not large and (any(map(any, sizes_of_calls)) or not _masks_ids(evidence)):
        return None
    seen = (
        f"embeddings of {large[0][0]} x {large[0][1]} ids; a trace has no values"
        if large
        else "a mask is made of numbers beside aten::embedding, and masks what follows; a trace has no values"
    )
    return Draft(
        slug="padding-not-known",
        title="A part of the token ids may be padding",
        evidence=(seen,),
        advice=f"See how much of the token ids is padding: {record_again(evidence, '--inspect-padding')}. If rows are "
        "padded to a fixed length, pad each batch to its longest row only.",
        gain_reason="the values of the token ids are not recorded",
    )


# What compares ids with the one of padding, and what takes the mask that comes of it.
_COMPARES_IDS = frozenset({"aten::eq", "aten::ne"})
_TAKES_MASK = re.compile(
    r"^aten::(?:_masked_softmax|masked_fill_?|where|_?scaled_dot_product\w*|_transformer_encoder_layer_fwd)$"
)
_BESIDE = 4  # ops of the program between the look-up and the comparison


def _masks_ids(evidence: Evidence) -> bool:
    """True where ids are compared beside their look-up and masks follow."""
    top, ops = program_rows(evidence), evidence.linked.ops
    lookups, compared = (
        np.flatnonzero(text_matches(ops["name"], test)[top]) for test in (_EMBEDDING.search, _COMPARES_IDS.__contains__)
    )
    step = as_integers(ops["step"])[top]
    is_beside = any(((np.abs(lookups - at) <= _BESIDE) & (step[lookups] == step[at])).any() for at in compared.tolist())
    return is_beside and bool((text_matches(ops["name"], _TAKES_MASK.search) & ops_in_window(evidence)).any())


def _embedded(evidence: Evidence) -> Integers:
    """Signatures of the calls of embeddings in the window."""
    ops = evidence.linked.ops
    rows = np.flatnonzero(text_matches(ops["name"], _EMBEDDING.search) & ops_in_window(evidence))
    signatures = as_integers(ops["signature"])[rows]
    return np.asarray(signatures[signatures >= 0])


# Gates choose among so many experts at most; a choice among more is one of classes or of neighbours.
_MOST_EXPERTS, _LEAST_EXPERTS_SHARE = 512, 0.05


@requires_gain
def dense_experts(evidence: Evidence) -> Draft | None:
    """Finds a mixture of experts that runs all its experts on all tokens.

    A gate chooses the best k of E for each token, and products of all E on as many rows follow. Gain: the arithmetic of
    those that were not chosen, 1 - k / E; where the weights take the time, the part of the experts that no token chose.
    Half of it at least, since picking the rows of each expert takes time too. Silent where the experts are modules, of
    which more is known.
    """
    if runs_each_expert(evidence):
        return None
    work = work_of(evidence)
    products, spared, chosen = work.family("matmul"), np.zeros(work.us.size), list[tuple[int, int]]()
    gates = [(row, gate) for row in rows_of_ops(evidence, ("aten::topk",)).tolist() if (gate := _gate(work, row))]
    ends = [*(row for row, _ in gates), len(evidence.linked.ops)][1:]
    for (row, (tokens, experts, best)), end in zip(gates, ends, strict=True):
        places = np.flatnonzero(products & (work.op > row) & (work.op < end))
        mine = _of_experts(work, places, tokens, experts)
        if mine.size:
            left = np.where(work.bound("compute")[mine], best / experts, min(1.0, tokens * best / experts))
            spared[mine] = (1 - left) * work.us[mine]
            chosen.append((experts, best))
    if evidence.share_of_step(float(spared.sum())) < _LEAST_EXPERTS_SHARE:
        return None
    experts, best = max(chosen, key=chosen.count)
    rows = spared > 0
    return Draft(
        slug="dense-experts",
        title="All experts run on all tokens",
        evidence=(
            f"a gate chooses {best} of {counted(experts, 'expert')} for each token, and the products of all {experts} "
            f"run on all tokens: {format_per_step(evidence, work.us_of(rows))}",
            *work.describe(rows),
            *work.critical_path_note(spared),
        ),
        advice="Run each expert on the tokens that chose it: sort the tokens by expert, and multiply them in one "
        "grouped product.",
        gain_us=work.gain(spared / 2, spared),
        claims=work.claims(spared),
        code="order = chosen.flatten().argsort()  # chosen: the experts of each token\n"
        "ends = torch.bincount(chosen.flatten(), minlength=experts).cumsum(0, dtype=torch.int32)\n"
        "y = torch._grouped_mm(x[order // k], weights, offs=ends)  # else one product for the rows of each expert",
        confidence="low",
    )


def _gate(work: KernelWork, row: int) -> tuple[int, int, int] | None:
    """Returns tokens, experts, and how many each token chooses, of a topk.

    Null where it cannot choose experts.
    """
    signature = int(as_integers(work.evidence.linked.ops["signature"])[row])
    sizes, given = work.sizes_of(signature), work.text_column("concrete", signature)
    if not sizes or len(sizes[0]) < 2 or len(given) < 2 or not str(given[1]).isdecimal():
        return None
    tokens, experts, best = math.prod(sizes[0][:-1]), sizes[0][-1], int(str(given[1]))
    return (tokens, experts, best) if 0 < best < experts <= _MOST_EXPERTS and tokens else None


def _of_experts(work: KernelWork, places: Integers, tokens: int, experts: int) -> Integers:
    """Returns those of the products that all experts run on all tokens.

    Their weights widen a row and narrow it again, for each expert once, or for all at once in a batch.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for place in places.tolist():
        signature = int(work.signature[place])
        sizes = [size for size in work.sizes_of(signature) if len(size) >= 2]
        if len(sizes) < 2:
            continue
        given, weight = sizes[0], sizes[-1]
        rows = given[-2] if len(weight) == 3 else math.prod(given[:-1])
        if rows == tokens and (len(weight) == 2 or weight[0] == experts):
            groups.setdefault((weight[-2], weight[-1]), []).extend([place] * (experts if len(weight) == 3 else 1))
    wide = [(inner, outer) for inner, outer in groups if inner != outer and (outer, inner) in groups]
    whole = [key for key in wide if len(groups[key]) % experts == 0]
    return np.unique([place for key in whole for place in groups[key]]).astype(np.int64)


RULES = (no_kv_cache, padded_inputs, ragged_batch, padding_not_known, dense_experts)
