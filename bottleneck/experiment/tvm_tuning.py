"""Tunes a module of TVM, in a process that `interventions.tvm_relax` starts.

Candidates are built and timed in this process too: the workers of TVM's own builder take
longer to start than a candidate to build, and run into their time limit where other programs use the processor.
"""

import importlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

# Candidates of one kernel that are made at a time, the most of one, and the most of all: more than time is for.
_AT_ONCE, _OF_ONE, _OF_ALL = 8, 256, 1_000_000
# Calls of a candidate that are timed together, and how often.
_CALLS, _REPEATS = 3, 2


# Kernels of other devices, which TVM compiles from Python when it begins to tune: 30 s of a processor (0.27).
_OTHER_DEVICES = ("arm_cpu", "cuda", "dot_product_common", "hexagon", "metal", "riscv_cpu", "rocm")


class _TimeIsUp(Exception):  # noqa: N818 - ends the search, which is no error
    """Ends a search whose seconds are over. TVM makes a RuntimeError of it."""


def main(arguments: Sequence[str]) -> None:
    """Reads a module and a target, and writes the tuned module.

    The arguments are both files, and the seconds that the search may take.
    """
    source, output, seconds = arguments
    until = time.monotonic() + float(seconds)
    given = json.loads(Path(source).read_text(encoding="utf-8"))
    tvm = importlib.import_module("tvm")
    target = tvm.target.Target(given["target"])
    module, timed = tune(tvm, prepared(tvm, tvm.ir.load_json(given["module"]), target), target, until)
    Path(output).write_text(json.dumps({"module": tvm.ir.save_json(module), "timed": timed}), encoding="utf-8")


def prepared(tvm: Any, module: Any, target: Any) -> Any:
    """Gives the module with its operators fused to kernels, ready to be tuned."""
    transform, relax = tvm.relax.transform, tvm.relax
    passes = [transform.DecomposeOpsForInference(), transform.CanonicalizeBindings(), relax.get_pipeline("zero")]
    with target:
        return tvm.transform.Sequential(passes)(module)


def tune(tvm: Any, module: Any, target: Any, until: float) -> tuple[Any, int]:
    """Gives the module with the best kernels that were found in time.

    The second value counts the candidates that were timed.
    """
    for name in _OTHER_DEVICES:
        sys.modules.setdefault(full := f"tvm.s_tir.tensor_intrin.{name}", ModuleType(full))
    schedules: Any = importlib.import_module("tvm.s_tir.meta_schedule")
    for name in ("tvm.s_tir.meta_schedule", *logging.Logger.manager.loggerDict):
        if name.startswith("tvm"):
            logging.getLogger(name).setLevel(logging.ERROR)
    database = schedules.database.MemoryDatabase()
    candidates = _TvmCandidates(tvm, schedules, until)
    builder, runner = _in_this_process(schedules, candidates)
    with tempfile.TemporaryDirectory() as folder:
        try:
            schedules.relax_integration.tune_relax(
                module,
                {},
                target,
                folder,
                max_trials_global=_OF_ALL,
                max_trials_per_task=_OF_ONE,
                num_trials_per_iter=_AT_ONCE,
                builder=builder,
                runner=runner,
                database=database,
                cost_model="random",
                strategy="replay-trace",
                measure_callbacks=[schedules.measure_callback.AddToDatabase()],
            )
        except RuntimeError:
            if time.monotonic() <= until:
                raise
        with target, database:
            return tvm.relax.transform.MetaScheduleApplyDatabase()(module), candidates.timed


class _TvmCandidates:
    """Builds and times candidates one by one, until the time is up."""

    def __init__(self, tvm: Any, schedules: Any, until: float) -> None:
        self._tvm, self._schedules, self._until = tvm, schedules, until
        self._build = importlib.import_module("tvm.s_tir.meta_schedule.builder.local_builder").default_build
        self._utils = importlib.import_module("tvm.s_tir.meta_schedule.runner.utils")
        self._config = schedules.runner.EvaluatorConfig(number=_CALLS, repeat=_REPEATS, min_repeat_ms=0)
        self._fill = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
        self._built: dict[str, Any] = {}
        self.timed = 0

    def build(self, given: Any) -> Any:
        """Builds a candidate, and gives its name to the runner."""
        name = str(len(self._built))
        module, error = self._tried(lambda: self._build(given.mod, given.target, None))
        self._built[name] = module
        return self._schedules.builder.BuilderResult(name if error is None else None, error)

    def time(self, given: Any) -> Any:
        """Times a candidate that was built."""
        module = self._built[str(given.artifact_path)]
        self._built[str(given.artifact_path)] = None
        seconds, error = self._tried(lambda: self._seconds(module, given))
        self.timed += error is None
        return self._schedules.runner.RunnerResult(seconds, error)

    def _seconds(self, module: Any, given: Any) -> list[float]:
        device, infos = self._tvm.cpu(), [info.as_json() for info in given.args_info]
        arguments = self._utils.alloc_argument_common(self._fill, device, infos, 1)
        return [float(one) for one in self._utils.run_evaluator_common(module, device, self._config, arguments)]

    def _tried(self, make: Callable[[], Any]) -> tuple[Any, str | None]:
        if time.monotonic() > self._until:
            raise _TimeIsUp
        try:
            return make(), None
        except Exception as error:  # a schedule that cannot be built or run is one of many
            return None, str(error)


def _in_this_process(schedules: Any, candidates: _TvmCandidates) -> tuple[Any, Any]:
    """Makes a builder and a runner of TVM that work in this process."""
    derived = importlib.import_module("tvm.ir.utils").derived_object

    class Builder(schedules.builder.PyBuilder):  # type: ignore[misc]
        def build(self, inputs: Sequence[Any]) -> list[Any]:
            return [candidates.build(given) for given in inputs]

    class Done(schedules.runner.PyRunnerFuture):  # type: ignore[misc]
        def __init__(self, timed: Any) -> None:
            self.timed = timed

        def done(self) -> bool:
            return True

        def result(self) -> Any:
            return self.timed

    future = derived(Done)

    class Runner(schedules.runner.PyRunner):  # type: ignore[misc]
        def run(self, inputs: Sequence[Any]) -> list[Any]:
            return [future(candidates.time(given)) for given in inputs]

    return derived(Builder)(), derived(Runner)()


if __name__ == "__main__":
    main(sys.argv[1:])
