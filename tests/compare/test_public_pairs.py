"""Pairs of public traces: what a comparison of them must say, as one who reads both would."""

import math
from pathlib import Path

import pytest

from bottleneck.compare.build import compare
from bottleneck.compare.sides import ComparedSide
from bottleneck.schema.comparison import Bar, ChangeRow, Comparison
from tests.trace_cache import explained

pytestmark = pytest.mark.corpus

_LENS = "AMD-AGI+TraceLens__tests__traces__{}__{}*"
_DIFF = "facebookresearch+HolisticTraceAnalysis__tests__data__trace_diff__{}*"
_LOADER = "pytorch+kineto__tb_plugin__samples__resnet50_num_workers_{}__worker0*"
_TORCHREC = "pytorch+torchrec__examples__golden_training__trace__{}*_{}.*"
_SEGMENT = "pytorch-labs+segment-anything-fast__amg_example__asdf_{}*"


def _side(path: Path) -> ComparedSide:
    return ComparedSide(path.name[:24], str(path), case=explained(path))


def _compare(folder: Path, before: str, after: str) -> Comparison:
    old, new = (min(folder.glob(pattern)) for pattern in (before, after))
    comparison = compare(_side(old), _side(new))
    change_us, step_us = comparison.change_us, comparison.after.step_us
    assert change_us is not None and step_us is not None
    for parts in (comparison.bars, (*comparison.rows, *comparison.idle), (*comparison.modules, *comparison.idle)):
        assert math.fsum(part.change_us for part in parts) == pytest.approx(change_us, abs=1e-9 * step_us)
    return comparison


def _bar(comparison: Comparison, account: str) -> Bar:
    return next(bar for bar in comparison.bars if bar.account == account)


def _of(comparison: Comparison, name: str) -> list[ChangeRow]:
    return [row for row in comparison.rows if name in row.name]


@pytest.mark.parametrize(
    "model",
    ["Falconsai_nsfw_image_detection", "facebook_timesformer-base-finetuned-k400", "gaunernst_bert-small-uncased"],
)
def test_one_model_on_two_vendors_is_the_same_work_on_another_device(traces: Path, model: str) -> None:
    comparison = _compare(traces, _LENS.format("h100", model), _LENS.format("mi300", model))
    assert [(each.what, each.weight) for each in comparison.conditions] == [("device", "breaks")]
    assert comparison.sentence.startswith("On AMD Instinct MI300X VF the step takes ")
    assert all(row.calls_before == row.calls_after for row in comparison.rows)
    by_module = [row for row in comparison.rows if row.matched_by == "module and op"]
    assert len(by_module) >= len(comparison.rows) - 2


def test_back_ends_that_name_an_op_differently_do_the_same_op(traces: Path) -> None:
    model = "Falconsai_nsfw_image_detection"
    [row] = _of(_compare(traces, _LENS.format("h100", model), _LENS.format("mi300", model)), "convolution")
    assert row.name == "aten::miopen_convolution (was aten::cudnn_convolution)"
    assert row.matched_by == "module and op" and row.kind == "faster" and row.module is not None
    assert row.module.endswith("ViTPatchEmbeddings_0.Conv2d_0")


def test_flash_attention_of_every_layer_is_three_times_slower_on_the_other_vendor(traces: Path) -> None:
    model = "gaunernst_bert-small-uncased"
    rows = _of(_compare(traces, _LENS.format("h100", model), _LENS.format("mi300", model)), "_flash_attention_forward")
    assert len(rows) == 4 and {row.kind for row in rows} == {"slower"}
    assert all(2 < row.after_us / row.before_us < 4 and "BertSdpaSelfAttention_" in (row.module or "") for row in rows)


def test_loader_workers_trade_waiting_for_data_against_the_host(traces: Path) -> None:
    comparison = _compare(traces, _LOADER.format(0), _LOADER.format(4))
    waiting, framework = _bar(comparison, "overhead.input"), _bar(comparison, "overhead.dispatch")
    assert waiting.before_us > 30e3 and waiting.after_us < 2e3
    assert framework.change_us > 30e3
    assert "in waiting for data" in comparison.sentence
    assert {each.what for each in comparison.conditions} == {"device name"}
    # The model is the same, and so is its work, though another version of torch names a few ops differently.
    matched = math.fsum(row.after_us for row in comparison.rows if row.matched_by != "nothing")
    assert matched > 0.99 * math.fsum(row.after_us for row in comparison.rows)


def test_the_control_and_the_test_differ_in_device_ranks_and_compilation(traces: Path) -> None:
    comparison = _compare(traces, _DIFF.format("control"), _DIFF.format("test"))
    assert [each.what for each in comparison.conditions if each.weight == "breaks"] == ["device", "ranks"]
    assert {"dtype", "steps"} <= {each.what for each in comparison.conditions}
    compiled = [row for row in comparison.rows if row.kind == "new" and row.name.startswith("CompiledFunction")]
    assert {row.name for row in compiled} == {"CompiledFunction", "CompiledFunctionBackward"}
    [products] = [row for row in comparison.rows if row.name.startswith("matmul: ")]
    assert products.kind == "slower" and products.after_us > 2 * products.before_us
    copies = math.fsum(row.change_us for row in comparison.rows if row.name == "aten::copy_")
    assert copies == pytest.approx(_bar(comparison, "memory.copy").change_us, rel=0.1)


@pytest.mark.sample
def test_a_rank_that_sleeps_moves_waiting_from_collectives_into_python(traces: Path) -> None:
    comparison = _compare(traces, _TORCHREC.format("sst_sleep", 19488), _TORCHREC.format("sst_sleep", 19490))
    assert _bar(comparison, "communication").change_us == pytest.approx(-1e6, rel=0.05)
    assert _bar(comparison, "overhead.python").change_us == pytest.approx(1e6, rel=0.05)
    assert "so the two may be equally fast" in comparison.sentence
    assert "more in Python between ops" in comparison.sentence and "less in faster all-to-all" in comparison.sentence


def test_ranks_of_one_job_do_the_same_work(traces: Path) -> None:
    comparison = _compare(traces, _TORCHREC.format("sst_long", 54105), _TORCHREC.format("sst_long", 54106))
    assert comparison.conditions == () and "so the two may be equally fast" in comparison.sentence
    rows = [row for row in comparison.rows if row.matched_by == "nothing"]
    assert math.fsum(row.before_us + row.after_us for row in rows) < 0.02 * (comparison.after.step_us or 0.0)


def test_fewer_calls_with_more_points_each_explain_a_faster_segmentation(traces: Path) -> None:
    comparison = _compare(traces, _SEGMENT.format("False"), _SEGMENT.format("True"))
    change_us, before_us = comparison.change_us, comparison.before.step_us
    assert change_us is not None and before_us is not None and change_us < -0.5 * before_us
    assert "fewer aten::addmm" in comparison.sentence and ("dtype" in {each.what for each in comparison.conditions})
    attention = next(row for row in comparison.rows if row.name.startswith("aten::_flash_attention_forward (was "))
    assert attention.kind == "fewer"
