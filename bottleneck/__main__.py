"""Runs the command line as ``python -m bottleneck``."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The working folder, where a program's `random.py` or `torch.py` may lie. The `bottleneck` command has it not.
        del sys.path[0]
    from bottleneck.cli import main

    main()
