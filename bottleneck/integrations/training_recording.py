"""Records the loop of a training library, driven by the callbacks of that library."""

import atexit
import os
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from bottleneck.harness.marks import step as mark_step

if TYPE_CHECKING:
    from bottleneck.recorder.recorded_block import RecordedBlock


class TrainingRecording:
    """Recording of one training loop by `bottleneck.record`, which takes ``options``.

    ``block`` is what it recorded last: notebooks show it, and ``block.report()`` is its report. Null before the first
    loop.
    """

    _open: ClassVar["TrainingRecording | None"] = None

    def __init__(self, folder: "str | os.PathLike[str]", **options: Any) -> None:
        self.block: RecordedBlock | None = None
        self._folder, self._options = folder, options

    def begin(self, rank: int, ranks: int) -> None:
        """Begins to record this rank of so many, each time in a new folder.

        Where a block around the loop is being recorded, that block has the steps that are marked here.
        """
        from bottleneck.harness.block import TURN
        from bottleneck.recorder.recorded_block import record

        end_abandoned()
        if TURN.is_taken:
            return
        self.block = record(self._folder, rank=(rank, ranks), **self._options)
        self.block.__enter__()
        TrainingRecording._open = self
        atexit.register(end_abandoned)

    def step(self) -> None:
        """Ends a step of the loop."""
        mark_step()
        self.end_if_measured()

    def end_if_measured(self) -> None:
        """Ends the recording once all is measured: the loop may go on for days."""
        if self.block is not None and self.block.is_measured:
            self.end()

    def end(self, error: BaseException | None = None) -> None:
        """Ends the recording if it is open, and keeps what there is."""
        if TrainingRecording._open is self and self.block is not None:
            TrainingRecording._open = None
            atexit.unregister(end_abandoned)
            self.block.__exit__(None if error is None else type(error), error, None)


def end_abandoned() -> None:
    """Ends the recording of a loop that an exception left.

    Not every library tells its callbacks of one.
    """
    if TrainingRecording._open is not None:
        TrainingRecording._open.end(getattr(sys, "last_value", None))
