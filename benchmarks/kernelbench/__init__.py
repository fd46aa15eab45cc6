"""Prices of ``bottleneck.predict`` held against step times of 125 programs on real GPUs (KernelBench)."""
