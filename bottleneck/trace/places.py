"""Where in the user's program each host thread was at any time: PLACES, which tells the ledger where it waited."""

import re

import numpy as np
import pandas as pd

from bottleneck.tables import PLACES, category
from bottleneck.trace.events import ends_ns, is_any_of, names, starts_ns, threads
from bottleneck.trace.frames import Frames, Stacks, frames_at, frames_of, locate
from bottleneck.trace.libraries import MODEL_LIBRARY, MODULE, OWN, function_of
from bottleneck.trace.nesting import Ints

# A call of a built-in function that takes this long is named beside the function that made it: it blocks, as sleep.
_LONG_CALL_US = 100.0
_BUILT_IN = "<built-in "
_BUILT_IN_NAME = re.compile(r"^<built-in (?:function|method) (?P<name>[^\s>]{1,200})")


def find_places(stacks: Stacks) -> pd.DataFrame | None:
    """PLACES of all host threads with Python frames; null where there are none."""
    calls = _long_calls(stacks)
    rows = np.concatenate([*(stacks.rows[kind] for kind in (OWN, MODULE, MODEL_LIBRARY)), calls])
    if not len(rows):
        return None
    trace = stacks.trace
    track = threads(trace, rows)
    thread = np.concatenate([track, track])
    at_ns = np.concatenate([starts_ns(trace, rows), ends_ns(trace, rows)])
    order = np.lexsort((at_ns, thread))
    thread, at_ns = thread[order], at_ns[order]
    fresh = np.concatenate(([True], (np.diff(thread) != 0) | (np.diff(at_ns) != 0)))
    return _table(stacks, thread[fresh], at_ns[fresh], frames_of(trace, calls))


def _long_calls(stacks: Stacks) -> Ints:
    """Events that are long calls of built-in functions."""
    trace = stacks.trace
    is_built_in = np.array([label.startswith(_BUILT_IN) for label in stacks.labels] or [False])
    rows: Ints = np.flatnonzero(is_any_of(trace, ("python",)) & (trace.events["dur_us"].to_numpy() >= _LONG_CALL_US))
    return rows[np.flatnonzero(is_built_in[names(trace, rows)])]


def _table(stacks: Stacks, thread: Ints, at_ns: Ints, calls: Frames) -> pd.DataFrame:
    """PLACES from instants at which a place may change, sorted by thread and time."""
    places = locate(stacks, thread, at_ns)
    frame, labels = _frames(stacks, thread, at_ns, calls)
    codes = np.stack([thread, places.source.code, places.module.code, frame])
    start = np.flatnonzero(np.concatenate(([True], (np.diff(codes) != 0).any(axis=0))))
    # Where a thread's last frame has ended it is nowhere: each stretch of a known place ends at another row of its own.
    end = np.append(start[1:], len(thread) - 1)
    known = (codes[1:3, start] >= 0).any(axis=0)
    start, end = start[known], end[known]
    table = pd.DataFrame(
        {
            "thread": category(thread[start], list(stacks.trace.events["thread"].cat.categories)),
            "ts_us": at_ns[start] / 1e3,
            "end_us": at_ns[end] / 1e3,
            "source": category(places.source.code[start], places.source.labels),
            "module": category(places.module.code[start], places.module.labels),
            "frame": category(frame[start], labels),
        }
    )
    return PLACES.check(table)


def _frames(stacks: Stacks, thread: Ints, at_ns: Ints, calls: Frames) -> tuple[Ints, list[str]]:
    """Code of the function at each instant and the texts: 'main', or 'main > sleep' inside a long call."""
    outer, since_ns = frames_at(stacks, thread, at_ns)
    inner, called_ns = calls.names_at(thread, at_ns)
    inner = np.where(called_ns >= since_ns, inner, -1)
    size = len(stacks.labels) + 1
    pairs, code = np.unique((outer + 1) * size + inner + 1, return_inverse=True)
    texts = [_text(stacks.labels, outer, inner) for outer, inner in (divmod(pair, size) for pair in pairs.tolist())]
    distinct = sorted({text for text in texts if text})
    position = {text: number for number, text in enumerate(distinct)}
    return np.array([position.get(text, -1) for text in texts], dtype=np.int64)[code], distinct


def _text(labels: list[str], outer: int, inner: int) -> str:
    """Both names from their codes plus one; empty where no function of the program is known."""
    function = function_of(labels[outer - 1]) if outer else ""
    match = _BUILT_IN_NAME.match(labels[inner - 1]) if inner else None
    return f"{function} > {match['name']}" if function and match else function
