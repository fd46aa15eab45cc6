"""The version, apart from ``bottleneck/__init__.py`` so that asking for it can be noticed there."""

__version__ = "0.1.0"
