"""Places the step's time in Python frames.

They are those that were open when the host caused it.
"""

import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from bottleneck.schema.accounts import IDLE_CAUSES
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Floats, Integers, cut
from bottleneck.schema.op_names import BUILT_IN_CALL, MODULE_PREFIX, PYTHON_FRAME, function_source, line_source
from bottleneck.schema.tables import as_integers
from bottleneck.schema.time_tree import NodeKind, TimeTree, TreePiece, fold_pieces

MOST_FRAMES = 400_000  # the longest ones: what runs in shorter ones counts as their caller's
_MACHINERY = re.compile(r"(^|/)torch/")
_LONGEST_NAME = 80
_NOWHERE, _ROUNDING = "at no known place", 1e-6


def frame_tree(evidence: Evidence) -> TimeTree | None:
    """Builds the tree of the step's time by Python frame.

    Null where the trace has none.
    """
    moments, stacks = _moments(evidence), _FrameNodes(evidence)
    if moments is None or not stacks.is_known:
        return None
    lasting = (moments["end"] > moments["start"]).to_numpy()
    whole = moments[lasting]
    cuts = cut(whole["start"].to_numpy(), whole["end"].to_numpy(), stacks.edges(moments))
    length = (whole["end"] - whole["start"]).to_numpy()[cuts.interval]
    parts = whole.iloc[cuts.interval].assign(
        start=cuts.start, end=cuts.end, us=whole["us"].to_numpy()[cuts.interval] * (cuts.end - cuts.start) / length
    )
    moments = pd.concat((moments[~lasting], parts), ignore_index=True)
    middle = (moments["start"] + moments["end"]).to_numpy() / 2
    moments["node"] = stacks.nodes_at(moments["thread"].to_numpy(), middle)
    folded = moments.groupby(["node", "account", "row", "op"], sort=False)["us"].sum().reset_index()
    ops = evidence.linked.ops["name"].cat.categories
    waits: dict[tuple[str, str | None], int] = {}
    for at, idle in enumerate(evidence.analysis.idle):
        waits.setdefault((f"overhead.{idle.cause}", idle.source), at)
    pieces = []
    columns = (folded[name].tolist() for name in ("node", "account", "row", "op", "us"))
    for node, account, row, op, us in zip(*columns, strict=True):
        name = str(ops[op]) if op >= 0 else None if row < 0 else evidence.analysis.kernels[row].op
        inner: tuple[tuple[str, NodeKind], ...] = () if name is None else ((name, "op"),)
        places = [(account, source) for source in (*stacks.sources(node), None)] if row < 0 else []
        idle_row = next((waits[place] for place in places if place in waits), -1)
        pieces.append(TreePiece((*stacks.path(node), *inner), account, us, row, idle_row))
    return fold_pieces([*pieces, *_rest(evidence, pieces)], "frames")


def _rest(evidence: Evidence, pieces: list[TreePiece]) -> Iterator[TreePiece]:
    """Gives the time of each account that has no known instant."""
    placed: dict[str, list[float]] = {}
    for piece in pieces:
        placed.setdefault(piece.account, []).append(piece.us)
    for entry in evidence.analysis.ledger:
        us = entry.us - math.fsum(placed.get(entry.account, ()))
        if us > _ROUNDING * evidence.step_us:
            yield TreePiece(((_NOWHERE, "rest"),), entry.account, us)


def _moments(evidence: Evidence) -> pd.DataFrame | None:
    """Gives all time of the step in pieces.

    Each has its account, its instants on the host (of a kernel that of its launch), its thread, its row of the analysis
    and its op, -1 for none.
    """
    linked, charged, idle = evidence.linked, evidence.kernel_time, evidence.idle_time
    if charged is None or idle is None:
        return None
    thread_of = np.append(linked.trace.events["thread"].cat.codes.to_numpy().astype(np.int64), -1)
    work = np.flatnonzero(charged["us"].to_numpy() > 0)
    kernels, op = linked.kernels.iloc[work], as_integers(charged["op"])[work]
    op_start = np.append(linked.ops["ts_us"].to_numpy(), np.nan)[op]
    launched = kernels["launch_ts_us"].to_numpy(dtype=np.float64, na_value=np.nan)
    start = np.where(np.isnan(launched), op_start, launched)
    launch = kernels["launch"].to_numpy(dtype=np.int64, na_value=-1)
    event = np.where(launch >= 0, launch, np.append(linked.ops["event"].to_numpy(), -1)[op])
    accounts = charged["account"].cat.categories
    of_work = pd.DataFrame(
        {
            "account": np.array(accounts, dtype=object)[charged["account"].cat.codes.to_numpy()[work]],
            "start": start,
            "end": start,
            "thread": thread_of[event],
            "us": charged["us"].to_numpy()[work],
            "row": as_integers(charged["row"])[work],
            "op": np.append(linked.ops["name"].cat.codes.to_numpy().astype(np.int64), -1)[op],
        }
    )
    causes = np.array([f"overhead.{cause}" for cause in IDLE_CAUSES], dtype=object)
    waits = pd.DataFrame(
        {
            "account": causes[idle["cause"].to_numpy()],
            **{name: idle[name].to_numpy() for name in ("start", "end", "thread", "us")},
            "row": -1,
            "op": -1,
        }
    )
    return pd.concat((of_work, waits), ignore_index=True)


class _FrameNodes:
    """The stacks of Python frames of each host thread.

    A node is a frame by name inside a frame, however often it was called; node -1 is outside of all.
    """

    def __init__(self, evidence: Evidence) -> None:
        events = evidence.linked.trace.events
        is_line = (events["category"] == "line").to_numpy()
        rows = np.flatnonzero((events["category"] == "python").to_numpy() | is_line)
        if len(rows) > MOST_FRAMES:
            rows = np.sort(rows[np.argsort(-events["dur_us"].to_numpy()[rows], kind="stable")[:MOST_FRAMES]])
        self._labels = events["name"].cat.categories
        self._parent: list[int] = []
        self._code: list[int] = []
        self._times: dict[int, tuple[Floats, Integers]] = {}
        frames = pd.DataFrame(
            {
                "thread": events["thread"].cat.codes.to_numpy().astype(np.int64)[rows],
                "start": events["ts_us"].to_numpy()[rows],
                "end": (events["ts_us"] + events["dur_us"]).to_numpy()[rows],
                # One number for the name and for whether it stands for a line.
                "name": events["name"].cat.codes.to_numpy().astype(np.int64)[rows] * 2 + is_line[rows],
            }
        ).sort_values(["thread", "start", "end"], ascending=[True, True, False])
        nodes: dict[tuple[int, int], int] = {}
        for thread, mine in frames.groupby("thread"):
            self._times[int(thread)] = self._sweep(mine, nodes)  # type: ignore[arg-type]

    @property
    def is_known(self) -> bool:
        """True if the trace has frames."""
        return bool(self._times)

    def _sweep(self, frames: pd.DataFrame, nodes: dict[tuple[int, int], int]) -> tuple[Floats, Integers]:
        """Gives the instants at which a thread changes frames.

        Each comes with the node that it is in from then on.
        """
        times, entered = [-np.inf], [-1]
        stack: list[tuple[float, int]] = []
        columns = (frames[name].tolist() for name in ("start", "end", "name"))
        for start, end, name in zip(*columns, strict=True):
            while stack and stack[-1][0] <= start:
                times.append(stack.pop()[0])
                entered.append(stack[-1][1] if stack else -1)
            outer = stack[-1][1] if stack else -1
            node = nodes.setdefault((outer, name), len(self._code))
            if node == len(self._code):
                self._parent.append(outer)
                self._code.append(name)
            stack.append((min(end, stack[-1][0]) if stack else end, node))
            times.append(start)
            entered.append(node)
        while stack:
            times.append(stack.pop()[0])
            entered.append(stack[-1][1] if stack else -1)
        return np.array(times), np.array(entered, dtype=np.int64)

    def edges(self, moments: pd.DataFrame) -> list[Floats]:
        """The instants at which threads with idle time enter or leave a frame."""
        threads = set(moments["thread"].tolist())
        return [times[1:] for thread, (times, _) in self._times.items() if thread in threads]

    def nodes_at(self, thread: Integers, at: Floats) -> Integers:
        """The node that each thread is in at an instant."""
        node = np.full(len(at), -1, dtype=np.int64)
        for code, (times, entered) in self._times.items():
            mine = np.flatnonzero((thread == code) & ~np.isnan(at))
            node[mine] = entered[np.searchsorted(times, at[mine], side="right") - 1]
        return node

    def _chain(self, node: int) -> "list[_Frame]":
        """The frames from the outermost to this node."""
        chain = []
        while node >= 0:
            chain.append(self._described[self._code[node]])
            node = self._parent[node]
        return chain[::-1]

    @cached_property
    def _described(self) -> dict[int, "_Frame"]:
        """The description of every name in use."""
        return {code: _describe(str(self._labels[code // 2]), is_line=code % 2 == 1) for code in set(self._code)}

    def path(self, node: int) -> tuple[tuple[str, NodeKind], ...]:
        """Gives the frames of a node as people read them.

        Frames of torch are left out where another frame is inside them.
        """
        chain = self._chain(node)
        last = max((at for at, frame in enumerate(chain) if not frame.is_machinery), default=-1)
        return tuple(frame.shown for at, frame in enumerate(chain) if at > last or not frame.is_machinery)

    def sources(self, node: int) -> list[str]:
        """Gives the sources of a node's frames, the innermost first."""
        return [frame.source for frame in reversed(self._chain(node)) if frame.source is not None]


class _Frame(NamedTuple):
    """Frame as people read it, and its source as the analysis names it."""

    shown: tuple[str, NodeKind]
    source: str | None
    is_machinery: bool


def _describe(name: str, *, is_line: bool) -> _Frame:
    if name.startswith(MODULE_PREFIX):
        return _Frame((name.removeprefix(MODULE_PREFIX), "module"), None, is_machinery=False)
    match = PYTHON_FRAME.match(name)
    if match is None:
        built_in = BUILT_IN_CALL.match(name)
        words = name[:_LONGEST_NAME] if built_in is None else f"{built_in['name']} (built in)"
        return _Frame((words, "frame"), None, is_machinery=False)
    place, function = line_source(match["path"], match["line"]), name[match.end() :][:_LONGEST_NAME]
    if is_line:
        return _Frame((place, "line"), place, is_machinery=False)
    is_machinery = _MACHINERY.search(match["path"].replace("\\", "/")) is not None
    return _Frame((f"{function} ({place})", "frame"), function_source(function, place), is_machinery)
