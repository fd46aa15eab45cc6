"""The report as soon as everything is measured, while the program goes on to its own end."""

import os
import sys
import termios
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.commands.interrupts import Interrupted
from bottleneck.commands.telling import Told, Voice, close, needing_ceilings, say, shown, tell

if TYPE_CHECKING:
    from bottleneck.harness.calibrate import Calibration
    from bottleneck.harness.finish import Ending
    from bottleneck.harness.following import Follower
    from bottleneck.harness.notes import Plan
    from bottleneck.harness.supervisor import End
    from bottleneck.harness.telemetry import Monitor, Telemetry

_FORCED = "the program had to be killed: it did not end within ten seconds of being told to stop"


class Sampling:
    """The sensors beside the program, or none; read until they are asked for what they said."""

    def __init__(self, monitor: "Monitor | None") -> None:
        self._monitor = monitor
        self._said: Telemetry | None = None

    def start(self, process: int) -> None:
        """Begins to read beside this process."""
        if self._monitor is not None:
            self._monitor.start(process)

    def stop(self) -> "Telemetry | None":
        """What they said; from now on they cost nothing."""
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            self._said = monitor.stop()
        return self._said


@dataclass
class Reporter:
    """Reports once, early if it can; ``told`` is null as long as nothing was said of the recording.

    ``ending`` is what is known of the run before its end.
    """

    plan: "Plan"
    ending: "Ending"
    sampling: Sampling
    told: Told | None = None
    all_findings: bool = False

    def tell_early(self, ended: threading.Event) -> None:
        """Reports from the thread that follows the program, when all is measured and it has not ended meanwhile.

        Only a whole report is given: where something is missing that needs the end of the program, one line says so.
        """
        from bottleneck.analysis.sensors import MARGIN_NS

        # Sensors are read for as long as the report wants to see them. A program that is to stop will do so soon.
        if self.plan.stop or ended.wait(MARGIN_NS / 1e9):
            return
        telemetry = self.sampling.stop()
        reason = self._reason_to_wait()
        if reason is not None:
            _say_in_the_middle(f"bottleneck: measured; the report follows when the program ends, since {reason}")
            return
        lines: list[str] = []
        voice = Voice(lines.append, known_ceilings, self.all_findings)
        self.told = tell(self.plan, replace(self.ending, telemetry=telemetry), voice)
        _say_in_the_middle("\n".join([*lines, "bottleneck: the program goes on"]))

    def conclude(self, follower: "Follower", end: "End", memory_kills: int | None) -> Told:
        """Says how the program ended, and all that was not said before."""
        from bottleneck.harness.deaths import describe_end
        from bottleneck.harness.finish import steps_before_the_end

        folder = Path(self.plan.folder)
        try:
            follower.stop()
            words = _FORCED if follower.is_forced else describe_end(end, steps_before_the_end(folder), memory_kills)
            remarks = (words,) if follower.is_forced or end.signal is not None else ()
            ending = replace(
                self.ending,
                status=0 if follower.is_forced else end.status,
                telemetry=self.sampling.stop(),
                remarks=remarks,
            )
        except Interrupted:
            say(f"bottleneck: interrupted; for the report: bottleneck report {shown(folder)}")
            return Told(succeeded=False, is_finished=False)
        if self.told is None:
            return tell(self.plan, ending, Voice(say, measured_ceilings, self.all_findings))
        close(folder, ending)
        say(f"bottleneck: {words}; the recording is in {shown(folder)}")
        return self.told

    def _reason_to_wait(self) -> str | None:
        from bottleneck.harness.finish import read_all_notes

        if _is_taken_over():
            return "it has the whole terminal"
        folder = Path(self.plan.folder)
        on_cpu = needing_ceilings(folder, read_all_notes(folder))
        if on_cpu and known_ceilings(on_cpu[0].threads) is None:
            return (
                "this CPU's ceilings have to be measured first, on a quiet machine (once, by `bottleneck calibrate`); "
                "--stop ends a program as soon as it is measured"
            )
        return None


def known_ceilings(threads: int | None) -> "Calibration | None":
    """The kept ceilings of this CPU: measuring them now would disturb the program, and it them."""
    from bottleneck.harness.calibrate import read_calibration

    return read_calibration(threads)


def measured_ceilings(threads: int | None) -> "Calibration | None":
    """The ceilings of this CPU, measured now if need be."""
    from bottleneck.harness.ceilings import cpu_calibration

    return cpu_calibration(threads, say)


def _say_in_the_middle(text: str) -> None:
    """Writes all of it at once, beginning a line where the program may have left one open."""
    say(f"\n{text}" if sys.stderr.isatty() else text)


def _is_taken_over() -> bool:
    """Whether stderr is a terminal that a full-screen program draws on: what we write would spoil its picture."""
    try:
        if not os.isatty(2):
            return False
        output_flags, local_flags = termios.tcgetattr(2)[1], termios.tcgetattr(2)[3]
    except termios.error:
        return False
    return not (output_flags & termios.OPOST and local_flags & termios.ICANON)
