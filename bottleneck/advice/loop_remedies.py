"""Remedies for loops over tensors, by what their lines do."""

import re

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import work_of
from bottleneck.advice.line_patterns import cuts_windows
from bottleneck.advice.loop_lines import BACKWARD_CALL, LOOP_OF, OpLoop, program_ops
from bottleneck.advice.quantities import events_in_window, format_count, model_calls, outermost_frames
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import grouped, union
from bottleneck.schema.op_names import place_of
from bottleneck.schema.tables import text_matches
from bottleneck.units import counted


class LoopRemedy(Struct, frozen=True):
    """Kind of loop, and what takes its place.

    ``{at}`` in the advice stands for the line. ``brief`` is the change in a few words, where the advice is long.
    """

    title: str
    advice: str
    code: str
    brief: str | None = None

    def brief_at(self, line: str) -> str | None:
        """The change at this line in a few words."""
        return None if self.brief is None else self.brief.format(at=line)


ROW_BY_ROW = LoopRemedy(
    "A Python loop works on tensors row by row",
    "Do {at} for all rows at once (samples, steps, environments) what the loop does one by one.",
    "out = torch.bmm(batch, weights)  # or torch.vmap(function)(batch), or an op along a dimension",
)
IN_FUNCTION = LoopRemedy(
    "A Python loop runs the same small ops again and again",
    "Do what the loop {at} does for all its rounds at once (rows, samples, steps). Where a round needs the one before, "
    "do so with what does not, and compile the rest (torch.compile).",
    ROW_BY_ROW.code,
    "Do for all rounds at once what the loop {at} does one by one, or compile a round where it needs the one before",
)
CARRIED = LoopRemedy(
    "A Python loop steps through a sequence, and each round needs the one before",
    "Compute ahead of the loop {at} what depends on the inputs alone, for all rounds at once, and compile the rest of "
    "a round (torch.compile). Where the cell is that of nn.GRU or nn.LSTM, call that once for the whole sequence.",
    "inputs = self.x_gates(x)  # (batch, time, gates), once; then h = self.cell(inputs[:, t], h)",
    "Compute ahead of the loop {at} what depends on the inputs alone, for all rounds at once",
)
SOLVED = LoopRemedy(
    "A Python loop takes step after step, and each needs the one before",
    "Take fewer and larger rounds of the loop {at}, where the accuracy allows it, or compile a round (torch.compile): "
    "none can run beside another, but its small ops become few.",
    "step = torch.compile(step)  # a function of the state: y = step(f, t, y, h)",
    "Take fewer rounds of the loop {at}, or compile one (torch.compile)",
)
IN_ORDER = LoopRemedy(
    SOLVED.title,
    "Compile a round of the loop {at} (torch.compile), or let each round work on more rows (a larger batch): each "
    "needs the one before, so that none can run beside another.",
    SOLVED.code,
    "Compile a round of the loop {at}, or give each round more rows: each needs the one before",
)
OF_LIBRARY = LoopRemedy(
    "A library's loop calls this again and again, for a few rows each time",
    "Give each call {at} more rows (a larger batch), or let {caller} take fewer rounds (its steps, its tolerance): the "
    "loop is the library's, and its rounds may need one another.",
    "",
    "Give each call {at} more rows, or let {caller} take fewer rounds: the loop is the library's",
)
# A cell of a table that takes the ones beside it: `r[i - 1][j - 1]`, `r[i-1, j]`.
_RECURS = re.compile(r"\[\s*\w+\s*-\s*1\s*(?:\]\s*\[|,)\s*\w+(?:\s*-\s*1)?\s*\]")
_WAVE_BY_WAVE = LoopRemedy(
    "A Python loop fills a table cell by cell, each from the cells beside it",
    "Compute {at} at once all cells that do not need one another: of such a table one antidiagonal after the other, "
    "each as one tensor.",
    "# cells (i, j) with i + j = k: previous, before = the antidiagonals k - 1 and k - 2\n"
    "new = cost[k] + softmin(torch.stack([before, previous[:, :-1], previous[:, 1:]]))",
    "Compute {at} one antidiagonal of the table at once, in place of cell by cell",
)
_CLIPS = re.compile(r"\bclip_grad_(?:norm|value)_\(")
_CLIPPED = LoopRemedy(
    "Gradients are clipped parameter by parameter",
    "Clip {at} once for all parameters; by their norm together, which is what clipping usually means.",
    "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # once, outside of any loop",
)
# Of all parameters at once, in a loop: a sample after the other.
_CLIPS_ALL = re.compile(r"\bclip_grad_(?:norm|value)_\(\s*[^\[,]*(?:parameters\(\)|params\b)")
SAMPLE_BY_SAMPLE = LoopRemedy(
    "Gradients are computed for each sample by itself",
    "Compute the gradients of all samples at once, in place of one backward pass for each {at}: torch.func.vmap over "
    "torch.func.grad gives them per sample (to clip or to compare them). Where only their sum or mean is used, one "
    "backward pass of the batch's loss is the same.",
    "grads = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(params, x, y)  # per sample\n"
    "norms = sum(g.flatten(1).square().sum(1) for g in grads.values()).sqrt()  # to clip them",
    "Compute the gradients of all samples at once {at}: torch.func.vmap over torch.func.grad",
)
# A weight less its gradient by a learning rate: the next round of the loop works with the new weights.
_STEPS_BY_GRADIENT = re.compile(r"-\s*[\w.\[\]]*(?:lr|learning_rate|step_size)\b[\w.\[\]]*\s*\*")
_CELL = re.compile(r"(?:^|\.)(?P<kind>RNN|GRU|LSTM)Cell_\d{1,9}$")
_DIFFERENTIATES = re.compile(r"\b(?:jacobian|hessian)\(")
_DIFFERENTIATED = LoopRemedy(
    "A Jacobian takes a backward pass for each output of each sample",
    "Take the derivatives {at} for each sample by itself, or of the outputs summed over the batch: across samples they "
    "are zero. torch.func.vmap over jacrev does it for all outputs at once, and so does vectorize=True.",
    "jac = torch.func.vmap(torch.func.jacrev(function))(x)  # x: (batch, n); jac: (batch, m, n)",
    "Take the derivatives {at} for each sample by itself: torch.func.vmap over jacrev",
)
_LEVEL_BY_LEVEL = LoopRemedy(
    "A recursion works through trees node by node",
    "Work {at} through the trees level by level: all nodes of one depth, of all samples of a batch, as one tensor. "
    "Which node is at which depth depends on the data alone, and is known before the pass.",
    "for nodes, children in levels:  # deepest first; states: (all nodes of the batch, width)\n"
    "    states[nodes] = cell(x[nodes], states[children], which_parent)  # per level; index_add_ adds children",
    "Work through the trees level by level {at}: all nodes of one depth, of all samples, in one call",
)
# Of the ops of a loop that run in a function which calls itself; calls of it, at least, in each of which it does.
_MOSTLY_INSIDE, _LEAST_NESTED = 0.9, 0.2
_SPECTRAL = re.compile(r"SpectralNorm_\d{1,9}$")
_POWER_ITERATIONS = LoopRemedy(
    "Spectral normalisation takes many power iterations for each weight",
    "Take one power iteration per step (n_power_iterations=1) for the layers {at}: the vector is kept from step to "
    "step, so that one is enough for weights that change slowly.",
    "layer = torch.nn.utils.parametrizations.spectral_norm(layer, n_power_iterations=1)",
    "Take one power iteration per step (n_power_iterations=1) for the layers {at}",
)
# Rows chosen by a comparison with the loop's own number: `x[batch == g]`, `x[labels.eq(k)]`.
_CHOOSES_GROUP = re.compile(r"\w\[[^\[\]]*(?:==\s*(?P<number>[A-Za-z_]\w*)\s*|\.eq\(\s*\w+\s*\))[\],]")
_GROUP_BY_GROUP = LoopRemedy(
    "A Python loop works on the rows of one group after another",
    "Sum or average {at} the rows of all groups at once: index_add_ (or scatter_reduce_ for a largest value) over the "
    "number of each row's group, in place of a mask for each group.",
    "sums = x.new_zeros(groups, x.size(1)).index_add_(0, group, x)  # group: (rows,), the number of each row's group\n"
    "means = sums / torch.bincount(group, minlength=groups).clamp(min=1).unsqueeze(1)",
    "Reduce the rows of all groups at once {at}: index_add_ over the number of each row's group",
)
# Rows of a call: more are a batch, and the loop over calls another one, such as one over time.
FEW_ROWS = 4


def remedy_by_text(evidence: Evidence, loop: OpLoop) -> LoopRemedy | None:
    """Returns what the lines of a loop are known to do.

    Or the calls at them. Null where neither tells.
    """
    texts = evidence.source_texts
    text = texts.get(loop.source, "")
    table = (
        (_DIFFERENTIATES.search(text), _DIFFERENTIATED),
        (cuts_windows(text), WINDOW_BY_WINDOW),
        (_recurses(evidence, loop.source), _LEVEL_BY_LEVEL),
        (_CLIPS_ALL.search(text) or _backward_calls(evidence) >= LOOP_OF, SAMPLE_BY_SAMPLE),
        (_CLIPS.search(text), _CLIPPED),
        (_iterates(evidence, loop.source), _POWER_ITERATIONS),
        (_CHOOSES_GROUP.search(text), _GROUP_BY_GROUP),
        (any(_RECURS.search(texts.get(line, "")) for line in (loop.source, *loop.lines)), _WAVE_BY_WAVE),
    )
    return next((remedy for is_so, remedy in table if is_so), None)


def _recurses(evidence: Evidence, source: str) -> bool:
    """True where the ops of a line run in a function that calls itself.

    It is a function of the line's file.
    """
    events, ops, place = evidence.linked.trace.events, evidence.linked.ops, place_of(source)
    if place is None:
        return False
    own = re.compile(rf"(?:^|[/\\]){re.escape(place.file)}\(\d+\): (?!<)")
    rows = np.flatnonzero(events_in_window(evidence, "python") & text_matches(events["name"], own.search))
    at_us = ops["ts_us"].to_numpy()[(ops["source"] == source).to_numpy(dtype=bool, na_value=False)]
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    for _, mine in grouped(events["name"].cat.codes.to_numpy()[rows]):
        calls = rows[mine][np.argsort(start[rows[mine]], kind="stable")]
        until_us = np.maximum.accumulate(end[calls])
        nested = np.count_nonzero(start[calls][1:] < until_us[:-1])
        inside = union(start[calls], end[calls]).hold(at_us)
        if nested >= max(_LEAST_NESTED * calls.size, LOOP_OF) and inside.sum() >= _MOSTLY_INSIDE * at_us.size > 0:
            return True
    return False


def adapts_weights(evidence: Evidence, loop: OpLoop) -> bool:
    """True for inner steps of meta-learning.

    Each takes the weights of the one before, so that none can be joined. With torch.func.vmap over its gradients such a
    program was 0.57 to 0.63 times as fast.
    """
    texts = evidence.source_texts
    return any(_STEPS_BY_GRADIENT.search(texts.get(line, "")) for line in (loop.source, *loop.lines))


def remedy_of_loop(evidence: Evidence, loop: OpLoop) -> LoopRemedy:
    """Row by row, or what the line of the loop is known to do."""
    by_text = remedy_by_text(evidence, loop)
    if by_text is not None:
        return by_text
    kind = cell_of(evidence, loop.source)
    if kind is not None:
        return LoopRemedy(
            "A recurrent cell is stepped through time by a loop in Python",
            f"Call nn.{kind} once for the whole sequence in place of nn.{kind}Cell for each time step {{at}}: its loop "
            "over time is compiled, and its products with the inputs are one for all time steps. Where a step needs "
            "the output of the one before (decoding, attention), compute at least what depends on the inputs alone "
            "before the loop.",
            f"rnn = nn.{kind}(inputs, hidden, batch_first=True)  # weights: those of the cell, named weight_ih_l0 …\n"
            "out, state = rnn(x)  # x: (batch, time, inputs)",
        )
    rows, calls = rows_of_call(evidence, loop.source), model_calls(evidence).get(loop.source, (0.0, 0.0))[1]
    if rows is None or rows > FEW_ROWS or calls < LOOP_OF:
        place = place_of(loop.source)
        return IN_FUNCTION if place is not None and place.is_function else ROW_BY_ROW
    return LoopRemedy(
        "The model is called again and again for few rows each",
        f"Call the model {{at}} once for the whole batch: it is called {format_count(calls)} times per step, for "
        f"{counted(rows, 'row')} each. Where a call needs the result of the one before, let several such loops "
        "(environments, sequences) run as one batch.",
        "out = model(inputs)  # inputs: (batch, …); loss = criterion(out, targets); loss.backward(), once",
    )


def _iterates(evidence: Evidence, source: str) -> bool:
    """True where most ops of a line that repeat run in spectral normalisation."""
    ops = program_ops(evidence)
    modules = [str(path) for path in ops["module"][(ops["source"] == source).to_numpy()].tolist()]
    return 2 * sum(_SPECTRAL.search(path) is not None for path in modules) > len(modules)


def _backward_calls(evidence: Evidence) -> float:
    """Backward passes per step."""
    return outermost_frames(evidence, BACKWARD_CALL).start.size / evidence.steps


def cell_of(evidence: Evidence, source: str) -> str | None:
    """Returns RNN, GRU or LSTM where this line runs in its cell."""
    ops = program_ops(evidence)
    modules = ops["module"][(ops["source"] == source).to_numpy() & ops["module"].notna().to_numpy()].unique()
    return next((match["kind"] for path in modules.tolist() if (match := _CELL.search(str(path)))), None)


def rows_of_call(evidence: Evidence, source: str) -> int | None:
    """Returns the rows of the first input of modules at this line.

    It is that of the first op there. Null where none is known.
    """
    ops = program_ops(evidence)
    in_modules = ops["module"].notna().to_numpy()
    mine = ops["signature"][(ops["source"] == source).to_numpy() & in_modules]
    if mine.empty and source in (calls := model_calls(evidence)) and len(calls) == 1:
        mine = ops["signature"][in_modules]  # at lines of the module's own file
    sizes = next((shapes[0] for signature in mine.tolist() if (shapes := work_of(evidence).sizes_of(signature))), ())
    return None if not sizes else 1 if len(sizes) == 1 else int(sizes[0])


PICK_BY_PICK = LoopRemedy(
    "A Python loop works on a tensor row by row",
    "Do {at} for the whole tensor at once what the loop does row by row. Where a row needs the result of the one "
    "before, do so with what depends on the rows alone, before the loop.",
    "out = torch.bmm(batch, weights)  # or torch.vmap(function)(batch), or an op along a dimension",
    "Do {at} for the whole tensor at once what the loop does row by row",
)
WINDOW_BY_WINDOW = LoopRemedy(
    "Windows of a tensor are cut one by one in a Python loop",
    "Take all windows {at} in one call in place of a slice for each: x.unfold(0, width, 1) is a view of all of them, "
    "and x[starts[:, None] + torch.arange(width)] gathers those at any starts. Where the tensor is the same in later "
    "steps, make the windows once, before the loop.",
    "windows = x.unfold(0, width, 1)  # (len(x) - width + 1, width), a view: in place of x[i:i + width] for each i",
    "Take all windows {at} in one call, x.unfold(0, width, 1), in place of a slice for each",
)
