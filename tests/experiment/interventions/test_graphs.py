from typing import Any

import pytest

from bottleneck.experiment.interventions.graphs import CHANGES
from bottleneck.experiment.interventions.subject import NotApplicable, subject_of
from tests.experiment.interventions.subjects import convolutions, inference, perceptron, training

torch: Any = pytest.importorskip("torch")
BY_NAME = {change.name: change for change in CHANGES}
TRACE, GRAPH = BY_NAME["torchscript"], BY_NAME["cuda-graph"]
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def inputs() -> Any:
    return torch.randn(5, 8)


def network() -> Any:
    return perceptron(torch)


def images() -> Any:
    return torch.randn(2, 2, 8, 8)


class Named(torch.nn.Module):
    """A tensor, one by name that may be absent and a number in; a dictionary out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = torch.nn.Linear(8, 8), list[float]()

    def forward(self, values: Any, *, scale: float = 1.0, mask: Any = None) -> Any:
        self.seen.append(scale)
        masked = values if mask is None else values * mask
        return {"scores": self.linear(masked) * scale, "all": [masked, values + 1]}


def test_tracing_puts_torchscript_in_the_place_of_the_network() -> None:
    subject = inference(torch, network, inputs)
    step = TRACE.apply(subject)
    step()
    with torch.autograd.profiler.profile() as profile:
        step()
    with torch.autograd.profiler.profile() as eager:
        inference(torch, network, inputs).step()
    assert any("TorchScript" in event.name or "forward" in event.name for event in profile.function_events)
    assert not any("forward" in event.name for event in eager.function_events)


def test_a_traced_network_runs_no_python_of_the_user_again() -> None:
    module = Named()
    values = torch.ones(2, 8)
    step = TRACE.apply(subject_of(lambda: module(values, scale=2.0)))
    for _ in range(5):
        step()
    assert module.seen == [2.0]


def test_a_trace_trains_as_the_original_does() -> None:
    original, changed = (training(torch, network, inputs) for _ in range(2))
    step = TRACE.apply(changed)
    assert [float(step()) for _ in range(5)] == pytest.approx([float(original.step()) for _ in range(5)])
    pairs = zip(changed.modules[0].parameters(), original.modules[0].parameters(), strict=True)
    assert all(torch.allclose(mine, other) for mine, other in pairs)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # batch norm asks whether the batch is one value
def test_tracing_leaves_the_statistics_of_batch_norm_as_one_step_makes_them() -> None:
    original, changed = (training(torch, lambda: convolutions(torch), images) for _ in range(2))
    TRACE.apply(changed)()
    original.step()
    norms = [subject.modules[0][1] for subject in (original, changed)]
    assert torch.allclose(norms[0].running_mean, norms[1].running_mean)
    assert int(norms[1].num_batches_tracked) == 1


def test_tracing_draws_no_random_numbers_of_its_own() -> None:
    def dropping() -> Any:
        return torch.nn.Sequential(torch.nn.Dropout(), *network())

    losses = []
    for change in (TRACE.apply, lambda subject: subject.step):
        step = change(training(torch, dropping, inputs))
        torch.manual_seed(7)
        losses.append([float(step()) for _ in range(2)])
    assert losses[0] == pytest.approx(losses[1])


def test_keywords_and_nested_results_pass_through_a_trace() -> None:
    torch.manual_seed(0)
    module, values, mask = Named(), torch.ones(2, 8), torch.zeros(2, 8)
    want = module(values, scale=2.0, mask=mask)
    TRACE.apply(subject_of(lambda: module(values)))
    for _ in range(2):
        got = module(values, scale=2.0, mask=mask)
        assert torch.equal(got["scores"], want["scores"])
        assert torch.equal(got["all"][0], mask) and torch.equal(got["all"][1], values + 1)
    assert not torch.equal(module(values, scale=3.0)["scores"], want["scores"])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # a length is used as a number
def test_inputs_of_another_shape_get_a_trace_of_their_own() -> None:
    class Halves(torch.nn.Module):
        def forward(self, values: Any) -> Any:
            return values[: len(values) // 2].sum(0)

    module = Halves()
    TRACE.apply(subject_of(lambda: module(torch.ones(4, 2))))
    assert float(module(torch.ones(4, 2))[0]) == 2
    assert float(module(torch.ones(8, 2))[0]) == 4


def test_a_step_without_modules_cannot_be_traced() -> None:
    values = torch.ones(3)
    with pytest.raises(NotApplicable, match="needs a module"):
        TRACE.apply(subject_of(lambda: values + 1))


@pytest.mark.parametrize(
    ("given", "need"), [((object(),), "take tensors"), ((torch.ones(2),), "give back tensors")], ids=["in", "out"]
)
def test_what_a_trace_cannot_hold_is_said(given: tuple[Any, ...], need: str) -> None:
    class Odd(torch.nn.Module):
        def forward(self, values: Any) -> Any:
            return {"what": "text"}

    module = Odd()
    step = TRACE.apply(subject_of(lambda: module(*given)))
    with pytest.raises(NotApplicable, match=need):
        step()


def test_tracing_leaves_the_original_alone() -> None:
    original = inference(torch, network, inputs)
    before = dict(original.modules[0].__dict__)
    TRACE.apply(inference(torch, network, inputs))()
    assert original.modules[0].__dict__ == before


def test_a_graph_needs_a_gpu() -> None:
    with pytest.raises(NotApplicable, match="GPU"):
        GRAPH.apply(inference(torch, network, inputs))


@on_gpu
def test_a_graph_trains_as_the_original_does() -> None:
    original, changed = (training(torch, lambda: network().cuda(), lambda: inputs().cuda()) for _ in range(2))
    step = GRAPH.apply(changed)
    losses = [float(step()) for _ in range(5)]
    assert losses == pytest.approx([float(original.step()) for _ in range(5)], rel=1e-5)
    assert launches(step) < launches(original.step)


@on_gpu
def test_a_step_without_modules_becomes_one_graph() -> None:
    values = torch.ones(16, device="cuda")
    step = GRAPH.apply(subject_of(lambda: (values * 2).relu() + 1))
    assert torch.equal(step(), torch.full_like(values, 3))
    values += 1
    assert torch.equal(step(), torch.full_like(values, 5))
    assert launches(step) <= 1


def launches(step: Any) -> int:
    """The number of kernels that the host launches one by one in a step."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as p:
        step()
        torch.cuda.synchronize()
    return sum(event.count for event in p.key_averages() if event.key.startswith("cudaLaunchKernel"))
