"""Records the training loop of `transformers.Trainer`: ``Trainer(callbacks=[Callback()])``."""

import os
from typing import Any

from transformers import TrainerCallback, TrainingArguments

from bottleneck.integrations.training_recording import TrainingRecording


class TransformersCallback(TrainerCallback):
    """Callback that records the first steps of each `train()` by `bottleneck.record`.

    A step is one of the optimizer. ``options`` are those of `bottleneck.record`; ``recording.block`` shows the result.
    """

    def __init__(self, folder: "str | os.PathLike[str]" = "bottleneck-runs/trainer", **options: Any) -> None:
        self.recording = TrainingRecording(folder, **options)

    def on_train_begin(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        """Begins the recording."""
        self.recording.begin(args.process_index, args.world_size)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Marks the end of a step."""
        self.recording.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Ends the recording of a loop that was too short to be measured."""
        self.recording.end()


Callback = TransformersCallback
