"""The document of a gate says what its text says, and is the page's."""

import pytest

from bottleneck.report.ci.gate_document import build
from bottleneck.report.ci.outputs import GATE_FORMATS
from bottleneck.report.ci.phrases import VERDICTS, asides, closing, headline, story, verdict_of
from bottleneck.report.text import clean
from bottleneck.schema.gate_result import Gate
from tests.report.gates import GATES
from tests.report.page.parsed_page import ParsedPage

EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)


def words_of(text: str) -> str:
    return " ".join(clean(text, 50_000).replace("…", "").split())


@EACH
def test_page_says_what_the_text_says_of_every_workload(gate: Gate) -> None:
    words = words_of(ParsedPage(GATE_FORMATS["html"].render(gate)).words)
    assert words_of(closing(gate)) in words and VERDICTS[verdict_of(gate)] in words
    for result in gate.results:
        assert words_of(f"{VERDICTS[result.verdict]} {result.name}") in words
        assert words_of(headline(result)) in words
        for label, text in [*story(result), *asides(result)]:
            phrase, _, command = text.partition("bottleneck accept ")
            for part in (label, *phrase.split("  "), command):
                assert words_of(part) in words, part


def test_the_worst_workload_comes_first_and_passes_come_last() -> None:
    (workloads, *_) = build(GATES["several"]).sections
    leads = [item.lead.split()[0] for item in workloads.items]  # type: ignore[union-attr]
    assert leads == ["FAIL", "ERROR", "UNDECIDED"]
    ((title, passed),) = workloads.groups  # type: ignore[union-attr]
    assert title == "Passed" and [item.lead.split()[0] for item in passed] == ["PASS", "PASS"]


def test_evidence_names_its_workload() -> None:
    titles = [section.title for section in build(GATES["slowed"]).sections]
    assert titles[:2] == ["Workloads", "Counters that differ: bench/train_step.py"]
    assert "Where the change comes from: bench/train_step.py" in titles


def test_the_command_that_accepts_can_be_copied_whole() -> None:
    (workloads, *_) = build(GATES["slowed"]).sections
    (action,) = workloads.items  # type: ignore[union-attr]
    assert action.command is not None and action.command.startswith(
        "bottleneck accept bench/train_step.py --metric h2d"
    )
