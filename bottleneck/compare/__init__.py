"""Compares two analyses by their rows, accounts and counters that changed.

It matches their work first.
"""
