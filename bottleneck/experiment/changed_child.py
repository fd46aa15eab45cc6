"""Entry point of the process that records a step with changes: the harness's child with the changes at hand.

Started by its path (`python changed_child.py PLAN ARGUMENTS…`): no folder of the user's can shadow this package.
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
        import bottleneck.experiment.interventions
        import bottleneck.harness.run_child  # noqa: F401
    finally:
        sys.path.remove(root)


if __name__ == "__main__":
    _import_our_package()
    from bottleneck.experiment.interventions import changed_step
    from bottleneck.harness.run_child import run_child

    run_child(sys.argv[1], sys.argv[2:], changed_step)
