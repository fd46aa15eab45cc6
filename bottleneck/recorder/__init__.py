"""Finishes recordings and reports on them.

They are those of a run, of a block of a program, or of a run that was killed.
"""
