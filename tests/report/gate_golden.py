"""Golden outputs of the gate, of gates made by hand. ``python -m tests.report.gate_golden`` writes them anew.

Look at the difference before committing it: each change must make the output truer or easier to read.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from bottleneck.report.ci.gate_document import to_terminal as render
from bottleneck.report.ci.outputs import GATE_FORMATS
from bottleneck.report.terminal import TerminalStyle
from tests.report.gates import GATES

FOLDER = Path(__file__).parents[1] / "golden" / "gate"

# Comparisons have golden outputs of their own.
_SEVERAL = replace(
    GATES["several"], results=tuple(replace(result, comparison=None) for result in GATES["several"].results)
)

GOLDEN: Mapping[str, Callable[[], str]] = {
    # A page holds its style sheet, which is no matter of the gate: test_gate_document reads its text.
    **{f"several.{form.file}": partial(form.render, _SEVERAL) for name, form in GATE_FORMATS.items() if name != "html"},
    "several.40.txt": lambda: render(_SEVERAL, TerminalStyle(40)),
    "several.ascii.txt": lambda: render(_SEVERAL, TerminalStyle(encoding="ascii")),
    "passed.gate.txt": lambda: render(GATES["passed"]),
    "passed.gate.md": lambda: GATE_FORMATS["markdown"].render(GATES["passed"]),
    "unmeasured.gate.txt": lambda: render(GATES["unmeasured"]),
    "hostile.gate.md": lambda: GATE_FORMATS["markdown"].render(GATES["hostile"]),
}


def main() -> None:
    """Writes every golden output."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in GOLDEN.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
