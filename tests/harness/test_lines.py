"""Lines of calls, from the profiler's event tree: whose they are, how long they last, and what the trace then holds."""

import gc
import gzip
import json
import linecache
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.harness.lines import (
    CATEGORY,
    Line,
    WithLines,
    find_lines,
    is_program,
    siblings_in,
    texts_of,
    with_cell_numbers,
)
from bottleneck.harness.operator_lines import OperatorLines

_PROCESS, _THREAD = 100, 7


class _Uncollected:
    """Stands for an event whose kind torch cannot show."""

    children, start_tid = (), 0

    @property
    def extra_fields(self) -> Any:
        raise TypeError("Unregistered type")


def _event(start: int, length: int, caller: tuple[str, int, str] | None = None, *children: Any) -> Any:
    fields = {} if caller is None else {"caller": SimpleNamespace(**dict(zip(_CALLER, caller, strict=True)))}
    return SimpleNamespace(
        name=f"event {start}",
        start_time_ns=start,
        end_time_ns=start + length,
        start_tid=1,
        extra_fields=SimpleNamespace(**fields),
        children=list(children),
    )


_CALLER = ("file_name", "line_number", "function_name")
_MAIN_8, _MAIN_9 = ("train.py", 8, "main"), ("train.py", 9, "main")


def _activities(*starts: int) -> list[Any]:
    return [Line(f"event {start}", start, start + 1, _PROCESS, _THREAD) for start in starts]


def _found(*roots: Any) -> list[tuple[str, int, int]]:
    lines = find_lines(siblings_in(list(roots)), _activities(*range(100)))
    assert all((line.process, line.thread) == (_PROCESS, _THREAD) for line in lines)
    return [(line.label, line.start_ns, line.end_ns) for line in lines]


def test_call_becomes_a_stretch_at_its_line_a_nanosecond_wider() -> None:
    assert _found(_event(10, 20, _MAIN_8)) == [("train.py(8): main", 9, 31)]


def test_calls_that_follow_each_other_at_one_line_are_one_stretch() -> None:
    calls = _event(10, 5, _MAIN_8), _event(20, 5, _MAIN_8), _event(30, 5, _MAIN_9), _event(40, 5, _MAIN_8)
    assert [(start, end) for _, start, end in _found(*calls)] == [(9, 26), (29, 36), (39, 46)]


def test_a_line_goes_on_in_c_up_to_the_next_in_the_frame_that_was_open_before_the_window() -> None:
    """A function of C is not recorded: its time is that of the line whose call was the last before it."""
    inside = _event(10, 5, ("other.py", 3, "inner")), _event(190_000, 5, ("other.py", 4, "inner"))
    calls = (
        _event(5, 200_000, _MAIN_8, *inside),
        _event(200_100, 5, _MAIN_9),
        _event(900_000, 5, _MAIN_8),
        _event(901_000, 5, _MAIN_9),
    )
    found = find_lines(siblings_in(list(calls)), _activities(5))
    stretches = {(line.label, line.start_ns): line.end_ns for line in found}
    assert stretches["train.py(9): main", 200_099] == 900_000 - 1
    assert stretches["train.py(8): main", 899_999] == 900_006  # nothing long follows
    # Functions that are called in the window have a first line of their own.
    assert stretches["other.py(3): inner", 9] == 16


def test_op_between_two_calls_parts_them() -> None:
    assert len(_found(_event(10, 5, _MAIN_8), _event(16, 2), _event(20, 5, _MAIN_8))) == 2


def test_op_of_an_operator_between_two_calls_has_its_line() -> None:
    text = ["def main(x, order):", "    y = f(x)", "    z = x[order][3:5]", "    return g(y, z)"]
    first, last = ("train.py", 2, "main"), ("train.py", 4, "main")
    index, unknown, collected = _event(16, 4), _event(21, 1), _Uncollected()
    index.name, unknown.name = "aten::index", "aten::sort"
    events = [_event(10, 5, first), index, unknown, collected, _event(30, 5, last)]
    activities = [*_activities(*range(100)), Line("aten::index", 16, 17, _PROCESS, _THREAD)]
    for lines, expected in ((text, ["train.py(3): main"]), ([], [])):
        found = find_lines([events], activities, OperatorLines(lambda _, lines=lines: lines))
        assert [line.label for line in found] == ["train.py(2): main", *expected, "train.py(4): main"]


def test_op_at_the_beginning_of_the_window_has_no_line_of_the_module() -> None:
    op = _event(5, 2)
    op.name = "aten::add"
    operators = OperatorLines(lambda _: ["x = y + 1", "f(x)"])
    assert len(find_lines([[op, _event(10, 5, ("train.py", 2, "<module>"))]], _activities(10), operators)) == 1


def test_calls_inside_libraries_are_left_out_and_those_inside_them_found() -> None:
    inner = _event(12, 3, ("data.py", 4, "__getitem__"))
    library = _event(11, 8, ("pytest/__init__.py", 700, "load"), inner)
    assert _found(_event(10, 20, None, library)) == [("data.py(4): __getitem__", 11, 16)]


def test_event_that_torch_cannot_show_is_passed_over() -> None:
    assert _found(_Uncollected(), _event(10, 20, _MAIN_8)) == [("train.py(8): main", 9, 31)]


def test_thread_that_no_activity_names_has_no_lines() -> None:
    assert find_lines([[_event(10, 20, _MAIN_8)]], _activities(11)) == []


def test_deep_nesting_does_not_recurse() -> None:
    event = _event(0, 10_000, _MAIN_8)
    for _ in range(5000):
        event = _event(0, 10_000, None, event)
    assert len(_found(event)) == 1


@pytest.mark.parametrize(
    ("file", "program"),
    [
        ("train.py", True),
        ("package/model.py", True),
        ("/home/me/train.py", True),
        ("pytest/__init__.py", False),
        ("json/decoder.py", False),
        ("bottleneck/harness/child.py", False),
        ("/usr/lib/python3.12/json/decoder.py", False),
        ("/venv/site-packages/torch/nn/modules/module.py", False),
        ("<string>", False),
        ("/tmp/torchinductor_me/ab/any.py", False),
        ("l3/cl37erpm6uksnibagkv747l5z3ezqdey4xzzz4f5gn6nacjr7kjx.py", False),
    ],
)
def test_the_program_is_what_is_neither_installed_nor_ours(file: str, program: bool) -> None:
    assert is_program(file) is program


def test_version_of_torch_without_the_tree_gives_what_it_has() -> None:
    activities = _activities(1, 2)
    assert WithLines(SimpleNamespace(trace_activities=lambda: activities)).trace_activities() == activities


def test_activity_whose_name_torch_has_lost_is_left_out() -> None:
    def lost() -> str:
        return b"encodings/ascii.py(0): \xd0".decode()

    named, unnamed = SimpleNamespace(name=lambda: "aten::ones"), SimpleNamespace(name=lost)
    results = SimpleNamespace(trace_activities=lambda: [named, unnamed])
    assert WithLines(results).trace_activities() == [named]


def test_event_whose_name_torch_has_lost_does_not_keep_lines_from_being_added(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> str:
        return b"\xc0".decode()

    looked_at: list[str] = []

    def looking(_: object, activities: Iterable[Any]) -> list[Any]:
        looked_at.extend(each.name() for each in activities)
        return []

    monkeypatch.setattr("bottleneck.harness.lines.find_lines", looking)
    events = [SimpleNamespace(name=lost), SimpleNamespace(name=lambda: "aten::ones")]
    with_lines = WithLines(SimpleNamespace(events=lambda: events))
    monkeypatch.setattr(WithLines, "siblings", [[object()]])
    assert with_lines.added() == [] and looked_at == ["aten::ones"]


def test_trace_of_a_real_window_holds_the_lines_of_its_calls(tmp_path: Path) -> None:
    import torch

    from bottleneck.harness.window import Detail, ProfilerWindow

    window = ProfilerWindow(torch, Detail())
    window.start()  # not by the guard, which would watch torch for the rest of these tests
    first_line = _work.__code__.co_firstlineno
    _work(torch)
    window._profiler.__exit__(None, None, None)
    window.export(tmp_path / "trace.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    lines = {event["name"]: event for event in events if event.get("cat") == CATEGORY}
    file = next(name for name in lines if name.endswith(": _work")).partition("(")[0]
    line, collected = (lines[f"{file}({first_line + number}): _work"] for number in (2, 3))
    call = next(event for event in events if event.get("name") == "<built-in function sorted>")
    assert line["ts"] <= call["ts"]
    assert call["ts"] + call["dur"] <= line["ts"] + line["dur"]
    assert collected["tid"] == call["tid"]
    assert "sorted(range(1000))" in texts_of(window.lines, str(tmp_path)).values()


def _work(torch: Any) -> None:
    torch.ones(3)
    sorted(range(1000))
    gc.collect()


def _line(label: str, length_ns: int = 1) -> Line:
    return Line(label, 0, length_ns, _PROCESS, _THREAD)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two lines of code that stands alone in sys.path."""
    (tmp_path / "model.py").write_text("import torch\n    loss = loss.item()  # slow\n")
    monkeypatch.setattr(sys, "path", [""])
    return tmp_path


def _texts(folder: Path, *lines: Line, loaded_s: float = math.inf) -> dict[str, str]:
    return texts_of(lines, str(folder), loaded_s)


def test_text_of_a_line_is_read_by_its_whole_name_or_from_sys_path(program: Path) -> None:
    assert _texts(program, _line("model.py(2): f")) == {"model.py:2": "loss = loss.item()"}
    assert _texts(program, _line(f"{program}/model.py(2): f")) == {"model.py:2": "loss = loss.item()"}


def test_line_beyond_the_file_and_file_that_is_none_have_no_text(program: Path) -> None:
    (program / "folder.py").mkdir()
    assert _texts(program, _line("model.py(3): f"), _line("folder.py(1): f"), _line("gone.py(1): f")) == {}


def test_file_that_was_written_after_the_program_was_loaded_has_no_text(program: Path) -> None:
    assert _texts(program, _line("model.py(2): f"), loaded_s=1.0) == {}


def test_two_files_of_one_name_have_no_text_where_they_differ(program: Path) -> None:
    (program / "other").mkdir()
    (program / "other" / "model.py").write_text("import torch\nx = 2\n")
    both = [_line(f"{place}model.py({number}): f") for place in ("", "other/") for number in (1, 2)]
    assert _texts(program, *both) == {"model.py:1": "import torch"}


def test_name_that_several_entries_of_sys_path_hold_has_no_text(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program / "other").mkdir()
    (program / "other" / "model.py").write_text("import torch\nx = 2\n")
    monkeypatch.setattr(sys, "path", ["", "other"])
    assert _texts(program, _line("model.py(2): f")) == {}


def test_cell_of_a_notebook_has_its_text_from_memory(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linecache.cache, "/gone/cell.py", (5, None, ["x = 1\n"], "/gone/cell.py"))
    assert _texts(program, _line("/gone/cell.py(1): <module>")) == {"cell.py:1": "x = 1"}


CELL = "/tmp/ipykernel_77/2708535517.py"


def _notebook(numbers: dict[str, int]) -> Any:
    """Stands for IPython, which knows the cells of a notebook by the names of their files."""
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map=numbers))
    return SimpleNamespace(InteractiveShell=SimpleNamespace(_instance=shell))


def test_frames_and_lines_of_a_notebook_tell_the_number_of_their_cell(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "IPython.core.interactiveshell", _notebook({CELL: 3}))
    monkeypatch.setitem(linecache.cache, CELL, (5, None, ["x = 1\n"], CELL))
    activities = [_line(f"{CELL}(1): step"), _line("train.py(2): main"), _line("/tmp/ipykernel_77/9.py(1): f")]
    shown = WithLines(SimpleNamespace(trace_activities=lambda: activities, experimental_event_tree=None))
    names = ["<ipython-input-3-2708535517>(1): step", "train.py(2): main", "/tmp/ipykernel_77/9.py(1): f"]
    assert [each.name() for each in shown.trace_activities()] == names
    assert [each.resource_id() for each in shown.trace_activities()] == [_THREAD] * 3
    assert _texts(program, activities[0]) == {"cell 3:1": "x = 1"}


def test_without_ipython_names_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in (SimpleNamespace(), SimpleNamespace(InteractiveShell=SimpleNamespace(_instance=None))):
        monkeypatch.setitem(sys.modules, "IPython.core.interactiveshell", shell)  # type: ignore[arg-type]
        assert with_cell_numbers(f"{CELL}(1): step") == f"{CELL}(1): step"


def test_lines_with_the_most_time_keep_their_text_where_there_are_too_many(program: Path) -> None:
    (program / "model.py").write_text("".join(f"x = {number}\n" for number in range(1, 1001)))
    found = _texts(program, *(_line(f"model.py({number}): f", number) for number in range(1, 1001)))
    assert sorted(found) == sorted(f"model.py:{number}" for number in range(701, 1001))
