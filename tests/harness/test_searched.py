"""Containers that membership tests look through: seen without running code of the program, and charged to its line."""

import dis
import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from bottleneck.harness.searched import PrecedingSearches, _tested_before, searched_at
from bottleneck.schema.measurements import SearchedContainer

HISTORY = {7: list(range(500))}


class Plain:
    """Holds a list, and counts what is asked of it."""

    def __init__(self) -> None:
        self.items, self.asked = list(range(300)), 0

    @property
    def computed(self) -> list[int]:
        """Runs code of the program."""
        self.asked += 1
        return self.items


class Loud(list[int]):
    """A list whose length runs code of the program."""

    def __len__(self) -> int:
        raise AssertionError("code of the program ran")


def frame_of(**variables: Any) -> FrameType:
    """A frame with these variables, as the program's: 'found' is read by the tests below."""
    found = SimpleNamespace(**variables)

    def program(u: int, items: Any, model: Any, table: Any) -> FrameType:
        return sys._getframe()

    return program(found.u, found.items, found.model, found.table)


def looked(text: str, **variables: Any) -> SearchedContainer | None:
    given = {"u": 7, "items": (1, 2, 3), "model": Plain(), "table": defaultdict(list, {7: deque(range(250))})}
    return searched_at(frame_of(**{**given, **variables}), text)


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [
        ("while u in HISTORY[u]:", "list", 500),
        ("if u not in items:", "tuple", 3),
        ("seen = u in model.items", "list", 300),
        ("if u in table[u] and u in items:", "deque", 250),
        ("if u in HISTORY:", "dict", 1),
        ("if u in items", "tuple", 3),
    ],
)
def test_a_container_is_seen_with_its_type_and_length(text: str, kind: str, count: int) -> None:
    found = looked(text if text.endswith(":") or "=" in text else f"{text}: pass")
    assert found is not None and (found.kind, found.items) == (kind, count)


@pytest.mark.parametrize(
    "text",
    [
        "if u in model.computed:",
        "if u in model.missing:",
        "if u in table[99]:",
        "if u in unknown:",
        "if u in f(u):",
        "x = u",
        "(u in",
    ],
)
def test_what_would_run_code_or_is_not_there_is_not_looked_at(text: str) -> None:
    model = Plain()
    table: defaultdict[int, Any] = defaultdict(list)
    assert looked(text, model=model, table=table) is None
    assert model.asked == 0 and not table
    assert looked("if u in items:", items=Loud([1])) is None


def test_a_look_leaves_the_local_variables_of_the_frame_alone() -> None:
    def program() -> Iterator[FrameType | list[int]]:  # an assert of pytest's would read locals()
        items = [1, 2, 3]
        yield sys._getframe()
        yield items

    running = program()
    frame = next(running)
    assert isinstance(frame, FrameType) and searched_at(frame, "if 1 in items: pass") is not None
    assert next(running) == [1, 2, 3]


def test_a_function_that_uses_the_dictionary_of_its_variables_is_left_alone() -> None:
    def program() -> tuple[FrameType, dict[str, Any]]:
        items = [1, 2, 3]
        return sys._getframe(), locals() | {"items": items}

    frame, _ = program()
    assert searched_at(frame, "if 1 in items: pass") is None


def search(count: int, seen: list[int]) -> list[int]:
    """Draws numbers that are not in a list."""
    kept: list[int] = []
    for _ in range(count):
        number = random.randrange(900)
        while number in seen:
            number = random.randrange(900)
        kept.append(number)
    return kept


def lines_of(function: Callable[..., Any], opname: str) -> list[int]:
    return [each.offset for each in dis.get_instructions(function) if each.opname == opname]


def test_what_a_search_takes_is_charged_to_its_line() -> None:
    for _ in range(50):
        search(100, HISTORY[7])
    code = search.__code__
    first = code.co_firstlineno
    # The jump back to the head of the loop is on the line of append().
    (at, *_) = reversed([each for name in ("JUMP_BACKWARD",) for each in lines_of(search, name)])
    assert _tested_before(code, at) == first + 5
    draw = next(
        each.offset for each in dis.get_instructions(search) if each.opname == "STORE_FAST" and each.argval == "number"
    )
    assert _tested_before(code, draw) is None


def test_only_the_frame_that_searched_or_what_it_has_just_called_is_asked() -> None:
    def inner() -> FrameType:
        value = len([1])
        assert value == 1
        return sys._getframe()

    assert PrecedingSearches().before(inner(), sys._getframe()) is None
