"""Counts what the steps of a case did: from tables to one whole number per counter."""
