"""What `gate --update` tells: which counters are locked now, what changed, and what is too unstable to lock."""

from bottleneck.counters import Lock
from bottleneck.gated import CounterChange
from bottleneck.gated_words import tell_change


def tell_update(path: str, before: Lock | None, after: Lock) -> str:
    """The lines on a lock-file that was just written; ``before`` is what it was, null where it is new."""
    counts = after.counts
    head = f"{path}: {len(counts.values)} counters that {counts.runs} runs of {counts.steps} steps agree on"
    lines = [head, *_changes(before, after)]
    lines += [f"  not locked: {name} ({why})" for name, why in sorted(counts.unstable.items()) if ":" not in name]
    lines += [f"  unknown here: {name} ({why})" for name, why in sorted(counts.unknown.items())]
    return "\n".join(lines) + "\n"


def _changes(before: Lock | None, after: Lock) -> list[str]:
    if before is None:
        return ["  it is new: commit it"]
    old, new = before.counts.values, after.counts.values
    changed = [
        f"  {tell_change(CounterChange(name, old.get(name), new.get(name), 'same'))}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    return changed or ["  nothing changed"]
