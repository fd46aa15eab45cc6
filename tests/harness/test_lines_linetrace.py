import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from bottleneck.harness.lines import LineTracer, WithLines, _may_trace

PROGRAM = """
def outer(tracer, value):
    tracer.start()
    value = value + 1
    value = inner(value)
    tracer.stop()
    return value


def inner(value):
    doubled = value * 2
    return doubled


def fails(tracer):
    tracer.start()
    try:
        broken()
    except ValueError:
        pass
    tracer.stop()


def broken():
    raise ValueError
"""


@pytest.fixture
def program(tmp_path: Path) -> ModuleType:
    module = ModuleType("program")
    exec(compile(PROGRAM, str(tmp_path / "program.py"), "exec"), module.__dict__)
    return module


@pytest.fixture(autouse=True)
def untraced() -> object:
    """Takes away what a coverage tool or a debugger has set, and gives it back."""
    before = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(before)


def places(tracer: LineTracer) -> list[tuple[str, int]]:
    lines = sorted(tracer.lines, key=lambda line: line.start_ns)
    return [(line.label.rpartition(": ")[2], int(line.label.rpartition("(")[2].partition(")")[0])) for line in lines]


def test_every_line_has_its_stretch_and_those_of_a_call_lie_inside(program: ModuleType) -> None:
    tracer = LineTracer()
    assert program.outer(tracer, 1) == 4
    found = [place for place in places(tracer) if place[0] in {"outer", "inner"}]
    assert found == [("outer", 3), ("outer", 4), ("outer", 5), ("inner", 11), ("inner", 12), ("outer", 6)]
    by_place = dict(zip(places(tracer), sorted(tracer.lines, key=lambda line: line.start_ns), strict=True))
    call, body = by_place["outer", 5], by_place["inner", 11]
    assert call.start_ns <= body.start_ns <= body.end_ns <= call.end_ns


def test_afterwards_nothing_is_traced_and_nothing_held(program: ModuleType) -> None:
    tracer = LineTracer()
    program.outer(tracer, 1)
    assert sys.gettrace() is None
    count = len(tracer.lines)
    program.inner(1)
    tracer.stop()
    assert len(tracer.lines) == count


def test_an_exception_ends_the_lines_that_it_leaves(program: ModuleType) -> None:
    tracer = LineTracer()
    program.fails(tracer)
    assert ("broken", 25) in places(tracer)


def test_a_debugger_keeps_its_hook(program: ModuleType) -> None:
    def theirs(*_: object) -> None:
        return None

    sys.settrace(theirs)
    tracer = LineTracer()
    program.outer(tracer, 1)
    assert sys.gettrace() is theirs and tracer.lines == []


def test_a_compiled_program_is_followed_only_where_that_is_known_to_be_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.convert_frame", raising=False)  # of tests that compiled here
    assert _may_trace((3, 12))
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", SimpleNamespace(FRAME_COMPILE_COUNTER={0: 1}))
    assert not _may_trace((3, 12)) and _may_trace((3, 11))


class Activity:
    def __init__(self, label: str) -> None:
        self._label = label

    def name(self) -> str:
        return self._label


def test_lines_that_were_followed_stand_for_the_profilers_frames_of_the_same_files(program: ModuleType) -> None:
    tracer = LineTracer()
    program.outer(tracer, 1)
    kept = ["aten::add", "nn.Module: Net_0", "typing.py(359): inner", "<built-in function add>"]
    results = SimpleNamespace(trace_activities=lambda: [Activity(name) for name in [*kept, "program.py(2): outer"]])
    names = [each.name() for each in WithLines(results, tracer.lines).trace_activities()]
    assert names[:4] == kept and "program.py(2): outer" not in names
    assert len(names) == 4 + len(tracer.lines)
