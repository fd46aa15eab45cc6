"""Keeps the state of the child while the program runs.

Holds the plan and the notes, and makes a window a trace file.
"""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bottleneck.harness.debug_modes import DebugWatch
from bottleneck.harness.folder import RankFiles
from bottleneck.harness.inductor import Inductor
from bottleneck.harness.lines import lines_of_steps, texts_at, texts_of
from bottleneck.harness.machine import peak_of_script
from bottleneck.harness.memory_growth import MemoryLook, growth_between
from bottleneck.harness.messages import MOST_STEPS, Notes, Plan, rank_of
from bottleneck.harness.other_threads import ThreadLook, threads_between
from bottleneck.harness.padding import PaddingSampler
from bottleneck.harness.program import began_ns
from bottleneck.harness.repeated_modules import RepeatLook
from bottleneck.harness.resting_memory import find_resting_memory
from bottleneck.harness.setting_lines import setting_lines
from bottleneck.harness.start_up import StartUpWatch, Stretch
from bottleneck.harness.stopwatch import STEPS_FOR_TREND, Stopwatch, find_trend, is_disturbed
from bottleneck.harness.torch_private import losses
from bottleneck.harness.torch_state import describe_compilation, search_path
from bottleneck.harness.values import ValueLook
from bottleneck.harness.window import Detail, ProfilerWindow
from bottleneck.schema.measurements import PageFaults
from bottleneck.schema.recording import LightWindow
from bottleneck.schema.statistics import summarise_durations
from bottleneck.system.files import write_whole
from bottleneck.units import counted


@dataclass(frozen=True)
class Setting:
    """Assumptions of a measurement, and its name for the thing that it measures.

    ``hint`` is what helps where no step was found. ``is_bounded`` tells whether the start and the end of what is
    measured are those of a step, ``opening`` is what the window at the start records (null: there is none).
    ``thread`` is the only one in which steps are looked for; null for any. ``place`` is rank and number of ranks; null
    where the launcher tells them. ``has_start`` is false where the program had started long before.
    """

    what: str
    hint: str
    takes_signals: bool
    is_bounded: bool
    opening: Detail | None
    thread: int | None = None
    place: tuple[int, int] | None = None
    has_start: bool = True


# From here on a step is long: few of them go into a second window, and none where the first made them hardly longer.
LONG_US, _LEAST_STEPS, _HARDLY_LONGER = 100_000.0, 3, 1.02

# Short steps are repeated until they fill this much time, unless that takes more of them than this.
PROFILED_US, PROFILED_STEPS_AT_MOST = 20_000.0, MOST_STEPS
# The window with the fewest options gives the amounts. In 20 ms a line of Python had 20 to 33 % of the same step of
# 2.5 ms from recording to recording, on a machine with other work. More steps would be missed between the windows.
LIGHT_US, LIGHT_STEPS_AT_MOST = 100_000.0, MOST_STEPS

# A window of so many events is enough where each step has thousands: each event takes some 40 us to export and to read
# again, while the program or its user waits. Nor is a long step repeated more often than it takes to show how much
# steps vary. The window with the fewest options, which has about half of the events, gets twice as many steps.
_ENOUGH_EVENTS = 30_000

# Without stacks: a library that the script imports next would be recorded call by call.
PROGRAM = Setting(
    what="the program",
    hint="bottleneck.step() at the end of each round marks them",
    takes_signals=True,
    is_bounded=False,
    opening=Detail(stacks=False),
)
# The start of a program whose processes are followed is not what it does. And a fork of a process that has used the
# profiler had better not use it again.
PARENT = dataclasses.replace(PROGRAM, opening=None)


def setting_of_window(thread: int | None = None) -> Setting:
    """Gives the setting of a window in the middle of a run.

    It has no opening: a profiler may start between two steps only. ``thread`` is as in ``Setting``.
    """
    return Setting(
        what="the recorded window",
        hint="bottleneck.step() at the end of each turn of its loop marks the steps",
        takes_signals=False,
        is_bounded=False,
        opening=None,
        thread=thread,
        place=(0, 1),
        has_start=False,
    )


class RankSource(Protocol):
    """The ranks of a recording, of which a process takes one."""

    def take(self) -> tuple[RankFiles, int]:
        """Takes a rank for this process.

        Gives its files and the number of ranks of its job.
        """


class Session:
    """State of one measurement of the program in its process.

    The notes grow as the measurement goes on and reach the disk at each stage, so that a crash leaves the rest.
    """

    def __init__(self, plan: Plan, setting: Setting = PROGRAM, places: RankSource | None = None) -> None:
        """Takes the plan of the recording.

        ``places`` gives this process its rank as soon as it has something to keep. Null where the rank is known now.
        """
        self.plan, self.options, self.setting = plan, plan.options, setting
        rank, ranks = setting.place or rank_of(os.environ)
        self._places = places
        self._files = RankFiles(Path(plan.folder), rank) if places is None else None
        self.notes = Notes(ranks=ranks)
        self.inductor = Inductor()
        self.start_up = StartUpWatch(is_sampled=plan.options.startup, began_ns=began_ns())
        self.status = 0
        self._debugging = DebugWatch()
        self._padding = PaddingSampler()
        self._values = ValueLook()
        self._repeats = RepeatLook()
        self._memory: MemoryLook | None = None
        self._threads: ThreadLook | None = None
        # Of lines that no window shows.
        self._more_texts: dict[str, str] = {}
        self._undisturbed_us: list[float] = []
        self._quickest_us = math.inf
        self.planned_steps = plan.options.wanted_steps
        self._enough_light_steps = LIGHT_STEPS_AT_MOST
        self._process = os.getpid()
        # Where the program starts, wherever it goes.
        self._folder = _working_folder()
        self.step_lines: frozenset[str] = frozenset()

    def compiler_watchers(self) -> Mapping[str, Callable[[Any], None]]:
        """The functions to call once a module of the compiler is loaded.

        None where the start is followed: a name for each kernel would have the program compile anew.
        """
        return {} if self.options.startup else self.inductor.watchers()

    @property
    def is_here(self) -> bool:
        """True if this is the process that was started, not a fork of it."""
        return os.getpid() == self._process

    @property
    def files(self) -> RankFiles:
        """The files of this process's rank, which it takes now where it has none."""
        if self._files is None:
            assert self._places is not None, "a process without a rank has to be given one"
            self._files, ranks = self._places.take()
            self.note(ranks=ranks)
        return self._files

    @property
    def has_trace(self) -> bool:
        """True if a trace was kept."""
        return self._files is not None and self._files.partial.exists()

    @property
    def has_profiled_steps(self) -> bool:
        """True if that trace holds a run of profiled steps."""
        return math.isfinite(self._quickest_us)

    @property
    def _page_faults(self) -> PageFaults:
        return self.notes.page_faults or PageFaults(os.sysconf("SC_PAGE_SIZE"))

    def note(self, **changes: Any) -> None:
        """Replaces fields of the notes."""
        self.notes = dataclasses.replace(self.notes, **changes)

    def warn(self, message: str) -> None:
        """Adds a warning, once."""
        if message not in self.notes.warnings:
            self.note(warnings=(*self.notes.warnings, message))

    def warn_of_failure(self, when: str, exc: Exception) -> None:
        """Says that our own part failed, which the program does not notice."""
        self.warn(f"the measurement failed {when}: {type(exc).__name__}: {exc}")

    def note_debug_modes(self) -> None:
        """Adds the aids to debugging that are on now.

        Call it while no window is open.
        """
        with contextlib.suppress(Exception):  # a tool of the program's own may answer in any way
            self.note(debug_modes=self._debugging.read(self.notes.debug_modes, sys.modules.get("torch")))
            self._show_text(mode.source for mode in self.notes.debug_modes)
            self.note(setting_lines=self.notes.setting_lines or setting_lines())
            self._show_text(itertools.chain.from_iterable(self.notes.setting_lines.values()))

    def _show_text(self, places: Iterable[str | None]) -> None:
        """Keeps what these lines of the program say."""
        wanted = {place for place in places if place is not None} - self._more_texts.keys()
        self._more_texts.update(texts_at(wanted))
        self.note(source_texts={**self.notes.source_texts, **self._more_texts})

    @property
    def is_looking(self) -> bool:
        """True in a step that a look or timed aids make longer."""
        looks = (self._values, self._padding, self._repeats)
        return self._debugging.is_timing or any(look.is_on for look in looks)

    def begin_debugged_step(self, step: object = None) -> None:
        """Begins a step that is not measured.

        In it aids to debugging are timed, or ids and values looked at. ``step`` is the function that is repeated where
        the harness repeats it.

        Where aids are timed, the looks wait for the step after it: they take time as well.
        """
        self._debugging.begin_step(self.notes.debug_modes)
        if not self._debugging.is_timing:
            self._begin_looks(step)

    def _begin_looks(self, step: object) -> None:
        if self.notes.padding is None:
            with contextlib.suppress(Exception):  # another version of torch
                self._padding.start(sys.modules.get("torch"), on_devices=self.options.inspect_padding)
        with contextlib.suppress(Exception):
            self._values.start(sys.modules.get("torch"))
        # Where steps are counted, a window may open in the second step of this look, and would count its samples. Where
        # the harness repeats a step, its inputs are the same each time, and with them all that they give.
        with contextlib.suppress(Exception):
            if not self.options.counting and step is None:
                self._repeats.start(sys.modules.get("torch"))

    def end_debugged_step(self, step: object = None, *, is_last: bool = False) -> bool:
        """Ends that step, if one has begun.

        True where the next one is such a step too, which ``is_last`` prevents.
        """
        if self._values.is_on:
            with contextlib.suppress(Exception):
                self._values.stop()
                self.look_at_values(step)
        if self._padding.is_on:
            self.note(padding=self._padding.stop())
        if self._repeats.is_on:
            self._end_repeats(is_last=is_last)
        self._repeats.release()
        if not self._debugging.is_timing:
            return False
        self.note(debug_modes=self._debugging.end_step(self.notes.debug_modes, is_last=is_last))
        if not is_last and not self._debugging.is_timing:
            self._begin_looks(step)
        return not is_last

    def _end_repeats(self, *, is_last: bool) -> None:
        """Ends a step of the look at repeated work.

        It goes on in the next one.
        """
        with contextlib.suppress(Exception):
            repeats = self._repeats.end_step(is_last=is_last)
            if repeats is not None:
                self.note(
                    repeated_modules=repeats.modules,
                    repeated_lines=repeats.lines,
                    same_in_step=repeats.in_step,
                    lines_same_in_step=repeats.lines_in_step,
                    carried_lines=repeats.carried,
                )
                modules = (module.source for module in (*repeats.modules, *repeats.in_step))
                self._show_text((*modules, *repeats.lines, *repeats.lines_in_step))

    def look_at_values(self, step: object = None) -> None:
        """Looks again at the values of what the program holds.

        Call it at a step boundary outside of what is measured.
        """
        with contextlib.suppress(Exception):  # the program's variables may be of any kind
            self._values.look_at_rest(sys.modules.get("torch"), step)
            self.note(values=self._values.result())
            if self.notes.values is not None:
                self._show_text(tensor.source for tensor in self.notes.values.odd)

    def look_at_memory(self, step: object = None) -> None:
        """Looks at the memory now.

        Call it at a step boundary outside of what is measured. See ``note_memory_growth``.
        """
        with contextlib.suppress(Exception):  # the program's variables may be of any kind
            self._memory = MemoryLook(sys.modules.get("torch"), step)

    def read_memory_again(self, steps: int) -> None:
        """Reads how much memory there is, so many steps after that look."""
        if self._memory is not None:
            self._memory.read_again(steps)

    def note_memory_growth(self, steps: int, step: object = None) -> None:
        """Adds what has grown in so many steps since that look.

        Where allocations are to be recorded, also what models and optimizers hold.
        """
        if self.options.memory:
            with contextlib.suppress(Exception):  # as above
                self.note(resting_memory=find_resting_memory(sys.modules.get("torch")))
        before, self._memory = self._memory, None
        if before is None:
            return
        with contextlib.suppress(Exception):
            torch = sys.modules.get("torch")
            self.note(memory_growth=growth_between(before, MemoryLook(torch, step), steps, torch))
            if self.notes.memory_growth is not None:
                self._show_text(keeper.source for keeper in self.notes.memory_growth.keepers)

    def look_at_threads(self) -> None:
        """Looks at the program's threads now.

        Call it at the step boundary from which steps are timed.
        """
        with contextlib.suppress(Exception):
            self._threads = ThreadLook()

    def note_other_threads(self) -> None:
        """Adds what other threads have computed since that look.

        Call it outside of what is measured.
        """
        before, self._threads = self._threads, None
        if before is None:
            return
        with contextlib.suppress(Exception):  # threads may end meanwhile
            self.note(other_threads=threads_between(before, ThreadLook()))
            if self.notes.other_threads is not None:
                self._show_text(thread.source for thread in self.notes.other_threads.threads)

    def save(self) -> None:
        """Saves the notes to disk.

        A full or vanished disk does not disturb the program.
        """
        if self.is_here and self._files is not None:
            for lost in losses():
                self.warn(lost)
            try:
                write_whole(self.files.notes, json.dumps(dataclasses.asdict(self.notes)))
            except OSError:
                return

    def finish_measuring(self) -> None:
        """Tells the supervisor that nothing more will be measured.

        It may report while the program goes on.
        """
        if not self.notes.is_measured:
            self.note(is_measured=True)
            self.save()

    def time(self, stopwatch: Stopwatch) -> None:
        """Takes the steps as those that nothing disturbed."""
        self._undisturbed_us = stopwatch.durations_us()
        marks_ns, trend = stopwatch.marks_ns, find_trend(self._undisturbed_us)
        if trend is not None:
            self.warn(f"step times had not settled when they were taken: {trend}; --warmup N lets more steps pass")
        self.note(
            unprofiled=summarise_durations(self._undisturbed_us),
            timed_ns=(marks_ns[0], marks_ns[-1]) if len(marks_ns) > 1 else None,
            peak_memory=peak_of_script(sys.modules.get("torch")),
            page_faults=dataclasses.replace(self._page_faults, unprofiled=stopwatch.page_faults),
            settled=trend is None if len(self._undisturbed_us) >= STEPS_FOR_TREND else None,
        )
        self.save()

    def note_start_up(self, steps: Sequence[Stretch], own: Sequence[Stretch] = ()) -> None:
        """Adds the start until the first steady step, once.

        ``own`` is time between them that was ours.
        """
        if self.notes.start_up is not None or not self.setting.has_start:
            return
        timing = self.notes.unprofiled
        with contextlib.suppress(Exception):  # what the compiler keeps may have any form
            start = self.start_up.finish(steps, own, None if timing is None else timing.median / 1e6)
            self.note(start_up=start)
            self._show_text(part.source for part in start.parts if start.is_sampled)

    def offer(self, window: ProfilerWindow, stopwatch: Stopwatch) -> bool:
        """Keeps the window if its steps are the quickest yet.

        Tells whether they were free of foreign disturbance.
        """
        if stopwatch.is_clock_set:
            self.warn("the machine's clock was set while steps were profiled: that window was thrown away")
            return False
        durations_us = stopwatch.durations_us()
        mean_us = statistics.fmean(durations_us)
        self.note(windows_us=(*self.notes.windows_us, mean_us))
        if mean_us < self._quickest_us:
            self._quickest_us = mean_us
            self.keep(window, stopwatch)
        return not is_disturbed(durations_us, self._undisturbed_us)

    def warn_of_disturbance(self) -> None:
        """Says that no window was calm."""
        self.warn("the profiled steps vary far more than the unprofiled ones: other programs may have disturbed them")

    def warn_of_budget(self, allowed: int, wanted: int, events: int) -> None:
        """Says that fewer steps than wanted are profiled, since one makes so many events."""
        if allowed < wanted:
            self.warn(
                f"profiled {max(1, allowed)} of {counted(wanted, 'step')}: one step makes about {events} events, "
                f"and the budget is {self.options.most_events}"
            )

    @property
    def wanted_steps(self) -> int:
        """Number of steps to profile.

        Left to us, there are more of them where they are short, since a stall spoils more of those.
        """
        return self._filling(PROFILED_US, PROFILED_STEPS_AT_MOST)

    @property
    def lead_steps(self) -> int:
        """Gives the steps in a window before those that count.

        The profiler has to warm up, which takes it some milliseconds: long steps need none.
        """
        return 0 if self._has_long_steps else 1

    @property
    def _has_long_steps(self) -> bool:
        timing = self.notes.unprofiled
        return timing is not None and timing.median >= LONG_US

    def plan_steps(self, events: int) -> int:
        """Plans how many steps to profile where one makes so many events.

        Gives their number. Ranks, which may count unlike events, all profile as many as are wanted.
        """
        self.planned_steps = self.wanted_steps
        if self.options.steps is None and self.notes.ranks == 1:
            enough = _LEAST_STEPS if self._has_long_steps else max(_LEAST_STEPS, math.ceil(_ENOUGH_EVENTS / events))
            self.planned_steps = min(self.planned_steps, enough)
            self._enough_light_steps = max(_LEAST_STEPS, math.ceil(2 * _ENOUGH_EVENTS / events))
        return self.planned_steps

    @property
    def wanted_light_steps(self) -> int:
        """The steps to profile with the fewest options."""
        return self._filling(LIGHT_US, min(LIGHT_STEPS_AT_MOST, self._enough_light_steps))

    def _filling(self, us: float, most: int) -> int:
        """Gives the number of steps that were asked for.

        Left to us, as many more as fill this time, up to ``most``.
        """
        timing, wanted = self.notes.unprofiled, self.options.wanted_steps
        if self.options.steps is not None or timing is None or not timing.median > 0:
            return wanted
        return max(wanted, min(math.ceil(us / timing.median), most))

    def light_steps(self, detail: Detail, most: int) -> int:
        """Gives the number of steps of a second, light window.

        It has the fewest options. 0 where the first, with this detail, is as good. Long steps that the first window
        made hardly longer are not repeated.
        """
        timing, profiled = self.notes.unprofiled, self.notes.profiled
        if timing is None or profiled is None or not self.has_trace or detail == detail.least:
            return 0
        is_long = self._has_long_steps
        if is_long and profiled.median < _HARDLY_LONGER * timing.median:
            return 0
        return max(1, min(most, _LEAST_STEPS if is_long else most))

    def offer_light(self, window: ProfilerWindow, stopwatch: Stopwatch) -> bool:
        """Keeps the window with the fewest options if it is better.

        It is with more or quicker steps. Tells whether they were undisturbed.
        """
        profiled = stopwatch.timing()
        if stopwatch.is_clock_set or profiled is None:
            return False
        before = None if self.notes.light is None else self.notes.light.profiled
        is_better = before is None or profiled.n > before.n or profiled.median < before.median
        if is_better and self._export(window, self.files.partial_light, stopwatch):
            self.note(
                light=LightWindow(self.files.light.name, tuple(stopwatch.marks_ns), profiled),
                page_faults=dataclasses.replace(self._page_faults, lightly=stopwatch.page_faults),
            )
            self.save()
        return not is_disturbed(stopwatch.durations_us(), self._undisturbed_us)

    def keep(self, window: ProfilerWindow, stopwatch: Stopwatch) -> None:
        """Exports a stopped window as the trace of this recording.

        The steps that were marked in it go along.
        """
        if not self._export(window, self.files.partial, stopwatch):
            return
        self.step_lines = lines_of_steps(window.lines, stopwatch.marks_ns)
        self.note(
            compilation=describe_compilation(self._folder),
            search_path=search_path(self._folder),
            source_texts={**texts_of(window.lines, self._folder), **self._more_texts},
            step_marks_ns=tuple(stopwatch.marks_ns) if stopwatch.steps else (),
            first_step=stopwatch.first_step if stopwatch.steps else None,
            profiled=stopwatch.timing(),
            page_faults=dataclasses.replace(self._page_faults, profiled=stopwatch.page_faults),
        )
        self.save()

    def _export(self, window: ProfilerWindow, path: Path, stopwatch: Stopwatch) -> bool:
        """Exports the window's trace and tells whether it is there now.

        The kernels that the program compiled lie beside it.
        """
        fresh = self.files.fresh
        kernels = fresh.with_name(f".fresh.{self.files.compiled.name}")
        try:
            window.export(fresh, stopwatch.own_ns)
            if self.inductor.has_something_to_tell:
                kernels.write_text(self.inductor.as_text(), encoding="utf-8")
                kernels.replace(self.files.compiled)
            fresh.replace(path)
        except OSError as exc:
            fresh.unlink(missing_ok=True)
            kernels.unlink(missing_ok=True)
            self.warn(f"the trace could not be written: {exc.strerror}; make room, or record elsewhere with -o DIR")
            return False
        except Exception as exc:  # ours or the profiler's, in the middle of the program
            fresh.unlink(missing_ok=True)
            self.warn(f"the trace could not be written: {type(exc).__name__}: {exc}")
            return False
        return True


def _working_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - as plain text
    except OSError:  # it is gone
        return os.sep


@contextlib.contextmanager
def silenced(*descriptors: int) -> Iterator[None]:
    """Discards what goes to these file descriptors while it lasts.

    One that is closed is left alone.
    """
    _flush()
    copies = {descriptor: copy for descriptor in descriptors if (copy := _copy(descriptor)) is not None}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in copies:
        os.dup2(nowhere, descriptor)
    try:
        yield
    finally:
        _flush()
        for descriptor, copy in copies.items():
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(nowhere)


def _copy(descriptor: int) -> int | None:
    try:
        return os.dup(descriptor)
    except OSError:
        return None


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the program may have closed or replaced it
            stream.flush()
