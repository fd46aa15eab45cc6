"""Ceilings of this CPU that tests find in their cache, so that what they start does not measure any."""

from bottleneck.calibrate.cache import write_calibration
from bottleneck.calibrate.calibration import Calibration
from bottleneck.harness.machine import allowance, cpu_facts, usable_processors
from bottleneck.schema.device import Device


def keep_ceilings() -> None:
    """Writes plausible ceilings for one thread and for all into the cache that XDG_CACHE_HOME names."""
    facts, usual, bytes_per_s = cpu_facts(), usable_processors(), 3e10
    for threads in {1, usual}:
        peaks = {
            "fp32_tensor": threads * 9e10,
            "bf16_tensor": threads * 2e11,
            "fp64_tensor": threads * 5e10,
            "fp32_vector": threads * 5.5e10,
            "fp64_vector": threads * 2.7e10,
        }
        device = Device(
            name=facts.model,
            kind="cpu",
            count=1,
            vendor=facts.vendor,
            peaks_flops_per_s=peaks,
            ridge_flops_per_byte={name: peak / bytes_per_s for name, peak in peaks.items()},
            bandwidth_bytes_per_s=bytes_per_s,
            launch_floor_us=0.6,
            source="measured",
            memory_bytes=facts.memory_bytes,
            cache_bytes=facts.last_level_bytes,
            bandwidth_by_bytes=(
                (32_768.0, threads * 1.3e11),
                (float(facts.l2_bytes), threads * 8e10),
                (268_435_456.0, bytes_per_s),
            ),
            fresh_bytes_per_s=4e9,
            compiled_call_us=25.0,
            compiled_call_backward_us=170.0,
        )
        write_calibration(
            Calibration(
                device,
                facts.identity,
                threads=threads,
                is_default=threads == usual,
                allowance=allowance(),
                dispatch_us=1.1,
            )
        )
