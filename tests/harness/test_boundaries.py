import threading
from typing import Any

import pytest

from bottleneck.harness.boundaries import Boundaries


class Owner:
    """Stands for an optimizer or a module."""


class Log:
    def __init__(self) -> None:
        self.boundaries = 0
        self.sources: list[str] = []
        self.watched = Boundaries(self._count, self.sources.append)

    def _count(self) -> None:
        self.boundaries += 1

    def step(self, optimizer: Owner) -> None:
        self.watched._after_optimizer(optimizer, (), {})

    def call(self, module: Owner) -> None:
        self.watched._before_module(module, ())


@pytest.fixture
def log() -> Log:
    return Log()


def test_the_first_optimizer_makes_the_boundaries(log: Log) -> None:
    generator, critic = Owner(), Owner()
    for _ in range(3):
        log.step(generator)
        log.step(critic)
    assert (log.boundaries, log.sources) == (3, ["optimizer"])


def test_the_outermost_module_makes_them_from_its_second_call_on(log: Log) -> None:
    model, layer = Owner(), Owner()
    for _ in range(3):
        log.call(model)
        log.call(layer)
        log.call(layer)
    assert (log.boundaries, log.sources) == (2, ["module"])


def test_an_optimizer_takes_over_from_a_module(log: Log) -> None:
    model, optimizer = Owner(), Owner()
    for _ in range(3):
        log.call(model)
        log.step(optimizer)
    assert log.sources == ["module", "optimizer"]
    assert log.boundaries == 3


def test_steps_of_another_thread_are_not_counted(log: Log) -> None:
    optimizer = Owner()
    log.step(optimizer)
    thread = threading.Thread(target=lambda: log.step(optimizer))
    thread.start()
    thread.join()
    assert log.boundaries == 1


def test_an_optimizer_that_is_gone_is_not_kept_alive(log: Log) -> None:
    log.step(Owner())
    log.step(Owner())
    assert log.boundaries == 1


def test_the_hooks_are_those_of_torch_and_are_removed(log: Log) -> None:
    torch: Any = pytest.importorskip("torch")
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    log.watched.watch(torch)
    assert len(hooks) == 1
    log.watched.forget_modules()
    assert not hooks
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.step()
    log.watched.forget()
    optimizer.step()
    assert (log.boundaries, log.sources) == (1, ["optimizer"])
