from typing import Any

import pytest

from bottleneck.experiment.interventions.recompute import CHANGES
from bottleneck.experiment.interventions.subject import NotApplicable
from tests.experiment.interventions.subjects import inference, perceptron, saved_elements, training

torch: Any = pytest.importorskip("torch")
nn = torch.nn
CHECKPOINT = CHANGES[0]


def inputs() -> Any:
    return torch.randn(16, 8)


def layers() -> Any:
    return nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5))])


def blocks() -> Any:
    return nn.Sequential(*[nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)) for _ in range(4)])


class Listed(nn.Module):
    """Blocks in a list, between other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(8, 8), nn.ModuleList(blocks())

    def forward(self, values: Any) -> Any:
        values = self.first(values)
        for block in self.blocks:
            values = block(values)
        return values


def encoder() -> Any:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 32, batch_first=True), 3)


MAKERS = {"layers": layers, "blocks": blocks, "list": Listed, "encoder": encoder}


def given(name: str) -> Any:
    return (lambda: torch.randn(4, 3, 8)) if name == "encoder" else inputs


@pytest.mark.parametrize("name", MAKERS)
def test_less_is_kept_for_the_backward_pass(name: str) -> None:
    original, changed = (training(torch, MAKERS[name], given(name)) for _ in range(2))
    step = CHECKPOINT.apply(changed)
    assert saved_elements(torch, step) < 0.7 * saved_elements(torch, original.step)


@pytest.mark.parametrize("name", MAKERS)
def test_recomputing_gives_the_same_bits_dropout_included(name: str) -> None:
    losses = []
    for apply in (CHECKPOINT.apply, lambda subject: subject.step):
        step = apply(training(torch, MAKERS[name], given(name)))
        torch.manual_seed(7)
        losses.append([float(step()) for _ in range(3)])
    assert losses[0] == losses[1]


def test_checkpointing_leaves_the_original_alone() -> None:
    original = training(torch, blocks, inputs)
    before = [dict(part.__dict__) for part in original.modules[0].modules()]
    CHECKPOINT.apply(training(torch, blocks, inputs))
    assert [dict(part.__dict__) for part in original.modules[0].modules()] == before


def test_inference_keeps_nothing_anyway() -> None:
    with pytest.raises(NotApplicable, match="needs a step that trains"):
        CHECKPOINT.apply(inference(torch, blocks, inputs))


def test_a_network_of_few_layers_has_nothing_to_recompute() -> None:
    with pytest.raises(NotApplicable, match="needs blocks"):
        CHECKPOINT.apply(training(torch, lambda: perceptron(torch), inputs))


class Cached(Listed):
    """Blocks that add their inputs to a cache: computed twice, they would add them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.is_recomputed = False

    def gradient_checkpointing_enable(self) -> None:
        self.is_recomputed = True

    def forward(self, values: Any) -> Any:
        cache: list[Any] = []
        for block in self.blocks:
            values = block(values)
            if not self.is_recomputed:
                cache.append(values)
        return values


@pytest.mark.parametrize(("trains", "is_switched"), [(True, True), (False, False)])
def test_a_model_with_a_switch_of_its_own_is_recomputed_by_that(trains: bool, is_switched: bool) -> None:
    changed = training(torch, Cached, inputs)
    model = changed.modules[0].train(trains)
    wrapped = [block.forward for block in model.blocks]
    CHECKPOINT.apply(changed)
    assert model.is_recomputed is is_switched
    assert ([block.forward for block in model.blocks] == wrapped) is is_switched
