"""Runs the user's program and records it.

A supervisor starts the child process in which the program runs.
"""
