"""Signals of the real torch at step boundaries."""

import pickle
from typing import Any

import pytest

from bottleneck.harness import boundaries
from bottleneck.harness.boundaries import Boundaries, Removal, watch_class

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):  # type: ignore[misc]
    """A module with others inside, of which one is of its own class."""

    def __init__(self, inner: "Net | None" = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.inner = inner

    def forward(self, values: Any) -> Any:
        values = self.layer(values)
        return values if self.inner is None else self.inner(values)


class Odd(torch.nn.Module):  # type: ignore[misc]
    """A module that is called in a way of its own."""

    def __call__(self, values: Any) -> Any:
        return values


def listen(kind: Any, called: list[Any]) -> Removal | None:
    return watch_class(torch, kind, called.append)


def test_calls_of_one_class_are_reported_and_the_class_is_left_as_it_was() -> None:
    called: list[Any] = []
    model, before = Net(Net()), dict(vars(Net))
    removal = listen(Net, called)
    assert removal is not None
    model(torch.ones(1, 2))
    assert called == [model, model.inner]
    removal()
    model(torch.ones(1, 2))
    assert len(called) == 2
    assert dict(vars(Net)) == before and "_compiled_call_impl" not in model.__dict__


def test_a_watched_module_can_still_be_copied_and_compiled() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    removal = listen(torch.nn.Sequential, [])
    assert removal is not None
    try:
        copy = pickle.loads(pickle.dumps(model))
        model._compiled_call_impl = lambda values: "compiled"
        assert model(torch.ones(1, 2)) == "compiled"
        assert copy(torch.ones(1, 2)).shape == (1, 2)
    finally:
        removal()
    assert model(torch.ones(1, 2)) == "compiled"


def test_a_class_with_a_call_of_its_own_is_not_watched() -> None:
    assert listen(Odd, []) is None


def test_narrowed_boundaries_go_on_with_the_leader_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries, "is_optimizer_made", lambda: False)
    counts = {"boundaries": 0}

    def count() -> None:
        counts["boundaries"] += 1

    watched = Boundaries(count, lambda source, name: None)
    watched.watch(torch)
    try:
        model, hooks = Net(Net()), torch.nn.modules.module._global_forward_pre_hooks
        for _ in range(3):
            model(torch.ones(1, 2))
        assert (counts["boundaries"], len(hooks)) == (2, 1)
        watched.narrow()
        assert not hooks
        for _ in range(5):
            model(torch.ones(1, 2))
        assert counts["boundaries"] == 7
    finally:
        watched.forget()
    model(torch.ones(1, 2))
    assert counts["boundaries"] == 7
    assert "_compiled_call_impl" not in vars(Net)


def test_boundaries_of_an_optimizer_are_not_narrowed() -> None:
    watched = Boundaries(lambda: None, lambda source, name: None)
    watched.watch(torch)
    try:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model(torch.ones(1, 2))
            optimizer.step()
        watched.narrow()
        assert "_compiled_call_impl" not in vars(torch.nn.Linear)
    finally:
        watched.forget()
