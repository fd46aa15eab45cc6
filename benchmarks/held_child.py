"""The child of `bottleneck run` with its unprofiled phase held open for as many steps as HELD_STEPS says.

Started by its path in place of bottleneck/harness/child.py; nothing else differs.
"""

import math
import os
import sys

if __name__ == "__main__":
    from bottleneck.harness import script
    from bottleneck.harness.run_child import run_child

    del sys.path[0]
    script.TIMED_STEPS, script.TIMED_SECONDS = int(os.environ["HELD_STEPS"]), math.inf
    run_child(*sys.argv[1:])
