from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from bottleneck.experiment.interventions import compilers, xla
from bottleneck.experiment.interventions.compilers import BACKEND_CHANGES, BACKENDS
from bottleneck.experiment.interventions.subject import Missing, NotApplicable, Subject, subject_of
from tests.experiment.interventions.subjects import convolutions, inference, perceptron, training

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
BY_NAME = {change.name: change for change in BACKEND_CHANGES}
ENGINES = {
    "backend-onnxrt": "onnxruntime",
    "backend-openvino": "openvino",
    "backend-tvm": "tvm",
    "backend-xla": "jax",
}
COMPUTING = {"aten::linear", "aten::conv2d", "aten::_transformer_encoder_layer_fwd"}
ON_CPU = [f"backend-{name}" for name, backend in BACKENDS.items() if not backend.needs_gpu]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    backend = BACKENDS[request.param.removeprefix("backend-")]
    if backend.lacks is not None and (lacking := backend.lacks(torch)) is not None:
        pytest.skip(f"{request.param} needs it: {lacking}")
    pytest.importorskip(ENGINES[request.param], reason=f"{request.param} needs it: {backend.get}")
    if request.param == "backend-onnxrt":
        pytest.importorskip("onnx", reason="the export to ONNX Runtime needs it: pip install onnx")
    return BY_NAME[request.param]


def encoder() -> Any:
    return torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)


class Named(torch.nn.Module):
    """Tokens and a number by name in, a dictionary out; with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = torch.nn.Embedding(10, 8), torch.nn.Linear(8, 8)
        self.register_buffer("offset", torch.ones(8))

    def forward(self, tokens: Any, *, scale: float) -> Any:
        return {"scores": self.linear(self.embedding(tokens)) * scale + self.offset, "next": [tokens + 1]}


NETWORKS = {
    "convolutions": (lambda: convolutions(torch), lambda: torch.randn(2, 2, 8, 8)),
    "encoder": (encoder, lambda: torch.randn(2, 3, 8)),
    "perceptron": (lambda: perceptron(torch), lambda: torch.randn(5, 8)),
}


@pytest.mark.filterwarnings("ignore")  # what the engines' own packages have to say
@pytest.mark.parametrize("name", NETWORKS)
def test_an_engine_runs_the_network_to_the_same_result(name: str, engine: Any) -> None:
    original, changed = (inference(torch, *NETWORKS[name]) for _ in range(2))
    step = engine.apply(changed)
    step()
    torch.testing.assert_close(step(), original.step(), rtol=1e-4, atol=1e-5)
    assert operations(original.step) & COMPUTING
    assert not operations(step) & COMPUTING


def operations(step: Any) -> set[str]:
    """The result that torch itself computes in a step."""
    with torch.autograd.profiler.profile() as profile:
        step()
    return {event.name for event in profile.function_events}


@pytest.mark.filterwarnings("ignore")
def test_an_engine_takes_keywords_and_gives_back_structures(engine: Any) -> None:
    torch.manual_seed(0)
    model, tokens = Named().eval(), torch.randint(0, 10, (2, 3))
    want = model(tokens, scale=2.0)
    got = engine.apply(subject_of(lambda: model(tokens, scale=2.0)))()
    torch.testing.assert_close(got["scores"], want["scores"], rtol=1e-4, atol=1e-5)
    assert torch.equal(got["next"][0], tokens + 1)


@pytest.mark.filterwarnings("ignore")
def test_an_engine_runs_a_step_without_modules(engine: Any) -> None:
    values = torch.randn(64)
    step = engine.apply(subject_of(lambda: (values * 2).relu() + values))
    torch.testing.assert_close(step(), (values * 2).relu() + values)


@pytest.mark.filterwarnings("ignore")
def test_an_engine_refuses_a_graph_that_writes_into_its_inputs(engine: Any) -> None:
    values = torch.ones(4)
    step = engine.apply(subject_of(lambda: values.mul_(2)))
    with pytest.raises(NotApplicable, match="in place"):
        step()
    assert torch.equal(values, torch.ones(4))


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_does_not_train(name: str) -> None:
    with pytest.raises(NotApplicable, match="without training"):
        BY_NAME[name].apply(training(torch, *NETWORKS["perceptron"]))


@pytest.mark.parametrize("name", ON_CPU)
def test_a_backend_that_is_not_installed_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "_is_installed", lambda module: False)
    monkeypatch.setattr(xla, "version_of_package", lambda package: None)
    with pytest.raises(Missing, match=r"pip install|docs"):
        BY_NAME[name].apply(inference(torch, *NETWORKS["perceptron"]))


@pytest.mark.parametrize("name", ["backend-tensorrt", "backend-cudagraphs"])
def test_a_backend_of_gpus_needs_one(name: str) -> None:
    with pytest.raises(NotApplicable, match="GPU"):
        BY_NAME[name].apply(inference(torch, *NETWORKS["perceptron"]))


def test_a_part_of_a_package_that_is_not_there_is_not_installed() -> None:
    assert compilers._is_installed("json.decoder")
    assert not compilers._is_installed("no_such_package.part")


def test_a_backend_of_torch_gets_the_graph_under_its_name() -> None:
    seen = list[int]()
    subject = inference(torch, *NETWORKS["perceptron"])
    torch._dynamo.register_backend(lambda graph, inputs: seen.append(len(inputs)) or graph.forward, name="seen_by_test")
    backend = compilers.Backend("one of a test", trains=True)
    result = compilers._compile_with("seen_by_test", backend, subject)()
    assert len(seen) == 1
    torch.testing.assert_close(result, inference(torch, *NETWORKS["perceptron"]).step())


def test_a_backend_that_a_package_announces_is_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    announced = [EntryPoint("own", "own_package:own", "torch_dynamo_backends")]
    monkeypatch.setattr(compilers.importlib.metadata, "entry_points", lambda group: announced)
    assert compilers._all_backends().keys() - BACKENDS.keys() == {"own"}


@pytest.mark.filterwarnings("ignore")
def test_an_engine_leaves_the_original_alone(engine: Any) -> None:
    original: Subject = inference(torch, *NETWORKS["convolutions"])
    state = {name: value.clone() for name, value in original.modules[0].state_dict().items()}
    want = original.step()
    engine.apply(inference(torch, *NETWORKS["convolutions"]))()
    assert torch.equal(original.step(), want)
    assert all(torch.equal(value, state[name]) for name, value in original.modules[0].state_dict().items())
    assert torch.backends.mha.get_fastpath_enabled()
