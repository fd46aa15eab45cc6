"""Work on parameters alone: what is made of weights several times, and averages of all of them."""

from pathlib import Path

from bottleneck.advice.weight_work import parameter_averages, remade_weights
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import program_line, two_steps
from tests.builders import Event, complete, op

WEIGHT, OTHER, DATA = [512, 512], [64, 512], [16, 512]
STEP = [
    complete("Optimizer.step#SGD.step", "user_annotation", 900, 60),
    op("aten::add_", 905, 20, dims=[WEIGHT, WEIGHT, []]),
    op("aten::add_", 930, 20, dims=[OTHER, OTHER, []]),
]
BACKWARD = [program_line(15, 860, 30), op("autograd::engine::evaluate_function: MmBackward0", 862, 20)]
LINEAR = [program_line(14, 800, 50), op("aten::linear", 805, 40, dims=[DATA, WEIGHT])]
TRAINS = [*LINEAR, *BACKWARD, *STEP]


def often(name: str, sizes: list[list[int]], times: int = 6) -> list[Event]:
    """An op of 80 us at train.py:11 so many times."""
    calls = [op(f"aten::{name}", 102 + 100.0 * at, 80, dims=sizes) for at in range(times)]
    return [program_line(11, 100, 100 * times), *calls]


def case(folder: Path, body: list[Event], text: str = "") -> Evidence:
    return two_steps(folder, body, source_texts={"train.py:11": text})


def test_what_is_made_of_a_weight_in_a_loop_is_made_once(tmp_path: Path) -> None:
    draft = remade_weights(case(tmp_path / "rows", [*often("div", [WEIGHT, [512, 1]]), *TRAINS]))
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "of the weights alone at train.py:11 once" in draft.advice and "6 times per step" in draft.evidence[0]
    assert 250 < draft.gain_us.low < draft.gain_us.high < 6 * 80 * 5 / 6 + 20
    assert remade_weights(case(tmp_path / "turned", [*often("sub", [OTHER, OTHER]), *TRAINS])) is not None


def test_in_inference_once_is_enough(tmp_path: Path) -> None:
    draft = remade_weights(case(tmp_path, [*often("mul", [WEIGHT, [512, 1]], times=1), *LINEAR]))
    assert draft is not None and "when the model is loaded" in draft.advice


def test_work_on_data_and_once_per_weight_is_left_alone(tmp_path: Path) -> None:
    assert remade_weights(case(tmp_path / "once", [*often("div", [WEIGHT, [512, 1]], times=1), *TRAINS])) is None
    assert remade_weights(case(tmp_path / "data", [*often("mul", [DATA, DATA]), *TRAINS])) is None
    # Data of the sizes of a weight.
    same = op("aten::linear", 705, 40, dims=[WEIGHT, WEIGHT])
    data = [*often("div", [WEIGHT, WEIGHT], times=5), program_line(13, 700, 50), same]
    assert remade_weights(case(tmp_path / "same", [*data, *TRAINS])) is None


def averages(*sizes: list[int]) -> list[Event]:
    calls = [op("aten::mul", 102 + 100.0 * at, 80, dims=[size, []]) for at, size in enumerate(sizes)]
    return [program_line(11, 100, 100 * len(sizes)), *calls]


def test_averages_of_all_parameters_are_named(tmp_path: Path) -> None:
    draft = parameter_averages(case(tmp_path / "two", [*averages(WEIGHT, OTHER, WEIGHT, OTHER), *TRAINS]))
    assert draft is not None and draft.gain_us is not None
    assert "of the parameters at train.py:11 every so many steps" in draft.advice
    assert 70 < draft.gain_us.low < 0.5 * draft.gain_us.high < 160


def test_data_one_size_and_clipping_are_no_averages(tmp_path: Path) -> None:
    assert parameter_averages(case(tmp_path / "one", [*averages(WEIGHT, WEIGHT, WEIGHT), *TRAINS])) is None
    assert parameter_averages(case(tmp_path / "data", [*averages(DATA, DATA, [8, 8]), *TRAINS])) is None
    clipped = [*averages(WEIGHT, OTHER, WEIGHT), *TRAINS]
    assert parameter_averages(case(tmp_path / "clip", clipped, "clip_grad_norm_(net.parameters(), 1.0)")) is None


def test_steps_without_ops_of_the_program_have_no_weights(tmp_path: Path) -> None:
    evidence = case(tmp_path, [*BACKWARD, *STEP])
    assert remade_weights(evidence) is None and parameter_averages(evidence) is None
