"""Runs changes and sweeps against the original: takes turns, judges, and keeps the score of the predictions."""
