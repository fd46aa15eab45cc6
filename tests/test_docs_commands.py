"""Every command line in a block of the README, the tutorials, how-to pages and references is one that can be parsed."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from bottleneck.cli import COMMANDS
from tests.test_cli import parse

ROOT = Path(__file__).parents[1]
FOLDERS = ("tutorial", "howto", "reference")
PAGES = [ROOT / "README.md", *(page for folder in FOLDERS for page in sorted((ROOT / "docs" / folder).glob("*.md")))]
_BLOCK = re.compile(r"^ *```(?:console)?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def commands(page: str) -> Iterator[list[str]]:
    """The words after `bottleneck` of each command line in a block of the page."""
    for block in _BLOCK.findall(page):
        for line in block.splitlines():
            text = line.strip().removeprefix("$ ")
            if text.startswith("bottleneck ") and "…" not in text:
                yield shlex.split(text.partition(" > ")[0], comments=True)[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_can_be_parsed(page: Path) -> None:
    names = {name for name, _ in COMMANDS}
    for name, *arguments in commands(page.read_text(encoding="utf-8")):
        if name in names:
            parse(name, *arguments)


def test_commands_are_found_and_one_with_an_option_that_there_is_not_fails() -> None:
    found = list(commands("text\n```\n$ bottleneck report a.json # a comment\nbottleneck run --colour x.py\n```\n"))
    assert found == [["report", "a.json"], ["run", "--colour", "x.py"]]
    assert sum(len(list(commands(page.read_text(encoding="utf-8")))) for page in PAGES) > 60
    with pytest.raises(Exception, match="--colour"):
        parse(*found[1])
