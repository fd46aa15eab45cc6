"""Where one side of a comparison runs: its folder, what it is called, and what its environment holds besides."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Stand:
    """A side: ``label`` is what it is called, ``folder`` the root of its sources, from which its processes start.

    ``environment`` holds the variables that it sets besides those of this process.
    """

    label: str
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
