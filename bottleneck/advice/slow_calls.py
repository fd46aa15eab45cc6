"""Names calls and patterns in the slowest line of Python that have a quicker way, by a table of known ones.

A row is recognised by a function of a library that holds most of the line's time, by what the line's membership test
looks through, or by the line's text; the text alone does not tell types, and the advice says so.
"""

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from bottleneck.advice.data_loading import ONE_PROCESS, loader_kinds
from bottleneck.advice.hot_lines import HotLine, hot_lines
from bottleneck.advice.quantities import claims_of, format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.source_text import parse_line, searched_in

# Below this part of the step a line is not worth a change; from the second on it is the first thing to say.
_LEAST, _FIRST = 0.1, 0.4
# A line with less than this part of the time of the slowest line is not what the cause of idle time is about.
_NEAR = 0.5
# Further lines of the same kind count with so much of the step.
_LEAST_BESIDE = 0.01
_MANY_ITEMS = 64

Recognise = Callable[[HotLine], bool]


class SlowCall(Struct, frozen=True):
    """A call, or a pattern in a line, that has a quicker way: how it is recognised, what to say, and the code.

    ``functions`` are those of libraries, 'numpy/lib/npyio.py: load', or built-in ones as frames name them. In ``title``
    and ``advice`` {place} is the line with its text, {often} 'for each sample' or 'in each step', and {searched} what a
    membership test looks through. ``least`` is the part of the line's time that goes at least.
    """

    title: str
    advice: str
    code: str
    functions: "re.Pattern[str] | None" = None
    by_text: Recognise | None = None
    least: float = 0.5


def called(names: str) -> Recognise:
    """Recognises a call by the end of its dotted name: 'np.percentile', 'self.items.index'."""
    ending, in_text = re.compile(rf"(?:^|\.)(?:{names})$"), re.compile(rf"(?<!\w)(?:{names})\(")

    def recognise(line: HotLine) -> bool:
        statement = parse_line(line.text)
        if statement is None:  # a part of a statement, or cut
            return in_text.search(line.text) is not None
        return any(ending.search(name) for name in _called_names(statement))

    return recognise


def _called_names(statement: ast.AST) -> Iterator[str]:
    return (_dotted(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call))


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _searches_sequence(line: HotLine) -> bool:
    return line.searched is not None and line.searched.is_scanned and line.searched.items >= _MANY_ITEMS


def _may_search_sequence(line: HotLine) -> bool:
    statement = parse_line(line.text)
    return line.searched is None and statement is not None and next(searched_in(statement), None) is not None


def _looks_up_by_mask(line: HotLine) -> bool:
    """True for ``a[b == key]``, and for the places that np.where, nonzero and isin find of one comparison."""
    statement = parse_line(line.text)
    if statement is None:
        return False
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript) and _compares(node.slice):
            return True
        finds = isinstance(node, ast.Call) and re.search(
            r"(?:^|\.)(?:where|nonzero|flatnonzero|argwhere|masked_select|compress)$", _dotted(node.func)
        )
        if finds and isinstance(node, ast.Call) and any(_compares(each) for each in (*node.args, node.func)):
            return True
    return False


def _compares(node: ast.AST) -> bool:
    equal = (one for one in ast.walk(node) if isinstance(one, ast.Compare))
    return any(isinstance(operator, ast.Eq) for one in equal for operator in one.ops)


def _has_keyword(line: HotLine, names: str, keyword: str) -> bool:
    statement = parse_line(line.text)
    ending = re.compile(rf"(?:^|\.)(?:{names})$")
    calls = () if statement is None else (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(ending.search(_dotted(call.func)) and any(k.arg == keyword for k in call.keywords) for call in calls)


def _draws_from_many(line: HotLine) -> bool:
    return any(_has_keyword(line, "choice|choices", keyword) for keyword in ("replace", "p", "weights"))


def _grows(line: HotLine) -> bool:
    """True for ``kept += part`` and ``kept = kept + part`` of plain names: a copy, where kept is no number."""
    statement = parse_line(line.text)
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.op, ast.Add) and isinstance(statement.value, ast.Name | ast.List | ast.Attribute)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.BinOp):
        return False
    same = ast.unparse(statement.targets[0]) == ast.unparse(statement.value.left)
    return same and isinstance(statement.value.op, ast.Add) and isinstance(statement.value.right, ast.Name | ast.List)


def _moves_all(line: HotLine) -> bool:
    """True for ``items.pop(0)`` and ``items.insert(0, item)``."""
    statement = parse_line(line.text)
    for node in () if statement is None else ast.walk(statement):
        if isinstance(node, ast.Call) and node.args and re.search(r"\.(?:pop|insert)$", _dotted(node.func)):
            first = node.args[0]
            if isinstance(first, ast.Constant) and first.value == 0:
                return True
    return False


# Methods of text, where they take nothing but text.
_OF_TEXT = re.compile(
    r"\.(?:split|rsplit|splitlines|lower|upper|strip|[lr]strip|replace|translate|casefold|partition|encode|decode|join)$"
)


def _works_on_text(line: HotLine) -> bool:
    statement = parse_line(line.text)
    calls = () if statement is None else (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(
        _OF_TEXT.search(f".{_dotted(call.func)}") is not None
        and (
            all(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in call.args)
            or (isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Constant))
        )
        for call in calls
    )


def _joins_onto_itself(line: HotLine) -> bool:
    """True for ``kept = np.concatenate([kept, part])`` and its like."""
    statement = parse_line(line.text)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return False
    joins = re.search(r"(?:^|\.)(?:append|concatenate|vstack|hstack|insert|concat|cat)$", _dotted(statement.value.func))
    target = ast.unparse(statement.targets[0])
    inside = (node for argument in statement.value.args for node in ast.walk(argument))
    return joins is not None and any(ast.unparse(node) == target for node in inside if isinstance(node, ast.expr))


def _reads_rows(line: HotLine) -> bool:
    return re.search(r"\.(?:i?loc|i?at)\[|\.(?:iterrows|itertuples)\(", line.text) is not None


def _any_of(*recognise: Recognise) -> Recognise:
    return lambda line: any(each(line) for each in recognise)


# The first row that matches is taken, rows that a function of a library or the container shows before those that only
# the text shows.
SLOW_CALLS: Sequence[SlowCall] = (
    SlowCall(
        "An array is read out of an .npz archive again and again",
        "Read the arrays of the .npz archive once, in __init__, and index those: {place} reads a whole array again "
        "{often}.",
        'with np.load(path) as archive:\n    self.images = archive["images"]  # once, in __init__; or save .npy and '
        'np.load(path, mmap_mode="r")',
        re.compile(r"numpy/lib/_?npyio(?:_impl)?\.py: __getitem__$"),
        least=0.8,
    ),
    SlowCall(
        "A membership test looks through a list item by item",
        "Keep a set (or a mask, or a dict) of the same items for the membership test {at}: {searched}, and `in` "
        "compares them one by one.",
        "seen = {user: set(items) for user, items in history.items()}  # once\nwhile item in seen[user]: ...",
        by_text=_searches_sequence,
    ),
    SlowCall(
        "Objects are copied in each step",
        "Take the copy {at} out of the step, or copy tensors in place into ones that are kept.",
        "torch._foreach_copy_(kept, list(model.parameters()))  # kept: made once",
        re.compile(r"(?:^|/)copy\.py: _?(?:deepcopy|reconstruct)"),
        called("deepcopy"),
    ),
    SlowCall(
        "A file is written as a whole again and again",
        "Write only what is new (append to the file), or write every some hundred steps: {place} writes all of it "
        "again {often}.",
        'writer.writerow(row)  # csv.writer on a file that stays open; or rows.append(row) and one to_csv at the end',
        re.compile(r"(?:^|/)pandas/core/generic\.py: to_\w+$|(?:^|/)matplotlib/figure\.py: savefig$"),
        called(r"to_(?:csv|parquet|json|pickle|excel|feather|hdf|sql)|savefig|savez\w*|json\.dump|pickle\.dump"),
        least=0.7,
    ),
    SlowCall(
        "Rows of a data frame are read one by one",
        "Turn the data frame that is read {at} into arrays or tensors once, before the loop: each access of pandas "
        "to a row makes a new object.",
        "values = torch.from_numpy(frame.to_numpy())  # once; values[rows] in the step",
        re.compile(r"(?:^|/)pandas/core/(?:indexing|frame|series|generic|apply|groupby|internals)"),
        _reads_rows,
    ),
    SlowCall(
        "Dates are parsed again and again",
        "Parse the dates once, before training, and keep numbers (an int64 array): {place} parses them {often}.",
        "stamps = pandas.to_datetime(column).to_numpy()  # all at once, before the loop",
        re.compile(r"(?:^|/)(?:_strptime\.py|dateutil/|pytz/|zoneinfo/|arrow/|pandas/core/tools/datetimes\.py)"),
        called("strptime|fromisoformat|to_datetime|Timestamp|parser\\.parse"),
    ),
    SlowCall(
        "Images are opened and decoded again {often}",
        "Decode once what is decoded {at} (a tensor, .npy or memory-mapped file of the size that training needs), or "
        "in the loader's workers.",
        'images = np.load("images.npy", mmap_mode="r")  # decoded and resized once',
        re.compile(r"(?:^|/)(?:PIL/|imageio/|skimage/io|torchvision/io/)"),
        called(r"Image\.open|imread|imdecode|decode_image|decode_jpeg|read_image"),
    ),
    SlowCall(
        "Data is parsed in each step",
        "Parse once, before the loop, what is parsed {at}, or in the loader's workers.",
        "data = [json.loads(line) for line in lines]  # once",
        re.compile(
            r"(?:^|/)(?:json/(?:__init__|decoder|scanner)|csv|pickle|xml/\S*|yaml/\S*|html/\S*|configparser)\.py: "
        ),
        called(r"json\.loads?|pickle\.loads?|csv\.(?:reader|DictReader)|yaml\.\w*load|literal_eval|fromstring"),
    ),
    SlowCall(
        "A compressed file is decompressed again to reach each place",
        "Decompress the file once, into memory or into a plain file to map, before {place} looks places up in it: a "
        "compressed stream (gzip, bz2, lzma) has no way back, so that a seek decompresses it again from its start, "
        "{often}.",
        "data = gzip.open(path).read()  # once; data[start:start + length] for each sample",
        re.compile(r"(?:^|/)(?:gzip|bz2|lzma|_compression)\.py: (?:seek|_rewind)$"),
        least=0.8,
    ),
    SlowCall(
        "Files are read again {often}",
        "Read once, and keep in memory or map into it, what {place} reads {often}; where it does not fit, read it in "
        "the loader's workers.",
        'data = np.load("data.npy", mmap_mode="r")  # once, in __init__',
        re.compile(
            r"(?:^|/)(?:gzip|bz2|lzma|sqlite3/\S*|h5py/\S*|lmdb/\S*|pyarrow/\S*|requests/\S*|urllib/\S*|soundfile"
            r"|torchaudio/\S*|librosa/core/audio|pandas/io/\S*|zarr/\S*|fsspec/\S*)(?:\.py)?(?:/__init__\.py)?: "
            r"|(?:zipfile(?:/__init__)?|tarfile)\.py: (?:open|read\w*|__init__|extract\w*|getmember)$"
            r"|pathlib(?:/\w+)?\.py: (?:open|read_\w+|exists|is_\w+|stat|iterdir|r?glob)$"
            r"|numpy/lib/_?(?:npyio|format)(?:_impl)?\.py: (?:load\w*|genfromtxt|fromfile|read_array|open_memmap)$"
            r"|torch/serialization\.py: _?(?:legacy_)?load$"
        ),
        called(
            r"open|read_text|read_bytes|readlines?|np\.load|numpy\.load|torch\.load|loadtxt|genfromtxt|fromfile|memmap"
            r"|loadmat|read_parquet|read_sql|read_csv|(?:cursor|conn\w*|db)\.execute|urlopen|listdir|scandir|glob|rglob"
            r"|exists|isfile"
        ),
    ),
    SlowCall(
        "Other programs are started in the step",
        "Start the program of {place} once and talk to it, or call a library in its place: a new process takes "
        "milliseconds {often}.",
        "process = subprocess.Popen(...)  # once; write to its stdin and read its stdout",
        re.compile(
            r"(?:^|/)(?:subprocess|os)\.py: (?:run|Popen|__init__|_execute_child|check_output|call|popen|communicate)$"
        ),
        called(r"subprocess\.\w+|os\.system|os\.popen|getoutput"),
    ),
    SlowCall(
        "Logging and printing take a part of each step",
        "Write less often what {place} writes {often}, or collect it and write it every so many steps.",
        "if step % 100 == 0:\n    log(...)",
        re.compile(r"(?:^|/)(?:logging/|tqdm/|rich/|loguru/|warnings\.py|traceback\.py|inspect\.py|linecache\.py)"),
        called(r"print|logg(?:er|ing)\.\w+|flush|warn|fsync|format_exc|inspect\.\w+"),
    ),
    SlowCall(
        "Text is tokenised or taken apart in each step",
        "Tokenise once, before training, and keep the ids: {place} works on text {often}. Where it cannot be kept, a "
        "tokenizer in a compiled language, for a list of texts at once, or the loader's workers.",
        "ids = [encode(text) for text in texts]  # once; in the step only ids[rows]",
        re.compile(r"(?:^|/)(?:re/|re\.py|sre_\w+|regex/|string\.py|textwrap\.py|difflib\.py|unicodedata|nltk/|spacy/"
                   r"|tokenizers/|sentencepiece/|transformers/tokenization|torchtext/)"),
        _any_of(_works_on_text, called(r"re\.\w+|findall|finditer|tokenize|word_tokenize|ngrams|unicodedata\.\w+")),
    ),
    SlowCall(
        "An array is copied to add to it",
        "Collect the parts in a list and join them once, or write into an array made beforehand: {place} copies all "
        "that was there before, {often}.",
        "parts.append(part)  # in the loop\nwhole = np.concatenate(parts)  # once, after it",
        re.compile(
            r"numpy/lib/_?function_base(?:_impl)?\.py: (?:append|insert|delete)$|pandas/core/reshape/concat\.py: "
        ),
        _joins_onto_itself,
    ),
    SlowCall(
        "Statistics are computed again {often}",
        "Compute once what {place} computes {often}, where it is of data that does not change (one result per series, "
        "user or class, kept in a table), or update it by what is new.",
        "self.stats = [np.percentile(series, [25, 50, 75]) for series in values]  # once, in __init__",
        re.compile(
            r"numpy/lib/_?(?:function_base|nanfunctions|arraysetops|histograms)(?:_impl)?\.py: "
            r"_?(?:nan)?(?:percentile|quantile|median|histogram\w*|unique\w*|cov|corrcoef|std|var|mean)"
            r"|numpy/_?core/(?:fromnumeric|_methods)\.py: _?(?:mean|std|var|sort|argsort|partition|cumsum)$|"
            r"(?:^|/)statistics\.py: |scipy/stats/"
        ),
        called(
            r"(?:nan)?(?:percentile|quantile|median)|a?argsort|argsort|sort|sorted|unique|histogram\w*|bincount|corrcoef|cov"
            r"|cumsum|nanmean|nanstd|nunique|value_counts|describe|most_common|Counter|(?:np|numpy)\.(?:mean|std|var)"
        ),
    ),
    SlowCall(
        "An array is searched as a whole for one key",
        "Build an index once, and look the key up in it: {place} compares every element of the array {often} to find "
        "those of one key. Sorted once by the key, with row pointers (CSR), or in a dict of arrays, they are a slice.",
        "order = np.argsort(keys, kind='stable')  # once\nstart = np.searchsorted(keys[order], np.arange(count + 1))\n"
        "mine = values[order][start[key]:start[key + 1]]  # values[order]: once too",
        by_text=_looks_up_by_mask,
        least=0.7,
    ),
    SlowCall(
        "A list is moved or searched as a whole for one item",
        "Use a collections.deque (popleft, appendleft) or a ring in place of the list {at}: pop(0) and insert(0) move "
        "all its items.",
        "from collections import deque\nqueue = deque(maxlen=size)  # queue.popleft(), queue.append(item)",
        by_text=_moves_all,
    ),
    SlowCall(
        "Drawing samples goes through a whole population",
        "Draw for the whole batch at once, with replacement or by rejection, or shuffle once per epoch: without "
        "replacement, or with weights, {place} goes through the whole population {often}.",
        "order = rng.permutation(count)  # once per epoch; order[start:start + size] in the step\n"
        "rows = np.searchsorted(cumulated, rng.random(size))  # weights: cumulated once",
        by_text=_any_of(_draws_from_many, called(r"permutation|randperm|shuffle")),
    ),
    SlowCall(
        "Drawing samples takes a part of each step",
        "Draw {at} from a list: a deque walks to each element that it is asked for. Or draw for the whole batch at "
        "once with NumPy or torch.",
        "memory[position % size] = move  # a list as a ring; random.sample(memory, n) is then quick",
        re.compile(r"(?:^|/)random\.py: (?:sample|choices?|shuffle)$"),
        called(r"random\.(?:sample|choices?|shuffle)"),
    ),
    SlowCall(
        "Random numbers are drawn one by one",
        "Draw for the whole batch at once, with NumPy or torch, what {place} draws number by number.",
        "drawn = torch.randint(0, count, (size,))  # or rng.integers(0, count, size)",
        re.compile(r"(?:^|/)random\.py: (?:randrange|randint|_randbelow\w*|uniform|gauss|normalvariate|\w+variate)$"),
        called(r"random\.(?:random|randrange|randint|uniform|gauss|normalvariate)"),
    ),
    SlowCall(
        "A list is searched from its start for one item",
        "Keep a dict from each item to its place for the search {at}: where it is a list, index(), count() and "
        "remove() go through its items one by one.",
        "place = {item: number for number, item in enumerate(items)}  # once; place[item] in the loop",
        by_text=called(r"\w+\.(?:index|remove|count)"),
    ),
    SlowCall(
        "Values of a tensor are read one by one",
        "Work on the whole tensor at once, or turn it into a list or an array once before the loop {at}: each element "
        "of a tensor that Python reads is an op.",
        "values = tensor.tolist()  # once; or an op of torch for all elements",
        re.compile(r"torch/_tensor\.py: (?:__iter__|__len__|__contains__|__array__|__format__|__repr__|__hash__)$"),
        called(r"tolist|item"),
    ),
    SlowCall(
        "Settings are read through a slow object",
        "Read the values once, into plain variables, before the loop: {place} looks them up {often} through a library "
        "for settings.",
        "width = int(config.model.width)  # once",
        re.compile(r"(?:^|/)(?:omegaconf|hydra|yacs|ml_collections|pydantic|attrdict)/|^os\.py: __getitem__$"),
    ),
    SlowCall(
        "Objects are turned into bytes or text in each step",
        "Write less often, or keep tensors in place of what {place} turns into bytes or text {often}.",
        "if step % 100 == 0:\n    save(state)",
        re.compile(
            r"(?:^|/)(?:json/encoder|dataclasses|hashlib|base64|uuid|pprint|reprlib)\.py: |pickle\.py: \w*dumps?$"
            r"|torch/serialization\.py: _?(?:legacy_)?save$|numpy/lib/_?npyio(?:_impl)?\.py: save"
        ),
        called(r"dumps?|asdict|hexdigest|digest|sha\d+|md5|b64\w+|compress|decompress|uuid\d"),
    ),
    SlowCall(
        "A library for the CPU computes in each step",
        "Call {place} once for the whole batch, less often, ahead of training, or replace it by ops of torch: it runs "
        "in Python's process, {often}, while nothing else does.",
        "table = numpy.stack([compute(each) for each in items])  # once, before the loop",
        re.compile(r"(?:^|/)(?:scipy|sklearn|skimage|networkx|sympy|shapely|cv2|numba|librosa|statsmodels|torchvision/transforms"
                   r"|albumentations|imgaug|rdkit|Bio)/|(?:^|/)(?:fractions|_pydecimal|decimal)\.py: "),
        called(r"(?:scipy|sklearn|skimage|cv2|nx|networkx|librosa|ndimage|cKDTree|KDTree)\.\w[\w.]*|linear_sum_assignment"),
    ),
    SlowCall(
        "A tensor is made of Python numbers",
        "Keep the numbers in an array or a tensor from the start, or make the tensor once: {place} takes them out of "
        "Python's objects one by one, {often}, where it is given a list.",
        "kept[at] = value  # kept: a tensor made once; torch.from_numpy(array) copies nothing",
        by_text=called(r"torch\.(?:tensor|as_tensor|\w*Tensor)|(?:np|numpy)\.(?:array|asarray|fromiter)"),
    ),
    SlowCall(
        "Arrays of NumPy are computed again {often}",
        "Make once, smaller (only the part that matters), for all items in one call, or ahead of time (kept with the "
        "data, or in the loader's workers) what {place} computes {often}.",
        "targets = [draw(each) for each in items]  # once, before the loop; or for all: items[:, None] - grid[None]",
        re.compile(r"^numpy/"),
        called(r"(?:np|numpy)\.(?!random)\w[\w.]*|meshgrid|astype"),
    ),
    SlowCall(
        "A list or text is copied to add to it",
        "Where {place} adds to text, bytes or a tuple, it copies all that was there before: collect the parts in a "
        "list, and join them once.",
        'parts.append(part)  # in the loop\nwhole = b"".join(parts)  # once, after it',
        by_text=_grows,
    ),
    SlowCall(
        "A membership test may look through a list item by item",
        "Look at what the membership test {at} searches: if it is a list or an array, `in` compares its items one by "
        "one; a set or a dict finds an item at once.",
        "seen = set(items)  # once; item in seen",
        by_text=_may_search_sequence,
    ),
)  # fmt: skip


class _KnownLines(Struct, frozen=True):
    """Lines that match one row of the table in one cause of idle time, longest first."""

    cause: str
    lines: tuple[HotLine, ...]
    call: SlowCall


def match_of(line: HotLine) -> SlowCall | None:
    """The row of the table that a line matches; null where none does."""
    if _searches_sequence(line):
        return next(each for each in SLOW_CALLS if each.by_text is _searches_sequence)
    for callee in line.callees:
        for each in SLOW_CALLS:
            if each.functions is not None and each.functions.search(callee):
                return each
    return next((each for each in SLOW_CALLS if each.by_text is not None and each.by_text(line)), None)


@remembered
def _matched(evidence: Evidence) -> _KnownLines | None:
    """The slowest lines, or those nearly as slow, that one row of the table knows."""
    lines = [(cause, line) for cause in _causes(evidence) for line in hot_lines(evidence, cause)]
    lines.sort(key=lambda each: -each[1].us)
    for cause, line in lines:
        if line.us < max(_NEAR * lines[0][1].us, _LEAST * evidence.step_us):
            return None
        call = match_of(line)
        if call is not None:
            mine = [one for other, one in lines if other == cause and evidence.share_of_step(one.us) >= _LEAST_BESIDE]
            return _KnownLines(cause, tuple(one for one in mine if match_of(one) is call), call)
    return None


def _causes(evidence: Evidence) -> tuple[str, ...]:
    """Causes whose lines run in this process: those of a loader with workers only wait for them."""
    return ("python", "input") if loader_kinds(evidence) <= {ONE_PROCESS} else ("python",)


def slow_call(evidence: Evidence) -> Draft | None:
    """The slowest line of Python, in the step or in its loader, is a call or a pattern that has a quicker way.

    Gain: the time of that line, from a part of it that the row of the table tells.
    """
    found = _matched(evidence)
    if found is None:
        return None
    line, call = found.lines[0], found.call
    words = {
        "at": line.where(),
        "place": line.place(),
        "often": "for each sample" if found.cause == "input" else "in each step",
        "searched": "" if line.searched is None else line.searched.words(),
    }
    us, sampled = math.fsum(each.us for each in found.lines), line.sampled()
    folds = {fold.name for fold in evidence.analysis.lines}
    return Draft(
        slug="slow-call",
        title=call.title.format(**words),
        evidence=(
            *(f"{each.source} takes {format_per_step(evidence, each.us)}{each.quoted()}" for each in found.lines[:3]),
            *(() if sampled is None else (sampled,)),
            *(() if line.searched is None else (f"{line.searched.words()}, seen once while the program ran",)),
            *((f"most of it is in {line.callees[0]}",) if line.callees else ()),
        ),
        advice=call.advice.format(**words),
        code=call.code,
        gain_us=Interval(call.least * us, us),
        claims=claims_of(evidence, f"overhead.{found.cause}", most_us=us),
        removes=True,
        lines=tuple(dict.fromkeys(name for each in found.lines for name in each.named if name in folds)),
        comes_first=evidence.share_of_step(us) >= _FIRST,
    )


# Findings that say less of the same time: its place or its kind, without the remedy of the one that they stand under.
_GENERAL: Mapping[str, frozenset[str]] = {
    "slow-call": frozenset({"python-line", "python-call", "loader-hot-spot", "side-work"}),
    "class-by-class": frozenset({"looped-op", "needless-copies", "unfused-chain"}),
}
_MOST_OF_IT = 0.5


def without_general(drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts without those that say less of time of which another draft explains half or more."""
    most_us = {each.slug: each.gain_us.high for each in drafts if each.gain_us is not None}
    return [
        draft
        for draft in drafts
        if draft.gain_us is None
        or not any(
            draft.slug in general and most_us.get(slug, 0.0) >= _MOST_OF_IT * draft.gain_us.high
            for slug, general in _GENERAL.items()
        )
    ]


RULES = (slow_call,)
