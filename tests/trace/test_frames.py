"""Module paths, source lines and places from Python frames, and their inheritance by backward ops."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.schema.op_names import at_source, place_of
from bottleneck.trace.frames import INTERNAL, MODEL_LIBRARY, MODULE, OWN, kind_of_frame, short_source
from tests.builders import Event, complete, frame, kernel, launch, op
from tests.trace.traces import linked

FRAMES = [
    ("nn.Module: Linear_0", MODULE),
    ("train.py(57): main", OWN),
    ("/home/ann/project/model.py(12): forward", OWN),
    ("src/code/test/profile.py(3): run", OWN),
    ("code/ch13/train.py(4): <module>", OWN),
    ("/tmp/ipykernel_77/1234.py(5): step", OWN),
    ("<ipython-input-3-abc>(7): step", OWN),
    ("C:\\work\\train.py(9): fit", OWN),
    ("transformers/models/bert/modeling_bert.py(570): forward", MODEL_LIBRARY),
    ("/opt/venv/lib/python3.11/site-packages/timm/models/vit.py(70): forward", MODEL_LIBRARY),
    ("torch/nn/modules/module.py(1532): _wrapped_call_impl", INTERNAL),
    ("torch\\nn\\modules\\linear.py(103): forward", INTERNAL),
    ("/opt/venv/lib/python3.11/site-packages/somepackage/x.py(1): f", MODEL_LIBRARY),
    ("/usr/lib/python3.10/threading.py(973): _bootstrap", INTERNAL),
    ("contextlib.py(79): inner", INTERNAL),
    ("threading.py(323): wait", INTERNAL),
    ("<frozen importlib._bootstrap>(241): _call", INTERNAL),
    ("<built-in method linear of type object at 0x7f>", INTERNAL),
    ("/tmp/torchinductor_ann/dn/cdni.py(40): call", INTERNAL),
    ("cache/bm/cbmair2pqrsurta33ak23jzv44fpjzf6qofthbx5qhfa72ey5tmr.py(81): call", INTERNAL),
    ("bm/cbmair2pqrsurta33ak23jzv44fpjzf6qofthbx5qhfa72ey5tm.py(81): call", OWN),
    ("bottleneck/harness/forms.py(72): <lambda>", INTERNAL),
    ("bottleneck/train.py(72): step", OWN),
    ("python_func", INTERNAL),
    ("", INTERNAL),
]


@pytest.mark.parametrize(("name", "kind"), FRAMES)
def test_a_frame_is_the_users_own_or_a_librarys(name: str, kind: int) -> None:
    assert kind_of_frame(name) == kind


def test_a_source_is_the_last_part_of_the_path_and_the_line() -> None:
    assert short_source("/home/ann/project/model.py(12): forward", is_line=True) == "model.py:12"
    assert short_source("C:\\work\\train.py(9): fit", is_line=True) == "train.py:9"


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("<ipython-input-3-abc>", "cell 3, line 7"),
        ("/tmp/ipykernel_77/1234.py", "cell #1234, line 7"),
        ("C:\\Temp\\ipykernel_77\\1234.py", "cell #1234, line 7"),
        ("/tmp/ipykernel_77/model.py", "model.py:7"),
        ("<ipython-input-x>", "<ipython-input-x>:7"),
    ],
)
def test_a_line_of_a_notebook_is_that_of_its_cell(path: str, source: str) -> None:
    assert short_source(f"{path}(7): step", is_line=True) == source
    assert place_of(source) == (source.partition(",")[0].removesuffix(":7"), 7, False)
    function = short_source(f"{path}(7): step", is_line=False)
    assert function == f"step() ({source})"
    assert place_of(function) == (source.partition(",")[0].removesuffix(":7"), 7, True)
    assert at_source(function) == f"in step() ({source})"


def test_without_line_marks_a_source_is_the_function_at_the_line_of_its_definition() -> None:
    assert short_source("/home/ann/project/model.py(12): forward", is_line=False) == "forward() (model.py:12)"
    assert short_source("train.py(1): <module>", is_line=False) == "<module> (train.py:1)"
    assert short_source("train.py(7): <lambda>", is_line=False) == "train.py:7"
    assert len(short_source(f"train.py(1): {'f' * 5000}", is_line=False)) < 200


def test_what_a_source_says_is_read_again() -> None:
    assert place_of("model.py:12") == ("model.py", 12, False)
    assert place_of("backward of model.py:12") == ("model.py", 12, False)
    assert place_of("backward of forward() (model.py:12)") == ("model.py", 12, True)
    assert at_source("model.py:12") == "at model.py:12" and at_source(None) == "at no known line"
    assert at_source("step() (model.py:4)") == "in step() (model.py:4)"
    assert at_source("backward of model.py:12") == "in the backward of model.py:12"
    assert at_source("backward of <module> (model.py:1)") == "in the backward of the top level of model.py"
    assert place_of("nowhere") is None and place_of("a:b") is None


def places(folder: Path, events: list[Event]) -> list[tuple[str | None, str | None]]:
    table = linked(folder, events).ops
    columns = (table[name].astype(object).where(table[name].notna(), None) for name in ("module", "source"))
    return list(zip(*columns, strict=True))


def test_an_op_lies_in_the_modules_and_the_line_that_are_open(tmp_path: Path) -> None:
    frames = [
        frame("train.py(30): main", 0, 100),
        frame("nn.Module: Net_0", 10, 60),
        frame("net.py(8): forward", 12, 50),
        frame("nn.Module: Linear_3", 20, 20),
        frame("torch/nn/modules/linear.py(103): forward", 22, 15),
    ]
    ops = [op("aten::linear", 25, 5), op("aten::relu", 50, 5), op("aten::add", 80, 5)]
    assert places(tmp_path, [*frames, *ops]) == [
        ("Net_0.Linear_3", "forward() (net.py:8)"),
        ("Net_0", "forward() (net.py:8)"),
        (None, "main() (train.py:30)"),
    ]


def test_frames_of_another_thread_say_nothing(tmp_path: Path) -> None:
    frames = [frame("nn.Module: Net_0", 0, 100, tid=9), frame("net.py(8): forward", 0, 90, tid=9)]
    assert places(tmp_path, [*frames, op("aten::relu", 50, 5)]) == [(None, None)]


def test_the_users_own_line_beats_a_model_librarys(tmp_path: Path) -> None:
    library = frame("transformers/models/bert/modeling_bert.py(570): forward", 20, 50)
    assert places(tmp_path, [library, op("aten::relu", 50, 5)]) == [(None, "forward() (modeling_bert.py:570)")]
    own = [frame("train.py(30): main", 0, 100), frame("train.py(9): prepare", 100, 50)]
    assert places(tmp_path, [*own, library, op("aten::relu", 50, 5)]) == [(None, "main() (train.py:30)")]


def test_below_a_line_that_holds_nearly_all_of_the_users_time_a_model_librarys_counts(tmp_path: Path) -> None:
    library = frame("/venv/lib/python3.11/site-packages/somepackage/net.py(7): forward", 20, 50)
    own = [frame("train.py(30): main", 0, 100), frame("train.py(9): prepare", 100, 10)]
    inside, after = op("aten::relu", 50, 5), op("aten::relu", 80, 5)
    told = [(None, "forward() (net.py:7)"), (None, "main() (train.py:30)")]
    assert places(tmp_path, [*own, library, inside, after]) == told


def test_a_library_around_the_users_line_does_not_hide_it(tmp_path: Path) -> None:
    trainer = frame("transformers/trainer.py(2000): train", 0, 100)
    assert places(tmp_path, [trainer, frame("train.py(30): loss", 10, 50), op("aten::relu", 20, 5)]) == [
        (None, "loss() (train.py:30)")
    ]


def test_a_kernel_launched_outside_ops_still_has_a_place(tmp_path: Path) -> None:
    frames = [frame("nn.Module: Net_0", 0, 100), frame("net.py(8): forward", 5, 90)]
    events = [*frames, op("aten::relu", 10, 5), launch(1, 40, 5), kernel(1, 60, 9)]
    table = linked(tmp_path, events).kernels
    assert table[["module", "source"]].astype(object).to_numpy().tolist() == [["Net_0", "forward() (net.py:8)"]]


def test_a_kernel_lies_where_its_op_lies(tmp_path: Path) -> None:
    frames = [frame("nn.Module: Net_0", 0, 30), frame("net.py(8): forward", 5, 20)]
    events = [*frames, op("aten::relu", 10, 5), launch(1, 12, 2), kernel(1, 60, 9)]
    table = linked(tmp_path, events).kernels
    assert table[["module", "source"]].astype(object).to_numpy().tolist() == [["Net_0", "forward() (net.py:8)"]]


def test_modules_nested_beyond_all_reason_keep_the_path_of_the_deepest_level(tmp_path: Path) -> None:
    frames = [frame(f"nn.Module: M_{depth}", depth, 1000 - 2 * depth) for depth in range(300)]
    ((module, _),) = places(tmp_path, [*frames, op("aten::relu", 400, 5)])
    assert module is not None
    assert module.split(".") == [f"M_{depth}" for depth in range(64)]


def autograd(name: str, at: float, dur: float, sequence: int, forward_thread: int, **more: object) -> Event:
    event = op(name, at, dur, **more)
    event["args"] |= {"Sequence number": sequence, "Fwd thread id": forward_thread}
    return event


def forward(at: float = 10) -> list[Event]:
    """A linear layer in a module, whose inner op makes node 5, and an op without a module that makes node 6."""
    return [
        frame("nn.Module: Net_0", at, 30),
        frame("net.py(8): forward", at, 30),
        autograd("aten::linear", at + 5, 20, 5, 0),
        autograd("aten::addmm", at + 8, 10, 5, 0),
    ]


def test_a_backward_op_lies_where_its_forward_op_lies(tmp_path: Path) -> None:
    node = autograd("autograd::engine::evaluate_function: AddmmBackward0", 100, 50, 5, 1, tid=9)
    events = [*forward(), node, op("aten::mm", 110, 20, tid=9), op("aten::ones", 200, 9, tid=9)]
    assert places(tmp_path, events)[2:] == [
        ("Net_0", "backward of forward() (net.py:8)"),
        ("Net_0", "backward of forward() (net.py:8)"),
        (None, None),
    ]


def test_backward_on_the_main_thread_lies_in_the_forward_not_at_the_call_of_backward(tmp_path: Path) -> None:
    node = autograd("autograd::engine::evaluate_function: AddmmBackward0", 100, 50, 5, 1)
    events = [frame("train.py(30): main", 0, 300), *forward(), node]
    assert places(tmp_path, events)[-1] == ("Net_0", "backward of forward() (net.py:8)")


def test_a_forward_pass_recomputed_inside_backward_keeps_its_own_place(tmp_path: Path) -> None:
    node = autograd("autograd::engine::evaluate_function: CheckpointFunctionBackward", 100, 90, 5, 1, tid=9)
    again = [frame("nn.Module: Inner_1", 110, 30, tid=9), frame("inner.py(4): forward", 112, 20, tid=9)]
    events = [*forward(), node, *again, op("aten::mul", 115, 5, tid=9)]
    assert places(tmp_path, events)[-1] == ("Inner_1", "forward() (inner.py:4)")


def test_a_backward_op_without_a_forward_in_the_trace_keeps_what_it_has(tmp_path: Path) -> None:
    node = autograd("autograd::engine::evaluate_function: MulBackward0", 100, 50, 77, 1, tid=9)
    assert places(tmp_path, [*forward(), node])[-1] == (None, None)


def test_a_number_used_again_means_the_latest_forward_before(tmp_path: Path) -> None:
    later = [frame("nn.Module: Late_0", 60, 20), autograd("aten::mul", 65, 5, 5, 0)]
    node = autograd("autograd::engine::evaluate_function: MulBackward0", 100, 50, 5, 1, tid=9)
    after = [frame("nn.Module: After_0", 200, 20), autograd("aten::mul", 205, 5, 5, 0)]
    assert places(tmp_path, [*forward(), *later, node, *after])[-1][0] == "Late_0"


def test_of_two_forward_threads_the_one_with_most_of_the_numbers_is_meant(tmp_path: Path) -> None:
    mine = [*forward(), autograd("aten::mul", 36, 2, 6, 0)]
    other = [frame("nn.Module: Other_0", 40, 20, tid=8), autograd("aten::mul", 45, 5, 5, 0, tid=8)]
    nodes = [
        autograd(f"autograd::engine::evaluate_function: {each}", 100 + each, 0.5, each, 1, tid=9) for each in (5, 6)
    ]
    assert places(tmp_path, [*mine, *other, *nodes])[-2][0] == "Net_0"


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
        (10, 30, "main() (train.py:5)", None, "main"),
        (30, 50, "forward() (model.py:7)", None, "forward"),
        (50, 100, "main() (train.py:5)", None, "main"),
    ]


def test_frames_of_libraries_leave_the_place_alone(tmp_path: Path) -> None:
    events = [frame("train.py(5): main", 10, 90), frame("torch/nn/functional.py(7): linear", 30, 20)]
    assert _places(tmp_path, events) == [(10, 100, "main() (train.py:5)", None, "main")]


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
    assert _places(tmp_path, [call, inner]) == [(10, 810, "main() (train.py:5)", None, "main")]


def test_recorded_lines_are_nearer_than_the_line_that_a_frame_begins_at(tmp_path: Path) -> None:
    events = [frame("train.py(5): main", 10, 90), _line("train.py(8): main", 30, 20)]
    assert _places(tmp_path, events) == [
        (10, 30, "main() (train.py:5)", None, "main"),
        (30, 50, "train.py:8", None, "main"),
        (50, 100, "main() (train.py:5)", None, "main"),
    ]


def test_recorded_line_as_long_as_the_frame_that_it_calls_is_around_it(tmp_path: Path) -> None:
    events = [
        frame("train.py(5): main", 10, 90),
        frame("model.py(7): forward", 30, 20),
        _line("train.py(8): main", 30, 20),
    ]
    assert [row[2] for row in _places(tmp_path, events)] == [
        "main() (train.py:5)",
        "forward() (model.py:7)",
        "main() (train.py:5)",
    ]


def test_threads_have_places_of_their_own(tmp_path: Path) -> None:
    events = [frame("train.py(5): main", 10, 90), frame("data.py(7): load", 30, 20, tid=101)]
    assert _places(tmp_path, events) == [
        (10, 100, "main() (train.py:5)", None, "main"),
        (30, 50, "load() (data.py:7)", None, "load"),
    ]


def test_ops_take_their_line_from_a_recorded_line(tmp_path: Path) -> None:
    events = [frame("train.py(5): main", 10, 90), _line("train.py(8): main", 30, 20), op("aten::mul", 35, 5)]
    assert linked(tmp_path, events).ops["source"].tolist()[-1] == "train.py:8"
