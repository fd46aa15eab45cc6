"""Feeds hostile saved analyses, recordings, lock-files and settings to the commands that read them, in every format.

    python -m benchmarks.fuzz_saved [--cases 2000] [--seed 1] [--case N]

The strings of an input are replaced by markup, escape sequences and commands of logs, its numbers by odd ones, as far
as its schema still takes it; other changes break the schema. What is rendered must not hold anything that acts: no
unprintable character, no element or attribute of a page that was not there before, no link of markdown. Each case is a
number, from which with the seed all else follows, so that `--case N` repeats it; it runs in a process of its own.
Printed are the outcomes by exit code and every case that ended with 70, that let something through, or that took over a
minute of CPU time or over 2 GB. Exit status 1 where there was such a case.
"""

import argparse
import collections
import contextlib
import copy
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from markdown_it import MarkdownIt

from benchmarks.fuzz import LOCKS, SAMPLES, mutate_bytes, mutate_tree
from bottleneck import cli
from bottleneck.commands.report_options import PLOTS
from bottleneck.errors import TraceError
from bottleneck.report.json_text import from_json
from bottleneck.schema.recording import read_recording

# Exit status of a case whose output holds something that acts, and of one that this program itself failed in.
_LEAKED, _LOST = 98, 99
# Of CPU time, which does not depend on what else the machine does. A case that waits for ever is ended.
_SECONDS, _BYTES, _ENDED_AFTER_SECONDS = 60, 2 * 1024**3, 600
_MARK = "pwned"
HOSTILE_TEXTS = (
    f"<script>{_MARK}()</script>",
    f"<img src=x onerror={_MARK}()>",
    f'"><svg/onload={_MARK}()>',
    f"</script><script>{_MARK}()</script>",
    f"]]></text><script>{_MARK}()</script>",
    f"{{{{ {_MARK} }}}}{{% {_MARK} %}}",
    f"[{_MARK}](javascript:{_MARK}())",
    f"![{_MARK}](https://evil.example/{_MARK}.png)",
    f"](x) <https://evil.example/{_MARK}>",
    f"| {_MARK} |\n| --- |\n# {_MARK}\n```\n~~~",
    f"`{_MARK}` ``{_MARK} `",
    f"\x1b[31m{_MARK}\x1b]0;{_MARK}\x07\x9b2J",
    f"[bold red]{_MARK}[/bold red][/]",
    f"[link=file:///{_MARK}]x[/link]",
    f"::error file=x::{_MARK}\r\n##[error]{_MARK}",
    f"\u202e{_MARK}\u2066\u200b\ufeff\ufff9",
    f"$\\{_MARK}{{$ $x_{{{_MARK}$ $$",
    f"{_MARK}\\ud800\\udc80".encode().decode("unicode_escape"),
    f"{_MARK}" * 5000,
    "\0\x01\x0b\x0c\x85\u2028\u2029",
    "\U0001f525\U0001f469\u200d\U0001f4bb" * 40,
    "=cmd|'/c calc'!A0",
    "../../../../etc/passwd",
    "",
    "%s %d {0} {x!r}",
)
_NUMBERS = (0, 1, -1, 5e-324, 1e-300, 1e-9, 0.5, 1.0, 1e15, 2**53, 1e30, 1e308, 10**40, float("nan"), float("inf"))
_FORMS = ("terminal", "terminal", "screen", "markdown", "html", "json", "pictures")


@dataclass(frozen=True)
class Inputs:
    """Saved analyses, recordings and lock-files of this repository."""

    analyses: tuple[Any, ...]
    recordings: tuple[Path, ...]
    locks: tuple[Path, ...]


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values of a tree that are no containers, and of the keys of its mappings."""
    if isinstance(tree, dict | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in items:
            yield from leaves(value, (*path, key))
    else:
        yield path


def _parent(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        tree = tree[key]
    return tree


def poison(tree: Any, chance: random.Random, is_sound: Callable[[Any], bool]) -> Any:
    """The tree with hostile texts and odd numbers in many places, as far as it stays sound.

    Changes are made by halves: one that is not sound is tried again on fewer values.
    """
    every = list(leaves(tree))
    chosen = chance.sample(every, min(len(every), chance.choice((1, 5, 40, 400, 4000))))
    waiting = [chosen]
    for _ in range(60):
        if not waiting:
            break
        part = waiting.pop()
        trial = copy.deepcopy(tree)
        for path in part:
            parent = _parent(trial, path)
            parent[path[-1]] = _hostile(parent[path[-1]], chance)
        if is_sound(trial):
            tree = trial
        elif len(part) > 1:
            waiting += [part[: len(part) // 2], part[len(part) // 2 :]]
    return tree


def _hostile(value: Any, chance: random.Random) -> Any:
    if isinstance(value, str):
        return chance.choice(HOSTILE_TEXTS) if chance.random() < 0.8 else value + chance.choice(HOSTILE_TEXTS)
    if isinstance(value, bool) or value is None:
        return chance.choice((True, False, None, *HOSTILE_TEXTS[:3], 1.5))
    return chance.choice((*_NUMBERS, value * chance.choice((0.5, 2, 1e6, -1))))


def _is_sound_analysis(tree: Any) -> bool:
    try:
        from_json(json.dumps(tree))
    except TraceError:
        return False
    return True


def _make_analysis(chance: random.Random, inputs: Inputs) -> str:
    """The text of a saved analysis: sound and hostile, grown, deep, or broken in some place."""
    tree = copy.deepcopy(chance.choice(inputs.analyses))
    kind = chance.random()
    if kind < 0.6:
        return json.dumps(poison(tree, chance, _is_sound_analysis))
    if kind < 0.7:  # many rows
        key = chance.choice([key for key, value in tree.items() if isinstance(value, list) and value])
        tree[key] = tree[key] * chance.choice((50, 1000))
        return json.dumps(tree)
    if kind < 0.75:
        return "[" * chance.choice((100, 10_000, 1_000_000)) + json.dumps(tree)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        tree = mutate_tree(tree, chance)
    text = json.dumps(tree)
    if chance.random() < 0.1:
        return mutate_bytes(text.encode("utf-8", "replace"), chance).decode("utf-8", "replace")
    return text


def _analysis_arguments(folder: Path, chance: random.Random, inputs: Inputs) -> list[str]:
    path = folder / "analysis.json"
    path.write_text(_make_analysis(chance, inputs), encoding="utf-8", errors="replace")
    if chance.random() < 0.15:
        other = folder / "other.json"
        other.write_text(_make_analysis(chance, inputs), encoding="utf-8", errors="replace")
        form = chance.choice(("terminal", "markdown", "html", "json"))
        return ["compare", str(path), str(other), "--format", form]
    if chance.random() < 0.1:
        return [chance.choice(("doctor", "whatif", "predict")), str(path)]
    return ["report", str(path), *_form_arguments(folder, chance)]


def _form_arguments(folder: Path, chance: random.Random) -> list[str]:
    form = chance.choice(_FORMS)
    if form == "screen":
        return []
    if form == "pictures":
        suffix = chance.choice((".svg", ".svg", ".png"))
        return [word for kind in chance.sample(PLOTS, 2) for word in ("--plot", f"{kind}={folder / kind}{suffix}")]
    more = {"terminal": ["--full"], "html": ["-o", str(folder / "report.html")]}.get(form, [])
    return ["--format", form, *more, *(["--all-findings"] if chance.random() < 0.3 else [])]


def _recording_arguments(folder: Path, chance: random.Random, inputs: Inputs) -> list[str]:
    """A report of a recording whose recording.json is hostile and sound, or broken, or whose telemetry is odd."""
    recording = Path(shutil.copytree(chance.choice(inputs.recordings), folder / "recording"))
    path = recording / "recording.json"
    telemetry = recording / "telemetry.csv"
    if telemetry.exists() and chance.random() < 0.4:
        telemetry.write_bytes(_mutate_csv(telemetry.read_bytes(), chance))
    else:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if chance.random() < 0.6:
            tree = poison(tree, chance, _is_sound_recording(recording))
        else:
            for _ in range(chance.choice((1, 2, 5))):
                tree = mutate_tree(tree, chance)
        path.write_text(json.dumps(tree), encoding="utf-8", errors="replace")
    return [chance.choice(("report", "report", "report", "doctor")), str(recording)]


def _is_sound_recording(folder: Path) -> Callable[[Any], bool]:
    def is_sound(tree: Any) -> bool:
        (folder / "recording.json").write_text(json.dumps(tree), encoding="utf-8", errors="replace")
        try:
            found = read_recording(folder)
        except TraceError:
            return False
        return {trace.file for trace in found.traces} <= {each.name for each in folder.iterdir()}

    return is_sound


_CELLS = ("", "nan", "inf", "-1", "1e400", "9" * 400, "0x10", "1,5", "\0", "x" * 10_000, *HOSTILE_TEXTS[:12])


def _mutate_csv(content: bytes, chance: random.Random) -> bytes:
    rows = [line.split(",") for line in content.decode("utf-8", "replace").splitlines()]
    for _ in range(chance.choice((1, 5, 50))):
        row = chance.choice(rows)
        row[chance.randrange(len(row))] = chance.choice(_CELLS)
    if chance.random() < 0.3:
        rows = rows[: chance.randrange(len(rows) + 1)] * chance.choice((1, 2, 30))
    return "\n".join(map(",".join, rows)).encode("utf-8", "replace")


_SETTINGS = """[tool.bottleneck.gate]
workloads = ["examples/mlp.py"]
against = "merge-base"
lock = ".bottleneck/{workload}.lock.toml"
alpha = 0.01
on_undecided = "warn"
on_new = "fail"
time_limit = "5min"
seed = 0
env = { OMP_NUM_THREADS = "1" }
[tool.bottleneck.gate.budget]
flops = "+1%"
peak_bytes = { max = "+3%", floor = "10MB" }
"module:a.*.launches" = "+0"
[tool.bottleneck.gate.creep]
ops = "+10%"
"""
_VALUES = (
    "nan", "inf", "-1", "0", "1e400", "9" * 30, "[]", "{}", "true", '"" ', "[[[[]]]]", "1979-05-27", "{ a = 1 }",
    '"+1e999%"', '"+-1"', '"9999999999h"', '"{workload}{workload}"', '"../{workload}"', '["", " ", "\'"]',
)  # fmt: skip
_VALUE = re.compile(r"(?<==\s).+$", re.MULTILINE)


def _mutate_toml(text: str, chance: random.Random) -> str:
    """The text with some values replaced by odd ones or hostile texts, or with bytes changed."""
    if chance.random() < 0.2:
        return mutate_bytes(text.encode(), chance).decode("utf-8", "surrogateescape")
    found = list(_VALUE.finditer(text))
    for match in sorted(chance.sample(found, min(len(found), chance.choice((1, 2, 5)))), key=lambda one: -one.start()):
        hostile = json.dumps(chance.choice(HOSTILE_TEXTS).encode("utf-8", "replace").decode()).replace("\x7f", "")
        value = chance.choice((*_VALUES, hostile, hostile, hostile))
        text = text[: match.start()] + value + text[match.end() :]
    return text


def _gate_arguments(folder: Path, chance: random.Random, inputs: Inputs) -> list[str]:
    """Commands that read a lock-file or settings; what a gate would run does not exist."""
    whole = chance.choice(inputs.locks)
    (folder / ".bottleneck").mkdir()
    lock, settings = folder / ".bottleneck" / "examples-mlp.lock.toml", folder / "pyproject.toml"
    files = {lock: whole.read_text(encoding="utf-8"), settings: _SETTINGS}
    chosen = chance.choice(list(files))
    for path, text in files.items():
        mutated = _mutate_toml(text, chance) if path == chosen else text
        path.write_bytes(mutated.encode("utf-8", "surrogateescape"))
    os.chdir(folder)
    form = chance.choice(("terminal", "markdown", "html", "json"))
    return chance.choice(
        (
            ["compare", str(lock), str(whole), "--format", form],
            ["compare", str(whole), str(lock), "--format", form],
            ["accept", "--reason", "x"],
            ["gate", "--only", "counters", "--format", chance.choice((*_GATE_FORMS, form))],
        )
    )


_GATE_FORMS = ("junit", "sarif", "github", "gitlab", "openmetrics")


class _Page(HTMLParser):
    """Counts the elements of a page, and names what acts in it and bears our mark."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts = 0
        self.acts: list[str] = []
        self._is_script = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        for name, value in attributes:
            text = value or ""
            is_handler = name.startswith("on") and _MARK in text
            is_address = name in {"href", "src", "action"} and re.match(r"\s*(javascript|https?|file):", text)
            if is_handler or (is_address and _MARK in text):
                self.acts.append(f"<{tag} {name}={text[:60]}>")


@cache
def _scripts_of_ours() -> int:
    """Scripts in the page of an analysis as it was made."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-page-"))
    page = folder / "page.html"
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli._run(["report", str(SAMPLES / "mlp"), "-o", str(page)]) == 0
    scripts = _acts_in_page(page.read_text(encoding="utf-8"))[0]
    shutil.rmtree(folder)
    return scripts


def _acts_in_page(text: str) -> tuple[int, list[str]]:
    page = _Page()
    page.feed(text)
    page.close()
    return page.scripts, page.acts


def leaks(form: str, text: str) -> list[str]:
    """Whatever acts in a text of this format; nothing should."""
    found = []
    # Pages of ours keep a number and its unit on one line by a space that does not break.
    spaces = "\n\u00a0" if form == "html" else "\n"
    odd = sorted({character for character in text if not (character.isprintable() or character in spaces)})
    if odd and form != "svg":
        found.append(f"{form} holds {odd[:5]!r}")
    if form == "html":
        scripts, acts = _acts_in_page(text)
        # A page with a chart or none has one script more or less, which must be one of ours.
        found += acts + (["a script was added"] if scripts > _scripts_of_ours() else [])
    if form == "markdown":
        shown = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
        scripts, acts = _acts_in_page(shown)
        found += acts + (["markdown made a script"] if scripts else [])
    if form == "json":
        json.loads(text)
    if form == "svg":
        found += [f"svg holds {each.tag}" for each in ET.fromstring(text).iter() if each.tag.endswith("}script")]
    return found


def _form_of(arguments: list[str]) -> str:
    form = arguments[arguments.index("--format") + 1] if "--format" in arguments else "terminal"
    return form if form in {"html", "markdown", "json"} else "text"


def _look_at(folder: Path, arguments: list[str], printed: str, told: str) -> list[str]:
    """What acts in all that a command wrote: its standard streams, pages and pictures."""
    found = leaks("text", told) + (leaks(_form_of(arguments), printed) if printed else [])
    for path in folder.glob("*.html"):
        found += leaks("html", path.read_text(encoding="utf-8"))
    for path in folder.glob("*.svg"):
        found += leaks("svg", path.read_text(encoding="utf-8"))
    return found


_MAKERS: tuple[Callable[[Path, random.Random, Inputs], list[str]], ...] = (
    *(_analysis_arguments,) * 6,
    *(_recording_arguments,) * 2,
    *(_gate_arguments,) * 2,
)


@dataclass(frozen=True)
class Outcome:
    """How one case ended: exit status (negative: killed by that signal), CPU time and peak memory."""

    number: int
    what: str
    status: int
    seconds: float
    peak_bytes: int

    @property
    def is_bad(self) -> bool:
        """A bug of ours, something let through, or more time or memory than the input explains."""
        is_wrong = self.status in (70, _LEAKED, _LOST) or self.status < 0
        return is_wrong or self.seconds > _SECONDS or self.peak_bytes > _BYTES


def run_case(seed: int, number: int, inputs: Inputs) -> Outcome:
    """One case in a process of its own, that is ended after ten minutes."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    said = folder.with_suffix(".said")
    child = os.fork()
    if not child:
        status, what = _LOST, "(not begun)"
        try:
            signal.alarm(_ENDED_AFTER_SECONDS)
            status, what = _work(folder, random.Random(f"{seed}:{number}"), inputs)
        except BaseException:
            what = traceback.format_exc()
        finally:
            said.write_text(what, errors="replace")
            os._exit(status)
    _, status, usage = os.wait4(child, 0)
    what = said.read_text() if said.exists() else "(ended without a word)"
    said.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    seconds = usage.ru_utime + usage.ru_stime
    return Outcome(number, what, os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss * 1024)


def _work(folder: Path, chance: random.Random, inputs: Inputs) -> tuple[int, str]:
    """The exit status of a command on a hostile input, and the command with what is wrong."""
    arguments = chance.choice(_MAKERS)(folder, chance, inputs)
    command = " ".join(arguments)
    printed, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
        status = cli._run(arguments)
    if status == 70:
        return status, f"{command}\n{_last_frames(told.getvalue())}"
    found = _look_at(folder, arguments, printed.getvalue(), told.getvalue())
    return (_LEAKED, f"{command}\n  " + "\n  ".join(found[:5])) if found else (status, command)


def _last_frames(errors: str) -> str:
    """The end of the traceback in the file that a crash names, which is removed."""
    named = [line.rpartition(" ")[2] for line in errors.splitlines() if "report it with the file" in line]
    if not named:
        return errors
    text = Path(named[0]).read_text(errors="replace")
    Path(named[0]).unlink(missing_ok=True)
    return "\n".join(text.splitlines()[-7:])


def make_inputs() -> Inputs:
    """The samples of this repository, analysed, with its lock-files."""
    recordings = tuple(sorted(each for each in SAMPLES.iterdir() if each.is_dir()))
    analyses = []
    for each in recordings:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            assert cli._run(["report", str(each), "--format", "json"]) == 0
        analyses.append(json.loads(text.getvalue()))
    return Inputs(tuple(analyses), recordings, tuple(sorted(LOCKS.glob("*.lock.toml"))))


def main() -> None:
    """Runs the cases, or one, and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    inputs = make_inputs()
    _scripts_of_ours()
    numbers = range(options.cases) if options.case is None else [options.case]
    outcomes = []
    for number in numbers:
        outcome = run_case(options.seed, number, inputs)
        outcomes.append(outcome)
        if outcome.is_bad or options.case is not None:
            print(f"case {number}, {outcome.seconds:.1f} s, status {outcome.status}\n  {outcome.what}", flush=True)
    counts: Mapping[int, int] = collections.Counter(outcome.status for outcome in outcomes)
    print(f"{len(outcomes)} cases; by exit status: {', '.join(f'{each}: {counts[each]}' for each in sorted(counts))}")
    sys.exit(any(outcome.is_bad for outcome in outcomes))


if __name__ == "__main__":
    main()
