"""Tracks: 'pid/tid' labels, and the device and stream that they name where arguments do not."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bottleneck.trace.categories import LEGACY_KERNEL
from bottleneck.trace.decode import ABSENT

Array = npt.NDArray[Any]

# Devices and streams have small numbers; elsewhere pid and tid are those of processes and threads.
_LARGEST_DEVICE, _LARGEST_STREAM = 255, 65_535
_STREAM = re.compile(r"(?:stream )?(\d{1,9})")


class Tracks:
    """Distinct tracks in sorted order; ``recode`` turns codes of the file into positions among ``labels``."""

    def __init__(self, tracks: Sequence[tuple[object, object]]) -> None:
        texts = [f"{'' if pid is None else pid}/{'' if tid is None else tid}" for pid, tid in tracks]
        self.labels = sorted(set(texts))
        codes = {label: code for code, label in enumerate(self.labels)}
        self.recode = np.array([codes[text] for text in texts] or [0], np.int32)
        self._devices = np.full(len(self.labels), ABSENT)
        self._streams = np.full(len(self.labels), ABSENT)
        for (pid, tid), text in zip(tracks, texts, strict=True):
            code = codes[text]
            self._devices[code] = _number(tid if pid == LEGACY_KERNEL else pid, _LARGEST_DEVICE)
            self._streams[code] = ABSENT if pid == LEGACY_KERNEL else _number(tid, _LARGEST_STREAM)

    def fill(self, devices: dict[str, Array], track: Array) -> None:
        """Writes device and stream where the arguments have none (ROCm before 2.3, legacy arrays)."""
        own = track[devices["row"]]
        for name, numbers in (("device", self._devices), ("stream", self._streams)):
            devices[name] = np.where(devices[name] == ABSENT, numbers[own], devices[name])


def _number(label: object, largest: int) -> int:
    match = _STREAM.fullmatch(str(label))
    return int(match[1]) if match and int(match[1]) <= largest else ABSENT
