import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from bottleneck.harness.torch_state import describe_compilation, relative_to, search_path
from bottleneck.schema.measurements import Compilation, GraphBreak


def reason(text: str, *frames: tuple[str, int], graph_break: bool = True) -> SimpleNamespace:
    stack = [SimpleNamespace(filename=name, lineno=line) for name, line in frames]
    return SimpleNamespace(reason=text, user_stack=stack, graph_break=graph_break)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A compiler that has captured three graphs, and has compiled one of two functions twice more."""
    counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
    counters["stats"]["unique_graphs"] = 3
    utils = SimpleNamespace(counters=counters, graph_break_reasons=[])
    frames = SimpleNamespace(FRAME_COMPILE_COUNTER=Counter({0: 3, 1: 1}))
    for name, module in (("", SimpleNamespace()), (".utils", utils), (".convert_frame", frames)):
        monkeypatch.setitem(sys.modules, f"torch._dynamo{name}", module)  # type: ignore[arg-type]
    return utils


def test_a_program_without_the_compiler_has_compiled_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    assert describe_compilation("/") == Compilation(0, 0, 0)


def test_a_compiler_that_was_imported_and_never_used_has_compiled_nothing(compiler: SimpleNamespace) -> None:
    compiler.counters.clear()
    sys.modules["torch._dynamo.convert_frame"].FRAME_COMPILE_COUNTER.clear()
    assert describe_compilation("/") == Compilation(0, 0, 0)


def test_graphs_breaks_and_recompiles_are_reported_with_the_innermost_line_of_the_program(
    compiler: SimpleNamespace, tmp_path: Path
) -> None:
    compiler.counters["graph_break"].update({"one": 2, "two": 1})
    net, library = str(tmp_path / "src" / "net.py"), "/usr/lib/python3/site-packages/torch/nn.py"
    compiler.graph_break_reasons += [
        reason("print\n  Explanation: …", ("main.py", 1), (net, 7), (library, 9)),
        reason("print\n  Explanation: …", ("main.py", 1), (net, 7), (library, 9)),
        reason("elsewhere", ("/elsewhere/other.py", 3)),
        reason("no break", (net, 8), graph_break=False),
        reason("nowhere"),
    ]
    assert describe_compilation(str(tmp_path)) == Compilation(
        3, 3, 2, (GraphBreak("other.py", 3, "elsewhere", 1), GraphBreak("src/net.py", 7, "print", 2))
    )


def test_a_compiler_of_another_version_tells_nothing(compiler: SimpleNamespace) -> None:
    del compiler.counters
    assert describe_compilation("/") is None


def test_where_people_keep_their_files_is_not_reported(tmp_path: Path) -> None:
    assert relative_to(str(tmp_path), str(tmp_path / "a" / "b.py")) == "a/b.py"
    assert relative_to(str(tmp_path / "a"), str(tmp_path / "b.py")) == "b.py"


def test_folders_of_the_search_path_are_those_inside_longest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [str(tmp_path), str(tmp_path / "src" / "deep"), str(tmp_path / "src"), "/usr/lib", ""]
    monkeypatch.setattr(sys, "path", [*entries, str(tmp_path / ".venv/lib/python3/site-packages")])
    assert search_path(str(tmp_path)) == ("src/deep", "src", ".")
