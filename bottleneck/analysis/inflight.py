"""The timeline of a host without devices: its ops, the collectives that its threads carry out, and the gaps between.

A CPU program hands a collective to a thread of the library (gloo) and goes on, until it waits for the result. Work that
runs meanwhile hides it, as on a device; so does Python. What is left is charged to the collective.
"""

import re
from dataclasses import dataclass, fields

import numpy as np

from bottleneck.analysis.host import Host
from bottleneck.analysis.idle import CAUSES, Gaps, Pieces, split_host_gaps
from bottleneck.analysis.owners import owned_segments
from bottleneck.analysis.segments import NOTHING, Segments, cut, outermost
from bottleneck.analysis.timeline import Flags, Floats, Integers, gaps, shared_charge, tally, union
from bottleneck.tracing import Linked

# Ops that do nothing but wait for a collective.
_WAITS = re.compile(r"^_?c10d_functional::wait_tensor$")
_PYTHON, _DISPATCH = (CAUSES.index(cause) for cause in ("python", "dispatch"))
# PLACES names a function that is in a long call of a built-in one so; a thread that waits in the library is in one.
_IN_A_CALL = " > "


@dataclass(frozen=True)
class Timeline:
    """Time charged to each row of OPS over the window, the gaps and their pieces that are no wait for a collective.

    ``collective_us`` is the time with a collective in flight, ``exposed_us`` the part of it that is charged to one.
    """

    kernel_us: Floats
    idle: Gaps
    pieces: Pieces
    collective_us: float = 0.0
    exposed_us: float = 0.0


def host_timeline(linked: Linked, host: Host) -> Timeline:
    """The partition of the window: concurrent ops share their time, gaps are cut into pieces with one cause each."""
    low, high = linked.window.start_us, linked.window.end_us
    opened, closed, owner = owned_segments(linked.ops)
    start, end = np.clip(opened, low, high), np.clip(closed, low, high)
    collective = (linked.kernels["kind"] == "collective").to_numpy()
    works = ~(collective | _waits(linked, collective))[owner]
    charge = shared_charge(start[works] - low, end[works] - low, np.zeros(int(works.sum()), dtype=np.int64))
    kernel_us = tally(owner[works], charge, len(linked.ops))
    busy = union(start[works], end[works])
    idle_start, idle_end, following = gaps(busy, low, high)
    idle = Gaps(idle_start, idle_end, np.append(owner[works][busy.first], -1)[following])
    pieces = split_host_gaps(idle, host)
    if not collective.any():
        return Timeline(kernel_us, idle, pieces)
    mine = collective[owner]
    flight = outermost(start[mine], end[mine], owner[mine])
    pieces = _cut_at(pieces, flight)
    carrier = flight.at((pieces.start + pieces.end) / 2)
    waiting = (carrier >= 0) & _is_blocked(pieces, linked, host)
    exposed_us = tally(carrier[waiting], pieces.us[waiting], len(linked.ops))
    return Timeline(
        kernel_us + exposed_us,
        idle,
        _chosen(pieces, ~waiting),
        float(np.sum(flight.end - flight.start)),
        float(np.sum(exposed_us)),
    )


def _waits(linked: Linked, collective: Flags) -> Flags:
    """Rows of OPS that only wait for a collective, where the trace shows any."""
    names = linked.ops["name"].cat
    waits = np.array([_WAITS.search(str(name)) is not None for name in names.categories], dtype=bool)
    return np.asarray(np.append(waits, False)[names.codes.to_numpy()] & collective.any())


def _cut_at(pieces: Pieces, flight: Segments) -> Pieces:
    """The pieces cut wherever another collective is in flight."""
    cuts = cut(pieces.start, pieces.end, [flight.start, flight.end])
    whole = _chosen(pieces, cuts.interval)
    return Pieces(whole.gap, cuts.start, cuts.end, whole.cause, whole.event, whole.thread)


def _chosen(pieces: Pieces, rows: Flags | Integers) -> Pieces:
    return Pieces(*(getattr(pieces, each.name)[rows] for each in fields(Pieces)))


def _is_blocked(pieces: Pieces, linked: Linked, host: Host) -> Flags:
    """Whether the main thread did nothing itself: it was inside an op that waits, or in a long call outside Python.

    Without Python frames it is taken to have waited.
    """
    in_python = pieces.cause == _PYTHON
    if linked.places is None:
        return np.asarray(in_python | (pieces.cause == _DISPATCH))
    frames = linked.places["frame"].cat
    is_call = np.array([_IN_A_CALL in str(label) for label in frames.categories], dtype=bool)
    row = host.places.get(host.main_thread, NOTHING).at((pieces.start + pieces.end) / 2)
    called = np.append(np.append(is_call, False)[frames.codes.to_numpy()], False)[row]
    return np.asarray((in_python & called) | (pieces.cause == _DISPATCH))
