"""The document of a gate in its three media: the same words, within its width or size, and no name that acts."""

import html
import re

import pytest

from bottleneck.report.ci.gate_document import MARK, MOST_BYTES, build, to_markdown, to_terminal
from bottleneck.report.ci.outputs import GATE_FORMATS
from bottleneck.report.ci.phrases import VERDICTS, asides, headline, story, verdict_and_code, verdict_of
from bottleneck.report.document import ActionSection, FoldedSection
from bottleneck.report.terminal import TerminalStyle
from bottleneck.report.text import clean
from bottleneck.schema.gate_result import Gate, WorkloadResult
from bottleneck.schema.records import replace
from tests.report.gates import COUNTED, COUNTS, GATES, HOSTILE, PASSED, SLOWED, change, equal, gate
from tests.report.page.parsed_page import ParsedPage
from tests.report.test_markdown import OURS, PARSER, tokens

EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
WIDE = TerminalStyle(200)


def words_of(text: str) -> str:
    """The words in sequence; the page quotes what stands between backticks."""
    return " ".join(re.sub("[“”]", "`", clean(text, 50_000)).replace("…", "").split())


def workloads(made: Gate) -> ActionSection:
    section = build(made).sections[0]
    assert isinstance(section, ActionSection)
    return section


@EACH
def test_page_says_what_the_gate_says_of_every_workload(gate: Gate) -> None:
    words = words_of(ParsedPage(GATE_FORMATS["html"].render(gate)).words)
    is_named = len(gate.results) == 1 and gate.results[0].verdict == "fail"  # the headline says what fails
    assert (is_named or words_of(gate.sentence) in words) and verdict_and_code(gate) in words
    for result in gate.results:
        assert words_of(f"{VERDICTS[result.verdict]} {result.name}: {headline(result)}") in words
        for line in [*story(result), *asides(result)]:
            for part in (line.label, line.text, line.code, line.command):
                assert words_of(part) in words, part


@pytest.mark.parametrize("name", sorted(set(GATES) - {"hostile"}))  # of which a log's commands are broken
def test_text_says_what_the_page_says_but_for_the_comparison_of_times(name: str) -> None:
    words = words_of(to_terminal(GATES[name], TerminalStyle(2_000)))
    for result in GATES[name].results:
        for line in [*story(result), *asides(result)]:
            assert all(words_of(part) in words for part in (line.label, line.text, line.code, line.command))
    assert "Where the time went" not in words and VERDICTS[verdict_of(GATES[name])] in words


def test_the_worst_workload_comes_first_and_passes_come_last() -> None:
    leads = [item.lead.split()[0] for item in workloads(GATES["several"]).items]
    assert leads == ["FAIL", "ERROR", "UNDECIDED", "PASS", "PASS"]


def test_evidence_names_its_workload() -> None:
    titles = [section.title for section in build(GATES["slowed"]).sections]
    assert titles == [
        "Workloads",
        "Counters that differ: bench/train_step.py",
        "Where the time went: bench/train_step.py",
    ]


def test_the_command_that_accepts_can_be_copied_whole() -> None:
    (action,) = workloads(GATES["slowed"]).items
    commands = [line.command for line in action.lines if line.command]
    assert [line.label for line in action.lines if line.command] == ["fix", "better"]
    assert commands[0].startswith("bottleneck accept bench/train_step.py --metric h2d")
    for width in (40, 60, 80):
        shown = re.sub(r" \\\n +", " ", to_terminal(GATES["slowed"], TerminalStyle(width)))
        assert all(f"         {command}\n" in shown for command in commands)


def test_several_commands_of_a_page_are_there_to_be_copied() -> None:
    assert GATE_FORMATS["html"].render(GATES["slowed"]).count('class="copy"') == 2


# On a terminal


def obeyed(line: str) -> bool:
    """True if a log could take a line for a command (ActionCommand.cs of actions/runner, and others' '##vso[')."""
    return line.lstrip().startswith("::") or re.search(r"##\w*\[", line) is not None


@EACH
@pytest.mark.parametrize("width", [20, 80])
def test_no_line_is_a_command_of_a_log(gate: Gate, width: int) -> None:
    assert not any(map(obeyed, to_terminal(gate, TerminalStyle(width)).splitlines()))


def test_the_hostile_gate_would_be_obeyed_unescaped() -> None:
    assert any(obeyed(cause.sentence) and obeyed(cause.code) for cause in HOSTILE.why) and obeyed(HOSTILE.name)


@EACH
@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_wider_than_the_terminal_but_a_long_word_of_a_command(gate: Gate, width: int) -> None:
    words = {word for result in gate.results for line in _commands(result) for word in line.split()}
    lines = to_terminal(gate, TerminalStyle(width)).splitlines()
    wide = [line for line in lines if len(line) > width and line.strip().removesuffix(" \\") not in words]
    assert not wide or gate is GATES["hostile"]  # whose words are quoted, with blanks inside


def _commands(result: WorkloadResult) -> list[str]:
    return [line.command for line in [*story(result), *asides(result)]]


@EACH
def test_an_encoding_without_unicode_is_enough(gate: Gate) -> None:
    assert to_terminal(gate, TerminalStyle(encoding="ascii")).isascii()


@EACH
def test_escape_sequences_appear_with_colour_only(gate: Gate) -> None:
    assert "\x1b" not in to_terminal(gate)
    assert "\x1b[" in to_terminal(gate, TerminalStyle(color=True))


def test_a_failure_begins_with_what_why_and_fix() -> None:
    lines = to_terminal(GATES["slowed"], WIDE).splitlines()
    at = lines.index("1. FAIL bench/train_step.py: 4 counters over budget; step +7.6 %; took 91 s")
    assert lines[at + 1 : at + 8] == [
        f"   what  {SLOWED.what}",
        f"   why   {SLOWED.why[0].sentence}",
        f"           {SLOWED.why[0].code}",
        f"   why   {SLOWED.why[1].sentence}",
        f"           {SLOWED.why[1].code}",
        "   fix   undo that, or:",
        f"         {SLOWED.fix.command}",
    ]


def test_a_pass_is_one_line() -> None:
    lines = to_terminal(GATES["passed"], WIDE).splitlines()
    told = "15 counters equal; step +0.4 % (-0.6 % to +1.3 %), could see 1.8 % or more; took 41 s"
    assert lines[:2] == ["PASS bottleneck gate", "examples/mlp.py passed."]
    assert lines[-3:] == [f"1. PASS examples/mlp.py: {told}", "", "PASS, exit code 0."]


def test_a_time_that_only_advises_says_so_and_why() -> None:
    told = "step 18.2 ms to 19.6 ms (advisory): the two recordings did not take turns; took 41 s"
    assert told in to_terminal(GATES["advisory"], WIDE)


def test_a_figure_that_decides_nothing_says_so() -> None:
    told = "FAIL bench/train_step.py: 4 counters over budget; step +2.1 % (undecided); took 12 s"
    assert told in to_terminal(GATES["wavered"], WIDE)


def test_the_verdict_on_all_stands_first_and_last() -> None:
    lines = to_terminal(GATES["several"], WIDE).splitlines()
    assert lines[0] == "GATE · bench/train_step.py" and lines[-1] == "FAIL, exit code 1."
    assert lines[1].startswith("FAIL: step 18.2 ms to 19.6 ms (+7.6 %)") and "at train.py:141, and 3 more" in lines[1]
    assert lines[2] == "First  Undo +2 aten::item at train.py:141, changed here"
    assert lines[3].startswith("All    1 of 5 workloads regressed: bench/train_step.py; 1 of 5")


def test_one_workload_is_not_counted_after_it_was_named() -> None:
    """A gate of one workload ended its answer with 'All 1 of 1 workload regressed: mlp.'."""
    lines = to_terminal(GATES["slowed"], WIDE).splitlines()
    assert lines[3] == "" and "1 of 1" not in to_terminal(GATES["slowed"], WIDE)


def test_counters_that_differ_stand_in_a_table_with_their_limits() -> None:
    lines = [line.split() for line in to_terminal(GATES["counters"]).splitlines()]
    assert ["launches", "303", "→", "327", "(+24)", "+0", "over", "budget"] in lines
    assert ["h2d_bytes", "0", "→", "12.6", "MB", "(+12.6", "MB)", "+0", "over", "budget"] in lines
    assert ["module:decoder.*.launches", "18", "→", "20", "(+2)", "+2", "within", "budget"] in lines
    assert not any(line[:2] == ["ops", "7"] for line in lines)


def test_a_cause_of_several_counters_in_a_row_is_reported_once() -> None:
    table = to_terminal(GATES["counters"]).split("Counters that differ")[1]
    assert table.count("+24 aten::copy_ in decoder.rotary at model/rope.py:88, changed here\n") == 1


def test_what_was_not_compared_and_what_is_unstable_is_reported_with_its_reason() -> None:
    text = to_terminal(GATES["counters"], WIDE)
    assert "not compared: peak_bytes, kernel_names: the lock-file is of sm 8.0, this is sm 9.0" in text
    assert "unstable: allocations: 715..716: the first step of a process allocates once more" in text
    assert "time  not run; no base: this is a shallow clone" in text


def test_unstable_counters_that_only_the_counts_know_are_reported_too() -> None:
    bare = replace(COUNTED, counters=(), verdict="pass")
    assert "unstable: allocations: 715..716" in to_terminal(gate(bare, exit_code=0, sentence="."), WIDE)


def test_what_neither_side_can_know_is_reported_of_a_failure_only() -> None:
    nowhere = change("graphs", None, None, "not compared", reason="nothing was compiled")
    passed = replace(COUNTED, verdict="pass", counters=(*equal("ops"), nowhere), counts=replace(COUNTS, unstable={}))
    assert "1 counter equal; time not run" in to_terminal(gate(passed, exit_code=0, sentence="."), WIDE)
    assert "nothing was compiled" not in to_terminal(gate(passed, exit_code=0, sentence="."), WIDE)
    failed = gate(replace(passed, verdict="fail"), exit_code=1, sentence=".")
    assert "not compared: graphs: nothing was compiled" in to_terminal(failed, WIDE)


def test_an_improvement_names_the_command_that_keeps_it() -> None:
    text = to_terminal(GATES["improved"], WIDE)
    assert "better: launches 311 to 303, d2h_bytes 4 to 0; to keep it:\n" in text
    assert '    bottleneck accept examples/better.py --metric d2h_bytes,launches --reason "…"\n' in text


def test_without_a_lock_file_there_is_nothing_to_accept() -> None:
    unlocked = replace(GATES["improved"].results[0], lock="")
    text = to_terminal(gate(unlocked, exit_code=0, sentence="."), WIDE)
    assert "better: launches 311 to 303, d2h_bytes 4 to 0\n" in text and "bottleneck accept" not in text


def test_a_cause_told_twice_is_reported_once() -> None:
    twice = replace(COUNTED, why=(replace(COUNTED.why[0], sentence="the cause"),) * 2)
    assert to_terminal(gate(twice, exit_code=1, sentence=".")).count("the cause") == 1


def test_a_pass_tells_what_grew_within_its_budget_or_was_accepted() -> None:
    told = "allowed: copies 30 to 31 per step, limit +0: per-head norm (#812)"
    assert told in to_terminal(GATES["improved"], WIDE)


def test_a_crash_says_nothing_of_counters_or_time() -> None:
    text = to_terminal(GATES["crashed"])
    assert "1. ERROR bench/crash.py: took 3.1 s\n" in text
    assert not re.search(r"^ +time ", text, re.MULTILINE) and "Counters that differ" not in text


def test_warnings_of_the_whole_gate_are_reported() -> None:
    assert "\nthe tree has changes that are not committed" in to_terminal(GATES["several"])


def test_many_workloads_that_pass_take_a_line_each() -> None:
    one, many = (
        gate(*[replace(PASSED, name=f"bench/{n}.py") for n in range(count)], exit_code=0, sentence="passed.")
        for count in (2, 30)
    )
    lengths = [len(to_terminal(made, TerminalStyle(120)).splitlines()) for made in (one, many)]
    assert lengths[1] - lengths[0] == 28


def test_one_workload_says_its_base_and_how_long_it_took_once() -> None:
    """Both stood above it and in its own lines."""
    slowed = GATES["slowed"]
    text = to_terminal(replace(slowed, results=(replace(SLOWED, base=slowed.base),)), WIDE)
    assert text.count("base  ") == 1 and text.count("took") == 1
    assert "   base  the lock-file; merge-base" in to_terminal(slowed, WIDE)


# As a comment on a pull request

SUMMARY = re.compile(r"<details><summary>(?:(<code>)?([^<>]*)(?(1)</code>))</summary>\s*")


@EACH
def test_the_mark_stands_first_and_only_there(gate: Gate) -> None:
    lines = to_markdown(gate).splitlines()
    assert lines[0] == MARK
    assert MARK not in lines[1:]


@EACH
def test_only_markup_of_ours_is_in_the_document(gate: Gate) -> None:
    for token in tokens(to_markdown(gate)):
        if token.type == "html_block":
            assert re.fullmatch(rf"{MARK}\s*|</details>\s*|{SUMMARY.pattern}", token.content), token.content
        else:
            assert token.type in OURS


ACTIVE = re.compile(r"@\w|#\d|://|www\.|\$|<[a-z!/]|:\w+:")


@EACH
def test_plain_text_holds_nothing_that_github_would_link_or_mention(gate: Gate) -> None:
    for token in tokens(to_markdown(gate)):
        if token.type == "text":
            assert not ACTIVE.search(token.content), token.content
        summary = SUMMARY.fullmatch(token.content) if token.type == "html_block" else None
        if summary is not None and not summary[1]:  # nothing acts inside of <code>
            assert not ACTIVE.search(html.unescape(summary[2])), token.content


def test_a_hostile_name_in_the_title_of_what_folds_out_is_code_without_a_tag() -> None:
    titles = [SUMMARY.fullmatch(token.content) for token in PARSER.parse(to_markdown(GATES["hostile"]))]
    (title,) = [found for found in titles if found]
    assert title[1] == "<code>" and "&lt;script&gt;" in title[2] and "&lt;/details&gt;" in title[2]


@EACH
def test_what_folds_out_is_closed(gate: Gate) -> None:
    kinds = [token.content for token in PARSER.parse(to_markdown(gate)) if token.type == "html_block"]
    assert sum("<details>" in each for each in kinds) == sum("</details>" in each for each in kinds)


@EACH
def test_tables_are_narrow_enough_for_a_phone(gate: Gate) -> None:
    own = to_markdown(gate).split("Where the time went")[0]
    assert all(line.count("|") - line.count("\\|") == 5 for line in own.splitlines() if line.startswith("| "))


def test_a_failure_tells_its_story_in_sight_and_the_rest_folded() -> None:
    told, _, details = to_markdown(GATES["slowed"]).partition("<details>")
    assert "- what: h2d_copies 0 to 24, h2d_bytes 0 B to 12.6 MB, launches 303 to 327 and 1 more per step" in told
    assert "changed here `cos = torch.cos(angles).to(x.device)`\n" in told
    assert "- fix: undo that, or: `bottleneck accept bench/train_step.py --metric h2d_bytes," in told
    assert "+7.6 % (98 %: +5.1 % to +9.9 %) over 14 pairs" in told
    assert "this run could see 2.4 % or more" in told
    assert "| launches | 303 → 327 (+24) | +0 | over budget |" in details
    assert details.count("- +2 aten::item at train.py:141, changed here\n") == 1
    assert re.search(r"copy +\+1\.10", details)


def test_folders_of_this_run_are_not_reported() -> None:
    assert SLOWED.comparison is not None
    side = replace(SLOWED.comparison.before, path="/tmp/of/this/run")
    moved = replace(SLOWED, comparison=replace(SLOWED.comparison, before=side))
    assert "/tmp/of" not in to_markdown(gate(moved, exit_code=1, sentence="."))


def size(text: str) -> int:
    return len(text.encode())


@pytest.mark.parametrize("result", [SLOWED, PASSED, HOSTILE], ids=["slowed", "passed", "hostile"])
@pytest.mark.parametrize("count", [3, 60, 600])
def test_it_is_never_longer_than_a_comment_may_be(result: object, count: int) -> None:
    results = [replace(result, name=f"bench/{n}.py") for n in range(count)]
    text = to_markdown(gate(*results, exit_code=1, sentence="."))
    assert size(text) <= MOST_BYTES
    assert text.count("bench/") >= count or "cut to fit into a comment: " in text
    assert "## FAIL" in text


def test_evidence_is_cut_before_stories() -> None:
    results = [replace(SLOWED, name=f"bench/{n}.py") for n in range(30)]
    text = to_markdown(gate(*results, exit_code=1, sentence="."))
    assert text.count("- what: ") == 30
    assert 0 < text.count("Where the time went") < 30
    assert "0 workloads and" in text


def test_a_long_table_says_how_much_is_left_out() -> None:
    many = tuple(replace(SLOWED.counters[-4], metric=f"module:m{n}.launches", verdict="broken") for n in range(50))
    assert "and 10 more" in to_markdown(gate(replace(SLOWED, counters=many), exit_code=1, sentence="."))


def test_what_does_not_pass_alone_has_evidence() -> None:
    folds = [section.title for section in build(GATES["several"]).sections if isinstance(section, FoldedSection)]
    assert all(title.endswith(": bench/train_step.py") for title in folds) and len(folds) == 2
