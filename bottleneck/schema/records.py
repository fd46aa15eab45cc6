"""Records of both makes: dataclasses, which the user's process loads too, and Structs of msgspec, which it does not.

A Struct is defined in a fortieth of the time: a dataclass compiles the source of its methods. So the records that only
reports make are Structs.
"""

import dataclasses
from typing import Any, TypeVar

R = TypeVar("R")


def is_record(kind: type) -> bool:
    """True for a class of records of either make."""
    return dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__")


def replace(record: R, /, **changes: Any) -> R:
    """A copy of the record with some fields changed, as ``copy.replace`` of Python 3.13 makes it."""
    if hasattr(record, "__struct_fields__"):
        copied: R = record.__replace__(**changes)  # type: ignore[attr-defined]
        return copied
    return dataclasses.replace(record, **changes)  # type: ignore[type-var]
