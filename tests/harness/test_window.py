"""What a profiler window waits for before it stops."""

from types import SimpleNamespace

import pytest

from bottleneck.harness import window
from bottleneck.harness.torch_private import GLOO_THREAD


def torch_with_ranks(*, is_initialized: bool) -> SimpleNamespace:
    """Torch, with or without a process group."""
    return SimpleNamespace(
        distributed=SimpleNamespace(is_available=lambda: True, is_initialized=lambda: is_initialized)
    )


@pytest.mark.parametrize(("is_initialized", "looks"), [(True, 3), (False, 0)])
def test_a_window_waits_until_no_thread_of_gloo_is_at_work(
    monkeypatch: pytest.MonkeyPatch, is_initialized: bool, looks: int
) -> None:
    asked = []

    def is_at_work(name: str) -> bool:
        asked.append(name)
        return len(asked) < 3

    monkeypatch.setattr(window, "is_thread_at_work", is_at_work)
    window._let_collectives_end(torch_with_ranks(is_initialized=is_initialized))
    assert asked == [GLOO_THREAD] * looks
