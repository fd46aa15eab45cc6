"""The verdict of the gate: budgets, lock-files and statistics, without running anything."""
