"""Records the training loop of accelerate: ``Accelerator(log_with=Tracker())``."""

import os
from typing import Any

from accelerate.tracking import GeneralTracker

from bottleneck.integrations.training_recording import TrainingRecording


class Tracker(GeneralTracker):
    """Tracker that records by `bottleneck.record` from `init_trackers` on.

    It ends once all is measured, at the latest with `end_training`. Like all trackers it is told of the main process
    alone. ``options`` are those of `bottleneck.record`; ``recording.block`` shows the result.
    """

    name = "bottleneck"
    requires_logging_directory = False

    def __init__(self, folder: "str | os.PathLike[str]" = "bottleneck-runs/accelerate", **options: Any) -> None:
        super().__init__()
        self.recording = TrainingRecording(folder, **options)

    @property
    def tracker(self) -> TrainingRecording:
        """The object that `get_tracker("bottleneck", unwrap=True)` returns."""
        return self.recording

    def start(self) -> None:
        """Begins the recording."""
        self.recording.begin(0, 1)

    def log(self, *_: Any, **__: Any) -> None:
        """Ends the recording once all is measured; nothing is logged."""
        self.recording.end_if_measured()

    def finish(self) -> None:
        """Ends the recording."""
        self.recording.end()
