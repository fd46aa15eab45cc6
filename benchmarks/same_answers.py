"""Compares the answers of the working tree with those of a commit, field by field, over all traces at hand.

python -m benchmarks.same_answers REF                         exits with 1 where any answer differs
python -m benchmarks.same_answers REF --expect meant.toml     differences listed there are set apart and do not fail
python -m benchmarks.same_answers REF --only 'compare*'       only the command lines that match

Inputs are the sample recordings, lock-files and golden analysis of REF and the public traces in ``shared/traces``
beside the checkout. Each side answers the same command lines (``report``, ``doctor`` and ``compare`` in all formats,
``--help``, mistakes of use) on its own copy of the inputs, in processes that import that side's code alone; see
``answer_driver``. Compared are standard output, standard error, the exit code and written files: JSON value by value,
text line by line, everything else byte by byte. Paths of the checkouts and of the scratch folder are replaced by names
before. The answers of REF are kept in the output folder, under its commit, and not computed again.

The file for ``--expect`` holds tables such as this one, whose patterns are those of ``fnmatch``; all but ``reason`` may
be left out:

    [[expected]]
    answer = "report --format json *"
    path = "ledger.*.us"
    before = "0.41*"
    after = "0.42*"
    reason = "idle time before the first kernel now counts as input wait"
"""

import argparse
import csv
import difflib
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.answer_calls import Call, plan

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("numpy", "pandas", "rich", "typer", "click", "msgspec", "isal", "scipy", "matplotlib")
# All inputs get this time of change: an answer may show it, and a file with another one has been written to.
_INPUT_MTIME = 1_700_000_000
_WIDTH = 100
_SHOWN_SUBJECTS, _SHOWN_PER_ANSWER, _SHOWN_PATHS, _SHOWN_CHARACTERS = 40, 5, 15, 90
_CRASH_NAME = re.compile(r"bottleneck-crash-\w+\.txt")


@dataclass(frozen=True)
class Answer:
    """One side's result of one call; ``end`` is the exit code, the signal, or the time limit that it passed."""

    end: str
    stdout: str
    stderr: str
    files: Mapping[str, str]
    crash: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Difference:
    """One value, line or file in which two answers differ; ``reason`` is null unless it is expected."""

    kind: str
    subject: str
    answer: str
    path: str
    before: str
    after: str
    reason: str | None = None

    def __str__(self) -> str:
        letters = zip(self.before, self.after, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], letters))
        return f"{self.path}: {_clipped(self.before, same)} -> {_clipped(self.after, same)}"


@dataclass(frozen=True)
class Expectation:
    """Differences that are meant: patterns of ``fnmatch``, and why."""

    reason: str
    answer: str = "*"
    path: str = "*"
    before: str = "*"
    after: str = "*"

    def covers(self, difference: Difference) -> bool:
        """All four patterns match."""
        fields = ("answer", "path", "before", "after")
        return all(fnmatchcase(getattr(difference, field), getattr(self, field)) for field in fields)


# --- the comparison ---


def compare_answers(call: Call, before: Answer, after: Answer) -> list[Difference]:
    """The differences between two answers to one call."""
    found = [("end", before.end, after.end)] if before.end != after.end else []
    found += text_differences(before.stderr, after.stderr, "stderr")
    found += json_differences(dict(before.files), dict(after.files), "files")
    found += _output_differences(before.stdout, after.stdout)
    return [Difference(call.kind, call.subject, call.name, *each) for each in found]


def _output_differences(before: str, after: str) -> list[tuple[str, str, str]]:
    if before == after:
        return []
    try:
        parsed = json.loads(before), json.loads(after)
    except ValueError:
        return text_differences(before, after, "stdout")
    return json_differences(*parsed) or [("stdout", "equal JSON values", "in another order or notation")]


def json_differences(before: Any, after: Any, path: str = "") -> list[tuple[str, str, str]]:
    """(path, before, after) of each value that differs; 1, 1.0 and true are different values."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys: list[Any] = list(dict.fromkeys([*before, *after]))
        found = []
    elif isinstance(before, list) and isinstance(after, list):
        keys = list(range(max(len(before), len(after))))
        is_as_long = len(before) == len(after)
        found = [] if is_as_long else [(_joined(path, "length"), str(len(before)), str(len(after)))]
        before, after = dict(enumerate(before)), dict(enumerate(after))
    else:
        is_same = type(before) is type(after) and repr(before) == repr(after)
        return [] if is_same else [(path or "(whole)", _shown(before), _shown(after))]
    for key in keys:
        here = _joined(path, key)
        if key in before and key in after:
            found += json_differences(before[key], after[key], here)
        else:
            first, second = (_shown(side[key]) if key in side else "(absent)" for side in (before, after))
            found.append((here, first, second))
    return found


def text_differences(before: str, after: str, name: str) -> list[tuple[str, str, str]]:
    """(name.line, before, after) of each line that differs; the line is counted before, or after where it is new."""
    if before == after:
        return []
    left, right = before.splitlines(keepends=True), after.splitlines(keepends=True)
    found = []
    for tag, i, i_end, j, j_end in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        lines = itertools.zip_longest(left[i:i_end], right[j:j_end])
        for offset, line in enumerate(lines):
            first, second = ("(absent)" if each is None else each.removesuffix("\n") for each in line)
            if first == second:  # they differ in the end of the line
                first, second = (repr(each) for each in line)
            found.append((f"{name}.{(i if tag != 'insert' else j) + offset + 1}", first, second))
    return found


def _joined(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _clipped(text: str, same: int) -> str:
    """At most _SHOWN_CHARACTERS of a text, among them those that follow the first ``same`` ones."""
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    start = max(0, min(same - _SHOWN_CHARACTERS // 3, len(text) - _SHOWN_CHARACTERS))
    end = start + _SHOWN_CHARACTERS
    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")


def read_expectations(path: Path) -> list[Expectation]:
    """The tables of an --expect file; each needs a reason."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["expected"]
    return [Expectation(**table) for table in tables]


def set_apart(
    differences: Sequence[Difference], expectations: Sequence[Expectation]
) -> tuple[list[Difference], list[Difference]]:
    """The differences that no expectation covers, and those that one does, with its reason."""
    unexpected, expected = [], []
    for difference in differences:
        reason = next((each.reason for each in expectations if each.covers(difference)), None)
        if reason is None:
            unexpected.append(difference)
        else:
            expected.append(Difference(**{**asdict(difference), "reason": reason}))
    return unexpected, expected


# --- the two sides ---


@dataclass(frozen=True)
class Settings:
    """How the calls of a side are run."""

    jobs: int
    timeout_s: float
    out: Path


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """A folder with the files of a commit, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="same-answers-") as folder:
        path = Path(folder).resolve() / "checkout"
        _git("worktree", "add", "--quiet", "--detach", str(path), commit)
        try:
            yield path
        finally:
            _git("worktree", "remove", "--force", str(path))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True).stdout


def lay_out_inputs(data: Path, reference: Path, traces: Path) -> None:
    """Copies all input files to a folder, with one time of change."""
    _copy(reference / "sample_traces", data / "sample_traces", "*/*")
    _copy(reference / ".bottleneck", data / "locks", "*.lock.toml")
    _copy(reference / "tests" / "golden" / "report", data / "saved", "*.json")
    _copy(traces, data / "traces", "*.json")
    _copy(traces, data / "traces", "*.gz")
    (data / "written").mkdir()


def _copy(source: Path, target: Path, pattern: str) -> None:
    target.mkdir(exist_ok=True, parents=True)
    for file in sorted(source.glob(pattern)):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, copy)
        os.utime(copy, (_INPUT_MTIME, _INPUT_MTIME))


def plan_of(data: Path, traces: Path) -> list[Call]:
    """The plan for the files that lie in a folder."""
    samples = sorted(f"sample_traces/{path.name}" for path in (data / "sample_traces").iterdir())
    locks, saved = (sorted(f"{name}/{path.name}" for path in (data / name).iterdir()) for name in ("locks", "saved"))
    there = {path.name for path in (data / "traces").iterdir()}
    catalog = traces / "catalog.csv"
    named: list[str] = []
    if catalog.exists():
        with catalog.open(encoding="utf-8", newline="") as file:
            named = [row["file"] for row in csv.DictReader(file) if row["file"] in there]
    ordered = dict.fromkeys([*named, *sorted(there)])
    return plan(samples, [f"traces/{name}" for name in ordered], locks, saved)


def keys_of(calls: Sequence[Call], data: Path) -> dict[str, Call]:
    """The calls by the digest of all that their answers depend on besides the code."""
    digests: dict[str, str] = {}

    def digest_of(name: str) -> str:
        if name not in digests:
            path = data / name
            files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
            digests[name] = hashlib.sha256(
                b"".join(file.name.encode() + file.read_bytes() for file in files)
            ).hexdigest()
        return digests[name]

    surroundings = [sys.version, _WIDTH, *(f"{name} {_version(name)}" for name in _PACKAGES)]
    found = {}
    for call in calls:
        depends = [call.arguments, call.fresh, [digest_of(name) for name in call.inputs], surroundings]
        found[hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:24]] = call
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def answer(checkout: Path, data: Path, calls: Mapping[str, Call], answers: Path, settings: Settings) -> None:
    """Appends the checkout's answers to the JSON Lines file ``answers``.

    Raises:
        SystemExit: The driver failed, or imports another checkout.
    """
    if not calls:
        return
    raw = data.parent / "answers.jsonl"
    raw.unlink(missing_ok=True)
    orders = {
        "checkout": str(checkout),
        "answers": str(raw),
        "jobs": settings.jobs,
        "timeout_s": settings.timeout_s,
        "input_mtime": _INPUT_MTIME,
        "warm": _warm_lines([*calls.values()]),
        "calls": [{"key": key, **asdict(call)} for key, call in _longest_first(calls, data)],
    }
    (data.parent / "orders.json").write_text(json.dumps(orders), encoding="utf-8")
    driver = Path(__file__).with_name("answer_driver.py")
    command = [sys.executable, "-P", str(driver), str(data.parent / "orders.json")]
    try:
        code = subprocess.run(command, cwd=data, env=_environment(checkout, data.parent), check=False).returncode
    finally:  # what was answered before an interrupt is kept
        _keep(raw, answers, {sys.prefix: "<python>", str(checkout): "<checkout>", str(data.parent): "<scratch>"})
    if code:
        raise SystemExit(f"error: the driver of {checkout} ended with {code}")


def _keep(raw: Path, answers: Path, names: Mapping[str, str]) -> None:
    if not raw.exists():
        return
    with answers.open("a", encoding="utf-8") as file:
        for line in raw.read_text(encoding="utf-8").splitlines():
            given = json.loads(line)
            for field in ("stdout", "stderr", "crash"):
                given[field] = _with_names(given[field], names)
            file.write(json.dumps(given) + "\n")


def _with_names(text: str | None, names: Mapping[str, str]) -> str | None:
    if text is None:
        return None
    for path, name in names.items():
        text = text.replace(path, name)
    return _CRASH_NAME.sub("bottleneck-crash-NAME.txt", text)


def _warm_lines(calls: Sequence[Call]) -> list[list[str]]:
    """The first call of each command on a sample: their imports are those of nearly all calls."""
    on_samples = [call for call in calls if call.inputs and call.inputs[0].startswith("sample_traces/")]
    first = {(call.kind, call.arguments[0]): list(call.arguments) for call in reversed(on_samples) if not call.outputs}
    return list(first.values())


def _longest_first(calls: Mapping[str, Call], data: Path) -> list[tuple[str, Call]]:
    def size(item: tuple[str, Call]) -> int:
        return sum((data / name).stat().st_size for name in item[1].inputs)

    return sorted(calls.items(), key=size, reverse=True)


def _environment(checkout: Path, scratch: Path) -> dict[str, str]:
    """The whole environment of a side: nothing of the caller's but its PATH."""
    source = checkout / "src"
    for name in ("home", "tmp"):
        (scratch / name).mkdir(exist_ok=True)
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(source if source.is_dir() else checkout),
        "HOME": str(scratch / "home"),
        "TMPDIR": str(scratch / "tmp"),
        "MPLCONFIGDIR": str(scratch / "tmp"),
        "COLUMNS": str(_WIDTH),
        "LINES": "50",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def read_answers(path: Path) -> dict[str, Answer]:
    """The answers in a JSON Lines file by key; the last one counts."""
    if not path.exists():
        return {}
    found = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            given = json.loads(line)
            key = given.pop("key")
            found[key] = Answer(**given)
    return found


# --- the command ---


def main() -> int:
    """Computes both sides and prints their differences; the exit status is 1 where one is unexpected."""
    options = _parsed()
    started = time.monotonic()
    expectations = read_expectations(options.expect) if options.expect else []
    settings = Settings(options.jobs, options.timeout, options.out)
    commit = _git("rev-parse", "--verify", options.ref + "^{commit}").strip()
    kept, new = settings.out / f"{commit}.jsonl", settings.out / "new.jsonl"
    settings.out.mkdir(parents=True, exist_ok=True)
    new.unlink(missing_ok=True)
    if not options.traces.is_dir():
        print(f"skipped: no folder {options.traces}, so public traces are left out")
    with worktree(commit) as reference:
        with _scratch(reference, options.traces) as data:
            planned = keys_of(plan_of(data, options.traces), data)
            calls = {key: call for key, call in planned.items() if fnmatchcase(call.name, options.only)}
            if not calls:
                raise SystemExit(f"error: no command line matches --only {options.only}")
            known = {key for key, each in read_answers(kept).items() if not each.end.startswith("over ")}
            missing = {key: call for key, call in calls.items() if key not in known}
            print(f"{commit[:7]}: {len(missing)} answers to compute, {len(calls) - len(missing)} kept", flush=True)
            answer(reference, data, missing, kept, settings)
        half = time.monotonic()
        with _scratch(reference, options.traces) as data:
            print(f"working tree: {len(calls)} answers to compute", flush=True)
            answer(ROOT, data, calls, new, settings)
    before, after = read_answers(kept), read_answers(new)
    found = [each for key, call in calls.items() for each in compare_answers(call, before[key], after[key])]
    unexpected, expected = set_apart(found, expectations)
    details = settings.out / "differences.json"
    details.write_text(json.dumps([asdict(each) for each in [*unexpected, *expected]], indent=1), encoding="utf-8")
    print(summary(list(calls.values()), unexpected, expected))
    print(_listed(unexpected, expected, expectations, details))
    late = sum(before[key].end.startswith("over ") and after[key].end.startswith("over ") for key in calls)
    if late:
        print(f"not compared: {late} calls took over {settings.timeout_s:g} s on both sides; see --timeout")
    print(f"{half - started:.0f} s for {commit[:7]}, {time.monotonic() - half:.0f} s for the working tree")
    return int(bool(unexpected))


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ref", help="the commit that the working tree is compared with")
    parser.add_argument(
        "--traces", type=Path, default=ROOT.parent / "shared" / "traces", help="folder of public traces"
    )
    parser.add_argument("--out", type=Path, default=ROOT / ".same_answers", help="folder for answers and differences")
    parser.add_argument("--jobs", type=int, default=2, help="calls at a time")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="of one call")
    parser.add_argument("--expect", type=Path, metavar="FILE", help="TOML file of differences that are meant")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only command lines that match, as in fnmatch")
    return parser.parse_args()


@contextmanager
def _scratch(reference: Path, traces: Path) -> Iterator[Path]:
    """A new copy of the inputs, in a scratch folder of its own."""
    with tempfile.TemporaryDirectory(prefix="same-answers-") as folder:
        data = Path(folder).resolve() / "inputs"
        lay_out_inputs(data, reference, traces)
        yield data


def summary(calls: Sequence[Call], unexpected: Sequence[Difference], expected: Sequence[Difference]) -> str:
    """A table with a line per kind of answer: how many were compared, and how many differ."""
    compared = Counter(call.kind for call in calls)
    differing = {each.answer: each.kind for each in unexpected}
    meant = {each.answer: each.kind for each in expected if each.answer not in differing}
    failed, passed = Counter(differing.values()), Counter(meant.values())
    rows = [(kind, compared[kind], failed[kind], passed[kind]) for kind in compared]
    rows.append(("all", len(calls), len(differing), len(meant)))
    lines = [f"{'answer':<34} {'compared':>9} {'differ':>9} {'as meant':>9}"]
    return "\n".join(lines + [f"{row[0]:<34} {row[1]:>9} {row[2]:>9} {row[3]:>9}" for row in rows])


def _listed(
    unexpected: Sequence[Difference],
    expected: Sequence[Difference],
    expectations: Sequence[Expectation],
    details: Path,
) -> str:
    lines = [f"\n{len(unexpected)} differences, {len(expected)} more as meant; all of them in {details}"]
    paths = Counter(re.sub(r"\d+", "*", each.path) for each in unexpected)
    lines += [f"  {count:>6} at {path}" for path, count in paths.most_common(_SHOWN_PATHS)]
    lines += [f"         and {len(paths) - _SHOWN_PATHS} more paths"] if len(paths) > _SHOWN_PATHS else []
    subjects = list(dict.fromkeys(each.subject for each in unexpected))
    for subject in subjects[:_SHOWN_SUBJECTS]:
        lines.append(f"\n{subject}")
        of_subject = [each for each in unexpected if each.subject == subject]
        for name, of_answer in itertools.groupby(of_subject, lambda each: each.answer):
            shown = list(of_answer)
            lines.append(f"  {name}")
            lines += [f"    {each}" for each in shown[:_SHOWN_PER_ANSWER]]
            more = len(shown) - _SHOWN_PER_ANSWER
            lines += [f"    and {more} more"] if more > 0 else []
    hidden = len(subjects) - _SHOWN_SUBJECTS
    lines += [f"\nand {hidden} more files or pairs"] if hidden > 0 else []
    reasons = Counter(each.reason for each in expected)
    lines += [f"as meant: {count} differences: {reason}" for reason, count in reasons.items()]
    idle = [each for each in expectations if each.reason not in reasons]
    return "\n".join(lines + [f"expected but not found: {each.path} ({each.reason})" for each in idle])


if __name__ == "__main__":
    sys.exit(main())
