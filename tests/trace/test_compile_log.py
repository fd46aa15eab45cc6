"""The logs that torch writes of its compiler: records with payloads, damaged lines, logs of several processes."""

import json
from pathlib import Path

import pytest

from bottleneck.errors import TraceError
from bottleneck.trace.compile_log import compile_log_files, read_compile_logs

BREAK = """Graph break in user code at /home/ada/net.py:14
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Unsupported Tensor.item() call with capture_scalar_outputs=False
  Explanation: Dynamo does not support it.

User code traceback:
  File "/home/ada/main.py", line 3, in <module>
    model(x)
  File "/home/ada/net.py", line 14, in forward
    s = y.sum().item()

Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/torch/_dynamo/symbolic_convert.py", line 1, in wrapper
"""
OLD_BREAK = """Graph break in user code at /home/ada/net.py:14
Reason: Unsupported: Tensor.item
User code traceback:
  File "/home/ada/net.py", line 14, in forward
    s = y.sum().item()
"""
CODE = """cpp_fused_relu_0 = async_compile.cpp_pybinding(['float*'], '''...''')
def call(args):
    primals_1, = args
    extern_kernels.addmm(primals_1)
"""


def record(fields: dict[str, object], payload: str = "", at: str = "26750 ", frame: str | None = "0/0") -> str:
    if frame is not None:
        number, _, again = frame.partition("/")
        fields = {**fields, "frame_id": int(number), "frame_compile_id": int(again), "attempt": 1}
    head = f"V1129 05:47:11.226000 {at}torch/_dynamo/utils.py:2350] {json.dumps(fields)}\n"
    return head + "".join(f"\t{line}\n" for line in payload.splitlines())


def artifact(name: str, payload: str, frame: str | None = "0/0", at: str = "26750 ") -> str:
    return record({"artifact": {"name": name, "encoding": "string"}, "has_payload": "00"}, payload, at, frame)


def metrics(frame: str, at: str = "26750 ", **others: object) -> str:
    fields = {"co_name": "forward", "co_filename": "/home/ada/net.py", "co_firstlineno": 10, "graph_op_count": 0}
    return record({"compilation_metrics": {**fields, "entire_frame_compile_time_s": 1.5, **others}}, "", at, frame)


WHOLE = (
    artifact("torch_version", json.dumps({"pytorch_version": "2.13.0"}), None)
    + record({"chromium_event": {}, "has_payload": "00"}, '{"name": "dynamo"}')
    + artifact("dynamo_graph_break_reason", BREAK)
    + record({"inductor_output_code": {"filename": "/tmp/a.py"}, "has_payload": "00"}, CODE)
    + record({"inductor_output_code": {"filename": "/tmp/b.py"}}, CODE.replace("primals_1", "tangents_1"))
    + record({"dynamo_cpp_guards_str": {}, "has_payload": "00"}, "+- EQUALS_MATCH: L['n'] == 4  # x", frame="0/1")
    + metrics("0/0")
    + artifact("recompile_reasons", json.dumps(["0/0: n == 3", "0/0: m == 1"]), "0/1")
    + metrics("0/1", graph_op_count=7)
)


def log_in(folder: Path, text: str | bytes = WHOLE, name: str = "dedicated_log_torch_trace_ab12.log") -> Path:
    folder.mkdir(exist_ok=True)
    content = text.encode() if isinstance(text, str) else text
    (folder / name).write_bytes(content)
    return folder


def test_a_log_tells_graphs_breaks_and_recompiles(tmp_path: Path) -> None:
    (log,) = read_compile_logs(log_in(tmp_path))
    assert (log.torch_version, log.damaged, log.rank) == ("2.13.0", 0, None)
    assert [(one.compile_id, one.ops, one.kernels) for one in log.health.graphs] == [("0/0", 0, 2), ("0/1", 7, None)]
    (one,) = log.health.breaks
    assert (one.cause, one.source, one.lines) == ("value", "net.py:14", ("main.py:3", "net.py:14"))
    assert one.text == "Unsupported Tensor.item() call with capture_scalar_outputs=False"
    (again,) = log.health.recompiles
    assert again.guard_words == "n: 3, then 4"


def test_a_log_of_an_older_torch_is_read_too(tmp_path: Path) -> None:
    text = artifact("dynamo_graph_break_reason", OLD_BREAK, at="") + metrics("0/0", at="")
    (log,) = read_compile_logs(log_in(tmp_path, text))
    assert [(one.cause, one.source) for one in log.health.breaks] == [("value", "net.py:14")]
    assert log.torch_version is None


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    lines = WHOLE.encode().splitlines(keepends=True)
    torn = b'V1129 05:47:11.226000 1 torch/x.py:1] {"compilation_metrics": {\n'
    deep = b'V1129 05:47:11.226000 1 torch/x.py:1] {"compilation_metrics": ' + b"[" * 100_000 + b"\n"
    noise = b"\xff\xfe not a record\n"
    (log,) = read_compile_logs(log_in(tmp_path, b"".join([noise, torn, deep, *lines])))
    assert log.damaged == 3 and log.health.is_partial
    assert len(log.health.graphs) == 2


def test_a_line_beyond_all_bounds_is_passed_over(tmp_path: Path) -> None:
    long = b'V1129 05:47:11.226000 1 torch/x.py:1] {"compilation_metrics": "' + b"x" * 2**24 + b'"}\n'
    (log,) = read_compile_logs(log_in(tmp_path, long + WHOLE.encode()))
    assert log.damaged == 1 and len(log.health.graphs) == 2


@pytest.mark.parametrize("cut", range(0, len(WHOLE), 97))
def test_a_log_that_was_cut_off_tells_what_it_has_or_says_that_it_has_nothing(tmp_path: Path, cut: int) -> None:
    folder = log_in(tmp_path, WHOLE[:cut])
    if cut > WHOLE.index("Graph Break Reason"):
        (log,) = read_compile_logs(folder)
        assert log.health.graphs or log.health.breaks
    else:
        with pytest.raises(TraceError, match="holds no compilation"):
            read_compile_logs(folder)


@pytest.mark.parametrize("fields", [[], {}, "x", 3, None, {"compile_id": []}, {"co_name": {}, "restart_reasons": 4}])
def test_metrics_of_any_form_are_survived(tmp_path: Path, fields: object) -> None:
    text = record({"compilation_metrics": fields}) + record({"artifact": fields}, frame="0/0") + WHOLE
    (log,) = read_compile_logs(log_in(tmp_path, text))
    assert log.health.breaks


def test_each_process_has_its_log_and_those_that_compiled_nothing_are_left_out(tmp_path: Path) -> None:
    log_in(tmp_path, WHOLE, "dedicated_log_torch_trace_rank_0_a.log")
    log_in(tmp_path, WHOLE + metrics("1/0"), "dedicated_log_torch_trace_rank_1_b.log")
    log_in(tmp_path, "", "dedicated_log_torch_trace_c.log")
    assert [log.rank for log in read_compile_logs(tmp_path)] == [1, 0]


def test_a_folder_without_logs_is_left_to_other_readers(tmp_path: Path) -> None:
    assert compile_log_files(tmp_path) == []
    (tmp_path / "notes.log").write_text("nothing of torch\n")
    assert compile_log_files(tmp_path / "notes.log") == []
    log_in(tmp_path)
    (file,) = compile_log_files(tmp_path)
    assert compile_log_files(file) == [file]


def test_logs_of_a_program_that_compiled_nothing_are_an_error_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read_compile_logs(log_in(tmp_path, artifact("torch_version", "{}", None)))
    assert "TORCH_TRACE=FOLDER" in caught.value.fix
