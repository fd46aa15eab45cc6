"""Pictures of an analysis, a comparison and a sweep, drawn with matplotlib, and how each is saved."""

import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from bottleneck.report.output import write_bytes

_STYLE = Path(__file__).with_name("plots.mplstyle")
# What keeps the time of drawing out of a file.
_DATES: Mapping[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def save_figure(draw: Callable[[], Figure], path: Path) -> None:
    """Draws into a file whose name ends in .png, .svg or .pdf; the same figure gives the same SVG and PDF."""
    kind = path.suffix.removeprefix(".")
    assert kind in _DATES, f"no such picture format: {path.name}"
    drawn = io.BytesIO()
    with mpl.rc_context(fname=_STYLE), warnings.catch_warnings():
        # A font without the characters of some kernel name draws boxes; the tables have the name.
        warnings.filterwarnings("ignore", message=".*missing from font", category=UserWarning)
        draw().savefig(drawn, format=kind, metadata=_DATES[kind])
    write_bytes(drawn.getvalue(), path)
