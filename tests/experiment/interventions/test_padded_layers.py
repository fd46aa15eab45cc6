"""A padded vocabulary: the same model with rows that nobody uses, its optimizer's state included."""

import pytest
import torch
from torch import nn

from bottleneck.experiment.interventions.padded_layers import pad_vocabulary
from bottleneck.experiment.interventions.subject import NotApplicable, Subject


def subject_of(model: nn.Module) -> Subject:
    """Training steps of a model on eight ids, after one of them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.arange(8)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(ids), ids)
        loss.backward()
        optimizer.step()
        return loss

    step()
    return Subject(torch, step, (model,), (optimizer,), train=True)


def test_tied_embeddings_and_their_state_grow_together() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(1030, 16), nn.Linear(16, 16), nn.Linear(16, 1030, bias=False))
    model[2].weight = model[0].weight
    subject = subject_of(model)
    before = model[0].weight.detach().clone()
    step = pad_vocabulary(subject)
    assert model[0].weight is model[2].weight and tuple(model[0].weight.shape) == (1088, 16)
    assert (model[0].num_embeddings, model[2].out_features) == (1088, 1088)
    assert torch.equal(model[0].weight[:1030], before) and not model[0].weight[1030:].any()
    assert tuple(subject.optimizers[0].state[model[0].weight]["exp_avg"].shape) == (1088, 16)
    assert torch.isfinite(step())
    assert tuple(model(torch.arange(8)).shape) == (8, 1088)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Embedding(1024, 16), nn.Linear(16, 1024)),
        nn.Sequential(nn.Embedding(1024, 16), nn.Linear(16, 1030), nn.Linear(1030, 1024)),
        nn.Sequential(nn.Embedding(1024, 16), nn.Linear(16, 10)),
    ],
    ids=["even", "taken by another layer", "few classes"],
)
def test_a_model_without_an_odd_vocabulary_is_left_alone(model: nn.Module) -> None:
    with pytest.raises(NotApplicable, match="no multiple of 64"):
        pad_vocabulary(subject_of(model))
