"""What the child holds while the program runs: the plan, the notes so far, and how a window becomes a trace file."""

import dataclasses
import os
from typing import Any

from bottleneck.harness.capture import Window
from bottleneck.harness.notes import Notes, Plan, write_notes
from bottleneck.harness.stopwatch import Stopwatch


class Session:
    """The notes grow as the measurement goes on and reach the disk at each stage, so that a crash leaves the rest."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.notes = Notes()
        self.status = 0
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is the process that was started, not a fork of it."""
        return os.getpid() == self._process

    @property
    def has_trace(self) -> bool:
        """Whether a trace was kept."""
        return self.plan.partial_file.exists()

    def note(self, **changes: Any) -> None:
        """Replaces fields of the notes."""
        self.notes = dataclasses.replace(self.notes, **changes)

    def warn(self, message: str) -> None:
        """Adds a warning, once."""
        if message not in self.notes.warnings:
            self.note(warnings=(*self.notes.warnings, message))

    def save(self) -> None:
        """Leaves the notes on disk; a full or vanished disk must not disturb the program."""
        if self.is_here:
            try:
                write_notes(self.plan.folder, self.notes)
            except OSError:
                return

    def keep(self, window: Window, stopwatch: Stopwatch) -> None:
        """Exports a stopped window as the trace of this recording, with the steps that were marked in it."""
        fresh = self.plan.partial_file.with_name(f".fresh.{self.plan.trace_file}")
        try:
            window.export(fresh)
            fresh.replace(self.plan.partial_file)
        except OSError as exc:
            fresh.unlink(missing_ok=True)
            self.warn(f"the trace could not be written: {exc.strerror}")
            return
        self.note(
            step_marks_ns=tuple(stopwatch.marks_ns) if stopwatch.steps else (),
            profiled=stopwatch.timing(),
        )
        self.save()
