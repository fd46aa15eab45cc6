"""Rules of the host: waits, garbage collection, allocators and foreign work.

The foreign work does not belong to the step.
"""

import math
import re
from collections.abc import Sequence
from itertools import islice

import numpy as np

from bottleneck.advice.hot_lines import hottest_line
from bottleneck.advice.kernel_work import has_backward_pass
from bottleneck.advice.loop_lines import layer_lines
from bottleneck.advice.looped_functions import looped_function
from bottleneck.advice.parameter_loops import reading_loop
from bottleneck.advice.process_pools import SLEEPS, waits_beside_pools
from bottleneck.advice.quantities import (
    claims_of,
    format_count,
    format_gaps,
    format_per_step,
    idle_lines,
    idle_place,
    idle_rows,
    issue_us,
    line_at,
    op_calls_per_step,
    ops_in_window,
    optimizer_names,
    outermost_frames,
    outermost_ops,
    outermost_spans,
    outermost_us,
    record_again,
    rows_of_events,
    rows_of_ops,
    sources_of,
)
from bottleneck.advice.ranking import Draft, SourcedLine, Transformation, up_to
from bottleneck.advice.transfers import TRANSFER, copied_to_reduce, made_on_host, waits_in_copies
from bottleneck.schema.accounts import SILENCE, UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import IdleCause, Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, Floats, Integers, Spans, union
from bottleneck.schema.op_names import PYTHON_FRAME, at_known, at_source, place_of
from bottleneck.schema.request_waits import WAIT, serving_of
from bottleneck.schema.tables import WAITS, are_calls, text_matches
from bottleneck.units import counted, format_part, format_share, format_si, format_us

# Below so many tensors per step a step may also be warming up; frees are as many as allocations up to this share.
_FEW_TENSORS, _AS_MANY = 16, 0.2
_READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero")
# What a frame outside the model's own work is called: saving, logging, drawing, checking.
_SIDE_WORK = re.compile(
    r"> \w*(save|dump|write|print|log|flush|fsync|savefig|add_scalar|add_histogram|imwrite|to_csv|validate|evaluate)"
)
# The calls by which a program logs to a tracker of experiments.
_TRACKER = re.compile(
    r"^(?:\S*[/\\])?(?:wandb[/\\]sdk[/\\]wandb_run\.py\(\d+\): log\w*"
    r"|mlflow[/\\]tracking[/\\]fluent\.py\(\d+\): log_\w+"
    r"|(?:torch[/\\]utils[/\\]tensorboard|tensorboardX)[/\\]writer\.py\(\d+\): add_\w+)$"
)
# Frames that are how a step calls torch, and not work of their own.
_CALLS_TORCH = re.compile(
    r"> (run_backward|backward|_call_impl|_wrapped_call_impl|forward|step|wrapper|decorate_context)"
)
# Frames of training frameworks, and the calls of theirs that run the whole loop.
_FRAMEWORK = re.compile(
    r"(?:^|[/\\])(?:lightning|pytorch_lightning|transformers|trl|composer)[/\\](?:[^\n(]*[/\\])?trainer\w*\.py\(\d+\): "
)
_RUNS_LOOP = re.compile(r": (?:fit|train|validate|evaluate|test|predict)$")
_LEAST_SYNC, _LEAST_GC, _LEAST_SIDE, _LEAST_PYTHON = 0.005, 0.01, 0.02, 0.05
# Ops that call a library, which frees and allocates memory of its own.
_LIBRARY = re.compile(
    r"mm$|matmul|linear|conv|cudnn|miopen|attention|einsum|linalg|fft|cholesky|_solve|nccl|c10d|record_param_comms"
)
_ANY_OP = re.compile("")
# Ops that allocate, and do nothing else, wherever they are called.
_ALLOCATES = re.compile(r"^aten::(?:new_)?(?:empty\w*|resize_)$")
_LEAST_ALLOCATOR = 0.01
# A step without its sleep may wait for something else in its place: one that polled for work every 20 ms, for 90 % of
# its time, lost 70 % with an event in place of the sleep.
_SURE_OF_A_SLEEP = 0.75
# Where only a replay tells what waits are worth: it is off by up to 1.5 % (docs/explanation/simulator.md).
_LEAST_LATE = 0.02
_LONG_PAUSE_US, _LONG_STRETCH_US = 20e3, 1e3
# The frame of a garbage collection that the program calls; those that start by themselves have the name of their mark.
_COLLECTS = re.compile(r"(?:^|> )collect$")
# Another thread is busy from this part of a processor on; the step waits for it, and that is the first thing to say.
_BUSY, _LEAST_WAITED, _FIRST_WAITED, _MOST_THREADS = 0.2, 0.1, 0.1, 3
# Of the measured time of calls that the change removes: the rest is what takes their place.
_LEAST_REMOVED = 0.95
# Of the time that the device waits for the host, what waiting calls may be the reason of.
_SYNC_ACCOUNTS = ("overhead.sync", "overhead.dispatch", "overhead.python", "overhead.launch")


def host_sync(evidence: Evidence) -> Draft | None:
    """Finds waits of the host that leave the device idle (rule 7).

    The device waits for what the host would launch if it did not itself wait for the device. The gain is what a replay
    without the waits saves, never the calls' own length: a wait behind a busy device only moves. Where the steps cannot
    be replayed, it is the idle time during the waits. Waits in the calls of copies to the device are those of the rules
    of copies. Nor do waits at the end of a single step count, because nothing shows that another follows, which the
    device could begin with.
    """
    copying, calls = waits_in_copies(evidence)
    waited_us = max(evidence.idle_us("sync") - copying.get("overhead.sync", 0.0), 0.0)
    if evidence.is_host_only or evidence.is_broken or not evidence.analysis.totals.sync_count:
        return None
    change = Transformation(("remove sync",), accounts=_SYNC_ACCOUNTS)
    saved_us = None if evidence.predict is None else evidence.predict(evidence, change.changes)
    high_us = waited_us if saved_us is None else min(saved_us, evidence.account_us(*_SYNC_ACCOUNTS))
    if evidence.steps == 1 and not _launches_go_on(evidence):
        high_us = min(high_us, waited_us)
    is_late = evidence.share_of_step(waited_us) < _LEAST_SYNC
    if evidence.share_of_step(high_us) < (_LEAST_LATE if is_late else _LEAST_SYNC):
        return None
    advice, code = _without_waiting(evidence, calls)
    idles_us, when = (issue_us(evidence), "for launches that come late") if is_late else (waited_us, "during them")
    return Draft(
        slug="host-sync",
        title="The host waits for the device, and launches late for it"
        if is_late
        else "The device idles after the host waited for it",
        evidence=(
            f"{counted(format_count(evidence.analysis.totals.sync_count), 'waiting call')} per step; the device idles "
            f"{format_us(idles_us)} ({format_share(evidence.share_of_step(idles_us))}) {when}",
            *(() if saved_us is None else (f"a replay of the step without them takes {format_us(high_us)} less",)),
            *idle_lines(evidence, "sync"),
        ),
        advice=advice,
        brief=_SPLITS_IN_BRIEF.get(advice),
        code=code,
        gain_us=up_to(high_us),
        claims=claims_of(evidence, *_SYNC_ACCOUNTS, most_us=high_us),
        transformation=change,
        confidence="low" if is_late else "medium",
    )


def _launches_go_on(evidence: Evidence) -> bool:
    """True if the host launches kernels before and after most of its waiting.

    Else it mostly waits for the result of the step.
    """
    events = evidence.linked.trace.events
    start_us, dur_us = events["ts_us"].to_numpy(), events["dur_us"].to_numpy()
    launched_us, waits = start_us[_calls(evidence, "launch", "graph_launch")], _calls(evidence, *WAITS)
    low, high = launched_us.min(initial=np.inf), launched_us.max(initial=-np.inf)
    between = waits & (start_us > low) & (start_us < high)
    return bool(between.any() and 2 * dur_us[between].sum() > dur_us[waits].sum())


def _without_waiting(evidence: Evidence, others: Integers) -> tuple[str, str]:
    """Gives advice and code by the calls with most of the waiting.

    They are synchronize(), a gradient scaler, sizes of an exchange or of a choice, or other reads.
    """
    # Reading a value waits for a stream, or in a copy.
    waits, all_waits = _calls(evidence, *WAITS), _calls(evidence, "synchronise_device")
    waits[others] = False
    dur_us = evidence.linked.trace.events["dur_us"].to_numpy()
    if dur_us[all_waits].sum() > dur_us[waits].sum() / 2:
        return (
            "Take torch.cuda.synchronize() out of the loop; to time steps, use torch.cuda.Event.",
            "event = torch.cuda.Event(enable_timing=True); event.record()  # read the times after the loop",
        )
    start = evidence.linked.trace.events["ts_us"].to_numpy()[waits]
    if dur_us[waits][_scaler_reads(evidence).hold(start)].sum() > dur_us[waits].sum() / 2:
        return _WITH_SCALER
    if dur_us[waits][_reads_splits(evidence, start)].sum() > dur_us[waits].sum() / 2:
        of_data = outermost_spans(evidence, _EXCHANGE_MARK).hold(start)
        return _SPLITS_EARLIER if dur_us[waits][of_data].sum() > dur_us[waits].sum() / 2 else _SPLITS_FIXED
    if dur_us[waits][outermost_spans(evidence, _CHOOSES).hold(start)].sum() > dur_us[waits].sum() / 2:
        return _WITHOUT_CHOICES
    return _VALUES_LATER if has_backward_pass(evidence) or optimizer_names(evidence) else _RESULTS_LATER


_VALUES_LATER = (
    "Keep on the device what .item(), .cpu() or nonzero() reads in each step, and read it every so many steps or "
    "one step later.",
    "losses.append(loss.detach())  # and, every 100 steps: torch.stack(losses).mean().item()",
)
_RESULTS_LATER = (
    "Keep on the device what .item() or .cpu() reads, and copy it back without waiting while the next input is "
    "computed.",
    'result, copied = output.to("cpu", non_blocking=True), torch.cuda.Event()\n'
    "copied.record()  # and copied.synchronize() before result is read",
)
# Ops whose result is as large as the data says: the host waits for its size before it can launch what follows.
_CHOOSES = re.compile(r"^aten::(?:nonzero|masked_select|repeat_interleave|_?unique\w*)$")
_WITHOUT_CHOICES = (
    "Boolean masks and nonzero() make tensors whose sizes the host has to wait for: keep the full size and mask it, or "
    "take a fixed number of elements.",
    "kept = torch.where(mask, values, 0)  # in place of values[mask]; or values.topk(100).values",
)


# GradScaler reads whether a gradient overflowed before it calls the optimizer, unless that looks for itself.
_UNSCALES, _READS_FLAG = "aten::_amp_foreach_non_finite_check_and_unscale_", "aten::item"
_SCALER_FRAME = re.compile(r"grad_scaler\.py\(\d+\): _maybe_opt_step$")
_WITH_SCALER = (
    "The gradient scaler reads whether a gradient overflowed before each optimizer step. A fused optimizer looks "
    "on the device; under bf16 autocast no scaler is needed.",
    "optimizer = torch.optim.AdamW(parameters, fused=True)  # scaler.step(optimizer) then reads nothing\n"
    'with torch.autocast("cuda", dtype=torch.bfloat16):  # or this, without GradScaler',
)


# Marks of TorchRec around the exchange of a batch ('## all2all_data:lengths ##', '## sparse_data_dist ##'), and the ops
# of other exchanges, by so many of which a read of their sizes comes before them at most.
_EXCHANGE_MARK = re.compile(r"^(?!nccl:|c10d::).*(?:all_?(?:2|to)_?all|sparse_data_dist)", re.IGNORECASE)
_EXCHANGE = re.compile(r"^(?:c10d|_c10d_functional)::all_?to_?all")
_OPS_BEFORE_EXCHANGE = 40
_EXCHANGED = r"(?i)all_?to_?all"
# Sizes are integers of 8 bytes, one or two for each of up to 256 ranks. A loss has 2 or 4 bytes.
_SPLITS_BYTES = (8, 4096)
_SPLITS_EARLIER = (
    "What the host reads there are the sizes (splits) of an all-to-all: start that exchange a batch earlier, so that "
    "they are on the host when it needs them, or fix the sizes (a capacity per rank), so that nothing is read.",
    "pipeline = PrefetchTrainPipelineSparseDist(model, optimizer, device)  # TorchRec: exchanges a batch earlier",
)
# A router inside the model makes its sizes just before they are needed: nothing can be read earlier.
_SPLITS_FIXED = (
    "What the host reads there are the sizes (splits) of an all-to-all: fix them (a capacity per expert and rank, what "
    "is beyond it dropped or padded), so that nothing is read; or exchange by sizes that stay on the device. Only "
    "where they come from the data, and not from this layer's router, can the exchange start a batch earlier.",
    "capacity = ceil(1.25 * tokens / ranks)  # of each rank: the same splits in each step, known to the host",
)


_SPLITS_IN_BRIEF = {
    _SPLITS_EARLIER[
        0
    ]: "Start the next batch's all-to-all during this batch: the host waits for the sizes of its parts",
    _SPLITS_FIXED[0]: "Fix the sizes of the all-to-all that the host reads (a capacity per expert)",
}


def _reads_splits(evidence: Evidence, at_us: Floats) -> Flags:
    """Marks waits inside the mark of an exchange, or shortly before its op.

    Without recorded ops launches take their place, and what is read has to be as small as a list of sizes.
    """
    ops = evidence.linked.ops
    start, is_exchange = ops["ts_us"].to_numpy(), text_matches(ops["name"], _EXCHANGE.search)
    is_read = np.ones(at_us.size, dtype=bool)
    if ops.empty:
        kernels, sent = evidence.linked.kernels, evidence.linked.trace.device_args
        exchanging = sent["event"][sent["collective"].astype(object).str.contains(_EXCHANGED, na=False)]
        start, is_exchange = kernels["launch_ts_us"].to_numpy(), kernels["event"].isin(exchanging).to_numpy()
        is_read = _follow_small_reads(evidence, at_us)
    exchanges, start = np.sort(start[is_exchange & np.isfinite(start)]), np.sort(start)
    following = np.append(exchanges, np.inf)[np.searchsorted(exchanges, at_us)]
    between = np.searchsorted(start, following) - np.searchsorted(start, at_us)
    is_before = np.isfinite(following) & (between <= _OPS_BEFORE_EXCHANGE) & is_read
    return np.asarray(is_before | outermost_spans(evidence, _EXCHANGE_MARK).hold(at_us))


def _follow_small_reads(evidence: Evidence, at_us: Floats) -> Flags:
    """Marks waits that end a small copy to the host.

    It is as small as the sizes of an exchange.
    """
    kernels = evidence.linked.kernels
    reads = kernels[((kernels["copy_way"] == "to_host") & kernels["launch_ts_us"].notna()).to_numpy()]
    reads = reads.sort_values("launch_ts_us", kind="stable")
    nbytes = np.append(reads["bytes"].to_numpy(dtype=np.float64, na_value=np.nan), np.nan)
    last = nbytes[np.searchsorted(reads["launch_ts_us"].to_numpy(), at_us, side="right") - 1]
    return np.asarray((last >= _SPLITS_BYTES[0]) & (last <= _SPLITS_BYTES[1]))


def _scaler_reads(evidence: Evidence) -> Spans:
    """Gives the reads of GradScaler before an optimizer step.

    They are found by its frames, else as those that follow a check for overflow.
    """
    if _UNSCALES not in evidence.op_sums:
        return union(np.zeros(0), np.zeros(0))
    frames = outermost_frames(evidence, _SCALER_FRAME)
    if frames.start.size:
        return frames
    ops = evidence.linked.ops
    rows = np.flatnonzero(ops_in_window(evidence) & (ops["depth"] == 0).to_numpy())
    names = ops["name"].astype(object).to_numpy()[rows]
    read = names == _READS_FLAG
    before = np.maximum.accumulate(np.where(read, -1, np.arange(rows.size)))
    after_check = rows[read & (before >= 0) & (names[np.maximum(before, 0)] == _UNSCALES)]
    start = ops["ts_us"].to_numpy()[after_check]
    return union(start, start + ops["dur_us"].to_numpy()[after_check])


def _calls(evidence: Evidence, *kinds: str) -> Flags:
    """Masks the rows of EVENTS that are runtime calls of these kinds.

    They lie in the window.
    """
    start, (low, high) = evidence.linked.trace.events["ts_us"].to_numpy(), evidence.linked.window.host_us
    return are_calls(evidence.linked.trace, *kinds) & (start >= low) & (start < high)


def item_calls(evidence: Evidence) -> Draft | None:
    """Finds reads of numbers on a CPU (rule 7).

    Nothing runs ahead there, so that reading a number costs its ops, and no more. Silent where all reads are those of
    logging every parameter, or of one loop.
    """
    if not evidence.is_host_only:
        return None
    calls = op_calls_per_step(evidence, "aten::item") or op_calls_per_step(evidence, "aten::_local_scalar_dense")
    spent_us = outermost_us(evidence, *_READS)
    if calls < 1 or evidence.share_of_step(spent_us) < _LEAST_SIDE:
        return None
    lines = sources_of(evidence, rows_of_ops(evidence, _READS))
    logged, looped = reading_loop(evidence), looped_function(evidence)
    covered = {*(() if logged is None else logged.lines), *(() if looped is None else looped.sources)}
    if lines and set(lines) <= covered:
        return None
    return Draft(
        slug="item-calls",
        title="Single numbers are read out of tensors in the step",
        evidence=(
            f"{format_count(calls)} reads per step take {format_us(spent_us)} "
            f"({format_share(evidence.share_of_step(spent_us))})" + (f", at {', '.join(lines)}" if lines else ""),
        ),
        advice="Collect the values as tensors and read them together, every so many steps.",
        places=tuple(lines),
        code="totals += torch.stack([mean, std, largest])  # and, every 100 steps: totals.tolist()",
        gain_us=up_to(spent_us),
        claims=claims_of(evidence, "overhead.dispatch", "overhead.launch_floor", "overhead.python", most_us=spent_us),
    )


def gc_pauses(evidence: Evidence) -> Draft | None:
    """Finds Python's garbage collector in the step (rule 9).

    It runs while the device (or the step's thread) waits. Where the program calls it, the gain is what it takes. Where
    it starts by itself, it is at least half of that.
    """
    spent_us, rows = evidence.account_us("overhead.gc"), idle_rows(evidence, "gc")
    longest_us = max((row.us / row.calls for row in rows if row.calls > 0), default=0.0)
    if evidence.share_of_step(spent_us) < _LEAST_GC and longest_us < _LONG_PAUSE_US:
        return None
    called = [row for row in rows if _COLLECTS.search(row.detail or "")]
    called_us = math.fsum(row.us for row in called)
    words = (
        f"{format_per_step(evidence, spent_us)}; a pause lasts {format_us(longest_us)}",
        *idle_lines(evidence, "gc"),
    )
    if 2 * called_us > spent_us:
        return Draft(
            slug="gc-pauses",
            title="The step calls Python's garbage collector",
            evidence=words,
            advice=f"Take gc.collect() {at_source(called[0].source)} out of the step.",
            places=(called[0].source,),
            code="if number % 1000 == 0:\n    gc.collect()  # or once an epoch; before it once: gc.freeze()",
            gain_us=Interval(_LEAST_REMOVED * called_us, spent_us),
            claims=claims_of(evidence, "overhead.gc"),
            tries=("gc-freeze",),
            confidence="high",
            removes=True,
        )
    return Draft(
        slug="gc-pauses",
        title="Python's garbage collector stops the step",
        evidence=words,
        advice="Freeze what lives for good after the first steps, and collect between epochs.",
        code="gc.collect(); gc.freeze()  # after warming up; gc.disable() and gc.collect() every 1000 steps go further",
        gain_us=up_to(spent_us),
        claims=claims_of(evidence, "overhead.gc"),
        tries=("gc-freeze",),
        transformation=Transformation(("remove gc",)),
    )


_EMPTIES = re.compile(r"torch[/\\]cuda[/\\]memory\.py\(\d+\): empty_cache$")


def device_allocations(evidence: Evidence) -> Draft | None:
    """Finds device memory that steps take from the driver (rule 10).

    They may also give it back. The steps should reuse what they have.
    """
    waited_us = evidence.idle_us("allocator")
    calls = int(np.count_nonzero(_calls(evidence, "allocate", "free", "map"))) / evidence.steps
    if evidence.is_host_only or not calls or evidence.share_of_step(waited_us) < _LEAST_ALLOCATOR:
        return None
    if _is_uncached(evidence):
        return None
    emptied = outermost_frames(evidence, _EMPTIES)
    line = line_at(evidence, float(emptied.start[0])) if emptied.start.size >= evidence.steps else None
    freed = 0 if emptied.start.size else _freed_for_room(evidence)
    keep = "Let the caching allocator keep its memory: no empty_cache() in the loop, and segments that can grow."
    may_be_first = evidence.steps == 1 and not freed and not emptied.start.size
    return Draft(
        slug="device-allocations",
        title="The driver allocates device memory during the step",
        evidence=(
            f"{counted(format_count(calls), 'call')} of the driver's allocator per step; the device idles "
            f"{format_us(waited_us)} ({format_share(evidence.share_of_step(waited_us))}) for them",
            *(
                [f"{counted(format_count(emptied.start.size / evidence.steps), 'call')} of empty_cache() per step"]
                if emptied.start.size
                else []
            ),
            *([f"{counted(freed, 'free')} in ops that make a tensor: the device's memory was full"] if freed else []),
            *idle_lines(evidence, "allocator"),
        ),
        advice="Need less memory in a step (fewer samples, recomputed activations, no references that outlive it), and "
        "let segments grow: the memory was full, so that the allocator gave its cache back to make room."
        if freed
        else f"Record later steps to see whether they allocate too: the first of a size always does. If so: {keep}"
        if may_be_first
        else keep
        if line is None
        else f"Take torch.cuda.empty_cache() {at_source(line)} out of the step: what it gives back is taken again.",
        brief="The memory was full: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and use less memory in a step"
        if freed
        else None,
        places=(line,),
        code="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        if line is None
        else "if number % 1000 == 0:\n    torch.cuda.empty_cache()  # or not at all: it makes no room for your tensors",
        gain_us=Interval(0.0, waited_us) if may_be_first else up_to(waited_us),
        claims=claims_of(evidence, "overhead.allocator"),
        confidence="medium" if evidence.steps > 1 else "low",
        asks_again=may_be_first,
    )


def _freed_for_room(evidence: Evidence) -> int:
    """Counts frees by the driver inside of ops that make their result.

    The caching allocator gives all that it keeps back when the driver has no memory left, and then asks again. One
    alone may be a library's.
    """
    at_us = evidence.linked.trace.events["ts_us"].to_numpy()[_calls(evidence, "free")]
    holds = {pattern: outermost_ops(evidence, pattern).hold(at_us) for pattern in (_ANY_OP, _LIBRARY, _ALLOCATES)}
    freed = int(np.count_nonzero(holds[_ALLOCATES] | (holds[_ANY_OP] & ~holds[_LIBRARY])))
    return freed if freed > 1 else 0


def caching_allocator_off(evidence: Evidence) -> Draft | None:
    """Finds a program without the caching allocator (rule 10).

    Every tensor is then allocated and freed by the driver.
    """
    waited_us = evidence.idle_us("allocator")
    if not _is_uncached(evidence) or evidence.share_of_step(waited_us) < _LEAST_ALLOCATOR:
        return None
    taken, freed = _driver_calls(evidence)
    return Draft(
        slug="caching-allocator-off",
        title="The caching allocator is switched off",
        evidence=(
            f"{counted(format_count(taken), 'allocation')} and {counted(format_count(freed), 'free')} by the driver "
            f"per step, for {counted(format_count(evidence.kernels_per_step), 'kernel')}: about one of each per tensor",
            f"the device idles {format_per_step(evidence, waited_us)} for them",
            *idle_lines(evidence, "allocator"),
        ),
        advice="Let PyTorch keep freed memory: no PYTORCH_NO_CUDA_MEMORY_CACHING, no other allocator in its place.",
        code="env -u PYTORCH_NO_CUDA_MEMORY_CACHING -u PYTORCH_NO_HIP_MEMORY_CACHING python train.py",
        gain_us=Interval(0.8 * waited_us, waited_us),
        claims=claims_of(evidence, "overhead.allocator"),
    )


def _is_uncached(evidence: Evidence) -> bool:
    """True if the driver allocates for every third kernel or more.

    It frees as often, which no cache of memory does.
    """
    taken, freed = _driver_calls(evidence)
    few = max(_FEW_TENSORS, evidence.kernels_per_step / 3)
    return not evidence.is_host_only and taken >= few and abs(taken - freed) <= _AS_MANY * taken


@remembered
def _driver_calls(evidence: Evidence) -> tuple[float, float]:
    """Allocations and frees of device memory by the driver, per step."""
    counts = [int(np.count_nonzero(_calls(evidence, kind))) for kind in ("allocate", "free")]
    return counts[0] / evidence.steps, counts[1] / evidence.steps


# Of the step, while the device waits for ops of the CPU; and of them, what is left where the device runs them.
_LEAST_ON_HOST, _LEFT_ON_DEVICE = 0.05, 0.2
_COPYING = re.compile(r"^aten::(?:copy_|_to_copy|to)$")


def computed_on_host(evidence: Evidence) -> Draft | None:
    """Finds ops that compute on the CPU while the device waits.

    Ops that make a batch there belong to another rule. Gain: 80 % of the wait to all of it, and the copies of what such
    an op reduces, less what those of its result take.
    """
    if evidence.is_host_only or made_on_host(evidence) is not None:
        return None
    rows = [row for row in idle_rows(evidence, "host_compute") if row.detail and not _COPYING.match(row.detail)]
    spent_us = math.fsum(row.us for row in rows)
    if evidence.share_of_step(spent_us) < _LEAST_ON_HOST:
        return None
    name = rows[0].detail or ""
    place = at_known(rows[0].source)
    gain, claims = Interval((1 - _LEFT_ON_DEVICE) * spent_us, spent_us), ["overhead.host_compute"]
    copied, words = copied_to_reduce(evidence, name), list[str]()
    if copied is not None:
        moved, spared_us = copied
        gain, claims = Interval(gain.low + spared_us.low, gain.high + spared_us.high), [*claims, TRANSFER]
        words.append(
            f"the copies of what it reads ({format_si(moved, 'B')}) take {format_per_step(evidence, spared_us.high)}"
        )
    return Draft(
        slug="computed-on-host",
        title=f"{name} computes on the CPU while the device waits",
        evidence=(format_per_step(evidence, spent_us), *words, *_places(rows)),
        advice=f"Run {name}{place} on the device, before its input is copied to the host, and copy the result alone, "
        "which is smaller as a rule.",
        brief=f"Run {name}{place} on the device, and copy its result alone to the host",
        places=(rows[0].source,),
        code="result = logits.argmax(1).to(torch.uint8).cpu()  # in place of logits.cpu().argmax(1)",
        gain_us=gain,
        claims=claims_of(evidence, *claims, most_us=gain.high),
        waits=tuple(rows),
    )


def side_work(evidence: Evidence) -> Draft | None:
    """Finds saving, logging, printing or checking in the step (rule 14).

    The device waits meanwhile.
    """
    rows = [row for row in idle_rows(evidence, "python", "sync", "dispatch") if _SIDE_WORK.search(row.detail or "")]
    tracked_us, tracker = _tracker_us(evidence)
    spent_us = sum(row.us for row in rows) + tracked_us
    if evidence.share_of_step(spent_us) < _LEAST_SIDE:
        return None
    return Draft(
        slug="side-work",
        title="The step also saves, logs or checks",
        evidence=(
            format_per_step(evidence, spent_us),
            *([SourcedLine(f"{tracker}: {format_us(tracked_us)}", tracker)] if tracked_us else []),
            *_places(rows),
            *_sampled(evidence, rows),
        ),
        advice=f"Do what runs {_hottest(evidence, rows[0].source)} less often, or in another thread, on a copy."
        if rows and rows[0].source is not None
        else "Do it less often, or in another thread, on a copy.",
        places=(_hottest_source(evidence, rows[0].source),) if rows else (),
        code="if number % 100 == 0:\n    executor.submit(torch.save, snapshot, path)  # a ThreadPoolExecutor(1)",
        gain_us=up_to(spent_us),
        most_us=spent_us,
        claims=claims_of(
            evidence,
            *dict.fromkeys([*(f"overhead.{row.cause}" for row in rows), *(["overhead.python"] if tracked_us else [])]),
            most_us=spent_us,
        ),
        waits=tuple(rows),
    )


def _tracker_us(evidence: Evidence) -> tuple[float, str]:
    """Gives the time per step in calls of an experiment tracker.

    The second result is the place of the first such function, as path:line. The time is that of a step on a CPU, else
    0, since on a device such calls may run while it works.
    """
    events = evidence.linked.trace.events
    calls = outermost_frames(evidence, _TRACKER)
    if not evidence.is_host_only or not calls.start.size:
        return 0.0, ""
    first = PYTHON_FRAME.match(str(events["name"].iloc[rows_of_events(evidence, _TRACKER)[0]]))
    assert first is not None, "the pattern matches frames"
    spent_us = calls.total() / evidence.steps * evidence.host_scale
    return spent_us, f"{first['path'].replace(chr(92), '/')}:{first['line']}"


_LONG_PLACE = 30  # characters of a function's name in a title that counts other places too
# Of the time of all calls: with less the first place does not stand for them.
_MOST_OF_CALLS = 0.9
# Of the step: less that is nowhere is no reason to record it again.
_LEAST_UNPLACED = 0.2
# Of the step: with more at no known line, the recording does not show what holds the step back.
_MOSTLY_SILENT = 0.5


_FREES = re.compile(r"\bzero_grad\(")


def _freeing_lines(evidence: Evidence) -> frozenset[str]:
    """Returns lines that give memory back to the system.

    The time there is not Python's.
    """
    texts = evidence.source_texts
    return frozenset(line for line, text in texts.items() if _FREES.search(text))


def python_call(evidence: Evidence) -> Draft | None:
    """Finds any other long stretch of Python in the step.

    The step stays there for a millisecond or more, or in a function that is named. A loop that reads in each round is
    another rule's. Where nothing tells what runs there, it asks for a recording that does, which gains nothing.
    """
    looped = looped_function(evidence)
    # The layers of a network are its work, wherever a busy machine held them up. Dropping gradients is no Python.
    covered = (
        (frozenset[str]() if looped is None else looped.sources) | layer_lines(evidence) | _freeing_lines(evidence)
    )
    rows = [row for row in idle_rows(evidence, "python") if _is_call(row) and row.source not in covered]
    unplaced, rows = [row for row in rows if row.source is None], [row for row in rows if row.source is not None]
    spent_us, silent_us = (math.fsum(row.us for row in some) for some in (rows, unplaced))
    if evidence.share_of_step(spent_us) < _LEAST_PYTHON or evidence.share_of_step(silent_us) >= _MOSTLY_SILENT:
        return _unplaced_python(evidence, unplaced, silent_us)
    place = place_of(rows[0].source or "")
    is_framework = place is not None and place[:2] in _framework_lines(evidence)
    others = _count_other_places(rows)
    where = f"{_hottest(evidence, rows[0].source)}{_and_others(others)}"
    # In the first lines, which have little room.
    below = f" and {counted(others, 'other')} (below)" if others else ""
    brief = f"{_hottest(evidence, rows[0].source)}{below}"
    return Draft(
        slug="python-call",
        title="The framework's own loop takes a part of each step"
        if is_framework
        else _python_title(evidence, rows[0].source, spent_us, others),
        evidence=(
            format_per_step(evidence, spent_us),
            *_places(rows),
            *_sampled(evidence, rows),
        ),
        advice=(
            "Let the framework do less in each step: fewer callbacks, log lines and progress updates."
            if is_framework
            else f"Do what runs {where} for the whole batch at once, with fewer and "
            "larger ops, in place of Python for each item."
            if _runs_ops(evidence, rows[0].source)
            else f"Take what runs {where} out of the step: compute it once and keep it "
            "(beforehand, or by functools.cache, where the same inputs come again), or do it for the whole "
            "batch at once with NumPy or torch, in place of Python for each item."
        ),
        brief=None if is_framework else f"Take what runs {brief} out of the step, or do it once per batch",
        places=(_hottest_source(evidence, rows[0].source),),
        code="trainer = Trainer(enable_progress_bar=False, log_every_n_steps=100)  # Lightning; others: logging_steps"
        if is_framework
        else None,
        gain_us=up_to(spent_us),
        claims=claims_of(evidence, "overhead.python", most_us=spent_us),
        waits=tuple(rows),
        cannot_lose=not is_framework,
    )


def _unplaced_python(evidence: Evidence, rows: Sequence[IdleCause], spent_us: float) -> Draft | None:
    """Asks for a recording that tells what runs in long stretches of Python.

    In a trace of a CPU without Python calls the short ones are no better known.
    """
    asked, asked_us = rows, spent_us
    if evidence.is_host_only and evidence.linked.places is None and evidence.recording is None:
        asked = [row for row in idle_rows(evidence, "python") if row.source is None]
        asked_us = math.fsum(row.us for row in asked)
    if evidence.share_of_step(asked_us) < _LEAST_UNPLACED:
        return None
    advice, brief = _recording_that_tells(evidence, is_once=evidence.steps == 1 and asked[0].detail == SILENCE)
    return Draft(
        slug="python-call",
        title=_python_title(evidence, None, asked_us, 0),
        evidence=(format_per_step(evidence, asked_us), *_places(asked)),
        advice=advice,
        brief=brief,
        gain_reason="the trace does not show what runs there",
        # Of a rank that the others wait for, what it does in that time is the second question.
        comes_first=evidence.share_of_step(spent_us) >= _MOSTLY_SILENT and not evidence.straggler,
        claims=claims_of(evidence, "overhead.python", most_us=asked_us),
        waits=tuple(asked),
    )


def _recording_that_tells(evidence: Evidence, *, is_once: bool) -> tuple[str, str]:
    """Words the recording that names what runs there, at length and in short."""
    is_start = evidence.recording is not None and evidence.recording.step_source == "whole program"
    if is_start and evidence.linked.places is None:
        more = "Let the program run for more steps, or mark where each ends with bottleneck.step()"
        return f"{more}: steps after warm-up are recorded with Python calls, the start of the program is not.", more
    if is_once and evidence.recording is None:
        return (
            "Record several steps after warm-up, with Python calls (profile(with_stack=True)): nothing tells whether "
            "later steps wait as this one does.",
            "Record several steps after warm-up, with Python calls: profile(with_stack=True)",
        )
    if evidence.linked.places is not None:
        again = "Record it again while nothing else runs"
        return (
            f"{again}: the Python calls that were recorded tell no line there. A process without its processor leaves "
            "no event, nor does waiting inside a library.",
            again,
        )
    if evidence.recording is not None:
        command = record_again(evidence, "--stacks")
        return f"Record Python calls to see what the host does there: {command}.", f"Record Python calls: {command}"
    return (
        "Record with Python calls (profile(with_stack=True)) to see what the host does there, then take that out of "
        "the step.",
        "Record with Python calls to see what to take out of the step: profile(with_stack=True)",
    )


def _runs_ops(evidence: Evidence, source: str | None) -> bool:
    """True for a function that runs ops itself.

    Its arguments are tensors, which differ from call to call.
    """
    place = place_of(source or "")
    is_function = place is not None and place.is_function
    return is_function and any(fold.name == source and fold.calls > 0 for fold in evidence.analysis.lines)


def _count_other_places(rows: Sequence[IdleCause]) -> int:
    """Counts the places that the time is at beside the first.

    None where that place holds most of it.
    """
    first_us = math.fsum(row.us for row in rows if row.source == rows[0].source)
    if first_us >= _MOST_OF_CALLS * math.fsum(row.us for row in rows):
        return 0
    return len({row.source for row in rows}) - 1


def _and_others(count: int) -> str:
    return f" and in {counted(count, 'other place')}" if count else ""


def _python_title(evidence: Evidence, source: str | None, us: float, others: int) -> str:
    """Gives the title of a finding on Python in the step.

    It is 'Python in encode() takes 62 of 100 ms per step'. It names the function as far as that is known, and counts
    the ``others``. Beside others a long name stands in the advice alone.
    """
    line = hottest_line(evidence, source, "python")
    named = "" if line is None else line.named[-1]
    place = f"in {named.partition(' (')[0]}" if "() (" in named else at_source(source) if source else "between ops"
    if others and len(place) > _LONG_PLACE:
        return f"Python in {counted(others + 1, 'place')} takes {format_part(us, evidence.step_us)} per step"
    return f"Python {place}{_and_others(others)} takes {format_part(us, evidence.step_us)} per step"


def _hottest(evidence: Evidence, source: str | None) -> str:
    """Gives 'at train.py:35 (`text`)', the line with most of the time.

    It is at this source, as far as it is known.
    """
    line = hottest_line(evidence, source, "python")
    return at_source(source) if line is None else line.where()


def _hottest_source(evidence: Evidence, source: str | None) -> str | None:
    """Gives the line that ``_hottest`` names."""
    line = hottest_line(evidence, source, "python")
    return source if line is None else line.source


def _sampled(evidence: Evidence, rows: Sequence[IdleCause]) -> tuple[str, ...]:
    """Gives words on the samples of the first row's hottest line."""
    line = hottest_line(evidence, rows[0].source, "python") if rows else None
    words = None if line is None else line.sampled()
    return () if words is None else (words,)


@remembered
def _framework_lines(evidence: Evidence) -> frozenset[tuple[str, int]]:
    """Gives files and lines of a training framework's trainer.

    Those of the program's frames around its loop are included.
    """
    events = evidence.linked.trace.events
    names = events["name"]
    is_theirs = text_matches(names, _FRAMEWORK.search, 1200)
    loops = np.flatnonzero(is_theirs & text_matches(names, _RUNS_LOOP.search))
    chosen = is_theirs.copy()
    start, thread = events["ts_us"].to_numpy(), events["thread"].cat.codes.to_numpy()
    end, is_frame = start + events["dur_us"].to_numpy(), events["category"].isin(("python", "line")).to_numpy()
    for row in loops[:1].tolist():
        chosen |= is_frame & (thread == thread[row]) & (start <= start[row]) & (end >= end[row])
    matches = (PYTHON_FRAME.match(str(name)) for name in names[chosen].unique())
    places = ((match["path"].replace("\\", "/"), match["line"]) for match in matches if match)
    return frozenset((path.rpartition("/")[2], int(line)) for path, line in places)


# What a wait is for, by the name of the call: the work of another process.
_FOR_A_PROCESS = re.compile(r"subprocess|^wait(?:pid|4|id)?$|multiprocessing")


def sleeping(evidence: Evidence) -> Draft | None:
    """Finds a step that sleeps, a call that does nothing.

    Nearly all of it can be gained.
    """
    rows = [row for row in _waits(evidence) if SLEEPS.match(row.detail or "")]
    slept_us = sum(row.us for row in rows)
    if evidence.share_of_step(slept_us) < _LEAST_SIDE:
        return None
    where = at_source(rows[0].source)
    return Draft(
        slug="step-sleeps",
        title="The step sleeps",
        evidence=(format_per_step(evidence, slept_us), *_places(rows)),
        advice=f"Remove the sleep {where}, or wait for an event or a queue in its place. What it waits for may "
        "not be there sooner.",
        brief=f"Remove the sleep {where}, or wait for an event or a queue in its place",
        places=(rows[0].source,),
        gain_us=Interval(_SURE_OF_A_SLEEP * slept_us, slept_us),
        claims=claims_of(evidence, WAIT, most_us=slept_us),
        waits=tuple(rows),
        transformation=Transformation(("remove host:wait",)),
    )


def waiting(evidence: Evidence) -> Draft | None:
    """Finds a step that waits for a lock, queue, process or socket.

    The work that it waits for has to be done at other times.
    """
    rows = list(waits_beside_pools(evidence))
    spent_us = sum(row.us for row in rows)
    if evidence.share_of_step(spent_us) < _LEAST_SIDE:
        return None
    where = at_source(rows[0].source)
    return Draft(
        slug="step-waits",
        title="The step waits for another thread or process",
        evidence=(format_per_step(evidence, spent_us), *_places(rows)),
        advice=f"Start the process that the step waits for {where} earlier, and read its result one step later."
        if _FOR_A_PROCESS.search(rows[0].detail or "")
        else "Do at once for the whole batch (NumPy, torch), or in processes, what threads do for which the step waits "
        f"{where}, and make the pool once, before the loop: of the threads of Python one computes at a time."
        if _GIVES_TO_THREADS.search(evidence.source_texts.get(rows[0].source or "", ""))
        else f"Begin the work that the step waits for {where} earlier, or give it more threads.",
        places=(rows[0].source,),
        gain_us=up_to(spent_us),
        claims=claims_of(evidence, WAIT, most_us=spent_us),
        waits=tuple(rows),
        transformation=Transformation(("remove host:wait",)),
    )


_GIVES_TO_THREADS = re.compile(r"ThreadPool|\.(?:map|submit|result|apply_async|imap\w*|starmap|join|shutdown)\(")


def other_threads(evidence: Evidence) -> Draft | None:
    """Finds another Python thread that holds the interpreter while computing.

    The thread of the steps waits for it. On a CPU, where a backward pass runs in the thread that calls it. The
    processor time of the threads while unprofiled steps ran shows it: in the rest of that time, less the waits that the
    trace explains, the steps waited for the interpreter. Gain: from half of that time to all, with what they waited for
    a processor, and no more than those threads ran.
    """
    usage = None if evidence.recording is None else evidence.recording.other_threads
    if usage is None or not evidence.is_host_only:
        return None
    busy = [thread for thread in usage.threads if thread.cpu_share >= _BUSY]
    explained_us = evidence.idle_us("input", "sync", "wait", "sleep") + evidence.group_us("communication")
    computed = math.fsum(busy_thread.cpu_share for busy_thread in busy)
    waited = min(usage.waiting_share - evidence.share_of_step(explained_us), computed)
    if not busy or waited < _LEAST_WAITED:
        return None
    most_us, first = min(waited + usage.queued_share, computed) * evidence.step_us, busy[0]
    computing = (
        f"{busy_thread.function}() at {busy_thread.source}: {format_share(busy_thread.cpu_share)} of a processor"
        for busy_thread in busy
    )
    return Draft(
        slug="other-threads",
        title="Another Python thread holds the interpreter, and the step waits for it",
        evidence=(
            f"while unprofiled steps ran, their thread computed {format_share(usage.cpu_share)} of the time and waited "
            f"{format_share(waited)} of it for the interpreter, which one thread has at a time",
            *islice(computing, _MOST_THREADS),
        ),
        advice=f"Let {first.function}() (at {first.source}) wait for an Event or a Queue instead of looking again and "
        "again, or run it in a process of its own.",
        code="item = queue.get()  # a queue.Queue: waits without holding the interpreter",
        gain_us=Interval(waited * evidence.step_us / 2, most_us),
        claims=claims_of(
            evidence, "overhead.unknown", "overhead.python", "overhead.dispatch", "overhead.launch_floor", "memory",
            "compute", *UNMODELLED_ACCOUNTS, most_us=most_us,
        ),
        comes_first=waited / 2 >= _FIRST_WAITED,
    )  # fmt: skip


def _waits(evidence: Evidence) -> tuple[IdleCause, ...]:
    """Gives the waits that the program can end, longest first.

    Those of a server for requests do not count.
    """
    return () if serving_of(evidence) is not None else idle_rows(evidence, "wait")


def _is_call(row: IdleCause) -> bool:
    """True for a long or named stay that no other rule covers.

    It is of the host. A short one counts if it is in a named function.
    """
    detail = row.detail or ""
    is_long = row.us >= _LONG_STRETCH_US * row.calls or " > " in detail
    return is_long and not (_SIDE_WORK.search(detail) or _CALLS_TORCH.search(detail))


def _places(rows: Sequence[IdleCause]) -> tuple[str, ...]:
    return tuple(SourcedLine(f"{idle_place(row)}, {format_gaps(row.calls)}", row.source) for row in rows[:3])


RULES = (
    host_sync,
    item_calls,
    gc_pauses,
    device_allocations,
    caching_allocator_off,
    computed_on_host,
    side_work,
    sleeping,
    waiting,
    other_threads,
    python_call,
)
