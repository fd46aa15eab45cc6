"""What models and optimizers hold between steps, by kind, each block once."""

import pytest

torch = pytest.importorskip("torch")

from bottleneck.harness import resting_memory  # noqa: E402 - torch first
from bottleneck.harness.resting_memory import find_resting_memory  # noqa: E402


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Sums these objects alone: other tests of this process hold models too."""

    def sums(model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> dict[str, int]:
        named = [*model.named_parameters(), *model.named_buffers()]
        monkeypatch.setattr(resting_memory, "named_tensors", lambda _: named)
        monkeypatch.setattr(resting_memory, "instances_of", lambda _: list(optimizers))
        (found,) = find_resting_memory(torch)
        assert found.device is None
        return dict(found.bytes)

    return sums


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(3, 8)).sum().backward()
    optimizer.step()


def test_kinds_are_counted_by_the_bytes_of_their_tensors(only) -> None:  # type: ignore[no-untyped-def]
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parameters, buffers = 4 * (8 * 4 + 4 + 4 + 4), 4 * (4 + 4) + 8
    assert only(model, optimizer) == {"parameters": parameters, "buffers": buffers}
    step(model, optimizer)
    assert only(model, optimizer) == {
        "parameters": parameters,
        "buffers": buffers,
        "gradients": parameters,
        "optimizer state": parameters,
    }


def test_tied_weights_and_views_of_one_block_count_once(only) -> None:  # type: ignore[no-untyped-def]
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    assert only(model) == {"parameters": 4 * 64}


def test_parameters_in_no_module_are_those_of_their_optimizer(only) -> None:  # type: ignore[no-untyped-def]
    loose = torch.nn.Parameter(torch.zeros(10))
    optimizer = torch.optim.SGD([loose], lr=0.1)
    assert only(torch.nn.Identity(), optimizer) == {"parameters": 40}


def test_a_tensor_without_memory_counts_nothing(only) -> None:  # type: ignore[no-untyped-def]
    model = torch.nn.Linear(8, 4, device="meta")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    assert only(model, optimizer) == {"parameters": 8}
