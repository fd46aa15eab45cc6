"""Finishes recordings, of a run, a block of a program or a killed run, and reports on them."""
