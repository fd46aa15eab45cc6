from collections.abc import Callable
from typing import Any

import pytest

from bottleneck.experiment.interventions import ahead_of_time
from bottleneck.experiment.interventions.ahead_of_time import CHANGES
from bottleneck.experiment.interventions.subject import Change, Missing, NotApplicable, Subject, subject_of
from tests.experiment.interventions.subjects import convolutions, inference, perceptron, training

torch: Any = pytest.importorskip("torch")
PACKAGE, PROGRAM, WHOLE = (
    {change.name: change for change in CHANGES}[name] for name in ("aot-package", "executorch", "whole-step")
)
NETWORKS = {
    "convolutions": (lambda: convolutions(torch), lambda: torch.randn(2, 2, 8, 8)),
    "perceptron": (lambda: perceptron(torch), lambda: torch.randn(5, 8)),
}


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", [PACKAGE, PROGRAM], ids=["aot-package", "executorch"])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_gives_the_same_results_without_operators(name: str, change: Change) -> None:
    if change is PROGRAM:
        pytest.importorskip("executorch", reason="needs it: pip install executorch")
    original, changed = (inference(torch, *NETWORKS[name]) for _ in range(2))
    step = change.apply(changed)
    step()
    torch.testing.assert_close(step(), original.step(), rtol=1e-4, atol=1e-5)
    with torch.autograd.profiler.profile() as profile:
        step()
    assert "aten::linear" not in {event.name for event in profile.function_events}


def test_without_executorch_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_of_time.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Missing, match="pip install executorch"):
        PROGRAM.apply(inference(torch, *NETWORKS["perceptron"]))


def test_a_package_does_not_train() -> None:
    with pytest.raises(NotApplicable, match="without training"):
        PACKAGE.apply(training(torch, *NETWORKS["perceptron"]))


def test_a_package_needs_a_module() -> None:
    values = torch.ones(4)
    with pytest.raises(NotApplicable, match="a module"):
        PACKAGE.apply(subject_of(lambda: values * 2))


def test_an_old_torch_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_of_time, "package_maker", lambda: None)
    with pytest.raises(Missing, match=r"pip install 'torch>=2\.6'"):
        PACKAGE.apply(inference(torch, *NETWORKS["perceptron"]))


def adam(**options: Any) -> Subject:
    torch.manual_seed(0)
    model, given = perceptron(torch), torch.randn(5, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, **options)

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(given).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return subject_of(step)


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [adam, lambda: training(torch, *NETWORKS["perceptron"])], ids=["adam", "sgd"])
def test_a_whole_step_trains_as_the_original_does(make: Callable[[], Subject]) -> None:
    original, changed = make(), make()
    step = WHOLE.apply(changed)
    for _ in range(5):
        torch.testing.assert_close(step(), original.step(), rtol=1e-4, atol=1e-6)
    for mine, theirs in zip(original.trained(), changed.trained(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    with torch.autograd.profiler.profile() as profile:
        step()
    assert not {"aten::linear", "autograd::engine::evaluate_function"} & {
        event.name for event in profile.function_events
    }


def test_a_whole_step_leaves_the_options_of_the_optimizer() -> None:
    (optimizer,) = adam().optimizers
    with ahead_of_time._tensor_counts([optimizer]):
        assert optimizer.param_groups[0]["capturable"]
    assert not optimizer.param_groups[0]["capturable"]


def test_a_whole_step_needs_a_step_that_trains() -> None:
    with pytest.raises(NotApplicable, match="trains with an optimizer"):
        WHOLE.apply(inference(torch, *NETWORKS["perceptron"]))


def test_a_whole_step_needs_a_learning_rate_that_stays() -> None:
    subject = adam()
    torch.optim.lr_scheduler.StepLR(subject.optimizers[0], 1)
    with pytest.raises(NotApplicable, match="learning rate"):
        WHOLE.apply(subject)


def test_a_whole_step_reads_no_numbers() -> None:
    model, given = perceptron(torch), torch.randn(5, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(given).mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    changed = WHOLE.apply(subject_of(step))
    changed()
    with pytest.raises(NotApplicable, match="item"):
        changed()
