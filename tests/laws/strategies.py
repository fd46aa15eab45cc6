"""Random programs for the laws."""

from hypothesis import strategies as st

from tests.laws.host_programs import ACCOUNTS, SHORTEST_US, TINY_OP_US, WORK, HostProgram, Span
from tests.laws.programs import (
    BACKWARD,
    BOUNDS,
    CAUSES,
    CAUSES_IN_BACKWARD,
    MAIN,
    TINY,
    TINY_US,
    Burst,
    Program,
    Step,
    Stretch,
)

_OPENING = ("one kernel", "exposed collective", "exposed copy")
_LATER = (*_OPENING, "two kernels", "hidden collective", "hidden copy", "everything", "copy under a collective")
_LENGTHS = {"tiny kernels": st.just(TINY * TINY_US), "next in the queue": st.integers(1, 3)}
_HELD = st.integers(30, 200)  # beyond the pace of any queue
_WORKING = st.integers(12, 90)
_QUIET = ("next in the queue", "queued but held")
_bounds = st.tuples(st.sampled_from(BOUNDS), st.sampled_from(BOUNDS))


@st.composite
def _stretches(draw: st.DrawFn, scenes: tuple[str, ...]) -> Stretch:
    scene = draw(st.sampled_from(scenes))
    us = draw(_LENGTHS.get(scene, _HELD if scene == "queued but held" else _WORKING))
    return Stretch(scene, us, draw(st.booleans()), draw(_bounds))


@st.composite
def _bodies(draw: st.DrawFn) -> tuple[Stretch, ...]:
    """Work, then more work with or without a pause before it."""
    body = [draw(_stretches(_OPENING))]
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.integers(0, 2)) == 0:
            body.append(draw(_stretches(_QUIET)))
        body.append(draw(_stretches((*_LATER, "tiny kernels"))))
    return tuple(body)


@st.composite
def _bursts(draw: st.DrawFn, threads: tuple[int, ...]) -> Burst:
    thread = draw(st.sampled_from(threads))
    causes = CAUSES if thread == MAIN else CAUSES_IN_BACKWARD
    return Burst(
        waits=tuple(draw(st.lists(st.tuples(st.sampled_from(causes), st.integers(1, 120)), max_size=4))),
        lead_us=draw(st.integers(1, 9)),
        call_us=draw(st.integers(2, 9)),
        latency_us=draw(st.integers(1, 20)),
        body=draw(_bodies()),
        thread=thread,
        synchronises=draw(st.booleans()),
    )


# Forward comes before backward: the main thread is the one that runs ops and Python.
steps = st.builds(
    lambda first, others, closing: Step((first, *others), tuple(closing)),
    _bursts((MAIN,)),
    st.lists(_bursts((MAIN, BACKWARD)), max_size=2),
    st.lists(st.tuples(st.sampled_from(CAUSES), st.integers(1, 60)), max_size=2),
)
programs = st.builds(
    Program,
    steps=st.lists(steps, min_size=1, max_size=3).map(tuple),
    noise=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 9)), max_size=3).map(tuple),
)


@st.composite
def _spans(draw: st.DrawFn, kinds: tuple[str, ...]) -> Span:
    kind = draw(st.sampled_from(kinds))
    us = TINY_OP_US if kind == "tiny op" else draw(st.integers(SHORTEST_US.get(kind, 1), 150))
    called = kind == "compute op" and draw(st.booleans())
    accompanied = us >= SHORTEST_US[WORK[0]] and kind in {"python", *WORK} and draw(st.booleans())
    return Span(
        kind=kind,
        us=us,
        beside=draw(st.sampled_from(WORK)) if accompanied and not called else None,
        lead_us=draw(st.integers(1, 20)) if called else 0,
        tail_us=draw(st.integers(0, 20)) if called else 0,
    )


# The main thread is the one that runs ops and Python.
host_steps = st.tuples(_spans(WORK), st.lists(_spans(tuple(ACCOUNTS)), max_size=7)).map(lambda it: (it[0], *it[1]))
host_programs = st.builds(HostProgram, steps=st.lists(host_steps, min_size=1, max_size=3).map(tuple))
