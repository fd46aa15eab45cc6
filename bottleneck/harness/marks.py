"""Passes `bottleneck.step()` calls of the program on to its measurement.

It imports nothing, as any program imports it. ``supervisor`` is told of a `bottleneck.record` block; null where
`bottleneck run` does not measure this process.
"""

from collections.abc import Callable

supervisor: Callable[[], None] | None = None
_listener: Callable[[], None] | None = None


def step() -> None:
    """Ends a step here.

    Call it at the end of each turn of the loop. It overrules what `bottleneck run` or `bottleneck.record` would take
    for the steps by itself. Where neither measures, it does nothing and costs under a tenth of a microsecond.
    """
    if _listener is not None:
        _listener()


def listen(listener: Callable[[], None]) -> None:
    """Has the listener called at each step from now on.

    It is called in the thread that ends the step; there is one listener at a time.
    """
    global _listener  # noqa: PLW0603 - one process has one loop that is measured
    _listener = listener


def is_listened_to() -> bool:
    """True if something of ours follows the steps of this process."""
    return _listener is not None


def forget(listener: Callable[[], None]) -> None:
    """Has it called no more; another that took its place meanwhile stays."""
    global _listener  # noqa: PLW0603 - as above
    if _listener == listener:
        _listener = None


def supervise(told_of_block: Callable[[], None]) -> None:
    """Says that `bottleneck run` measures this process.

    And whom to tell of a block that it would record itself.
    """
    global supervisor  # noqa: PLW0603 - as above
    supervisor = told_of_block
