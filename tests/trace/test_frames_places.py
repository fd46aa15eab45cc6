"""Where a thread was: stretches of one line, module and function, made of frames, long calls and recorded lines."""

from collections.abc import Sequence
from pathlib import Path

from tests.builders import Event, complete, frame, op
from tests.trace.traces import linked

_Row = tuple[float, float, str | None, str | None, str | None]


def _places(folder: Path, events: Sequence[Event]) -> list[_Row]:
    places = linked(folder, [op("aten::add", 0, 1), *events]).places
    assert places is not None
    columns = [places[name].astype(object) for name in ("ts_us", "end_us", "source", "module", "frame")]
    return list(zip(*(column.where(column.notna(), None).tolist() for column in columns), strict=True))


def _line(name: str, ts: float, dur: float) -> Event:
    return complete(name, "python_line", ts, dur)


def test_trace_without_frames_has_no_places(tmp_path: Path) -> None:
    assert linked(tmp_path, [op("aten::add", 0, 1)]).places is None


def test_inner_frames_of_the_program_interrupt_the_outer_ones(tmp_path: Path) -> None:
    events = [frame("train.py(5): main", 10, 90), frame("model.py(7): forward", 30, 20)]
    assert _places(tmp_path, events) == [
        (10, 30, "train.py:5", None, "main"),
        (30, 50, "model.py:7", None, "forward"),
        (50, 100, "train.py:5", None, "main"),
    ]


def test_frames_of_libraries_leave_the_place_alone(tmp_path: Path) -> None:
    events = [frame("train.py(5): main", 10, 90), frame("torch/nn/functional.py(7): linear", 30, 20)]
    assert _places(tmp_path, events) == [(10, 100, "train.py:5", None, "main")]


def test_module_path_is_part_of_a_place(tmp_path: Path) -> None:
    events = [frame("train.py(5): main", 10, 90), frame("nn.Module: Linear_0", 30, 20)]
    assert [row[3] for row in _places(tmp_path, events)] == [None, "Linear_0", None]


def test_long_call_of_a_built_in_function_is_named_and_a_short_one_is_not(tmp_path: Path) -> None:
    main = frame("train.py(5): main", 10, 900)
    long, short = frame("<built-in function sleep>", 30, 500), frame("<built-in function sleep>", 30, 50)
    assert [row[4] for row in _places(tmp_path, [main, long])] == ["main", "main > sleep", "main"]
    assert [row[4] for row in _places(tmp_path, [main, short])] == ["main"]


def test_call_around_a_frame_of_the_program_is_not_made_by_it(tmp_path: Path) -> None:
    call, inner = frame("<built-in function exec>", 0, 900), frame("train.py(5): main", 10, 800)
    assert _places(tmp_path, [call, inner]) == [(10, 810, "train.py:5", None, "main")]


def test_recorded_lines_are_nearer_than_the_line_that_a_frame_begins_at(tmp_path: Path) -> None:
    events = [frame("train.py(5): main", 10, 90), _line("train.py(8): main", 30, 20)]
    assert _places(tmp_path, events) == [
        (10, 30, "train.py:5", None, "main"),
        (30, 50, "train.py:8", None, "main"),
        (50, 100, "train.py:5", None, "main"),
    ]


def test_recorded_line_as_long_as_the_frame_that_it_calls_is_around_it(tmp_path: Path) -> None:
    events = [
        frame("train.py(5): main", 10, 90),
        frame("model.py(7): forward", 30, 20),
        _line("train.py(8): main", 30, 20),
    ]
    assert [row[2] for row in _places(tmp_path, events)] == ["train.py:5", "model.py:7", "train.py:5"]


def test_threads_have_places_of_their_own(tmp_path: Path) -> None:
    events = [frame("train.py(5): main", 10, 90), frame("data.py(7): load", 30, 20, tid=101)]
    assert _places(tmp_path, events) == [(10, 100, "train.py:5", None, "main"), (30, 50, "data.py:7", None, "load")]


def test_ops_take_their_line_from_a_recorded_line(tmp_path: Path) -> None:
    events = [frame("train.py(5): main", 10, 90), _line("train.py(8): main", 30, 20), op("aten::mul", 35, 5)]
    assert linked(tmp_path, events).ops["source"].tolist()[-1] == "train.py:8"
