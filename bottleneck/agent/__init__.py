"""Answers coding agents by the Model Context Protocol.

The answers are those of the commands, small and typed.
"""
