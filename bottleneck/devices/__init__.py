"""Peaks by device name, checked against what the trace says of the device."""
