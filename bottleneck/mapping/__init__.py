"""Maps tasks to worker processes, and keeps what is done.

The workers are of this machine or of a cluster. Nothing here knows of traces.
"""
