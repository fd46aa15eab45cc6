"""Predicts the time of a step on a device that is not here, from its op calls (StepCalls)."""
