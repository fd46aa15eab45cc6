"""Holds predicted gains and step times against those that others published.

python -m benchmarks.published              prints the tables and the score
python -m benchmarks.published 24 38        of these items only
python -m benchmarks.published --write      and writes the score and the tables (PAGE, TABLES)

Some programs take their models from configurations of `transformers` and `diffusers`, without weights:

pip install transformers diffusers

Without a package its cases are left out, with the reason. With --keep FOLDER the op calls of the steps are kept there,
so that the next prices need no program.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.pages import write_between_markers
from benchmarks.published.predicted import HeldCase, hold
from benchmarks.published.score import CHANGE, Score, score
from benchmarks.published.stated import read_cases
from bottleneck.report.predicted_changes import verdict_words
from bottleneck.units import format_share

PAGE = Path(__file__).parents[2] / "docs/explanation/published.md"
TABLES = Path(__file__).parents[1] / "results" / "published.md"
_US_PER_MS = 1e3


def main() -> None:
    """Records, prices, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", type=int, nargs="*")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--write", action="store_true")
    wanted = parser.parse_args()
    held = []
    for case in read_cases():
        if wanted.items and case.item not in wanted.items:
            continue
        if case.lacks:
            print(f"item {case.item} ({case.file.name}) is left out: {', '.join(case.lacks)} is not installed")
            continue
        held.append(hold(case, wanted.keep))
        print(f"item {case.item} ({case.file.name}) is priced")
    parts = {
        "gains": gains_table(held),
        "times": times_table(held),
        "pipelines": pipelines_table(held),
        "score": score_table(held),
        "refused": refusals(held),
    }
    for text in parts.values():
        print(f"\n{text}")
    if wanted.write:
        for name, text in parts.items():
            write_between_markers(PAGE if name == "score" else TABLES, name, text)


def gains_table(held: Sequence[HeldCase]) -> str:
    """Each stated gain beside the predicted one."""
    rows = [
        f"| {one.case.item} {one.case.file.stem} | {one.case.device} | {gain.stated.before} → {gain.stated.after} "
        f"| {gain.stated.gain:.2f} | {gain.predicted.speedup:.2f} "
        f"({gain.predicted.interval.low:.2f} to {gain.predicted.interval.high:.2f}) | "
        f"{verdict_words(gain.verdict, gain.predicted.speedup)} "
        f"| {'yes' if gain.is_inside else 'no'} |"
        for one in held
        for gain in one.gains
    ]
    head = "| case | device | change | stated | predicted | verdict | inside |\n" + "| --- " * 7 + "|"
    return "\n".join((head, *rows))


def times_table(held: Sequence[HeldCase]) -> str:
    """Each stated time beside the predicted one."""
    rows = [
        f"| {one.case.item} {one.case.file.stem} | {one.case.device} | {name} | {time.stated_us / _US_PER_MS:.3g} "
        f"| {time.predicted_us / _US_PER_MS:.3g} | {time.predicted_us / time.stated_us:.2f} |"
        for one in held
        for name, time in one.times.items()
    ]
    head = "| case | device | step | stated (ms) | predicted (ms) | ratio |\n" + "| --- " * 6 + "|"
    return "\n".join((head, *rows))


def pipelines_table(held: Sequence[HeldCase]) -> str:
    """Each stated time of a whole pipeline beside the predicted one of the step that the program has."""
    rows = [
        f"| {one.case.item} {one.case.file.stem} | {name} | {stated_us / _US_PER_MS:.3g} "
        f"| {work.us() / _US_PER_MS:.3g} | {(stated_us - work.us()) / _US_PER_MS:.3g} |"
        for one in held
        for name, work in one.steps.items()
        if not one.case.is_step and (stated_us := one.case.steps[name].us) is not None
    ]
    head = "| case | step | whole, stated (ms) | step, predicted (ms) | left (ms) |\n" + "| --- " * 5 + "|"
    return "\n".join((head, *rows))


def score_table(held: Sequence[HeldCase]) -> str:
    """The score of all cases."""
    total: Score = score(
        [gain for one in held for gain in one.gains], [time for one in held for time in one.times.values()]
    )
    rows = (
        ("stated gain inside the predicted interval", total.inside, total.gains),
        (f"right sign where the stated change is above {format_share(CHANGE)}", total.right, total.signs),
        ("nothing or a loss where nothing was gained", total.nothing, total.negatives),
        ("time of the step within a fifth", total.near, total.times),
    )
    lines = [f"| {name} | {count} of {of} | {format_share(count / of) if of else ''} |" for name, count, of in rows]
    width = f"| upper end over lower end of the interval, in the median | {total.width:.2f} | |"
    return "\n".join(("| | | |\n| --- | --- | --- |", *lines, width))


def refusals(held: Sequence[HeldCase]) -> str:
    """The steps without a price, with the reason."""
    lines = [
        f"- {one.case.item} {one.case.file.stem}, {name}: {reason}"
        for one in held
        for name, reason in one.refused.items()
    ]
    return "\n".join(lines) or "Every step has a price."


if __name__ == "__main__":
    main()
