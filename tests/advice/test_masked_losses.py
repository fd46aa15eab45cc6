"""Losses that leave positions out after logits were computed for all of them."""

from pathlib import Path

import pytest

from bottleneck.advice.masked_losses import masked_positions
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import program_line, two_steps
from tests.builders import Event, op

ROWS, CLASSES = 512, 8000
LABELS = op("aten::masked_fill", 52, 5, dims=[[8, 64], [8, 64], []], concrete=["", "", "-100"])


def case(
    folder: Path,
    *more: Event,
    classes: int = CLASSES,
    reduction: str = "1",
    text: str = "",
    given: tuple[int, ...] = (8, 64, 128),
    trains: bool = True,
) -> Evidence:
    """Steps with a head of 300 us at train.py:11 and its loss of 200 us at train.py:12."""
    loss = op(
        "aten::cross_entropy_loss", 420, 200, dims=[[ROWS, classes], [ROWS], [], [], [], []],
        concrete=["", "", "", reduction, "-100", "0."],
    )  # fmt: skip
    events = [
        program_line(10, 50, 20),
        program_line(11, 100, 310),
        op("aten::linear", 105, 300, dims=[[*given], [classes, 128], [classes]]),
        program_line(12, 415, 300),
        loss,
        program_line(13, 800, 20),
        *([op("autograd::engine::evaluate_function: AddmmBackward0", 802, 10)] if trains else []),
    ]
    return two_steps(folder, [*events, *more], source_texts={"train.py:12": text})


def test_logits_of_positions_without_a_target_need_not_be_computed(tmp_path: Path) -> None:
    draft = masked_positions(case(tmp_path, LABELS))
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "before the product at train.py:11" in draft.advice
    assert "the loss at train.py:12 is over 8000 classes for 512 positions" in draft.evidence[0].replace(",", "", 1)
    assert 350 < draft.gain_us.high <= 450 and draft.gain_us.low == pytest.approx(0.25 * draft.gain_us.high, rel=0.1)


@pytest.mark.parametrize(("given", "trains"), [((8, 64, 128), False), ((8, 65, 128), True), ((1, 513, 128), False)])
def test_a_causal_model_has_no_label_for_the_last_position(
    tmp_path: Path, given: tuple[int, ...], trains: bool
) -> None:
    """The perplexity of a text in windows: 511 labels for 512 positions, three quarters of them left out."""
    draft = masked_positions(case(tmp_path, LABELS, given=given, trains=trains))
    assert draft is not None and draft.gain_us is not None
    assert "before the product at train.py:11" in draft.advice and 350 < draft.gain_us.high <= 450


@pytest.mark.parametrize(("amounts", "is_found"), [("[0, 1]", False), ("[0, 20]", True)])
def test_one_label_that_a_causal_loss_adds_leaves_no_positions_out(
    amounts: str, is_found: bool, tmp_path: Path
) -> None:
    """A training of GPT-2 was told to select the positions with a target, which are 127 of 128 (1.07 to 1.39)."""
    pad = op("aten::pad", 52, 5, dims=[[8, 64], [], [], []], concrete=["", amounts, "", "-100."])
    assert (masked_positions(case(tmp_path, pad)) is not None) is is_found


def test_a_product_over_other_positions_is_not_that_of_the_loss(tmp_path: Path) -> None:
    draft = masked_positions(case(tmp_path, LABELS, given=(8, 70, 128)))
    assert draft is None or "train.py:11" not in draft.advice


def test_a_mask_over_the_losses_may_be_of_padding(tmp_path: Path) -> None:
    mask = op("aten::mul", 640, 5, dims=[[ROWS], [ROWS]])
    draft = masked_positions(case(tmp_path / "mask", mask, reduction="0"))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.low < 60 and draft.confidence == "low"
    named = masked_positions(case(tmp_path / "named", text="loss = F.cross_entropy(a, b, ignore_index=PAD)"))
    assert named is not None and named.confidence == "medium"


def test_losses_over_all_positions_or_few_classes_are_left_alone(tmp_path: Path) -> None:
    assert masked_positions(case(tmp_path / "all")) is None
    assert masked_positions(case(tmp_path / "unreduced", reduction="0")) is None
    assert masked_positions(case(tmp_path / "few", LABELS, classes=100)) is None


@pytest.mark.parametrize(("ignored", "is_found"), [("0", True), ("-100", False)])
def test_a_label_that_the_loss_was_told_to_ignore_leaves_positions_out(
    tmp_path: Path, ignored: str, is_found: bool
) -> None:
    """NLLLoss(ignore_index=0) of classes in the second dimension, whose labels no op of the step marks."""
    events = [
        program_line(11, 100, 410),
        op("aten::linear", 105, 300, dims=[[8, 64, 128], [CLASSES, 128], [CLASSES]]),
        op("aten::log_softmax", 410, 90, dims=[[8, 64, CLASSES], [], []]),
        program_line(12, 515, 300),
        op("aten::nll_loss_nd", 520, 200, dims=[[8, CLASSES, 64], [8, 64], [], [], []],
           concrete=["", "", "", "1", ignored]),
        program_line(13, 800, 20),
        op("autograd::engine::evaluate_function: AddmmBackward0", 802, 10),
    ]  # fmt: skip
    draft = masked_positions(two_steps(tmp_path, events))
    assert (draft is not None) == is_found
    if draft is not None:
        assert "is over 8,000 classes for 512 positions" in draft.evidence[0]
        assert draft.gain_us is not None and draft.gain_us.high > 0.8 * 590  # product, softmax and loss
