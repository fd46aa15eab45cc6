"""Names calls in the slowest line of Python that have a quicker way.

A table of known calls and patterns tells them. A row is recognised by a function of a library that holds most of the
line's time, by what the line's membership test looks through, or by the line's text; the text alone does not tell
types, and the advice says so.
"""

import ast
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.data_loading import MOST_OF_LOADING, ONE_PROCESS, loader_kinds
from bottleneck.advice.hot_lines import HotLine, hot_lines
from bottleneck.advice.kernel_work import Size, size_words, work_of
from bottleneck.advice.line_patterns import (
    Recognise,
    adds_to_item,
    any_of,
    called,
    called_plainly,
    calls_by_row,
    converts_plainly,
    cuts_windows,
    dotted,
    fills_table,
    gathers_columns,
    given_function,
    grows,
    joins_onto_itself,
    loops_over_items,
    puts_text_together,
    shifts_itself,
    starts_over,
    writes_item,
)
from bottleneck.advice.loop_lines import functions_of_lines
from bottleneck.advice.quantities import claims_of, format_count, format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import top_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.op_names import at_source, place_of
from bottleneck.schema.source_text import parse_line, searched_in
from bottleneck.schema.tables import as_integers
from bottleneck.units import counted, format_us

# Below this part of the step a line is not worth a change; from the second on it is the first thing to say.
_LEAST, _FIRST = 0.1, 0.4
# A line with less than this part of the time of the slowest line is not what the cause of idle time is about.
_NEAR = 0.5
# Further lines of the same kind count with so much of the step.
_LEAST_BESIDE = 0.01
_MANY_ITEMS = 64
# Up to so much of its time in Python a line may run ops, and still count as one without any.
_LITTLE_IN_OPS = 0.1


class SlowCall(Struct, frozen=True):
    """Call, or pattern in a line, that has a quicker way.

    How it is recognised, what to say, and the code. ``functions`` are those of libraries, 'numpy/lib/npyio.py: load',
    or built-in ones as frames name them. In the texts {place} is the line with its text, {often} 'for each sample' or
    'in each step', {searched} what a membership test looks through, and {given} the function that the line gives to
    another. ``least`` is the part of the line's time that goes at least. The text of a row
    ``without_ops`` counts only at lines in which torch runs nothing to speak of: a sum() may be one of tensors.
    ``per_batch`` marks what is better done for a batch at once. With ``takes_next`` what the same function makes of the
    result next may go too. A line with ``unless`` in its text is for something else.
    """

    title: str
    change: str
    code: str
    reason: str = ""
    functions: "re.Pattern[str] | None" = None
    by_text: Recognise | None = None
    least: float = 0.5
    without_ops: bool = False
    per_batch: bool = False
    takes_next: bool = False
    unless: "re.Pattern[str] | None" = None

    @property
    def advice(self) -> str:
        """The change with its reason, where it needs one."""
        return f"{self.change}: {self.reason}" if self.reason else f"{self.change}."


def _searches_sequence(line: HotLine) -> bool:
    return line.searched is not None and line.searched.is_scanned and line.searched.items >= _MANY_ITEMS


def _may_search_sequence(line: HotLine) -> bool:
    statement = parse_line(line.text)
    return line.searched is None and statement is not None and next(searched_in(statement), None) is not None


_ASKS = re.compile(r"\bexecute(?:many)?\(.*\bselect\b|\bread_sql\w*\(", re.IGNORECASE)


def _asks_database(line: HotLine) -> bool:
    """True for a question in SQL."""
    return bool(_ASKS.search(line.text))


_WRITES = re.compile(
    r"\bexecute(?:many|script)?\(.*\b(?:insert|update|delete|replace)\b|\bto_sql\(|\.bulk_\w+\(", re.IGNORECASE
)
_TRANSACTION = re.compile(r"^(?:async )?with ([\w.]+?)(?:\.(?:begin|transaction|atomic)\(\w*\))?(?: as \w+)?:$")

_CONNECTION = re.compile(r"(?i)(?:^|[._])(?:db|con|conn|connection|database)$")


def _commits(line: HotLine) -> bool:
    """True for a change in SQL, and for a `with` that commits.

    The `with` is of the connection that the next lines execute one on.
    """
    if _WRITES.search(line.text):
        return True
    opened = _TRANSACTION.match(line.text)
    if opened is None:
        return False
    if _CONNECTION.search(opened[1]):
        return True
    owner = re.escape(opened[1])
    return any(_WRITES.search(text) and re.search(rf"(?<![\w.]){owner}\b", text) for text in line.following)


def _looks_up_by_mask(line: HotLine) -> bool:
    """True for ``a[b == key]``.

    And for the places that np.where, nonzero and isin find of one comparison.
    """
    statement = parse_line(line.text)
    if statement is None:
        return False
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript) and _compares(node.slice):
            return True
        finds = isinstance(node, ast.Call) and re.search(
            r"(?:^|\.)(?:where|nonzero|flatnonzero|argwhere|masked_select|compress)$", dotted(node.func)
        )
        if finds and isinstance(node, ast.Call) and any(_compares(part) for part in (*node.args, node.func)):
            return True
    return False


_CONVERTS = re.compile(r"^(?:pil_)?to_tensor\(\) \(")


def _makes_tensor_of_image(line: HotLine) -> bool:
    """True in torchvision's function that does it, and for a line that calls it."""
    return bool(_CONVERTS.match(line.source)) or called("to_tensor|pil_to_tensor|ToTensor")(line)


def _compares(node: ast.AST) -> bool:
    equal = (one for one in ast.walk(node) if isinstance(one, ast.Compare))
    return any(isinstance(operator, ast.Eq) for one in equal for operator in one.ops)


def _has_keyword(line: HotLine, names: str, keyword: str) -> bool:
    statement = parse_line(line.text)
    ending = re.compile(rf"(?:^|\.)(?:{names})$")
    calls = () if statement is None else (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(ending.search(dotted(call.func)) and any(k.arg == keyword for k in call.keywords) for call in calls)


def _draws_from_many(line: HotLine) -> bool:
    return any(_has_keyword(line, "choice|choices", keyword) for keyword in ("replace", "p", "weights"))


_MAKES_TENSOR = called(r"torch\.(?:tensor|as_tensor|stack|\w*Tensor)|(?:np|numpy)\.(?:array|asarray|stack)")


def _draws_only(names: str) -> Recognise:
    """Recognises such a call in a line that makes no tensor of it.

    Making one of what it draws takes longer.
    """
    draws = called(names)
    return lambda line: draws(line) and not _MAKES_TENSOR(line)


def _moves_all(line: HotLine) -> bool:
    """True for ``items.pop(0)`` and ``items.insert(0, item)``."""
    statement = parse_line(line.text)
    for node in () if statement is None else ast.walk(statement):
        if isinstance(node, ast.Call) and node.args and re.search(r"\.(?:pop|insert)$", dotted(node.func)):
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
        _OF_TEXT.search(f".{dotted(call.func)}") is not None
        and (
            all(isinstance(argument, ast.Constant) and isinstance(argument.value, str) for argument in call.args)
            or (isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Constant))
        )
        for call in calls
    )


def _reads_rows(line: HotLine) -> bool:
    return re.search(r"\.(?:i?loc|i?at)\[|\.(?:iterrows|itertuples)\(|\]\.values\b(?!\()", line.text) is not None


# The first row that matches is taken, rows that a function of a library or the container shows before those that only
# the text shows.
SLOW_CALLS: Sequence[SlowCall] = (
    SlowCall(
        "An array is read out of an .npz archive again and again",
        change="Read the arrays of the .npz archive once, in __init__, and index those",
        reason="{place} reads a whole array again {often}.",
        code='with np.load(path) as archive:\n    self.images = archive["images"]  # once, in __init__; or '
        'save .npy and '
        'np.load(path, mmap_mode="r")',
        functions=re.compile(r"numpy/lib/_?npyio(?:_impl)?\.py: __getitem__$"),
        least=0.8,
    ),
    SlowCall(
        "A membership test looks through a list item by item",
        change="Keep a set (or a mask, or a dict) of the same items for the membership test {at}",
        reason="{searched}, and `in` compares them one by one.",
        code="seen = {user: set(items) for user, items in history.items()}  # once\nwhile item in seen[user]: ...",
        by_text=_searches_sequence,
    ),
    SlowCall(
        "Objects are copied in each step",
        change="Take the copy {at} out of the step, or copy tensors in place into ones that are kept",
        code="torch._foreach_copy_(kept, list(model.parameters()))  # kept: made once",
        functions=re.compile(r"(?:^|/)copy\.py: _?(?:deepcopy|reconstruct)"),
        by_text=called("deepcopy"),
    ),
    SlowCall(
        "A file is written as a whole again and again",
        change="Write only what is new (append to the file), or write every some hundred steps",
        reason="{place} writes all of it again {often}.",
        code='writer.writerow(row)  # csv.writer on a file that stays open; or rows.append(row) and one '
        'to_csv at the end',
        functions=re.compile(r"(?:^|/)pandas/core/generic\.py: to_\w+$|(?:^|/)matplotlib/figure\.py: savefig$"),
        by_text=called(r"to_(?:csv|parquet|json|pickle|excel|feather|hdf|sql)|savefig|savez|json\.dump|pickle\.dump"),
        least=0.7,
    ),
    SlowCall(
        "A function of Python is called for each row of a data frame",
        change="Compute on whole columns (vectorised) what {place} computes row by row",
        reason="pandas calls {given} once per row, and makes an object for each row and each result.",
        code='features = np.stack([np.log1p(frame["a"]), frame["a"] / frame["b"]], axis=1)  # whole columns, no apply',
        functions=re.compile(r"(?:^|/)pandas/core/(?:apply\.py: |(?:frame|series)\.py: (?:apply|applymap|map)$)"),
        by_text=calls_by_row,
        least=0.8,
    ),
    SlowCall(
        "A function of Python is called for each group of a data frame",
        change=(
            "Use the built-in aggregations (groupby(...).agg, transform), or group numbers once and sum by "
            "them (np.bincount, scatter_add), in place of the function that {place} calls for each group"
        ),
        code='codes, _ = pd.factorize(frame["key"])  # once\ntotals = np.bincount(codes, weights=values)',
        functions=re.compile(
            r"(?:^|/)pandas/core/groupby/\S*\.py: (?:_?apply\w*|_?python_\w+|filter|pipe|get_iterator)$"
        ),
        by_text=lambda line: "groupby(" in line.text and called("apply")(line),
    ),
    SlowCall(
        "Rows of a data frame are read one by one",
        change="Turn the data frame that is read {at} into arrays or tensors once, before the loop",
        reason="each access of pandas to a row makes a new object.",
        code="values = torch.from_numpy(frame.to_numpy())  # once; values[rows] in the step",
        functions=re.compile(
            r"(?:^|/)pandas/core/(?:indexing\.py: |frame\.py: (?:iterrows|itertuples|_get_value)"
            r"|series\.py: (?:__getitem__|_get_value|__iter__))"
        ),
        by_text=_reads_rows,
    ),
    SlowCall(
        "Dates are parsed again and again",
        change="Parse the dates once, before training, and keep numbers (an int64 array)",
        reason="{place} parses them {often}.",
        code="stamps = pandas.to_datetime(column).to_numpy()  # all at once, before the loop",
        functions=re.compile(r"(?:^|/)(?:_strptime\.py|dateutil/|pytz/|zoneinfo/|arrow/|pandas/core/tools/datetimes\.py)"),
        by_text=called("strptime|fromisoformat|to_datetime|Timestamp|parser\\.parse"),
    ),
    SlowCall(
        "An image is read or written pixel by pixel",
        change="Turn the image into an array once, and work on the whole array",
        reason="{place} calls a function for each pixel.",
        code="pixels = np.asarray(image)  # then masks, slices and tables: palette[pixels]",
        functions=re.compile(r"(?:^|/)PIL/(?:Image\.py: (?:getpixel|putpixel|point)|PyAccess\.py: )"),
        by_text=called(r"getpixel|putpixel|getdata|putdata"),
        least=0.8,
    ),
    SlowCall(
        "Images are turned into tensors one by one {often}",
        change=(
            "Turn all images into one tensor beforehand, where they fit into memory, and pick the rows of a batch from "
            "it, in place of {place}"
        ),
        code="images = torch.from_numpy(array).float().div(255)  # once; images[rows] is a batch",
        functions=re.compile(r"(?:^|/)torchvision/transforms/\S*functional\S*\.py: (?:pil_)?to_(?:tensor|image)$"),
        by_text=_makes_tensor_of_image,
    ),
    SlowCall(
        "Images are resized or changed one by one {often}",
        change=(
            "Do once, beforehand, what of {place} is the same each time (resizing), and the rest by batch, with a "
            "cheaper filter, or in workers where processors are left"
        ),
        code="images = F.interpolate(images, size=(224, 224), antialias=True, mode='bilinear')  # a batch at once",
        functions=re.compile(
            r"(?:^|/)(?:PIL/(?:Image\.py: (?:resize|thumbnail|rotate|trans\w+|convert|filter|crop|reduce|paste)"
            r"|Image(?:Ops|Enhance|Filter|Chops|Draw)\.py: )|skimage/transform/|torchvision/transforms/|albumentations/"
            r"|imgaug/|scipy/ndimage/)"
        ),
        by_text=called(r"cv2\.(?:resize|warp\w+|cvtColor|GaussianBlur|remap)|thumbnail|imresize|Image\.fromarray|ndimage\.\w+"),
    ),
    SlowCall(
        "An image is encoded and written {often}",
        change="Write the image of {place} every so many steps only, or in another thread or process",
        reason="encoding takes a processor, and the step waits for it. Less compression is quicker (compress_level=1).",
        code="if step % 100 == 0:\n    image.save(path)",
        functions=re.compile(
            r"(?:^|/)(?:PIL/\w+\.py: _?save\w*|imageio/\S+: (?:imwrite|mimwrite|write)|skimage/io/\S+: imsave"
            r"|torchvision/(?:utils\.py: save_image|io/image\.py: (?:write|encode)_\w+)|matplotlib/\S+: print_\w+)$"
        ),
        by_text=called(r"imwrite|imsave|imencode|save_image|write_(?:png|jpeg)|encode_(?:png|jpeg)"),
        least=0.8,
    ),
    SlowCall(
        "Images are opened and decoded again {often}",
        change=(
            "Decode once what is decoded {at} (a tensor, .npy or memory-mapped file of the size that training"
            " needs), or in the loader's workers where processors are left"
        ),
        code='images = np.load("images.npy", mmap_mode="r")  # decoded and resized once',
        functions=re.compile(r"(?:^|/)(?:PIL/|imageio/|skimage/io|torchvision/io/)"),
        by_text=called(r"Image\.open|imread|imdecode|decode_image|decode_jpeg|read_image"),
        least=0.7,
        takes_next=True,
    ),
    SlowCall(
        "Expressions of regular search are compiled again {often}",
        change="Compile the patterns once, outside of {place}",
        reason=(
            "more patterns than re keeps (512), or patterns that are put together anew, are compiled {often}."
        ),
        code="PATTERN = re.compile(...)  # once, at the top of the module; PATTERN.findall(text)",
        functions=re.compile(r"(?:^|/)(?:re/_(?:compiler|parser)|sre_(?:compile|parse))\.py: "),
        by_text=called(r"re\.compile|regex\.compile"),
    ),
    SlowCall(
        "Each access to a manager's object is a message to another process",
        change="Keep the data of {place} in this process, or in shared memory",
        reason="each access to an object of a manager is pickled, sent to the manager's process, and answered.",
        code="values = dict(shared)  # one message; work on values, and shared.update(values) once",
        functions=re.compile(r"(?:^|/)multiprocessing/managers\.py: "),
    ),
    SlowCall(
        "Objects are sent from process to process in each step",
        change="Send less than {place} does",
        reason=(
            "each object is pickled, written to a pipe, read and unpickled, {often}. Share large data once (a"
            " module global before the fork, shared memory, tensors of torch.multiprocessing), send arrays in"
            " place of lists, or do small work in this process."
        ),
        code="queue = torch.multiprocessing.Queue(8)  # tensors go by their place in shared memory",
        functions=re.compile(r"(?:^|/)multiprocessing/(?:connection|queues|reduction|sharedctypes)\.py: "),
    ),
    SlowCall(
        "A compressed file is decompressed again to reach each place",
        change=(
            "Decompress the file once, into memory or into a plain file to map, before {place} looks places "
            "up in it"
        ),
        reason=(
            "a compressed stream (gzip, bz2, lzma) has no way back, so that a seek decompresses it again from"
            " its start, {often}."
        ),
        code="data = gzip.open(path).read()  # once; data[start:start + length] for each sample",
        functions=re.compile(r"(?:^|/)(?:gzip|bz2|lzma|_compression)\.py: (?:seek|_rewind)$"),
        least=0.8,
    ),
    SlowCall(
        "Data is compressed or decompressed {often}",
        change="Keep in memory, or in a plain file to map, what {place} compresses or decompresses {often}",
        reason=(
            "else a fast compression (lz4, zstd) at a low level, or another thread, since compression lets "
            "the interpreter go."
        ),
        code="data = zlib.decompress(packed)  # once; or np.save and np.load(path, mmap_mode='r')",
        functions=re.compile(
            r"(?:^|/)(?:zlib|gzip|bz2|lzma|_compression|zstandard\S*|lz4\S*|blosc2?\S*)\.py: (?!open)"
            r"|numpy/lib/_?npyio(?:_impl)?\.py: savez_compressed$"
        ),
        by_text=called(r"(?:de)?compress(?:obj)?|savez_compressed|b64(?:en|de)code|frombuffer"),
    ),
    SlowCall(
        "A database is asked {often}",
        change=(
            "Create an index on the columns by which {place} looks rows up, ask for the whole batch at once, "
            "or read the table once before the loop"
        ),
        reason="without an index each of these questions goes through the whole table.",
        code="connection.execute('CREATE INDEX by_user ON events (user)')  # once",
        by_text=_asks_database,
    ),
    SlowCall(
        "Data is parsed in each step",
        change="Parse once, before the loop, what is parsed {at}, or in the loader's workers where processors are left",
        code="data = [json.loads(line) for line in lines]  # once",
        functions=re.compile(
            r"(?:^|/)(?:json/(?:__init__|decoder|scanner)|csv|pickle|xml/\S*|yaml/\S*|html/\S*|configparser)\.py: "
        ),
        by_text=called(r"json\.loads?|pickle\.loads?|csv\.(?:reader|DictReader)|yaml\.\w*load|literal_eval|fromstring"),
    ),
    SlowCall(
        "A database writes each change by itself",
        change="Write many rows in one transaction",
        reason=(
            "{place} writes or commits by itself, {often}, and each commit waits for the disk. Open and close"
            " the transaction once per batch or less often, around the loop, or use executemany."
        ),
        code="with connection:  # one transaction, one commit\n    connection.executemany(insert, rows)",
        by_text=any_of(called(r"commit"), _commits, lambda line: "isolation_level=None" in line.text),
        least=0.7,
    ),
    SlowCall(
        "The step asks another server {often}",
        change="Ask for many items at once, ahead of the step and in another thread, and keep the answers",
        reason="{place} waits for a round trip {often}.",
        code="answers = executor.map(fetch, items)  # ahead of the loop, many at a time; or a file on this machine",
        functions=re.compile(r"(?:^|/)(?:requests|urllib3?|httpx|http|aiohttp|redis|grpc|botocore|boto3|pymongo|psycopg2?)/"),
        by_text=called(r"requests\.\w+|urlopen|urlretrieve|httpx\.\w+|redis\.\w+|sendall|recv"),
    ),
    SlowCall(
        "A folder is listed again {often}",
        change="List the folder once, in __init__ or before the loop, and keep the list of paths",
        reason="{place} goes through all of its files {often}.",
        code='self.paths = sorted(glob.glob("data/*.npy"))  # once, in __init__; self.paths[index]',
        functions=re.compile(
            r"(?:^|/)(?:glob\.py: |fnmatch\.py: |os\.py: (?:walk|_walk)$"
            r"|pathlib(?:/\w+)?\.py: (?:iterdir|r?glob|_\w*glob\w*)$)"
        ),
        by_text=called(r"i?glob|rglob|listdir|scandir|iterdir|os\.walk|fwalk"),
        least=0.8,
    ),
    SlowCall(
        "Files are read again {often}",
        change="Read once, and keep in memory or map into it, what {place} reads {often}",
        reason="where it does not fit, read it in the loader's workers.",
        code='data = np.load("data.npy", mmap_mode="r")  # once, in __init__',
        functions=re.compile(
            r"(?:^|/)(?:gzip|bz2|lzma|sqlite3/\S*|h5py/\S*|lmdb/\S*|pyarrow/\S*|soundfile"
            r"|torchaudio/\S*|librosa/core/audio|pandas/io/\S*|zarr/\S*|fsspec/\S*)(?:\.py)?(?:/__init__\.py)?: "
            r"|(?:zipfile(?:/__init__)?|tarfile)\.py: (?:open|read\w*|__init__|extract\w*|getmember)$"
            r"|pathlib(?:/\w+)?\.py: (?:open|read_\w+|exists|is_\w+|stat|iterdir|r?glob)$"
            r"|numpy/lib/_?(?:npyio|format)(?:_impl)?\.py: (?:load\w*|genfromtxt|fromfile|read_array|open_memmap)$"
            r"|torch/serialization\.py: _?(?:legacy_)?load$"
        ),
        by_text=called(
            r"open|read_text|read_bytes|readlines?|np\.load|numpy\.load|torch\.load|loadtxt|genfromtxt|fromfile|memmap"
            r"|loadmat|read_parquet|read_sql|read_csv|(?:cursor|conn\w*|db)\.execute|urlopen|exists|isfile"
            r"|getsize|stat"
        ),
    ),
    SlowCall(
        "Processes are started in the step",
        change=(
            "Start the pool or the processes of {place} once, before the loop, and give them work in the step"
        ),
        reason=(
            "each start copies this process or imports everything anew, and takes milliseconds to seconds, "
            "{often}."
        ),
        code="pool = multiprocessing.Pool(2)  # once; in the step only pool.map(...), with small arguments",
        functions=re.compile(
            r"(?:^|/)multiprocessing/(?:context\.py: (?:Pool|Manager)|process\.py: start|popen_\w+\.py: \w+"
            r"|pool\.py: (?:__init__|_repopulate_pool\w*|terminate|_terminate_pool|__exit__)|managers\.py: start)$"
            r"|(?:^|/)concurrent/futures/process\.py: (?:_start_\w+|_spawn_\w+|_launch_\w+|_adjust_\w+)$"
        ),
        by_text=called(r"(?:multiprocessing|mp)\.(?:\w+\.)*(?:Pool|Process|Manager)|ProcessPoolExecutor|Pool|mp\.spawn"),
        least=0.7,
    ),
    SlowCall(
        "The program measures itself in each step",
        change="Measure every some hundred steps, or not at all, what {place} asks the system for {often}",
        code="if step % 500 == 0:\n    report(process.memory_info().rss)",
        functions=re.compile(r"(?:^|/)(?:psutil/|tracemalloc\.py: |pynvml|GPUtil|objgraph|memory_profiler|pympler/)"),
        by_text=called(
            r"memory_info|memory_full_info|cpu_percent|virtual_memory|take_snapshot|get_objects|getsizeof|get_referrers"
            r"|memory_summary|memory_stats|memory_maps"
        ),
        least=0.8,
    ),
    SlowCall(
        "Figures are drawn in each step",
        change=(
            "Keep the numbers, and draw them at the end or every some hundred steps, in place of what {place}"
            " draws {often}"
        ),
        code="history.append(value)  # in the step\nplt.plot(history)  # after the loop",
        functions=re.compile(r"(?:^|/)(?:matplotlib|seaborn|plotly|bokeh)/"),
        by_text=called(r"plt\.\w+|make_grid|ax\.(?:plot|imshow|hist|scatter|bar)"),
        least=0.8,
    ),
    SlowCall(
        "Other programs are started in the step",
        change="Start the program of {place} once and talk to it, or call a library in its place",
        reason="a new process takes milliseconds {often}.",
        code="process = subprocess.Popen(...)  # once; write to its stdin and read its stdout",
        functions=re.compile(
            r"(?:^|/)(?:subprocess|os)\.py: (?:run|Popen|__init__|_execute_child|check_output|call|popen|communicate)$"
        ),
        by_text=called(r"subprocess\.\w+|os\.system|os\.popen|getoutput"),
    ),
    SlowCall(
        "The call stack is looked through {often}",
        change=(
            "Take only the caller's frame with sys._getframe(1) (its f_code.co_filename and f_lineno), or "
            "leave it out, in place of what {place} collects {often}"
        ),
        reason="inspect.stack() and traceback look up the file and the source text of every frame.",
        code="caller = sys._getframe(1)  # caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name",
        functions=re.compile(
            r"(?:^|/)inspect\.py: (?:stack|trace|get(?:outer|inner)frames|getframeinfo|findsource|getsource\w*"
            r"|getmodule|getfile|getabsfile)$"
            r"|(?:^|/)traceback\.py: (?:(?:extract|format|print)_stack|walk_stack|_extract_from_extended_frame_gen)$"
        ),
        by_text=called(
            r"inspect\.(?:stack|trace|get(?:outer|inner)frames|getframeinfo|getsource\w*|getmodule)"
            r"|traceback\.(?:extract|format|print)_stack|getouterframes|getframeinfo|extract_stack|format_stack"
        ),
        least=0.8,
    ),
    SlowCall(
        "Data is forced out to the disk {often}",
        change=(
            "Flush once per many writes, or only at checkpoints, in place of what {place} forces out to the "
            "disk {often}"
        ),
        reason="each flush or fsync waits for the disk.",
        code="rows.append(row)  # in the step\nif step % 500 == 0:\n    write(rows)  # one write and one flush for all",
        functions=re.compile(r"(?:^|/)h5py/_hl/\w+\.py: flush$"),
        by_text=called(r"fsync|fdatasync|msync|os\.sync|flush_to_disk"),
        least=0.7,
    ),
    SlowCall(
        "Logging and printing take a part of each step",
        change="Write less often what {place} writes {often}, or collect it and write it every so many steps",
        code="if step % 100 == 0:\n    log(...)",
        functions=re.compile(
            r"(?:^|/)(?:logging/|tqdm/|rich/|loguru/|structlog/|warnings\.py|traceback\.py|inspect\.py|linecache\.py"
            r"|torch/utils/tensorboard/|tensorboardX?/|wandb/|mlflow/|neptune/|comet_ml/)"
        ),
        by_text=called(
            r"print|logg(?:er|ing)\.\w+|log\.(?:debug|info|warning|error)|flush|warn|fsync|format_exc|inspect\.\w+"
            r"|writelines?|writerows?|write|set_postfix(?:_str)?|set_description|add_(?:scalar|scalars|histogram|image)"
        ),
    ),
    SlowCall(
        "Text is tokenised or taken apart in each step",
        change="Tokenise once, before training, and keep the ids",
        reason=(
            "{place} works on text {often}. Where it cannot be kept, a tokenizer in a compiled language, for "
            "a list of texts at once, or the loader's workers."
        ),
        code="ids = [encode(text) for text in texts]  # once; in the step only ids[rows]",
        functions=re.compile(r"(?:^|/)(?:re/|re\.py|sre_\w+|regex/|string\.py|textwrap\.py|difflib\.py|unicodedata|nltk/|spacy/"
                   r"|tokenizers/|sentencepiece/|transformers/tokenization|torchtext/)"),
        by_text=any_of(
            _works_on_text, called(r"re\.\w+|findall|finditer|tokenize|word_tokenize|ngrams|unicodedata\.\w+")
        ),
    ),
    SlowCall(
        "A whole buffer is moved to make room for what is new",
        change=(
            "Use a ring buffer where this makes room in a buffer (a replay memory, a window), and write the "
            "new item in place, at position % size"
        ),
        reason=(
            "{place} copies the whole buffer {often}. Where it only compares neighbours, slices (x[1:] and "
            "x[:-1]) copy nothing."
        ),
        code="buffer[position % size] = item  # in place; position += 1",
        functions=re.compile(r"(?:^|/)numpy/_?core/numeric\.py: roll$"),
        by_text=any_of(shifts_itself, called(r"(?:np|numpy)\.roll")),
        least=0.8,
    ),
    SlowCall(
        "An array is copied to add to it",
        change=(
            "Write in place into an array made beforehand (a ring buffer, at position % size, where old items"
            " go), or collect the parts in a list and join them once"
        ),
        reason="{place} copies all that was there before, {often}.",
        code="buffer[position % size] = item  # in place; or parts.append(part), and one "
        "np.concatenate(parts) at the end",
        functions=re.compile(
            r"numpy/lib/_?function_base(?:_impl)?\.py: (?:append|insert|delete)$|pandas/core/reshape/concat\.py: "
        ),
        by_text=joins_onto_itself,
    ),
    SlowCall(
        "All items are sorted again {often}",
        change="Sort once and keep the order, or take only what is needed, in place of {place}",
        reason=(
            "the k largest by argpartition or topk, one insertion by bisect, the smallest by a heap, draws by"
            " priority from a sum tree."
        ),
        code="largest = np.argpartition(values, -k)[-k:]  # the k largest; heapq and bisect keep an order",
        functions=re.compile(r"numpy/_?core/fromnumeric\.py: (?:sort|argsort)$"),
        by_text=any_of(
            called(r"argsort|lexsort|sort_values|nlargest|nsmallest|heapify|sort"), called_plainly("sorted")
        ),
        without_ops=True,
    ),
    SlowCall(
        "Statistics are computed again {often}",
        change=(
            "Compute once what {place} computes {often}, where it is of data that does not change (one result"
            " per series, user or class, kept in a table), or update it by what is new"
        ),
        reason="where it is only watched, compute it every so many steps, or of a sample.",
        code="self.stats = [np.percentile(series, [25, 50, 75]) for series in values]  # once, in __init__",
        functions=re.compile(
            r"numpy/lib/_?(?:function_base|nanfunctions|arraysetops|histograms)(?:_impl)?\.py: "
            r"_?(?:nan)?(?:percentile|quantile|median|histogram\w*|unique\w*|cov|corrcoef|std|var|mean)"
            r"|numpy/_?core/(?:fromnumeric|_methods)\.py: _?(?:mean|std|var|partition|cumsum)$|"
            r"(?:^|/)statistics\.py: |scipy/stats/"
        ),
        by_text=called(
            r"(?:nan)?(?:percentile|quantile|median)|unique|histogram\w*|bincount|corrcoef|cov"
            r"|cumsum|nanmean|nanstd|nunique|value_counts|describe|most_common|Counter|(?:np|numpy)\.(?:mean|std|var)"
        ),
        # Along one axis of a picture or a signal, which is as large afterwards in the others.
        unless=re.compile(r"\bkeepdims?\s*=\s*True\b"),
    ),
    SlowCall(
        "An array is searched as a whole for one key",
        change="Build an index once, and look the key up in it",
        reason=(
            "{place} compares every element of the array {often} to find those of one key. Sorted once by the"
            " key, with row pointers (CSR), or in a dict of arrays, they are a slice."
        ),
        code="order = np.argsort(keys, kind='stable')  # once\nstart = np.searchsorted(keys[order], "
        "np.arange(count + 1))\n"
        "mine = values[order][start[key]:start[key + 1]]  # values[order]: once too",
        by_text=_looks_up_by_mask,
        least=0.7,
    ),
    SlowCall(
        "A list is moved or searched as a whole for one item",
        change="Use a collections.deque (popleft, appendleft) or a ring in place of the list {at}",
        reason="pop(0) and insert(0) move all its items.",
        code="from collections import deque\nqueue = deque(maxlen=size)  # queue.popleft(), queue.append(item)",
        by_text=_moves_all,
    ),
    SlowCall(
        "Drawing samples goes through a whole population",
        change="Draw for the whole batch at once, with replacement or by rejection, or shuffle once per epoch",
        reason="without replacement, or with weights, {place} goes through the whole population {often}.",
        code="order = rng.permutation(count)  # once per epoch; order[start:start + size] in the step\n"
        "rows = np.searchsorted(cumulated, rng.random(size))  # weights: cumulated once",
        by_text=any_of(_draws_from_many, called(r"permutation|randperm|shuffle")),
    ),
    SlowCall(
        "Drawing samples takes a part of each step",
        change="Draw {at} from a list",
        reason=(
            "a deque walks to each element that it is asked for. Or draw for the whole batch at once with "
            "NumPy or torch."
        ),
        code="memory[position % size] = move  # a list as a ring; random.sample(memory, n) is then quick",
        functions=re.compile(r"(?:^|/)random\.py: (?:sample|choices?|shuffle)$"),
        by_text=_draws_only(r"random\.(?:sample|choices?|shuffle)"),
    ),
    SlowCall(
        "Random numbers are drawn one by one",
        change="Draw for the whole batch at once, with NumPy or torch, what {place} draws number by number",
        code="drawn = torch.randint(0, count, (size,))  # or rng.integers(0, count, size)",
        functions=re.compile(
            r"(?:^|/)random\.py: (?:randrange|randint|_randbelow\w*|uniform|gauss|normalvariate|\w+variate)$"
        ),
        by_text=_draws_only(r"random\.(?:random|randrange|randint|uniform|gauss|normalvariate)"),
    ),
    SlowCall(
        "A list is searched from its start for one item",
        change="Keep a dict from each item to its place for the search {at}",
        reason="where it is a list, index(), count() and remove() go through its items one by one.",
        code="place = {item: number for number, item in enumerate(items)}  # once; place[item] in the loop",
        by_text=called(r"\w+\.(?:index|remove|count)"),
    ),
    SlowCall(
        "Values of a tensor are read one by one",
        change="Work on the whole tensor at once, or turn it into a list or an array once before the loop {at}",
        reason="each element of a tensor that Python reads is an op.",
        code="values = tensor.tolist()  # once; or an op of torch for all elements",
        functions=re.compile(
            r"torch/_tensor\.py: (?:__iter__|__len__|__contains__|__array__|__format__|__repr__|__hash__)$"
        ),
        by_text=called(r"item"),
        per_batch=True,
    ),
    SlowCall(
        "Settings are read through a slow object",
        change="Read the values once, into plain variables, before the loop",
        reason="{place} looks them up {often} through a library for settings.",
        code="width = int(config.model.width)  # once",
        functions=re.compile(
            r"(?:^|/)(?:omegaconf|hydra|yacs|ml_collections|pydantic|attrdict)/|^os\.py: __getitem__$"
        ),
    ),
    SlowCall(
        "A digest is computed {often}",
        change=(
            "Compute the digest once per item and keep it, or use a number or a version count as the key, in "
            "place of what {place} hashes {often}"
        ),
        code="digests[index] = digest(item)  # once per item; a changed item gets a new version number",
        functions=re.compile(r"(?:^|/)hashlib\.py: "),
        by_text=called(r"hexdigest|digest|sha\d+|md5|blake2\w|crc32|adler32|xxh\w+"),
        least=0.8,
    ),
    SlowCall(
        "Code is imported or compiled from text in the step",
        change="Import and compile once, before the loop, what {place} imports or evaluates {often}",
        code="function = eval(expression)  # once: a lambda from the text; or a function of the program",
        functions=re.compile(
            r"(?:^|[/<])importlib(?:/|\.|_)\S*: (?:import_module|reload|_find_and_load\w*|exec_module)"
        ),
        by_text=any_of(called_plainly("eval|exec|compile|__import__"), called(r"import_module")),
        least=0.8,
        without_ops=True,
    ),
    SlowCall(
        "The model's modules are walked through in each step",
        change="Make the list of parameters or modules once, before the loop",
        reason="{place} goes through all modules of the model {often}.",
        code="parameters = list(model.parameters())  # once",
        functions=re.compile(
            r"(?:^|/)torch/nn/modules/module\.py: (?:_?named_\w+|parameters|modules|buffers|state_dict)$"
        ),
        by_text=called(r"named_parameters|named_modules|named_buffers|state_dict"),
        without_ops=True,
    ),
    SlowCall(
        "Types are checked while the step runs",
        change="Switch the checks of types off for training",
        reason="{place} goes through a library that checks arguments {often}.",
        code="JAXTYPING_DISABLE=1  # jaxtyping; beartype: BeartypeConf(strategy=BeartypeStrategy.O0)",
        functions=re.compile(r"(?:^|/)(?:beartype|typeguard|jaxtyping|torchtyping)/"),
    ),
    SlowCall(
        "The order of a product is searched for in each step",
        change="Write the product of {place} as products of two, or keep the order that was found",
        reason="einsum of three and more looks for the best order {often}.",
        code="path = opt_einsum.contract_expression('ab,bc,cd->ad', *shapes)  # once; path(a, b, c) in the step",
        functions=re.compile(r"(?:^|/)opt_einsum/"),
    ),
    SlowCall(
        "Rows of a sparse matrix are taken one by one",
        change="Take the rows of a whole batch at once {at}, and make them dense once",
        reason="SciPy makes a new matrix, with checks, for each row.",
        code="batch = torch.from_numpy(matrix[rows].toarray())  # matrix: CSR, rows: an array; one call per batch",
        functions=re.compile(r"(?:^|/)scipy/sparse/"),
        by_text=called(r"toarray|todense|getrow|getcol|tocsr|tocsc|tolil"),
    ),
    SlowCall(
        "A checkpoint is written in each step",
        change="Save less often than {place} does {often}, or copy the state and write it from another thread",
        code="if step % 1000 == 0:\n    torch.save(state, path)",
        functions=re.compile(r"(?:^|/)torch/serialization\.py: _?(?:legacy_)?save$"),
    ),
    SlowCall(
        "Objects are turned into bytes or text in each step",
        change="Write less often, or keep tensors in place of what {place} turns into bytes or text {often}",
        code="if step % 100 == 0:\n    save(state)",
        functions=re.compile(
            r"(?:^|/)(?:json/encoder|dataclasses|base64|uuid|pprint|reprlib)\.py: |pickle\.py: \w*dumps?$"
            r"|numpy/lib/_?npyio(?:_impl)?\.py: save"
        ),
        by_text=called(r"dumps?|asdict|b64\w+|uuid\d|tobytes|BytesIO"),
    ),
    SlowCall(
        "A library for the CPU computes in each step",
        change=(
            "Call {place} once for the whole batch, less often, beforehand, or replace it by ops of "
            "torch"
        ),
        reason="it runs in Python's process, {often}, while nothing else does.",
        code="table = numpy.stack([compute(each) for each in items])  # once, before the loop",
        functions=re.compile(r"(?:^|/)(?:scipy|sklearn|skimage|networkx|sympy|shapely|cv2|numba|librosa|statsmodels|rdkit|Bio)/"
                   r"|(?:^|/)(?:fractions|_pydecimal|decimal)\.py: "),
        by_text=called(r"(?:scipy|sklearn|skimage|cv2|nx|networkx|librosa|ndimage|cKDTree|KDTree)\.\w[\w.]*|linear_sum_assignment"),
    ),
    SlowCall(
        "A table is filled cell by cell in Python",
        change=(
            "Use a compiled library for what {place} fills cell by cell (rapidfuzz for edit distances, numba "
            "or torchaudio for alignments), or fill one diagonal, or one row for the whole batch, at a time"
        ),
        code="distance = rapidfuzz.distance.Levenshtein.distance(a, b)  # or @numba.njit on the loop",
        by_text=fills_table,
        least=0.8,
        without_ops=True,
    ),
    SlowCall(
        "Counts or sums are added up item by item",
        change="Add up all items in one call what {place} adds one by one",
        reason=(
            "np.bincount or np.add.at, index_add or scatter_add of torch; for a confusion matrix, bincount of"
            " target * classes + predicted."
        ),
        code="counts = np.bincount(keys, minlength=size)  # all at once; torch.bincount, index_add_, scatter_add_",
        by_text=adds_to_item,
        without_ops=True,
    ),
    SlowCall(
        "A table is filled item by item in Python",
        change=(
            "Write whole rows or columns at once (slices, index arrays, broadcasting) in place of the items "
            "that {place} writes one by one"
        ),
        code="table[rows, columns] = values  # all at once, by two arrays of indices",
        by_text=writes_item,
        without_ops=True,
    ),
    SlowCall(
        "Combinations are listed in Python",
        change=(
            "Make the combinations once, as an array or a tensor of indices, in place of what {place} lists "
            "{often}"
        ),
        code="pairs = torch.triu_indices(count, count, offset=1)  # once; torch.combinations, torch.cartesian_prod",
        by_text=called(r"itertools\.\w+|product|combinations|permutations|combinations_with_replacement"),
        without_ops=True,
    ),
    SlowCall(
        "A new iterator is made for each batch",
        change="Make the iterator once, and go on with it",
        reason=(
            "{place} starts the loader again for one batch, with a new order of all its samples (and new "
            "workers, where it has some)."
        ),
        code="for batch in loader: ...  # or batches = iter(loader) once, and next(batches) in the step",
        by_text=starts_over,
        least=0.6,
    ),
    SlowCall(
        "A tensor is made of Python numbers",
        change=(
            "Keep the numbers in an array or a tensor from the start, and stack arrays before a tensor is "
            "made of them (np.stack)"
        ),
        reason=(
            "{place} takes the numbers out of Python's objects one by one, {often}, where it is given a list."
        ),
        code="batch = torch.from_numpy(np.stack(arrays))  # in place of torch.tensor(arrays), a list of arrays",
        functions=re.compile(r"^<built-in method (?:tensor|as_tensor) of type object"),
        by_text=called(r"torch\.(?:tensor|as_tensor|\w*Tensor)|(?:np|numpy)\.(?:array|asarray|fromiter)"),
        per_batch=True,
    ),
    SlowCall(
        "A function of Python is called for each element of an array",
        change=(
            "Write what {place} computes with {given} as an expression on whole arrays, or compile it (numba)"
        ),
        reason="np.vectorize, apply_along_axis and their like are loops of Python.",
        code="values = np.where(x > 0, np.log1p(x), 0.0)  # the whole array at once, no vectorize",
        functions=re.compile(
            r"(?:^|/)numpy/lib/_?(?:function_base(?:_impl)?\.py: (?:__call__|_call_as_normal|_vectorize_call\w*)"
            r"|shape_base(?:_impl)?\.py: apply_(?:along_axis|over_axes))"
        ),
        by_text=called(r"vectorize|frompyfunc|apply_along_axis|fromfunction"),
        least=0.8,
    ),
    SlowCall(
        "Windows of an array are cut one by one",
        change="Take all windows in one call in place of the slices that {place} cuts one by one",
        reason=(
            "np.lib.stride_tricks.sliding_window_view (torch: x.unfold(0, width, 1)) is a view of all of "
            "them. Where the series is the same in later steps, make the windows once, before the loop."
        ),
        code="windows = np.lib.stride_tricks.sliding_window_view(x, width)  # a view: in place of x[i:i + "
        "width] for each i",
        by_text=lambda line: cuts_windows(line.text),
        without_ops=True,
    ),
    SlowCall(
        "Samples are gathered along the last axis of an array",
        change="Keep one row per sample, so that what {place} gathers lies together",
        reason=(
            "transpose the array once, before the loop, and index its first axis. Along the last axis each "
            "value that is taken comes from another place in memory. Or shuffle once, and take contiguous "
            "slices."
        ),
        code="rows_first = np.ascontiguousarray(table.T)  # once, before the loop\nbatch = rows_first[rows] "
        " # in place of "
        "table[:, rows].T",
        by_text=gathers_columns,
        without_ops=True,
    ),
    SlowCall(
        "Random numbers are drawn by NumPy {often}",
        change=(
            "Draw for the whole batch at once what {place} draws {often}, as float32, with a Generator "
            "(np.random.default_rng) or with torch where the numbers are used"
        ),
        code="noise = torch.randn(batch.shape)  # or rng.standard_normal(shape, dtype=np.float32)",
        by_text=called(r"(?:np|numpy)\.random\.\w+|rng\.\w+|standard_normal"),
    ),
    SlowCall(
        "An array is converted to another type {often}",
        change=(
            "Convert once, before the loop, and keep in the type that the step needs, what {place} converts "
            "{often}"
        ),
        code="self.values = values.astype(np.float32)  # once, in __init__",
        by_text=converts_plainly,
        per_batch=True,
    ),
    SlowCall(
        "Arrays of NumPy are computed again {often}",
        change=(
            "Make once, smaller (only the part that matters), for all items in one call, or ahead of time "
            "(kept with the data, or in the loader's workers) what {place} computes {often}"
        ),
        code="targets = [draw(each) for each in items]  # once, before the loop; or for all: items[:, None] "
        "- grid[None]",
        functions=re.compile(r"^numpy/"),
        by_text=called(r"(?:np|numpy)\.(?!random)\w[\w.]*|meshgrid"),
        per_batch=True,
    ),
    SlowCall(
        "A list or text is copied to add to it",
        change="Collect the parts in a list, and join them once",
        reason="where {place} adds to text, bytes or a tuple, it copies all that was there before.",
        code='parts.append(part)  # in the loop\nwhole = b"".join(parts)  # once, after it',
        by_text=grows,
    ),
    SlowCall(
        "A membership test may look through a list item by item",
        change="Look at what the membership test {at} searches",
        reason=(
            "if it is a list or an array, `in` compares its items one by one; a set or a dict finds an item "
            "at once."
        ),
        code="seen = set(items)  # once; item in seen",
        by_text=_may_search_sequence,
    ),
    SlowCall(
        "Text is put together in each step",
        change="Put text together only where it is used",
        reason=(
            "{place} makes text of values {often}. A logger formats by itself what it writes (%s and "
            "arguments), and a key may be a number or a tuple."
        ),
        code="logger.debug('loss %s', loss)  # formatted only where it is written",
        by_text=puts_text_together,
        without_ops=True,
    ),
    SlowCall(
        "Data frames are worked on in each step",
        change=(
            "Do once, before the loop, what {place} does with data frames {often}, and keep arrays or tensors"
        ),
        reason="each call of pandas checks and makes new objects.",
        code="values = torch.from_numpy(frame.to_numpy())  # once; values[rows] in the step",
        functions=re.compile(r"(?:^|/)(?:pandas|polars|dask|xarray)/"),
        by_text=called(r"pd\.\w+|merge|groupby|pivot\w*|get_dummies|fillna|rolling|resample|reindex"),
    ),
    SlowCall(
        "A loop of Python goes through items one by one",
        change="Do for all items at once what the loop at {place} does item by item",
        reason=(
            "counts and confusion matrices by bincount, sums by index_add or scatter_add, choices by masks "
            "and where, windows by unfold."
        ),
        code="counts = torch.bincount(target * classes + predicted, minlength=classes**2)  # in place of a loop",
        by_text=loops_over_items,
        without_ops=True,
    ),
    SlowCall(
        "A whole collection is gone through for one number",
        change=(
            "Keep a running value in place of what {place} takes of all items {often} (add what is new, take "
            "away what goes), or keep the numbers in an array"
        ),
        reason="sum, min, max, any and all go through every item.",
        code="total += new - old  # in place of sum(items)",
        by_text=called_plainly("sum|min|max|any|all"),
        without_ops=True,
    ),
    SlowCall(
        "A collection is built again {often}",
        change="Build once, and change by what is new, the list, set or dict that {place} builds {often}",
        code="seen = set(items)  # once; seen.add(item) in the step",
        by_text=called_plainly("list|tuple|set|frozenset|dict|Counter|defaultdict|OrderedDict"),
        without_ops=True,
    ),
)  # fmt: skip


# The row of arrays in general: what else a line says of them comes before it.
_ARRAYS = next(row for row in SLOW_CALLS if row.functions is not None and row.functions.pattern == "^numpy/")


class _KnownLines(Struct, frozen=True):
    """Lines that match one row of the table in one cause of idle time.

    The one to name comes first.
    """

    cause: str
    lines: tuple[HotLine, ...]
    call: SlowCall


_DECODES = re.compile(r"(?:^|/)PIL/ImageFile\.py: load$")


def match_of(line: HotLine) -> SlowCall | None:
    """The row of the table that a line matches; null where none does."""
    if _searches_sequence(line):
        return next(candidate for candidate in SLOW_CALLS if candidate.by_text is _searches_sequence)
    # What converts an image that was only opened decodes it first.
    callees = sorted(line.callees, key=lambda callee: _DECODES.search(callee) is None)
    called_rows = (candidate for callee in callees if (candidate := _called_row(callee)) is not None)
    shown = next((candidate for candidate in called_rows if not _is_else(candidate, line.text)), None)
    by_text = _told_by_text(line)
    # What NumPy is called for says more than that it is NumPy.
    if shown is None or (shown is _ARRAYS and by_text is not None and _before(by_text, shown)):
        return by_text
    return shown


def _is_else(candidate: SlowCall, text: str) -> bool:
    return candidate.unless is not None and candidate.unless.search(text) is not None


def _called_row(callee: str) -> SlowCall | None:
    return next(
        (
            candidate
            for candidate in SLOW_CALLS
            if candidate.functions is not None and candidate.functions.search(callee)
        ),
        None,
    )


def _before(row: SlowCall, other: SlowCall) -> bool:
    return SLOW_CALLS.index(row) < SLOW_CALLS.index(other)


def _told_by_text(line: HotLine) -> SlowCall | None:
    runs_ops = line.ops_us > _LITTLE_IN_OPS * line.us
    texts = (
        candidate
        for candidate in SLOW_CALLS
        if not (candidate.without_ops and runs_ops) and not _is_else(candidate, line.text)
    )
    return next((candidate for candidate in texts if candidate.by_text is not None and candidate.by_text(line)), None)


@remembered
def _matched(evidence: Evidence) -> _KnownLines | None:
    """Returns the slowest lines that one row of the table knows.

    Or those nearly as slow.
    """
    lines = [(cause, line) for cause in _causes(evidence) for line in hot_lines(evidence, cause)]
    lines.sort(key=lambda pair: -pair[1].us)
    for cause, line in lines:
        if line.us < max(_NEAR * lines[0][1].us, _LEAST * evidence.step_us):
            return None
        first = _giver_of(line, [one for other, one in lines if other == cause]) or line
        call = match_of(first)
        if call is not None:
            mine = [one for other, one in lines if other == cause and evidence.share_of_step(one.us) >= _LEAST_BESIDE]
            given = f"{given_function(first)} ("
            others = (one for one in mine if match_of(one) is call or _is_inside(one, given))
            return _KnownLines(cause, (first, *(one for one in others if one is not first)), call)
    return None


def _giver_of(line: HotLine, lines: Sequence[HotLine]) -> HotLine | None:
    """Returns the line that has a library call this line's function.

    For each row, group or element.
    """
    for one in lines:
        given = given_function(one)
        if one is not line and given != "the function" and _is_inside(line, f"{given} ("):
            return one
    return None


def _is_inside(line: HotLine, function: str) -> bool:
    """True for a line of the function that the known call is given.

    'row_features() (train.py:26)' has its time.
    """
    return any(name.startswith(function) for name in line.named) or line.text.startswith(f"def {function[:-4]}(")


def _causes(evidence: Evidence) -> tuple[str, ...]:
    """Returns causes whose lines run in this process.

    Those of a loader with workers only wait for them.
    """
    return ("python", "input") if loader_kinds(evidence) <= {ONE_PROCESS} else ("python",)


_DRAWS = re.compile(r"rand|augment|jitter|flip|choice", re.IGNORECASE)


def _made_next(evidence: Evidence, slow: _KnownLines) -> tuple[HotLine, ...]:
    """Gives other lines of the function that work on the result of a line.

    What is kept in place of the result may be theirs: images in the size of training. Lines that draw at random make
    another one each time.
    """
    own = {function for line in slow.lines if (function := _function_of(evidence, line)) is not None}
    if not slow.call.takes_next or not own:
        return ()
    first, mine = _line_number(slow.lines[0]), {line.source for line in slow.lines}
    return tuple(
        line
        for line in hot_lines(evidence, slow.cause)
        if line.source not in mine
        and _function_of(evidence, line) in own
        and _line_number(line) > first
        and evidence.share_of_step(line.us) >= _LEAST_BESIDE
        and not _DRAWS.search(line.text)
    )


def _function_of(evidence: Evidence, line: HotLine) -> str | None:
    """Returns 'train.py: load' for a line of it; null where unknown."""
    functions = functions_of_lines(evidence)
    for name in line.named:
        place = place_of(name)
        if name in functions:
            return functions[name]
        if place is not None and place.is_function:
            return f"{place.file}: {name.partition(' (')[0].removesuffix('()')}"
    return None


def _line_number(line: HotLine) -> int:
    number = line.source.rpartition(":")[2]
    return int(number) if number.isdigit() else 0


def slow_call(evidence: Evidence) -> Draft | None:
    """Finds a slowest line of Python that has a quicker way.

    It is in the step or in its loader, and a known call or pattern. Gain: the time of that line, from a part of it that
    the row of the table tells; at most with what the same function makes of its result, where that may be kept.
    """
    slow = _matched(evidence)
    if slow is None:
        return None
    line, call = slow.lines[0], slow.call
    words = {
        "at": line.where(),
        "place": line.place(),
        "often": "for each sample" if slow.cause == "input" else "in each step",
        "searched": "" if line.searched is None else line.searched.words(),
        "given": given_function(line),
    }
    us, sampled = math.fsum(match.us for match in slow.lines), line.sampled()
    made_next = _made_next(evidence, slow)
    most_us = us + math.fsum(one.us for one in made_next)
    folds = {fold.name for fold in evidence.analysis.lines}
    return Draft(
        slug="slow-call",
        title=call.title.format(**words),
        evidence=(
            *(
                f"{match.source} takes {format_per_step(evidence, match.us)}{match.quoted()}"
                for match in slow.lines[:3]
            ),
            *(
                f"{one.source} works on the result next, {format_per_step(evidence, one.us)}{one.quoted()}: that goes "
                "too where what it makes is kept"
                for one in made_next[:2]
            ),
            *(() if sampled is None else (sampled,)),
            *(() if line.searched is None else (f"{line.searched.words()}, seen once while the program ran",)),
            *((f"most of it is in {line.callees[0]}",) if line.callees else ()),
        ),
        advice=call.advice.format(**words),
        brief=_brief(call, words, line),
        places=tuple(match.source for match in slow.lines[:3]),
        code=call.code,
        gain_us=Interval(call.least * us, most_us),
        claims=claims_of(evidence, f"overhead.{slow.cause}", most_us=most_us),
        removes=True,
        lines=tuple(
            dict.fromkeys(name for match in (*slow.lines, *made_next) for name in match.named if name in folds)
        ),
        comes_first=evidence.share_of_step(us) >= _FIRST
        and (slow.cause != "input" or us >= MOST_OF_LOADING * evidence.account_us("overhead.input")),
    )


def _brief(call: SlowCall, words: Mapping[str, str], line: HotLine) -> str:
    """The change in a few words, with the line but not its text."""
    place = "" if "{place}" in call.change or "{at}" in call.change else f", {at_source(line.source)}"
    return call.change.format(**{**words, "at": at_source(line.source), "place": line.source}) + place


# Findings that say less of the same time: its place or its kind, without the remedy of the one that they stand under.
_SAYS_LESS: Mapping[str, frozenset[str]] = {
    "row-fetching": frozenset({"loader-hot-spot", "loader-without-workers"}),
    "slow-call": frozenset({"python-line", "python-call", "loader-hot-spot", "side-work"}),
    "class-by-class": frozenset({"looped-op", "needless-copies", "unfused-chain"}),
    "many-small-calls": frozenset({"python-call"}),
}
_MOST_OF_IT = 0.5


def without_general(drafts: Sequence[Draft]) -> list[Draft]:
    """Returns the drafts without those that another says better.

    The other explains half or more of their time.
    """
    most_us = {one.slug: one.gain_us.high for one in drafts if one.gain_us is not None}
    return [
        draft
        for draft in drafts
        if draft.gain_us is None
        or not any(
            draft.slug in general and most_us.get(slug, 0.0) >= _MOST_OF_IT * draft.gain_us.high
            for slug, general in _SAYS_LESS.items()
        )
    ]


# torch.tensor() of a list makes a tensor, fills it with the numbers one by one, and hands it on by these ops.
_OF_LIST = ("aten::empty", "aten::to", "aten::lift_fresh")
# Of the step: what filling takes to be told, and to be told first.
_LEAST_FILLING, _MOSTLY_FILLING = 0.05, 0.1


class _Filled(Struct, frozen=True):
    """Tensors that are filled from lists.

    Their time and number per step, and the sizes of the slowest.
    """

    us: float
    calls: float
    size: Size


@remembered
def _filled(evidence: Evidence) -> _Filled | None:
    """Finds the gaps in which torch.tensor() fills tensors with numbers."""
    ops, top = evidence.linked.ops, top_rows(evidence)
    names, threads = (ops[column].astype(object).to_numpy()[top] for column in ("name", "thread"))
    start = ops["ts_us"].to_numpy()[top]
    end = start + ops["dur_us"].to_numpy()[top]
    follow = np.ones(max(top.size - 2, 0), dtype=bool)
    for at, name in enumerate(_OF_LIST):
        follow &= (names[at : at + follow.size] == name) & (threads[at : at + follow.size] == threads[: follow.size])
    firsts = np.flatnonzero(follow)
    if not firsts.size:
        return None
    gaps = start[firsts + 1] - end[firsts]
    signature = int(as_integers(ops["signature"])[top[firsts[np.argmax(gaps)] + 2]])
    size = next(iter(work_of(evidence).tensors_of(signature)), ())
    return _Filled(float(gaps.sum()) / evidence.steps, firsts.size / evidence.steps, size)


def list_made_tensor(evidence: Evidence) -> Draft | None:
    """Finds tensors made of lists in a trace without Python calls.

    Their ops have a long gap between them. No gain is predicted: what a quicker way takes depends on what the list
    holds. Of 256 arrays of 96 numbers np.stack took 3 % of that time, of as many lists np.array 17 %.
    """
    if evidence.linked.places is not None or evidence.recording is not None or evidence.is_incomplete:
        return None
    filled = _filled(evidence)
    if filled is None or evidence.share_of_step(filled.us) < _LEAST_FILLING:
        return None
    size = f" (the slowest: {size_words(filled.size)} numbers)" if filled.size else ""
    return Draft(
        slug="slow-call",
        title="torch.tensor() of a list takes its numbers one by one",
        evidence=(
            f"{counted(format_count(filled.calls), 'tensor')} per step{size} made by aten::empty, a gap without ops, "
            "and aten::lift_fresh: torch.tensor() of a Python list or of a list of arrays",
            f"the gaps take {format_per_step(evidence, filled.us)}",
        ),
        advice="Make one array before a tensor is made of it: np.stack of a list of arrays, np.array of a list of "
        "numbers, or an array that is kept from the start. torch.tensor() of a list takes each number out of a Python "
        "object.",
        brief="Make one array (np.stack) in place of the list that torch.tensor() gets",
        code="batch = torch.from_numpy(np.stack(arrays))  # in place of torch.tensor(arrays), a list of arrays",
        gain_reason=f"at most the {format_us(filled.us)} per step that it takes: an array of rows is made in a "
        "thirtieth to a third of that",
        claims=claims_of(evidence, "overhead.python", most_us=filled.us),
        comes_first=evidence.share_of_step(filled.us) >= _MOSTLY_FILLING,
    )


RULES = (slow_call, list_made_tensor)
