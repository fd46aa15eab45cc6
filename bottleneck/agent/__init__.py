"""Answers coding agents by the Model Context Protocol: the same answers as the commands, small and typed."""
