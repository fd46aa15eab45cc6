"""Rules on the whole run of a script: what is between its steps, and steps that grow from one to the next."""

from bottleneck.advice.ranking import Draft
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import BetweenPlace, RunSteps
from bottleneck.units import counted, format_share, format_us

# Of the run: less is no finding, and half of it or more is the first thing to say.
_LEAST, _MOST_OF_IT = 0.1, 0.5
# Steps that have grown so much are the first thing to say.
_GROWN = 1.5


def _run(evidence: Evidence) -> RunSteps | None:
    return evidence.analysis.run


def _advice(place: BetweenPlace) -> tuple[str, str | None]:
    """The advice on the time at this place, and the code that follows it."""
    where = place.words()
    if place.kind == "workers":
        return (
            f"keep the loader's workers from one epoch to the next, which {where} starts anew each time",
            "DataLoader(..., num_workers=N, persistent_workers=True)",
        )
    if place.kind == "checkpoint":
        return f"write checkpoints less often, or from another thread: {where}", None
    if place.kind == "compile":
        return (
            f"find what {where} compiles anew (TORCH_LOGS=recompiles), and compile it once: with dynamic=True, or with "
            "inputs of one shape",
            None,
        )
    if place.kind == "input":
        return f"let the loader prefetch further ahead, since {where} waits for it", None
    return f"run {where} less often, or make it quicker: `with bottleneck.record():` around it shows how", None


def time_between_steps(evidence: Evidence) -> Draft | None:
    """Rule 54: a large part of a script's run is in no usual step: evaluation, checkpoints, the start of workers."""
    run = _run(evidence)
    if run is None or run.elsewhere_share < _LEAST or not run.places:
        return None
    first = run.places[0]
    share = format_share(run.elsewhere_share)
    advice, code = _advice(first)
    left_us = run.total_us - run.elsewhere_us * first.share
    return Draft(
        slug="time-between-steps",
        title=f"{share} of the run is between its steps: {first.words()}",
        evidence=(
            f"{format_us(run.elsewhere_us)} of {format_us(run.total_us)} from the first step to the last are in "
            f"{counted(run.gaps, 'gap')} between {counted(run.steps, 'step')} of usually {format_us(run.typical_us)}",
            *(
                f"{place.words()}{f' [{place.text}]' if place.text else ''}: {format_share(place.share)} of it"
                for place in run.places
            ),
        ),
        advice=f"Look between the steps, {share} of the run: {advice}.",
        code=code,
        gain_reason=(
            f"none for the step; without what is at {first.source} the run would take {format_us(left_us)} instead of "
            f"{format_us(run.total_us)}: at most {run.total_us / max(left_us, 1e-9):.2f} times as fast"
        ),
        confidence="high",
        comes_first=run.elsewhere_share >= _MOST_OF_IT,
    )


def growing_steps(evidence: Evidence) -> Draft | None:
    """Rule 55: each step takes longer than the one before: hooks, lists or sequences grow."""
    run = _run(evidence)
    if run is None or run.growth is None:
        return None
    growth, hooks = run.growth, run.hooks
    steps_us = run.total_us - run.elsewhere_us
    short_us = min(growth.first_us * run.steps, steps_us)
    advice = (
        "Find what grows from step to step, and keep it short: hooks that are never removed, a list of losses that "
        "hold their graphs, a sequence that is computed from its start each time"
    )
    code: str | None = None
    evidence_of_hooks: tuple[str, ...] = ()
    if hooks is not None:
        at = "" if hooks.source is None else f" ({hooks.source})"
        advice = f"Remove the hooks that each step registers{at}, or register them once, before the loop"
        code = "handle = module.register_forward_hook(keep)\n...\nhandle.remove()"
        evidence_of_hooks = (f"a {hooks.module} holds {counted(hooks.count, 'hook')} at the end of the run",)
    where = (
        ()
        if growth.source is None
        else (f"most of the growth is at {growth.source}{f' [{growth.text}]' if growth.text else ''}",)
    )
    return Draft(
        slug="growing-steps",
        title="Each step takes longer than the one before",
        evidence=(growth.words(), *evidence_of_hooks, *where),
        advice=f"{advice}.",
        code=code,
        gain_reason=(
            f"none for one step; with all steps as short as the first ones, {format_us(steps_us)} of the run would be "
            f"{format_us(short_us)}: {steps_us / max(short_us, 1e-9):.2f} times as fast, and more in a longer run"
        ),
        confidence="high",
        comes_first=growth.last_us >= _GROWN * growth.first_us,
    )


RULES = (growing_steps, time_between_steps)
