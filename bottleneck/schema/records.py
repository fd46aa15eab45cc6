"""Records of both makes, dataclasses and Structs of msgspec.

The module describes, copies and checks their fields.

A record that the user's process loads is a dataclass, since that process loads no msgspec
(``tests/architecture/test_imports.py`` holds that). A Struct is defined in a fortieth of the time, because a dataclass
compiles the source of its methods: records that only reports make are Structs.

JSON Schemas and reference pages are generated from the descriptions. ``Doc`` is a marker of our own instead of
``msgspec.Meta`` for the same reason; ``scripts/write_schema.py`` adds the descriptions to the schemas that msgspec
makes of the records.
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast, get_type_hints

R = TypeVar("R")


class Doc(NamedTuple):
    """Description of a field and its unit ("us", "share", "B/s").

    A name, a text, a count or a record has no unit.
    """

    description: str
    unit: str = ""


def is_record(kind: type) -> bool:
    """True for a class of records of either make."""
    return dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__")


def replace(record: R, /, **changes: Any) -> R:
    """Copies the record with some fields changed.

    It works as ``copy.replace`` of Python 3.13.
    """
    if hasattr(record, "__struct_fields__"):
        copied: R = record.__replace__(**changes)  # type: ignore[attr-defined]
        return copied
    return dataclasses.replace(record, **changes)  # type: ignore[type-var]


# Unit -> smallest and largest sound value; amounts of other units are only finite and below what any machine does.
_RANGES: Mapping[str, tuple[float, float]] = {
    "share": (0.0, 1.0 + 1e-6),
    **dict.fromkeys(("us", "s", "B", "FLOP", "B/s", "FLOP/s", "FLOP/B", "MHz", "ratio", "1/step", "1/s"), (0.0, 1e30)),
}
_NAMES_END = {"_share": "share", "_us": "us", "_bytes": "B", "perturbation": "ratio"}
_ANY = (-1e30, 1e30)
# A ceiling is positive, or null where it is not known.
_CEILINGS = frozenset(
    {"peaks_flops_per_s", "bandwidth_bytes_per_s", "bandwidth_by_bytes", "special_ops_per_s", "link_bytes_per_s"}
)
_LEAST_CEILING = 1.0
# Nothing that was measured or computed is nearer to 0 than this without being 0. A number that is becomes 0 when it is
# divided by a unit, and the next division fails.
_NEAREST_TO_ZERO = 1e-100


def check_ranges(record: Any) -> None:
    """Raises ValueError for a number that its unit does not allow.

    An example is 7.5 as a share. Records inside the record are checked too.
    """
    for why in unsound_fields(record).values():
        raise ValueError(why)


def unsound_fields(record: Any) -> Mapping[str, str]:
    """Returns fields whose number its unit does not allow, with reasons."""
    reasons = {}
    for name, unit in _units(cast("Hashable", type(record))):
        try:
            _check(getattr(record, name), unit, f"{type(record).__name__}.{name}", name in _CEILINGS)
        except ValueError as exc:
            reasons[name] = str(exc)
    return reasons


def _check(value: Any, unit: str, where: str, is_ceiling: bool) -> None:
    if is_record(type(value)):
        check_ranges(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check(item, unit, f"{where}[{key!r:.80}]", is_ceiling)
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, unit, where, is_ceiling)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = _RANGES.get(unit, _ANY)
        low = _LEAST_CEILING if is_ceiling else low
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(f"{where} is {value!r:.80}, and has to lie between {low:g} and {high:g}")
        if 0 < abs(value) < _NEAREST_TO_ZERO:
            raise ValueError(
                f"{where} is {value!r:.80}, and has to lie between {_NEAREST_TO_ZERO:g} and {high:g}, or be 0"
            )


@cache
def _units(record: Hashable) -> tuple[tuple[str, str], ...]:
    """Returns the fields of a class of records with their units.

    The unit comes from the description or from the end of the name.
    """
    assert isinstance(record, type)
    hints = get_type_hints(record, include_extras=True)
    units = []
    for name, hint in hints.items():
        docs = (doc for doc in getattr(hint, "__metadata__", ()) if isinstance(doc, Doc))
        ends = (unit for end, unit in _NAMES_END.items() if name.endswith(end))
        units.append((name, next((doc.unit for doc in docs if doc.unit), next(ends, ""))))
    return tuple(units)
