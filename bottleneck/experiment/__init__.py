"""Measures a program against changed copies of it, in turns.

It serves `verify` and `sweep`, and keeps the score of predictions.
"""
