"""Reads pickles of plain containers and scalars, without running any code.

A pickle is a program for a small machine, and its instructions can import and call whatever they name. This reader is
that machine without those instructions: it makes dicts, lists, tuples, texts, bytes, numbers, booleans and None. Any
other instruction is refused by name, before something came of it. The instructions are those of ``pickletools``, from
protocol 2 on.
"""

import pickletools
import struct
from collections.abc import Callable
from typing import Any

from bottleneck.units import counted

MAGIC = b"\x80"
"""First byte of a pickle of protocol 2 and later."""

_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
# Numbers of allocators and logs have 64 bits; one of a million digits takes hours to print.
_LARGEST_INT_BYTES = 16


class PlainPickleError(Exception):
    """A pickle that is cut off, broken, or holds more than plain data.

    Its text says which, and at which byte.
    """


def read_plain_pickle(content: bytes) -> Any:
    """Returns the value of a pickle of plain data.

    Raises PlainPickleError for any other. Time and memory grow with the length of the content alone: a value that
    occurs twice is one object, so that whoever walks the result has to bound the walk.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    at, end = 0, len(content)
    try:
        while at < end:
            code = content[at]
            step = _STEPS.get(code)
            if step is None:
                if code == _STOP:
                    return _only(stack, marks, at)
                raise PlainPickleError(f"it holds the instruction {_NAMES.get(code, code)}, which is no plain data")
            at = step(content, at + 1, stack, marks, memo)
    except struct.error:
        raise PlainPickleError(f"it is cut off after {end:,} bytes") from None
    except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise PlainPickleError(f"it is broken at byte {at:,}: {type(error).__name__}") from error
    except PlainPickleError as error:
        raise PlainPickleError(f"{error} (byte {at:,})") from None
    raise PlainPickleError(f"it is cut off after {end:,} bytes")


def _only(stack: list[Any], marks: list[int], at: int) -> Any:
    if len(stack) != 1 or marks:
        raise PlainPickleError(f"it ends at byte {at:,} with {counted(len(stack), 'value')} in place of one")
    return stack[0]


_STOP = ord(".")
_Step = Callable[[bytes, int, list[Any], list[int], dict[int, Any]], int]


def _part(content: bytes, at: int, size: int) -> bytes:
    if size > len(content) - at:
        raise PlainPickleError("a text is longer than the rest of the file")
    return content[at : at + size]


def _constant(make: Callable[[], Any]) -> _Step:
    def step(_: bytes, at: int, stack: list[Any], __: list[int], ___: dict[int, Any]) -> int:
        stack.append(make())
        return at

    return step


def _fixed(layout: str) -> _Step:
    """A number of fixed width."""
    unpack, width = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def step(content: bytes, at: int, stack: list[Any], _: list[int], __: dict[int, Any]) -> int:
        stack.append(unpack(content, at)[0])
        return at + width

    return step


def _counted(width: int, turn: Callable[[bytes], Any]) -> _Step:
    """Bytes behind their count, which has so many bytes itself."""

    def step(content: bytes, at: int, stack: list[Any], _: list[int], __: dict[int, Any]) -> int:
        size, begin = int.from_bytes(content[at : at + width], "little"), at + width
        stack.append(turn(_part(content, begin, size)))
        return begin + size

    return step


def _to_text(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")


def _to_int(content: bytes) -> int:
    if len(content) > _LARGEST_INT_BYTES:
        raise PlainPickleError(f"a number has {len(content)} bytes")
    return int.from_bytes(content, "little", signed=True)


def _popped(stack: list[Any], marks: list[int]) -> list[Any]:
    """Takes the values above the latest mark."""
    mark = marks.pop()
    values = stack[mark:]
    del stack[mark:]
    return values


def _mark(_: bytes, at: int, stack: list[Any], marks: list[int], __: dict[int, Any]) -> int:
    marks.append(len(stack))
    return at


def _pop(_: bytes, at: int, stack: list[Any], marks: list[int], __: dict[int, Any]) -> int:
    if marks and marks[-1] == len(stack):
        marks.pop()
    else:
        stack.pop()
    return at


def _pop_mark(_: bytes, at: int, stack: list[Any], marks: list[int], __: dict[int, Any]) -> int:
    _popped(stack, marks)
    return at


def _append(_: bytes, at: int, stack: list[Any], __: list[int], ___: dict[int, Any]) -> int:
    value = stack.pop()
    _list_in(stack).append(value)
    return at


def _appends(_: bytes, at: int, stack: list[Any], marks: list[int], __: dict[int, Any]) -> int:
    values = _popped(stack, marks)
    _list_in(stack).extend(values)
    return at


def _list_in(stack: list[Any]) -> list[Any]:
    if type(stack[-1]) is not list:
        raise PlainPickleError("something is appended to what is no list")
    return stack[-1]


def _set_items(target: Any, values: list[Any]) -> None:
    if type(target) is not dict or len(values) % 2:
        raise PlainPickleError("an item is set in what is no dict")
    for key in values[::2]:
        if type(key) not in (str, int, bool, type(None), bytes, float):
            raise PlainPickleError(f"a key is a {type(key).__name__}")
    target.update(zip(values[::2], values[1::2], strict=True))


def _set_item(_: bytes, at: int, stack: list[Any], __: list[int], ___: dict[int, Any]) -> int:
    values = stack[-2:]
    del stack[-2:]
    _set_items(stack[-1], values)
    return at


def _set_marked(_: bytes, at: int, stack: list[Any], marks: list[int], __: dict[int, Any]) -> int:
    values = _popped(stack, marks)
    _set_items(stack[-1], values)
    return at


def _gathered(turn: Callable[[list[Any]], Any]) -> _Step:
    def step(_: bytes, at: int, stack: list[Any], marks: list[int], __: dict[int, Any]) -> int:
        stack.append(turn(_popped(stack, marks)))
        return at

    return step


def _tuple_of(size: int) -> _Step:
    def step(_: bytes, at: int, stack: list[Any], __: list[int], ___: dict[int, Any]) -> int:
        if len(stack) < size:
            raise PlainPickleError("a tuple has fewer values than it says")
        values = tuple(stack[-size:])
        del stack[-size:]
        stack.append(values)
        return at

    return step


def _memoize(_: bytes, at: int, stack: list[Any], __: list[int], memo: dict[int, Any]) -> int:
    memo[len(memo)] = stack[-1]
    return at


def _put(width: int) -> _Step:
    def step(content: bytes, at: int, stack: list[Any], _: list[int], memo: dict[int, Any]) -> int:
        memo[int.from_bytes(content[at : at + width], "little")] = stack[-1]
        return at + width

    return step


def _get(width: int) -> _Step:
    def step(content: bytes, at: int, stack: list[Any], _: list[int], memo: dict[int, Any]) -> int:
        stack.append(memo[int.from_bytes(content[at : at + width], "little")])
        return at + width

    return step


def _skip(width: int) -> _Step:
    """Passes over the protocol's number or the size of a frame."""

    def step(_: bytes, at: int, __: list[Any], ___: list[int], ____: dict[int, Any]) -> int:
        return at + width

    return step


_BY_NAME: dict[str, _Step] = {
    "PROTO": _skip(1),
    "FRAME": _skip(8),
    "MARK": _mark,
    "POP": _pop,
    "POP_MARK": _pop_mark,
    "NONE": _constant(lambda: None),
    "NEWTRUE": _constant(lambda: True),
    "NEWFALSE": _constant(lambda: False),
    "EMPTY_LIST": _constant(list),
    "EMPTY_DICT": _constant(dict),
    "EMPTY_TUPLE": _constant(tuple),
    "BININT": _fixed("<i"),
    "BININT1": _fixed("<B"),
    "BININT2": _fixed("<H"),
    "BINFLOAT": _fixed(">d"),
    "LONG1": _counted(1, _to_int),
    "LONG4": _counted(4, _to_int),
    "SHORT_BINUNICODE": _counted(1, _to_text),
    "BINUNICODE": _counted(4, _to_text),
    "BINUNICODE8": _counted(8, _to_text),
    "SHORT_BINBYTES": _counted(1, bytes),
    "BINBYTES": _counted(4, bytes),
    "BINBYTES8": _counted(8, bytes),
    "TUPLE": _gathered(tuple),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "APPEND": _append,
    "APPENDS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": _set_marked,
    "MEMOIZE": _memoize,
    "BINPUT": _put(1),
    "LONG_BINPUT": _put(4),
    "BINGET": _get(1),
    "LONG_BINGET": _get(4),
}
_CODES = {name: code for code, name in _NAMES.items()}
_STEPS: dict[int, _Step] = {_CODES[name]: step for name, step in _BY_NAME.items()}
