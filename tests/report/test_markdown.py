"""The markdown report: the same numbers, and no data that becomes markup."""

import re

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from bottleneck.report.analysis_document import to_markdown
from bottleneck.report.document import TableColumn, TableRow, TableSection
from bottleneck.report.markdown import code, prose, table_lines
from bottleneck.schema.analysis import Analysis
from tests.report.samples import HOSTILE_NAMES, SAMPLES, gpu_overhead, hostile
from tests.report.test_text import printed

ALL = pytest.mark.parametrize("analysis", SAMPLES.values(), ids=SAMPLES)
PARSER = MarkdownIt("commonmark").enable("table").enable("strikethrough")
OURS = {
    *("heading_open", "heading_close", "paragraph_open", "paragraph_close", "inline", "text", "strong_open"),
    *("strong_close", "code_inline", "bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close"),
    *("table_open", "table_close", "thead_open", "thead_close", "tbody_open", "tbody_close", "tr_open", "tr_close"),
    *("th_open", "th_close", "td_open", "td_close", "ordered_list_open", "ordered_list_close", "fence"),
}


def tokens(text: str) -> list[Token]:
    """All tokens of a document, those inside paragraphs included."""
    flat = []
    for token in PARSER.parse(text):
        flat += [token, *(token.children or [])]
    return flat


@ALL
def test_only_markup_of_ours_is_in_the_document(analysis: Analysis) -> None:
    assert {token.type for token in tokens(to_markdown(analysis))} <= OURS


@ALL
def test_plain_text_holds_nothing_that_github_would_link_or_mention(analysis: Analysis) -> None:
    for token in tokens(to_markdown(analysis)):
        if token.type == "text":
            assert not re.search(r"@\w|#\d|://|www\.|\$|<[a-z!/]|:\w+:", token.content), token.content


@ALL
def test_every_row_of_a_table_has_the_cells_of_its_head(analysis: Analysis) -> None:
    rows: list[int] = []
    for token in PARSER.parse(to_markdown(analysis)):
        if token.type == "table_open":
            rows = []
        elif token.type == "tr_open":
            rows.append(0)
        elif token.type in {"td_open", "th_open"}:
            rows[-1] += 1
        elif token.type == "table_close":
            assert len(set(rows)) == 1
    assert rows


@ALL
def test_the_ledger_in_markdown_re_adds_to_its_total(analysis: Analysis) -> None:
    lines = to_markdown(analysis).split("### Where the step goes")[1].split("###")[0].splitlines()
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")][1:]
    whole = [row for row in rows[:-1] if not row[0].startswith("&emsp;")]
    assert sum(printed(row[2]) for row in whole) == printed(rows[-1][2])
    assert sum(printed(row[3]) for row in whole) == 100


@pytest.mark.parametrize("text", HOSTILE_NAMES, ids=ascii)
def test_hostile_text_is_text_or_code(text: str) -> None:
    for shown in (prose(text), code(text)):
        assert {token.type for token in tokens(f"- x: {shown}")} <= OURS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("memory-bound, 42.0 % of 1.2 ms (so)", "memory-bound, 42.0 % of 1.2 ms (so)"),
        ("ask @someone now", "ask `@someone` now"),
        ("see #12 and https://example.org", "see `#12` and `https://example.org`"),
        ("a <b> c</b> d", "a `<b> c</b>` d"),
        ("tick ` tock", "tick `` ` `` tock"),
        ("1. first", "`1.` first"),
        ("aten::add_ grows", "`aten::add_` grows"),
        (":tada: deadbeef1", "`:tada: deadbeef1`"),
    ],
)
def test_words_that_could_be_markup_stand_in_code_spans(text: str, shown: str) -> None:
    assert prose(text) == shown


def test_a_pipe_in_a_name_does_not_open_a_cell() -> None:
    assert "a\\|b" in to_markdown(hostile())


def test_a_long_module_path_is_cut_in_the_middle() -> None:
    path = ".".join(["encoder", *(f"part_{number}" for number in range(10)), "attention", "query"])
    table = TableSection("", (TableColumn("module", "place"),), (TableRow((path,)),))
    [*_, row] = table_lines(table)
    assert row == "| encoder.….part_5.part_6.part_7.part_8.part_9.attention.query |"


def test_markdown_tells_kernels_by_longer_names_than_the_terminal() -> None:
    assert "`vectorized_elementwise_kernel<GeluCUDAKernelImpl(float)>`" in to_markdown(gpu_overhead())


def test_a_bracket_and_a_comma_around_names_stay_outside_of_the_code() -> None:
    assert prose("4 ops (aten::_copy, aten::add) at b.py:2") == "4 ops (`aten::_copy`, aten::add) at b.py:2"
    assert prose("f(_x_)") == "`f(_x_)`"
