"""Applies the advice rules to an analysis and its tables.

That is done after the ledger, before the verdict and the report. Numbers such as "Rule 12" in docstrings are those of
docs/explanation/advice_rules.md, which lists every rule with its trigger, its gain and its source.
"""

from collections.abc import Callable

from bottleneck.advice import (
    broadcasts,
    buffers,
    class_loops,
    compilation,
    constants,
    convolutions,
    data_loading,
    debug_modes,
    decompositions,
    derivatives,
    discarded_branches,
    dispatch,
    distributed,
    distributions,
    dominant_line,
    dropout_masks,
    fourier_transforms,
    fresh_pages,
    fusion,
    hand_written,
    host,
    log_domain,
    looped_cells,
    looped_functions,
    machine,
    many_small_calls,
    masked_losses,
    matrix_products,
    memory_capacity,
    memory_growth,
    needless_ops,
    new_recordings,
    objects_made_anew,
    onednn_products,
    optimizers,
    parallel_modules,
    parameter_loops,
    parameter_penalties,
    passes_without_gradients,
    precision,
    printed_tensors,
    process,
    process_pools,
    product_order,
    python_loops,
    recomputation,
    repeated_calls,
    repeated_work,
    row_fetching,
    run_steps,
    servers,
    single_rows,
    slow_calls,
    slow_convolutions,
    slow_lines,
    slow_reductions,
    small_steps,
    sparse_gradients,
    sparse_products,
    spread_layers,
    start_up,
    tensor_values,
    traffic,
    transfers,
    untrained_parameters,
    unused_results,
    wasted_work,
    weight_work,
    whole_copies,
    written_views,
    zero_matrices,
)
from bottleneck.advice.measured import with_measured_gain, with_replayed_gain
from bottleneck.advice.ranking import Draft, put_general_behind, rank
from bottleneck.advice.widening import ON_CPU
from bottleneck.schema.analysis import Finding
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.recording import Recording

Rule = Callable[[Evidence], Draft | None]

# The rules of each module, in the order in which findings without a predicted gain are shown.
RULES: tuple[Rule, ...] = (
    *debug_modes.RULES,
    *memory_growth.RULES,
    *wasted_work.RULES,
    *needless_ops.RULES,
    *constants.RULES,
    *whole_copies.RULES,
    *written_views.RULES,
    *hand_written.RULES,
    *fourier_transforms.RULES,
    *slow_reductions.RULES,
    *slow_convolutions.RULES,
    *log_domain.RULES,
    *looped_cells.RULES,
    *single_rows.RULES,
    *many_small_calls.RULES,
    *decompositions.RULES,
    *derivatives.RULES,
    *distributions.RULES,
    *unused_results.RULES,
    *broadcasts.RULES,
    *spread_layers.RULES,
    *product_order.RULES,
    *sparse_products.RULES,
    *zero_matrices.RULES,
    *parameter_penalties.RULES,
    *discarded_branches.RULES,
    *masked_losses.RULES,
    *weight_work.RULES,
    *passes_without_gradients.RULES,
    *buffers.RULES,
    *repeated_work.RULES,
    *repeated_calls.RULES,
    *servers.RULES,
    *run_steps.RULES,
    *start_up.RULES,
    *dispatch.RULES,
    *optimizers.RULES,
    *onednn_products.RULES,
    *objects_made_anew.RULES,
    *small_steps.RULES,
    *row_fetching.RULES,
    *slow_calls.RULES,
    *printed_tensors.RULES,
    *class_loops.RULES,
    *python_loops.RULES,
    *parameter_loops.RULES,
    *slow_lines.RULES,
    *looped_functions.RULES,
    *parallel_modules.RULES,
    *host.RULES,
    *dropout_masks.RULES,
    *fresh_pages.RULES,
    *process_pools.RULES,
    *process.RULES,
    *tensor_values.RULES,
    *untrained_parameters.RULES,
    *fusion.RULES,
    *traffic.RULES,
    *sparse_gradients.RULES,
    *precision.RULES,
    *matrix_products.RULES,
    *convolutions.RULES,
    *recomputation.RULES,
    *compilation.ALTERNATIVES,
    *data_loading.RULES,
    *transfers.RULES,
    *memory_capacity.RULES,
    *distributed.RULES,
    *compilation.RULES,
    *machine.RULES,
    *run_steps.LATER_RULES,
)


def advise(evidence: Evidence, *, with_unmeasured: bool = False) -> tuple[Finding, ...]:
    """Gives the findings of all rules, ranked by time each would save.

    A draft ``only_measured`` becomes a finding once timed pieces show that it gains. ``with_unmeasured`` keeps the
    others too, for those who choose what to time. On the start of a program whose work is in other processes there is
    only advice to record those.
    """
    drafts = [] if evidence.is_elsewhere else _drafts(evidence, with_unmeasured=with_unmeasured)
    drafts = new_recordings.with_new_recording(evidence, drafts)
    # Learned on CPUs: what such trials say of a GPU is not known.
    widenings = ON_CPU if evidence.is_host_only else {}
    return rank(drafts, evidence.analysis, _program(evidence.recording), widenings, on_cpu=evidence.is_host_only)


def _drafts(evidence: Evidence, *, with_unmeasured: bool) -> list[Draft]:
    """The drafts of all rules, without those that others replace."""
    drafts = [
        draft
        for rule in RULES
        if (made := rule(evidence)) is not None
        and (draft := with_replayed_gain(evidence, with_measured_gain(evidence, made))) is not None
    ]
    drafts = compilation.join_compiled(evidence, drafts)
    drafts = [draft for draft in drafts if with_unmeasured or not draft.only_measured or _is_answered(draft)]
    drafts = servers.fit_to_server(evidence, slow_calls.without_general(drafts))
    return dominant_line.with_dominant_line(evidence, put_general_behind(drafts, evidence.step_us))


def _is_answered(draft: Draft) -> bool:
    return draft.basis == "timed" and draft.gain_us is not None


def _program(recording: Recording | None) -> tuple[str, ...] | None:
    """Gives the arguments that name the program to `bottleneck verify`.

    Null for a script, whose step cannot be repeated.
    """
    if recording is None or recording.form == "script":
        return None
    return (*recording.options, *recording.command)
