"""Stage 1: from a file of any era to EVENTS, then to OPS and KERNELS (read, steps, kernels, link)."""
