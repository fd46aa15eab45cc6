"""Entry point of the process that holds variants of one step.

Started by its path (`python variants_child.py PROGRAM`), so that no folder of the user's can shadow this package.
"""

import os
import sys


def _import_our_package() -> None:
    """Makes `bottleneck` importable once, from where this file lies, and leaves sys.path as Python made it."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - before anything is imported
    root = os.path.dirname(os.path.dirname(here))  # noqa: PTH120
    if not sys.flags.safe_path:
        del sys.path[0]
    sys.path.insert(0, root)
    try:
        import bottleneck.experiment.variants  # noqa: F401
    finally:
        sys.path.remove(root)


if __name__ == "__main__":
    _import_our_package()
    from bottleneck.experiment.interruptible_script import serve_script
    from bottleneck.experiment.interventions import CHANGES
    from bottleneck.experiment.program import Program
    from bottleneck.experiment.variants import serve

    if Program.from_json(sys.argv[1]).form == "script":
        serve_script(sys.argv[1])
    serve(sys.argv[1], CHANGES)
