"""The front of the package: a version, the recording hooks, and nothing that costs time to import."""

__version__ = "0.1.0"

import warnings

# pandas probes for an unrelated package of this name (fast array reductions) whenever it is imported. It finds us,
# reads __version__ (which must therefore stay below the 1.5 from which it would call functions that we lack) and
# warns that we are too old. That one warning is about the name, not about anything a user can act on.
warnings.filterwarnings(
    "ignore", message=r"Pandas requires version '[^']+' or newer of 'bottleneck'", category=UserWarning
)
