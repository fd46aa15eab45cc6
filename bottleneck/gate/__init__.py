"""Gates workloads: counts and times their steps and decides a verdict."""
