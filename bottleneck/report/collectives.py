"""The table of collectives: what they carry, how fast, and how much of their time is waiting for other ranks."""

from bottleneck.records import Analysis, CollectiveSummary
from bottleneck.report.layout import Column, Row, Table
from bottleneck.report.numbers import UNKNOWN, Scale, scale_of
from bottleneck.report.words import calls_words
from bottleneck.units import format_si


def collectives(analysis: Analysis, top: int) -> Table | None:
    """Collectives by time; null where there are none."""
    if not analysis.collectives:
        return None
    ordered = sorted(analysis.collectives, key=lambda one: -one.us)
    scale = scale_of(max(one.us for one in ordered))
    rows = [_row(one, scale) for one in ordered[:top]]
    heads = (scale.unit, "exposed", "transfer", "waiting", "bus speed")
    hidden = len(ordered) - len(rows)
    notes = (
        "exposed: nothing was computed meanwhile. transfer: all calls at the pace of the quickest of this size; "
        "waiting: the rest, for ranks that come later or for a share of the device. bus speed: of the quickest call, "
        "as nccl-tests defines it.",
        *((f"{hidden} more kinds and sizes take less time.",) if hidden else ()),
    )
    title = "Collectives" + (f" ({len(rows)} of {len(ordered)})" if hidden else "")
    return Table(title, (Column("collective", "name"), *(Column(head, "number") for head in heads)), tuple(rows), notes)


def _row(one: CollectiveSummary, scale: Scale) -> Row:
    times = (scale.one(us) for us in (one.us, one.exposed_us, one.transfer_us, one.wait_us))
    speed = UNKNOWN if one.bus_bytes_per_s is None else format_si(one.bus_bytes_per_s, "B/s")
    return Row((one.name, *times, speed), group="communication", details=_details(one))


def _details(one: CollectiveSummary) -> tuple[str, ...]:
    parts = (
        calls_words(one.calls),
        "" if one.bytes is None else f"{format_si(one.bytes, 'B')} per rank",
        one.dtype or "",
        "" if one.group_size is None else f"{one.group_size} ranks",
        one.reason or "",
    )
    return tuple(part for part in parts if part)
