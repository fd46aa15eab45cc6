"""Check-ups as text and JSON: readable at any width, in any character set, safe whatever the rows hold."""

import json
import re

import pytest
from rich.cells import cell_len

from bottleneck import __version__
from bottleneck.report.checkup import render
from bottleneck.report.terminal import TerminalStyle
from bottleneck.report.text import clean
from bottleneck.schema.checks import Check, Checkup, at_fault, tally
from tests.report.page.parsed_page import ParsedPage

EVIL = "evil \x1b[31m\x07 [/] \u202e$\\frac{ </script>"
ROWS = (
    Check("file", "the file", "events", "ok", "9,339 events"),
    Check(
        "json",
        "the file",
        "JSON",
        "limited",
        "3 events were repaired",
        "why it is so",
        "do this",
        "bottleneck run FILE",
        0.5,
        True,
    ),
    Check(
        "lines",
        "for a full report",
        "a title that is far too long for its column",
        "missing",
        "nothing " * 30,
        command="x " * 80,
    ),
    Check("evil", "for a full report", EVIL, "unknown", EVIL, EVIL, EVIL),
)
CHECKUP = Checkup("trace", "trace.json", "damaged", "Usable, but not whole: JSON.", ROWS)


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_every_width_and_character_set_shows_each_row(width: int, encoding: str) -> None:
    text = render([CHECKUP], "terminal", TerminalStyle(width, encoding=encoding))
    flat = "".join(text.split())
    for word in ("ok", "limited", "missing", "unknown", "9,339events", "whyitisso", "dothis"):
        assert word in flat
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    text.encode(encoding)


@pytest.mark.parametrize("width", [40, 80])
def test_lines_fit_the_width_but_for_commands(width: int) -> None:
    long = [line for line in render([CHECKUP], "terminal", TerminalStyle(width)).splitlines() if cell_len(line) > width]
    assert all(line.strip().startswith(("fix: x x", "x x")) for line in long)


def test_a_command_is_never_broken() -> None:
    assert "fix: " + ("x " * 80).strip() in render([CHECKUP], "terminal", TerminalStyle(40))


def test_colour_is_added_only_where_it_is_wanted_and_says_nothing_alone() -> None:
    plain, colored = render([CHECKUP], "terminal"), render([CHECKUP], "terminal", TerminalStyle(color=True))
    assert "\x1b[" in colored
    strip = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in strip.splitlines()] == [line.rstrip() for line in plain.splitlines()]


def test_several_check_ups_stand_apart() -> None:
    assert "\n\nDAMAGED: trace.json" in render([CHECKUP, CHECKUP], "terminal")


def test_the_json_has_its_schema_and_every_row() -> None:
    document = json.loads(render([CHECKUP], "json"))
    assert (document["schema"], document["version"]) == ("bottleneck/doctor/1", __version__)
    (checkup,) = document["checkups"]
    assert [row["slug"] for row in checkup["checks"]] == [row.slug for row in ROWS]
    assert checkup["checks"][1] == {
        "slug": "json",
        "group": "the file",
        "title": "JSON",
        "status": "limited",
        "fact": "3 events were repaired",
        "why": "why it is so",
        "remedy": "do this",
        "command": "bottleneck run FILE",
        "share": 0.5,
        "decides": True,
    }
    assert checkup["checks"][0]["why"] is None


def test_the_json_holds_nothing_that_acts_on_a_terminal() -> None:
    assert render([CHECKUP], "json").isascii()
    assert "\\u001b" not in render([CHECKUP], "json")


def test_rows_are_counted_by_status_and_only_those_that_decide_are_at_fault() -> None:
    assert tally(ROWS) == "1 ok, 1 limited, 1 missing, 1 unknown"
    assert [row.slug for row in at_fault(ROWS)] == ["json"]


def test_page_says_of_each_subject_what_the_text_says() -> None:
    other = Checkup("trace", "other.json", "sound", "Whole.", ROWS[:1])
    for checkups in ((CHECKUP,), (CHECKUP, other)):
        words = ParsedPage(render(checkups, "html")).words
        for checkup in checkups:
            assert checkup.subject in words and checkup.verdict in words and checkup.sentence in words
            for row in checkup.checks:
                for text in (row.status, row.title, row.fact, row.why, row.remedy, row.command):
                    assert " ".join(clean(text, 2000).split()) in words
