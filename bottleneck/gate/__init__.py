"""Gates a workload: counts its steps, compares with lock-files, budgets and the base's time, and decides a verdict."""
