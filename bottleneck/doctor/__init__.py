"""Checks a machine or a trace, beside the data path.

Facts are gathered, then judged check by check.
"""
