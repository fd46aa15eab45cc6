from typing import Any

import pytest

from bottleneck.experiment.interventions import ahead_of_time
from bottleneck.experiment.interventions.ahead_of_time import CHANGES
from bottleneck.experiment.interventions.subject import Change, Missing, NotApplicable, subject_of
from tests.experiment.interventions.subjects import convolutions, inference, perceptron, training

torch: Any = pytest.importorskip("torch")
PACKAGE, PROGRAM = ({change.name: change for change in CHANGES}[name] for name in ("aot-package", "executorch"))
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
