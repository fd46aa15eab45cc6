"""Every rule number that the code cites is defined on a page of docs/explanation; every finding has its row there."""

import re
from collections.abc import Iterable
from pathlib import Path

import bottleneck
from tests.advice.test_pages import all_slugs

PACKAGE = Path(bottleneck.__file__).parent
PAGES = Path(__file__).parents[1] / "docs" / "explanation"
RULES = PAGES / "advice_rules.md"

_CITED = re.compile(r"\b[Rr]ules? (\d+(?:(?:, | and | to )\d+)*)|\badvice_rules(?:\.md)? (\d+)")
_DEFINED = re.compile(r'<a id="rule-(\d+)"></a>Rule (\d+)\b|^#+ Rule (\d+)\b', re.MULTILINE)


def cited_rules(sources: Iterable[str]) -> set[int]:
    """The rule numbers that these sources cite; of "rules 50 to 53" the two ends."""
    found = (match for source in sources for match in _CITED.finditer(source))
    return {int(number) for match in found for number in re.findall(r"\d+", match[0])}


def defined_rules(pages: Iterable[str]) -> set[int]:
    """The rule numbers that have an anchor in a table, or a heading, on these pages."""
    found = (match for page in pages for match in _DEFINED.finditer(page))
    return {int(number) for match in found if (number := match[1] or match[3])}


def package_sources() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))]


def explanation_pages() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md"))]


def test_every_rule_that_the_code_cites_is_defined() -> None:
    cited = cited_rules(package_sources())
    assert len(cited) > 1, "no rules found: the search is broken"
    assert cited - defined_rules(explanation_pages()) == set()


def test_a_rule_without_a_definition_is_noticed() -> None:
    sources = ['"""Rule 12: …"""', "# (advice_rules 48), rules 50 to 53"]
    page = '| <a id="rule-12"></a>Rule 12 | x |\n### Rule 48\nRule 50 is only mentioned.\n'
    assert cited_rules(sources) == {12, 48, 50, 53}
    assert cited_rules(sources) - defined_rules([page]) == {50, 53}


def test_the_anchor_of_a_rule_has_the_number_of_the_rule() -> None:
    anchors = re.findall(r'<a id="rule-(\d+)"></a>Rule (\d+)', RULES.read_text(encoding="utf-8"))
    assert [pair for pair in anchors if pair[0] != pair[1]] == []
    assert len(anchors) == len(set(anchors))


def test_every_finding_has_a_row_among_the_rules() -> None:
    linked = set(re.findall(r"findings\.md#([a-z0-9-]+)", RULES.read_text(encoding="utf-8")))
    assert linked == all_slugs()


def test_the_changelog_counts_the_kinds_of_findings() -> None:
    page = (Path(__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
    (count,) = re.findall(r"^- (\d+) kinds of findings\b", page, re.MULTILINE)
    assert int(count) == len(all_slugs())
