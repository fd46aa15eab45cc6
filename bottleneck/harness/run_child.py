"""Runs the user's program in the child process and keeps the measurements.

The program runs in its form: script, workload or model.
"""

import atexit
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bottleneck.harness import forms, marks, program
from bottleneck.harness.memory_error import begin_history, keep_snapshot
from bottleneck.harness.messages import Plan, rank_of
from bottleneck.harness.process_setup import prefer_roots, prepare_torch, seeders
from bottleneck.harness.script import Script
from bottleneck.harness.session import PARENT, Session
from bottleneck.harness.stopwatch import Step
from bottleneck.harness.torch_state import TorchHook
from bottleneck.harness.window import GUARD, leave_forks_quietly
from bottleneck.harness.workload import measure

_HAS_BLOCK = "the program records a block of its own; under `bottleneck run` bottleneck.record does nothing"


# Makes the step that a plan with changes measures, and the seconds that applying the changes took.
ChangedStep = Callable[[Plan], AbstractContextManager[tuple[Step, float]]]


def run_child(plan_text: str, *arguments: str, changed_step: ChangedStep | None = None) -> None:
    """Runs the program, and returns, raises and exits as the program does.

    ``changed_step`` serves plans with changes.
    """
    plan = Plan.from_words(plan_text, *arguments)
    prefer_roots()
    session = _new_session(plan)
    leave_forks_quietly(lambda: session.is_here, lambda: session.status)
    marks.supervise(lambda: session.warn(_HAS_BLOCK))
    session.start_up.start()
    try:
        if plan.options.changes:
            assert changed_step is not None, "a plan with changes needs the entry point of the experiment package"
            _run_changed(session, changed_step)
        else:
            _FORMS[plan.program.form](session)
    except SystemExit as leave:
        session.status = program.exit_status(leave.code)
        raise
    except BaseException as error:
        session.status = 130 if isinstance(error, KeyboardInterrupt) else 1
        keep_snapshot(error, Path(plan.folder), rank_of(os.environ)[0])
        program.show_only_their_frames()
        raise
    finally:
        _unless_interrupted(session, lambda: _finish(session))


def _new_session(plan: Plan) -> Session:
    if not plan.options.follow_children:
        return Session(plan)
    from bottleneck.harness.follow import FollowedRanks

    return Session(plan, PARENT, FollowedRanks(Path(plan.folder), is_parent=True))


def _run_script(session: Session) -> None:
    script = Script(session)
    script.hook().install()
    if session.options.follow_children:
        from bottleneck.harness.follow import follow_children

        follow_children(session.plan, script)
    ours = session.plan.program
    run = program.run_module if ours.module else program.run_file
    try:
        run(ours.target, ours.arguments)
    finally:
        if session.is_here and script.has_threads_to_wait_for:
            # Python waits for them next, and then calls this.
            atexit.register(_unless_interrupted, session, script.finish)
        elif session.is_here:
            _unless_interrupted(session, script.finish)


def _prepare(session: Session) -> None:
    watchers = {**session.compiler_watchers(), **seeders(session.plan.program.seed)}
    seed = watchers.get("torch")

    def on_torch(torch: Any) -> None:
        if seed is not None:
            seed(torch)
        begin_history()

    if session.options.memory:
        watchers["torch"] = on_torch
    TorchHook(watchers, {}).install()
    prepare_torch(session.options)


def _run_workload(session: Session) -> None:
    _prepare(session)
    ours = session.plan.program
    module = program.load_file(ours.target, ours.arguments)
    session.note(step_source="workload")
    started = time.perf_counter()
    step = forms.workload_step(module, ours.settings)
    doubling = forms.workload_doubling(module, ours.settings)
    measure(step, session, doubling and doubling.after(time.perf_counter() - started))


def _run_model(session: Session) -> None:
    _prepare(session)
    ours = session.plan.program
    module = program.load_file(ours.target, ours.arguments)
    session.note(step_source="model")
    make_step = forms.training_step if ours.train else forms.inference_step
    measure(make_step(module), session)


def _run_changed(session: Session, changed_step: ChangedStep) -> None:
    _prepare(session)
    with changed_step(session.plan) as (step, change_s):
        session.note(step_source="model" if session.plan.program.form == "model" else "workload")
        measure(step, session, change_s=change_s)


_FORMS: dict[str, Callable[[Session], None]] = {
    "script": _run_script,
    "workload": _run_workload,
    "model": _run_model,
}


def _finish(session: Session) -> None:
    session.note(is_complete=True, exit_status=session.status)
    session.save()


def _unless_interrupted(session: Session, save: Callable[[], None]) -> None:
    """Stops the profiler and saves.

    Ctrl-C skips what is left of it, and changes nothing in how the program ends. Nor does a failure of ours: it is a
    warning of the recording.
    """
    for work in (_stop_profiler, save):
        try:
            work()
        except KeyboardInterrupt:
            return
        except Exception as exc:
            session.warn_of_failure("at the end", exc)


def _stop_profiler() -> None:
    """Stops the profiler with interrupts held back.

    One that is left running crashes the interpreter at exit.

    Not by the system's mask: it is one thread's, and a library's threads would take the signal instead.
    """
    theirs, came = signal.getsignal(signal.SIGINT), []
    is_holding = theirs not in (signal.SIG_IGN, None)  # null: a handler of native code, which Python cannot put back
    if is_holding:
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        if GUARD.window is not None:
            GUARD.window.stop()
    finally:
        if is_holding:
            signal.signal(signal.SIGINT, theirs)
    if came:
        signal.raise_signal(signal.SIGINT)
