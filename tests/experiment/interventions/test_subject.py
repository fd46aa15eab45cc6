import functools
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bottleneck.experiment.interventions.subject import NotApplicable, Subject, make_subject, subject_of

torch: Any = pytest.importorskip("torch")
nn = torch.nn

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL = {
    "mlp": {},
    "transformer": {"batch_size": 2, "length": 8, "width": 16},
    "pointwise": {"elements": 1024},
    "slow_loader": {},
}


def held_by(subject: Subject) -> list[Any]:
    return [*subject.trained(), *subject.tensors]


@pytest.mark.parametrize("name", SMALL)
def test_two_subjects_of_one_seed_are_equal_bit_for_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)  # memory that nobody wrote to is equal to nothing
    first, second = (make_subject(str(EXAMPLES / f"{name}.py"), settings=SMALL[name], seed=3) for _ in range(2))
    assert first.step is not second.step
    assert held_by(first) and len(held_by(first)) == len(held_by(second))
    assert all(torch.equal(mine, other) for mine, other in zip(held_by(first), held_by(second), strict=True))
    assert not any(mine is other for mine, other in zip(held_by(first), held_by(second), strict=True))


def test_another_seed_makes_another_subject() -> None:
    first, second = (make_subject(str(EXAMPLES / "mlp.py"), seed=seed) for seed in (1, 2))
    assert not torch.equal(first.trained()[0], second.trained()[0])


@pytest.mark.parametrize("name", SMALL)
def test_equal_subjects_take_equal_steps(name: str) -> None:
    subjects = [make_subject(str(EXAMPLES / f"{name}.py"), settings=SMALL[name], seed=3) for _ in range(2)]
    for subject in subjects:
        torch.manual_seed(5)
        subject.step()
    first, second = map(held_by, subjects)
    assert all(torch.equal(mine, other) for mine, other in zip(first, second, strict=True))


def test_a_training_workload_shows_its_parts() -> None:
    subject = make_subject(str(EXAMPLES / "mlp.py"), settings=(("hidden", "16"),))
    assert [type(module) for module in subject.modules] == [nn.Sequential]
    assert [type(optimizer) for optimizer in subject.optimizers] == [torch.optim.SGD]
    assert {tuple(tensor.shape) for tensor in subject.tensors} == {(32, 16), (32,)}
    assert subject.train and subject.device_types() == {"cpu"}


def test_a_loader_is_found_with_its_iterator_under_way() -> None:
    subject = make_subject(str(EXAMPLES / "slow_loader.py"), settings={"batch_size": 8})
    (loader,), (iterator,) = subject.loaders, subject.iterators
    other = torch.utils.data.DataLoader(loader.dataset, batch_size=4)
    subject.replace_loader(loader, other)
    assert not subject.places_of(loader) and not subject.places_of(iterator)
    seen: list[int] = []
    subject.modules[0].register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    subject.step()
    assert seen == [4]


MODEL = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout())
inputs = (torch.ones(2, 3),)
"""


@pytest.mark.parametrize("train", [False, True])
def test_a_bare_model_is_a_subject(tmp_path: Path, train: bool) -> None:
    file = tmp_path / "bare.py"
    file.write_text(MODEL)
    first, second = (make_subject(str(file), form="model", train=train, seed=7) for _ in range(2))
    (network,), (again,) = first.modules, second.modules
    assert isinstance(network, nn.Sequential) and first.train is train and bool(first.optimizers) is train
    assert [tuple(tensor.shape) for tensor in first.tensors] == [(2, 3)]
    assert torch.equal(network[0].weight, again[0].weight)


GLOBALS = """
import torch
model = torch.nn.Linear(2, 2)
unused = torch.nn.Linear(2, 2)
data = torch.ones(1, 2)

def forward():
    return model(data)

def workload():
    return lambda: forward()
"""


def test_globals_of_the_file_that_the_code_names_belong_to_the_step(tmp_path: Path) -> None:
    file = tmp_path / "with_globals.py"
    file.write_text(GLOBALS)
    subject = make_subject(str(file))
    (module,) = subject.modules
    assert len(subject.tensors) == 1
    subject.replace(module, nn.Linear(2, 5))
    assert subject.step().shape == (1, 5)


class Trainer:
    def __init__(self) -> None:
        self.model, self.data = nn.Linear(2, 2), torch.ones(1, 2)

    @property
    def trap(self) -> None:
        raise AssertionError("a property ran")

    def run(self) -> Any:
        return self.model(self.data)

    __call__ = run


class Learner(Trainer):
    def run(self) -> Any:
        return self.learn()

    def learn(self) -> Any:
        self.model(self.data).sum().backward()


def in_closure() -> Callable[[], Any]:
    model, data = nn.Linear(2, 2), torch.ones(1, 2)
    return lambda: model(data)


def in_nested_closure() -> Callable[[], Any]:
    inner = in_closure()
    return lambda: (inner(),)[0]


def in_default() -> Callable[[], Any]:
    made, ones = nn.Linear(2, 2), torch.ones(1, 2)

    def step(model: Any = made, data: Any = ones) -> Any:
        return model(data)

    return step


def in_keyword_default() -> Callable[[], Any]:
    made = nn.Linear(2, 2)

    def step(*, model: Any = made) -> Any:
        return model(torch.ones(1, 2))

    return step


def in_partial() -> Callable[[], Any]:
    return functools.partial(lambda model, data: model(data), nn.Linear(2, 2), data=torch.ones(1, 2))


def in_partial_keyword() -> Callable[[], Any]:
    return functools.partial(lambda model: model(torch.ones(1, 2)), model=nn.Linear(2, 2))


def in_bound_method() -> Callable[[], Any]:
    return Trainer().run


def in_callable_object() -> Callable[[], Any]:
    return Trainer()


def in_tuple() -> Callable[[], Any]:
    both = (nn.Linear(2, 2), torch.ones(1, 2))
    return lambda: both[0](both[1])


def in_nested_container() -> Callable[[], Any]:
    parts = {"models": [nn.Linear(2, 2)]}
    return lambda: parts["models"][0](torch.ones(1, 2))


def in_namespace() -> Callable[[], Any]:
    held = types.SimpleNamespace(model=nn.Linear(2, 2))
    return lambda: held.model(torch.ones(1, 2))


class Slotted:
    __slots__ = ("model",)


def in_slots() -> Callable[[], Any]:
    held = Slotted()
    held.model = nn.Linear(2, 2)
    return lambda: held.model(torch.ones(1, 2))


def behind_a_decorator() -> Callable[[], Any]:
    model = nn.Linear(2, 2)

    @torch.no_grad()
    def step() -> Any:
        return model(torch.ones(1, 2))

    return step


def by_its_method() -> Callable[[], Any]:
    forward = nn.Linear(2, 2).forward
    return lambda: forward(torch.ones(1, 2))


def by_nonlocal() -> Callable[[], Any]:
    model = None

    def build() -> None:
        nonlocal model
        model = nn.Linear(2, 2)

    build()

    def step() -> Any:
        nonlocal model
        return model(torch.ones(1, 2))

    return step


PLACES = [
    in_closure,
    in_nested_closure,
    in_default,
    in_keyword_default,
    in_partial,
    in_partial_keyword,
    in_bound_method,
    in_callable_object,
    in_tuple,
    in_nested_container,
    in_namespace,
    in_slots,
    behind_a_decorator,
    by_its_method,
    by_nonlocal,
]


@pytest.mark.parametrize("make", PLACES)
def test_a_module_is_found_and_replaced_where_it_lies(make: Callable[[], Callable[[], Any]]) -> None:
    subject = subject_of(make())
    (module,) = subject.modules
    assert not subject.train
    subject.replace(module, nn.Linear(2, 7))
    assert subject.step().shape == (1, 7)


def test_a_module_that_is_itself_the_step_cannot_be_replaced() -> None:
    class Whole(nn.Module):
        def forward(self) -> Any:
            return torch.ones(1)

    subject = subject_of(Whole())
    (module,) = subject.modules
    with pytest.raises(NotApplicable, match="needs the step to hold its Whole in a variable"):
        subject.replace(module, nn.Identity())


def test_only_the_outermost_modules_are_reported() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    inner = model[0]
    assert subject_of(lambda: inner(model(torch.ones(1, 2)))).modules == (model,)


def test_a_backward_pass_is_seen_without_an_optimizer() -> None:
    model = nn.Linear(2, 2)
    assert subject_of(lambda: model(torch.ones(1, 2)).sum().backward()).train
    assert subject_of(Learner().run).train
    assert not subject_of(Trainer().run).train


def test_a_loader_within_a_generator_is_found_but_not_replaced() -> None:
    loader = torch.utils.data.DataLoader([1, 2, 3])

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    supply = batches()
    subject = subject_of(lambda: next(supply))
    assert subject.loaders == (loader,)


def test_a_scheduler_shows_its_optimizer() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert subject_of(scheduler.step).optimizers == (optimizer,)


def test_a_huge_container_and_a_deep_one_end_the_walk() -> None:
    deep: list[Any] = [nn.Linear(2, 2)]
    for _ in range(10_000):
        deep = [deep]
    wide = [object() for _ in range(1_000_000)]
    assert subject_of(lambda: (deep, wide)).modules == ()


def test_a_thing_that_holds_itself_ends_the_walk() -> None:
    loop: list[Any] = [nn.Linear(2, 2)]
    loop.append(loop)
    assert len(subject_of(lambda: loop).modules) == 1


class Trap:
    """Whatever is done to it beyond looking at its type is a mistake."""

    def __init__(self) -> None:
        object.__setattr__(self, "model", nn.Linear(2, 2))

    def spring(self, *arguments: Any) -> Any:
        raise AssertionError("the program's code ran")

    __getattribute__ = __getattr__ = __setattr__ = __iter__ = __len__ = __bool__ = __eq__ = __repr__ = spring
    __class__ = property(spring)  # type: ignore[assignment]

    def __hash__(self) -> int:
        if Trap.is_set:
            raise AssertionError("a key was looked up")
        return 0

    is_set = False


def test_no_code_of_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    trap = Trap()
    held = [trap, {trap: nn.Linear(2, 2)}, (trap,)]
    monkeypatch.setattr(Trap, "is_set", True)
    assert len(subject_of(lambda: (held, trap)).modules) == 2
    monkeypatch.undo()
