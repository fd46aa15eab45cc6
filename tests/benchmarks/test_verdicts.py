"""The judgements by hand can be read, the page repeats them, and enough of ours agree with them."""

import re
from pathlib import Path

from benchmarks import verdicts
from benchmarks.verdicts import PLAIN_WORDS, Answer, Judgement, agrees_on_advice, agrees_on_bound, read_judgements

ROOT = Path(__file__).parents[2]
BOUNDS = {"compute", "memory", "overhead", "communication", "transfer", "device", "mixed", "inconclusive"}


def judgement(
    bound: str = "compute", also: tuple[str, ...] = (), advice: tuple[str, ...] = ("half-precision",)
) -> Judgement:
    return Judgement("trace.json", "hand-made", "facts", "judgement", bound, advice, "first", also)


def answer(bound: str = "compute", slug: str = "half-precision", step: str = "use bf16") -> Answer:
    return Answer(bound, 0.9, step, slug, f"Held back. First: {step}.", "")


def test_a_judgement_names_one_trace_a_known_bound_and_advice_that_exists() -> None:
    found = read_judgements()
    findings = (ROOT / "docs/reference/findings.md").read_text(encoding="utf-8")
    assert len({each.file for each in found}) == len(found) >= 30
    for each in found:
        assert {each.bound, *each.also} <= BOUNDS, each.file
        assert each.advice
        assert [name for name in each.advice if name not in PLAIN_WORDS and f"### {name}\n" not in findings] == []


def test_the_facts_of_an_expert_import_nothing_of_this_package() -> None:
    source = (ROOT / "benchmarks/expert_facts.py").read_text(encoding="utf-8")
    assert "import bottleneck" not in source
    assert "from bottleneck" not in source


def test_the_page_and_its_notes_repeat_the_judgements() -> None:
    page, notes = (file.read_text(encoding="utf-8") for file in (verdicts.PAGE, verdicts.NOTES))
    rows = [line.split(" | ") for line in page.splitlines() if re.match(r"\| \d+ \| ", line)]
    found = read_judgements()
    assert [(row[2], row[3]) for row in rows] == [(each.kind, " or ".join([each.bound, *each.also])) for each in found]
    assert all(each.judgement in notes and each.facts in notes for each in found)
    assert [int(number) for number in re.findall(r"^## (\d+) ", notes, re.MULTILINE)] == list(range(1, len(rows) + 1))


def test_another_bound_agrees_only_where_the_facts_admit_it() -> None:
    assert agrees_on_bound(judgement(also=("device",)), answer("device"))
    assert not agrees_on_bound(judgement(), answer("device"))


def test_advice_agrees_by_the_name_of_its_finding_or_by_the_words_of_the_expert() -> None:
    assert agrees_on_advice(judgement(), answer())
    assert agrees_on_advice(judgement(advice=("evaluation-mode",)), answer(slug="", step="call model.eval()"))
    assert not agrees_on_advice(judgement(advice=("evaluation-mode",)), answer())
    assert not agrees_on_advice(judgement(), answer(slug="larger-batch", step="raise the batch size"))
