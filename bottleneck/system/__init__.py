"""Files, kept records, temporary memory and worker processes for all stages.

It knows no record of theirs.
"""
