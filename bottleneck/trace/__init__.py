"""Trace stage: reads a trace file and links its events.

It reads files of any era into EVENTS, and links them to OPS, KERNELS and PLACES.
"""
