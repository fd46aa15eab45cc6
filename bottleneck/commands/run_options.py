"""The checked options of ``bottleneck run``: the plan of the measurement and the folder of the recording."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bottleneck.harness.messages import Plan


@dataclass(frozen=True)
class RunOptions:
    """What the command line asks for; ``settings`` are the name=value texts of ``--set``."""

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    settings: tuple[str, ...] = ()
    train: bool = False
    steps: int | None = None
    warmup: int | None = None
    output: Path | None = None
    force: bool = False
    strict: bool = False
    telemetry_ms: int = 20
    step: str | None = None
    stop: bool = False
    nproc_per_node: str | None = None
    shapes: bool | None = None
    stacks: bool | None = None
    memory: bool | None = None
    batch_test: bool | None = None
    all_findings: bool = False


def make_plan(options: RunOptions, make_folder: Callable[[], Path]) -> "Plan":
    """The plan, with its folder made when all else is found right; UsageError for a request that cannot be met."""
    from bottleneck.harness.messages import Plan
    from bottleneck.harness.supervise import check_ranks
    from bottleneck.harness.target import check_program

    form, settings = check_program(options.target, options.settings, train=options.train, is_module=options.module)
    check_ranks(options.nproc_per_node, form, options.target, os.environ)
    return Plan(
        folder=str(make_folder()),
        form=form,
        target=options.target,
        module=options.module,
        settings=settings,
        train=options.train,
        steps=options.steps,
        warmup=options.warmup,
        step=options.step,
        stop=options.stop,
        nproc_per_node=options.nproc_per_node,
        shapes=options.shapes,
        stacks=options.stacks,
        memory=options.memory,
        batch_test=options.batch_test,
    )
