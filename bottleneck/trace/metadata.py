"""Reads the metadata of a trace file.

That is device, versions, rank, wall clock, and the vendor of its profiler.
"""

import itertools
import json
import re
from collections.abc import Mapping, Set

from msgspec import Struct

from bottleneck.schema.analysis import APPLE_UNRECORDED, HALF_RECORDED, LISTED_ALONE, Caveat
from bottleneck.schema.linked_trace import DeviceProperties, ProcessGroup
from bottleneck.schema.op_names import LONGEST_MODULE_PATH, MODULE_PATHS, MOST_MODULE_PATHS
from bottleneck.schema.tables import LAUNCHES
from bottleneck.trace.categories import category_of
from bottleneck.trace.columns import Columns
from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import DECODE_ERRORS
from bottleneck.trace.vendors import vendor_marked, vendors_that_call

_HIDDEN = ("host", "user", "tw_", "mast_", "trace_path", "traceName", "logical_")
_LONGEST_FACT, _MOST_FACTS = 200, 100

SEVERAL_TRACES = "several-traces"

# Lists of messages that Kineto itself wrote while it recorded.
_LOGS = ("ERROR", "WARNING")


class Metadata(Struct, frozen=True):
    """The top-level keys that we use.

    ``following`` holds the rank of each trace behind this one in the file.
    """

    keys: frozenset[str]
    devices: tuple[DeviceProperties, ...]
    base_ns: int | None
    rank: int | None
    world_size: int | None
    facts: Mapping[str, str]
    module_paths: Mapping[str, str]
    process_groups: tuple[ProcessGroup, ...]
    following: tuple[int | None, ...] = ()

    def is_pytorch(self) -> bool:
        """True where the keys show that Kineto wrote the file."""
        return bool(self.keys & {"schemaVersion", "deviceProperties", "baseTimeNanoseconds", "trace_id"})


def read_metadata(header: bytes, footer: bytes, damage: Damage) -> Metadata:
    """Reads metadata from the text around the event list.

    Values of the wrong type are ignored.
    """
    below, following = _load_footer(header, footer, damage)
    top = {**_load_header(header, damage), **below}
    given = top.get("distributedInfo")
    distributed: Mapping[str, object] = given if isinstance(given, Mapping) else {}
    devices = top.get("deviceProperties") or top.get("computeProperties")
    return Metadata(
        keys=frozenset(top) - {"traceEvents"},
        devices=tuple(_device(entry) for entry in devices if isinstance(entry, Mapping))
        if isinstance(devices, list)
        else (),
        base_ns=_whole(top.get("baseTimeNanoseconds")),
        rank=_whole(distributed.get("rank")),
        world_size=_whole(distributed.get("world_size")),
        facts=_facts(top, distributed),
        module_paths=_module_paths(top.get(MODULE_PATHS)),
        process_groups=_process_groups(distributed.get("pg_config")),
        following=following,
    )


def _load_header(header: bytes, damage: Damage) -> dict[str, object]:
    if not header:
        return {}
    value, _ = _load(header + b"}")
    if not isinstance(value, dict):
        damage["metadata"] += 1
        return {}
    return value


def _load_footer(header: bytes, footer: bytes, damage: Damage) -> tuple[dict[str, object], tuple[int | None, ...]]:
    """The keys after the list of events, and the ranks of traces that follow."""
    text = footer.rstrip(b"\0").strip()
    if not header:
        damage["garbage"] += len(text)
        return {}, ()
    if not text:
        return {}, ()
    value, rest = _load(b"{" + text.lstrip(b", \t\r\n"))
    if isinstance(value, dict):
        following = _ranks_of(rest)
        damage["garbage"] += 0 if following else len(rest.strip())
        return value, following
    damage["metadata"] += 1
    return {}, ()


_LIST_OR_RANK = re.compile(
    r'"traceEvents"\s*:\s*\[(?!\s*\])|"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*(\d{1,9})'
)
_MOST_FOLLOWING = 64


def _ranks_of(text: str) -> tuple[int | None, ...]:
    """Gives the rank of each trace in the text that follows one.

    Null where a trace states none, empty where none follows. Kineto writes what it knows of the job before the list of
    events.
    """
    if not text.lstrip().startswith("{"):
        return ()
    ranks: list[int | None] = []
    rank: int | None = None
    for match in _LIST_OR_RANK.finditer(text):
        if match[1] is not None:
            rank = int(match[1])
        elif len(ranks) < _MOST_FOLLOWING:
            ranks.append(rank)
            rank = None
    return tuple(ranks)


def several_traces(metadata: Metadata) -> tuple[Caveat, ...]:
    """Gives a caveat on traces that follow the first one.

    They are in the same file, and nothing of them is read.
    """
    if not metadata.following:
        return ()
    several = len(metadata.following) + 1
    count = {2: "two"}.get(several, str(several))
    ranks = (metadata.rank, *metadata.following)
    of = ""
    if None not in ranks and len(set(ranks)) == several:
        listed = [str(rank) for rank in ranks]
        of = f": ranks {', '.join(listed[:-1])} and {listed[-1]}"
    message = f"{count} traces in one file{of}; only the first is read: write each into a file of its own"
    return (Caveat(SEVERAL_TRACES, message),)


def _load(text: bytes) -> tuple[object, str]:
    """The first JSON value of the text (null: none) and the text after it."""
    characters = text.decode("utf-8", errors="replace")
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(characters)
    except DECODE_ERRORS:
        return None, ""
    return value, characters[end:]


def _whole(value: object) -> int | None:
    try:
        number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
    except ValueError:
        return None
    return number if number is not None and abs(number) < 2**63 else None


def _device(entry: Mapping[str, object]) -> DeviceProperties:
    major, minor = _whole(entry.get("computeMajor")), _whole(entry.get("computeMinor"))
    name = entry.get("name")
    return DeviceProperties(
        index=_whole(entry.get("id")) or 0,
        name=_shown(name) if isinstance(name, str) else "",
        memory_bytes=_whole(entry.get("totalGlobalMem")),
        sm_count=_whole(entry.get("numSms")),
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
        warp_size=_whole(entry.get("warpSize")),
    )


# A job of 16,384 ranks has some thousands of groups, each with some of its ranks.
_MOST_GROUPS, _MOST_RANKS = 65_536, 1_048_576


def _process_groups(given: object) -> tuple[ProcessGroup, ...]:
    """Gives the groups that list their name, by name.

    A list of ranks that is no list of whole numbers counts as none.
    """
    groups: dict[str, ProcessGroup] = {}
    for entry in itertools.islice(given, _MOST_GROUPS) if isinstance(given, list) else ():
        name = entry.get("pg_name") if isinstance(entry, Mapping) else None
        if isinstance(name, str | int):
            ranks = _ranks(entry.get("ranks"))
            size = _whole(entry.get("pg_size"))
            name, description = _shown(str(name)), _shown(str(entry.get("pg_desc") or ""))
            groups[name] = ProcessGroup(name, description, len(ranks) if size is None else max(size, 0), ranks)
    return tuple(groups.values())


def _ranks(given: object) -> tuple[int, ...]:
    numbers = given[:_MOST_RANKS] if isinstance(given, list) else []
    ranks = [rank for number in numbers if (rank := _whole(number)) is not None and rank >= 0]
    return tuple(sorted(set(ranks))) if len(ranks) == len(numbers) else ()


def _facts(top: Mapping[str, object], distributed: Mapping[str, object]) -> dict[str, str]:
    plain = {**top, **{key: distributed[key] for key in ("backend", "nccl_version") if key in distributed}}
    facts = {
        _shown(key): _shown(str(value))
        for key, value in plain.items()
        if isinstance(value, str | int | float) and not key.startswith((*_HIDDEN, *_LOGS))
    }
    return {**dict(itertools.islice(facts.items(), _MOST_FACTS)), **_logs(top)}


def _logs(top: Mapping[str, object]) -> dict[str, str]:
    """Gives the first line of each log, without time and place.

    It ends in how many more lines there are.
    """
    texts = {}
    for level in _LOGS:
        lines = top.get(level)
        if isinstance(lines, list) and lines:
            first = lines[0][: 2 * _LONGEST_FACT] if isinstance(lines[0], str) else ""
            more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
            texts[level] = _shown(first.partition("] ")[2] or first) + more
    return texts


def _module_paths(given: object) -> dict[str, str]:
    """The table that our own recordings hold, without entries that none of them writes."""
    entries = given.items() if isinstance(given, dict) else ()
    fitting = ((name, path) for name, path in entries if isinstance(path, str) and 0 < len(path) <= LONGEST_MODULE_PATH)
    return {name: _shown(path, LONGEST_MODULE_PATH) for name, path in itertools.islice(fitting, MOST_MODULE_PATHS)}


def _shown(text: str, longest: int = _LONGEST_FACT) -> str:
    """The text cut short, with characters that could act on a terminal made visible."""
    cut = text[:longest]
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in cut)


_DEVICE_WORK = {"kernel", "copy", "fill"}


def flavour_of(columns: Columns, metadata: Metadata) -> str:
    """The vendor; 'cpu' when no device did any work, whatever devices the machine has."""
    if not _has_device_work(columns):
        return "cpu"
    return vendor_marked(
        {
            "category": {name.lower() for name in (*columns.counts, *columns.categories)},
            "key": metadata.keys,
            "device": [device.name.lower() for device in metadata.devices],
            "name": columns.names,
        }
    )


def _has_device_work(columns: Columns) -> bool:
    return any(category_of(name) in _DEVICE_WORK for name in columns.categories)


# Ops and collectives that run on a GPU only. (The CPU's dispatcher asks whether cuDNN would be acceptable.)
# On Apple's GPUs (MPS) a linear layer is one op in each direction, where others call a product.
_ON_APPLE = re.compile(r"aten::_?mps_\w+|aten::linear_backward")
_ON_A_DEVICE = re.compile(r"aten::_?(?:cudnn|miopen)_(?!is_acceptable)\w+|nccl:\w+|\w+::\w+_cuda")


_CUT_OFF = ("truncated-json", "unclosed-json", "truncated-gzip", "corrupt-gzip", "perfetto-cut", "perfetto-deflate")


def missing_device_work(columns: Columns, metadata: Metadata) -> tuple[Caveat, ...]:
    """Gives a caveat when no device work was recorded or kept.

    Only where kernels were launched, or ops ran on a device.
    """
    if _has_device_work(columns):
        return ()
    vendors = vendors_that_call(LAUNCHES, columns.names)
    is_cut_off = any(columns.damage[kind] for kind in _CUT_OFF)
    if is_cut_off and (metadata.devices or vendors or _op_of(_ON_A_DEVICE, columns) is not None):
        named = f" ({metadata.devices[0].name})" if metadata.devices else ""
        message = (
            f"the file was cut off before any work of its device{named}, so that only a part of the host side shows"
        )
        return (Caveat("no-device-events", message),)
    if not vendors:
        return _half_recorded(columns) or _listed_alone(metadata)
    cause = _cause(vendors)
    message = f"kernels were launched but the profiler recorded none; {cause}"
    return (Caveat("no-device-events", message, cause=cause),)


def _op_of(pattern: "re.Pattern[str]", columns: Columns) -> str | None:
    return next((name for name in columns.names if pattern.fullmatch(name)), None)


def _on_apple(columns: Columns) -> tuple[Caveat, ...]:
    op = _op_of(_ON_APPLE, columns)
    if op is None:
        return ()
    message = (
        f"{op} runs on a GPU of Apple (MPS), whose work torch's profiler does not record: only the host side shows, and"
        " ops that read a value hold the time that the GPU takes"
    )
    return (Caveat(APPLE_UNRECORDED, message),)


def _listed_alone(metadata: Metadata) -> tuple[Caveat, ...]:
    """Gives a caveat when a device of the machine shows nowhere.

    Not even a call shows it.
    """
    if not metadata.devices:
        return ()
    message = (
        f"the machine lists a device ({metadata.devices[0].name}) of which the trace holds nothing: this ran on the CPU"
        " alone, or the device's activity was not recorded"
    )
    return (Caveat(LISTED_ALONE, message),)


# A session that records nothing, opened before graphs are captured (torch.profiler._utils._init_for_cuda_graphs), left
# collection dead for the life of the process: 0 kernels with it, 933,304 without, on CUDA 13.0 with torch 2.13, and so
# on ROCm (lightseekorg/tokenspeed#1287, #1348). Long warm-up phases filled the buffers of roctracer (kineto#1255).
# With the Level Zero V2 adapter of Arc B GPUs, intel-pti 0.17 recorded copies and no kernels (torch-xpu-ops#3985).
def _cause(vendors: Set[str]) -> str:
    """The causes that are known for the vendors whose launches the trace holds."""
    ends = "so only the host side shows"
    if "xpu" in vendors:
        return (
            "Intel's profiling interface gave no record of them (intel-pti 0.17 gives none of compute kernels on Arc B "
            f"GPUs, torch-xpu-ops#3985), {ends}"
        )
    warm = "an empty profiler session earlier in the process, as torch's warm-up before graph capture opens one"
    if "rocm" in vendors:
        warm += ", a warm-up phase whose events filled the buffers"
    return (
        "the device's profiling interface was not usable (missing permission, a stub library in LD_LIBRARY_PATH, "
        f"another profiler, or {warm}), {ends}"
    )


def _half_recorded(columns: Columns) -> tuple[Caveat, ...]:
    op = _op_of(_ON_A_DEVICE, columns)
    if op is None:
        return _on_apple(columns)
    message = (
        f"this is a GPU program recorded without its GPU: {op} runs on a device, and the trace holds no device work, so"
        " that only the host side shows"
    )
    return (Caveat(HALF_RECORDED, message),)
