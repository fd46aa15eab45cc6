"""Writes the table of ledger accounts in docs/reference/json.md: ``python -m scripts.write_accounts``.

The table follows from ``bottleneck.schema.accounts``; a test checks that the page is current.
"""

from pathlib import Path

from bottleneck.schema.accounts import ACCOUNTS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "json.md"
BEGIN, END = (f"<!-- written by scripts/write_accounts.py: {edge} -->" for edge in ("begin", "end"))


def page_text() -> str:
    """The reference page with its table of accounts renewed; the text around it is kept."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    lines = ["| account | group | time that it holds | first thing to try |", "|---|---|---|---|"]
    for key, account in ACCOUNTS.items():
        lines.append(f"| `{key}` | {account.group} | {account.meaning} | {account.advice.format(at='')} |")
    table = "\n".join(lines)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
