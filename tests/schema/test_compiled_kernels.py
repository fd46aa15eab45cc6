"""The file of compiled kernels: what was written is read again, and nothing else is taken for it."""

import json
from pathlib import Path

import pytest

from bottleneck.errors import TraceError
from bottleneck.schema.compiled_kernels import (
    Compiled,
    CompiledBuffer,
    CompiledKernel,
    CompiledOp,
    as_text,
    compiled_file,
    read_compiled,
)
from bottleneck.schema.sources import find_traces

KERNEL = CompiledKernel(
    "graph_0_cpp_fused_mul_0",
    (CompiledBuffer((4, 2), (2, 1), "float", read=(8, 8)), CompiledBuffer((), (), "long int", written=(0, 1))),
    (CompiledOp("aten::mul", "[[4, 2], []]", '["float", "Scalar"]', "[[2, 1], []]", '["", "2"]', 0.5, 3),),
)


def text(**changes: object) -> str:
    return json.dumps(json.loads(as_text(Compiled((KERNEL,)))) | changes)


def kernel(**changes: object) -> str:
    data = json.loads(as_text(Compiled((KERNEL,))))
    data["kernels"][0] |= changes
    return json.dumps(data)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / compiled_file(3)
    path.write_text(as_text(Compiled((KERNEL,), "half of it")))
    assert path.name == "compiled.rank3.json"
    assert read_compiled(path) == Compiled((KERNEL,), "half of it")


def test_a_recording_without_compiled_code_has_no_such_file(tmp_path: Path) -> None:
    assert read_compiled(tmp_path / compiled_file(0)) is None


@pytest.mark.parametrize(
    "data",
    [
        "",
        "[]",
        "[" * 100_000,
        "\ud800",
        text(schema="bottleneck/compiled/9"),
        text(kernels=[{"name": 7}]),
        kernel(buffers=[{"dims": [-1], "strides": [1], "type": "float"}]),
        kernel(buffers=[{"dims": [4], "strides": [1], "type": "float", "read": [5, 4]}]),
        kernel(buffers=[{"dims": [4], "strides": [1], "type": "float", "read": [10**30, 10**30]}]),
        kernel(ops=[{"name": "a", "dims": "", "types": "", "strides": "", "concrete": "", "share": 2.0}]),
        kernel(ops=[{"name": "a", "dims": "", "types": "", "strides": "", "concrete": "", "calls": -1}]),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, data: str) -> None:
    path = tmp_path / compiled_file(0)
    path.write_bytes(data.encode("utf-8", "surrogatepass"))
    with pytest.raises(TraceError, match="does not describe compiled kernels"):
        read_compiled(path)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    path = tmp_path / compiled_file(0)
    path.mkdir()
    with pytest.raises(TraceError, match="cannot read"):
        read_compiled(path)


def test_the_file_is_no_trace_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / compiled_file(0)).write_text(as_text(Compiled((KERNEL,))))
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    assert [source.trace.name for source in find_traces(tmp_path)] == ["trace.json"]
