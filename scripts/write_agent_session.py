"""Lets a client of `bottleneck mcp` make a program faster, and writes the conversation into docs/howto/agents.md.

    python -m scripts.write_agent_session             on a machine with nothing else to do; it takes some minutes
    python -m scripts.write_agent_session --kept      write the page anew from the conversation that is kept

The program is the step of docs/tutorial/first-speedup.md. The client does what an agent would: it asks, changes one
line, and has the change judged.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters

from scripts.write_tutorial import PAGE as TUTORIAL
from scripts.write_tutorial import ROOT, prepare

PAGE = ROOT / "docs" / "howto" / "agents.md"
KEPT = ROOT / "docs" / "assets" / "agent-session.json"
BEFORE, AFTER = "lr=1e-3)", "lr=1e-3, fused=True)"
_FINDING = "unfused-optimizer"
CLOSING = {
    "faster": "That is what it reports: the interval that was measured, and that the results are the same.",
    "slower": "It takes the change back, and says why.",
    "no difference": "It takes the change back: nothing was gained.",
    "undecided": "The machine was too busy to decide. It says so, with what was seen and for how long to measure.",
}
_COLUMNS = 150
_SESSION = re.compile(r"(<!-- session -->\n).*?(<!-- end of session -->)", re.DOTALL)

Turn = Mapping[str, Any]
"""One part of the conversation: a call of a tool with its answer, an edit of a file, or words."""


def rendered(session: Sequence[Turn]) -> str:
    """The conversation in Markdown, with a heading in words for each turn."""
    blocks = []
    for turn in session:
        if turn.keys() == {"why"}:
            blocks.append(f"{turn['why']}\n")
        elif "edit" in turn:
            blocks.append(f"{turn['why']}\n\n```diff\n{turn['edit']}\n```\n")
        else:
            call = f"{turn['tool']} {json.dumps(turn['arguments'])}"
            blocks.append(f"{turn['why']}\n\n```\n> {call}\n{lines_of(turn['result'])}\n```\n")
    return "\n".join(blocks)


def lines_of(result: Mapping[str, Any]) -> str:
    """A result with a line for each key, entry and row, for people: an amount is `826 us, measured`."""
    rows = []
    for key, value in result.items():
        if isinstance(value, dict) and "columns" in value:
            rows += _table(value)
        elif key == "tables":
            rows += [row for table in value for row in _table(table)]
        elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
            rows += [f"{key}:", *(f"  - {_words(entry)}" for entry in value)]
        else:
            rows.append(f"{key}: {_words(value)}")
    return "\n".join(textwrap.fill(row, _COLUMNS, subsequent_indent="    ", break_on_hyphens=False) for row in rows)


def _table(table: Mapping[str, Any]) -> list[str]:
    columns = [", ".join(filter(None, map(column.get, ("name", "unit", "basis")))) for column in table["columns"]]
    return [f"{table['kind']} ({'; '.join(columns)}):", *(f"  - {_words(row)}" for row in table["rows"])]


_SINGLE = {True: "yes", False: "no", None: "-"}


def _words(value: object) -> str:
    """A part of a result in words."""
    match value:
        case {"value": amount, "unit": unit, "basis": basis}:
            words = f"{amount:g} {unit}, {basis}"
        case {"low": low, "high": high, "unit": unit, "basis": basis}:
            words = f"{low:g} to {high:g} {unit}, {basis}"
        case {"columns": _}:
            words = "; ".join(row.removeprefix("  - ") for row in _table(value))
        case {"from_trace": str(text)}:
            words = f'from_trace "{text}"'
        case dict():
            words = "; ".join(f"{key}: {_words(inner)}" for key, inner in value.items() if inner != [])
        case list():
            words = ", ".join(map(_words, value)) or "none"
        case bool() | None:
            words = _SINGLE[value]
        case _:
            words = f"{value:g}" if isinstance(value, int | float) else str(value)
    return words


def with_session(page: str, session: Sequence[Turn]) -> str:
    """The page with the conversation between its marks."""
    return _SESSION.sub(lambda match: f"{match[1]}\n{rendered(session)}\n{match[2]}", page)


def _git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=agent", "-c", "user.email=agent@example.com")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)  # noqa: S603, S607 - our own text


async def converse(folder: Path) -> list[Turn]:
    """The conversation about the program in this folder."""
    # Only what a client passes on by itself, and where our package is.
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "bottleneck", "mcp", "--allow-run", "."],
        env={"PYTHONPATH": str(ROOT), **{name: os.environ[name] for name in ("XDG_CACHE_HOME",) if name in os.environ}},
        cwd=folder,
    )
    session: list[Turn] = []

    async with Client(server) as client:

        async def ask(why: str, tool: str, **arguments: Any) -> dict[str, Any]:
            answer = await client.call_tool(tool, arguments)
            if answer.is_error:
                raise RuntimeError(f"{tool} failed: {answer.content}")
            result: dict[str, Any] = answer.structured_content or {}
            session.append({"why": why, "tool": tool, "arguments": arguments, "result": result})
            return result

        diagnosis = await ask(
            "The agent has the program recorded, and reads what holds it back.", "diagnose", run=["step.py"]
        )
        recording = diagnosis["path"]
        await ask("It looks at what is behind one of the findings.", "evidence", path=recording, of=_FINDING, limit=4)
        await ask("It asks which changes would help at all, whoever makes them.", "whatif", path=recording)
        file = folder / "step.py"
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(BEFORE, AFTER), encoding="utf-8")
        line = next(row for row in text.splitlines() if BEFORE in row)
        edit = f"-{line}\n+{line.replace(BEFORE, AFTER)}"
        session.append({"why": "It makes the change that the finding names.", "edit": edit})
        why = "It has the change judged against the last commit: both sides run in turns."
        judged = await ask(why, "judge", base="HEAD", workload=["step.py"], budget_s=900)
        session.append({"why": CLOSING[judged["results"][0]["verdict"]]})
    return session


def without_places(session: Sequence[Turn], folder: Path) -> list[Turn]:
    """The conversation without the places of one machine: paths are those within the folder."""
    text = json.dumps(session, indent=1, ensure_ascii=False).replace(f"{folder}/", "")
    text = re.sub(r'"[^"\s]*/(bottleneck-mcp-)\w+\.log"', r'"\1….log"', text)
    turns: list[Turn] = json.loads(text)
    return turns


def main() -> None:
    """Renews the conversation, or only the page from that which is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", action="store_true", help="take the conversation that is kept")
    if not parser.parse_args().kept:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made).resolve()
            prepare(folder, TUTORIAL.read_text("utf-8"))
            (folder / ".gitignore").write_text("bottleneck-runs/\n__pycache__/\n", encoding="utf-8")
            _git(folder, "init", "-q")
            _git(folder, "add", ".")
            _git(folder, "commit", "-q", "-m", "A step that trains on rows of a table")
            session = without_places(anyio.run(converse, folder), folder)
        KEPT.write_text(json.dumps(session, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    kept: list[Turn] = json.loads(KEPT.read_text(encoding="utf-8"))
    PAGE.write_text(with_session(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")


if __name__ == "__main__":
    main()
