"""The report of a prediction, from records made by hand."""

import json

import jsonschema
import pytest

from bottleneck.devices.match import device_by_name
from bottleneck.report.predict import build, render, sentences
from bottleneck.schema.analysis import Interval
from bottleneck.schema.predicted_step import PredictedBound, PredictedStep
from bottleneck.schema.prediction import (
    BackendGain,
    BatchPoint,
    DevicePrediction,
    PredictedWork,
    Prediction,
    StepMemory,
)
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import EngineSettings
from bottleneck.units import format_us
from scripts.write_schema import PREDICT

PUBLISHED = json.loads(PREDICT.file.read_text(encoding="utf-8"))
GIB = 2**30


def _step(us: float, bound: PredictedBound = "compute", backend: str = "eager") -> PredictedStep:
    return PredictedStep(
        device="NVIDIA H100 80GB HBM3",
        backend=backend,  # type: ignore[arg-type]
        us=us,
        low_us=us * 0.9,
        high_us=us * 1.1,
        coverage=0.8,
        floor_us=us / 2,
        device_us=us,
        host_us=us / 3,
        launches=100,
        graph=backend in ("cudagraphs", "reduce-overhead"),
        bound=bound,
        groups={"compute": us * 0.615, "memory": us * 0.38, "latency": 0.0, "overhead": us * 0.005},
        kernels=(),
        unknown_calls=0,
        reasons=("the host's pace is the usual one of the device's year",),
    )


ON_H100 = DevicePrediction(
    device=device_by_name("NVIDIA H100 80GB HBM3"),
    step=_step(2840.0),
    work=(
        PredictedWork(
            "product", "compute", "fp32_vector", 40, 2000.0, 1500.0, 1500.0, 100.0, 9e10, 3e8, "aten::mm", "model.py:7"
        ),
        PredictedWork("pointwise", "memory", None, 60, 850.0, 400.0, 1.0, 400.0, 3e8, 1.2e9),
    ),
    bound="compute",
    engine="fp32_vector",
    floor_bound=None,
    copy_us=None,
    samples_per_s=Interval(20_000.0, 25_000.0),
    fits=True,
    fits_reason=None,
    largest_batch=1234,
    largest_batch_reason=None,
    knee_batch=None,
    knee_reason="twice the batch still brings a tenth more samples per second at 128",
    gains=(
        BackendGain("compile", _step(1900.0, backend="compile"), 1.5),
        BackendGain("cudagraphs", _step(2800.0, backend="cudagraphs"), 1.02),
        BackendGain("tf32", _step(712.5), 4.0),
    ),
    batches=(BatchPoint(64, 2840.0, 22_456.0, 2 * GIB), BatchPoint(128, 5000.0, 25_600.0, 3 * GIB)),
    cost_per_million_samples=Interval(0.0278, 0.0347),
)
ANSWER = Prediction(
    program="model.py",
    origin="fake step",
    settings=EngineSettings(False, True, "highest", False, (), False, True, False),
    batch_size=64,
    op_calls=100,
    host_ops=250,
    copied_bytes=None,
    measured_us=None,
    measured_on=None,
    measured_device_us=None,
    memory=StepMemory(2 * GIB, GIB // 2, GIB // 4, GIB // 2, GIB // 4, GIB // 2, "backward"),
    devices=(ON_H100,),
    left_out="the work of its data loader",
    notes=("the value of float() at model.py:7 was taken to be 1",),
)


def terminal(answer: Prediction) -> str:
    return render(answer, "terminal")


def test_the_sentence_says_time_bound_engine_and_what_would_help() -> None:
    assert sentences(ANSWER) == [
        "On an H100 80GB HBM3 this step takes 2.56 to 3.12 ms and is compute-bound (fp32 without TF32); "
        "torch.compile would make it 1.5 times as fast; TF32 would make it 4.0 times as fast."
    ]


def test_what_the_table_says_of_other_devices_is_not_said_twice() -> None:
    a100 = replace(ON_H100, device=device_by_name("A100"))
    text = " ".join(terminal(replace(ANSWER, devices=(ON_H100, a100))).split())
    assert "this step takes" not in text
    assert "A step takes 2.56 to 3.12 ms on H100 80GB HBM3, 2.56 to 3.12 ms on A100-SXM4-80GB" in text
    assert "Bound compute-bound (fp32 without TF32) on H100 80GB HBM3 and A100-SXM4-80GB" in text
    small = " ".join(terminal(replace(ANSWER, devices=(ON_H100, replace(a100, fits=False)))).split())
    assert "On an A100-SXM4-80GB this step takes" in small and "but its memory does not fit" in small
    unknown = " ".join(terminal(replace(ANSWER, devices=(a100, FLOOR_ONLY))).split())
    assert "No time is predicted for H100 80GB HBM3: efficiencies were learned" in unknown


def test_the_first_screen_names_the_worst_work_with_its_line() -> None:
    labels = {line.label: line.text for line in build(ANSWER).lines}
    assert labels["Worst"] == "matmul (aten::mm, model.py:7): 70.2 % of the kernels' time on H100 80GB HBM3"
    nowhere = replace(ON_H100, work=(replace(ON_H100.work[0], op=None, source=None), *ON_H100.work[1:]))
    labels = {line.label: line.text for line in build(replace(ANSWER, devices=(nowhere,))).lines}
    assert labels["Worst"].startswith("matmul: 70.2 % of the kernels' time on")


def test_a_step_that_does_not_fit_is_said_to_be_so() -> None:
    assert "but its memory does not fit" in sentences(replace(ANSWER, devices=(replace(ON_H100, fits=False),)))[0]


def test_a_device_without_a_prediction_says_why() -> None:
    why = ("its peaks are not known",)
    nothing = replace(_step(1.0), us=None, low_us=None, high_us=None, floor_us=None, groups={}, reasons=why)
    lone = replace(ANSWER, devices=(replace(ON_H100, step=nothing, gains=(), samples_per_s=None),))
    assert sentences(lone) == ["Nothing can be predicted for H100 80GB HBM3: its peaks are not known."]
    assert "its peaks are not known" in terminal(lone)


def test_shares_of_the_step_add_up_and_none_is_shown_as_nothing() -> None:
    row = next(line for line in terminal(ANSWER).splitlines() if "2.56-3.12 ms" in line)
    assert "62 %" in row
    assert "38 %" in row
    assert "<1 %" in row


def test_nothing_is_wider_than_a_terminal_of_80_columns() -> None:
    assert max(map(len, terminal(ANSWER).splitlines())) <= 80
    assert not [line for line in terminal(ANSWER).splitlines() if line.startswith("  step ")]


def test_memory_is_shown_with_what_holds_it_and_what_is_not_known() -> None:
    text = " ".join(terminal(ANSWER).split())
    assert "80 GiB 2 GiB yes" in text
    assert "about 1,200" in text
    assert "parameters 512 MiB, gradients 256 MiB, optimizer state 512 MiB" in text
    assert "not known: twice the batch still brings a tenth more samples per second at 128" in text


def test_largest_batch_far_beyond_those_tried_is_a_bound() -> None:
    far = replace(ANSWER, devices=(replace(ON_H100, largest_batch=10**6),))
    assert f"over {64 * 128:,}" in terminal(far)


def test_what_is_left_out_stands_above_the_tables() -> None:
    assert dict(build(ANSWER).facts)["left out"] == "the work of its data loader"
    copying = replace(ANSWER, copied_bytes=38.5e6)
    assert dict(build(copying).facts)["left out"].startswith("copies of 38.5 MB per step from the host, the work")
    assert "left out" not in dict(build(replace(ANSWER, left_out="")).facts)


def test_copies_that_take_a_part_of_the_step_have_their_time_and_others_none() -> None:
    slow, quick = (replace(ANSWER, devices=(replace(ON_H100, copy_us=us),)) for us in (740.0, 2.0))
    assert "over the link they take 740 us on H100 80GB HBM3" in " ".join(terminal(slow).split())
    assert "over the link" not in terminal(quick)


def test_latency_has_a_column_only_where_some_step_has_it() -> None:
    assert "latency" not in render(ANSWER, "terminal")
    groups = {"compute": 0.0, "memory": 840.0, "latency": 2000.0, "overhead": 0.0}
    waiting = replace(ON_H100, bound="latency", step=replace(_step(2840.0, "latency"), groups=groups))
    text = render(replace(ANSWER, devices=(waiting,)), "terminal")
    assert "latency-bound (steps that wait for one another" in " ".join(text.split())
    assert "70 %" in text
    assert "latency: kernels wait for loads" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_cuda_graphs_that_lose_are_named_as_those_of_a_backend_that_copies_parameters() -> None:
    slower, faster = (BackendGain("cudagraphs", _step(2000.0, backend="cudagraphs"), speedup) for speedup in (0.7, 2.0))
    texts = [terminal(replace(ANSWER, devices=(replace(ON_H100, gains=(each,)),))) for each in (slower, faster)]
    assert ["copies the parameters" in " ".join(text.split()) for text in texts] == [True, False]


def test_cuda_graphs_of_a_step_that_cannot_be_one_are_no_gain() -> None:
    lacking = BackendGain("cudagraphs", replace(_step(1400.0, backend="cudagraphs"), graph=False), 2.0)
    text = " ".join(render(replace(ANSWER, devices=(replace(ON_H100, gains=(lacking,)),)), "terminal").split())
    assert "no graph: the backend cudagraphs runs a step op by op" in text
    assert "First No other way to run it is certain to help much" in text
    graph = BackendGain("cudagraphs", _step(1400.0, backend="cudagraphs"), 2.0)
    text = " ".join(render(replace(ANSWER, devices=(replace(ON_H100, gains=(graph,)),)), "terminal").split())
    words = 'First torch.compile(backend="cudagraphs"): 2.00 times as fast on H100 80GB HBM3; `bottleneck verify'
    assert words in text
    assert "no graph" not in text


def test_a_gain_within_its_own_error_is_no_first_change() -> None:
    gains = [replace(ON_H100.gains[0], interval=Interval(low, 2.0)) for low in (0.9, 1.2)]
    a100 = replace(ON_H100, device=device_by_name("A100"), gains=(gains[0],))
    (first,) = (
        line.text
        for line in build(replace(ANSWER, devices=(replace(ON_H100, gains=(gains[1],)), a100))).lines
        if line.label == "First"
    )
    assert first.startswith("torch.compile: 1.50 (1.20 to 2.00) times as fast on H100 80GB HBM3; nothing certain on A")


FLOOR_ONLY = replace(
    ON_H100,
    step=replace(
        _step(1.0),
        us=None,
        low_us=None,
        high_us=None,
        floor_us=1200.0,
        groups={},
        reasons=("efficiencies were learned on NVIDIA GPUs",),
    ),
    bound="inconclusive",
    floor_bound="memory",
    work=(),
    gains=(),
    samples_per_s=None,
    cost_per_million_samples=None,
)


def test_device_of_which_only_the_floor_is_known_says_so() -> None:
    lone = replace(ANSWER, devices=(FLOOR_ONLY,))
    assert sentences(lone) == [
        "No time is predicted for H100 80GB HBM3: efficiencies were learned on NVIDIA GPUs. By peak and bandwidth the "
        "step takes no less than 1.20 ms there, set by its memory traffic."
    ]
    text = " ".join(terminal(lone).split())
    assert "over 1.20 ms" in text
    assert "(memory)" in text
    assert "no time is predicted, but peak and bandwidth allow none below this" in text


def test_work_is_that_of_the_first_device_with_a_time() -> None:
    both = replace(ANSWER, devices=(FLOOR_ONLY, ON_H100))
    assert [section.title for section in build(both).sections if section.title.startswith("Work on")] == [
        "Work on H100 80GB HBM3"
    ]


def test_floor_of_work_that_the_cache_may_hold_is_said_in_words() -> None:
    cached, free = (replace(ON_H100.work[1], floor_us=0.0, memory_us=us) for us in (400.0, 0.0))
    text = terminal(replace(ANSWER, devices=(replace(ON_H100, work=(ON_H100.work[0], cached)),)))
    assert "in cache: the data of each kernel fit into the last cache" in " ".join(text.split())
    assert " 0 us" not in text
    assert "in cache" not in terminal(replace(ANSWER, devices=(replace(ON_H100, work=(ON_H100.work[0], free)),)))


def test_step_of_a_trace_that_is_compiled_already_says_so_first() -> None:
    compiled = replace(ANSWER, origin="trace", settings=replace(ANSWER.settings, compiled=True))
    assert sentences(compiled)[0].endswith("The step is compiled already: no gain of compiling it is predicted.")
    assert "compiled already" not in " ".join(sentences(ANSWER))


def test_step_that_runs_compiled_says_so() -> None:
    compiled = replace(ON_H100, step=_step(1900.0, backend="compile"), gains=())
    assert sentences(replace(ANSWER, devices=(compiled,)))[0].startswith(
        "On an H100 80GB HBM3 this step, compiled, takes 1.71 to 2.09 ms"
    )


def test_page_has_a_roofline_of_each_device_with_a_time() -> None:
    page = render(replace(ANSWER, devices=(ON_H100, FLOOR_ONLY)), "html")
    assert page.count('<figure class="chart">') == 1
    assert "fp32 vector 66.9 TFLOP/s" in page
    assert "<title>matmul 70.2 %" in page
    assert '<a href="#charts">Roofline</a>' in page
    assert 'data-label="interval"' in page
    assert '<figure class="chart">' not in render(replace(ANSWER, devices=(FLOOR_ONLY,)), "html")


def test_largest_batch_among_those_tried_is_exact() -> None:
    tried = replace(ANSWER, devices=(replace(ON_H100, largest_batch=127),))
    assert "127" in terminal(tried)
    assert "about" not in terminal(tried)


def test_without_lifetimes_there_is_no_table_of_memory() -> None:
    assert "Memory and batch size" not in terminal(replace(ANSWER, memory=None))


def test_price_is_shown_only_where_one_was_given() -> None:
    assert "0.028  0.035" in terminal(ANSWER)
    free = replace(ANSWER, devices=(replace(ON_H100, cost_per_million_samples=None),))
    assert "Price" not in terminal(free)


def test_calls_without_a_price_are_told() -> None:
    lacking = replace(ON_H100, step=replace(ON_H100.step, unknown_calls=3))
    assert "3 calls without a predicted time: the step leaves them out" in terminal(replace(ANSWER, devices=(lacking,)))


def test_settings_that_decide_the_engine_are_told() -> None:
    facts = dict(build(ANSWER).facts)
    assert facts["precision"] == "TF32 off for matmul, on for cuDNN, autocast off"
    mixed = replace(ANSWER, settings=replace(ANSWER.settings, autocast=("bfloat16",), channels_last=True))
    assert dict(build(mixed).facts)["precision"].endswith("autocast bfloat16, channels_last")


def test_a_trace_has_its_measured_time_beside_the_prediction() -> None:
    trace = replace(ANSWER, origin="trace", measured_us=9000.0, measured_on="Tesla T4")
    assert dict(build(trace).facts)["measured"] == "9.00 ms in the trace on Tesla T4"


def test_markdown_has_the_same_tables() -> None:
    text = render(ANSWER, "markdown")
    assert "| H100 80GB HBM3 |" in text
    assert "Other ways to run it" in text


def test_json_is_valid_by_the_published_schema() -> None:
    jsonschema.Draft202012Validator(PUBLISHED).validate(json.loads(render(ANSWER, "json")))


@pytest.mark.parametrize(("key", "value"), [("schema", "bottleneck/predict/9"), ("devices", None)])
def test_the_schema_refuses_what_is_no_prediction(key: str, value: object) -> None:
    tree = json.loads(render(ANSWER, "json"))
    assert not jsonschema.Draft202012Validator(PUBLISHED).is_valid({**tree, key: value})


def test_time_of_the_kernels_stands_beside_that_predicted_for_their_own_device() -> None:
    own = replace(ANSWER, measured_us=4000.0, measured_device_us=3000.0, measured_on=ANSWER.devices[0].device.name)
    predicted = format_us(ANSWER.devices[0].step.device_us or 0.0)
    assert f"its kernels take 3.00 ms, predicted {predicted}" in " ".join(terminal(own).split())
    assert ", predicted " not in terminal(replace(own, measured_on="another device"))


def test_tf32_has_no_column_where_no_product_would_use_it() -> None:
    with_gain = next(s for s in build(ANSWER).sections if s.title == "Other ways to run it")
    assert with_gain.columns[-1].title == "TF32"
    idle = replace(ON_H100, gains=(ON_H100.gains[0], BackendGain("tf32", _step(2840.0), 1.0)))
    shown = next(s for s in build(replace(ANSWER, devices=(idle,))).sections if s.title == "Other ways to run it")
    assert [column.title for column in shown.columns] == ["device", "compile"]


def test_host_bound_step_says_what_the_pace_of_its_host_decides_and_how_to_tell_it() -> None:
    step = replace(_step(800.0, "overhead"), by_host=Interval(400.0, 1300.0))
    known = replace(ON_H100, step=_step(800.0, "overhead"))
    waiting = replace(ON_H100, step=step)
    words = "host-bound on H100 80GB HBM3: 0.40 to 1.30 ms by the host's pace; give --host-pace or run"
    assert words in " ".join(render(replace(ANSWER, devices=(waiting,)), "terminal").split())
    assert "host-bound" not in render(replace(ANSWER, devices=(known,)), "terminal")
