"""Compares two analyses: which accounts, ops and modules changed, and why."""
