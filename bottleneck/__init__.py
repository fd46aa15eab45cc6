"""The front of the package: its version and the names for programs.

Nothing here costs time to import.

pandas probes for an unrelated package of this name (fast array reductions) whenever it is imported. It finds us, asks
for ``__version__`` (which must stay below the 1.5 from which it would call functions that we lack) and warns that we
are too old. That one warning is about the name, not about anything a user can act on.
"""

import warnings

from bottleneck._version import __version__ as _version

TYPE_CHECKING = False  # type checkers take it for true by its name; `typing` alone would cost milliseconds
if TYPE_CHECKING:  # what type checkers see; at run time each is looked up when it is first used
    from bottleneck.harness.attachable import attachable as attachable
    from bottleneck.harness.marks import step as step
    from bottleneck.recorder.recorded_block import record as record
    from bottleneck.recorder.watched_program import watch as watch

    __version__: str
else:
    _HOMES = {
        "attachable": "bottleneck.harness.attachable",
        "record": "bottleneck.recorder.recorded_block",
        "step": "bottleneck.harness.marks",
        "watch": "bottleneck.recorder.watched_program",
        "load_ipython_extension": "bottleneck.integrations.notebook",
        "unload_ipython_extension": "bottleneck.integrations.notebook",
    }

    def __getattr__(name: str) -> object:
        """Imports and gives one of our names, or gives the version.

        No other name, or array libraries would take us for theirs.
        """
        if name == "__version__":
            return _told_version()
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415 - not before it is needed

        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        """Gives the names in memory and those importable on request.

        A notebook completes all of them.
        """
        return sorted({*globals(), *_HOMES})


def _told_version() -> str:
    """Gives the version, after filtering the warning of pandas.

    pandas asks right before it warns, so the filter is in place under any warning settings.
    """
    warnings.filterwarnings(
        "ignore", message=r"Pandas requires version '[^']+' or newer of 'bottleneck'", category=UserWarning
    )
    return _version
