"""Golden comparisons: of those made by hand and of sample recordings. ``python -m tests.report.golden_comparison``.

It writes the examples of the how-to page, too. Look at the difference before committing it: each change must make the
text truer or easier to read.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from bottleneck.compare.build import compare
from bottleneck.compare.sides import ComparedSide
from bottleneck.gate.count import count
from bottleneck.report.comparison import render
from bottleneck.report.terminal import TerminalStyle
from bottleneck.schema.comparison import Comparison
from tests.report import comparisons
from tests.trace_cache import explained

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "golden" / "comparison"
PAGE = ROOT / "docs" / "howto" / "compare-two-runs.md"
PAIR = ("pointwise", "pointwise_fused")
# A pair with a real difference, of which the page shows the head alone.
SLOWER_PAIR = ("train_script", "slow_loader")
_END, _FIRST_SECTION = "```\n", "\nWhere the change comes from"


@functools.cache
def samples(before: str, after: str) -> Comparison:
    """Two sample recordings compared, under the names that they have from the root of the repository."""
    return compare(*(_sample(f"sample_traces/{name}") for name in (before, after)))


def _sample(name: str) -> ComparedSide:
    case = explained(ROOT / name)
    return ComparedSide(name, name, case=case, counts=count(case))


def page() -> str:
    """The how-to page with its examples renewed; what stands around them is kept."""
    slower = render(samples(*SLOWER_PAIR), "terminal").partition(_FIRST_SECTION)[0] + "…\n"
    text = PAGE.read_text(encoding="utf-8")
    for pair, shown in ((SLOWER_PAIR, slower), (PAIR, render(samples(*PAIR), "terminal"))):
        begin = f"```\n$ bottleneck compare sample_traces/{pair[0]} sample_traces/{pair[1]}\n"
        before, found, rest = text.partition(begin)
        assert found, f"the page has no example of {pair}"
        text = before + begin + shown + _END + rest.partition(_END)[2]
    return text


GOLDEN: Mapping[str, Callable[[], str]] = {
    "slower.txt": lambda: render(comparisons.slower(), "terminal"),
    "slower.40.txt": lambda: render(comparisons.slower(), "terminal", TerminalStyle(40)),
    "slower.md": lambda: render(comparisons.slower(), "markdown"),
    "slower.json": lambda: render(comparisons.slower(), "json"),
    "devices.ascii.txt": lambda: render(comparisons.devices(), "terminal", TerminalStyle(encoding="ascii")),
    "lock.txt": lambda: render(comparisons.lock(), "terminal"),
    "unchanged.txt": lambda: render(comparisons.unchanged(), "terminal"),
    "hostile.md": lambda: render(comparisons.hostile(), "markdown"),
    "samples_mlp_transformer.txt": lambda: render(samples("mlp", "transformer"), "terminal"),
    "samples_mlp_transformer.md": lambda: render(samples("mlp", "transformer"), "markdown"),
}


def main() -> None:
    """Writes every golden comparison."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in GOLDEN.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
