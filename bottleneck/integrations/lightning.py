"""Records the training loop of Lightning: ``Trainer(callbacks=[Callback()])``."""

import os
import sys
from typing import TYPE_CHECKING, Any

from bottleneck.integrations.training_recording import TrainingRecording

# One library under two names, whose classes differ: that of the program, where it has imported one already.
if TYPE_CHECKING or "lightning.pytorch" not in sys.modules:
    import pytorch_lightning as lightning
else:
    lightning = sys.modules["lightning.pytorch"]


class LightningCallback(lightning.Callback):
    """Callback that records the first steps of each `fit()` by `bottleneck.record`.

    A step is one of the optimizer. ``options`` are those of `bottleneck.record`; ``recording.block`` shows the result.
    """

    def __init__(self, folder: "str | os.PathLike[str]" = "bottleneck-runs/lightning", **options: Any) -> None:
        self.recording = TrainingRecording(folder, **options)
        self._steps = 0

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Begins the recording."""
        self._steps = trainer.global_step
        self.recording.begin(trainer.global_rank, trainer.world_size)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Marks the end of a step, unless the batch only added to the gradients."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self.recording.step()

    def on_train_end(self, *_: Any) -> None:
        """Ends the recording of a loop that was too short to be measured."""
        self.recording.end()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Ends the recording and keeps what there is."""
        self.recording.end(exception)


Callback = LightningCallback
