"""Records where people write code: cells of notebooks, loops of training libraries.

Each module works on `bottleneck.record` alone, and its library is imported only where it is used.
"""
