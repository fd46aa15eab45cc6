"""``bottleneck run`` as one of several ranks that share a folder and a report."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.commands.finish_run import Told, Voice, measured_ceilings, say, tell
from bottleneck.commands.interrupts import Interrupted
from bottleneck.commands.run_options import RunOptions, make_plan

if TYPE_CHECKING:
    from bottleneck.harness.finish import Ending
    from bottleneck.harness.messages import Plan
    from bottleneck.harness.rank_coordination import RankGroup
    from bottleneck.harness.sensors import Monitor
    from bottleneck.harness.supervise import Job


def make_rank_plan(options: RunOptions, job: "Job") -> "tuple[Plan, RankGroup]":
    """The plan with the folder that all ranks of the job share, joined; UsageError if it cannot be."""
    from bottleneck.harness.folder import RecordingFolder, stem_of
    from bottleneck.harness.rank_coordination import RankGroup

    # The same for all ranks: none of them can ask another before the program has made its process group.
    code = hashlib.sha256(job.name.encode()).hexdigest()[:8]
    output = options.output or Path(f"bottleneck-{stem_of(options.target)}-{code}")
    # What an earlier attempt of the same job left is replaced.
    folder = RecordingFolder(output, options.target, force=options.force or _number("TORCHELASTIC_RESTART_COUNT") > 0)
    group = RankGroup(output.absolute(), job, _number("LOCAL_WORLD_SIZE"))

    def make_folder() -> Path:
        folder.make_shared(group.join)
        return folder.folder

    return make_plan(options, make_folder), group


def run_rank(
    plan: "Plan",
    ending: "Ending",
    group: "RankGroup",
    monitor: "Monitor | None",
    *,
    all_findings: bool = False,
) -> tuple[int, Told]:
    """The exit status of this rank's program; the rank that leaves last finishes the recording and reports."""
    from bottleneck.harness.finish import Follower
    from bottleneck.harness.supervise import Child, describe_end, program_command, supervise

    follower = Follower(Path(plan.folder), lambda _: None)

    def accompany(child: Child) -> None:
        if monitor is not None:
            monitor.start(child.process)
        follower.start(child)

    end = supervise(program_command(plan, ending.command[2 if plan.module else 1 :]), accompany)
    follower.stop()
    telemetry = monitor.stop() if monitor is not None else None
    status = 0 if follower.is_forced else end.status
    if end.signal is not None and not follower.is_forced:
        ending = replace(ending, remarks=(describe_end(end, None, None),))
    told = Told(succeeded=True)
    if _is_last(group, in_order=status == 0):
        voice = Voice(say, measured_ceilings, all_findings)
        told = tell(plan, replace(ending, status=status, telemetry=telemetry), voice)
        group.close()
    return status, told


def _is_last(group: "RankGroup", *, in_order: bool) -> bool:
    """Whether this rank has to finish the recording; one that is told to end while it stays leaves it to the others."""
    try:
        return group.leave(in_order=in_order)
    except Interrupted:
        return False


def _number(name: str) -> int:
    """A number that the launcher gives in the environment; 0 where it does not."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 0
