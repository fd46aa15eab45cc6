"""Which of a device's peaks a piece of work is held against."""

from collections.abc import Mapping
from dataclasses import dataclass

from bottleneck.records import Device

# Matrix work by dtype: the first peak that the device has. Older parts do narrow types on wider units: a V100 has no
# bf16 tensor path and uses its fp32 lanes, an A100 widens fp8 to fp16. A CPU calibration measures no fp16: where a
# CPU has units for it, they are those for bf16.
MATRIX_PEAKS: Mapping[str, tuple[str, ...]] = {
    "fp64": ("fp64_tensor", "fp64_vector"),
    "fp32": ("fp32_matrix", "fp32_tensor", "tf32_tensor", "fp32_vector"),
    "tf32": ("tf32_tensor", "fp32_matrix", "fp32_tensor", "fp32_vector"),
    "bf16": ("bf16_tensor", "fp32_vector"),
    "fp16": ("fp16_tensor", "bf16_tensor", "fp16_vector", "fp32_vector"),
    "fp8": ("fp8_tensor", "fp16_tensor"),
    "int8": ("int8_tensor",),
    "fp4": ("fp4_tensor", "fp8_tensor", "fp16_tensor"),
}

# Vector work by dtype: the highest of these. Eager kernels widen half types to fp32, compiled ones may not; no table
# lists integer lanes, and none are faster than those for fp32.
VECTOR_PEAKS: Mapping[str, tuple[str, ...]] = {
    "fp64": ("fp64_vector",),
    "bf16": ("bf16_vector", "fp32_vector"),
    "fp16": ("fp16_vector", "fp32_vector"),
}
_FP32_LANES = ("fp32_vector",)


@dataclass(frozen=True)
class Peak:
    """A peak as an interval in FLOP/s, null when the device has none; ``guessed`` when no kernel name confirms it."""

    low: float | None
    high: float | None
    guessed: bool = False


def matrix_peak(device: Device, engine: str | None, kernel_dtype: str | None, op_dtype: str | None) -> Peak:
    """The peak for matrix FLOPs. The kernel's name decides where it tells; the op's dtype otherwise.

    fp32 without a telling name may run on tensor cores as tf32 or not: both ends are kept. On a CPU the op tells all.
    """
    dtype = kernel_dtype or op_dtype or "fp32"
    if engine == "vector":
        return _exactly(vector_peak(device, dtype))
    if engine == "matrix" or device.kind == "cpu":
        return _exactly(_first(device, MATRIX_PEAKS.get(dtype, ())))
    if dtype == "fp32":
        slow = _first(device, ("fp32_matrix", "fp32_vector"))
        fast = device.peaks_flops_per_s.get("tf32_tensor", slow)
        return Peak(slow if slow is not None else fast, fast, guessed=slow != fast)
    found = _first(device, MATRIX_PEAKS.get(dtype, ()))
    return Peak(found, found, guessed=True)


def vector_peak(device: Device, dtype: str | None) -> float | None:
    """The peak in FLOP/s for pointwise arithmetic in a dtype; null when the device has none."""
    known = [
        device.peaks_flops_per_s[key]
        for key in VECTOR_PEAKS.get(dtype or "fp32", _FP32_LANES)
        if key in device.peaks_flops_per_s
    ]
    return max(known, default=None)


def _exactly(value: float | None) -> Peak:
    return Peak(value, value)


def _first(device: Device, keys: tuple[str, ...]) -> float | None:
    return next((device.peaks_flops_per_s[key] for key in keys if key in device.peaks_flops_per_s), None)
