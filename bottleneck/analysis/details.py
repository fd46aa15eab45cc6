"""What held the host, in a few words: calls, loaders, ops and functions as a reader of the report knows them."""

import re

_FRAME = re.compile(r"^(?P<file>[^\n]{1,1000}?)\(\d{1,9}\): (?P<function>[^\n]{1,200})")
_BUILT_IN = re.compile(r"^<built-in (?:function|method) (?P<name>[^\s>]{1,200})")
_COPY = re.compile(r"(?P<way>[HDP]to[HDP])(?: \((?P<ends>[^)]{1,60})\))?")
# The engine's own name for a backward op is its node's name behind this.
_BACKWARD = "autograd::engine::evaluate_function: "
_LONGEST = 120
FAULTS = "first touch of fresh pages"


def detail_of(
    cause: str, event: str | None, op: str | None, call: tuple[str | None, str | None], function: str | None
) -> str | None:
    """What held the host; null when nothing tells.

    ``event`` put the thread in its state, ``op`` is the outermost one open, ``call`` the runtime call with the copy
    that it issued, ``function`` the innermost one of the program.
    """
    name, copy = call
    if cause == "python":
        return function
    if cause == "sync":
        held = [short(op), _with_copy(name or event, copy) if name or event != op else None]
        return " > ".join(part for part in held if part) or None
    if cause == "launch":
        return _with_copy(event, copy)
    if cause == "dispatch":
        return short(op or event)
    return short(event)


def copy_words(kernel: str) -> str | None:
    """'pageable, DtoH' of 'Memcpy DtoH (Device -> Pageable)'; null for other device work."""
    match = _COPY.search(kernel) if kernel.startswith("Memcpy") else None
    if match is None:
        return None
    ends = (match["ends"] or "").lower()
    kinds = [kind for kind in ("pageable", "pinned") if kind in ends]
    return ", ".join([*kinds, match["way"]])


def short(name: str | None) -> str | None:
    """A name without what varies or says nothing: line numbers of library code, addresses, the engine's prefix."""
    if name is None:
        return None
    built_in, frame = _BUILT_IN.match(name), _FRAME.match(name)
    if built_in is not None:
        return built_in["name"]
    if frame is not None:
        return f"{frame['file'].replace(chr(92), '/')}: {frame['function']}"[:_LONGEST]
    return name.removeprefix(_BACKWARD)[:_LONGEST]


def _with_copy(name: str | None, copy: str | None) -> str | None:
    return f"{name[:_LONGEST]} ({copy})" if name and copy else short(name)
