"""What a reader of the comparison should know of how it was made."""

from collections.abc import Sequence

from bottleneck.compared import ChangeRow
from bottleneck.comparing.noise import FEWEST_STEPS, UNTOLD_SPREAD, Noise
from bottleneck.comparing.sides import Compared
from bottleneck.comparing.work import UNTOLD
from bottleneck.units import format_share, format_us

_WORTH_A_NOTE = 0.01


def find_notes(before: Compared, after: Compared, noise: Noise, rows: Sequence[ChangeRow]) -> tuple[str, ...]:
    """One sentence each."""
    return (
        *_of_devices(before, after),
        *_of_ranks(before, after),
        *_of_noise(noise),
        *_of_calls(before, after),
        *_of_work(before, after, rows),
    )


def _of_devices(before: Compared, after: Compared) -> list[str]:
    if before.device_name is not None or after.device_name is not None:
        return []
    return ["Neither side names its device: nothing tells whether both ran on the same."]


def _of_ranks(before: Compared, after: Compared) -> list[str]:
    many = [side.label for side in (before, after) if side.told is not None and len(side.told.ranks) > 1]
    if not many:
        return []
    return [
        f"Of several ranks ({', '.join(many)}) the one that sets the pace is compared; name single traces for others."
    ]


def _of_noise(noise: Noise) -> list[str]:
    if noise.is_known:
        return []
    return [
        f"A side has fewer than {FEWEST_STEPS} steps, which tell no spread: "
        f"rows count as the same within {format_share(UNTOLD_SPREAD)}."
    ]


def _of_calls(before: Compared, after: Compared) -> list[str]:
    if before.is_full and after.is_full:
        return []
    return ["A finished analysis tells kernels and no calls of ops: what is counted are kernels, on both sides."]


def _of_work(before: Compared, after: Compared, rows: Sequence[ChangeRow]) -> list[str]:
    untold = [row for row in rows if row.name == UNTOLD]
    us = max((max(row.before_us, row.after_us) for row in untold), default=0.0)
    if us < _WORTH_A_NOTE * max(before.step_us or 0.0, after.step_us or 0.0) or not us:
        return []
    return [f"{format_us(us)} of work stand in a ledger without a row that tells which work it was."]
