import copy
from collections.abc import Callable
from typing import Any

import pytest

from bottleneck.experiment.interventions.optimizer_step import batch_optimizers, drop_gradients, fuse_optimizers
from bottleneck.experiment.interventions.subject import NotApplicable, Subject, subject_of

torch: Any = pytest.importorskip("torch")
nn = torch.nn
KINDS = ["SGD", "Adam", "AdamW", "Adagrad"]


def make(kind: str, **options: Any) -> tuple[Subject, Any]:
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(3, 4)
    optimizer = getattr(torch.optim, kind)(model.parameters(), **{"lr": 0.1, **options})

    def step() -> None:
        optimizer.zero_grad()
        model(data).pow(2).mean().backward()
        optimizer.step()

    return subject_of(step), optimizer


@pytest.mark.parametrize("kind", KINDS)
def test_a_fused_optimizer_stays_in_place_and_keeps_its_state(kind: str) -> None:
    (subject, optimizer), (plain, _) = make(kind, weight_decay=0.01), make(kind, weight_decay=0.01)
    subject.step()
    before = copy.deepcopy(optimizer.state_dict()["state"])
    step = fuse_optimizers(subject)
    assert subject.optimizers == (optimizer,)
    assert optimizer.defaults["fused"] is True and all(group["fused"] for group in optimizer.param_groups)
    torch.testing.assert_close(optimizer.state_dict()["state"], before)
    plain.step()
    for _ in range(2):
        step()
        plain.step()
    torch.testing.assert_close([*subject.trained()], [*plain.trained()])


def calls_of(step: Callable[[], Any]) -> set[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        step()
    return {event.key for event in profile.key_averages()}


def test_a_fused_optimizer_runs_the_fused_kernel() -> None:
    subject, _ = make("AdamW")
    assert "aten::_fused_adamw_" not in calls_of(subject.step)
    assert "aten::_fused_adamw_" in calls_of(fuse_optimizers(subject))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batched_optimizer_goes_through_all_parameters_in_a_few_calls(kind: str) -> None:
    (subject, optimizer), (plain, _) = make(kind), make(kind)
    step = batch_optimizers(subject)
    assert optimizer.defaults["foreach"] is True
    assert any(name.startswith("aten::_foreach") for name in calls_of(step))
    plain.step()
    torch.testing.assert_close([*subject.trained()], [*plain.trained()])


def test_groups_keep_what_is_their_own() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    groups = [
        {"params": list(first.named_parameters(prefix="first")), "lr": 0.5},
        {"params": list(second.named_parameters(prefix="second"))},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    fuse_optimizers(subject_of(optimizer.step))
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    assert optimizer.param_groups[0]["params"][0] is first.weight
    assert optimizer.param_groups[1]["param_names"] == ["second.weight", "second.bias"]


def test_a_scheduler_goes_on_with_a_fused_optimizer() -> None:
    subject, optimizer = make("SGD")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    fuse_optimizers(subject)()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_an_optimizer_without_such_an_implementation_is_not_applicable() -> None:
    subject, _ = make("LBFGS")
    for change in (fuse_optimizers, batch_optimizers):
        with pytest.raises(NotApplicable, match="LBFGS has none"):
            change(subject)


def test_an_optimizer_that_is_fused_is_left_alone() -> None:
    subject, _ = make("Adam", fused=True)
    for change in (fuse_optimizers, batch_optimizers):
        with pytest.raises(NotApplicable, match="Adam is"):
            change(subject)


def test_an_optimizer_that_takes_all_at_once_is_not_batched_again() -> None:
    subject, _ = make("Adam", foreach=True)
    with pytest.raises(NotApplicable, match="takes all at once already"):
        batch_optimizers(subject)


def test_what_torch_would_not_fuse_is_reported_in_its_words() -> None:
    subject, _ = make("Adam", differentiable=True)
    with pytest.raises(NotApplicable, match="differentiable"):
        fuse_optimizers(subject)


def test_a_step_without_an_optimizer_has_nothing_to_fuse() -> None:
    model, data = nn.Linear(2, 2), torch.ones(1, 2)
    with pytest.raises(NotApplicable, match="needs a step that holds an optimizer"):
        fuse_optimizers(subject_of(lambda: model(data)))


def zeroing(how: str) -> Subject:
    subject, optimizer = make("SGD")
    model, step = subject.modules[0], subject.step
    steps = {
        "optimizer": lambda: (optimizer.zero_grad(set_to_none=False), step()),
        "optimizer, by place": lambda: (optimizer.zero_grad(False), step()),
        "module": lambda: (model.zero_grad(set_to_none=False), step()),
    }
    return subject_of({name: each for name, each in steps.items() if name == how}[how])


@pytest.mark.parametrize("how", ["optimizer", "optimizer, by place", "module"])
def test_gradients_are_dropped_whatever_zero_grad_is_told(how: str) -> None:
    subject = zeroing(how)
    drop_gradients(subject)()
    holder = subject.modules[0] if how == "module" else subject.optimizers[0]
    holder.zero_grad(set_to_none=False)
    assert all(parameter.grad is None for parameter in subject.trained())


def test_gradients_that_are_dropped_already_are_left_alone() -> None:
    subject, _ = make("SGD")
    with pytest.raises(NotApplicable, match="dropped by default"):
        drop_gradients(subject)


def test_false_of_another_call_says_nothing_of_zero_grad() -> None:
    _, optimizer = make("SGD")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.set_grad_enabled(False)
        torch.set_grad_enabled(True)

    with pytest.raises(NotApplicable):
        drop_gradients(subject_of(step))
