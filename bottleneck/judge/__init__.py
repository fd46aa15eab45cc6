"""Judges a patch by its effect on time, results and counts."""
