"""Descriptions of record fields, from which the JSON Schemas and the reference pages are generated.

A marker of our own instead of ``msgspec.Meta``: the records are imported inside the user's process and by ``--help``,
where msgspec is not loaded. ``scripts/write_schema.py`` reads the markers.
"""

from typing import NamedTuple


class Doc(NamedTuple):
    """Description of a field and its unit ("us", "share", "B/s"); no unit for a name, a text, a count or a record."""

    description: str
    unit: str = ""
