"""Compares two analyses: matches their work and builds the rows, accounts and counters that changed."""
