"""Gains and step times that others published, each with a program of its own, and what `verify --device` says of it."""
