"""Reads and writes lock-files: one counter per line, sorted, no times.

Written by hand instead of by a TOML library: tomli-w gives each nested table a section of its own, tomlkit keeps the
layout that it found; this file needs one line per counter, module and source line whatever stood there before.
"""

import json
import math
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from bottleneck import __version__
from bottleneck.errors import TraceError
from bottleneck.experiment.git_clone import find_root, git_in
from bottleneck.gate.toml_table import TomlTable, read_toml, shown
from bottleneck.report.output import make_folder, write_bytes
from bottleneck.schema.counters import (
    COUNTERS,
    LOCK_SCHEMA,
    Acceptance,
    Anchor,
    Counts,
    Fingerprint,
    Lock,
    Site,
    Tier,
    Value,
)
from bottleneck.schema.numerics import Numerics, TensorDigest

_HEAD = """\
# What one step of this workload counts. Commit this file; limits stand in pyproject.toml.
# Written by `bottleneck gate --update`, changed by `bottleneck accept --reason "…"`.
"""
_FIX = "restore it from git, or write it anew: bottleneck gate --update"
_TABLES = ("fingerprint", "counters", "unstable", "unknown", "numerics", "top", "sites", "anchor", "accepted")
_KEYS = ("schema", "workload", "program", "input_sha", "steps", "runs", "counted", *_TABLES)
_ACCEPTED_KEYS = ("date", "commit", "metric", "from", "to", "reason")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# Lines without text are listed by number, ":57"; a text of that form gets one more colon.
_NUMBER_KEY = re.compile(r":([0-9]{1,9})")
_NUMBER_LIKE = re.compile(r":+[0-9]+")
_TEXT_CHARACTERS = 160
_FINGERPRINT_KEYS = ("portable", "backend", "host")
# Our own keys have two or three parts; texts are in quotes.
_PARTS = 100


def read_lock(path: Path) -> Lock:
    """Reads a lock-file; TraceError says what is wrong, where."""
    root = read_toml(path, TraceError, _FIX, _PARTS)
    _check_schema(root)
    root.refuse_others(_KEYS)
    return Lock(
        name=root.text("workload"),
        program=root.texts("program"),
        counts=_read_counts(root),
        anchor=_read_anchor(root),
        accepted=tuple(_read_acceptance(row) for row in root.sections("accepted")),
        counted=_read_counted(root),
    )


def write_lock(path: Path, lock: Lock) -> None:
    """Writes the lock-file, whole or not at all.

    UsageError where it cannot be written.
    """
    make_folder(path.parent)
    write_bytes(lock_text(lock).encode(), path)


def lock_text(lock: Lock) -> str:
    """The lock-file as text; ``read_lock`` gives back ``kept(lock)``."""
    lock = kept(lock)
    return _HEAD + "\n\n".join("\n".join(block) for block in _blocks(lock)) + "\n"


def kept(lock: Lock) -> Lock:
    """The lock with what its file keeps.

    A source line is known by its text, and has no number there (0): an import at the top of a file would change all of
    them. Lines of one file with the same text are one. What each line calls is left out, as are counts of nothing and
    the least counts of what varies.
    """
    counts = replace(lock.counts, sites=_kept_sites(lock.counts.sites), lowest={})
    counted = {*(lock.counted or ()), *counts.values, *counts.unstable, *counts.unknown} & COUNTERS.keys()
    return replace(lock, counts=counts, schema=LOCK_SCHEMA, counted=tuple(sorted(counted)))


def line_text(text: str) -> str:
    """Cuts a source line to the text by which it is known."""
    return _clean(text[:_TEXT_CHARACTERS])


def _kept_sites(sites: Iterable[Site]) -> tuple[Site, ...]:
    merged: dict[tuple[str, str, int], dict[str, int]] = {}
    for site in sites:
        text = line_text(site.text)
        counts = merged.setdefault((_clean(site.file), text, 0 if text else site.line), {})
        for name, value in site.counts.items():
            counts[name] = counts.get(name, 0) + value
    merged_sites = (
        (key, {name: counts[name] for name in counts if counts[name]}) for key, counts in sorted(merged.items())
    )
    return tuple(Site(file, line, text, counts) for (file, text, line), counts in merged_sites if counts)


def _blocks(lock: Lock) -> Iterable[list[str]]:
    counts = lock.counts
    yield [
        f"schema = {LOCK_SCHEMA}",
        f"workload = {_quoted(lock.name)}",
        f"program = [{', '.join(_quoted(word) for word in lock.program)}]",
        f"input_sha = {_quoted(counts.input_sha)}",
        f"steps = {counts.steps}",
        f"runs = {counts.runs}",
        f"counted = [{', '.join(map(_quoted, lock.counted or ()))}]",
    ]
    for name in _FINGERPRINT_KEYS:
        yield from _block(f"fingerprint.{name}", getattr(counts.fingerprint, name))
    yield from _block("counters", _of_tier(counts.values, "portable"))
    yield from _block("counters.backend", _of_tier(counts.values, "backend"))
    yield from _block("unstable", counts.unstable)
    yield from _block("unknown", counts.unknown)
    yield from _numerics_blocks(counts.numerics)
    yield from _block("top.ops", counts.ops)
    yield from _block("top.modules", counts.modules)
    yield from _block("top.kernels", counts.kernels)
    yield from _site_blocks(counts.sites)
    if lock.anchor:
        yield ["[anchor]", f"commit = {_quoted(lock.anchor.commit)}", *_rows(lock.anchor.values)]
    for row in lock.accepted:
        values = (row.date, row.commit, row.metric, row.before, row.after, row.reason)
        rows = [f"{key} = {_value(value)}" for key, value in zip(_ACCEPTED_KEYS, values, strict=True)]
        yield ["[[accepted]]", *rows]


# What is written though it is 0: without these a change by the steps is not known.
_ALWAYS = ("moved", "moved_projection")


def _numerics_blocks(numerics: Numerics | None) -> Iterable[list[str]]:
    if numerics is None:
        return
    facts = {name: getattr(numerics, name) for name in ("steps", "precision", "reductions", "reason")}
    yield from _block("numerics", {name: value for name, value in facts.items() if value})
    rows = {}
    for name, digest in numerics.tensors.items():
        row = {attribute.name: getattr(digest, attribute.name) for attribute in fields(digest)}
        row["shape"] = "x".join(map(str, digest.shape))
        rows[name] = {key: value for key, value in row.items() if value not in (None, "") and (value or key in _ALWAYS)}
    # In the order of their making, by which the first that differs is named.
    yield ["[numerics.tensors]", *(f"{_key(name)} = {_value(row)}" for name, row in rows.items())]
    yield from _block("numerics.unstable", numerics.unstable)


def _site_blocks(sites: Iterable[Site]) -> Iterable[list[str]]:
    files: dict[str, dict[str, Mapping[str, int]]] = {}
    for site in sites:
        key = f":{site.text}" if _NUMBER_LIKE.fullmatch(site.text) else site.text or f":{site.line}"
        files.setdefault(site.file, {})[key] = site.counts
    for file, rows in files.items():
        yield from _block(f"sites.{_key(file)}", rows)


def _block(name: str, rows: Mapping[str, object]) -> Iterable[list[str]]:
    if rows:
        yield [f"[{name}]", *_rows(rows)]


def _rows(rows: Mapping[str, object]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in sorted(rows.items())]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_rows(value))} }}" if value else "{}"
    return repr(value) if isinstance(value, int | float) else _quoted(str(value))


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quoted(key)


def _quoted(text: str) -> str:
    """A basic string of TOML: that of JSON, but for DEL."""
    return json.dumps(_clean(text), ensure_ascii=False).replace("\x7f", "\\u007f")


def _clean(text: str) -> str:
    """The text without halves of surrogate pairs, which no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _of_tier(values: Mapping[str, int], tier: Tier) -> dict[str, int]:
    return {name: value for name, value in values.items() if COUNTERS[name].tier == tier}


def _check_schema(root: TomlTable) -> None:
    schema = root.whole("schema")
    if schema != LOCK_SCHEMA:
        is_newer = schema > LOCK_SCHEMA
        raise TraceError(
            f"{root.file} has schema {schema}, and bottleneck {__version__} reads schema {LOCK_SCHEMA}",
            why=f"it was written by {'a later' if is_newer else 'an earlier'} version",
            fix="install the version of bottleneck that wrote it, or a later one" if is_newer else _FIX,
        )


def _read_counts(root: TomlTable) -> Counts:
    top = root.section("top")
    top.refuse_others(("ops", "modules", "kernels"))
    modules = top.section("modules")
    facts = root.section("fingerprint")
    facts.refuse_others(_FINGERPRINT_KEYS)
    return Counts(
        values=_read_values(root.section("counters")),
        fingerprint=Fingerprint(*(_read_facts(facts.section(name)) for name in _FINGERPRINT_KEYS)),
        unknown=root.section("unknown").plain_texts(),
        unstable=root.section("unstable").plain_texts(),
        ops=top.section("ops").wholes(),
        modules={name: modules.section(name).wholes() for name in modules.data},
        kernels=top.section("kernels").wholes(),
        sites=tuple(_read_sites(root.section("sites"))),
        input_sha=root.text("input_sha", ""),
        steps=root.whole("steps", 0),
        runs=root.whole("runs", 1),
        numerics=_read_numerics(root),
    )


# What the first version, which wrote no list of them, wrote of every workload. A counter that came later is not in it.
_OF_FIRST_VERSION = (
    "ops",
    "launches",
    "syncs",
    "copies",
    "h2d_copies",
    "h2d_bytes",
    "d2h_copies",
    "d2h_bytes",
    "flops",
    "float64_ops",
    "graphs",
    "graph_breaks",
    "recompiles",
    "autograd_nodes",
    "module_calls",
    "allocations",
    "allocated_bytes",
    "peak_bytes",
    "kernel_names",
)


def _read_counted(root: TomlTable) -> tuple[str, ...]:
    """Reads the counters that its writer knew."""
    return root.texts("counted") if "counted" in root.data else _OF_FIRST_VERSION


def _read_numerics(root: TomlTable) -> Numerics | None:
    if "numerics" not in root.data:
        return None
    section = root.section("numerics")
    section.refuse_others([attribute.name for attribute in fields(Numerics)])
    tensors = section.section("tensors")
    return Numerics(
        steps=section.whole("steps", 0),
        tensors={name: _read_digest(tensors.section(name)) for name in tensors.data},
        unstable=section.section("unstable").plain_texts(),
        precision=section.text("precision", ""),
        reductions=section.whole("reductions", 0),
        reason=section.text("reason", ""),
    )


_SHAPE = re.compile(r"(?:[0-9]{1,18}(?:x[0-9]{1,18})*)?")


def _read_digest(row: TomlTable) -> TensorDigest:
    row.refuse_others([attribute.name for attribute in fields(TensorDigest)])
    shape = row.text("shape", "")
    if not _SHAPE.fullmatch(shape):
        raise row.error("shape", f"sizes are written as 8x32, and this is {shown(shape)}")
    has_moved = "moved" in row.data or "moved_projection" in row.data
    return TensorDigest(
        dtype=row.text("dtype"),
        shape=tuple(int(size) for size in shape.split("x") if size),
        nan=row.whole("nan", 0),
        inf=row.whole("inf", 0),
        norm=row.number("norm"),
        mean=row.number("mean"),
        projection=row.number("projection"),
        moved=row.number("moved") if has_moved else None,
        moved_projection=row.number("moved_projection") if has_moved else None,
    )


def _read_values(section: TomlTable) -> dict[str, int]:
    backend = section.section("backend")
    portable = replace(section, data={key: value for key, value in section.data.items() if key != "backend"})
    fix = f"bottleneck {__version__} does not count that: update it, or write the file anew: bottleneck gate --update"
    for tier, part in (("portable", portable), ("backend", backend)):
        part.refuse_others([name for name, counter in COUNTERS.items() if counter.tier == tier], fix)
    return {**portable.wholes(), **backend.wholes()}


def _read_facts(section: TomlTable) -> dict[str, Value]:
    facts: dict[str, Value] = {}
    for key, value in section.data.items():
        if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
            raise section.error(key, f"this has to be a text, a number or true or false, and is {shown(value)}")
        facts[key] = value
    return facts


def _read_sites(section: TomlTable) -> Iterable[Site]:
    for file in sorted(section.data):
        lines = section.section(file)
        rows = []
        for key in lines.data:  # of the text and the number of a line one is known
            number = _NUMBER_KEY.fullmatch(key)
            text = key[1:] if key.startswith("::") and _NUMBER_LIKE.fullmatch(key) else key
            rows.append(("", int(number[1]), key) if number else (text, 0, key))
        for text, line, key in sorted(rows):
            yield Site(file, line, text, lines.section(key).wholes())


def _read_anchor(root: TomlTable) -> Anchor | None:
    if "anchor" not in root.data:
        return None
    section = root.section("anchor")
    section.refuse_others(("commit", *COUNTERS))
    values = replace(section, data={key: value for key, value in section.data.items() if key != "commit"})
    return Anchor(section.text("commit"), values.wholes())


def _read_acceptance(row: TomlTable) -> Acceptance:
    row.refuse_others(_ACCEPTED_KEYS)
    return Acceptance(
        date=row.text("date"),
        commit=row.text("commit", ""),
        metric=row.text("metric"),
        before=row.whole("from"),
        after=row.whole("to"),
        reason=row.text("reason"),
    )


def read_lock_at(commit: str, path: Path) -> Lock | None:
    """Reads the lock-file of a commit; null where it has none.

    Null too where it cannot be read.
    """
    root = find_root(path.parent)
    if root is None or not commit:
        return None
    place = (path.parent.resolve() / path.name).relative_to(root)
    answer = git_in(root)("show", f"{commit}:{place.as_posix()}")
    if not answer.is_good:
        return None
    with tempfile.TemporaryDirectory(prefix="bottleneck-lock-") as scratch:
        file = Path(scratch) / path.name
        file.write_bytes(answer.output)
        try:
            return read_lock(file)
        except TraceError:
            return None
