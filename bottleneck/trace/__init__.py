"""Trace stage: reads a trace file of any era into EVENTS and links them to OPS, KERNELS and PLACES."""
