"""A whole run, step by step: its log, what slow steps have in common, and what drifts."""
