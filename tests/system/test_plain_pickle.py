"""Pickles of plain data come back as they were, and all others are refused before anything runs."""

import contextlib
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.system.plain_pickle import PlainPickleError, read_plain_pickle

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=4)
        | st.tuples(inner)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=20,
)


def test_bytes_of_protocol_2_are_made_by_a_function_and_refused() -> None:
    with pytest.raises(PlainPickleError, match="GLOBAL"):
        read_plain_pickle(pickle.dumps(b"a", 2))
    assert read_plain_pickle(pickle.dumps({"a": (1, 2.5)}, 2)) == {"a": (1, 2.5)}


@given(value=_VALUES, protocol=st.integers(3, pickle.HIGHEST_PROTOCOL))
def test_plain_data_comes_back_as_it_was(value: Any, protocol: int) -> None:
    assert read_plain_pickle(pickle.dumps(value, protocol)) == value


class _Runs:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.path, "ran"))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_that_a_pickle_names_is_run(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "ran.txt"
    content = pickle.dumps([1, _Runs(path)], protocol)
    with pytest.raises(PlainPickleError, match="which is no plain data"):
        read_plain_pickle(content)
    assert not path.exists()
    pickle.loads(content)
    assert path.exists()  # the pickle would have done it


@pytest.mark.parametrize(
    "value", [OrderedDict(a=1), {1, 2}, frozenset({3}), 1 + 2j, bytearray(b"a"), Path("a"), range(3)]
)
def test_other_types_are_refused_by_the_name_of_their_instruction(value: Any) -> None:
    with pytest.raises(PlainPickleError, match="holds the instruction"):
        read_plain_pickle(pickle.dumps(value, 5))


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_one_error(content: bytes) -> None:
    with contextlib.suppress(PlainPickleError):
        read_plain_pickle(b"\x80\x04" + content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cut off"),
        (pickle.dumps({"a": [1, 2, 3]})[:-4], "cut off"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\x00\x00.", "longer than the rest"),
        (b"\x80\x04]]s.", "no dict|broken"),
        (b"\x80\x04}]]s.", "a key is a list"),
        (b"\x80\x04NN.", "2 values in place of one"),
        (b"\x80\x02\x8b\x00\x00\x00\x7f.", "longer than the rest"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "broken"),
        (b"\x80\x02\x8a\x20" + b"\xff" * 32 + b".", "32 bytes"),
    ],
)
def test_broken_pickles_say_what_is_wrong_and_where(content: bytes, words: str) -> None:
    with pytest.raises(PlainPickleError, match=words):
        read_plain_pickle(content)
