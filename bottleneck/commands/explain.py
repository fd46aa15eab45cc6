"""``bottleneck explain``: prints the documentation of a name.

It is that of a finding, a caveat or an account of the ledger.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from bottleneck.commands.report_options import completion_of
from bottleneck.errors import UsageError

# The page lies in the package where it was installed, and beside it in the repository.
PACKAGED = Path(__file__).parents[1] / "data" / "findings.md"
_PAGES = (PACKAGED, Path(__file__).parents[2] / "docs" / "reference" / "findings.md")
_COLUMNS = 80
_NEAR = 5
# The section on what would bring nothing, which is no finding, and where it is listed.
_NO_GAIN, _BESIDE = "no-gain", "Beside the findings"


def _names() -> list[str]:
    """Gives all names, for the shell to complete."""
    from bottleneck.schema.accounts import ACCOUNTS

    findings, caveats = page_sections()
    return [*findings, *caveats, *ACCOUNTS]


def explain_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="A finding or caveat by its name, or an account of the ledger.",
            autocompletion=completion_of(_names),
        ),
    ] = None,
) -> None:
    """Explains a finding, a caveat or an account of the ledger.

    \b
    bottleneck explain input-wait
    bottleneck explain overhead.sync
    bottleneck explain

    Without a name it lists all names, findings by group.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.commands.report_options import send

    send(_all_names() if name is None else explanation(name))


def explanation(name: str) -> str:
    """Gives the text about a name, wrapped at 80 columns.

    UsageError with near names for one that nothing is called.
    """
    from bottleneck.schema.accounts import ACCOUNTS

    wanted = name.strip("[]` ")
    findings, caveats = page_sections()
    sections = caveats | findings
    # Markdown as text of 80 columns: paragraphs are filled, code is indented.
    texts = ["\n".join(_blocks(f"{wanted}\n\n{sections[wanted]}"))] if wanted in sections else []
    texts += [_account_text(key) for key, account in ACCOUNTS.items() if wanted in {key, account.cause, account.label}]
    if texts:
        return "\n".join(texts)
    from difflib import get_close_matches

    names = [*sections, *ACCOUNTS, *(account.cause for account in ACCOUNTS.values() if account.cause)]
    near = get_close_matches(wanted, names, n=_NEAR, cutoff=0.5)
    near += [entry for entry in names if wanted and wanted in entry and entry not in near][: _NEAR - len(near)]
    raise UsageError(
        f"nothing is called {wanted}",
        why=f"near it are {', '.join(near)}" if near else "",
        fix="`bottleneck explain` lists all names",
    )


def page_sections() -> tuple[dict[str, str], dict[str, str]]:
    """Reads the sections of findings and of caveats by their names.

    UsageError if the page is missing.
    """
    groups, caveats = _page()
    return {name: text for findings in groups.values() for name, text in findings.items()}, caveats


def _page() -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Reads the sections of findings by group and name, and those of caveats."""
    page = next((path for path in _PAGES if path.is_file()), None)
    if page is None:
        raise UsageError("the page of findings is missing from this installation", fix="install bottleneck again")
    text = page.read_text(encoding="utf-8")
    caveats = re.findall(r"^- \*\*([a-z-]+)\*\*: (.*(?:\n  .*)*)$", text.partition("\n## Caveats\n")[2], re.MULTILINE)
    parts = re.split(r"^(##+) (.*)\n", text, flags=re.MULTILINE)
    groups: dict[str, dict[str, str]] = {}
    group = ""
    for level, name, section in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        group = name if level == "##" else group
        if level == "###" or name == _NO_GAIN:
            groups.setdefault(_BESIDE if name == _NO_GAIN else group, {})[name] = section.strip()
    return groups, dict(caveats)


def _all_names() -> str:
    from bottleneck.schema.accounts import ACCOUNTS

    groups, caveats = _page()
    # The first paragraph of a finding's section says in a line what it is.
    rows = {
        title: {name: text.partition("\n\n")[0].rstrip(".") for name, text in findings.items()}
        for title, findings in sorted(groups.items(), key=lambda group: group[0] == _BESIDE)
    }
    rows["Accounts of the ledger: time in which"] = {key: account.meaning for key, account in ACCOUNTS.items()}
    width = max(len(name) for names in rows.values() for name in names)
    lines = []
    for title, names in rows.items():
        lines += [title, *(_row(name, words, width) for name, words in names.items()), ""]
    return "\n".join([*lines, "Caveats", _filled(", ".join(caveats), "  ")]) + "\n"


def _row(name: str, words: str, width: int) -> str:
    lead = f"  {name.ljust(width)}  "
    return textwrap.fill(words, _COLUMNS, initial_indent=lead, subsequent_indent=" " * len(lead))


def _account_text(key: str) -> str:
    from bottleneck.schema.accounts import ACCOUNTS

    account = ACCOUNTS[key]
    lines = [f"{key}: an account of the ledger", "", f"Time: {account.meaning}."]
    lines.append(f"First thing to try: {account.advice}.")
    if account.host_advice is not None:
        lines.append(f"Without a device: {account.host_advice}.")
    return "\n".join(_filled(line) for line in lines) + "\n"


def _blocks(text: str) -> Iterator[str]:
    for number, part in enumerate(re.split(r"^```\w*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)):
        if number % 2:
            yield textwrap.indent(part, "    ")
            continue
        for paragraph in re.split(r"\n\s*\n|\n(?=- )", part.strip("\n")):
            if paragraph.strip():
                words = re.sub(r"\*\*(.+?)\*\*", r"\1:", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", paragraph))
                yield _filled(words) + "\n"


def _filled(text: str, indent: str = "") -> str:
    later = "  " if text.startswith("- ") else indent
    return textwrap.fill(
        text, _COLUMNS, initial_indent=indent, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
