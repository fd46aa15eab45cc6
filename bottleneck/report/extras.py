"""The sentences of a report about what was tried besides the profile: the batch test, the cost of the profiler."""

from bottleneck.measured import BatchProof, OptionCosts, Ratio, Timing
from bottleneck.records import Device, Totals
from bottleneck.report.layout import Notes
from bottleneck.units import format_share, format_si, format_us


def batch_test(proof: BatchProof | None) -> Notes | None:
    """What twice the batch takes, and what that proves; nothing where there is no batch size."""
    if proof is None:
        return None
    return Notes("Batch test", (_proof(proof),))


def _proof(proof: BatchProof) -> tuple[str, ...]:
    if proof.once_us is None or proof.twice_us is None or proof.ratio is None or proof.batch_size is None:
        return (f"Not run: {proof.reason}.",)
    size, ratio = proof.batch_size, proof.ratio
    times = f"{format_us(proof.twice_us.median)} against {format_us(proof.once_us.median)}"
    lead = f"Twice the batch ({size} to {2 * size}) takes {_times(ratio)} as long: {times}, in {ratio.n} pairs."
    parts = _parts(proof.fixed_us, proof.proportional_us, proof.fixed_share)
    return tuple(line for line in (lead, parts, proof.sentence) if line)


def _times(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})"


def _parts(fixed: Timing | None, grows: Timing | None, share: Ratio | None) -> str:
    if fixed is None or grows is None or share is None:
        return ""
    between = f"{format_share(share.low)} to {format_share(share.high)} of the step"
    return f"same for any batch: {format_us(fixed.median)} ({between}); in proportion to it: {format_us(grows.median)}"


def option_costs(costs: OptionCosts | None) -> str:
    """What each option of the profiler makes of the step; nothing where it was not tried.

    Options are told as what they add to the record of ops alone.
    """
    if costs is None:
        return ""
    ratios = {cost.option: cost.ratio for cost in costs.costs}
    ops = ratios.pop("ops", None)
    if ops is None:
        return f"not known by option: {costs.reason}" if costs.reason else ""
    everything = ratios.pop("all", None)
    parts = [f"ops {ops.median:.2f}x", *(f"{name} {_more(one.median - ops.median)}" for name, one in ratios.items())]
    if everything is not None:
        parts.append(f"together {everything.median:.2f}x ({everything.low:.2f} to {everything.high:.2f})")
    return f"{', '.join(parts)} of the unprofiled step, by {ops.n} windows of each"


def _more(ratio: float) -> str:
    """What an option adds; none makes a step quicker, so less than nothing is the noise of the measurement."""
    return f"+{ratio:.2f}x" if ratio >= 0.005 else "nothing that shows"


def peak_memory(totals: Totals, device: Device) -> str:
    """The most memory in use at once; nothing where it is not known."""
    if totals.peak_memory_bytes is None:
        return ""
    whose = "resident in the process" if device.kind == "cpu" else "allocated on the device"
    note = f" ({totals.peak_memory_reason})" if totals.peak_memory_reason else ""
    return f"{format_si(totals.peak_memory_bytes, 'B')} {whose} at most{note}"
