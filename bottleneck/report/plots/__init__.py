"""Pictures of an analysis, a comparison and a sweep, drawn with matplotlib, and how each is saved."""

import io
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from bottleneck.report.output import write_bytes


def save_figure(draw: Callable[[], Figure], path: Path) -> None:
    """Draws into a file whose name ends in .png or .svg; the same figure gives the same SVG."""
    kind = path.suffix.removeprefix(".")
    assert kind in {"png", "svg"}, f"no such picture format: {path.name}"
    drawn = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "bottleneck", "hatch.linewidth": 0.6}), warnings.catch_warnings():
        # A font without the characters of some kernel name draws boxes; the tables have the name.
        warnings.filterwarnings("ignore", message=".*missing from font", category=UserWarning)
        draw().savefig(drawn, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_bytes(drawn.getvalue(), path)
