"""The gate's markdown: found again by its mark, short enough for a comment, and no name becomes markup."""

import re

import pytest

from bottleneck.report.ci.gate_markdown import MARK, MOST_BYTES, render
from bottleneck.schema.gate_result import Gate
from bottleneck.schema.records import replace
from tests.report.gates import GATES, HOSTILE, PASSED, SLOWED, gate
from tests.report.test_markdown import OURS, PARSER, tokens

EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
FOLDED = ("<details><summary>Counters that differ", "<details><summary>Where the time went</summary>", "</details>")


@EACH
def test_the_mark_stands_first_and_only_there(gate: Gate) -> None:
    lines = render(gate).splitlines()
    assert lines[0] == MARK
    assert MARK not in lines[1:]


@EACH
def test_only_markup_of_ours_is_in_the_document(gate: Gate) -> None:
    for token in tokens(render(gate)):
        if token.type == "html_block":
            assert token.content.startswith((MARK, *FOLDED)), token.content
            assert re.fullmatch(
                r"<!-- bottleneck-gate -->\s*|</details>\s*|<details><summary>[\w ()]+</summary>\s*", token.content
            )
        else:
            assert token.type in OURS


@EACH
def test_plain_text_holds_nothing_that_github_would_link_or_mention(gate: Gate) -> None:
    for token in tokens(render(gate)):
        if token.type == "text":
            assert not re.search(r"@\w|#\d|://|www\.|\$|<[a-z!/]|:\w+:", token.content), token.content


@EACH
def test_what_folds_out_is_closed(gate: Gate) -> None:
    kinds = [token.content for token in PARSER.parse(render(gate)) if token.type == "html_block"]
    assert sum("<details>" in each for each in kinds) == sum("</details>" in each for each in kinds)


@EACH
def test_tables_are_narrow_enough_for_a_phone(gate: Gate) -> None:
    own = render(gate).split("Where the time went")[0]
    assert all(line.count("|") - line.count("\\|") == 5 for line in own.splitlines() if line.startswith("| "))


def test_a_failure_tells_its_story_in_sight_and_the_rest_folded() -> None:
    text = render(GATES["slowed"])
    story, _, details = text.partition("<details>")
    assert "- **what** h2d_copies 0 → 24, h2d_bytes 0 B → 12.6 MB, launches 303 → 327 and 1 more per step" in story
    assert "changed here `cos = torch.cos(angles).to(x.device)`\n" in story
    assert "- **fix** undo that, or: `bottleneck accept bench/train_step.py --metric h2d_bytes," in story
    assert "this run could see 2.4 % or more" in story
    assert "| launches | 303 → 327 (+24) | +0 | over budget |" in details
    assert re.search(r"copy +\+1\.10", details)


def test_folders_of_this_run_are_not_reported() -> None:
    assert SLOWED.comparison is not None
    side = replace(SLOWED.comparison.before, path="/tmp/of/this/run")
    moved = replace(SLOWED, comparison=replace(SLOWED.comparison, before=side))
    assert "/tmp/of" not in render(gate(moved, exit_code=1, sentence="."))


def test_a_pass_is_one_line() -> None:
    (shown,) = [line for line in render(GATES["passed"]).splitlines() if line][3:]
    told = "15 counters equal; step +0.4 % (-0.6 %, +1.3 %), could see 1.8 % or more; took 41 s"
    assert shown == f"- **PASS** examples/mlp.py: {told}"


def size(text: str) -> int:
    return len(text.encode())


@pytest.mark.parametrize("result", [SLOWED, PASSED, HOSTILE], ids=["slowed", "passed", "hostile"])
@pytest.mark.parametrize("count", [3, 60, 600])
def test_it_is_never_longer_than_a_comment_may_be(result: object, count: int) -> None:
    results = [replace(result, name=f"bench/{n}.py") for n in range(count)]  # type: ignore[type-var]
    text = render(gate(*results, exit_code=1, sentence="."))
    assert size(text) <= MOST_BYTES
    told = text.count("bench/")
    assert told >= count or "*Cut to fit into a comment: " in text
    assert "bottleneck gate: FAIL" in text


def test_details_are_cut_before_stories() -> None:
    results = [replace(SLOWED, name=f"bench/{n}.py") for n in range(30)]
    text = render(gate(*results, exit_code=1, sentence="."))
    assert text.count("- **what**") == 30
    assert 0 < text.count("Where the time went") < 30
    assert "0 workloads, details of" in text


def test_a_long_table_says_how_much_is_left_out() -> None:
    many = tuple(replace(SLOWED.counters[-4], metric=f"module:m{n}.launches", verdict="broken") for n in range(50))
    assert "and 10 more" in render(gate(replace(SLOWED, counters=many), exit_code=1, sentence="."))
