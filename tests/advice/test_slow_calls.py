"""Known calls and patterns in the slowest line of Python, told with their quicker way."""

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.advice import advise, data_loading, host
from bottleneck.advice.hot_lines import HotLine, hot_lines
from bottleneck.advice.slow_calls import (
    SLOW_CALLS,
    SlowCall,
    list_made_tensor,
    match_of,
    slow_call,
    without_general,
)
from bottleneck.pipeline import analyse, examine
from bottleneck.schema.analysis import IdleCause
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import RunSteps, SampledLine, SearchedContainer
from bottleneck.schema.records import replace
from bottleneck.schema.source_text import parse_line, searched_in
from bottleneck.schema.sources import find_traces
from tests.advice.cases import case_of, cpu_events, idle_row, with_analysis, with_ledger, with_recording
from tests.builders import frame, op, step, write_trace

SEEN = SearchedContainer("history[u]", "list", 1523)
TEST = SampledLine("train.py:35", 0.6, "draw", "while j in history[u]:", (), SEEN)
DRAW = SampledLine("train.py:36", 0.15, "draw", "j = random.randrange(ITEMS)", ("random.py: randrange",))
BACKWARD = SampledLine("train.py:50", 0.25, "<module>", "loss.backward()", ("torch/_tensor.py: backward",))


def run_of(*lines: SampledLine) -> RunSteps:
    return RunSteps(100, 1e7, 1e5, 0.0, 0, lines=lines)


def python(folder: Path, rows: Sequence[IdleCause], *lines: SampledLine, cause: str = "python") -> Evidence:
    """A step of 100 ms of which 80 ms are in this cause of idle time."""
    events = case_of(folder, cpu_events(10, 3, 8, steps=2), unprofiled_us=100_000.0)
    case = with_ledger(events, {"memory": 20_000.0, f"overhead.{cause}": 80_000.0}, rows)
    return with_analysis(case, run=run_of(*lines))


IN_DRAW = idle_row("python", 80_000.0, "draw() (train.py:30)", detail="draw")


def test_a_search_through_a_list_is_told_with_the_list_that_was_seen(tmp_path: Path) -> None:
    draft = slow_call(python(tmp_path, [IN_DRAW], TEST, DRAW, BACKWARD))
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    assert draft.title == "A membership test looks through a list item by item"
    assert "at train.py:35 (`while j in history[u]`): history[u] is a list of 1,523 items" in draft.advice
    assert "80.0 % of the samples in draw() (train.py:30)" in draft.evidence[1]
    assert draft.gain_us.high == pytest.approx(64_000.0)


def test_what_the_trace_tells_of_a_line_counts_before_its_samples(tmp_path: Path) -> None:
    rows = [idle_row("python", 60_000.0, "draw() (train.py:30)"), idle_row("python", 20_000.0, "train.py:36")]
    lines = hot_lines(python(tmp_path, rows, TEST, DRAW), "python")
    assert [(line.source, round(line.us)) for line in lines] == [("train.py:35", 60_000), ("train.py:36", 20_000)]


def test_a_function_without_samples_or_with_little_time_stays_a_function(tmp_path: Path) -> None:
    unsampled = python(tmp_path / "none", [IN_DRAW])
    assert [line.source for line in hot_lines(unsampled, "python")] == ["draw() (train.py:30)"]
    assert slow_call(unsampled) is None
    found = host.python_call(unsampled)
    assert found is not None and "Take what runs in draw() (train.py:30) out" in found.advice
    assert found.title == "Python in draw() takes 80.0 of 100 ms per step"
    short = idle_row("python", 9_000.0, "draw() (train.py:30)")
    assert [line.source for line in hot_lines(python(tmp_path / "short", [short], TEST), "python")] == [short.source]


def test_python_without_a_known_quicker_way_is_named_by_its_line(tmp_path: Path) -> None:
    plain = SampledLine("train.py:33", 0.6, "draw", "total = total * 3 + weight")
    case = python(tmp_path, [IN_DRAW], plain, BACKWARD)
    assert slow_call(case) is None
    found = host.python_call(case)
    assert found is not None
    assert found.advice.startswith("Take what runs at train.py:33 (`total = total * 3 + weight`) out of the step")
    assert "100.0 % of the samples in draw() (train.py:30)" in found.evidence[-1]


def test_an_archive_that_each_sample_reads_comes_before_the_wait_for_data(tmp_path: Path) -> None:
    row = idle_row(
        "input", 80_000.0, "data.py:27", detail="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    )
    reads = SampledLine(
        "data.py:27", 0.8, "__getitem__", 'x = self.archive["x"][i]', ("numpy/lib/_npyio_impl.py: __getitem__",)
    )
    case = python(tmp_path, [row], reads, cause="input")
    drafts = [slow_call(case), data_loading.input_wait(case)]
    assert drafts[0] is not None and drafts[1] is not None
    assert drafts[0].comes_first and drafts[0].advice.endswith("reads a whole array again for each sample.")
    assert "slow-call" in drafts[1].remedies


def test_what_a_function_makes_of_a_decoded_image_may_be_kept_in_its_place(tmp_path: Path) -> None:
    """Photos that were decoded and made smaller once took 5.3 ms per step for 15.4, where decoding took 31 %."""
    callees = ("PIL/Image.py: convert", "PIL/ImageFile.py: load")
    decodes = SampledLine("train.py:29", 0.5, "load", "img = Image.open(path).convert('RGB')", callees)
    resizes = SampledLine("train.py:30", 0.3, "load", "img = img.resize((48, 48))", ("PIL/Image.py: resize",))
    before = SampledLine("train.py:28", 0.1, "load", "path = self.paths[i]")
    flips = SampledLine("train.py:31", 0.1, "load", "img = random_flip(img)")
    rows = [idle_row("input", 80_000.0, "load() (train.py:27)", detail="load")]
    draft = slow_call(python(tmp_path, rows, decodes, resizes, before, flips, cause="input"))
    assert draft is not None and draft.gain_us is not None and draft.title.startswith("Images are opened")
    assert draft.gain_us.low == pytest.approx(0.7 * 40_000)
    assert draft.gain_us.high == pytest.approx(64_000)
    assert any(words.startswith("train.py:30 works on the result next, 24.0 ms") for words in draft.evidence)
    # A list that is searched is no result that could be kept.
    searched = slow_call(python(tmp_path / "other", [IN_DRAW], TEST, DRAW, BACKWARD))
    assert searched is not None and searched.gain_us is not None
    assert searched.gain_us.high == pytest.approx(64_000.0)


def test_the_general_finding_of_the_same_time_is_dropped(tmp_path: Path) -> None:
    case = python(tmp_path, [IN_DRAW], TEST, DRAW)
    drafts = [draft for draft in (slow_call(case), host.python_call(case)) if draft is not None]
    assert len(drafts) == 2
    assert [draft.slug for draft in without_general(drafts)] == ["slow-call"]
    other = [draft for draft in (host.python_call(case),) if draft is not None]
    assert without_general(other) == other


def test_the_verdict_names_the_sampled_line(tmp_path: Path) -> None:
    events = [frame("train.py(1): <module>", 0, 200_000)]
    for at in (0, 100_000):
        events += [step(at, at, 99_990), frame("train.py(30): draw", at + 10, 80_000)]
        events += [op("aten::add", at + 81_000, 15_000, dims=[[64, 64], [64, 64], []])]
    case_of(tmp_path, events, unprofiled_us=100_000.0, run=run_of(TEST, DRAW, BACKWARD))
    analysis = analyse([tmp_path])
    assert "Worst: train.py:35, 64.0 of 85.0 ms" in analysis.verdict.sentence
    assert "First: keep a set" in analysis.verdict.sentence
    assert analysis.findings[0].slug == "slow-call"
    assert analysis.source_texts["train.py:35"] == "while j in history[u]:"


def title(text: str = "", callees: tuple[str, ...] = (), searched: SearchedContainer | None = None) -> str | None:
    found = match_of(HotLine("a.py:1", ("a.py:1",), 1.0, text, callees, searched))
    return None if found is None else found.title


def test_the_grey_of_a_picture_is_no_statistic_to_keep_in_a_table() -> None:
    """A loader that turned pictures grey was told to compute "once" what differs from picture to picture."""
    called = ("numpy/_core/_methods.py: _mean",)
    assert "Statistics" in str(title("m = series.mean(axis=0)", called))
    assert title("gray = img.mean(axis=2, keepdims=True)", called) is None
    assert "Statistics" not in str(title("gray = np.mean(img, axis=2, keepdims=True)"))


def test_images_are_told_to_be_turned_into_tensors_in_the_function_that_does_it() -> None:
    source = "to_tensor() (functional.py:127)"
    row = match_of(HotLine(source, (source,), 1.0, ""))
    assert row is not None and row.title.startswith("Images are turned into tensors")
    inside = title("x = self.tf(image)", ("torchvision/transforms/functional.py: to_tensor",))
    assert inside == row.title and "resized" in str(title("", ("torchvision/transforms/transforms.py: __call__",)))


def test_what_converts_an_image_that_was_opened_decodes_it() -> None:
    text, convert = "img = Image.open(path).convert('YCbCr')", "PIL/Image.py: convert"
    assert "decoded" in str(title(text, (convert, "PIL/ImageFile.py: load")))
    assert "resized" in str(title("img = img.convert('L')", (convert,)))


def test_a_checkpoint_is_told_apart_from_other_objects_turned_into_bytes() -> None:
    assert title("torch.save(state, path)", ("torch/serialization.py: save",)) == "A checkpoint is written in each step"
    other = title("text = json.dumps(row)", ("json/encoder.py: encode",))
    assert other == "Objects are turned into bytes or text in each step"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('cur = db.execute("SELECT item FROM events WHERE user = ?", (user,))', "database is asked"),
        ("np.savez_compressed(name, feats=feats.numpy())", "compressed"),
        ("return self.src[self.dst == node]", "searched as a whole"),
        ("rows = np.where(keys == key)[0]", "searched as a whole"),
        ("q = np.percentile(self.values[m], [25, 75])", "Statistics"),
        ("q = np.percentile(self.values[m],", "Statistics"),
        ("row = frame.iloc[number]", "data frame"),
        ("x = torch.tensor(row[columns].values.astype(np.float32))", "data frame"),
        ("x = torch.tensor(list(row[columns].values()))", "made of Python numbers"),
        ("pd.DataFrame(self.rows).to_csv(self.path, index=False)", "written as a whole"),
        ("for _, row in frame.iterrows():", "data frame"),
        ("item = json.loads(text)", "parsed"),
        ("with open(path) as file:", "Files are read"),
        ('path = sorted(glob.glob(os.path.join(d, "*.npy")))[k]', "folder is listed"),
        ("names = os.listdir(folder)", "folder is listed"),
        ("image = Image.open(path)", "Images are opened"),
        ("cv2.imwrite(path, image)", "encoded and written"),
        ("x = to_tensor(image)", "turned into tensors one by one"),
        ("x = transforms.ToTensor()(image)", "turned into tensors one by one"),
        ("tokens = text.lower().split()", "tokenised"),
        ("first = queue.pop(0)", "moved or searched"),
        ("kept = np.concatenate([kept, part])", "copied to add"),
        ("old = copy.deepcopy(model)", "Objects are copied"),
        ("out = subprocess.run(command)", "Other programs"),
        ("print(loss)", "Logging"),
        ("when = datetime.strptime(text, form)", "Dates"),
        ("values = [each.item() for each in tensor]", "one by one"),
        ("for t, p in zip(targets.tolist(), predicted.tolist()):", "loop of Python"),
        ("a, b = scipy.optimize.linear_sum_assignment(cost)", "library for the CPU"),
        ("rows = np.random.choice(count, size, replace=False)", "whole population"),
        ("batch = random.sample(memory, 128)", "Drawing samples"),
        ("waves = torch.tensor([decode(random.choice(clips)) for _ in range(32)])", "made of Python numbers"),
        ("g = np.exp(-((xs - x) ** 2) / s)", "Arrays of NumPy"),
        ("buffer += chunk", "copied to add"),
        ("if word in stops:", "may look through"),
        ("place = items.index(item)", "from its start"),
        ("column = np.roll(getattr(self, name), -1, axis=0)", "moved to make room"),
        ("self.rows[:-1] = self.rows[1:]", "moved to make room"),
        ("self.rows = np.vstack([self.rows, row])[-size:]", "copied to add"),
        ("return frame.apply(features, axis=1).to_numpy()", "each row of a data frame"),
        ("means = frame.groupby('key').apply(mean_of)", "each group"),
        ("y = np.vectorize(score)(x)", "each element"),
        ("order = sorted(range(n), key=lambda i: -priority[i])", "sorted again"),
        ("r, g, b = image.getpixel((x, y))", "pixel by pixel"),
        ("d[i][j] = min(d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + c)", "cell by cell"),
        ("counts[target, predicted] += 1", "item by item"),
        ("table[i, j] = score(a, b)", "filled item by item"),
        ("x, y = next(iter(loader))", "new iterator"),
        ("pairs = list(itertools.combinations(items, 2))", "Combinations"),
        ("connection.commit()", "database"),
        ("with self.db:", "database writes each change"),
        ('db.execute("insert into score values (?, ?)", (k, p))', "database writes each change"),
        ("caller = inspect.stack()[1]", "call stack"),
        ("where = traceback.format_stack(limit=3)", "call stack"),
        ("os.fsync(log.fileno())", "forced out to the disk"),
        ("x = np.stack([series[i:i + width] for i in starts])", "Windows of an array"),
        ("xb = torch.from_numpy(table[:, rows].T)", "last axis"),
        ("x = np.take(table, rows, axis=1)", "last axis"),
        ("with mp.get_context('fork').Pool(2) as pool:", "Processes are started"),
        ("answer = requests.get(url).json()", "another server"),
        ("used = process.memory_info().rss", "measures itself"),
        ("plt.plot(losses)", "Figures"),
        ("key = hashlib.sha256(x.tobytes()).hexdigest()", "digest"),
        ("raw = zlib.decompress(packed)", "compressed"),
        ("noise = np.random.normal(size=(64, 64))", "drawn by NumPy"),
        ("x = self.values[i].astype(np.float32)", "converted"),
        ("row = self.matrix[i].toarray()", "sparse"),
        ("name = f'{layer}/{number:04d}'", "Text is put together"),
        ("report += f'{step} {loss}'", "copied to add"),
        ("total = sum(history)", "gone through for one number"),
        ("seen = set(items)", "built again"),
        ("value = eval(rule)", "compiled from text"),
        ("joined = left.merge(right, on='key')", "Data frames"),
    ],
)
def test_the_text_of_a_line_tells_what_it_does(text: str, words: str) -> None:
    assert words in (title(text) or "")


@pytest.mark.parametrize(
    "text",
    [
        "total = total * 3 + weight",
        "x = self.layer(x)",
        "loss = step(batch)",
        "count += 1",
        "y = torch.split(x, 4)",
        "model.eval()",
        "for step in range(1000):",
        "for x, y in loader:",
        "x = torch.from_numpy(f(a).astype(np.float32))",
        "values = tensor.tolist()",
        "total = x.sum() + y.max()",
        "x = torch.cat([a, b], dim=1)",
        "x[i] = y",
        "y = table[i - 1] + table[i + 1]",
        "y = table[rows, :]",
        "table[:, rows] = y",
        "y = table[:, 0] + table[:, 1:3]",
        "x = [series[0:width] for i in starts]",
        "with lock:",
        "",
    ],
)
def test_an_ordinary_line_matches_nothing(text: str) -> None:
    assert title(text) is None


def test_a_transaction_is_known_by_what_is_executed_in_it() -> None:
    line = HotLine("a.py:1", ("a.py:1",), 100.0, "with store.begin():")
    assert match_of(line) is None
    row = match_of(replace(line, following=('store.execute("insert into t values (?)", (k,))',)))
    assert row is not None and "one transaction" in row.advice
    assert match_of(replace(line, following=("x = store.get(k)",))) is None


def test_a_loop_over_passes_of_training_is_no_loop_over_items(tmp_path: Path) -> None:
    rows = [idle_row("python", 80_000.0, "train.py:34")]
    counts = {"train.py:34": "for micro in range(parts):", "train.py:35": "counts[targets[micro]] = 1"}
    trains = {**counts, "train.py:35": "x = data[micro]", "train.py:38": "(loss / parts).backward()"}
    is_found = [
        slow_call(with_recording(python(tmp_path / name, rows, BACKWARD), source_texts=texts)) is not None
        for name, texts in (("counts", counts), ("trains", trains))
    ]
    assert is_found == [True, False]


def test_an_index_takes_the_time_that_samples_give_it_from_the_line_before(tmp_path: Path) -> None:
    draw_text = "rows = rng.integers(0, n, size=k)"
    rows = [idle_row("python", 60_000.0, "train.py:34"), idle_row("python", 1_000.0, "train.py:35")]
    gather = SampledLine("train.py:35", 0.55, "<module>", "xb = torch.from_numpy(table[:, rows].T)")
    texts = {"train.py:34": draw_text}
    draft = slow_call(with_recording(python(tmp_path / "gather", rows, gather, BACKWARD), source_texts=texts))
    assert draft is not None and draft.gain_us is not None and "Keep one row per sample" in draft.advice
    assert "train.py:35 (`xb = torch.from_numpy(table[:, rows].T)`)" in draft.advice
    assert draft.gain_us.high == pytest.approx(61_000.0)
    # Samples at the line itself, and a call that samples may only have come to late.
    draw = SampledLine("train.py:34", 0.5, "<module>", draw_text)
    call = replace(gather, text="y = model(x)")
    for name, lines in (("itself", (draw, gather)), ("call", (call,))):
        hottest = hot_lines(with_recording(python(tmp_path / name, rows, *lines), source_texts=texts), "python")[0]
        assert hottest.source == "train.py:34"
    # What may well take the time itself keeps it.
    stacks = python(tmp_path / "stacks", rows, gather)
    stacks = with_recording(stacks, source_texts={"train.py:34": "x = np.stack([s[i:i + 9] for i in starts])"})
    assert hot_lines(stacks, "python")[0].source == "train.py:34"


def test_a_line_that_runs_ops_is_not_told_by_what_its_text_says_of_numbers() -> None:
    for text in ("total = sum(losses)", "key = str(value)", "rows = list(parts)", "counts[key] += 1"):
        line = HotLine("a.py:1", ("a.py:1",), 100.0, text)
        assert match_of(line) is not None
        assert match_of(replace(line, ops_us=20.0)) is None, text


def test_the_lines_of_the_function_that_apply_is_given_count_with_it(tmp_path: Path) -> None:
    rows = [
        idle_row("python", 40_000.0, "featurize() (train.py:37)"),
        idle_row("python", 40_000.0, "features() (train.py:26)"),
    ]
    apply = SampledLine(
        "train.py:38", 0.5, "featurize", "return df.apply(features, axis=1)", ("pandas/core/frame.py: apply",)
    )
    inside = SampledLine("train.py:27", 0.5, "features", "return pd.Series([", ("pandas/core/series.py: __init__",))
    draft = slow_call(python(tmp_path, rows, apply, inside))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(80_000.0)
    assert "pandas calls features() once per row" in draft.advice and "whole columns" in draft.advice


def test_what_numpy_is_called_for_says_more_than_that_it_is_numpy() -> None:
    stacked = ("numpy/_core/shape_base.py: vstack",)
    assert "copied to add" in str(title("x = np.vstack([x[1:], row])", stacked))
    assert "Arrays of NumPy" in str(title("x = np.vstack([a, b])", stacked))
    assert "moved to make room" in str(title("c = np.roll(a, -1)", ("numpy/_core/numeric.py: roll",)))


def test_functions_of_libraries_and_containers_tell_more_than_the_text() -> None:
    assert "archive" in str(title("x = open_it(a['x'][i])", ("numpy/lib/npyio.py: __getitem__",)))
    assert "data frame" in str(title("x = np.asarray(rows[i])", ("pandas/core/indexing.py: __getitem__",)))
    assert "compressed" in str(title("np.savez_compressed(n)", ("numpy/lib/_npyio_impl.py: savez_compressed",)))
    assert "decompressed again" in str(title("self.reads.seek(at)", ("gzip.py: seek", "_compression.py: seek")))
    table = SearchedContainer("stops", "set", 5000)
    assert title("if word in stops:", searched=table) is None
    assert title("if word in stops:", searched=SearchedContainer("stops", "list", 5)) is None


@pytest.mark.parametrize("call", SLOW_CALLS, ids=lambda call: call.title)
def test_every_row_has_a_brief_that_says_what_to_do(call: SlowCall) -> None:
    """The first screen had five lines of advice for one finding."""
    assert call.advice.startswith(call.change) and 20 <= len(call.change) <= 200
    assert call.change.split()[0] not in {"Where", "If", "For"} and call.change.count("(") == call.change.count(")")


def list_trace(
    folder: Path, gap: float, *, names: Sequence[str] = ("empty", "to", "lift_fresh", "detach_")
) -> Evidence:
    """A trace without Python calls of two steps of 1 ms, whose ops of these names have a gap behind the first."""
    dims: list[object] = [[256, 96]]
    at = [10.0, *(12.0 + gap + 3 * number for number in range(len(names) - 1))]
    body = [
        op(f"aten::{name}", ts, 2, dims=dims if name != "empty" else [[]]) for name, ts in zip(names, at, strict=True)
    ]
    body.append(op("aten::mm", 700, 200, dims=[[64, 64], [64, 64]]))
    events = [step(number, 1000.0 * number, 999) for number in range(2)]
    events += [event | {"ts": event["ts"] + 1000.0 * number} for number in range(2) for event in body]
    folder.mkdir()
    return examine(find_traces(write_trace(folder / "trace.json", events, deviceProperties=[]))[0])


def test_a_tensor_made_of_a_list_is_known_by_the_gap_between_its_ops(tmp_path: Path) -> None:
    draft = list_made_tensor(list_trace(tmp_path / "list", 500))
    assert draft is not None and draft.gain_us is None and draft.comes_first and draft.brief is not None
    assert "np.stack" in draft.brief and "256x96 numbers" in draft.evidence[0] and "500 us" in draft.evidence[1]
    assert advise(list_trace(tmp_path / "first", 500))[0].title == draft.title
    assert list_made_tensor(list_trace(tmp_path / "short", 30)) is None
    # torch.tensor() of an array hands it on first, and Python between other ops fills no tensor.
    array = ("lift_fresh", "to", "detach_")
    assert list_made_tensor(list_trace(tmp_path / "array", 500, names=array)) is None
    assert list_made_tensor(list_trace(tmp_path / "other", 500, names=("empty", "to", "relu"))) is None
    recorded = [op("aten::empty", 10, 2), op("aten::to", 512, 1), op("aten::lift_fresh", 514, 1)]
    assert list_made_tensor(case_of(tmp_path / "run", [step(0, 0, 999), *recorded])) is None


def test_every_row_says_its_advice_without_gaps() -> None:
    words = {"at": "at a.py:1", "place": "a.py:1", "often": "in each step", "searched": "x is a list of 70 items"}
    words["given"] = "f()"
    for each in SLOW_CALLS:
        assert "{" not in each.title.format(**words) + each.advice.format(**words)
        assert each.advice.endswith(".")
        assert each.functions is not None or each.by_text is not None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("while j in history[u]:", ["history[u]"]),
        ("elif a not in self.seen and b in other:", ["self.seen", "other"]),
        ("x = [a for a in items if a in kept]", ["kept"]),
        ("if a in build(b):", []),
        ("if (a in", []),
    ],
)
def test_membership_tests_are_found_in_a_line(text: str, found: list[str]) -> None:
    statement = parse_line(text)
    assert [ast.unparse(each) for each in (searched_in(statement) if statement is not None else ())] == found


def test_a_slow_function_is_told_with_the_line_that_gives_it_to_pandas(tmp_path: Path) -> None:
    rows = [
        idle_row("python", 60_000.0, "train.py:9"),
        idle_row("python", 20_000.0, "train.py:13"),
    ]
    body = SampledLine("train.py:9", 0.7, "spread", "def spread(g): return g['v'].max() - g['v'].min()")
    call = SampledLine("train.py:13", 0.3, "main", "w = df.groupby('k').apply(spread)")
    draft = slow_call(python(tmp_path, rows, body, call))
    assert draft is not None and draft.gain_us is not None
    assert "each group" in draft.title and "train.py:13" in draft.advice
    assert draft.gain_us.high == pytest.approx(80_000.0)
