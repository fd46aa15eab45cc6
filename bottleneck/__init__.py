"""The front of the package: its version, and nothing that costs time to import.

pandas probes for an unrelated package of this name (fast array reductions) whenever it is imported. It finds us, asks
for ``__version__`` (which must stay below the 1.5 from which it would call functions that we lack) and warns that we
are too old. That one warning is about the name, not about anything a user can act on.
"""

import warnings

from bottleneck._version import __version__ as _version


def __getattr__(name: str) -> str:
    """The version; pandas asks right before it warns, so the filter is in place under any warning settings."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.filterwarnings(
        "ignore", message=r"Pandas requires version '[^']+' or newer of 'bottleneck'", category=UserWarning
    )
    return _version
