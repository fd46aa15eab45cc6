"""Describes the memory of a step in a report: what lives at its peak, by kind, and where most of it was allocated."""

from bottleneck.report.document import TableColumn, TableRow, TableSection, number_columns
from bottleneck.report.kernel_names import cut_place
from bottleneck.report.text import UNKNOWN, percents
from bottleneck.schema.analysis import Analysis, LiveAllocations, MemoryUse
from bottleneck.schema.op_names import at_source
from bottleneck.units import format_si, format_us

_NAMED, _LONGEST_MODULE = 3, 48
# Less than this holds nothing back, whatever it is.
_LEAST_BYTES = 2**20


def memory(analysis: Analysis) -> TableSection | None:
    """Memory at its peak by kind; null where the recording has no memory events, or the step next to none."""
    use = analysis.memory
    if use is None or use.peak_bytes < _LEAST_BYTES:
        return None
    shares = percents([part.bytes / use.peak_bytes for part in use.kinds])
    rows = [
        TableRow(
            (part.kind, format_si(part.bytes, "B"), share, UNKNOWN if part.count is None else str(part.count)),
            details=() if part.reason is None else (part.reason,),
        )
        for part, share in zip(use.kinds, shares, strict=False)
    ]
    total = TableRow(("at the peak", format_si(use.peak_bytes, "B"), shares[-1], ""), "total")
    columns = TableColumn("kind", "words"), *number_columns(("bytes", "share", "allocations"))
    where = "the host" if use.device is None else f"device {use.device}"
    return TableSection(f"Memory of {where} at its peak", columns, (*rows, total), tuple(_notes(use)))


def _notes(use: MemoryUse) -> list[str]:
    """When the peak is, what the allocator held, the largest allocations, and limits."""
    held = "" if use.reserved_bytes is None else f"; the allocator held up to {format_si(use.reserved_bytes, 'B')}"
    notes = [f"The peak is {format_us(use.peak_at_us)} after the first step began{held}."]
    if use.allocations:
        notes.append(f"Most of it: {'; '.join(_describe(each) for each in use.allocations[:_NAMED])}.")
    return notes if use.reason is None else [*notes, f"{use.reason[0].upper()}{use.reason[1:]}."]


def _describe(each: LiveAllocations) -> str:
    module = "" if each.module is None else f" in {cut_place(each.module, _LONGEST_MODULE)}"
    place = "" if each.source is None else f" {at_source(each.source)}"
    return f"{format_si(each.bytes, 'B')} by {each.op or 'Python'}{module}{place} ({each.kind})"
