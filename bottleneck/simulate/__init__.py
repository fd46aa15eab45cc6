"""Simulates the step.

The recorded work is a graph, replayed as it was or with changes.
"""
