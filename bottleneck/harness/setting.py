"""Where a measurement takes place: in a process that is there for it, or in a block of a program's own."""

from dataclasses import dataclass

from bottleneck.harness.capture import Detail


@dataclass(frozen=True)
class Setting:
    """What the measurement may take for granted, and what it calls the thing that it measures.

    ``hint`` is what helps where no step was found. ``is_bounded`` tells whether the start and the end of what is
    measured are those of a step, ``opening`` is what the window at the start records. ``thread`` is the only one in
    which steps are looked for; null for any.
    """

    what: str
    hint: str
    takes_signals: bool
    is_bounded: bool
    opening: Detail
    thread: int | None = None


# Without stacks: a library that the script imports next would be recorded call by call.
PROGRAM = Setting(
    what="the program",
    hint="a file with workload() can be measured in full",
    takes_signals=True,
    is_bounded=False,
    opening=Detail(stacks=False),
)
