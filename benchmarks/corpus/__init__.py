"""A corpus of small workloads on which predictions are compared with measurements."""
