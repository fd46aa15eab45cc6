"""Which of the things that repeat in a script makes its steps."""

import gc
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.harness import boundaries, marks
from bottleneck.harness.boundaries import Boundaries, Leader, is_optimizer_made


class Adam:
    """Stands for an optimizer."""


class SGD:
    """Stands for another."""


class Model:
    """Stands for a module."""


class Simulation:
    """Stands for a module that has nothing to learn."""

    def parameters(self) -> Iterator[object]:
        """It has none."""
        yield from ()


class Layer:
    """Stands for a module inside of another."""


class Head:
    """Stands for a module beside another."""


class Loader:
    """Stands for the iterator of a data loader over a data set."""

    def __init__(self, batches: int, dataset: Any = None) -> None:
        self._dataset = [1] if dataset is None else dataset
        self._num_yielded = 0
        self._batches = batches

    def asked_by(self, log: "Log") -> Iterator[int]:
        """The batches, each of which the watched loader is told of first, as is the `next` that finds none."""
        while True:
            log.watched._before_batch(self)
            if self._num_yielded == self._batches:
                return
            self._num_yielded += 1
            yield self._num_yielded


class Log:
    """Counts boundaries by source; ``depth`` is that of the module calls."""

    def __init__(self, wanted: str | None = None) -> None:
        self.now_s = 0.0
        self.boundaries = 0
        self.sources: list[str] = []
        self.depth = 1
        self.watched = Boundaries(self._count, self._change, wanted, clock=lambda: self.now_s)

    def _count(self) -> None:
        self.boundaries += 1

    def _change(self, source: str, name: str) -> None:
        self.sources.append(f"{source}: {name}")
        self.boundaries = 0

    def step(self, optimizer: Any, times: int = 1) -> None:
        for _ in range(times):
            self.watched._after_optimizer(optimizer)

    def call(self, module: Any, *inner: Any) -> None:
        self.watched._before_module(module)
        self.depth += 1
        for each in inner:
            self.watched._before_module(each)
        self.depth -= 1


ADAM, SGD_, MODEL, LOADER = (
    "optimizer: optimizer.step of Adam",
    "optimizer: optimizer.step of SGD",
    "module: call of Model",
    "loader: next of DataLoader",
)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return made(monkeypatch)


def made(monkeypatch: pytest.MonkeyPatch, wanted: str | None = None) -> Log:
    log = Log(wanted)
    monkeypatch.setattr(boundaries, "is_nested_call", lambda _: log.depth > 1)
    monkeypatch.setattr(boundaries, "is_optimizer_made", lambda: False)
    for kind in (Adam, SGD, Model, Simulation, Layer, Head):
        monkeypatch.setattr(kind, "_modules", {}, raising=False)
    return log


def test_the_first_optimizer_makes_the_boundaries(log: Log) -> None:
    generator, critic = Adam(), Adam()
    for _ in range(3):
        log.step(generator)
        log.step(critic, times=5)
    assert (log.boundaries, log.sources) == (3, [ADAM])


def test_an_optimizer_that_is_used_no_more_gives_way_to_the_next(log: Log) -> None:
    first, second = SGD(), Adam()
    log.step(first)
    log.step(second, times=30)
    assert (log.boundaries, log.sources) == (10, [SGD_, ADAM])


def test_two_optimizers_that_work_by_turns_replace_each_other_ever_less(log: Log) -> None:
    first, second = SGD(), Adam()
    for _ in range(20):
        log.step(first, times=50)
        log.step(second, times=50)
    assert len(log.sources) <= 3


def test_optimizers_made_anew_for_each_task_go_on_with_the_same_steps(log: Log) -> None:
    for _ in range(4):
        log.step(Adam(), times=2)
        gc.collect()
    assert (log.boundaries, log.sources) == (8, [ADAM])


def test_the_outermost_module_that_repeats_makes_them(log: Log) -> None:
    model, layer, criterion = Model(), Layer(), Head()
    for _ in range(3):
        log.call(model, layer, layer)
        log.call(criterion)
    assert (log.boundaries, log.sources) == (2, [MODEL])


def test_calls_of_one_module_between_calls_of_another_make_one_step(log: Log) -> None:
    encoder, denoiser = Model(), Head()
    for _ in range(10):
        log.call(encoder, Layer())
        log.call(encoder, Layer())
        log.call(denoiser)
        log.call(denoiser)
    assert (log.boundaries, log.sources) == (8, [MODEL, "module: 2 calls of Model"])
    before = log.boundaries
    for _ in range(4):  # the class of the leader alone is watched
        log.watched._before_leader(encoder)
    assert log.boundaries == before + 2


def test_calls_with_something_rare_between_them_are_steps_of_their_own(log: Log) -> None:
    detector, tracker = Model(), Head()
    for _ in range(4):
        for _ in range(10):
            log.call(detector)
        log.call(tracker)
    for calls in (1, 2, 1, 3):
        for _ in range(calls):
            log.call(detector)
        log.call(tracker)
    assert (log.boundaries, log.sources) == (46, [MODEL])


def test_a_module_that_was_called_once_gives_way_to_one_that_repeats(log: Log) -> None:
    encoder, model = Head(), Model()
    log.call(encoder)
    for _ in range(9):
        log.call(model, Layer())
    assert log.sources == [MODEL]
    assert log.boundaries >= 3


def test_a_module_that_was_called_once_makes_no_source(log: Log) -> None:
    log.call(Model(), Layer())
    assert (log.boundaries, log.sources) == (0, [])


def test_modules_made_in_the_middle_of_a_call_are_not_taken_for_outermost_ones(log: Log) -> None:
    model = Model()
    for _ in range(4):
        log.call(model, *[Layer() for _ in range(20)])
    assert (log.boundaries, log.sources) == (3, [MODEL])


def test_a_module_that_takes_the_place_of_one_that_is_gone_is_told_from_its_parts(log: Log) -> None:
    model, parts = Model(), [Layer() for _ in range(5)]
    log.call(model, *parts)
    del model
    gc.collect()
    for _ in range(3):
        log.call(parts[0])
    assert log.sources == ["module: call of Layer"]


def test_an_optimizer_takes_over_from_a_module(log: Log) -> None:
    model, optimizer = Model(), Adam()
    for _ in range(4):
        for _ in range(3):
            log.call(model)
        log.step(optimizer)
    assert (log.boundaries, log.sources) == (4, [MODEL, ADAM])


def test_a_loader_of_which_each_batch_is_one_call_leaves_the_steps_to_the_module(log: Log) -> None:
    model, dataset = Model(), [1, 2]
    for _ in range(3):
        for _ in Loader(4, dataset).asked_by(log):
            log.call(model)
    assert (log.boundaries, log.sources) == (11, [MODEL])


def test_a_loader_of_which_each_batch_is_many_calls_is_the_step(log: Log) -> None:
    model = Model()
    for _ in Loader(9).asked_by(log):
        for _ in range(5):
            log.call(model)
    assert log.sources == [MODEL, LOADER]
    assert log.boundaries == 10 - 2


def test_a_loader_without_a_module_is_the_step(log: Log) -> None:
    for _ in Loader(9).asked_by(log):
        pass
    assert (log.boundaries, log.sources) == (8, [LOADER])


def test_each_batch_is_one_step_over_the_end_of_an_epoch(log: Log) -> None:
    dataset = [1, 2]
    for _ in range(3):
        for _ in Loader(10, dataset).asked_by(log):
            pass
    steps = log.boundaries - 1
    assert steps == 30 - 2, "the first two batches show that the loader repeats"


def test_a_loader_that_is_begun_anew_for_each_batch_is_still_the_step(log: Log) -> None:
    dataset = [1, 2]
    for _ in range(9):
        next(Loader(10, dataset).asked_by(log))
    assert (log.boundaries, log.sources) == (7, [LOADER])


def test_a_loader_for_evaluation_inside_of_an_epoch_makes_no_steps(log: Log) -> None:
    held_back = [3]
    for _ in Loader(9).asked_by(log):
        for _ in Loader(3, held_back).asked_by(log):
            pass
    assert log.boundaries == 8


def test_steps_of_another_thread_are_not_counted(log: Log) -> None:
    optimizer = Adam()
    log.step(optimizer)
    thread = threading.Thread(target=lambda: log.step(optimizer, times=30))
    thread.start()
    thread.join()
    assert log.boundaries == 1


def test_steps_of_a_fork_are_not_counted() -> None:
    """Its first thread has the number of the one that forked."""
    leader, program = Leader(20), SimpleNamespace()
    assert leader.takes_turn(program) and leader.goes_on(program)
    child = os.fork()
    if child == 0:
        os._exit(leader.goes_on(program) or leader.takes_turn(program))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_bottleneck_step_overrules_all_others(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "_listener", log.watched._after_mark)
    log.step(Adam())
    for _ in range(3):
        marks.step()
    assert (log.boundaries, log.sources) == (3, [ADAM, "mark: bottleneck.step()"])


def all_of_it(log: Log) -> None:
    """Two optimizers, a model with a layer and a loader, each of which repeats."""
    optimizers, model, layer = (SGD(), Adam()), Model(), Layer()
    for _ in Loader(6).asked_by(log):
        log.call(model, layer)
        for each in optimizers:
            log.step(each)


@pytest.mark.parametrize(
    ("wanted", "source"),
    [
        (None, SGD_),
        ("optimizer", SGD_),
        ("module", MODEL),
        ("loader", LOADER),
        ("Adam", ADAM),
        ("Model", MODEL),
        ("Layer", "module: call of Layer"),
    ],
)
def test_what_the_user_names_alone_counts(wanted: str | None, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = made(monkeypatch, wanted)
    all_of_it(log)
    assert log.sources == [source]
    assert log.boundaries >= 5


def test_what_was_met_instead_of_an_unknown_name_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    log = made(monkeypatch, "Lion")
    all_of_it(log)
    assert (log.boundaries, log.sources) == (0, [])
    assert log.watched.met == ["loader", "module Model", "module Layer", "optimizer SGD", "optimizer Adam"]


def test_a_failure_of_ours_ends_the_watching_and_is_kept(log: Log) -> None:
    torch: Any = pytest.importorskip("torch")

    def broken() -> None:
        raise ValueError("ours")

    log.watched._on_boundary = broken
    log.watched.watch(torch)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.step()
    assert log.watched.problem == "ValueError: ours"
    assert not log.watched._removals


def test_the_hooks_are_those_of_torch_and_are_removed() -> None:
    torch: Any = pytest.importorskip("torch")
    from torch.utils.data import dataloader

    log = Log()
    hooks, loaders = torch.nn.modules.module._global_forward_pre_hooks, vars(dataloader._BaseDataLoaderIter)
    log.watched.watch(torch)
    assert len(hooks) == 1 and "_profile_name" in loaders
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.step()
    assert not hooks and "_profile_name" not in loaders
    log.watched.forget()
    optimizer.step()
    assert (log.boundaries, log.sources) == (1, [SGD_])


def test_torch_tells_of_outermost_modules_and_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    monkeypatch.setattr(boundaries, "is_optimizer_made", lambda: False)  # other tests of this process make some
    log, counted = Log(), SimpleNamespace(module=0, loader=0)
    log.watched.watch(torch)
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout())
    try:
        for batch in torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=1):
            model(batch)
            counted.module = max(counted.module, log.boundaries)
        assert (log.sources, counted.module) == (["module: call of Sequential"], 3)
        list(torch.utils.data.DataLoader(torch.ones(7, 1), batch_size=1))
        for batch in torch.utils.data.DataLoader(torch.ones(6, 1), batch_size=1):
            model(model(batch))
    finally:
        log.watched.forget()
    assert log.watched.problem is None


def test_a_program_that_plays_before_it_learns_is_followed_by_its_optimizer(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundaries, "is_optimizer_made", lambda: True)
    policy, optimizer = Model(), Adam()
    for _ in range(500):
        log.now_s += 0.01
        log.call(policy)
    assert log.sources == []
    log.step(optimizer, times=3)
    assert (log.boundaries, log.sources) == (3, [ADAM])


def test_an_optimizer_that_never_steps_is_not_waited_for_any_longer(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries, "is_optimizer_made", lambda: True)
    model = Model()
    for _ in range(30):
        log.now_s += 0.5
        log.call(model)
    assert log.sources == [MODEL]
    assert log.boundaries > 5


@pytest.mark.parametrize(("learns", "sources"), [(True, [ADAM]), (False, ["module: call of Simulation", ADAM])])
def test_a_module_without_parameters_makes_no_steps_before_a_training_that_the_program_has(
    log: Log, monkeypatch: pytest.MonkeyPatch, learns: bool, sources: list[str]
) -> None:
    """The ground truth of a neural ODE was integrated first, and its derivatives were taken for the steps."""
    monkeypatch.setattr(boundaries, "learns", lambda: learns)
    truth = Simulation()
    for _ in range(200):
        log.call(truth)
    log.step(Adam(), times=3)
    assert (log.boundaries, log.sources) == (3, sources)


def test_the_text_of_a_program_says_whether_it_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, is_told in (("loss.backward()", True), ("y = model(x)", False)):
        monkeypatch.setattr(boundaries, "program_lines", lambda text=text: [("train.py", [text])])
        boundaries.learns.cache_clear()
        assert boundaries.learns() is is_told
    boundaries.learns.cache_clear()


def test_a_scripted_module_has_a_name_too(log: Log) -> None:
    class Scripted:
        """Its modules are in no dictionary."""

    module = Scripted()
    module.__dict__["_modules"] = object()
    for _ in range(3):
        log.call(module)
    assert log.sources == ["module: call of Scripted"]


def test_calls_that_were_passed_over_for_an_optimizer_are_remembered(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    monkeypatch.setattr(boundaries, "is_optimizer_made", lambda: True)
    assert not log.watched.has_waited
    for _ in range(3):
        log.call(model)
    assert (log.boundaries, log.watched.has_waited) == (0, True)
    log.step(Adam())
    assert not log.watched.has_waited


def test_an_optimizer_is_seen_when_it_is_made() -> None:
    torch = pytest.importorskip("torch")
    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    assert is_optimizer_made()


def test_what_a_fork_calls_makes_no_steps_there(log: Log) -> None:
    """The worker of a loader calls the modules of its transforms before the training has a step of its own."""
    model, optimizer = Model(), Adam()
    child = os.fork()
    if child == 0:
        for _ in range(8):
            log.call(model)
            log.step(optimizer)
        os._exit(log.boundaries)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for _ in range(8):
        log.call(model)
    assert log.boundaries > 0
