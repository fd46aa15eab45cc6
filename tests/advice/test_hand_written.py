"""Ops of a chain that write out a norm, softmax or GELU are found by their order, and by nothing less."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.advice.hand_written import HandWritten, find_hand_written, written_function
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of, program_line
from tests.advice.programs import Call, on_cpu, on_gpu
from tests.builders import Event, frame, op, step


def found(text: str) -> list[HandWritten]:
    return list(find_hand_written([f"aten::{name}" for name in text.split()]))


@pytest.mark.parametrize(
    ("ops", "op"),
    [
        ("mean sub pow mean add sqrt div mul add", "layer_norm"),
        ("mean sub pow mean sub add sqrt div mul add", "layer_norm"),
        ("sum div_ sub pow sum div_ add rsqrt mul mul add", "layer_norm"),
        ("mean var add sqrt sub div mul add", "layer_norm"),
        ("mean std sub mul add div add", "layer_norm"),
        ("pow mean add rsqrt mul mul", "rms_norm"),
        ("pow sum div_ add rsqrt mul copy_ mul", "rms_norm"),
        ("pow mean add rsqrt mul to mul", "rms_norm"),
        ("mul mean add rsqrt mul", "rms_norm"),
        ("amax sub exp sum div", "softmax"),
        ("max sub exp_ sum div_", "softmax"),
        ("exp sum div", "softmax"),
        ("mul pow mul add mul tanh add mul", "gelu_tanh"),
        ("mul div erf add mul", "gelu"),
    ],
)
def test_what_is_written_out_is_found_whole(ops: str, op: str) -> None:
    assert found(ops) == [HandWritten(op, 0, len(ops.split()))]


@pytest.mark.parametrize(
    "ops", ["mul add mul add", "mul mean mul", "tanh add mul", "exp sum", "sub exp mul", "pow mul"]
)
def test_other_ops_are_left_alone(ops: str) -> None:
    assert found(ops) == []


def test_ops_around_it_stay_outside() -> None:
    assert found("add pow mean add rsqrt mul mul relu relu exp sum div") == [
        HandWritten("rms_norm", 1, 6),
        HandWritten("softmax", 9, 3),
    ]


WHOLE, ROW, COLUMNS = [64, 128, 512], [64, 128, 1], [512]
US = 100.0
Ops = Sequence[tuple[str, list[list[int]]]]
GATE = ("mul", [WHOLE, WHOLE])

TANH_GELU: Ops = [
    ("mul", [WHOLE, []]),
    ("pow", [WHOLE, []]),
    ("mul", [WHOLE, []]),
    ("add", [WHOLE, WHOLE, []]),
    ("mul", [WHOLE, []]),
    ("tanh", [WHOLE]),
    ("add", [WHOLE, [], []]),
    ("mul", [WHOLE, WHOLE]),
]
ERF_GELU: Ops = [("div", [WHOLE, []]), ("erf", [WHOLE]), ("add", [WHOLE, [], []]), ("mul", [WHOLE, WHOLE])]
LAYER_NORM: Ops = [
    ("mean", [WHOLE, [], [], []]),
    ("sub", [WHOLE, ROW, []]),
    ("pow", [WHOLE, []]),
    ("mean", [WHOLE, [], [], []]),
    ("add", [ROW, [], []]),
    ("sqrt", [ROW]),
    ("div", [WHOLE, ROW]),
    ("mul", [COLUMNS, WHOLE]),
    ("add", [WHOLE, COLUMNS, []]),
]
RMS_NORM: Ops = [
    ("pow", [WHOLE, []]),
    ("mean", [WHOLE, [], [], []]),
    ("add", [ROW, [], []]),
    ("rsqrt", [ROW]),
    ("mul", [WHOLE, ROW]),
    ("mul", [COLUMNS, WHOLE]),
]


def calls(ops: Ops) -> list[Call]:
    return [Call(f"aten::{name}", US, dims) for name, dims in ops]


def trained(folder: Path, ops: Ops, *, linked: bool) -> Evidence:
    """Steps with these ops at train.py:11, and a backward node of 100 us for each."""
    events: list[Event] = [frame("train.py(1): <module>", 0, 2000)]
    for number in range(2):
        begin = 1000.0 * number
        events += [step(number, begin, 999), program_line(11, begin, 15.0 * len(ops))]
        for at, (name, dims) in enumerate(ops):
            forward = op(f"aten::{name}", begin + 1 + 12.0 * at, 10, dims=dims)
            node = op("autograd::engine::evaluate_function: SomeBackward0", begin + 300 + 40.0 * at, 31)
            inner = op("aten::mul", begin + 300.2 + 40.0 * at, 30, dims=[WHOLE, WHOLE])
            forward["args"]["Sequence number"] = 100 * number + at
            if linked:
                node["args"] |= {"Sequence number": 100 * number + at, "Fwd thread id": 0}
            events += [forward, node, inner]
    return case_of(folder, events, unprofiled_us=1000.0)


IMAGES, PIXELS = [8, 32, 16, 16], [8, 1, 16, 16]
CHANNELS_NORM: Ops = [
    ("mean", [IMAGES, [], [], []]),
    ("sub", [IMAGES, PIXELS, []]),
    ("pow", [IMAGES, []]),
    ("mean", [IMAGES, [], [], []]),
    ("sub", [IMAGES, PIXELS, []]),
    ("add", [PIXELS, [], []]),
    ("sqrt", [PIXELS]),
    ("div", [IMAGES, PIXELS]),
]


@pytest.mark.parametrize("lies", ["channels last", "channels first", "not recorded"])
def test_a_norm_over_channels_is_the_librarys_where_they_lie_together(tmp_path: Path, lies: str) -> None:
    """The LayerNorm2d of a ConvNeXt: 1.6 to 0.13 ms with its backward pass, and no quicker on rows of pixels."""
    strides = {"channels last": [8192, 1, 512, 32], "channels first": [8192, 256, 16, 1]}.get(lies)
    events: list[Event] = [frame("train.py(1): <module>", 0, 2000)]
    for number in range(2):
        begin = 1000.0 * number
        events += [step(number, begin, 999), program_line(11, begin, 900)]
        for at, (name, dims) in enumerate(CHANNELS_NORM):
            more = {} if strides is None else {"strides": [strides, *([[]] * (len(dims) - 1))]}
            events.append(op(f"aten::{name}", begin + 1 + 100.0 * at, 90, dims=dims, **more))
    draft = written_function(case_of(tmp_path, events, unprofiled_us=1000.0))
    assert (draft is not None) == (lies == "channels last")
    if draft is not None:
        assert draft.advice.startswith("Call F.layer_norm on x.permute(0, 2, 3, 1) at train.py:11")
        assert draft.code is not None and ".permute(0, 3, 1, 2)" in draft.code


def gain_of(evidence: Evidence) -> Interval:
    draft = written_function(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    return draft.gain_us


@pytest.mark.parametrize(
    ("ops", "name"),
    [
        (TANH_GELU, 'F.gelu(x, approximate="tanh")'),
        (ERF_GELU, "F.gelu"),
        (LAYER_NORM, "F.layer_norm"),
        (RMS_NORM, "F.rms_norm"),
    ],
    ids=["GELU by tanh", "GELU by erf", "layer norm", "RMS norm"],
)
def test_the_op_of_the_library_takes_one_pass_of_those_that_write_it_out(tmp_path: Path, ops: Ops, name: str) -> None:
    for run in (on_gpu,) if ops is RMS_NORM else (on_cpu, on_gpu):
        evidence = run(tmp_path / run.__name__, calls(ops))
        gain = gain_of(evidence)
        assert gain.high == pytest.approx(US * (len(ops) - 1), rel=0.05)
        assert gain.low == pytest.approx(gain.high / 2, rel=0.05)
        draft = written_function(evidence)
        assert draft is not None and (draft.brief or "").startswith(f"Call {name} ")
        assert draft.evidence[0] == f"{len(ops)} ops per step write out 1 call of the library"


def test_backward_nodes_of_the_ops_that_go_count_too(tmp_path: Path) -> None:
    linked, alone = (gain_of(trained(tmp_path / str(linked), TANH_GELU, linked=linked)) for linked in (True, False))
    # Seven of eight nodes of 30 us: that of the tanh stays.
    assert linked.high - alone.high == pytest.approx(7 * 30, rel=0.1)


def test_a_norm_and_an_activation_are_one_finding(tmp_path: Path) -> None:
    draft = written_function(on_cpu(tmp_path, calls([*LAYER_NORM, ("addmm", [[8192, 512], [512, 512]]), *TANH_GELU])))
    assert draft is not None and draft.brief is not None
    assert "F.layer_norm" in draft.brief and "F.gelu" in draft.brief


@pytest.mark.parametrize(
    ("before", "gelu", "behind"),
    [([GATE], TANH_GELU[1:], []), ([], TANH_GELU, [GATE])],
    ids=["a product before", "a product behind"],
)
def test_the_product_with_a_gate_stays(tmp_path: Path, before: Ops, gelu: Ops, behind: Ops) -> None:
    draft = written_function(on_cpu(tmp_path, calls([*before, *gelu, *behind])))
    assert draft is not None and draft.evidence[0].startswith(f"{len(gelu)} ops per step")


def test_what_is_added_to_a_norm_stays(tmp_path: Path) -> None:
    draft = written_function(on_cpu(tmp_path, calls([*LAYER_NORM, ("add", [WHOLE, WHOLE, []])])))
    assert draft is not None and draft.evidence[0].startswith(f"{len(LAYER_NORM)} ops per step")


def test_an_rms_norm_on_a_cpu_is_a_row_of_ops_in_the_library_too(tmp_path: Path) -> None:
    assert written_function(on_cpu(tmp_path, calls(RMS_NORM))) is None


@pytest.mark.parametrize(
    "ops",
    [
        [("gelu", [WHOLE]), ("layer_norm", [WHOLE, [], COLUMNS, COLUMNS]), ("rms_norm", [WHOLE, [], COLUMNS])],
        [("pow", [WHOLE, []]), ("mean", [WHOLE, [], [], []]), ("mul", [WHOLE, ROW])],
        [(name, [[1, 512] if size == ROW else size for size in dims]) for name, dims in RMS_NORM],
        [("tanh", [WHOLE]), ("add", [WHOLE, [], []]), ("mul", [WHOLE, WHOLE])],
    ],
    ids=["the library's own ops", "no root", "a norm over rows", "no cube"],
)
def test_what_is_no_norm_and_no_gelu_is_left_alone(tmp_path: Path, ops: Ops) -> None:
    assert written_function(on_cpu(tmp_path, calls(ops))) is None
