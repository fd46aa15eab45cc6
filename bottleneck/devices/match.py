"""Finds the ceilings of a device.

By name, checked against its recorded properties, else by fingerprint or formula.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bottleneck.devices.catalogue import (
    Entry,
    entries,
    kernel_names,
    kinds_by_vendor,
    rates,
    reported_as,
    ridges,
    usual_names,
)
from bottleneck.errors import UsageError
from bottleneck.schema.analysis import Caveat
from bottleneck.schema.device import ONEDNN_PEAK, Device
from bottleneck.schema.device_facts import NAME_LIMIT
from bottleneck.schema.linked_trace import DeviceProperties, Trace
from bottleneck.schema.recording import Recording

# AMD reports a gfx version as compute capability, which may be that of several parts (and that of NVIDIA boards).
_CDNA_WARP = 64
_MHZ = 1e6


def formula_peaks(architecture: str, sm_count: float, clock_mhz: float, tensor_mhz: float) -> dict[str, float]:
    """Returns FLOP/s per peak of an architecture.

    Empty when its rates are unknown. Sparsity is never counted.
    """
    return {
        peak: rate * sm_count * _MHZ * clock_of(peak, clock_mhz, tensor_mhz)
        for peak, rate in rates().get(architecture, {}).items()
        if peak != "special" and not peak.endswith("_accumulate")
    }


def clock_of(peak: str, clock_mhz: float, tensor_mhz: float) -> float:
    """Returns the clock at which a data sheet quotes a peak.

    Tensor cores have one of their own, except for fp64.
    """
    return clock_mhz if peak.startswith("fp64") or peak.endswith("_vector") else tensor_mhz


def special_ops_per_s(architecture: str, sm_count: float, clock_mhz: float) -> float | None:
    """Returns exponentials, roots … per second of the special units.

    Null where the rate is unknown.
    """
    rate = rates().get(architecture, {}).get("special")
    return None if rate is None else rate * sm_count * clock_mhz * _MHZ


def default_clocks_mhz(architecture: str) -> tuple[float, float] | None:
    """Returns the fastest boost and tensor clocks of an architecture.

    They are those that the table lists; null when it lists none. Traces do not record clocks. The fastest gives
    ceilings that may be too high, so that floors stay lower bounds.
    """
    rows = [entry for entry in entries() if entry.architecture == architecture]
    if not rows:
        return None
    return max(row.boost_mhz for row in rows), max(row.tensor_mhz for row in rows)


def architectures(properties: DeviceProperties, flavour: str) -> tuple[str, ...]:
    """Returns the rows of rates.csv that a device may belong to.

    They follow from vendor, compute capability and name. NVIDIA and AMD give different parts equal numbers: a warp of
    64 means AMD. GeForce boards run tensor cores with fp32 accumulation at half rate; without a name both variants are
    possible.
    """
    capability = properties.compute_capability or ""
    if flavour == "rocm" or properties.warp_size == _CDNA_WARP:
        return reported_as().get(capability, ())
    halved = f"{capability}-geforce"
    wanted = (capability, halved) if not properties.name else ((halved,) if "GeForce" in properties.name else ())
    rated = tuple(name for name in wanted or (capability,) if name in rates())
    return rated or ((capability,) if capability in rates() else ())


def upper_peaks(several: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns the highest ceiling per peak over several devices.

    It is an upper bound, whichever of them it is.
    """
    highest: dict[str, float] = {}
    for peaks in several:
        for peak, value in peaks.items():
            highest[peak] = max(value, highest.get(peak, 0.0))
    return highest


def same_fingerprint(properties: DeviceProperties, flavour: str) -> list[Entry]:
    """Finds the rows of the same fingerprint without a name.

    It is architecture, multiprocessor count and memory (within 15 %).
    """
    kinds = architectures(properties, flavour)
    return [
        entry
        for entry in entries()
        if entry.architecture in kinds
        and properties.sm_count in entry.sm_counts
        and memory_agrees(entry, properties.memory_bytes)
    ]


def memory_agrees(entry: Entry, memory_bytes: int | None) -> bool:
    """True where a reported memory size is one of the row's, or unknown.

    Within 15 %, since part of it is reserved.
    """
    return memory_bytes is None or any(abs(memory_bytes / size - 1) <= 0.15 for size in entry.memory_bytes)


_UNNAMED = "unknown device"
_REMEDY = "pass --device NAME or --peaks FILE to judge it against its ceilings"


# A device with its ceilings, and caveats about them.
DeviceWithCaveats = tuple[Device, tuple[Caveat, ...]]


def from_entry(entry: Entry, properties: DeviceProperties | None = None) -> Device:
    """Makes a device of a row.

    Name, multiprocessors and memory are those that the device itself reports.
    """
    reported = properties or DeviceProperties()
    return Device(
        name=reported.name.strip() or entry.label,
        vendor=entry.vendor,
        kind=kinds_by_vendor().get(entry.vendor, "other"),
        count=1,
        peaks_flops_per_s=dict(entry.peaks_flops_per_s),
        bandwidth_bytes_per_s=entry.bandwidth_bytes_per_s,
        launch_floor_us=None,
        source="datasheet",
        ridge_flops_per_byte=ridges(entry.peaks_flops_per_s, entry.bandwidth_bytes_per_s),
        sm_count=reported.sm_count or entry.sm_counts[0],
        memory_bytes=reported.memory_bytes or int(entry.memory_bytes[0]),
        cache_bytes=entry.cache_bytes or None,
        special_ops_per_s=special_ops_per_s(entry.architecture, entry.sm_counts[0], entry.boost_mhz),
        link_bytes_per_s=entry.link_bytes_per_s,
        peak_clocks_mhz={peak: clock_of(peak, entry.boost_mhz, entry.tensor_mhz) for peak in entry.peaks_flops_per_s},
        architecture=entry.architecture,
    )


def _confidence_caveats(entry: Entry) -> tuple[Caveat, ...]:
    """A caveat on a row from secondary sources; none for other rows."""
    if entry.confidence != "C":
        return ()
    message = f"the ceilings of {entry.label} come from secondary sources ({entry.source}); {_REMEDY}"
    return (Caveat("unconfirmed-peaks", message),)


def scale_to_count(entry: Entry, properties: DeviceProperties) -> DeviceWithCaveats:
    """The row cut to the multiprocessors that the device reports.

    Arithmetic scales with multiprocessors. Bandwidth and cache follow memory where the device is a slice (MIG, CPX:
    fewer multiprocessors and less memory) or has more memory than the row; a part that only has less memory keeps the
    row's bandwidth. Clocks of laptop and cut-down parts are lower and unknown: ceilings err on the high side.
    """
    whole = from_entry(entry, properties)
    memory = (
        min((properties.memory_bytes / size for size in entry.memory_bytes), key=lambda ratio: abs(ratio - 1))
        if properties.memory_bytes
        else 1.0
    )
    compute = properties.sm_count / entry.sm_counts[0] if properties.sm_count else 1.0
    follows = memory > 1.15 or (memory < 0.85 and compute < 0.95)
    ratio = memory if follows else 1.0
    peaks = {peak: value * compute for peak, value in whole.peaks_flops_per_s.items()}
    bandwidth = entry.bandwidth_bytes_per_s * ratio
    device = replace(
        whole,
        peaks_flops_per_s=peaks,
        bandwidth_bytes_per_s=bandwidth,
        ridge_flops_per_byte=ridges(peaks, bandwidth),
        cache_bytes=whole.cache_bytes and whole.cache_bytes * min(1.0, ratio),
        special_ops_per_s=whole.special_ops_per_s and whole.special_ops_per_s * compute,
        source="derived",
    )
    message = (
        f"{whole.name!r} reports {properties.sm_count} multiprocessors, the {entry.label} of the device table has "
        f"{entry.sm_counts[0]}: ceilings are scaled by {compute:.3g} (arithmetic) and {ratio:.3g} (bandwidth) and may "
        f"be too high; {_REMEDY}"
    )
    return device, (Caveat("derived-peaks", message),)


def match_fingerprint(fitting: Sequence[Entry], properties: DeviceProperties) -> DeviceWithCaveats:
    """Makes a device of the rows with its fingerprint.

    It is the one row, or has the highest ceilings of several, with this architecture, multiprocessor count and memory.
    Only AMD names its parts so vaguely (none at all, 'AMD Radeon Graphics') that a fingerprint is as good as a name; a
    new NVIDIA name is a part that we do not know.
    """
    base = from_entry(fitting[0], properties)
    peaks = upper_peaks(entry.peaks_flops_per_s for entry in fitting)
    bandwidth = max(entry.bandwidth_bytes_per_s for entry in fitting)
    unanimous = all(entry.peaks_flops_per_s == peaks and entry.bandwidth_bytes_per_s == bandwidth for entry in fitting)
    device = replace(
        base,
        peaks_flops_per_s=peaks,
        bandwidth_bytes_per_s=bandwidth,
        ridge_flops_per_byte=ridges(peaks, bandwidth),
        cache_bytes=max(entry.cache_bytes for entry in fitting) or None,
        peak_clocks_mhz=base.peak_clocks_mhz if unanimous else {},
        source="datasheet" if unanimous and base.vendor == "AMD" else "derived",
    )
    labels = " or ".join(dict.fromkeys(entry.label for entry in fitting))
    called = f"the device calls itself {properties.name!r}" if properties.name.strip() else "the device has no name"
    message = f"{called}; multiprocessors and memory are those of {labels}"
    return device, (Caveat("device-by-fingerprint", f"{message}; {_REMEDY} if that is wrong"),)


def derive_from_architecture(properties: DeviceProperties, flavour: str) -> DeviceWithCaveats | None:
    """Derives ceilings from the architecture at its fastest listed clock.

    The bandwidth is unknown. Null without an architecture.
    """
    kinds = [kind for kind in architectures(properties, flavour) if default_clocks_mhz(kind) is not None]
    if not kinds or properties.sm_count is None:
        return None
    count = properties.sm_count
    clocks = [(kind, *(default_clocks_mhz(kind) or (0.0, 0.0))) for kind in kinds]
    peaks = upper_peaks(formula_peaks(kind, count, boost, tensor) for kind, boost, tensor in clocks)
    if "GTX" in properties.name:
        # GTX boards of the Turing generation have its compute capability but no tensor cores.
        peaks = {peak: value for peak, value in peaks.items() if not peak.endswith("_tensor")}
    fastest = max(boost for _, boost, _ in clocks), max(tensor for _, _, tensor in clocks)
    special = [rate for kind, boost, _ in clocks if (rate := special_ops_per_s(kind, count, boost)) is not None]
    device = replace(
        _bare(properties, flavour),
        vendor=next(entry.vendor for entry in entries() if entry.architecture == kinds[0]),
        peaks_flops_per_s=peaks,
        special_ops_per_s=max(special, default=None),
        source="derived",
        peak_clocks_mhz={peak: clock_of(peak, *fastest) for peak in peaks},
        plausible_ridges=plausible_ridges(flavour, kinds),
        architecture=kinds[0] if len(kinds) == 1 else None,
    )
    message = (
        f"{device.name!r} is not in the device table: arithmetic ceilings follow from its architecture at the fastest "
        f"clock listed for it and may be too high, its bandwidth is unknown; {_REMEDY}"
    )
    return device, (Caveat("derived-peaks", message),)


def _bare(properties: DeviceProperties, flavour: str) -> Device:
    return Device(
        name=properties.name.strip() or ("CPU" if flavour == "cpu" else _UNNAMED),
        vendor=None,
        kind=flavour,
        count=1,
        peaks_flops_per_s={},
        bandwidth_bytes_per_s=None,
        launch_floor_us=None,
        source=None,
        ridge_flops_per_byte={},
        sm_count=properties.sm_count,
        memory_bytes=properties.memory_bytes,
    )


# Peak over bandwidth of CPUs, in FLOP/B of fp32: from 2 (few cores without wide vectors, or memory on the package) to
# 50 (128 cores with two AVX-512 units on twelve DDR5 channels: 24.6 TFLOP/s at 0.5 TB/s). Matrix units for bf16
# multiply up to eight times as fast; fp64 has half the lanes.
_CPU_RIDGES = {
    "fp32_tensor": (2.0, 50.0),
    "fp32_vector": (2.0, 50.0),
    "fp64_tensor": (1.0, 25.0),
    "fp64_vector": (1.0, 25.0),
    "bf16_tensor": (2.0, 400.0),
    "int8_tensor": (2.0, 800.0),
}


def plausible_ridges(flavour: str, kinds: Sequence[str] = ()) -> dict[str, tuple[float, float]]:
    """Returns the lowest and highest ridge per peak.

    They are of the devices of this flavour, and of these architectures where any are given. For CPUs it is a range of
    all that torch runs on; for GPUs the rows of the table of devices.
    """
    if flavour == "cpu":
        return dict(_CPU_RIDGES)
    by_peak: dict[str, list[float]] = {}
    for entry in entries():
        if kinds_by_vendor().get(entry.vendor) == flavour and (not kinds or entry.architecture in kinds):
            for peak, ridge in ridges(entry.peaks_flops_per_s, entry.bandwidth_bytes_per_s).items():
                by_peak.setdefault(peak, []).append(ridge)
    return {peak: (min(values), max(values)) for peak, values in by_peak.items()}


def unknown_device(properties: DeviceProperties, flavour: str) -> DeviceWithCaveats:
    """A device without ceilings, and a caveat with the options that give it some."""
    device = replace(_bare(properties, flavour), plausible_ridges=plausible_ridges(flavour))
    if flavour == "cpu":
        message = (
            "the trace does not say which CPU it ran on, so no op is judged against ceilings; record there with "
            "`bottleneck run`, or pass --device cpu if it was this machine, or --peaks FILE"
        )
    else:
        message = f"the ceilings of {device.name!r} are not known, so no kernel is judged against them; {_REMEDY}"
    return device, (Caveat("unknown-device", message),)


def match_device(properties: Sequence[DeviceProperties], used: Sequence[int], flavour: str) -> DeviceWithCaveats:
    """The device that did the work of a trace, and caveats about its ceilings.

    ``used`` holds the indexes of the devices with work, ``flavour`` that of the trace. The name picks a row of the
    table only where multiprocessor count and memory agree; slices and cut-down parts are scaled, parts without a row
    derived, both with source 'derived'. An unknown device has no ceilings and source null.
    """
    if flavour == "cpu":
        # The machine may list GPUs, but none of them did any work.
        return unknown_device(DeviceProperties(), flavour)
    chosen = [device for device in properties if device.index in used] or list(properties[:1])
    first = chosen[0] if chosen else DeviceProperties()
    device, caveats = _find(first, flavour)
    device = replace(device, kind=flavour, count=max(1, len(set(used))))
    return device, caveats + _mixed(chosen)


def device_by_name(name: str) -> Device:
    """Finds the device of the table that a user names.

    The name is whole, by its own words ('mi300x', 'rtx 4070'), or as people call it. Raises UsageError with the nearest
    names when no row, or more than one, fits.
    """
    query = _words(name)
    usual = usual_names().get(" ".join(query))
    if usual is not None:
        return from_entry(usual)
    if not query:
        raise UsageError("no device is called ''", fix="name a device, for example --device H200")
    named = {label: entry for entry in entries() for label in entry.names + entry.exact_names}
    exact = [entry for label, entry in named.items() if _words(label) == query]
    ends = [entry for label, entry in named.items() if _words(label)[-len(query) :] == query]
    loose = [entry for label, entry in named.items() if set(query) <= set(_words(label))]
    fitting = _distinct(exact) or _distinct(ends) or _distinct(loose)
    if len(fitting) == 1:
        return from_entry(fitting[0])
    near = [entry.label for entry in fitting] or _near_names(name, list(named))
    raise UsageError(
        f"{'several devices fit' if fitting else 'no device is called'} {name!r}",
        why=f"nearest: {', '.join(near)}" if near else "nothing in the device table resembles it",
        fix="name one of the device table in full, or describe the device in a file: --peaks FILE",
    )


def _words(name: str) -> list[str]:
    plain = name.lower().replace("(r)", "").replace("(tm)", "")
    return plain.replace("-", " ").replace("instinct ", "").split()


def _distinct(found: Sequence[Entry]) -> list[Entry]:
    return [entry for index, entry in enumerate(found) if entry not in found[:index]]


def _near_names(name: str, names: list[str]) -> list[str]:
    """Finds names that are spelt much like the query.

    It may be the whole name, or its end from some word on.
    """
    tails = {" ".join(_words(label)[start:]): label for label in names for start in range(len(_words(label)))}
    hits = difflib.get_close_matches(" ".join(_words(name)), tails, n=4, cutoff=0.6)
    return list(dict.fromkeys(tails[hit] for hit in hits))


def _find(properties: DeviceProperties, flavour: str) -> DeviceWithCaveats:
    named = _by_name(properties.name)
    if named is not None and _is_another_part(named, properties):
        named = None
    if named is not None and _agrees(named, properties):
        return from_entry(named, properties), _confidence_caveats(named)
    fitting = same_fingerprint(properties, flavour)
    if fitting and (named is None or named.vendor == "AMD"):
        return match_fingerprint(fitting, properties)
    if named is not None:
        return scale_to_count(named, properties)
    return derive_from_architecture(properties, flavour) or unknown_device(properties, flavour)


def _by_name(name: str) -> Entry | None:
    """Finds the row with the longest pattern that begins the name.

    Another word may follow it. Null when there is none.
    """
    plain = name.strip().removeprefix("NVIDIA ")
    hits = [
        (len(pattern), entry)
        for entry in entries()
        for pattern in (label.removeprefix("NVIDIA ") for label in entry.names)
        if plain.startswith(pattern) and not plain[len(pattern) :][:1].isalnum()
    ]
    exact = [entry for entry in entries() if name.strip() in entry.exact_names]
    return exact[0] if exact else max(hits, key=lambda hit: hit[0], default=(0, None))[1]


def _agrees(entry: Entry, properties: DeviceProperties) -> bool:
    count = properties.sm_count
    return (count is None or count in entry.sm_counts) and memory_agrees(entry, properties.memory_bytes)


def _is_another_part(entry: Entry, properties: DeviceProperties) -> bool:
    """True where a longer name means a bigger board.

    An RTX 3060 Ti has more multiprocessors than an RTX 3060.
    """
    longer = properties.name.strip() not in entry.names + entry.exact_names
    return longer and (properties.sm_count or 0) > max(entry.sm_counts)


def _mixed(chosen: Sequence[DeviceProperties]) -> tuple[Caveat, ...]:
    kinds = {(device.name, device.sm_count) for device in chosen}
    if len(kinds) < 2:
        return ()
    names = ", ".join(sorted(repr(name) for name, _ in kinds))
    return (Caveat("mixed-devices", f"work ran on different devices ({names}); all is judged by the first"),)


_NO_CEILINGS = (
    "the ceilings of this CPU were not measured, so no kernel is judged against them; `bottleneck report --repair` "
    "on the machine that recorded this measures them once and keeps them in the recording"
)


def _guess_by_kernels(trace: Trace, device: Device, caveats: tuple[Caveat, ...]) -> DeviceWithCaveats:
    """Guesses a device by the architectures that its kernels are named for.

    The device has no ceilings, but their ridges.
    """
    kernels = trace.events["name"][(trace.events["category"] == "kernel").to_numpy()].unique()
    names = [str(name)[:NAME_LIMIT] for name in kernels]
    for row in kernel_names():
        fitting = [entry for entry in entries() if entry.architecture in row.architectures]
        example = next((name for name in names if row.pattern.search(name)), None)
        if example is None or kinds_by_vendor().get(fitting[0].vendor) != trace.flavour:
            continue
        message = (
            f"the trace does not name its device, so no kernel is judged against ceilings; {example[:60]!r} is a "
            f"kernel for {row.generation}: pass --device {fitting[0].names[0]!r} or the right name of that kind, or "
            "--peaks FILE"
        )
        guessed = replace(device, plausible_ridges=plausible_ridges(trace.flavour, row.architectures))
        return guessed, tuple(
            Caveat(caveat.slug, message) if caveat.slug == "unknown-device" else caveat for caveat in caveats
        )
    return device, caveats


def choose_device(trace: Trace, recording: Recording | None = None, chosen: Device | None = None) -> DeviceWithCaveats:
    """The ceilings of a trace's device, and what is doubtful about them.

    Those chosen on the command line come first, then those that the recording measured on the same device, then those
    of the table of devices.
    """
    if chosen is not None:
        return chosen, ()
    measured = None if recording is None else recording.device
    if recording is not None and measured is not None and measured.kind == trace.flavour == "cpu":
        return _as_multiplied(measured, recording), ()
    used = trace.device_args["device"].dropna().unique()
    device, caveats = match_device(trace.devices, [int(index) for index in used], trace.flavour)
    if device.name == _UNNAMED:
        device, caveats = _guess_by_kernels(trace, device, caveats)
    if recording is not None and trace.flavour == "cpu":
        caveats = (Caveat("unknown-device", _NO_CEILINGS),)
        device = replace(device, name=_CPU_IDS.sub("", recording.versions.get("cpu", "")) or device.name)
    if measured is None or _model_of(measured) != _model_of(device):
        return device, caveats
    # What is doubtful about a data sheet does not touch what was measured.
    mixed = tuple(caveat for caveat in caveats if caveat.slug == "mixed-devices")
    return replace(measured, count=device.count, architecture=device.architecture), mixed


# What torch calls the precisions of fp32 products at which it gives them to oneDNN.
ONEDNN_PRECISIONS = frozenset({"medium", "bf16"})


def _as_multiplied(device: Device, recording: Recording) -> Device:
    """Gives the ceilings at the precision of fp32 products that the program chose."""
    faster = device.peaks_flops_per_s.get(ONEDNN_PEAK)
    if faster is None or recording.libraries.get("float32") not in ONEDNN_PRECISIONS:
        return device
    peaks = {**device.peaks_flops_per_s, "fp32_tensor": faster}
    return replace(device, peaks_flops_per_s=peaks, ridge_flops_per_byte=ridges(peaks, device.bandwidth_bytes_per_s))


# What the identity of a CPU in a recording has behind its name: vendor, family, model and stepping, as Linux has them.
_CPU_IDS = re.compile(r" (GenuineIntel|AuthenticAMD|HygonGenuine)( \d+){1,3}$|( 0x[0-9a-f]+){1,2}$")


def _model_of(device: Device) -> tuple[str, str, int | None]:
    return device.kind, device.name, device.sm_count
