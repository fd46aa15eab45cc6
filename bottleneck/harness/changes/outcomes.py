"""Why a change was not tried: states of a trial, not errors."""


class NotApplicable(Exception):  # noqa: N818 - a state, not an error
    """The step has nothing that this change could change; the message says what it would need."""


class Missing(Exception):  # noqa: N818
    """Something has to be installed first; the message says how to get it."""
