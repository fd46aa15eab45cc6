"""Trials that `verify` keeps on this machine: the path of their file, and its use in the intervals of findings."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bottleneck.pipeline import Options

# Names another file for the scoreboard, which else lies beside the calibrations; "" keeps no score.
SCOREBOARD_VARIABLE = "BOTTLENECK_SCOREBOARD"
_SCOREBOARD_FILE = "scoreboard.jsonl"


def scoreboard_path() -> Path | None:
    """The path of the scoreboard; null where none is to be kept."""
    named = os.environ.get(SCOREBOARD_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    from bottleneck.harness.machine import cache_folder

    return cache_folder() / _SCOREBOARD_FILE


def with_trials(options: "Options") -> "Options":
    """The options with the trials on the scoreboard, which make the intervals of findings on the same device."""
    path = scoreboard_path()
    if path is None or not path.exists():
        return options
    from bottleneck.experiment.scoreboard import read_entries, trials_of

    return replace(options, trials=trials_of(read_entries(path)))
