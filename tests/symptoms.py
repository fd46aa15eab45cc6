"""The outputs that docs/howto/symptoms.md shows. ``python -m tests.symptoms FOLDER`` writes them anew.

FOLDER holds the public traces, under the names in tests/ten_findings.py. Look at the difference before committing it.
"""

import re
import sys
import tempfile
from pathlib import Path

from scripts.write_tutorial import ROOT, run
from tests.ten_findings import SOURCES

PAGE = ROOT / "docs" / "howto" / "symptoms.md"

# '<!-- shows: PARTS -->' and the block with a command and these parts of what it prints.
SHOWN = re.compile(
    r"(?P<head><!-- shows: (?P<parts>[^\n]+) -->\n\n```console\n\$ (?P<command>[^\n]+)\n)"
    r"(?P<text>(?:.*\n)*?)(?P<tail>```\n)"
)


def public_traces(command: str) -> list[str]:
    """The public traces that a command reads, by their names on the page."""
    return [word for word in command.split() if word in SOURCES]


def printed(command: str, parts: str, traces: Path) -> str:
    """Parts of what a command prints; its traces and the samples lie in the working folder."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in ("sample_traces", "examples"):
            (folder / name).symlink_to(ROOT / name)
        for name in public_traces(command):
            (folder / name).symlink_to(traces / SOURCES[name])
        return excerpt(run(command, folder), parts)


def excerpt(output: str, parts: str) -> str:
    """Parts of an output with … between them.

    ``all`` is the whole of it, ``answer`` the first paragraph, ``[slug]`` the finding of that name; other words are the
    beginning of a section's heading or of a line with a label. Raises KeyError for a part that is not there.
    """
    return "\n…\n".join(_part(output, part.strip()) for part in parts.split(","))


def _part(output: str, part: str) -> str:
    if part == "all":
        return output.rstrip("\n")
    if part == "answer":
        return output.partition("\n\n")[0]
    if part.startswith("["):
        items = re.findall(r"^(?:\d+\.|•) .*\n(?: +.*\n)*", f"{output}\n", re.MULTILINE)
        wanted = next((item for item in items if part in item), None)
    else:
        following = r"(?:.+\n)*" if re.search(rf"^{re.escape(part)}.*─$", output, re.MULTILINE) else r"(?: +.*\n)*"
        match = re.search(rf"^{re.escape(part)}.*\n{following}", f"{output}\n", re.MULTILINE)
        wanted = match and match[0]
    if wanted is None:
        raise KeyError(part)
    return wanted.rstrip("\n")


def written(page: str, traces: Path) -> str:
    """The page with what its commands print now."""
    return SHOWN.sub(
        lambda block: f"{block['head']}{printed(block['command'], block['parts'], traces)}\n{block['tail']}", page
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), Path(sys.argv[1]).resolve()), encoding="utf-8")
