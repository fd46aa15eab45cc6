"""Compares our verdicts on public traces with judgements that an expert wrote from the raw events alone.

    python -m benchmarks.verdicts [--traces FOLDER] [--write] [NAME_PART …]

The judgements are in ``benchmarks/expert_verdicts.toml``; ``benchmarks/expert_facts.py`` prints the figures that they
rest on and imports nothing of this package. ``--write`` renews ``docs/explanation/verdicts.md`` and the
notes on each trace in ``benchmarks/results/verdicts.md``.
"""

import argparse
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bottleneck.errors import BottleneckError
from bottleneck.pipeline import analyse
from bottleneck.schema.analysis import Analysis, join_clauses

JUDGEMENTS = Path(__file__).with_name("expert_verdicts.toml")
# Public traces called inconclusive at the commit before the first that changed the judgement.
BEFORE = 39
PAGE = Path(__file__).parents[1] / "docs/explanation/verdicts.md"
NOTES = Path(__file__).with_name("results") / "verdicts.md"
# Advice that is no finding of ours -> words by which our first step would say it.
PLAIN_WORDS: Mapping[str, str] = {
    "record-after-warm-up": r"warm-?up|warmed|one-off|set aside|later steps",
    "record-device-activity": r"ProfilerActivity\.(CUDA|XPU)|device activity",
    "record-all-ranks": r"(all|other|every) (the )?ranks?|traces of all",
    "record-a-replay": r"replay",
    "evaluation-mode": r"\.eval\(\)",
    "slow-product": r"hipBLASLt|TunableOp|cuBLASLt|max-autotune|other tiles|sisters",
    "slow-attention": r"attention (kernel|backend)|FlashAttention",
    "server-settings": r"max-num|enforce[-_]eager|serve",
    "copy-fewer-bytes": r"fewer bytes",
    "silent-host": r"stacks|what the (host|code)",
    "incomplete-trace": r"^record (it )?again",
}


@dataclass(frozen=True)
class Judgement:
    """An expert's notes about one trace, before our report on it was looked at.

    ``also`` are bounds that the same facts admit; ``advice`` names what would be accepted first; ``explained`` says why
    we differ, where we do; ``later`` marks judgements by which rules were mended afterwards; ``corrected`` dates a
    mistake of the expert and names the events that show it.
    """

    file: str
    kind: str
    facts: str
    judgement: str
    bound: str
    advice: tuple[str, ...]
    first: str
    also: tuple[str, ...] = ()
    explained: str | None = None
    later: bool = False
    corrected: str | None = None


@dataclass(frozen=True)
class Answer:
    """Our verdict on one trace: its bound, its first step, and the name of the finding that the step comes from.

    ``cause`` is why it is inconclusive, where it is.
    """

    bound: str
    share: float
    first_step: str
    slug: str
    sentence: str
    cause: str


def read_judgements(path: Path = JUDGEMENTS) -> tuple[Judgement, ...]:
    """The judgements in the order of the file."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["trace"]
    return tuple(
        Judgement(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
        for entry in entries
    )


def answer_of(analysis: Analysis) -> Answer:
    """Our verdict in the terms of a judgement."""
    verdict = analysis.verdict
    slug = next((clause.source for clause in verdict.clauses if clause.role == "first"), None) or ""
    cause = join_clauses([clause for clause in verdict.clauses if clause.role in {"cause", "place"}])
    return Answer(verdict.bound, verdict.share, verdict.first_step or "", slug, verdict.sentence, cause)


def agrees_on_bound(judgement: Judgement, answer: Answer) -> bool:
    """Our bound is the expert's, or the other one that the facts admit."""
    return answer.bound in {judgement.bound, *judgement.also}


def agrees_on_advice(judgement: Judgement, answer: Answer) -> bool:
    """Our first step is one that the expert would accept first: by its finding, or by its words where none is."""
    words = (PLAIN_WORDS[name] for name in judgement.advice if name in PLAIN_WORDS)
    return answer.slug in judgement.advice or any(re.search(word, answer.first_step, re.IGNORECASE) for word in words)


def agrees(judgement: Judgement, answer: Answer) -> bool:
    """Both bound and first advice are the expert's."""
    return agrees_on_bound(judgement, answer) and agrees_on_advice(judgement, answer)


def answers(files: Sequence[str], folder: Path) -> dict[str, Answer | str]:
    """Our answer by file; the refusal where a trace cannot be read."""
    found: dict[str, Answer | str] = {}
    for file in files:
        try:
            found[file] = answer_of(analyse([folder / file]))
        except BottleneckError as exc:
            found[file] = str(exc).replace(str(folder), "").removeprefix("/")
    return found


def page(judgements: Sequence[Judgement], found: Mapping[str, Answer | str]) -> str:
    """The page: score, table, and what stays inconclusive."""
    return "\n".join([_introduction(judgements, found), _table(judgements, found), _undecided(found), ""])


def _introduction(judgements: Sequence[Judgement], found: Mapping[str, Answer | str]) -> str:
    pairs = [(judgement, answer) for judgement in judgements if isinstance(answer := found[judgement.file], Answer)]
    both = sum(agrees(*pair) for pair in pairs)
    bounds = sum(agrees_on_bound(*pair) for pair in pairs)
    advice = sum(agrees_on_advice(*pair) for pair in pairs)
    corrected = sum(judgement.corrected is not None for judgement in judgements)
    first = [pair for pair in pairs if not pair[0].later]
    agreed, later = sum(agrees(*pair) for pair in first), len(pairs) - len(first)
    return f"""# Verdicts beside an expert's

{len(judgements)} public traces were worked out by hand from their raw events: which resource held the program back, and
what to do first. `benchmarks/expert_facts.py` prints such figures; it imports nothing of this package. The judgements
stand in `benchmarks/expert_verdicts.toml` and were written before our reports on these traces were looked at. Of the
{len(first)} committed then, {agreed} agree. {later} came later; rules were mended where these showed a mistake, so
that their agreement is no test.
{_corrections(corrected)}

**{both} of {len(judgements)} agree** on bound and first advice: {bounds} on the bound, {advice} on the advice. A bound
agrees where it is the expert's, or the other one that the same facts admit. Advice agrees where our first step comes
from a finding that the expert accepts first, or says what the expert says in plain words.

The expert and the author of the rules work on the same product, and most of these traces were at hand while the rules
were written. The agreement shows that the rules are sound on known programs; it does not predict how often they are
sound on unknown ones.

The facts of each trace, the judgement and our sentence stand in [the notes](../../benchmarks/results/verdicts.md).
`python -m benchmarks.verdicts --write` renews both from a folder of the traces."""


def _corrections(count: int) -> str:
    if not count:
        return "None was corrected afterwards."
    return f"{count} {'was' if count == 1 else 'were'} corrected afterwards, with the events that show the mistake."


def _table(judgements: Sequence[Judgement], found: Mapping[str, Answer | str]) -> str:
    lines = [
        "",
        "| | trace | kind | expert | our verdict | our first advice | agree |",
        "|---:|---|---|---|---|---|---|",
    ]
    for number, judgement in enumerate(judgements, 1):
        answer = found[judgement.file]
        bounds = " or ".join([judgement.bound, *judgement.also])
        ours = f"{answer.bound} | {answer.slug or 'none'}" if isinstance(answer, Answer) else "refused | "
        trace = f"{number} | {_short(judgement.file)} | {judgement.kind}"
        lines.append(f"| {trace} | {bounds} | {ours} | {_agreement(judgement, answer)} |")
    return "\n".join(lines)


def _agreement(judgement: Judgement, answer: Answer | str) -> str:
    if isinstance(answer, str):
        return "no"
    parts = [
        name
        for name, agreed in (
            ("bound", agrees_on_bound(judgement, answer)),
            ("advice", agrees_on_advice(judgement, answer)),
        )
        if agreed
    ]
    return {2: "yes", 1: f"{''.join(parts)} only", 0: "no"}[len(parts)]


def _undecided(found: Mapping[str, Answer | str]) -> str:
    readable = {file: answer for file, answer in found.items() if isinstance(answer, Answer)}
    left = {file: answer for file, answer in readable.items() if answer.bound == "inconclusive"}
    lines = [
        "",
        "## What stays inconclusive",
        "",
        f"{len(readable)} public traces are PyTorch's or have its form. {BEFORE} of them were called inconclusive",
        f"before this page was begun. {len(left)} are now, for the reasons here.",
        "",
        "| trace | reason |",
        "|---|---|",
    ]
    for file, answer in left.items():
        lines.append(f"| {_short(file)} | {_cell(answer.cause)} |")
    return "\n".join(lines)


def notes(judgements: Sequence[Judgement], found: Mapping[str, Answer | str]) -> str:
    """The facts of each trace, the expert's judgement and ours, by the numbers of the page."""
    lines = ["# Notes on the verdicts of an expert", "", "Written by `python -m benchmarks.verdicts --write`."]
    for number, judgement in enumerate(judgements, 1):
        answer = found[judgement.file]
        bounds = " or ".join([judgement.bound, *judgement.also])
        lines += ["", f"## {number} {_short(judgement.file)}", "", f"`{judgement.file}`: {judgement.kind}.", ""]
        lines += [f"**Facts** {judgement.facts}", "", f"**Judgement** {judgement.judgement}", ""]
        lines += [f"**Expert** {bounds}. First: {judgement.first} (accepted: {', '.join(judgement.advice)})", ""]
        ours = _prose(answer.sentence) if isinstance(answer, Answer) else f"refused: {answer}"
        lines += [f"**Ours** {ours}", "", f"**Agree** {_agreement(judgement, answer)}."]
        if judgement.explained and _agreement(judgement, answer) != "yes":
            lines[-1] += f" {judgement.explained}"
        if judgement.corrected:
            lines += ["", f"**Corrected** {judgement.corrected}"]
    return "\n".join([*lines, ""])


def _short(file: str) -> str:
    """Owner and the last parts of a file's name, so far as they tell traces apart."""
    owner = file.partition("+")[0]
    parts = re.sub(r"\.(pt\.trace\.)?json(\.gz)?$", "", file).split("__")
    return f"{owner}: {' '.join(part[:44] for part in parts[-2:])}"


def _cell(text: str) -> str:
    return _prose(text).replace("|", "\\|")


def _prose(text: str) -> str:
    """Text of ours as Markdown: what looks like a tag or emphasis stays as it is."""
    return re.sub(r"([<>*_])", r"\\\1", text)


def main() -> None:
    """Prints the comparison; renews the page where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only traces whose file name has one of these parts")
    parser.add_argument("--traces", type=Path, default=Path(__file__).parents[2] / "shared" / "traces")
    parser.add_argument("--write", action="store_true", help="renew the page and the notes")
    options = parser.parse_args()
    judgements = read_judgements()
    files = [file.name for file in sorted(options.traces.iterdir()) if ".json" in file.name or file.suffix == ".gz"]
    files = [file for file in files if not options.names or any(part in file for part in options.names)]
    found = answers(files, options.traces)
    for judgement in judgements:
        if judgement.file in found:
            _print_row(judgement, found[judgement.file])
    if options.names:
        return
    agreed = sum(isinstance(answer := found[each.file], Answer) and agrees(each, answer) for each in judgements)
    undecided = [
        file for file, answer in found.items() if isinstance(answer, Answer) and answer.bound == "inconclusive"
    ]
    print(f"{agreed} of {len(judgements)} agree; {len(undecided)} inconclusive:")
    for file in undecided:
        print(f"  {file}: {found[file].sentence}")
    if options.write:
        PAGE.write_text(page(judgements, found), encoding="utf-8")
        NOTES.write_text(notes(judgements, found), encoding="utf-8")


def _print_row(judgement: Judgement, answer: Answer | str) -> None:
    agreement = _agreement(judgement, answer)
    print(f"{agreement:12} {judgement.file[:110]}")
    if agreement != "yes":
        ours = f"{answer.bound} {answer.slug}: {answer.sentence}" if isinstance(answer, Answer) else answer
        print(f"    expert {judgement.bound} {judgement.also} {judgement.advice}\n    ours   {ours}")


if __name__ == "__main__":
    main()
