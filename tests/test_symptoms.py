"""The page on symptoms shows what the program prints, and each of its sections has a command and its output."""

import re
from pathlib import Path

import pytest

from tests.symptoms import PAGE, SHOWN, excerpt, printed, public_traces
from tests.ten_findings import SOURCES

_TEXT = PAGE.read_text(encoding="utf-8")
_BLOCKS = [(block["command"], block["parts"], block["text"]) for block in SHOWN.finditer(_TEXT)]


def test_every_section_has_a_command_with_its_output() -> None:
    sections = re.split(r"^## ", _TEXT, flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections if len(list(SHOWN.finditer(section))) != 1] == []
    assert len(sections) == len(_BLOCKS) == 10
    assert all(text.strip() for _, _, text in _BLOCKS)


@pytest.mark.process
@pytest.mark.parametrize(("command", "parts", "text"), _BLOCKS, ids=lambda part: part.split("\n")[0][:50])
def test_the_page_shows_what_a_command_prints(
    request: pytest.FixtureRequest, command: str, parts: str, text: str
) -> None:
    names = public_traces(command)
    traces: Path = request.getfixturevalue("traces") if names else Path()
    if not all((traces / SOURCES[name]).exists() for name in names):
        pytest.skip("a trace of the page is not in the folder")
    if command.startswith("bottleneck predict"):
        pytest.importorskip("torch")
    assert f"{printed(command, parts, traces)}\n" == text, "python -m tests.symptoms FOLDER writes it anew"


def test_an_excerpt_holds_the_named_parts_in_their_order() -> None:
    output = (
        "BOUND\nanswer\n\nstep  1 ms\n      more\nhost  2\n\nWhat ──\n1. One [a]\n   gain  x\n2. Two [b]\n   gain  y\n"
    )
    assert excerpt(output, "answer, step, [b]") == "BOUND\nanswer\n…\nstep  1 ms\n      more\n…\n2. Two [b]\n   gain  y"
    assert excerpt(output, "What").splitlines() == ["What ──", *output.split("What ──\n")[1].splitlines()]
    with pytest.raises(KeyError, match="gone"):
        excerpt(output, "gone")
