"""Measures the ceilings of this machine, which recordings made on it are judged by."""
