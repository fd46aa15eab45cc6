"""A program with planted faults, and what `bottleneck watch` says of it."""
