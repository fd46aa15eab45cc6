"""Rules of the program's own Python: loops that repeat small ops, tensors changed one by one, lines of Python."""

from pathlib import Path
from typing import Any

import pytest

from bottleneck.advice.class_loops import class_by_class
from bottleneck.advice.host import item_calls
from bottleneck.advice.loop_lines import layer_lines
from bottleneck.advice.parameter_loops import logged_parameters, reading_loop, tensor_by_tensor
from bottleneck.advice.printed_tensors import printed_tensor
from bottleneck.advice.python_loops import looped_op
from bottleneck.advice.ranking import rank
from bottleneck.advice.removal import backward_passes
from bottleneck.advice.slow_lines import python_line
from bottleneck.advice.small_steps import larger_batch
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of
from tests.builders import Event, complete, frame, in_graph, op, step


def line(number: int, ts: float, dur: float, function: str = "<module>") -> Event:
    return complete(f"train.py({number}): {function}", "python_line", ts, dur)


def steps_of(body: list[Event], length: float, steps: int = 2) -> list[Event]:
    """Steps of this length that run the same events."""
    events = [frame("train.py(1): <module>", 0, length * steps)]
    for number in range(steps):
        at = number * length
        events.append(step(number, at, length - 1))
        events += [event | {"ts": event["ts"] + at} for event in body]
    return events


def loop(rounds: int, name: str = "aten::add", sizes: int | None = 8, **more: object) -> list[Event]:
    """One line that runs an op so often, each 10 us after the last; on growing sizes where ``sizes`` is null."""
    ops = [
        op(name, 12 + 10.0 * index, 2, dims=[[sizes or index + 2], [sizes or index + 2], []], **more)
        for index in range(rounds)
    ]
    return [line(22, 11, 10.0 * rounds), *ops]


def case(folder: Path, body: list[Event], length: float = 1000.0, **recording: object) -> Evidence:
    return case_of(folder, steps_of(body, length), unprofiled_us=length, **recording)


def test_a_nested_loop_of_small_ops_is_named_by_its_line_and_worth_its_time(tmp_path: Path) -> None:
    nested = case(tmp_path, loop(80))
    draft = looped_op(nested)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "at train.py:22" in draft.advice and "80 times per step" in draft.evidence[0]
    assert draft.lines == ("train.py:22",)
    (fold,) = (each for each in nested.analysis.lines if each.name == "train.py:22")
    assert draft.gain_us.high == pytest.approx((fold.us + fold.idle_us) * 79 / 80)
    assert draft.gain_us.low == pytest.approx(0.6 * draft.gain_us.high)


def test_a_loop_that_gives_the_same_in_each_step_is_to_be_run_once(tmp_path: Path) -> None:
    """A mel filterbank that is filled by a loop in each step was told to be filled for all rows at once."""
    assert looped_op(case(tmp_path / "same", loop(80), repeated_lines=("train.py:22", "train.py:9"))) is None
    assert looped_op(case(tmp_path / "other", loop(80), repeated_lines=("train.py:9",))) is not None


def function_with(rounds: int, calls: int, module: str | None = None) -> list[Event]:
    """A function without recorded lines, called so often, that runs an op so many times in each call."""
    body = []
    for call in range(calls):
        at = 11 + 10.0 * rounds * call
        body.append(frame("train.py(7): recursion", at, 10.0 * rounds))
        for number in range(rounds):
            inner = at + 1 + 10.0 * number
            body += [frame(f"nn.Module: {module}", inner, 8)] if module else []
            body.append(op("aten::add", inner + 1, 2, dims=[[8], [8], []]))
    return body


def test_a_loop_in_a_function_whose_lines_are_not_known_is_found(tmp_path: Path) -> None:
    draft = looped_op(case(tmp_path / "loop", function_with(80, 1)))
    assert draft is not None and "recursion()" in draft.advice and "80 times per step" in draft.evidence[0]
    assert looped_op(case(tmp_path / "calls", function_with(4, 20))) is None
    assert looped_op(case(tmp_path / "layers", function_with(80, 1, "Linear_0"))) is None


def calls_of_a_model(rows: int, rounds: int = 20) -> list[Event]:
    """One line that calls a module so often, for so many rows, and a loss of the size of a parameter."""
    events = [line(22, 11, 40.0 * rounds)]
    for index in range(rounds):
        at = 12 + 40.0 * index
        events += [
            frame("nn.Module: Linear_0", at, 20),
            op("aten::addmm", at + 2, 3, dims=[[rows, 8], [8, 8]]),
        ]
    return events


def test_a_model_that_is_called_for_each_sample_is_to_be_called_for_the_batch(tmp_path: Path) -> None:
    draft = looped_op(case(tmp_path, calls_of_a_model(1)))
    assert draft is not None and draft.title.startswith("The model is called again and again")
    assert (
        "at train.py:22 once for the whole batch" in draft.advice
        and "20 times per step, for 1 row each" in draft.advice
    )
    batches = looped_op(case(tmp_path / "batches", calls_of_a_model(64)))
    assert batches is not None and batches.title == "A Python loop works on tensors row by row"


@pytest.mark.parametrize("layers", [1, 20])
def test_layers_that_a_method_calls_one_after_the_other_are_no_rows(tmp_path: Path, layers: int) -> None:
    """Thirty layers of a WaveNet were told to be called once for the whole batch."""
    events = [line(22, 11, 800.0)]
    for index in range(20):
        at = 12 + 40.0 * index
        events += [
            frame(f"nn.Module: Conv1d_{index % layers}", at, 20),
            op("aten::addmm", at + 2, 3, dims=[[1, 8], [8, 8]]),
            op("aten::tanh", at + 22, 3, dims=[[1, 8]]),
        ]
    made = case(tmp_path, events)
    draft = looped_op(made)
    assert (draft is None) is (layers > 1)
    # Nor is a line of theirs Python to take out of the step, where a busy machine held it up.
    assert layer_lines(made) == ({"train.py:22"} if layers > 1 else set())


@pytest.mark.parametrize("nested", [True, False])
def test_a_recursion_over_trees_is_to_be_done_level_by_level(tmp_path: Path, nested: bool) -> None:
    """A tree LSTM was told to take the gradients of all samples by vmap, though no two trees are alike."""
    events, at = list[Event](), 12.0
    for _ in range(5):
        # Four calls inside one another, each with a line that adds, or one after the other.
        for depth in range(4):
            length = 40.0 * (4 - depth) if nested else 38.0
            events.append(frame("train.py(20): visit", at + 40 * depth, length))
            events += [line(22, at + 40 * depth + 1, 30), op("aten::add", at + 40 * depth + 3, 3, dims=[[8], [8], []])]
        at += 170
    draft = looped_op(case(tmp_path, events))
    assert draft is not None
    assert draft.title == (
        "A recursion works through trees node by node" if nested else "A Python loop works on tensors row by row"
    )


def test_a_loop_that_begins_in_the_next_line_is_named_by_it(tmp_path: Path) -> None:
    texts = {"train.py:22": "pred = net(x).argmax(1)", "train.py:23": "for p, t in zip(pred, y):"}
    draft = looped_op(case(tmp_path, loop(80), source_texts=texts))
    assert draft is not None and "at train.py:23" in draft.advice and draft.evidence[0].startswith("train.py:23")
    texts["train.py:23"] = "loss.backward()"
    draft = looped_op(case(tmp_path, loop(80), source_texts=texts))
    assert draft is not None and "at train.py:22" in draft.advice


def rounds_of_a_cell(rounds: int) -> list[Event]:
    """A line that calls a function so often, each with one op, as a loop over time does."""
    body = [line(22, 11, 10.0 * rounds)]
    for number in range(rounds):
        at = 12 + 10.0 * number
        body += [frame("train.py(7): cell", at, 8), line(8, at + 1, 6, "cell")]
        body.append(op("aten::add", at + 2, 3, dims=[[8], [8], []]))
    return body


@pytest.mark.parametrize("package", ["solvers", "torch", ""])
def test_a_loop_of_a_library_is_not_the_programs_to_rewrite(package: str, tmp_path: Path) -> None:
    """A solver of differential equations was to call the network "for all rows at once" (1.84 to 4.18)."""
    path = f"{package}/solve.py" if package else "train.py"
    body = [line(22, 11, 800.0), frame(f"{path}(3): solve", 11.2, 799), frame(f"{path}(9): take_step", 11.4, 798)]
    for number in range(80):
        at = 12 + 9.9 * number
        body += [frame("train.py(7): cell", at, 8), line(8, at + 1, 6, "cell")]
        body.append(op("aten::add", at + 2, 3, dims=[[8], [8], []]))
    draft = looped_op(case(tmp_path, body))
    assert draft is not None
    if package == "solvers":
        assert draft.gain_us is None and draft.brief is not None and draft.comes_first
        assert "at train.py:8 more rows, or let solve() of solvers take fewer rounds" in draft.brief
    else:
        assert draft.gain_us is not None and "for all rows at once" in draft.advice


@pytest.mark.parametrize("text", ["h = cell(x[:, t], h)", "h, c = cell(x, (h, c))", "out = net.step(state, out)"])
def test_rounds_that_need_the_one_before_are_not_told_to_run_at_once(text: str, tmp_path: Path) -> None:
    at_once = looped_op(case(tmp_path / "plain", rounds_of_a_cell(80), source_texts={"train.py:22": "y = cell(x[t])"}))
    carried = looped_op(case(tmp_path / "carried", rounds_of_a_cell(80), source_texts={"train.py:22": text}))
    assert at_once is not None and at_once.gain_us is not None and "for all rows at once" in at_once.advice
    assert carried is not None and carried.gain_us is not None and carried.places == ("train.py:22",)
    assert "what depends on the inputs alone" in carried.advice
    assert carried.gain_us.high == pytest.approx(0.6 * at_once.gain_us.high)


@pytest.mark.parametrize("text", ["three = stack([r[i - 1][j - 1], r[i][j - 1]])", "t[i, j] = f(t[i-1, j])"])
def test_cells_that_need_their_neighbours_go_by_antidiagonals(text: str, tmp_path: Path) -> None:
    draft = looped_op(case(tmp_path, rounds_of_a_cell(80), source_texts={"train.py:8": text, "train.py:22": text}))
    assert draft is not None and "one antidiagonal" in draft.advice and "table cell by cell" in draft.title


def test_rounds_of_a_solver_are_compiled_and_a_sum_is_none(tmp_path: Path) -> None:
    texts = {"train.py:22": "y = y + h / 6 * k1", "train.py:21": "k1 = f(t, y)"}
    solver = looped_op(case(tmp_path / "solver", rounds_of_a_cell(80), source_texts=texts))
    assert solver is not None and solver.gain_us is not None and solver.gain_us.low < 0 < solver.gain_us.high
    assert "fewer and larger rounds of the loop at train.py:22" in solver.advice
    texts["train.py:21"] = "k1 = f(t, x)"
    total = looped_op(case(tmp_path / "sum", rounds_of_a_cell(80), source_texts=texts))
    assert total is not None and "for all rows at once" in total.advice


def test_a_loop_whose_rounds_were_seen_to_need_one_another_is_compiled_and_given_more_rows(tmp_path: Path) -> None:
    free = looped_op(case(tmp_path / "free", rounds_of_a_cell(80)))
    assert free is not None and free.gain_us is not None and "for all rows at once" in free.advice
    seen = looped_op(case(tmp_path / "seen", rounds_of_a_cell(80), carried_lines=(str(free.places[0]),)))
    assert seen is not None and seen.gain_us is not None and seen.advice.startswith("Compile a round")
    assert seen.gain_us.low < 0 < seen.gain_us.high == pytest.approx(0.3 * free.gain_us.high)


def test_a_loop_that_calls_a_function_is_named_by_the_line_of_the_call(tmp_path: Path) -> None:
    """The sum over the tags of a CRF: the line of the helper says nothing of the loop."""
    body = []
    for number in range(80):
        at = 12 + 10.0 * number
        body += [line(22, at, 9), op("aten::mul", at + 0.2, 0.3, dims=[[8], [8]])]
        body += [frame("train.py(7): helper", at + 1, 7.5), line(8, at + 1.2, 7, "helper")]
        body += [op("aten::add", at + 1.4 + 3 * part, 2.5, dims=[[8], [8], []]) for part in range(2)]
    draft = looped_op(case(tmp_path, body))
    assert draft is not None and draft.places == ("train.py:22",) and "at train.py:22 for all rows" in draft.advice
    assert "train.py:8, called at train.py:22, runs the same op" in draft.evidence[0]


def test_a_line_outside_of_the_loop_carries_nothing_through_it(tmp_path: Path) -> None:
    """`x = block(x)` calls the function once, whose loop goes over rows."""
    body = [line(22, 11, 810.0), frame("train.py(7): cell", 11.5, 806), line(8, 11.6, 805, "cell"), *loop(80)[1:]]
    draft = looped_op(case(tmp_path, body, source_texts={"train.py:22": "x = cell(x)"}))
    assert draft is not None and "for all rows at once" in draft.advice


def test_windows_that_a_loop_cuts_are_a_view_of_the_tensor(tmp_path: Path) -> None:
    texts = {"train.py:22": "past = torch.stack([series[i:i + WINDOW] for i in range(n)])"}
    draft = looped_op(case(tmp_path, loop(80), source_texts=texts))
    assert draft is not None and "at train.py:22" in draft.advice and "x.unfold(0, width, 1)" in draft.advice
    slices = [
        op(
            "aten::slice",
            12 + 10.0 * at,
            2,
            dims=[[300], [], [], [], []],
            concrete=["", "0", str(at), str(at + 9), "1"],
        )
        for at in range(80)
    ]
    draft = looped_op(case(tmp_path / "picks", [line(22, 11, 800), *slices], source_texts=texts))
    assert draft is not None and draft.title.startswith("Windows of a tensor")
    texts["train.py:22"] = "out = torch.stack([layer(series[i:i + WINDOW]) for i in range(n)])"
    draft = looped_op(case(tmp_path / "calls", loop(80), source_texts=texts))
    assert draft is not None and "unfold" not in draft.advice


def test_gradients_that_are_clipped_one_by_one_are_clipped_together(tmp_path: Path) -> None:
    texts = {"train.py:22": "norm = torch.nn.utils.clip_grad_norm_([p], 1.0)"}
    draft = looped_op(case(tmp_path, loop(80), source_texts=texts))
    assert draft is not None and draft.advice.startswith("Clip at train.py:22 once for all parameters")


def test_gradients_of_each_sample_are_computed_at_once(tmp_path: Path) -> None:
    texts = {"train.py:22": "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"}
    draft = looped_op(case(tmp_path / "clipped", loop(80), source_texts=texts))
    assert draft is not None and draft.title.startswith("Gradients are computed for each sample")
    passes = [frame("torch/autograd/__init__.py(200): backward", 13.5 + 10.0 * at, 1) for at in range(40)]
    draft = looped_op(case(tmp_path / "passes", [*loop(80), *passes]))
    assert draft is not None and "torch.func.vmap" in draft.advice and "at train.py:22" in draft.advice


def test_inner_steps_that_need_one_another_are_not_joined(tmp_path: Path) -> None:
    passes = [frame("torch/autograd/__init__.py(200): backward", 13.5 + 10.0 * at, 1) for at in range(40)]
    texts = {"train.py:22": "fast = [p - self.update_lr * g for p, g in zip(fast, grad)]"}
    assert looped_op(case(tmp_path / "adapts", [*loop(80), *passes], source_texts=texts)) is None
    other = {"train.py:22": "total = [t + 0.1 * g for t, g in zip(total, grad)]"}
    assert looped_op(case(tmp_path / "sums", [*loop(80), *passes], source_texts=other)) is not None


def test_a_recurrent_cell_is_called_for_the_whole_sequence(tmp_path: Path) -> None:
    cells = [
        event | {"name": "nn.Module: GRUCell_0"} if "nn." in event["name"] else event for event in calls_of_a_model(64)
    ]
    draft = looped_op(case(tmp_path, cells))
    assert draft is not None and "Call nn.GRU once for the whole sequence" in draft.advice
    assert "at train.py:22" in draft.advice and draft.gain_us is not None
    # A GRU of 128 numbers over 100 steps came to 1.16 times as fast by its module, where dispatching was 44 % of it.
    assert 0 < draft.gain_us.low < 0.05 * draft.gain_us.high
    slower = [event | {"name": event["name"].replace("GRU", "LSTM")} for event in cells]
    lstm = looped_op(case(tmp_path / "lstm", slower))
    assert lstm is not None and lstm.gain_us is not None and lstm.gain_us.low > draft.gain_us.high / 2
    for event in cells:
        if event["name"] == "aten::addmm":
            event["args"]["Input type"] = ["double", "double"]
    doubles = looped_op(case(tmp_path / "doubles", cells))
    assert doubles is not None and doubles.gain_us is not None
    assert doubles.gain_us.low < 0 and doubles.gain_us.high < draft.gain_us.high / 4


def test_a_jacobian_of_a_batch_is_taken_for_each_sample(tmp_path: Path) -> None:
    texts = {"train.py:22": "J = jacobian(model, xu, create_graph=True)"}
    draft = looped_op(case(tmp_path, loop(80), source_texts=texts))
    assert draft is not None and draft.title.startswith("A Jacobian takes a backward pass")
    assert "for each sample" in draft.advice and "jacrev" in (draft.code or "")


def printing(file: str = "torch/_tensor_str.py(712): _str") -> list[Event]:
    """A line that makes the text of a tensor in 400 us, with small ops."""
    ops = [op("aten::select", 22 + 10.0 * index, 2, dims=[[64, 8], [], []]) for index in range(20)]
    return [line(22, 11, 420), frame(file, 20, 400), *ops]


def test_text_of_tensors_is_worth_its_time_and_is_no_loop(tmp_path: Path) -> None:
    printed = case(tmp_path, printing())
    draft = printed_tensor(printed)
    assert draft is not None and draft.gain_us is not None and "at train.py:22" in draft.advice
    assert draft.gain_us.low == pytest.approx(360, rel=0.02) and draft.gain_us.high == pytest.approx(400, rel=0.02)
    assert looped_op(printed) is None
    other = case(tmp_path / "other", printing("torch/text.py(712): _str"))
    assert printed_tensor(other) is None and looped_op(other) is not None


@pytest.mark.parametrize(
    ("text", "is_made"),
    [('logger.debug(f"out {x}")', True), ('log.info("out %s" % x)', True), ('logger.info("out %s", x)', False)],
)
def test_text_made_for_a_logger_is_to_be_made_by_it(tmp_path: Path, text: str, is_made: bool) -> None:
    printed = case(tmp_path, printing(), source_texts={"train.py:22": text})
    draft = printed_tensor(printed)
    assert draft is not None and "at train.py:22" in draft.advice
    assert ("isEnabledFor" in draft.advice) == is_made and ("log messages" in draft.title) == is_made


def test_few_rounds_other_sizes_and_ops_that_take_their_time_are_no_loop(tmp_path: Path) -> None:
    assert looped_op(case(tmp_path / "few", loop(12))) is None
    assert looped_op(case(tmp_path / "sizes", loop(80, sizes=None))) is None
    large = [line(22, 1, 900), *(op("aten::mm", 2 + 40.0 * at, 39, dims=[[512, 512], [512, 512]]) for at in range(20))]
    assert looped_op(case(tmp_path / "large", large)) is None


@pytest.mark.parametrize(("rounds", "is_loop"), [(80, True), (12, False)])
def test_a_mask_for_each_group_of_rows_is_a_loop_though_its_numbers_and_sizes_differ(
    tmp_path: Path, rounds: int, is_loop: bool
) -> None:
    body = [line(22, 11, 10.0 * rounds)]
    for group in range(rounds):
        at = 12 + 10.0 * group
        body += [
            op("aten::eq", at, 2, dims=[[900], []], concrete=["", str(group)]),
            op("aten::index", at + 3, 2, dims=[[900, 8], [900]]),
            op("aten::mean", at + 6, 2, dims=[[group + 3, 8], [], [], []]),
        ]
    text = "pooled.append(x[batch == g].mean(dim=0))"
    draft = looped_op(case(tmp_path, body, source_texts={"train.py:22": text}))
    assert (draft is not None) == is_loop
    if draft is not None:
        assert draft.brief is not None and "index_add_" in draft.brief and "group after another" in draft.title
        assert draft.evidence[0].startswith(f"train.py:22 runs the same op on the same sizes {rounds} times")


def test_what_an_optimizer_runs_for_each_parameter_is_no_loop_of_the_program(tmp_path: Path) -> None:
    mark = complete("Optimizer.step#SGD.step", "user_annotation", 11, 900)
    body = loop(80, name="aten::add_")
    assert looped_op(case(tmp_path / "optimizer", [mark, *body])) is None
    assert tensor_by_tensor(case(tmp_path / "marked", [mark, *body])) is None


def test_tensors_changed_in_place_one_by_one_ask_for_one_call(tmp_path: Path) -> None:
    averages = case(tmp_path, loop(80, name="aten::mul_", sizes=None))
    draft = tensor_by_tensor(averages)
    assert draft is not None and draft.gain_us is not None
    assert "_foreach_lerp_" in draft.advice and "train.py:22" in draft.advice
    assert draft.evidence[0].startswith("train.py:22 changes 80 tensors in place per step")
    assert looped_op(averages) is None
    assert tensor_by_tensor(case(tmp_path / "few", loop(8, name="aten::mul_"))) is None
    assert tensor_by_tensor(case(tmp_path / "new", loop(80, name="aten::mul"))) is None


def python(number: int = 43, text: str | None = None, folder: Path = Path(), **events: Event) -> Evidence:
    """Steps of 1 ms of which a line of Python takes 600 us; ``events`` happen in it."""
    texts = {} if text is None else {f"train.py:{number}": text}
    body = [line(number, 10, 600), line(50, 620, 300), op("aten::mul", 700, 100, dims=[[64], [64]]), *events.values()]
    return case(folder, body, source_texts=texts)


def test_a_line_of_python_is_quoted_with_its_share(tmp_path: Path) -> None:
    draft = python_line(python(text="tokens = [split(text) for text in batch]", folder=tmp_path))
    assert draft is not None and draft.gain_us is not None and draft.lines == ("train.py:43",)
    assert draft.gain_us.high == pytest.approx(600, rel=0.02) and draft.gain_us.low == draft.gain_us.high / 2
    assert draft.evidence[0].endswith("and runs no op: tokens = [split(text) for text in batch]")
    assert "60." in draft.evidence[0]
    assert draft.advice.startswith("Take the Python at train.py:43 out of the step")


def compared(numbers: int, folder: Path, **more: Any) -> Evidence:
    """A step in which a line compares one tensor with number after number, and another sums the masks."""
    ops: list[Event] = []
    for number in range(numbers):
        at = 10 + 20.0 * number
        ops += [line(32, at, 9, "update"), op("aten::eq", at + 1, 7, dims=[[4, 64], []], concrete=["", str(number)])]
        ops += [line(33, at + 10, 9, "update"), op("aten::sum", at + 11, 7, dims=[[4, 64]], **more)]
    return case(folder, ops)


def test_a_loop_over_classes_is_one_pass_over_the_data(tmp_path: Path) -> None:
    found = class_by_class(compared(40, tmp_path))
    assert found is not None and found.gain_us is not None and found.comes_first
    assert "loop at train.py:32: one torch.bincount" in found.advice
    assert found.lines == ("train.py:32", "train.py:33") or set(found.lines) == {"train.py:32", "train.py:33"}
    assert found.evidence[0].startswith("train.py:32 compares a tensor of 4x64 with a number 40 times per step")


def test_a_few_comparisons_are_no_loop_over_classes(tmp_path: Path) -> None:
    assert class_by_class(compared(8, tmp_path)) is None
    assert class_by_class(case(tmp_path / "other", loop(80))) is None


@pytest.mark.parametrize(
    "inside",
    [
        op("aten::add", 100, 2, dims=[[8], [8], []]),
        frame("torch/optim/adam.py(9): step", 100, 300),
        complete("Optimizer.zero_grad#SGD.zero_grad", "user_annotation", 100, 400),
    ],
    ids=["an op", "a frame of torch", "a mark"],
)
def test_a_line_in_which_torch_runs_is_not_pythons_own(tmp_path: Path, inside: Event) -> None:
    assert python_line(python(folder=tmp_path / "own")) is not None
    assert python_line(python(folder=tmp_path / "torch", inside=inside)) is None


def test_a_function_counts_to_the_line_that_calls_it(tmp_path: Path) -> None:
    calls = [frame("train.py(5): token", 100 + 10 * index, 8) for index in range(30)]
    found = python_line(python(folder=tmp_path, **{f"call{at}": call for at, call in enumerate(calls)}))
    assert found is not None and found.gain_us is not None
    assert found.lines == ("train.py:43", "token() (train.py:5)")
    assert found.gain_us.high == pytest.approx(600, rel=0.02)


def test_a_short_line_is_not_worth_a_change(tmp_path: Path) -> None:
    body = [line(43, 10, 60), line(50, 120, 800), op("aten::mul", 125, 790, dims=[[64], [64]])]
    assert python_line(case(tmp_path, body)) is None


def test_no_larger_batch_where_python_grows_with_it(tmp_path: Path) -> None:
    different = [op(f"aten::{name}", 20 + 10.0 * at, 2, dims=[[8], [8]]) for at, name in enumerate(("mul", "sub") * 40)]
    assert larger_batch(case(tmp_path / "fixed", [*different[:8], *different[8:16]], 250.0)) is not None
    assert larger_batch(case(tmp_path / "rows", loop(80))) is None
    assert larger_batch(python(folder=tmp_path / "python")) is None


def test_the_gain_of_a_line_is_no_more_than_its_time(tmp_path: Path) -> None:
    known = python(folder=tmp_path)
    draft = python_line(known)
    assert draft is not None
    (finding,) = rank([draft], known.analysis)
    (fold,) = (each for each in known.analysis.lines if each.name == "train.py:43")
    assert finding.predicted_gain_us is not None
    assert finding.predicted_gain_us.high <= (fold.us + fold.idle_us) * (1 + 1e-9)


def logging(parameters: int = 20, name: str = "aten::linalg_vector_norm", size: int = 64) -> list[Event]:
    """A step that logs each parameter in a function, from a call at line 29, then updates them: 1000 us in all."""
    body = [line(29, 10, 26.0 * parameters), frame("train.py(14): log", 11, 26.0 * parameters - 2)]
    for number in range(parameters):
        at = 12 + 26.0 * number
        body += [
            line(16, at, 2, "log"),
            line(18, at + 3, 22, "log"),
            op(name, at + 5, 8, dims=[[size, 64], [], []]),
            op("aten::item", at + 15, 6, dims=[[]]),
        ]
    mark = complete("Optimizer.step#SGD.step", "user_annotation", 600, 390)
    updates = [op("aten::add_", 610 + 15.0 * at, 5, dims=[[64, 64], [64, 64], []]) for at in range(parameters)]
    return [*body, line(30, 599, 395), mark, *updates]


def test_logging_of_every_parameter_is_worth_its_lines_and_all_below_them(tmp_path: Path) -> None:
    case_ = case(tmp_path, logging())
    draft = logged_parameters(case_)
    assert draft is not None and draft.gain_us is not None and draft.removes
    loop_ = reading_loop(case_)
    assert draft.gain_us.high == pytest.approx(26 * 20, rel=0.03)
    assert loop_ is not None and draft.gain_us.low == pytest.approx(loop_.us / 2)
    assert {"train.py:18", "train.py:16", "log() (train.py:14)"} <= set(loop_.lines)
    assert "train.py:18" in draft.advice
    # No other advice on the same reads, and no larger batch.
    assert item_calls(case_) is None and looped_op(case_) is None and larger_batch(case_) is None


@pytest.mark.parametrize(
    "body",
    [logging(parameters=8), logging(name="aten::mul_"), logging(size=32)],
    ids=["few parameters", "a function that changes them", "tensors that are no parameters"],
)
def test_few_reads_changes_of_parameters_and_other_tensors_are_no_logging(tmp_path: Path, body: list[Event]) -> None:
    assert logged_parameters(case(tmp_path, body)) is None


def test_reads_of_boxes_with_the_size_of_one_bias_are_no_logging_of_parameters(tmp_path: Path) -> None:
    other = [op("aten::add_", 905 + 15.0 * at, 5, dims=[[at + 2, 9], [at + 2, 9], []]) for at in range(5)]
    assert logged_parameters(case(tmp_path, [*logging(), *other])) is None


def without_lines(**changes: Any) -> list[Event]:
    return [event for event in logging(**changes) if event.get("cat") not in {"python_line", "python_function"}]


def test_logging_of_every_parameter_is_seen_without_lines(tmp_path: Path) -> None:
    body = without_lines()
    events = [step(number, 1000 * number, 999) for number in range(2)]
    events += [event | {"ts": event["ts"] + 1000 * number} for number in range(2) for event in body]
    draft = logged_parameters(case_of(tmp_path / "logged", events, unprofiled_us=1000))
    assert draft is not None and draft.gain_us is not None and draft.removes
    # From the first norm to the end of the last read.
    assert draft.gain_us.high == pytest.approx(26 * 19 + 16, rel=0.03)
    assert "aten::linalg_vector_norm: 160 us in 20 calls" in draft.evidence[1]
    clipped = [event | {"name": "aten::mul_"} if "norm" in event["name"] else event for event in events]
    assert logged_parameters(case_of(tmp_path / "clipped", clipped, unprofiled_us=1000)) is None


@pytest.mark.parametrize("passes", [20, 2])
def test_a_pass_for_each_sample_is_known_by_autograd_s_nodes_without_lines(tmp_path: Path, passes: int) -> None:
    """A step of 25 accumulated trees was told to take 50: each has a pass of its own, and nothing gets quicker."""
    events: list[Event] = [step(0, 0, 40.0 * passes)]
    for index in range(passes):
        at = 40.0 * index
        events += [
            in_graph(op("aten::mm", at + 1, 3, dims=[[1, 8], [8, 8]]), 10 * index, 0),
            in_graph(op("autograd::engine::evaluate_function: MmBackward0", at + 20, 3), 10 * index, 1),
        ]
    case_without_lines = case_of(tmp_path, events)
    assert backward_passes(case_without_lines) == passes
    draft = looped_op(case_without_lines)
    assert (draft is not None) is (passes > 2)
    if draft is not None:
        assert "one forward and backward pass" in draft.advice and draft.gain_us is not None
        assert 0.3 * 800 < draft.gain_us.low < 0.5 * 800 < draft.gain_us.high < 800


def averaged(folder: Path, of_one: tuple[int, int], make_in: str) -> Evidence:
    """A step in which one line makes new averages of 40 parameters, and another copies them into the old ones."""
    body: list[Event] = []
    for number in range(40):
        at, size = 10 + 10.0 * number, [of_one[0] + number % 5, of_one[1]]
        body += [line(32, at, 9, make_in), op("aten::mul", at + 1, 7, dims=[size, []])]
    for number in range(40):
        at, size = 420 + 10.0 * number, [64 + number % 5, 8]
        body += [line(33, at, 9, "update"), op("aten::copy_", at + 1, 7, dims=[size, size])]
    return case(folder, body)


def test_lines_of_the_function_that_make_what_is_copied_belong_to_the_loop(tmp_path: Path) -> None:
    draft = tensor_by_tensor(averaged(tmp_path / "same", (64, 8), "update"))
    assert draft is not None and draft.gain_us is not None
    assert draft.lines == ("train.py:32", "train.py:33") or set(draft.lines) == {"train.py:32", "train.py:33"}
    assert "train.py:32 and train.py:33" in draft.evidence[1] and draft.gain_us.high > 600
    for name, of_one, function in (("sizes", (7, 7), "update"), ("function", (64, 8), "forward")):
        other = tensor_by_tensor(averaged(tmp_path / name, of_one, function))
        assert other is not None and other.lines == ("train.py:33",)
