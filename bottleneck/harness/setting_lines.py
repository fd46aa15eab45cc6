"""Finds the lines of the program that choose what its ops only show.

An op shows its dtype, its threads and its loader; the line that chose them may be anywhere in the program.
"""

import itertools
import re
from collections.abc import Mapping

from bottleneck.harness.lines import lines_that_say
from bottleneck.schema.measurements import SettingName

# The words that choose a setting.
_WORDS: Mapping[SettingName, "re.Pattern[str]"] = {
    "threads": re.compile(r"\bset_num_threads\(|\b(?:OMP|MKL)_NUM_THREADS\b"),
    "narrow": re.compile(r"\.(?:half|bfloat16)\(\)|\btorch\.(?:float16|half|bfloat16)\b|\bautocast\("),
    "double": re.compile(r"\.double\(\)|\btorch\.(?:float64|double)\b"),
    "loader": re.compile(r"\bDataLoader\("),
    "embedding": re.compile(r"(?<!class )\bEmbedding(?:Bag)?\("),
}
_MOST = 8  # lines of one setting


def setting_lines() -> dict[SettingName, tuple[str, ...]]:
    """Returns the lines that choose each setting.

    They are like 'train.py:5', in the order of the program's files. Settings that no line chooses are left out. Files
    are read as text; nothing of the program is called.
    """
    lines = {name: tuple(itertools.islice(lines_that_say(words), _MOST)) for name, words in _WORDS.items()}
    return {name: places for name, places in lines.items() if places}
