"""What torch.compile has done in this process so far: graphs, graph breaks with their lines, and recompilations."""

import os
import sys
from collections import Counter
from typing import Any

from bottleneck.harness.lines import is_program
from bottleneck.measured import Compilation, GraphBreak

_LONGEST_REASON = 200


def describe_compilation(folder: str) -> Compilation | None:
    """The sums until now; all zero where the program never brought in torch's compiler, null where it tells nothing.

    Names of files are relative to ``folder`` where they lie in it.
    """
    if "torch._dynamo" not in sys.modules:
        return Compilation(0, 0, 0)
    try:
        return _describe(folder)
    except Exception:  # another version of the compiler
        return None


def _describe(folder: str) -> Compilation:
    utils = sys.modules["torch._dynamo.utils"]
    frames = getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COMPILE_COUNTER", {})
    return Compilation(
        graphs=int(utils.counters["stats"]["unique_graphs"]),
        graph_breaks=sum(utils.counters["graph_break"].values()),
        recompiles=sum(max(0, times - 1) for times in frames.values()),
        breaks=_breaks(getattr(utils, "graph_break_reasons", ()), folder),
    )


def _breaks(reasons: Any, folder: str) -> tuple[GraphBreak, ...]:
    """The lines of the program at which graphs broke, as far as dynamo tells them."""
    found = Counter(_place(each, folder) for each in reasons if getattr(each, "graph_break", False))
    return tuple(GraphBreak(*place, count) for place, count in sorted(found.items()) if place[0])


def _place(reason: Any, folder: str) -> tuple[str, int, str]:
    """File, line and the first line of the reason; the innermost frame that is the program's own."""
    stack = [frame for frame in getattr(reason, "user_stack", None) or () if is_program(frame.filename)]
    text = (str(getattr(reason, "reason", "")).strip().splitlines() or [""])[0][:_LONGEST_REASON]
    return (relative_to(folder, stack[-1].filename), int(stack[-1].lineno or 0), text) if stack else ("", 0, text)


def relative_to(folder: str, path: str) -> str:
    """The path from the folder on where it lies inside, else only its last part: where people keep files is theirs."""
    inside = os.path.relpath(os.path.realpath(path), os.path.realpath(folder))
    return os.path.basename(path) if inside.startswith("..") else inside  # noqa: PTH119 - as plain text


def search_path(folder: str) -> tuple[str, ...]:
    """The entries of sys.path inside the folder, relative to it, longest first: the profiler cuts the longest off."""
    entries = {os.path.realpath(entry or folder) for entry in sys.path if isinstance(entry, str)}
    inside = (os.path.relpath(entry, os.path.realpath(folder)) for entry in entries)
    own = {entry for entry in inside if not entry.startswith("..") and "site-packages" not in entry}
    return tuple(sorted(own, key=lambda entry: (-len(entry), entry)))
