"""Rules on the whole run of a script.

They are on what is between its steps, and on steps that grow from one to the next.
"""

import math

from bottleneck.advice.kernel_work import work_of
from bottleneck.advice.quantities import model_call, setting_line
from bottleneck.advice.ranking import Draft
from bottleneck.advice.wasted_work import growing_join, no_kv_cache
from bottleneck.schema.analysis import Interval
from bottleneck.schema.compile_causes import RECOMPILES
from bottleneck.schema.compile_health import CompileHealth
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import BetweenPlace, RunSteps, StepGrowth
from bottleneck.schema.op_names import at_known, at_source
from bottleneck.units import counted, format_share, format_si, format_us

# Of the run: less is no finding, and half of it or more is the first thing to say. From a fifth on it is that where it
# comes again, and no change of the steps shortens the run more than half of it does.
_LEAST, _LEAST_FIRST, _MOST_OF_IT = 0.1, 0.2, 0.5
# No more than this is saved of the time between steps, and half as much at least.
_COMES_AGAIN, _PART_SAVED, _MOST_SAVED = 3, 0.5, 0.99
# Of the time between steps whose line is known: functions with less are not named in the advice.
_LEAST_NAMED = 0.1
# Steps that have grown so much are the first thing to say: the pace of a shared machine changes by half as well.
_GROWN = 2.0
# Of the step: joins of all that was kept before, to be named, and to come first; and what is saved of them at least.
_LEAST_JOINS, _MOST_JOINS, _SURE_OF_JOINS = 0.05, 0.2, 0.8


def _run(evidence: Evidence) -> RunSteps | None:
    return evidence.analysis.run


def _advice(
    run: RunSteps, place: BetweenPlace, health: CompileHealth | None, loader: str | None
) -> tuple[str, str | None]:
    """The advice on the time at this place, and the code that follows it.

    ``loader`` is the line that makes the loader, where one alone does.
    """
    share = format_share(run.elsewhere_share)
    if place.kind == "compile" and health is not None and health.named_recompiles:
        again = health.named_recompiles[0]
        cause = RECOMPILES[again.cause]
        return f"{cause.change} Of the run, {share} is between its steps, where torch compiled again.", again.code
    words, code = _by_kind(run, place, loader)
    return f"Look between the steps, {share} of the run: {words}.", code


def _by_kind(run: RunSteps, place: BetweenPlace, loader: str | None) -> tuple[str, str | None]:
    where = place.words()
    if place.kind == "workers":
        return (
            f"keep the loader's workers from one epoch to the next (persistent_workers=True{at_known(loader)}), which "
            f"{where} starts anew each time",
            "DataLoader(..., num_workers=N, persistent_workers=True)",
        )
    if place.kind == "elements":
        return (
            f"{place.function}() reads elements one by one{at_known(place.inner)}{_shown(place.inner_text)}. Where "
            "they are of tensors or arrays, each is an op of its own: make lists of them once (.tolist()), "
            "loop over plain numbers, and make one tensor of the result",
            "rewards, values = rewards.tolist(), values.tolist()  # once, ahead of the loop\n"
            "advantages = torch.tensor(results)  # a list of plain numbers",
        )
    if place.kind == "checkpoint":
        return f"write checkpoints less often, or from another thread: {where}", None
    if place.kind == "compile":
        return (
            f"find why torch compiles again (TORCH_LOGS=recompiles; {where}), and compile once: with dynamic=True, or "
            "with inputs of one shape",
            None,
        )
    if place.kind == "input":
        return f"let the loader prefetch further ahead, since {where} waits for it", None
    how = "or make it quicker: `with bottleneck.record():` around it shows how"
    return f"run {_functions(run)} less often, {how}", None


def _by_function(run: RunSteps) -> list[list[BetweenPlace]]:
    """Gives the places that are no work of torch, by function.

    Functions with little of the time whose line is known are left out.
    """
    placed_share = math.fsum(place.share for place in run.places)
    functions: dict[str, list[BetweenPlace]] = {}
    for place in run.named_places():
        if place.kind is None:
            functions.setdefault(place.function or place.source, []).append(place)
    first, *others = functions.values()
    return [
        first,
        *(places for places in others if sum(place.share for place in places) >= _LEAST_NAMED * placed_share),
    ]


def _functions(run: RunSteps) -> str:
    """'evaluate(), train.py:88, and log(), train.py:86 and train.py:87': the functions with most of the time."""
    return ", and ".join(
        " and ".join([first.words(), *(place.source for place in more)]) for first, *more in _by_function(run)
    )


def _brief(run: RunSteps, place: BetweenPlace, loader: str | None) -> str | None:
    """The advice with what the run gains; null where torch itself takes the time."""
    if place.kind == "workers":
        faster = _run_speedup(run, place.share, run.held_us)
        return f"Set persistent_workers=True{at_known(loader)} (the run up to {faster} times as fast)"
    if place.kind == "elements":
        # Samples give a place's part of the time between steps; all of that time bounds it.
        faster, most = _run_speedup(run, place.share), _run_speedup(run, _MOST_SAVED)
        return f"Loop over plain numbers{at_known(place.inner)} (the run about {faster}, at most {most} times as fast)"
    if place.kind is not None:
        return None
    return (
        f"Do less between steps ({place.source}): the run up to {_run_speedup(run, _MOST_SAVED)} times as fast; "
        f"{format_share(run.elsewhere_share)} of it is there"
    )


def _run_speedup(run: RunSteps, part: float, held_us: float = 0.0) -> str:
    """'1.52': the run's speedup without this part of the time between its steps.

    And without ``held_us`` of steps that were held up: the first steps of an epoch wait for workers that start.
    """
    return f"{run.total_us / (run.total_us - part * run.elsewhere_us - held_us):.2f}"


def _equal_gain_us(run: RunSteps, step_us: float) -> float | None:
    """Gives the gain of a step that shortens the run as much.

    As much as half of the time between steps does. Null where that time is little, or does not come again.
    """
    steps_us = run.total_us - run.elsewhere_us - run.held_us
    if run.elsewhere_share < _LEAST_FIRST or run.gaps < _COMES_AGAIN or steps_us <= 0:
        return None
    return step_us * _PART_SAVED * run.elsewhere_us / steps_us


def _describe_place(run: RunSteps, place: BetweenPlace) -> str:
    """'evaluate(), train.py:88 [evaluate(net)]: 60 % of it', with what is inside of that."""
    words = f"{place.words()}{_shown(place.text)}: {format_share(place.share)} of it"
    if place.inner is not None:
        words += f", most at {place.inner}{_shown(place.inner_text)}"
    parts = [part for part in run.places if part.words() == place.words() and part.kind == "workers"]
    if parts and place.kind != "workers":
        words += (
            f"; {format_share(parts[0].share)} of it starts the loader's workers, which persistent_workers=True keeps"
        )
    return words


def _shown(text: str | None) -> str:
    return f" [{text}]" if text else ""


def time_between_steps(evidence: Evidence) -> Draft | None:
    """Finds a large part of a script's run that is in no usual step.

    Rule 54: evaluation, checkpoints, the start of workers.
    """
    run = _run(evidence)
    if run is None or run.elsewhere_share < _LEAST or not run.places:
        return None
    places = run.named_places()
    first = places[0]
    if first.kind is None and first.source == model_call(evidence):
        return None  # the step itself, longer than usual
    if _is_other_work(evidence, first):
        return None
    share = format_share(run.elsewhere_share)
    loader = setting_line(evidence, "loader")
    advice, code = _advice(run, first, evidence.analysis.compile_health, loader)
    left_us = run.total_us - run.elsewhere_us * first.share
    return Draft(
        slug="time-between-steps",
        title=f"{share} of the run is between its steps: {first.words()}",
        evidence=(
            f"{format_us(run.elsewhere_us)} of {format_us(run.total_us)} from the first step to the last are in "
            f"{counted(run.gaps, 'gap')} between {counted(run.steps, 'step')} of usually {format_us(run.typical_us)}",
            *(_describe_place(run, place) for place in places),
            *_guards(first, evidence.analysis.compile_health),
        ),
        advice=advice,
        brief=_brief(run, first, loader),
        places=(*(place.source for place in places), *((loader,) if first.kind == "workers" else ())),
        code=code,
        gain_reason=(
            f"none for the step; the whole run would be {_run_speedup(run, _PART_SAVED)} times as fast with half of "
            f"that time, {_run_speedup(run, _MOST_SAVED)} times with none; without what is at {first.source} alone "
            f"it would take {format_us(left_us)} instead of {format_us(run.total_us)}: "
            f"by its samples about {run.total_us / max(left_us, 1e-9):.2f} times as fast"
        ),
        confidence="high",
        comes_first=run.elsewhere_share >= _MOST_OF_IT,
        equal_gain_us=_equal_gain_us(run, evidence.step_us),
    )


def _is_other_work(evidence: Evidence, place: BetweenPlace) -> bool:
    """True where a program computes outside of the calls that were its steps.

    A program that decodes calls its encoder between the calls of its decoder: that is no less its work.
    """
    recording = evidence.recording
    return place.kind is None and recording is not None and recording.step_source == "module"


def work_outside_of_calls(evidence: Evidence) -> Draft | None:
    """Says how to have all work of such a program in one step."""
    run = _run(evidence)
    if run is None or run.elsewhere_share < _LEAST or not run.places or evidence.recording is None:
        return None
    places, name = run.named_places(), evidence.recording.step_name
    first = places[0]
    if first.source == model_call(evidence) or not _is_other_work(evidence, first):
        return None
    share = format_share(run.elsewhere_share)
    return Draft(
        slug="time-between-steps",
        title=f"{share} of the run is outside of the recorded calls: {first.words()}",
        evidence=(
            f"each step is a {name}: {counted(run.steps, 'step')} of usually {format_us(run.typical_us)}, and "
            f"{format_us(run.elsewhere_us)} of {format_us(run.total_us)} outside of them",
            *(_describe_place(run, place) for place in places),
        ),
        advice="Call bottleneck.step() at the end of each unit of work (a file, a request, a batch), so that "
        f"{share} of the run, most of it {first.words()}, is judged with the rest.",
        brief=f"Call bottleneck.step() at the end of each unit of work: {share} of the run is at {first.source}, "
        "outside of the recorded calls",
        places=tuple(place.source for place in places),
        code="for file in files:\n    work(file)\n    bottleneck.step()  # import bottleneck; costs nothing elsewhere",
        gain_reason="none: it shows where the rest of the time goes",
        confidence="high",
        comes_first=run.elsewhere_share >= _MOST_OF_IT,
    )


def _guards(place: BetweenPlace, health: CompileHealth | None) -> tuple[str, ...]:
    """Tells which guard failed where torch compiled again."""
    again = health.named_recompiles[:1] if place.kind == "compile" and health is not None else ()
    return tuple(f"the guard that failed: {one.guard_words}{at_known(one.source)}" for one in again)


def growing_steps(evidence: Evidence) -> Draft | None:
    """Finds steps of which each takes longer than the one before.

    Rule 55: hooks, lists, sequences or tensors grow.
    """
    run = _run(evidence)
    growth = None if run is None else run.growth
    joins = _growing_joins(evidence, run, growth)
    if joins is not None or run is None or growth is None:
        return joins
    hooks = run.hooks
    if hooks is None and no_kv_cache(evidence) is not None:
        return None  # that says why they grow
    advice = (
        "Find what grows from step to step, and keep it short: hooks that are never removed, a list of losses that "
        "hold their graphs, a sequence that is computed from its start each time"
    )
    code: str | None = None
    evidence_of_hooks: tuple[str, ...] = ()
    if growth.source is not None:
        line = f"{growth.source} (`{growth.text}`)" if growth.text else growth.source
        advice = (
            f"Work only on what is new at {line}, or once at the end: most of the growth is there (hooks that are "
            "never removed, a list of losses that hold their graphs, rows and files that are written anew, a sequence "
            "that is computed from its start)"
        )
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
        places=(growth.source, None if hooks is None else hooks.source),
        gain_reason=f"none for one step; {_without_growth(run, growth)}",
        confidence="high",
        comes_first=growth.last_us >= _GROWN * growth.first_us,
    )


def _without_growth(run: RunSteps, growth: StepGrowth) -> str:
    """Says how long the run would take without growth.

    Its steps then stay as short as the first ones.
    """
    steps_us = run.total_us - run.elsewhere_us
    short_us = min(growth.first_us * run.steps, steps_us)
    return (
        f"with all steps as short as the first ones, {format_us(steps_us)} of the run would be "
        f"{format_us(short_us)}: {steps_us / max(short_us, 1e-9):.2f} times as fast, and more in a longer run"
    )


# What to do with parts that are joined in every step: in words, in a few, and in code.
_AFTER_THE_LOOP = (
    "Join the parts once after the loop, or write each into a tensor made beforehand",
    "Join the parts once after the loop, and not in every step {at}",
    "parts.append(part)  # in each step\nkept = torch.cat(parts)  # once, after the loop",
)
_IN_PLACE = (
    "Make the tensor once, at its full size, and write each new part into it. The ops of a step then take a view of "
    "what is filled",
    "Make the tensor once, at its full size, and write each new part into it {at}",
    "kept = new.new_empty(batch, heads, longest, width)  # once\n"
    "kept[:, :, at : at + new.shape[2]] = new  # in each step; attend to kept[:, :, : at + new.shape[2]]",
)


def _growing_joins(evidence: Evidence, run: RunSteps | None, growth: StepGrowth | None) -> Draft | None:
    """Finds a line that joins all that was kept before with a step's part.

    Rule 55. Gain: of these joins in the recorded steps all but the copies of the new parts, from 80 % of it; later
    steps copy more.
    """
    join, work = growing_join(evidence), work_of(evidence)
    if join is None or work.share(join.rows) < _LEAST_JOINS:
        return None
    high_us = float(join.less_us.sum())
    is_long = growth is not None and growth.last_us >= _GROWN * growth.first_us
    run_words = () if run is None or growth is None else (growth.words(), _without_growth(run, growth))
    remedy, brief, code = _IN_PLACE if join.is_read else _AFTER_THE_LOOP
    return Draft(
        slug="growing-steps",
        title="Each step copies all that was kept before",
        evidence=(
            f"{join.source} joins tensors that the step before has joined too: {format_share(join.new_share)} of their "
            f"rows are new, {format_si(join.bytes, 'B')} are read and written per step, and more in the next",
            *work.describe(join.rows, 1),
            *run_words,
        ),
        advice=f"{remedy}: {join.source} moves all rows kept so far in every step "
        f"({format_si(join.bytes, 'B')} read and written).",
        brief=brief.format(at=at_source(join.source)),
        code=code,
        places=(join.source,),
        gain_us=Interval(_SURE_OF_JOINS * high_us, high_us),
        claims=work.claims(join.less_us),
        confidence="high",
        lines=(join.source,),
        removes=True,
        comes_first=is_long or work.share(join.rows) >= _MOST_JOINS,
    )


RULES = (growing_steps, time_between_steps)
# Behind the rules on what was recorded.
LATER_RULES = (work_outside_of_calls,)
