"""The section on memory adds up, names the largest allocations, and is absent where there is nothing to tell."""

from bottleneck.report.analysis_tables import memory
from bottleneck.schema.analysis import KindBytes, LiveAllocations, MemoryUse
from bottleneck.schema.records import replace
from tests.report.samples import SAMPLES

ANY = next(iter(SAMPLES.values()))
USE = MemoryUse(
    device=0,
    curve=((0.0, 0, 8 * 2**20), (5.0, 4 * 2**20, 8 * 2**20)),
    peak_at_us=5.0,
    peak_bytes=4 * 2**20,
    reserved_bytes=8 * 2**20,
    earlier_bytes=2**20,
    kinds=(
        KindBytes("activations", 3 * 2**20, 2),
        KindBytes("unknown", 2**20, None, "allocated before recording began"),
    ),
    allocations=(LiveAllocations("aten::mm", "Net_0.Linear_1", "net.py:5", "activations", 3 * 2**20, 2, 7.0),),
)


def test_kinds_add_up_to_the_peak_and_unknown_has_its_reason() -> None:
    section = memory(replace(ANY, memory=USE))
    assert section is not None
    assert [row.cells for row in section.rows] == [
        ("activations", "3.15 MB", "75.0 %", "2"),
        ("unknown", "1.05 MB", "25.0 %", "-"),
        ("at the peak", "4.19 MB", "100.0 %", ""),
    ]
    assert section.rows[1].details == ("allocated before recording began",)


def test_notes_say_when_where_and_what_the_allocator_held() -> None:
    section = memory(replace(ANY, memory=USE))
    assert section is not None
    assert section.notes == (
        "The peak is 5.00 us after the first step began; the allocator held up to 8.39 MB.",
        "Most of it: 3.15 MB by aten::mm in Net_0.Linear_1 at net.py:5 (activations).",
    )


def test_work_of_the_backward_pass_stands_in_the_backward_of_its_line() -> None:
    (live,) = USE.allocations
    section = memory(replace(ANY, memory=replace(USE, allocations=(replace(live, source="backward of net.py:5"),))))
    assert section is not None and "in Net_0.Linear_1 in the backward of net.py:5 (activations)" in section.notes[1]


def test_without_events_or_with_next_to_no_memory_there_is_no_section() -> None:
    assert memory(replace(ANY, memory=None)) is None
    assert memory(replace(ANY, memory=replace(USE, peak_bytes=1000))) is None
