"""Device stage: ceilings by device name, checked against the properties that the trace records."""
