"""The terminal report: honest sums, any width, any encoding, no escape sequences that nobody asked for."""

import io
import re

import pytest
from rich.cells import cell_len

from bottleneck.report.analysis_document import to_terminal
from bottleneck.report.document import TableColumn, TableRow, TableSection, columns
from bottleneck.report.terminal import TerminalStyle, stream_style, table_lines
from bottleneck.schema.analysis import Analysis
from tests.report.samples import SAMPLES, cpu, empty, gpu_overhead, hostile, inconclusive, multi_rank
from tests.report.test_text import printed

ALL = pytest.mark.parametrize("analysis", SAMPLES.values(), ids=SAMPLES)
NUMBERS = re.compile(r"(<?[\d.,]+) {2,}([<>]?[\d.,]+ %)(?: {2}|$)")


def section(text: str, title: str) -> list[str]:
    """The lines of a section, without its title."""
    blocks = [block.splitlines() for block in text.split("\n\n")]
    return next(lines[1:] for lines in blocks if lines[0].startswith(title))


def times_and_shares(lines: list[str]) -> list[tuple[str, str, str]]:
    """(line, time, share) of each line that shows both."""
    return [(line, found[1], found[2]) for line in lines if (found := NUMBERS.search(line))]


@ALL
def test_the_ledger_on_screen_re_adds_to_its_total(analysis: Analysis) -> None:
    *rows, total = times_and_shares(section(to_terminal(analysis), "Where the step goes"))
    whole = [row for row in rows if not row[0].startswith("    ")]
    assert total[2] == "100.0 %" and whole
    assert sum(printed(time) for _, time, _ in whole) == printed(total[1])
    assert sum(printed(share) for _, _, share in whole) == 100


@ALL
def test_the_accounts_of_a_group_on_screen_re_add_to_the_group(analysis: Analysis) -> None:
    groups: list[list[tuple[str, str, str]]] = []
    for row in times_and_shares(section(to_terminal(analysis), "Where the step goes"))[:-1]:
        groups = [*groups[:-1], [*groups[-1], row]] if row[0].startswith("    ") else [*groups, [row]]
    for head, *parts in groups:
        if parts:
            assert sum(printed(time) for _, time, _ in parts) == printed(head[1])
            assert sum(printed(share) for _, _, share in parts) == printed(head[2])


@pytest.mark.parametrize("title", ["Top", "Why"])
@pytest.mark.parametrize("analysis", [gpu_overhead(), cpu()], ids=["gpu", "cpu"])
def test_kernels_and_idle_causes_on_screen_re_add_to_their_totals(analysis: Analysis, title: str) -> None:
    *rows, total = times_and_shares(section(to_terminal(analysis), title))
    assert sum(printed(time) for _, time, _ in rows) == printed(total[1])
    assert sum(printed(share) for _, _, share in rows) == printed(total[2])


def test_the_times_of_a_rank_on_screen_re_add_to_its_wall_time() -> None:
    rows = [line.split() for line in section(to_terminal(multi_rank()), "Ranks")[1:5]]
    assert [sum(map(printed, row[4:])) for row in rows] == [printed(row[2]) for row in rows]


@ALL
@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_is_wider_than_the_terminal(analysis: Analysis, width: int, encoding: str) -> None:
    style = TerminalStyle(width, encoding=encoding)
    lines = [line for line in to_terminal(analysis, style).splitlines() if not line.startswith("details: ")]
    # No word of a command is broken: its halves would be two.
    commands = " ".join(style.text(finding.verify or "", 2000) for finding in analysis.findings)
    whole = [line for line in lines if line.strip().removeprefix("try   ").removesuffix(" \\") in commands]
    widest = max(cell_len(line) for line in lines if line not in whole or width < 40)
    assert widest <= max(width, 2)  # a wide character takes two cells even where there is one


@ALL
def test_lines_carry_no_space_at_their_end(analysis: Analysis) -> None:
    assert not [line for line in to_terminal(analysis).splitlines() if line != line.rstrip()]


@ALL
def test_a_pipe_gets_no_escape_sequences(analysis: Analysis) -> None:
    text = to_terminal(analysis)
    assert "\x1b" not in text
    assert text.replace("\n", "").isprintable()


def test_color_comes_as_escape_sequences_of_ours_only() -> None:
    text = to_terminal(hostile(), TerminalStyle(color=True))
    assert "\x1b[1m" in text or "\x1b[1;" in text
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == to_terminal(hostile())


def test_a_stream_is_coloured_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert stream_style(io.StringIO()).color
    monkeypatch.setenv("NO_COLOR", "1")
    assert not stream_style(io.StringIO()).color


@ALL
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
def test_an_old_encoding_gets_only_characters_that_it_has(analysis: Analysis, encoding: str) -> None:
    text = to_terminal(analysis, TerminalStyle(encoding=encoding))
    text.encode(encoding)
    assert not set(text) & set("█▓░▚─·•…")


def test_groups_differ_in_shape_so_that_the_bar_reads_without_color() -> None:
    bar = section(to_terminal(multi_rank()), "Where the step goes")[0]
    assert len(bar) == 80 and set(bar) == set("█▓░▚")
    assert set(section(to_terminal(multi_rank(), TerminalStyle(encoding="ascii")), "Where the step goes")[0]) == set(
        "#=-+"
    )


def test_a_group_too_small_for_a_cell_still_has_one() -> None:
    assert section(to_terminal(cpu()), "Where the step goes")[0].endswith("·")


def test_the_verdict_comes_first_and_the_next_step_last() -> None:
    text = to_terminal(gpu_overhead()).splitlines()
    assert text[0] == "OVERHEAD-BOUND · train · NVIDIA H100 80GB HBM3 · 10 steps · 2026-03-02"
    assert text[1].startswith("Overhead holds this step back")
    ending = " ".join(text[text.index("details: bottleneck report recordings/train --format json (or markdown)") + 1 :])
    assert ending.startswith(" OVERHEAD-BOUND: Overhead holds this step back") and " First: " in ending


def test_a_narrow_terminal_gets_a_list_that_says_the_same() -> None:
    narrow = " ".join(to_terminal(gpu_overhead(), TerminalStyle(40)).split())
    assert "input waiting for input data, ms 5.12, share 42.1 %" in narrow
    assert "TFLOP/s 810, GB/s 330, of roof 81.8 %, bound compute" in narrow


def test_markup_in_a_kernel_name_is_shown_as_text() -> None:
    assert "rich[/]markup[bold red]x[/bold red]" in " ".join(to_terminal(hostile(), TerminalStyle(200)).split())


def test_kernels_that_do_not_fit_are_folded_into_one_row() -> None:
    assert re.search(r"^ {2}5 more +359", to_terminal(gpu_overhead()), re.MULTILINE)
    assert " more " not in to_terminal(cpu())


def test_confidence_below_high_is_marked_and_explained() -> None:
    assert re.search(r"gelu 512x4096.*memory[?]$", to_terminal(gpu_overhead()), re.MULTILINE)
    assert "?: medium, ??: low confidence" in to_terminal(gpu_overhead())
    assert "?" not in to_terminal(multi_rank())


def test_what_is_not_known_is_said_and_not_shown_as_zero() -> None:
    text = to_terminal(inconclusive())
    assert "not known for this device" in text
    assert re.search(r"mystery +880.0 +88.0 % +1,136 +1.14 +- +-$", text, re.MULTILINE)


def test_a_step_in_which_nothing_ran_has_no_table_of_kernels() -> None:
    assert "Top kernels" not in to_terminal(empty())
    assert "Top kernels" in to_terminal(gpu_overhead())


def test_no_line_breaks_between_a_number_and_its_unit() -> None:
    unit_first = re.compile(r"^\s*(?:%|ms|us|TFLOP/s|TB/s|MHz|W)\b(?! [<\d]| +share)", re.MULTILINE)
    for width in range(60, 100):
        assert not unit_first.search(to_terminal(gpu_overhead(), TerminalStyle(width)))


def test_a_notebook_gets_the_text_and_nothing_is_displayed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = to_terminal(gpu_overhead())
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert to_terminal(gpu_overhead()) == plain != ""
    assert capsys.readouterr().out == ""


def test_a_column_that_may_move_stands_beneath_the_rows_where_names_would_be_cut_short() -> None:
    name = "mkldnn_convolution 16x3x32x32, 16x3x3x3"
    rows = (TableRow((name, "1.0", "oneDNN"), details=("1 call",)), TableRow(("mine", "2.0", "-")))
    heads = columns("name", "op") + columns("number", "us") + (TableColumn("library", "words", may_move=True),)
    table = TableSection("Ops", heads, rows)
    wide = [line.plain for line in table_lines(table, TerminalStyle(60))]
    assert wide[0].split() == ["op", "us", "library"] and wide[1].split()[-1] == "oneDNN"
    long = TableSection("Ops", heads, (TableRow((name, "1" * 20, "oneDNN"), details=("1 call",)), rows[1]))
    lines = [line.plain for line in table_lines(long, TerminalStyle(62))]
    assert lines[0].split() == ["op", "us"]
    assert lines[2].strip() == "1 call · library oneDNN"
    assert len(lines) == 4  # a dash says nothing, and has no line
