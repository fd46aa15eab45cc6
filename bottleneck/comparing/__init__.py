"""Compares two cases: the change of the step by account, by module and op, adding up to it."""
