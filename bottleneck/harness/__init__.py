"""Runs the user's program and records it: a supervisor, and the child process in which the program runs."""
