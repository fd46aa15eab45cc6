"""Measures pieces of a recorded step alone, as they are and changed: which ones, how they are made, and their turns."""
