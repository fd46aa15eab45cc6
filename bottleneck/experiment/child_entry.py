"""Entry points of the processes that run steps for experiments.

They run a step with changes, and a script in turns.
"""

import gc
import json
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NoReturn

from bottleneck.experiment.interventions import CHANGES, changed_step
from bottleneck.experiment.variants import SETUP_CALLS, WARM_UP, Built, RequestChannel, serve, usual_us
from bottleneck.harness import program
from bottleneck.harness.boundaries import Boundaries
from bottleneck.harness.messages import Program
from bottleneck.harness.run_child import run_child
from bottleneck.harness.stopwatch import Stopwatch
from bottleneck.harness.torch_private import COMPILER, prefetched_by
from bottleneck.harness.torch_state import TorchHook
from bottleneck.schema.recording import StepSource

_LONGER = "let it go on for longer, or move its step into a function workload() that returns it"


class InterruptibleScript:
    """Follower of a script's steps, which stops at step boundaries.

    It warms the script up, then lets it go on by as many steps as each request names.

    It is at a boundary, inside the program's own call, that this process waits for the next request.
    """

    def __init__(self, channel: RequestChannel) -> None:
        self.seen = 0
        self._channel = channel
        self._torch: Any = None
        self._boundaries = Boundaries(self._boundary, self._start_over)
        self._course, self._is_warm = self._go(), False

    def hook(self) -> TorchHook:
        """The import hook for torch, and for those parts of it that make steps."""
        after = {"torch": self._on_torch, "torch.utils.data.dataloader": lambda _: self._boundaries.watch_loaders()}
        return TorchHook(after, {COMPILER: self._boundaries.watch_compiled})

    def _on_torch(self, torch: Any) -> None:
        self._torch = torch
        self._boundaries.watch(torch)

    def _boundary(self) -> None:
        self.seen += 1
        next(self._course)

    def _start_over(self, _source: StepSource, _name: str) -> None:
        """Starts over where a better source of steps was met.

        Once the turns have begun, it is too late for another kind of step.
        """
        if not self._is_warm:
            self._course = self._go()

    def _go(self) -> Iterator[None]:
        """Yields at the boundaries, one action after the other.

        Each `yield` lets the script go on by a step.
        """
        for _ in range(SETUP_CALLS):
            yield
        stopwatch = Stopwatch(self._torch)
        stopwatch.mark()
        while not WARM_UP.is_over(stopwatch):
            yield
            stopwatch.mark()
        self._is_warm = True
        self._boundaries.narrow()
        self._channel.reply(value=asdict(Built(0.0, None, 1.0, usual_us(stopwatch), _prefetched())))
        while True:
            request = self._channel.wait()
            for _ in range(request["lead"]):
                yield
            stopwatch = Stopwatch(self._torch)
            stopwatch.wait()
            stopwatch.mark()
            for _ in range(request["steps"]):
                yield
                stopwatch.mark()
            stopwatch.wait()
            self._channel.reply(value=stopwatch.durations_us())


def serve_script(requested: Program, descriptor: str) -> NoReturn:
    """Runs the script, and answers each request at one of its boundaries."""
    channel = RequestChannel(descriptor)
    script = InterruptibleScript(channel)
    channel.wait()
    script.hook().install()
    channel.reply(**_run(requested, script))
    while True:
        channel.wait()


def _run(requested: Program, script: InterruptibleScript) -> dict[str, Any]:
    """Runs the script to its end, and returns the reply for it.

    The reply reports this end, since the turns were not over.
    """
    try:
        program.run_file(requested.target, requested.arguments)
    except SystemExit as left:
        if program.exit_status(left.code):
            return _failure(left)
    except BaseException as error:  # the user's code, or what a library makes of it
        traceback.print_exc()
        return _failure(error)
    steps = f"{script.seen} {'step' if script.seen == 1 else 'steps'}"
    reason = f"the script ended after {steps}, before its turns were over: {_LONGER}"
    return {"verdict": "not applicable", "reason": reason}


def _failure(error: BaseException) -> dict[str, Any]:
    reason = program.describe_error(error)
    return {"verdict": "failed", "reason": reason, "is_for_memory": program.says_out_of_memory(reason)}


def _prefetched() -> int:
    """Returns the batches that workers of active loaders may have ready.

    The number comes from their own settings.
    """
    loaders = [iterator for iterator in gc.get_objects() if type(iterator).__name__ == "_MultiProcessingDataLoaderIter"]
    return max(map(prefetched_by, loaders), default=0)


def record_changed(plan_text: str, *arguments: str) -> None:
    """Records a step with changes, as the harness records one without."""
    run_child(plan_text, *arguments, changed_step=changed_step)


def serve_variants(text: str, descriptor: str) -> NoReturn:
    """Holds variants of one step, or one script that stops at its step boundaries."""
    requested = Program.from_values(json.loads(text))
    if requested.form == "script":
        serve_script(requested, descriptor)
    else:
        serve(requested, descriptor, CHANGES)


def serve_fakes(text: str, descriptor: str) -> NoReturn:
    """Records the step of a workload or a model with changes, under fake tensors."""
    from bottleneck.experiment.fake_variants import serve_steps
    from bottleneck.experiment.interventions.memory_remedies import REMEDIES

    serve_steps(Program.from_values(json.loads(text)), descriptor, {**CHANGES, **REMEDIES})
