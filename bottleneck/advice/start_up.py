"""Rules on the start of a program.

They speak where the start was looked at (`bottleneck run --startup`). None of them gains anything for a step.
"""

import re

from bottleneck.advice.ranking import Draft
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_known
from bottleneck.schema.start_up import StartKind, StartLedger, StartPart
from bottleneck.units import counted, format_share, format_si, format_us

# Of the start, and in seconds: a part with less of both is no finding.
_LEAST, _LEAST_S = 0.1, 0.5
# A start of less needs no advice.
_SHORT_S = 2.0
# What torch itself imports, or its compiler.
_OF_TORCH = frozenset(
    {
        "torch",
        "numpy",
        "sympy",
        "mpmath",
        "networkx",
        "jinja2",
        "filelock",
        "fsspec",
        "triton",
        "torchgen",
        "functorch",
        "typing_extensions",
    }
)
# An NVMe drive reads some GB/s, and the page cache more: weights that come slower are unpickled or decompressed, or
# the storage is far away.
_SLOW_BYTES_PER_S = 1e9


def _start(evidence: Evidence) -> StartLedger | None:
    start = evidence.analysis.start_up
    return start if start is not None and start.is_sampled and start.total_s >= _SHORT_S else None


def _is_large(start: StartLedger, seconds: float) -> bool:
    return seconds >= max(_LEAST * start.total_s, _LEAST_S)


def _large(start: StartLedger, kind: StartKind) -> StartPart | None:
    """The largest part of a kind, where it is large."""
    return next((part for part in start.of_kind(kind) if _is_large(start, part.seconds)), None)


def _without(start: StartLedger, seconds: float) -> str:
    """Says what the start would take without so much of it."""
    whole_us, left_us = start.total_s * 1e6, max(start.total_s - seconds, 0.0) * 1e6
    return f"none for the step; without it the start would take {format_us(left_us)} instead of {format_us(whole_us)}"


def _seen(start: StartLedger, seconds: float, what: str) -> str:
    whole = f"{format_us(start.total_s * 1e6)} {start.end_words}"
    return f"{format_us(seconds * 1e6)} of {whole} ({format_share(seconds / start.total_s)}): {what}"


def heavy_import(evidence: Evidence) -> Draft | None:
    """Finds a large import of a package that no recorded step has called.

    Rule 56. What torch imports for itself is not meant.
    """
    start = _start(evidence)
    if start is None:
        return None
    names = evidence.linked.trace.events["name"].astype(str)
    for part in start.of_kind("import"):
        if part.name in _OF_TORCH or not _is_large(start, part.seconds):
            continue
        if names.str.contains(rf"(?:^|[/\\]){re.escape(part.name)}[/\\]", regex=True).any():
            continue
        at = "" if part.source is None else f" at {part.source}"
        return Draft(
            slug="heavy-import",
            title=f"Importing {part.name} takes {format_us(part.seconds * 1e6)}, and the recorded steps do not call it",
            evidence=(_seen(start, part.seconds, f"import of {part.name}{at}, without what it imports in turn"),),
            advice=f"Import {part.name} in the function that uses it, or leave it out of what only steps{at}.",
            code=f"def plot(history):\n    import {part.name}  # when it is first needed",
            places=(part.source,),
            gain_reason=_without(start, part.seconds),
        )
    return None


def compiles_at_each_start(evidence: Evidence) -> Draft | None:
    """Finds compilation that takes a large part of the start.

    Rule 57. What a cache had already is told apart from what it lacked.
    """
    start = _start(evidence)
    seconds = 0.0 if start is None else start.seconds("compile")
    if start is None or not _is_large(start, seconds):
        return None
    graphs = start.of_kind("compile")
    cold = [graph for graph in graphs if graph.is_cold]
    is_warm = not cold and any(graph.is_cold is False for graph in graphs)
    state = "all from a cache" if is_warm else "not in a cache" if cold else "no cache tells of them"
    advice = (
        "Compile less: fewer and smaller graphs (one compiled layer that repeats instead of the whole model), or "
        "compiled code that is built beforehand (torch._inductor.aoti_compile_and_package)."
        if is_warm
        else "Keep what is compiled from one start to the next: a folder that stays (TORCHINDUCTOR_CACHE_DIR), or "
        "torch.compiler.save_cache_artifacts() at the end of a run and load_cache_artifacts() at the next start."
    )
    return Draft(
        slug="compiles-at-start",
        title=f"Compilation takes {format_share(seconds / start.total_s)} of the start",
        evidence=(
            _seen(start, seconds, state),
            *(f"{graph.name} {graph.source or ''}: {format_us(graph.seconds * 1e6)}" for graph in graphs[:3]),
            *_again(evidence),
        ),
        advice=advice,
        code=None if is_warm else "TORCHINDUCTOR_CACHE_DIR=/kept/between/runs python train.py",
        places=tuple(graph.source for graph in graphs[:3]),
        gain_reason=_without(start, seconds),
    )


def _again(evidence: Evidence) -> tuple[str, ...]:
    """Tells what of it was compiled again, with the guard of the longest."""
    health = evidence.analysis.compile_health
    again = () if health is None else health.recompiles
    if not again:
        return ()
    seconds = sum(one.seconds or 0.0 for one in again)
    longest = max(again, key=lambda one: one.seconds or 0.0)
    words = f"{counted(len(again), 'recompile')} took {format_us(seconds * 1e6)} in all"
    return (f"{words}, the longest for {longest.guard_words}{at_known(longest.source)}",)


def tunes_at_each_start(evidence: Evidence) -> Draft | None:
    """Finds autotuning that takes a large part of the start. Rule 58."""
    start = _start(evidence)
    seconds = 0.0 if start is None else start.seconds("autotune")
    if start is None or not _is_large(start, seconds):
        return None
    return Draft(
        slug="tunes-at-start",
        title=f"Trying kernels takes {format_share(seconds / start.total_s)} of the start",
        evidence=(_seen(start, seconds, ", ".join(part.name for part in start.of_kind("autotune"))),),
        advice="Keep what was tuned (TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR on storage that stays), or tune "
        "less: mode='default' instead of 'max-autotune', fewer configurations of a Triton kernel.",
        places=tuple(part.source for part in start.of_kind("autotune")[:3]),
        gain_reason=_without(start, seconds),
    )


def slow_weights(evidence: Evidence) -> Draft | None:
    """Finds weights that are read slowly.

    Rule 59. They take a large part of the start.
    """
    start = _start(evidence)
    part = None if start is None else _large(start, "weights")
    if start is None or part is None:
        return None
    rate = part.bytes_per_s
    if part.name == "safetensors" or (rate is not None and rate >= _SLOW_BYTES_PER_S):
        return None
    read = "" if part.bytes is None or rate is None else f", {format_si(part.bytes, 'B')} at {format_si(rate, 'B/s')}"
    return Draft(
        slug="slow-weights",
        title=f"Loading weights takes {format_us(part.seconds * 1e6)} of the start",
        evidence=(_seen(start, part.seconds, f"{part.name} at {part.source}{read}"),),
        advice="Map the file instead of copying it (torch.load(..., mmap=True), then load_state_dict(..., assign=True) "
        "into a model made on the meta device), or keep weights as safetensors and load them to the device directly.",
        code='weights = torch.load("model.pt", mmap=True, map_location="cpu", weights_only=True)\n'
        'with torch.device("meta"):\n    model = Model()\nmodel.load_state_dict(weights, assign=True)',
        places=(part.source,),
        gain_reason=_without(start, part.seconds),
    )


def own_code_at_start(evidence: Evidence) -> Draft | None:
    """Finds lines of the program that take much of its start.

    Rule 60. Samples before the first step tell.
    """
    start = _start(evidence)
    parts = () if start is None else tuple(part for part in start.of_kind("program") if part.source is not None)
    seconds = sum(part.seconds for part in parts)
    if start is None or not _is_large(start, seconds):
        return None
    first = parts[0]
    text = evidence.analysis.text_of(first.source)
    return Draft(
        slug="own-code-at-start",
        title=f"The program's own Python takes {format_share(seconds / start.total_s)} of the start: {first.source}",
        evidence=(
            _seen(start, seconds, "lines before the first step, by samples of the stack"),
            *(f"{part.source} in {part.name}: {format_us(part.seconds * 1e6)}" for part in parts[:4]),
        ),
        advice=f"Keep the result of {first.source}{f' (`{text}`)' if text else ''} in a file from one start to the "
        "next, or do it where it is needed: in the loader's workers, or in chunks beside the steps.",
        places=tuple(part.source for part in parts[:4]),
        gain_reason=_without(start, seconds),
    )


RULES = (own_code_at_start, heavy_import, compiles_at_each_start, tunes_at_each_start, slow_weights)
