"""Formats of the gate's result for CI servers."""
