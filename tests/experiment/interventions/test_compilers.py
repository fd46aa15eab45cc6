from collections.abc import Iterator
from typing import Any

import pytest

from bottleneck.experiment.interventions.compilers import CHANGES, compile_parts, compile_whole
from bottleneck.experiment.interventions.subject import Missing, NotApplicable, Subject, subject_of
from tests.experiment.interventions.subjects import inference, perceptron, training

torch: Any = pytest.importorskip("torch")
dynamo_utils: Any = pytest.importorskip("torch._dynamo.utils")
pytestmark = [pytest.mark.compiler, pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")]
BY_NAME = {change.name: change for change in CHANGES}


def inputs() -> Any:
    return torch.randn(5, 8)


def network() -> Any:
    return perceptron(torch)


def numbers() -> Subject:
    values = torch.arange(6.0)
    return subject_of(lambda: (values * 2).relu() + 1)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    dynamo_utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return int(dynamo_utils.counters["stats"]["unique_graphs"])


@pytest.mark.sample
def test_compile_makes_a_graph_of_the_network_and_the_same_results() -> None:
    original, changed = (training(torch, network, inputs) for _ in range(2))
    step = BY_NAME["compile"].apply(changed)
    losses = [float(step()) for _ in range(3)]
    assert graphs() == 1
    assert losses == pytest.approx([float(original.step()) for _ in range(3)], rel=1e-5)


def test_the_original_stays_eager_beside_a_compiled_copy() -> None:
    original, changed = (inference(torch, network, inputs) for _ in range(2))
    before = dict(original.modules[0].__dict__)
    compile_parts(changed, backend="eager")()
    seen = graphs()
    original.step()
    assert graphs() == seen == 1
    assert original.modules[0].__dict__ == before
    assert torch.equal(original.step(), changed.step())


def test_compiling_in_place_reaches_a_sequential_network() -> None:
    subject = inference(torch, network, inputs)
    compile_parts(subject, backend="eager")
    subject.step()
    assert graphs() == 1


def test_module_compile_itself_would_reach_none_of_it() -> None:
    subject = inference(torch, network, inputs)
    subject.modules[0].compile(backend="eager")
    subject.step()
    assert graphs() == 0


def test_copies_beyond_the_limit_of_recompilations_are_compiled_too() -> None:
    copies = torch._dynamo.config.recompile_limit + 3
    for _ in range(copies):
        compile_parts(inference(torch, network, inputs), backend="eager")()
    assert graphs() == copies


def test_a_step_without_modules_is_compiled_whole() -> None:
    subject = numbers()
    assert torch.equal(compile_parts(subject, backend="eager")(), subject.step())
    assert graphs() == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler looks at it, not the step
def test_compile_step_takes_in_the_optimizer() -> None:
    original, changed = (training(torch, network, inputs) for _ in range(2))
    step = compile_whole(changed, backend="eager")
    assert [float(step()) for _ in range(3)] == [float(original.step()) for _ in range(3)]
    assert graphs() > 1


@pytest.mark.sample
def test_compile_step_leaves_a_step_without_modules_to_compile() -> None:
    with pytest.raises(NotApplicable, match="compile takes the whole step already"):
        BY_NAME["compile-step"].apply(numbers())


def test_compile_step_does_not_follow_the_step_into_its_dataset() -> None:
    model, loader = network(), torch.utils.data.DataLoader(torch.ones(4, 8))
    with pytest.raises(NotApplicable, match="loads no data"):
        BY_NAME["compile-step"].apply(subject_of(lambda: [model(batch) for batch in loader]))


@pytest.mark.sample
def test_a_network_that_is_compiled_already_is_left_alone() -> None:
    subject = inference(torch, network, inputs)
    compile_parts(subject, backend="eager")
    with pytest.raises(NotApplicable, match="not compiled yet"):
        compile_parts(subject, backend="eager")


def test_a_network_that_the_user_compiled_is_left_alone() -> None:
    subject = inference(torch, lambda: torch.compile(network(), backend="eager"), inputs)
    with pytest.raises(NotApplicable, match="not compiled yet"):
        BY_NAME["compile"].apply(subject)


def test_a_step_in_which_nothing_was_compiled_is_said_to_be_so() -> None:
    model = network()
    subject = subject_of(lambda: model[0](torch.ones(1, 8)))
    with pytest.raises(NotApplicable, match="calls as a whole"):
        compile_parts(subject, backend="eager")()


@pytest.mark.sample
def test_reduce_overhead_needs_a_gpu() -> None:
    with pytest.raises(NotApplicable, match="needs a GPU"):
        BY_NAME["compile-reduce-overhead"].apply(inference(torch, network, inputs))


@pytest.mark.parametrize("name", ["compile", "compile-step", "compile-max-autotune"])
def test_without_a_compiler_the_change_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = pytest.importorskip("torch._inductor.cpp_builder")
    monkeypatch.setenv("PATH", "")
    builder.cpp_compiler_search.cache_clear()
    try:
        with pytest.raises(Missing, match="apt install"):
            BY_NAME[name].apply(inference(torch, network, inputs))
    finally:
        builder.cpp_compiler_search.cache_clear()


def test_max_autotune_asks_inductor_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[dict[str, Any]]()
    monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append(options) or function)
    BY_NAME["compile-max-autotune"].apply(inference(torch, network, inputs))
    assert [options["mode"] for options in asked] == ["max-autotune"]
