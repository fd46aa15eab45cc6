"""Process that holds variants of a step.

It is started, driven line by line, and ended with all that it started.
"""

import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from bottleneck.experiment.variants import Built
from bottleneck.harness.messages import Program
from bottleneck.harness.program import says_out_of_memory
from bottleneck.harness.supervise import CHILD, last_line, read_tail
from bottleneck.schema.measurements import Difference, LoaderSetting, TrialVerdict
from bottleneck.system.child_process import Child
from bottleneck.system.process_usage import page_faults_of

VARIANTS_CHILD = (CHILD, "bottleneck.experiment.child_entry:serve_variants")

# Compilers that try many kernels take minutes.
BUILD_SECONDS_AT_MOST = 1200.0
TURN_SECONDS_AT_LEAST = 120.0
NO_TIME = "no time was left"
_LOOK_S = 0.5
_QUIT_S = 3.0


class Refused(Exception):  # noqa: N818 - an outcome of a trial, not an error of ours
    """A variant that was not made or did not run.

    ``verdict`` and ``reason`` are those of its trial. ``fix`` says what its user may do; '' where nothing is known.

    ``has_died`` marks one that ended its process, ``is_for_memory`` one that may have failed for lack of memory.
    """

    def __init__(
        self,
        verdict: TrialVerdict,
        reason: str,
        *,
        has_died: bool = False,
        is_for_memory: bool = False,
        fix: str = "",
    ) -> None:
        super().__init__(reason)
        self.verdict: TrialVerdict = verdict
        self.reason, self.has_died, self.is_for_memory, self.fix = reason, has_died, is_for_memory, fix


class Worker:
    """One process that holds variants.

    It leads a group of its own, so that Ctrl-C reaches us alone, who then end it.

    ``child`` is the script that answers, with its first arguments. What the program writes goes into ``log``. It starts
    in ``folder``, or where we are. No request is waited for beyond ``until``, a time of the monotonic clock.
    """

    until = math.inf

    def __init__(
        self,
        program: Program,
        log: Path,
        environment: Mapping[str, str] | None = None,
        child: Sequence[str] = VARIANTS_CHILD,
        folder: Path | None = None,
    ) -> None:
        ours, theirs = socket.socketpair()
        self._channel, self._unread = ours, b""
        self._log = log
        with ExitStack() as stack, theirs, log.open("ab") as output:
            stack.callback(ours.close)
            self._child = Child(
                [sys.executable, *child, json.dumps(asdict(program)), str(theirs.fileno())],
                at_our_death=signal.SIGKILL,  # it may be in the middle of a step
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Who is interrupted does not wait for the end of a step.
        self.close(_QUIT_S if error is None else 0.0)

    def build(
        self, name: str, changes: tuple[str, ...] = (), keep: Path | None = None, against: tuple[str, ...] = ()
    ) -> Built:
        """Makes a variant, with first results in the file ``keep``.

        Refused if that cannot be.

        ``against`` names the changes that an original is to be compared with.
        """
        file = None if keep is None else str(keep)
        wanted: dict[str, object] = {"name": name, "changes": list(changes), "keep": file, "against": list(against)}
        return Built(**self._ask(BUILD_SECONDS_AT_MOST, do="build", **wanted))

    def start_making(self, name: str) -> None:
        """Requests that the unchanged step is made and warmed up.

        It is for its time alone, and ``made`` waits for it.
        """
        self._send(do="make", name=name)

    def made(self) -> Built:
        """The figures of the step that ``start_making`` made; Refused if that cannot be."""
        return Built(**self._reply(BUILD_SECONDS_AT_MOST))

    def compare(self, changes: tuple[str, ...], kept: Path) -> tuple[Difference, ...]:
        """Returns the distances of results in a file from the original's.

        Refused if the original cannot be made.
        """
        differences = self._ask(BUILD_SECONDS_AT_MOST, do="compare", changes=list(changes), kept=str(kept))
        return tuple(Difference(**values) for values in differences)

    def open_loader(self) -> dict[str, Any]:
        """Makes the step for turns of its loader, and describes that loader."""
        return cast("dict[str, Any]", self._ask(BUILD_SECONDS_AT_MOST, do="open_loader"))

    def loader_turn(self, setting: LoaderSetting, limit_s: float) -> float | None:
        """Times the step with this setting, in microseconds; null if that took too long."""
        request = {"setting": asdict(setting), "limit_s": limit_s}
        return cast("float | None", self._ask(TURN_SECONDS_AT_LEAST, do="loader_turn", **request))

    def turn(self, name: str, steps: int, lead: int, usual_us: float) -> list[float]:
        """Returns microseconds of each step of a turn.

        Refused if one raises, or takes a hundred times as long as usual.
        """
        seconds = max(TURN_SECONDS_AT_LEAST, 100 * (steps + lead) * usual_us / 1e6)
        return cast("list[float]", self._ask(seconds, do="turn", name=name, steps=steps, lead=lead))

    def page_faults(self) -> int | None:
        """Counts the process's page faults so far; null where the system does not tell."""
        return page_faults_of(self._child.process)

    def refusal(self, refused: Refused) -> Exception:
        """The exception to raise for a refusal."""
        return refused

    def close(self, patience_s: float = _QUIT_S) -> None:
        """Ends the process and what it started: by asking, then by force."""
        self._child.end_tree(patience_s, self._ask_to_quit)
        self._channel.close()  # nobody is asked where the process has ended

    def _ask_to_quit(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.sendall(b'{"do": "quit"}\n')
        self._channel.close()

    def _ask(self, seconds: float, **request: object) -> Any:
        self._send(**request)
        return self._reply(seconds)

    def _send(self, **request: object) -> None:
        try:
            self._channel.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            raise self._death() from None

    def _reply(self, seconds: float) -> Any:
        reply = json.loads(self._line(time.monotonic() + seconds, seconds))
        if "value" in reply:
            return reply["value"]
        more = {name: reply[name] for name in ("is_for_memory", "fix") if name in reply}
        raise self.refusal(Refused(reply["verdict"], reply["reason"], **more))

    def _line(self, until: float, seconds: float) -> bytes:
        while b"\n" not in self._unread:
            # Not by the end of the stream alone: workers of a loader may hold a copy of the other end.
            has_ended = self._child.has_ended
            patience_s = 0.0 if has_ended else max(min(_LOOK_S, self.until - time.monotonic()), 0.0)
            ready, _, _ = select.select([self._channel], [], [], patience_s)
            part = self._read() if ready else b""
            if not part and (ready or has_ended):
                raise self._death()
            if not part and time.monotonic() >= self.until:
                raise self.refusal(Refused("skipped", NO_TIME))
            if not part and time.monotonic() > until:
                raise self.refusal(Refused("failed", f"it did not answer within {seconds:.0f} s"))
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _read(self) -> bytes:
        try:
            return self._channel.recv(1 << 16)
        except ConnectionResetError:
            return b""

    def _death(self) -> Exception:
        """The end of the process, in words."""
        if not self._child.end_tree(_QUIT_S):
            return self.refusal(Refused("failed", "its process went silent", has_died=True))
        end = self._child.wait()
        how = f"ended with status {end.status}" if end.signal is None else f"was killed by {end.signal_name}"
        line = ""
        with contextlib.suppress(OSError):
            line = last_line(read_tail(self._log))
        reason = f"its process {how}{f': {line}' if line else ''}"
        # The system ends what needs more memory than there is by SIGKILL.
        is_for_memory = end.signal == signal.SIGKILL or says_out_of_memory(line)
        return self.refusal(Refused("failed", reason, has_died=True, is_for_memory=is_for_memory))
