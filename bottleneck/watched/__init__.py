"""Reads the log of a whole run.

Says what slow steps have in common, and what grows.
"""
