"""The look of the groups of the ledger in pictures, in colour and in grey, and the words that name a trace."""

from collections.abc import Mapping
from pathlib import PurePath

from bottleneck.report.kernel_names import cut_middle
from bottleneck.report.text import clean
from bottleneck.schema.analysis import Analysis

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


def trace_name(analysis: Analysis, limit: int = 60) -> str:
    """The file or recording that an analysis is of, without its folders."""
    path = analysis.recording.path
    return cut_middle(clean(PurePath(path).name or path), limit)
