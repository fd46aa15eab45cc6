"""Every finding has its section in docs/reference/findings.md, and every section has a rule that gives it.

Slugs are read from the source: the ``slug`` of every call of ``Draft`` in bottleneck/advice, which has to be a text,
a constant of that module, or in a table of words that the call unpacks, so that none can be overlooked.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

import bottleneck

ADVICE = Path(bottleneck.__file__).parent / "advice"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "findings.md"

# What each section tells, by the beginning of its paragraphs.
PARTS = ("**Seen**", "**Why it costs time**", "**Change**", "**Gain**", "**Proof**", "**Limits**")


def slugs_in(source: str) -> set[str]:
    """The slugs of all drafts that a module makes; ValueError names a line whose slug cannot be read."""
    tree = ast.parse(source)
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    tabled = {
        value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "slug" and isinstance(value, ast.Constant)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) == "Draft"]
    return tabled.union(*(_slugs(call, constants, tabled) for call in calls))


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _slugs(call: ast.Call, constants: Mapping[str, object], tabled: set[str]) -> set[str]:
    given = [*(keyword.value for keyword in call.keywords if keyword.arg == "slug"), *call.args[:1]]
    if not given and tabled and any(keyword.arg is None for keyword in call.keywords):
        return tabled
    value = given[0] if given else None
    slug = value.value if isinstance(value, ast.Constant) else None
    slug = constants.get(value.id) if isinstance(value, ast.Name) else slug
    if not isinstance(slug, str):
        raise ValueError(f"line {call.lineno}: the slug of this draft is no text")
    return {slug}


def all_slugs() -> set[str]:
    """The slugs that any rule can give."""
    return {slug for path in ADVICE.glob("*.py") for slug in slugs_in(path.read_text(encoding="utf-8"))}


def sections(page: str) -> dict[str, str]:
    """Text by heading of the sections about findings: those of the third level."""
    parts = re.split(r"^### (.+)$", page, flags=re.MULTILINE)
    return {
        heading.strip("` "): re.split(r"^#+ ", body, maxsplit=1, flags=re.MULTILINE)[0]
        for heading, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def differences(slugs: Iterable[str], page: str) -> tuple[set[str], set[str]]:
    """Slugs without a section, and sections without a rule."""
    told, known = set(sections(page)), set(slugs)
    return known - told, told - known


def test_every_finding_has_a_section_and_every_section_a_rule() -> None:
    assert differences(all_slugs(), PAGE.read_text(encoding="utf-8")) == (set(), set())


def test_every_section_says_what_is_seen_changed_gained_and_how_it_is_proven() -> None:
    for slug, text in sections(PAGE.read_text(encoding="utf-8")).items():
        found = [part for part in re.findall(r"^\*\*[\w ]+\*\*", text, re.MULTILINE) if part in PARTS]
        assert found == list(PARTS), slug


def test_no_two_sections_share_an_anchor() -> None:
    headings = re.findall(r"^### (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert all(re.fullmatch(r"[a-z0-9-]+", heading) for heading in headings)


def test_the_page_is_held_to_the_rules() -> None:
    assert differences({"one", "two"}, "## Host\n\n### one\n\ntext\n\n### three\n") == ({"two"}, {"three"})


def test_a_draft_is_found_however_its_slug_is_written() -> None:
    source = 'NAME = "c"\ndef rule():\n    Draft("a", 1)\n    draft.Draft(title=2, slug="b")\n    return Draft(NAME)'
    assert slugs_in(source) == {"a", "b", "c"}
    assert slugs_in('WORDS = {"slug": "d", "title": "t"}\nDraft(**WORDS, evidence=())') == {"d"}


@pytest.mark.parametrize("call", ["Draft(slug=f'a-{x}')", "Draft(unknown, 'b')", "Draft(**parts)", "Draft()"])
def test_a_slug_that_cannot_be_read_is_an_error(call: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        slugs_in(f"x = 1\n{call}")
