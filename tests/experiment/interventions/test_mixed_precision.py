from pathlib import Path
from typing import Any

import pytest

from bottleneck.experiment.interventions import mixed_precision as padding
from bottleneck.experiment.interventions.mixed_precision import PADDING_CHANGES as CHANGES
from bottleneck.experiment.interventions.mixed_precision import MatrixProduct, misaligned_products
from bottleneck.experiment.interventions.subject import NotApplicable, Subject, subject_of
from bottleneck.experiment.program import Program
from bottleneck.experiment.variants import VariantHost
from tests.experiment.interventions.subjects import inference, training

torch: Any = pytest.importorskip("torch")
nn = torch.nn
PAD = CHANGES[0]
WORKLOAD = """
import torch

def workload():
    left, right = torch.ones(12, 10), torch.ones(10, 24)
    return lambda: torch.relu(left @ right)
"""


def linear(inputs: int, outputs: int) -> Subject:
    return training(torch, lambda: nn.Linear(inputs, outputs), lambda: torch.randn(12, inputs))


def product(*sizes: int, left: bool = False, right: bool = False, batch: int | None = None) -> MatrixProduct:
    return MatrixProduct(batch, *sizes, torch.float32, torch.device("cpu"), left, right)


def sizes_of(step: Any) -> list[list[tuple[int, ...]]]:
    """The shapes of both operands of each product that a step makes."""
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        step()
    products = [event for event in profile.function_events if event.name in {"aten::mm", "aten::bmm", "aten::addmm"}]
    return [[tuple(shape) for shape in event.input_shapes if shape][-2:] for event in products]


def test_products_of_forward_and_backward_are_found_with_their_layouts() -> None:
    found = misaligned_products(linear(10, 24))
    forward, weights = product(12, 10, 24, right=True), product(24, 12, 10, left=True)
    assert dict(found) == {forward: 1, weights: 1}


def test_only_the_sizes_that_make_a_pitch_are_padded() -> None:
    assert product(3, 10, 17).padded() == product(3, 16, 24)
    assert product(3, 10, 17, left=True).padded() == product(8, 10, 24, left=True)
    assert product(3, 10, 17, right=True).padded() == product(3, 16, 24, right=True)


def test_padding_what_is_aligned_changes_nothing() -> None:
    assert product(3, 16, 24).padded() == product(3, 16, 24)
    assert not product(3, 16, 24).is_misaligned() and product(3, 10, 24).is_misaligned()


def test_products_with_a_vector_do_not_count() -> None:
    assert not product(5, 10, 1).is_misaligned()


def test_the_changed_step_makes_the_padded_products_and_nothing_else() -> None:
    step = PAD.apply(linear(10, 24))
    assert sorted(sizes_of(step)) == sorted([[(12, 16), (16, 24)], [(24, 12), (12, 16)]])


def test_it_is_compared_with_the_products_as_they_are() -> None:
    assert PAD.against is not None
    step = PAD.against(linear(10, 24))
    assert sorted(sizes_of(step)) == sorted([[(12, 10), (10, 24)], [(24, 12), (12, 10)]])


def test_a_trial_compares_the_padded_products_with_those_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "odd_sizes.py"
    file.write_text(WORKLOAD)
    host = VariantHost(Program(str(file), (), "workload", (), train=False), {"pad": PAD})
    host.build("original", (), None, ("pad",))
    host.build("changed", ("pad",), None)
    original, changed = (sizes_of(lambda name=name: host.turn(name, 1, 0)) for name in ("original", "changed"))
    assert original == [[(12, 10), (10, 24)]] and changed == [[(12, 16), (16, 24)]]


def test_products_in_batches_are_padded_within_each() -> None:
    left, right = torch.randn(3, 4, 10), torch.randn(3, 10, 6)
    step = PAD.apply(subject_of(lambda: left @ right))
    assert sizes_of(step) == [[(3, 4, 16), (3, 16, 8)]]


def test_a_product_that_is_made_twice_is_timed_twice() -> None:
    left, right = torch.randn(4, 10), torch.randn(10, 8)
    assert list(misaligned_products(subject_of(lambda: (left @ right, left @ right))).values()) == [2]


def test_only_the_largest_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "PRODUCTS_AT_MOST", 1)
    model = nn.Sequential(nn.Linear(10, 100), nn.Linear(100, 3))
    values = torch.randn(4, 10)
    assert [each.n for each in misaligned_products(subject_of(lambda: model(values).detach()))] == [100]


def test_aligned_products_leave_nothing_to_pad() -> None:
    with pytest.raises(NotApplicable, match="multiples of 8"):
        PAD.apply(inference(torch, lambda: nn.Linear(16, 24), lambda: torch.randn(5, 16)))


def test_a_step_without_products_leaves_nothing_to_pad() -> None:
    values = torch.ones(3)
    with pytest.raises(NotApplicable, match="matrix products"):
        PAD.apply(subject_of(lambda: values + 1))
