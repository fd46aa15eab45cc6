"""The error tree: every failure that a user can meet.

Behind each stands the exit code that it ends in.

BottleneckError            70  a broken promise of ours
├── UsageError              2  the command line asks for something that cannot be
├── TraceError              3  the input cannot be read or is no PyTorch trace
├── WorkloadError           4  the user's program or its environment failed
└── UndecidedError          5  nothing was measured, or the measurement cannot decide
"""

# Begins the first line of an error on standard error, also that of a helper of ours.
ERROR_MARK = "error: "


class BottleneckError(Exception):
    """An error as three short lines for the user.

    They say what happened and where, why, and what to do next. ``why`` and ``fix`` may be empty when ``what`` says it
    all. ``fix_in_code`` is the fix for those who call the library instead of the command, where that is another.
    ``rank`` is set where the trace tells whose it is.
    """

    exit_code = 70
    rank: int | None = None

    def __init__(self, what: str, *, why: str = "", fix: str = "", fix_in_code: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        self.fix_in_code = fix_in_code or fix

    def lines(self) -> list[str]:
        """The lines that the user reads."""
        parts = (("  why", self.why), ("  fix", self.fix))
        return [f"{ERROR_MARK}{self.what}", *(f"{label}: {text}" for label, text in parts if text)]


class UsageError(BottleneckError):
    """The command line asks for something that cannot be."""

    exit_code = 2


class TraceError(BottleneckError):
    """The input cannot be read or is no PyTorch trace."""

    exit_code = 3


class WorkloadError(BottleneckError):
    """The user's program or its environment failed; what was captured is kept."""

    exit_code = 4


class UndecidedError(BottleneckError):
    """Nothing was measured, or the measurement cannot decide."""

    exit_code = 5
