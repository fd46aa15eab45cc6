"""Predicts the time of a step on a device that is not here.

It does so from the step's op calls (StepCalls).
"""
