"""What the clock of the device means for its ceilings: arithmetic slows down with it, memory does not."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bottleneck.records import Caveat, Device, TelemetrySummary
from bottleneck.units import format_share

# Ceilings settle within 3 %: a clock that is lower by less says nothing.
_AS_FAST = 0.97
# The system tells the mean clock of all processors: idle ones, which rest, must not count among those that work.
_ALL_BUSY = 0.9


@dataclass(frozen=True)
class Conditions:
    """What held while the steps ran, by the device's sensors.

    ``throttle`` lists why its clocks were held back; ``clock_shares`` is the part of each peak, keyed as the peaks,
    that the clock left, without those that it left whole.
    """

    throttle: tuple[str, ...] = ()
    clock_shares: Mapping[str, float] = field(default_factory=dict)

    def slowed(self, device: Device) -> Device:
        """The device with the arithmetic peaks of that clock; bandwidth is the memory's affair."""
        shares = self.clock_shares
        peaks = {peak: value * shares.get(peak, 1.0) for peak, value in device.peaks_flops_per_s.items()}
        special = device.special_ops_per_s
        return replace(
            device,
            peaks_flops_per_s=peaks,
            special_ops_per_s=special and special * shares.get("fp32_vector", 1.0),
        )


# Where no sensor was read.
UNTOLD = Conditions()


def find_conditions(device: Device, telemetry: TelemetrySummary | None) -> tuple[Conditions, tuple[Caveat, ...]]:
    """The conditions, and a caveat where the clock was below the one at which the device's peaks hold.

    Data sheets quote peaks at the boost clock, those of tensor cores at one of their own; a calibration knows its
    clock. A clock above it does not raise a peak. Of a processor's clock only what its sensor says while all of them
    work is believed.
    """
    if telemetry is None:
        return UNTOLD, ()
    clock_mhz = telemetry.cpu_clock_mhz if device.kind == "cpu" else telemetry.sm_clock_mhz
    rests = device.kind == "cpu" and (telemetry.host_utilization or 0.0) < _ALL_BUSY
    if not clock_mhz or rests:
        return Conditions(telemetry.throttle), ()
    told = {peak: clock_mhz / nominal for peak, nominal in device.peak_clocks_mhz.items() if nominal > 0}
    shares = {peak: share for peak, share in told.items() if share < _AS_FAST and peak in device.peaks_flops_per_s}
    conditions = Conditions(telemetry.throttle, shares)
    return conditions, _caveats(conditions, clock_mhz, device)


def _caveats(conditions: Conditions, clock_mhz: float, device: Device) -> tuple[Caveat, ...]:
    shares = conditions.clock_shares
    if not shares:
        return ()
    nominal = " and ".join(f"{each:.0f}" for each in sorted({device.peak_clocks_mhz[peak] for peak in shares}))
    left = " to ".join(dict.fromkeys(format_share(share) for share in (min(shares.values()), max(shares.values()))))
    why = f" ({', '.join(conditions.throttle)})" if conditions.throttle else ""
    message = (
        f"the device ran at {clock_mhz:.0f} MHz{why}, below the {nominal} MHz at which its peaks hold: arithmetic is "
        f"judged against {left} of them, bytes against the whole bandwidth"
    )
    return (Caveat("low-clocks", message),)
