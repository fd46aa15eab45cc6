import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.gate.step_rows import ThreadSpans, latest_row

INSTANTS = st.tuples(st.integers(0, 3), st.integers(0, 20))
STRETCHES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 9)), max_size=12)


def columns(rows: list[tuple[int, ...]], count: int) -> list[np.ndarray]:
    return [np.array([row[each] for row in rows], dtype=float if each else np.int64) for each in range(count)]


@given(STRETCHES, st.lists(INSTANTS, max_size=12))
def test_an_instant_is_covered_where_a_stretch_of_its_thread_holds_it(
    stretches: list[tuple[int, int, int]], instants: list[tuple[int, int]]
) -> None:
    # Enclosing or apart, as calls of one thread are.
    nested = [one for row, one in enumerate(stretches) if not any(_cross(one, other) for other in stretches[:row])]
    thread, start, length = columns(nested, 3)
    asked, at = columns(instants, 2)
    expected = [any(of == who and begin <= when < begin + long for of, begin, long in nested) for who, when in instants]
    assert ThreadSpans(thread, start, start + length).cover(asked, at).tolist() == expected


def _cross(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    (first, a, long), (second, b, wide) = sorted((one, other), key=lambda each: (each[1], -each[2]))
    return first == second and a <= b < a + long < b + wide


@given(st.lists(INSTANTS, max_size=12), st.lists(INSTANTS, max_size=12))
def test_the_latest_row_is_the_last_of_the_thread_that_has_started(
    rows: list[tuple[int, int]], instants: list[tuple[int, int]]
) -> None:
    rows.sort()
    found = latest_row(*columns(rows, 2), *columns(instants, 2))  # type: ignore[arg-type]
    for (who, when), row in zip(instants, found.tolist(), strict=True):
        before = [each for each, (of, start) in enumerate(rows) if of == who and start <= when]
        assert row == (before[-1] if before else -1)
