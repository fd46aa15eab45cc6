"""Words what makes a step fit into memory: a line and tables."""

from collections.abc import Iterator, Sequence

from bottleneck.report.document import ListSection, TableRow, TableSection, columns
from bottleneck.report.text import UNKNOWN
from bottleneck.schema.analysis import Interval
from bottleneck.schema.device import without_maker
from bottleneck.schema.memory_fit import MemoryFit, MemoryRemedy, MemorySet
from bottleneck.schema.prediction import DevicePrediction
from bottleneck.units import counted, format_memory, format_si, listed

_WORDS = {
    "bf16-autocast": "bf16 autocast",
    "fused-optimizer": "fused optimizer",
    "inplace-activations": "in-place activations",
    "fused-activations": "fused activations",
    "swap": "swap to the host, waiting",
    "swap-overlapped": "swap to the host, overlapped",
    "bf16-states": "optimizer states in bf16",
    "8bit-states": "8-bit optimizer states",
    "bf16-parameters": "all parameters in bf16",
}
_HOW = {
    "bf16-autocast": "with torch.autocast('cuda', dtype=torch.bfloat16): around the forward pass and the loss",
    "accumulate": "call backward() for each part of the batch, its loss divided by their number; step() after the last",
    "fused-optimizer": "torch.optim.AdamW(…, fused=True): no temporary tensors for all parameters at once",
    "inplace-activations": "inplace=True for ReLU, Dropout and the like",
    "checkpoint": "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    "fused-activations": "model = torch.compile(model)",
    "swap": "with torch.autograd.graph.save_on_cpu(pin_memory=True): around the forward pass",
    "swap-overlapped": "saved-tensor hooks that copy on a stream of their own; no setting of torch does it",
    "bf16-states": "an optimizer that keeps its states in bf16, as those of torchao.optim with bf16 parameters",
    "8bit-states": "bitsandbytes.optim.AdamW8bit or torchao.optim.AdamW8bit",
    "bf16-parameters": "model.to(torch.bfloat16), with an optimizer that rounds stochastically",
    "fsdp": "torch.distributed.fsdp.fully_shard(block) for each block, then for the model",
}
_ALONE_NOTE = (
    "time added: of the step as it is, less than nothing where it gets faster; run: the changed program ran on tensors "
    "without data; formula: counted from what the step as it is holds"
)
_SET_NOTE = "each row: what is saved after the rows above it, as expected; together: as the changed program ran"
_NOT_SAME_NOTE = "†: changes the rounding of the program's numbers"
_SWAP_NOTE = "overlapped: only what the link can move beside the kernels; their copies share the memory's bandwidth"
_FSDP_NOTE = "FSDP: the memory of one rank; time added: from all of its copies hidden to none, over the device's link"
_SHOWN_BLOCKS = 4


def fit_line(prediction: DevicePrediction) -> str:
    """Says in a line what makes the step fit; empty without `--fit`."""
    fit, name = prediction.fit, without_maker(prediction.device.name)
    if fit is None:
        return ""
    if fit.fits:
        largest = (
            "" if prediction.largest_batch is None else f"; the largest batch that fits is {prediction.largest_batch:,}"
        )
        return f"as it is on {name}, with {format_memory(fit.usable_bytes - fit.peak_bytes)} to spare{largest}"
    lacks = f"{format_memory(fit.peak_bytes - fit.usable_bytes)} too much on {name}"
    ranks = "" if fit.ranks is None else f"; FSDP over {counted(fit.ranks, 'rank')} alone would do"
    if fit.best is None or not fit.best.remedies:
        return f"{lacks}, and no change lowers the peak{ranks}"
    words = " + ".join(map(remedy_words, fit.best.remedies))
    if not fit.best.fits:
        misses = format_memory(fit.best.peak_bytes - fit.usable_bytes)
        reaches = f"the nearest ({words}) reaches {format_memory(fit.best.peak_bytes)}, {misses} too much"
        more = f"; with it FSDP over {counted(fit.best.ranks, 'rank')} would do" if fit.best.ranks is not None else ""
        return f"{lacks}, and nothing tried fits: {reaches}{ranks or more}"
    saved = format_memory(fit.peak_bytes - fit.best.peak_bytes)
    return f"{lacks}; {words}: -{saved}, {_time(fit.best.added_us, prediction)} step; {_proof(fit.best)}"


def remedy_words(remedy: MemoryRemedy) -> str:
    """Names a change with its number: 'recompute 3 of 12 blocks'."""
    if remedy.name == "checkpoint":
        return f"recompute {len(remedy.blocks)} of {counted(remedy.of_blocks, 'block')}"
    if remedy.name == "accumulate":
        return f"{remedy.parts} micro-batches"
    if remedy.name == "fsdp":
        return f"FSDP over {remedy.parts} ranks"
    return _WORDS[remedy.name]


def _proof(made: MemorySet) -> str:
    whole = made.is_confirmed and all(one.basis == "run" for one in made.remedies)
    how = "run under fake tensors" if whole else "a part of it by formula" if made.is_confirmed else "by formula"
    return f"{format_memory(made.peak_bytes)} at the peak, {how}"


def fit_sections(predictions: Sequence[DevicePrediction]) -> Iterator[TableSection | ListSection]:
    """Yields the tables of each device that lacks memory: sets, and each change alone."""
    for prediction in predictions:
        fit = prediction.fit
        if fit is None or fit.peak_bytes <= fit.usable_bytes:
            continue
        name = without_maker(prediction.device.name)
        size = format_memory(fit.memory_bytes)
        sets = (
            (fit.best, "What fits into" if fit.best is not None and fit.best.fits else "The nearest to"),
            (fit.same_results, "With the same results into"),
            (fit.by_formula, "Cheaper, by formula, into"),
        )
        for made, title in sets:
            if made is not None and made.remedies:
                yield _set(fit, made, prediction, f"{title} {size} on {name}")
        if fit.alone:
            yield _alone(fit, prediction, f"Each change of memory alone on {name}")
        yield ListSection(f"How, and what else of memory on {name}", tuple((text,) for text in _how(fit, prediction)))


_HEADS = (*columns("name", "change"), *columns("number", "saves", "peak", "time added"), *columns("words", "known by"))


def _set(fit: MemoryFit, made: MemorySet, prediction: DevicePrediction, title: str) -> TableSection:
    rows = [TableRow(("as it is", "", format_memory(fit.peak_bytes), "", ""), key="as it is")]
    rows += [_row(one, prediction) for one in made.remedies]
    proof = "run" if made.is_confirmed else "formula"
    saved = format_memory(max(fit.peak_bytes - made.peak_bytes, 0))
    total = ("together", saved, format_memory(made.peak_bytes), _time(made.added_us, prediction), proof)
    notes = (
        _SET_NOTE,
        *_notes(made.remedies),
        f"{format_memory(fit.usable_bytes)} can be used: CUDA takes 1 GiB itself",
    )
    return TableSection(title, _HEADS, (*rows, TableRow(total, role="rest")), notes, is_cards=True)


def _alone(fit: MemoryFit, prediction: DevicePrediction, title: str) -> TableSection:
    rows = tuple(_row(one, prediction) for one in fit.alone)
    return TableSection(title, _HEADS, rows, (_ALONE_NOTE, *_notes(fit.alone)), is_cards=True)


def _notes(remedies: Sequence[MemoryRemedy]) -> list[str]:
    names = {one.name for one in remedies}
    notes = [_NOT_SAME_NOTE] if any(not one.is_same_result for one in remedies) else []
    notes += [_SWAP_NOTE] if "swap-overlapped" in names else []
    return notes + ([_FSDP_NOTE] if "fsdp" in names else [])


def _row(one: MemoryRemedy, prediction: DevicePrediction) -> TableRow:
    words = remedy_words(one) + ("" if one.is_same_result else " †")
    return TableRow(
        (
            words,
            format_memory(one.saved_bytes) if one.saved_bytes > 0 else "0",
            format_memory(one.peak_bytes),
            _time(one.added_us, prediction),
            one.basis,
        )
    )


def _time(added_us: Interval | None, prediction: DevicePrediction) -> str:
    """The time added as an interval in percent of the step."""
    if added_us is None or not prediction.step.us:
        return UNKNOWN
    low, high = (round(end / prediction.step.us * 100) for end in (added_us.low, added_us.high))
    if low == high:
        return "+0 %" if low == 0 else f"{low:+d} %"
    return f"{low:+d} to {high:+d} %"


def _how(fit: MemoryFit, prediction: DevicePrediction) -> Iterator[str]:
    sets = [made for made in (fit.best, fit.same_results, fit.by_formula) if made is not None]
    said: set[str] = set()
    for one in (remedy for made in sets for remedy in made.remedies):
        text = f"{remedy_words(one)}: {_HOW[one.name]}"
        if one.name == "checkpoint":
            text += f", for {_blocks(one.blocks)}"
        if one.moved_bytes:
            text += f"; {format_si(one.moved_bytes, 'B')} over the link per step"
        if text not in said:
            said.add(text)
            yield text
    if fit.ranks is not None and not fit.fits:
        yield f"FSDP over {counted(fit.ranks, 'rank')} fits by itself: {_HOW['fsdp']}"
    if fit.made_bytes:
        yield (
            f"shared buffers: the step makes {format_memory(fit.made_bytes)}, of which it holds "
            f"{format_memory(fit.alive_bytes)} at once: no plan needs less, and one by lifetimes needs "
            f"{format_memory(fit.planned_bytes)}"
        )
    largest = prediction.largest_batch
    if not fit.fits and largest:
        yield f"without any change the largest batch that fits is {largest:,}"
    for refused in fit.refused:
        yield f"{refused.name}: {refused.reason}"


def _blocks(paths: Sequence[str]) -> str:
    """Names blocks, runs of numbers as one: 'layers.0 to layers.6'."""
    runs: list[list[str]] = []
    for path in paths:
        if runs and _follows(runs[-1][-1], path):
            runs[-1].append(path)
        else:
            runs.append([path])
    words = [run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    more = [counted(len(words) - _SHOWN_BLOCKS, "more run")] if len(words) > _SHOWN_BLOCKS else []
    return f"{'blocks' if len(paths) > 1 else 'block'} {listed(words[:_SHOWN_BLOCKS] + more)}"


def _follows(before: str, path: str) -> bool:
    (stem, _, number), (other, _, following) = before.rpartition("."), path.rpartition(".")
    return stem == other and number.isdigit() and following.isdigit() and int(following) == int(number) + 1
