"""Every finding has its section in docs/reference/findings.md, and every section has a rule that gives it.

Slugs are read from the source: the ``slug`` of every call of ``Draft`` in bottleneck/advice, which has to be a text
or a constant of that module, or a field of a record that is made there with such a slug, so that none is overlooked.
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
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    worded = {slug for call in calls if _called(call) != "Draft" if (slug := _slug(call, constants)) is not None}
    found = set(worded)
    for draft in (call for call in calls if _called(call) == "Draft"):
        slug = _slug(draft, constants)
        if slug is None and not (worded and any(isinstance(value, ast.Attribute) for value in _given(draft))):
            raise ValueError(f"line {draft.lineno}: the slug of this draft is no text")
        found |= {slug} if slug is not None else set()
    return found


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _given(call: ast.Call) -> list[ast.expr]:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "slug"]
    return [*named, *(call.args[:1] if _called(call) == "Draft" else [])]


def _slug(call: ast.Call, constants: Mapping[str, object]) -> str | None:
    for value in _given(call):
        slug = value.value if isinstance(value, ast.Constant) else None
        slug = constants.get(value.id) if isinstance(value, ast.Name) else slug
        if isinstance(slug, str):
            return slug
    return None


def all_slugs() -> set[str]:
    """The slugs that any rule can give."""
    return {slug for path in ADVICE.glob("*.py") for slug in slugs_in(path.read_text(encoding="utf-8"))}


def sections(page: str) -> dict[str, str]:
    """Text by heading of the sections about findings: those of the third level."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"^### (.+)$", prose, flags=re.MULTILINE)
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
    assert differences({"one", "two"}, "## Host\n\n### one\n\n```\n### no\n```\n\n### three\n") == ({"two"}, {"three"})


def test_a_draft_is_found_however_its_slug_is_written() -> None:
    source = 'NAME = "c"\ndef rule():\n    Draft("a", 1)\n    draft.Draft(title=2, slug="b")\n    return Draft(NAME)'
    assert slugs_in(source) == {"a", "b", "c"}
    assert slugs_in('WORDS = Words(slug="d", title="t")\nDraft(slug=words.slug, evidence=())') == {"d"}


@pytest.mark.parametrize("slug", ["slug=f'a-{x}'", "unknown, 'b'", "**parts", "", "slug=words.slug"])
def test_a_slug_that_cannot_be_read_is_an_error(slug: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        slugs_in(f"x = 1\nDraft({slug})")


# Commands and lines that show more, and change nothing.
_DIAGNOSES = re.compile(r"nvidia-smi|fullgraph=True|next\(iter\(|TORCH_LOGS|bottleneck report|replay")


def unlabelled(code: str) -> list[str]:
    """The lines of a finding's code that are a diagnosis and do not say so first."""
    return [line for line in code.splitlines() if _DIAGNOSES.search(line) and not line.startswith("# diagnosis")]


def test_code_that_only_shows_more_says_that_it_is_a_diagnosis() -> None:
    assert unlabelled("batch = next(iter(loader))") and not unlabelled("# diagnosis: nvidia-smi")
    blocks = re.findall(r"^```\w*\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    keywords = (
        node.value
        for path in ADVICE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword) and node.arg == "code"
    )
    texts = (part.value for value in keywords for part in ast.walk(value) if isinstance(part, ast.Constant))
    assert not [line for text in (*blocks, *texts) if isinstance(text, str) for line in unlabelled(text)]
