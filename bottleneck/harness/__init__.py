"""Runs and measures the user's program; the only place that imports torch or NVML."""
