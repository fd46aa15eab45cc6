"""Patches with a known effect, and the same sources twice, judged as `bottleneck judge` does.

python -m benchmarks.patches [--runs 3] [--first-run 0] [--only NAME] [--results FILE]
python -m benchmarks.patches --same 50 [--of PROGRAM] [--results FILE]
python -m benchmarks.patches --recorded 2000
python -m benchmarks.patches --table --results FILE [--write benchmarks/results/patches.md]

Each patch changes a few lines of a program of examples/ or benchmarks/corpus. Four make it faster, two of them by about
two percent; four do nothing; two compute something else; one takes more memory; one moves syncs to another line. The
thirteenth gains about one percent, the smallest change that `judge` looks for unless told otherwise. With
`--same` a step is judged against itself, each of four programs in turn or that of `--of`: every verdict of faster or
slower is wrong. A line of the file is one judgement, so that runs of several sessions add up. `--recorded` measures
nothing: it judges so many sequences of pairs of the same sources that `benchmarks.gate` measured beside other programs
(gate_runs.jsonl), in whole runs drawn at random, as they are and with a change added to each pair.
"""

import argparse
import json
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pages import write_between_markers
from bottleneck.experiment.side import Side
from bottleneck.experiment.turns import TimingEffort, time_in_pairs
from bottleneck.harness.messages import Program
from bottleneck.harness.target import make_program
from bottleneck.judge.judge_patch import JudgeEffort, JudgeRun, judge_patch
from bottleneck.judge.sides import PatchSides, differing_lines
from bottleneck.schema.judgement import WorkloadJudgement
from bottleneck.schema.statistics import LOOKS, Batches, ChangeRule, ProcessPair, judge_pairs, take_batches
from bottleneck.units import format_share

ROOT = Path(__file__).parents[1]
CORPUS = "benchmarks/corpus/workloads"
Edits = Mapping[str, str]


@dataclass(frozen=True)
class KnownPatch:
    """A patch of a program, and what is true of it.

    ``before`` are edits that plant what the patch takes out, ``after`` those of the patch: old text by new.
    ``verdicts`` are the right ones on its time.
    """

    name: str
    program: str
    after: Edits
    verdicts: tuple[str, ...]
    is_same: bool = True
    before: Edits | None = None
    shows: str = ""


_AS_THEY_ARE, _COPIED = "model(inputs), labels)", "model(inputs.clone()), labels.clone())"
_GREEDY, _SAMPLED = "head(x[:, -1]).argmax", "(head(x[:, -1]) / 1.0).softmax(-1).argmax"
_ENCODED = "self.encoder(self.embedding(tokens))"
_CHECKPOINT = "torch.utils.checkpoint.checkpoint(self.encoder, self.embedding(tokens), use_reentrant=False)"
_CUBIC = "0.7978845608 * (x + 0.044715 * x * x * x)"
_READ = "                said.append(last[0, 0].item())\n"
_LOOP = "            for _ in range(tokens):\n"
_GELU = f"0.5 * x * (1.0 + torch.tanh({_CUBIC}))"
_ANY = ("faster", "no difference", "slower")

PATCHES: tuple[KnownPatch, ...] = (
    KnownPatch(
        "one gelu instead of eight ops",
        f"{CORPUS}/autoencoder.py",
        {_GELU: 'nn.functional.gelu(x, approximate="tanh")'},
        ("faster",),
        shows="fewer",
    ),
    KnownPatch(
        "the optimizer in one call",
        "examples/small_network.py",
        {"lr=1e-3)": "lr=1e-3, fused=True)"},
        ("faster",),
        shows="fewer",
    ),
    KnownPatch(
        "no copies of what the model reads",
        "examples/mlp.py",
        {_COPIED: _AS_THEY_ARE},
        ("faster",),
        before={_AS_THEY_ARE: _COPIED},
        shows="fewer",
    ),
    KnownPatch(
        "no temperature of one before the largest is taken",
        f"{CORPUS}/cached_decoding.py",
        {_SAMPLED: _GREEDY},
        ("faster",),
        before={_GREEDY: _SAMPLED},
        shows="fewer",
    ),
    KnownPatch(
        "a comment",
        f"{CORPUS}/cached_decoding.py",
        {"    def step()": "    # one token after the other\n    def step()"},
        ("no difference",),
    ),
    KnownPatch("another name", "examples/mlp.py", {"labels": "wanted"}, ("no difference",)),
    KnownPatch(
        "an argument's default, written", "examples/mlp.py", {"nn.ReLU()": "nn.ReLU(inplace=False)"}, ("no difference",)
    ),
    KnownPatch(
        "two lines in another order",
        "examples/small_network.py",
        {
            "        optimizer.zero_grad()\n        loss = nn.functional.mse_loss(model(samples), wanted)\n": (
                "        loss = nn.functional.mse_loss(model(samples), wanted)\n        optimizer.zero_grad()\n"
            )
        },
        ("no difference",),
    ),
    KnownPatch(
        "gelu without its cubic term",
        f"{CORPUS}/autoencoder.py",
        {_CUBIC: "0.7978845608 * x"},
        ("faster",),
        is_same=False,
    ),
    KnownPatch("another learning rate", "examples/mlp.py", {"lr=0.01": "lr=0.0101"}, _ANY, is_same=False),
    KnownPatch(
        "activations kept instead of computed again",
        "examples/transformer.py",
        {_CHECKPOINT: _ENCODED},
        ("faster",),
        before={_ENCODED: _CHECKPOINT, "import torch\n": "import torch\nimport torch.utils.checkpoint\n"},
        shows="more peak memory",
    ),
    KnownPatch(
        "tokens read at the start of the loop",
        f"{CORPUS}/cached_decoding.py",
        {_READ: "", _LOOP: f"{_LOOP}{_READ}"},
        ("no difference",),
        shows="moved",
    ),
    KnownPatch(
        "no copy of the labels, of one percent",
        "examples/mlp.py",
        {"labels.clone())": "labels)"},
        ("faster",),
        before={"(inputs), labels)": "(inputs), labels.clone())"},
        shows="fewer",
    ),
)
_SAME = ("examples/mlp.py", "examples/small_network.py", f"{CORPUS}/autoencoder.py", f"{CORPUS}/cached_decoding.py")


def edited(text: str, edits: Edits | None) -> str:
    """The text with each edit made; an edit that does not fit is an error."""
    for old, new in (edits or {}).items():
        if old not in text:
            raise ValueError(f"the program no longer holds {old!r}")
        text = text.replace(old, new)
    return text


def judge(patch: KnownPatch, seed: int, budget_s: float) -> WorkloadJudgement:
    """The judgement of one patch, in folders of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        sides, name = {}, Path(patch.program).name
        before = edited((ROOT / patch.program).read_text(), patch.before)
        for label, text in (("base", before), ("changed", edited(before, patch.after))):
            folder = Path(scratch) / label
            folder.mkdir()
            (folder / name).write_text(text)
            sides[label] = Side(label, folder)
        lines = differing_lines(sides["base"].folder, sides["changed"].folder)
        both = PatchSides(sides["base"], sides["changed"], lines)
        program = Program(name, form=make_program(str(sides["base"].folder / name)).form)
        effort = JudgeEffort(budget_s, seed=seed)
        run = JudgeRun(both, sides["base"].folder, Path(scratch) / "work", effort, say=lambda _: None)
        return judge_patch(run, [program]).results[0]


def is_right(patch: KnownPatch, row: Mapping[str, Any]) -> bool:
    """Whether the verdict on time and results is that which is known, and the line shows the rest."""
    return row["verdict"] in patch.verdicts and row["is_same"] is patch.is_same and patch.shows in row["sentence"]


def judge_same(number: int, budget_s: float, program: str = "") -> dict[str, Any]:
    """The verdict on a step against itself."""
    path = ROOT / (program or _SAME[number % len(_SAME)])
    side = Side("the same", path.parent)
    effort = TimingEffort(time_limit_s=budget_s, seed=number, pairs_at_most=LOOKS[6], change=ChangeRule())
    timed = time_in_pairs(Program(path.name, form=make_program(str(path)).form), side, side, effort)
    ratio = None if timed.ratio is None else [timed.ratio.median, timed.ratio.low, timed.ratio.high]
    return {
        "same": path.stem,
        "verdict": timed.verdict,
        "reason": timed.reason,
        "visible": timed.smallest_visible,
        "ratio": ratio,
        "pairs": len(timed.pairs),
        "seconds": timed.seconds,
    }


RECORDED = Path(__file__).with_name("gate_runs.jsonl")


def recorded(count: int) -> list[str]:
    """The verdicts on pairs that were measured before, with no change, one of two and one of five percent."""
    rows = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    runs = [row["pairs"] for row in rows if row["slowdown"] == 0]
    draw, lines = random.Random(0), ["| change added | verdicts | pairs |", "|---|---|---|"]
    for gain in (0.0, 0.02, 0.05):
        reached: Counter[str] = Counter()
        taken = 0
        for _ in range(count):
            sign = draw.choice((1.0, -1.0))
            logs = iter([sign * log - math.log1p(gain) for run in draw.sample(runs, _RUNS_DRAWN) for log in run])
            batches = Batches()
            take_batches(batches, partial(_next_pair, logs), ChangeRule(), LOOKS[:7])
            reached[judge_pairs(batches, ChangeRule()).verdict] += 1
            taken += len(batches.pairs)
        words = ", ".join(f"{number} {_NAMES.get(name, name)}" for name, number in reached.most_common())
        lines.append(f"| {100 * gain:.0f} % faster | {words} | {taken / count:.1f} |")
    return [*lines, "", f"From {sum(map(len, runs)):,} pairs of {len(runs)} runs, {count:,} judgements each."]


_RUNS_DRAWN = 20
_NAMES = {"fine": "no difference"}


def _next_pair(logs: Iterator[float]) -> ProcessPair:
    log = next(logs)
    return ProcessPair(log, 1000.0, 1000.0 * math.exp(log))


def _write(results: Path | None, row: Mapping[str, Any]) -> None:
    line = json.dumps(row)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    if results is not None:
        with results.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _show(lines: Sequence[str], page: Path | None, name: str) -> None:
    if page is None:
        sys.stdout.write("\n".join(lines) + "\n")
    else:
        write_between_markers(page, name, "\n".join(lines))


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of all judgements in a file of results."""
    lines = ["| patch | right | lines of the verdict |", "|---|---|---|"]
    for patch in PATCHES:
        runs = [row for row in rows if row.get("patch") == patch.name]
        if runs:
            right = sum(is_right(patch, row) for row in runs)
            lines.append(f"| {patch.name} | {right} of {len(runs)} | {'<br>'.join(row['sentence'] for row in runs)} |")
    same = [row for row in rows if "same" in row]
    if same:
        reached = Counter(row["verdict"] for row in same)
        wrong = reached["faster"] + reached["slower"]
        words = ", ".join(f"{count} {_NAMES.get(name, name)}" for name, count in reached.most_common())
        lines += [
            "",
            f"The same sources twice: {wrong} of {len(same)} called a change ({format_share(wrong / len(same))}); "
            f"{words}.",
        ]
    return lines


def main() -> None:
    """Judges, or prints the table of what was judged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--first-run", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--same", type=int, default=0)
    parser.add_argument("--of", default="")
    parser.add_argument("--recorded", type=int, default=0)
    parser.add_argument("--budget", type=float, default=300.0)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.table:
        rows = [json.loads(line) for line in options.results.read_text(encoding="utf-8").splitlines()]
        _show(table(rows), options.write, "patches")
        return
    if options.recorded:
        _show(recorded(options.recorded), options.write, "recorded pairs")
        return
    for number in range(options.same):
        _write(options.results, judge_same(number, options.budget, options.of))
    chosen = [patch for patch in PATCHES if options.only in patch.name] if not options.same else []
    for seed in range(options.first_run, options.first_run + options.runs):
        for patch in chosen:
            result = judge(patch, seed, options.budget)
            row = {"patch": patch.name, "run": seed, "verdict": result.verdict, "is_same": result.is_same}
            _write(options.results, {**row, "sentence": result.sentence, "seconds": round(result.seconds)})


if __name__ == "__main__":
    main()
