"""Entry points of the processes that run a step with changes: `harness/child.py` calls them."""

from bottleneck.experiment.interruptible_script import serve_script
from bottleneck.experiment.interventions import CHANGES, changed_step
from bottleneck.experiment.program import Program
from bottleneck.experiment.variants import serve
from bottleneck.harness.run_child import run_child


def record_changed(plan_text: str, *arguments: str) -> None:
    """Records a step with changes, as the harness records one without."""
    run_child(plan_text, *arguments, changed_step=changed_step)


def serve_variants(text: str) -> None:
    """Holds variants of one step, or one script that stops at its step boundaries."""
    if Program.from_json(text).form == "script":
        serve_script(text)
    else:
        serve(text, CHANGES)
