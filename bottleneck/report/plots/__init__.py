"""Pictures of analyses, comparisons and sweeps, drawn with matplotlib.

Here are their common look and how each is saved.
"""

import io
import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

import matplotlib as mpl

from bottleneck.report.kernel_names import cut_middle
from bottleneck.report.output import write_bytes
from bottleneck.report.text import clean
from bottleneck.schema.analysis import Analysis

# The first import on a machine looks for fonts, and tells of it after five seconds, between our lines.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
from matplotlib.figure import Figure  # noqa: E402

STYLE = Path(__file__).with_name("plots.mplstyle")
# What keeps the time of drawing out of a file.
_DATES: Mapping[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}

# Okabe and Ito's colours, which colour-blind readers tell apart; the hatches say the same in grey.
COLOURS: Mapping[str, str] = {
    "compute": "#009E73",
    "memory": "#0072B2",
    "overhead": "#E69F00",
    "communication": "#CC79A7",
    "transfer": "#56B4E9",
    "unknown": "#8F9399",
}
HATCHES: Mapping[str, str] = {
    "compute": "",
    "memory": "///",
    "overhead": "...",
    "communication": "xxx",
    "transfer": "\\\\\\",
    "unknown": "---",
}


def save_figure(draw: Callable[..., Figure], path: Path, *subjects: Any) -> None:
    """Draws these into a file ending in .png, .svg or .pdf.

    The same figure gives the same SVG and PDF.
    """
    kind = path.suffix.removeprefix(".")
    assert kind in _DATES, f"no such picture format: {path.name}"
    drawn = io.BytesIO()
    with mpl.rc_context(fname=STYLE), warnings.catch_warnings():
        # A font without the characters of some kernel name draws boxes; the tables have the name.
        warnings.filterwarnings("ignore", message=".*missing from font", category=UserWarning)
        draw(*subjects).savefig(drawn, format=kind, metadata=_DATES[kind])
    write_bytes(drawn.getvalue(), path)


def trace_name(analysis: Analysis, limit: int = 60) -> str:
    """The file or recording that an analysis is of, without its folders."""
    path = analysis.recording.path
    return cut_middle(clean(PurePath(path).name or path), limit)
