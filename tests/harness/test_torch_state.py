import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bottleneck.harness.torch_state import (
    built_with,
    describe_compilation,
    linked_libraries,
    relative_to,
    search_path,
)
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
    assert describe_compilation("/") == Compilation(0, 0, 0, cudagraph_skips=0)


def test_a_compiler_that_was_imported_and_never_used_has_compiled_nothing(compiler: SimpleNamespace) -> None:
    compiler.counters.clear()
    sys.modules["torch._dynamo.convert_frame"].FRAME_COMPILE_COUNTER.clear()
    assert describe_compilation("/") == Compilation(0, 0, 0, cudagraph_skips=0)


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
    compiler.counters["inductor"]["cudagraph_skips"] = 2
    compilation = describe_compilation(str(tmp_path))
    assert compilation is not None and compilation.health is not None
    assert replace(compilation, health=None) == Compilation(
        3, 3, 2, (GraphBreak("other.py", 3, "elsewhere", 1), GraphBreak("src/net.py", 7, "print", 2)), 2
    )
    assert [(one.source, one.count) for one in compilation.health.breaks] == [
        ("src/net.py:7", 2),
        ("other.py:3", 1),
        (None, 1),
    ]
    assert [one.count for one in compilation.health.skips] == [2]


def test_metrics_and_failed_guards_of_the_compiler_become_graphs_and_recompiles(
    compiler: SimpleNamespace, tmp_path: Path
) -> None:
    net = str(tmp_path / "net.py")
    fields = {"co_name": "forward", "co_filename": net, "co_firstlineno": 3, "graph_op_count": 2, "guard_count": 9}
    first = SimpleNamespace(compile_id="0/0", entire_frame_compile_time_s=2.0, **fields)
    # Torch before 2.6 numbers a compilation by its frame and the entries that its cache had.
    second = SimpleNamespace(frame_key="1", cache_size=1, entire_frame_compile_time_s=1.0, **fields)
    compiler.get_compilation_metrics = lambda: [first, second]
    compiler.guard_failures = {"code": ["0/0: L['n'] == 3   # net.py:4 in forward"]}
    compilation = describe_compilation(str(tmp_path))
    assert compilation is not None and compilation.health is not None
    health = compilation.health
    assert [(one.compile_id, one.source, one.seconds) for one in health.graphs] == [
        ("0/0", "net.py:3", 2.0),
        ("0/1", "net.py:3", 1.0),
    ]
    assert [one.guard_words for one in health.recompiles] == ["n: 3, then another"]
    assert not health.is_partial


def test_a_full_list_of_metrics_tells_that_earlier_ones_are_missing(compiler: SimpleNamespace) -> None:
    rows = [
        SimpleNamespace(compile_id=f"{at}/0", co_name="f", co_filename="a.py", co_firstlineno=1) for at in range(64)
    ]
    compiler.get_compilation_metrics = lambda: rows
    compilation = describe_compilation("/")
    assert compilation is not None and compilation.health is not None and compilation.health.is_partial


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


def stand_in(build: str, cuda: str | None = None, cudnn: int | None = None, hip: str | None = None) -> SimpleNamespace:
    """A torch with this text of its build."""
    return SimpleNamespace(
        __config__=SimpleNamespace(show=lambda: build),
        version=SimpleNamespace(cuda=cuda, hip=hip),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: cudnn)),
        cuda=SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False),
    )


OF_INTEL = (
    "PyTorch built with:\n  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for Intel\n"
    "  - Intel(R) MKL-DNN v3.12.0 (Git Hash 80afa71)\n  - Build settings: BLAS_INFO=mkl, CXX_FLAGS= -DUSE_FBGEMM "
    "-DUSE_PYTORCH_QNNPACK, LAPACK_INFO=mkl, USE_MKL=ON, USE_NNPACK=ON,"
)
OF_ARM = "  - Intel(R) MKL-DNN v3.7.1 (Git\n  - Build settings: BLAS_INFO=open, LAPACK_INFO=open, USE_NNPACK=OFF"


def test_the_text_of_the_build_tells_the_libraries_and_their_versions() -> None:
    linked = {"MKL": "2024.2", "oneDNN": "3.12.0", "FBGEMM": "", "NNPACK": "", "QNNPACK": ""}
    assert linked_libraries(stand_in(OF_INTEL)) == linked
    assert built_with(stand_in(OF_INTEL)) == {"blas": "mkl", "lapack": "mkl"}
    assert linked_libraries(stand_in(OF_ARM)) == {"oneDNN": "3.7.1"}
    assert built_with(stand_in(OF_ARM)) == {"blas": "open", "lapack": "open"}


def test_a_torch_that_tells_nothing_of_its_build_has_no_known_libraries() -> None:
    silent = SimpleNamespace(version=SimpleNamespace(cuda=None), cuda=SimpleNamespace(is_available=lambda: False))
    assert (linked_libraries(silent), built_with(silent)) == ({}, {})


@pytest.mark.parametrize(
    ("number", "facts", "name", "version"),
    [
        (91002, {"cuda": "12.8"}, "cuDNN", "9.10.2"),
        (8902, {"cuda": "12.1"}, "cuDNN", "8.9.2"),
        (3002001, {"hip": "6.2"}, "MIOpen", "3.2.1"),
    ],
)
def test_versions_of_libraries_of_devices_are_read_from_their_numbers(
    number: int, facts: dict[str, str], name: str, version: str
) -> None:
    assert linked_libraries(stand_in("", cudnn=number, **facts)) == {name: version}
    assert linked_libraries(stand_in("", cudnn=None, **facts)) == {}
