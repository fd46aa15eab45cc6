"""Runs the command line as ``python -m bottleneck``."""

from bottleneck.cli import main

if __name__ == "__main__":
    main()
