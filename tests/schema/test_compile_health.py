"""What torch tells of its compilations becomes graphs, breaks, recompiles and skips with their lines."""

from typing import Any

import pytest

from bottleneck.schema.compile_causes import (
    BREAK_CAUSES,
    BREAKS,
    OTHER_BREAK,
    OTHER_RECOMPILE,
    OTHER_SKIP,
    RECOMPILE_CAUSES,
    RECOMPILES,
    SKIP_CAUSES,
    SKIPS,
    cause_of,
)
from bottleneck.schema.compile_health import (
    BreakEvent,
    CodeFrame,
    CompileEvents,
    CompileHealth,
    first_line,
    grouped_reasons,
    is_own_file,
    summarize,
)
from bottleneck.schema.op_names import file_of

NET, LIBRARY = "/home/ada/net.py", "/usr/lib/python3.12/site-packages/lib/blocks.py"


def metrics(compile_id: str, name: str = "forward", line: int = 10, **others: Any) -> dict[str, Any]:
    fields = {"compile_id": compile_id, "co_name": name, "co_filename": NET, "co_firstlineno": line}
    return {**fields, "graph_op_count": 3, "guard_count": 20, "entire_frame_compile_time_s": 2.0, **others}


def health_of(*rows: dict[str, Any], **events: Any) -> CompileHealth:
    return summarize(CompileEvents(list(rows), **events), file_of, is_own_file)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        # torch 2.13
        ("Unsupported Tensor.item() call with capture_scalar_outputs=False", "value"),
        ("Failed to trace builtin operator\n  Explanation: Dynamo does not know how to trace builtin operator `print` "
         "with argument types ['str']\n  Hint: add it to reorderable_logging_functions", "print"),
        ("Failed to trace builtin operator\n  Explanation: Dynamo does not know how to trace builtin operator `ord` "
         "with argument types ['str']\n  Hint: add it to reorderable_logging_functions", "builtin"),
        ("Call to `torch._dynamo.graph_break()`", "inserted"),
        ("Data-dependent branching", "branch"),
        ("Dynamic shape operator", "shape"),
        ("Attempted to call function marked as skipped", "library"),
        ("Skip calling `torch.compiler.disable()`d function", "disabled"),
        ("Dynamo recompile limit exceeded", "limit"),
        ("Unsupported Tensor.backward() call", "backward"),
        ("Unsupported context manager", "context"),
        ("Attempted to wrap sparse Tensor", "other"),
        # torch 2.4
        ("Tensor.item", "value"),
        ("call_function BuiltinVariable(print) [ConstantVariable(str: 'x')] {}", "print"),
        ("generic_jump TensorVariable()", "branch"),
        ("'skip function graph_break in file torch/_dynamo/decorators.py'", "inserted"),
    ],
)  # fmt: skip
def test_texts_of_both_eras_tell_the_cause_of_a_break(text: str, cause: str) -> None:
    assert cause_of(text, BREAK_CAUSES, OTHER_BREAK) == cause


@pytest.mark.parametrize(
    ("guard", "cause", "words"),
    [
        ("0/0: tensor 'x' size mismatch at index 1. expected 8, actual 9", "size", "size 1 of x: 8, then 9"),
        ("0/0: tensor 'L['x']' size mismatch at index 0. expected 8, actual 9", "size", "size 0 of x: 8, then 9"),
        ("0/0: tensor 'x' dtype mismatch. expected Float, actual Double", "type", "x: Float, then Double"),
        ("0/0: tensor 'x' rank mismatch. expected 2, actual 3", "stride", "x: 2, then 3"),
        ("0/0: L['self'].scale == 1.0    # return z * self.scale  # net.py:21 in forward", "number",
         "self.scale: 1.0, then another"),
        ("0/0: len(L['xs']) == 3", "length", "len(xs): 3, then another"),
        ("0/0: GLOBAL_STATE changed: grad_mode", "mode", "GLOBAL_STATE changed: grad_mode"),
        ("0/0: ___check_obj_id(L['layer'], 7)", "identity", "___check_obj_id(layer, 7)"),
    ],
)  # fmt: skip
def test_a_recompile_names_guard_value_and_what_came(guard: str, cause: str, words: str) -> None:
    (again,) = health_of(metrics("0/0"), metrics("0/1", recompile_reason=guard)).recompiles
    assert (again.cause, again.guard_words) == (cause, words)
    assert (again.compile_id, again.failed, again.source, again.seconds) == ("0/1", "0/0", "net.py:10", 2.0)


def test_the_value_that_came_is_read_from_the_guards_of_the_graph_that_followed() -> None:
    rows = (metrics("0/0"), metrics("0/1", recompile_reason="0/0: n == 3"))
    guards = {"0/1": "| | +- EQUALS_MATCH: L['n'] == 5     # return x + n  # net.py:11 in forward"}
    assert health_of(*rows, guards=guards).recompiles[0].guard_words == "n: 3, then 5"
    later = metrics("0/2", recompile_reason="0/1: n == 4")
    assert health_of(*rows, later).recompiles[0].guard_words == "n: 3, then 4"


def test_of_several_reasons_that_about_something_new_is_what_changed() -> None:
    size = "0/0: tensor 'x' size mismatch at index 0. expected 64, actual 48"
    back = "0/1: tensor 'x' size mismatch at index 0. expected 48, actual 64"
    reasons = {"0/1": [size], "0/2": [back, "0/0: self.scale == 1.0"]}
    again = health_of(metrics("0/0"), metrics("0/1"), metrics("0/2"), recompiles=reasons).recompiles
    assert [one.subject for one in again] == ["x", "self.scale"]


def test_reasons_of_one_function_are_parted_where_torch_begins_with_its_newest_graph_again() -> None:
    texts = ["3/0: a == 1", "3/1: a == 2", "3/0: b == 1", "3/2: c == 1", "3/1: c == 1", "3/0: c == 1"]
    assert grouped_reasons(texts) == {"3/1": texts[:1], "3/2": texts[1:3], "3/3": texts[3:]}
    assert grouped_reasons(["no number"]) == {}


def test_a_recompile_without_a_reason_is_told_as_not_known() -> None:
    (again,) = health_of(metrics("0/0"), metrics("0/1")).recompiles
    assert (again.guard, again.cause) == (None, "other")
    assert again.guard_words == "torch does not tell which guard failed"
    assert again.code == OTHER_RECOMPILE.code


def test_the_code_against_a_new_size_names_the_tensor_if_it_has_a_name() -> None:
    reason = "0/0: tensor '{}' size mismatch at index 2. expected 8, actual 9"
    named, stacked = (
        health_of(metrics("0/0"), metrics("0/1", recompile_reason=reason.format(name))).recompiles[0]
        for name in ("ids", "___stack0")
    )
    assert named.code == "torch._dynamo.mark_dynamic(ids, 2)"
    assert stacked.code == "torch._dynamo.mark_dynamic(x, 2)"
    assert stacked.guard_words == "size 2 of value at break: 8, then 9"


def test_breaks_are_counted_by_line_and_have_the_innermost_line_of_the_program() -> None:
    frames = (CodeFrame(NET, 12, "forward"), CodeFrame(NET, 40, "helper"), CodeFrame(LIBRARY, 7, "read"))
    events = [BreakEvent("Tensor.item", frames, "0/0"), BreakEvent("Tensor.item", frames, "0/1")]
    (one,) = health_of(metrics("0/0"), metrics("0/1"), breaks=events).breaks
    assert (one.source, one.count, one.compile_ids, one.lines) == (
        "net.py:40",
        2,
        ("0/0", "0/1"),
        ("net.py:12", "net.py:40"),
    )


def test_a_break_is_given_to_the_part_of_its_function_that_ends_there() -> None:
    rows = (
        metrics("0/0", line=10, restart_reasons=["Tensor.item"]),
        metrics("1/0", "torch_dynamo_resume_in_forward_at_14", 14, restart_reasons=["Call to print"]),
        metrics("2/0", "torch_dynamo_resume_in_forward_at_16", 16),
        metrics("3/0", "other", 30, restart_reasons=["Tensor.item"]),
    )
    events = [
        BreakEvent("Tensor.item", (CodeFrame(NET, 14, "forward"),)),
        BreakEvent("Call to print", (CodeFrame(NET, 16, "torch_dynamo_resume_in_forward_at_14"),)),
    ]
    assert [one.compile_ids for one in health_of(*rows, breaks=events).breaks] == [("0/0",), ("1/0",)]


def test_a_break_in_a_library_alone_names_the_librarys_line() -> None:
    (one,) = health_of(breaks=[BreakEvent("Tensor.item", (CodeFrame(LIBRARY, 7, "read"),))]).breaks
    assert (one.source, one.lines) == ("blocks.py:7", ())


def test_the_compilation_of_a_backward_pass_adds_its_time() -> None:
    backward = {"compile_id": "0/0", "duration_us": 1_500_000}
    (graph,) = health_of(metrics("0/0"), backward).graphs
    assert (graph.seconds, graph.ops, graph.function) == (3.5, 3, "forward")


@pytest.mark.parametrize(
    ("counts", "start"),
    [(((0, 1), (0, 2)), "cold"), (((1, 0), (2, 0)), "warm"), (((1, 0), (0, 1)), "partly warm"), (((0, 0),), "")],
)
def test_hits_of_the_caches_tell_cold_from_warm(counts: tuple[tuple[int, int], ...], start: str) -> None:
    rows = [
        metrics(f"{at}/0", inductor_fx_local_cache_hit_count=hits, inductor_fx_local_cache_miss_count=misses)
        for at, (hits, misses) in enumerate(counts)
    ]
    assert health_of(*rows).start == start


def test_a_function_that_is_compiled_no_more_says_so_under_its_name() -> None:
    failed = {"compile_id": "0/1", "fail_type": "Unsupported", "fail_reason": "Dynamo recompile limit exceeded\n more"}
    _, graph = health_of(metrics("0/0"), failed).graphs
    assert (graph.function, graph.failure) == ("forward", "Dynamo recompile limit exceeded")


def test_skips_are_told_by_reason_and_line_and_untold_ones_counted() -> None:
    text = (
        "skipping cudagraphs due to skipping cudagraphs due to cpu device (arg0_1). Found from : \n"
        f'   File "{NET}", line 17, in f\n    x.add_(1)\n'
    )
    rows = metrics("0/0", cudagraph_skip_reason=text), metrics("1/0", cudagraph_skip_reason=text)
    told, untold = health_of(*rows, skips=3).skips
    assert (told.cause, told.source, told.count, told.text) == ("cpu", "net.py:17", 2, "cpu device (arg0_1)")
    assert (untold.cause, untold.source, untold.count) == ("other", None, 1)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("mutated inputs (1 instances)", "mutation"),
        ("multiple devices: cpu, cuda", "cpu"),
        ("graph with symbolic shapes inputs", "dynamic"),
        ("incompatible op aten.nonzero", "op"),
        ("something new", "other"),
    ],
)
def test_each_reason_of_a_skip_has_its_cause(text: str, cause: str) -> None:
    assert cause_of(text, SKIP_CAUSES, OTHER_SKIP) == cause


@pytest.mark.parametrize("value", [None, "nan", float("nan"), -1, True, [], {}, "x" * 10_000])
def test_fields_of_any_type_are_taken_for_unknown(value: object) -> None:
    names = ("co_name", "co_filename", "co_firstlineno", "graph_op_count", "entire_frame_compile_time_s", "fail_reason")
    row = {"compile_id": "0/0", **dict.fromkeys((*names, "restart_reasons", "cudagraph_skip_reason"), value)}
    event = BreakEvent("", (CodeFrame(NET, 3, "forward"),))
    (graph,) = health_of(row, breaks=[event]).graphs
    assert (graph.ops, graph.seconds, graph.source) == (None, None, None)
    assert len(graph.function) <= 200


def test_every_cause_has_words_a_change_and_code() -> None:
    causes = [*BREAKS.values(), *RECOMPILES.values(), *SKIPS.values()]
    assert len(BREAKS) == len(BREAK_CAUSES) + 1 and len(RECOMPILES) == len(RECOMPILE_CAUSES) + 1
    assert all(cause.words and cause.change.endswith(".") and cause.code for cause in causes)


def test_the_first_line_is_that_which_says_what_happened() -> None:
    assert (
        first_line("Encountered graph break when attempting to trace CALL: f(x)\n\nTensor.item\n more") == "Tensor.item"
    )
    assert first_line("") == ""
