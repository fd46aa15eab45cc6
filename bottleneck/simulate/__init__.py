"""A simulator of the step: the recorded work as a graph, replayed as it was or with changes."""
