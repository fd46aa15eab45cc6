"""Counts and describes the defects that the reader tolerates in a file.

The descriptions are caveats.
"""

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bottleneck.schema.analysis import Caveat

# Kind of defect -> (slug of the caveat, message with the number of defects).
KINDS = {
    "truncated-json": (
        "truncated",
        "the file ends inside an event: {total} complete event(s) were read, {n} incomplete one(s) left out",
    ),
    "unclosed-json": ("truncated", "the file ends before its list of events is closed: {total} event(s) were read"),
    "truncated-gzip": ("truncated", "the compressed data ends early; what could be inflated was used"),
    "corrupt-gzip": ("truncated", "the compressed data is damaged; what could be inflated before that was used"),
    "perfetto-cut": ("truncated", "the Perfetto trace ends inside a packet, or is no such trace from there on"),
    "perfetto-deflate": (
        "truncated",
        "{n} compressed group(s) of packets are damaged; what could be inflated was used",
    ),
    "perfetto-zstd": ("skipped-events", "{n} group(s) of packets that zstd compressed cannot be read"),
    "gzip-checksum": ("damaged-gzip", "the checksum of the compressed data does not match; numbers may be wrong"),
    "gzip-junk": ("trailing-garbage", "bytes after the end of the compressed data were ignored"),
    "garbage": ("trailing-garbage", "{n} byte(s) after the end of the trace were ignored"),
    "backslash": ("repaired-json", "{n} event(s) held unescaped backslashes and were repaired"),
    "quote": ("repaired-json", "{n} event(s) held unescaped quotes and were repaired"),
    "encoding": ("repaired-json", "{n} event(s) held bytes that are not UTF-8; they show as replacement characters"),
    "literal": (
        "repaired-json",
        "{n} event(s) held control characters, NaN, Infinity or odd types; bad values are missing",
    ),
    "comma": ("repaired-json", "stray commas in the list of events were ignored at {n} place(s)"),
    "restored-name": ("repaired-json", "{n} name(s) held Windows backslashes read as escapes and were restored"),
    "broken": ("skipped-events", "{n} event(s) could not be read even after repair and were left out"),
    "no-time": ("skipped-events", "{n} event(s) without a start time or duration were left out"),
    "no-name": ("skipped-events", "{n} event(s) without a name were left out"),
    "far-time": (
        "skipped-events",
        "{n} event(s) lie far away in time from all others, or last for days, and were left out",
    ),
    "negative-duration": ("clamped-durations", "{n} event(s) had a negative duration, taken as 0"),
    "odd-args": ("odd-arguments", "{n} event(s) had arguments of an unexpected type, taken as missing"),
    "large-id": ("large-ids", "{n} id(s) or sizes do not fit in 64 bits and were taken as missing"),
    "metadata": ("metadata-unreadable", "the file's own description of device and versions could not be read"),
}


class Damage(Counter[str]):
    """Counts of tolerated defects by kind, which every step of the reader adds to."""

    def caveats(self, total: int) -> "tuple[Caveat, ...]":
        """Gives one caveat per slug.

        ``total`` events were read from the file. Messages of several kinds are joined.
        """
        from bottleneck.schema.analysis import Caveat  # noqa: PLC0415 - no worker that decodes events needs it

        messages: dict[str, list[str]] = {}
        for kind, (slug, text) in KINDS.items():
            if self[kind]:
                messages.setdefault(slug, []).append(text.format(n=self[kind], total=total))
        return tuple(Caveat(slug, "; ".join(texts)) for slug, texts in messages.items())
