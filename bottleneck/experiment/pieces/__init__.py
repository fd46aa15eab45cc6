"""Measures pieces of a recorded step alone, as they are and changed.

It chooses the pieces, makes them and takes their turns.
"""
