"""The process that starts the ranks: torchrun itself, with our child in place of the script that each rank runs.

Started by its path (`python launcher.py RANKS KIND CHILD ENTRY PLAN TARGET ARGUMENTS…`). What torchrun says, sets and
does is its own, and it calls the program by the user's target.
"""

import os
import sys
from typing import Any


def launch(ranks: str, module: bool, child: list[str], program: list[str]) -> None:
    """Runs torchrun for the program; returns, raises and exits as it does. ``child`` starts our process."""
    from torch.distributed import run
    from torch.distributed.launcher import api

    plain = run.config_from_args

    def config_from_args(args: Any) -> Any:
        config, command, arguments = plain(args)
        # Of `-u [-m] TARGET ARGUMENTS…` the last two are replaced; `-u` is torchrun's own.
        return config, command, [arguments[0], *child, *program[1:]]

    run.config_from_args = config_from_args
    if hasattr(api, "_get_entrypoint_name"):
        api._get_entrypoint_name = lambda *_: program[0]
    run.main([f"--nproc-per-node={ranks}", *(["-m"] if module else []), *program])


if __name__ == "__main__":
    # The folder of this file, which must shadow nothing.
    if not sys.flags.safe_path:
        del sys.path[0]
    # As torchrun calls itself in messages.
    sys.argv[0] = os.path.join(os.path.dirname(sys.executable), "torchrun")  # noqa: PTH118, PTH120
    launch(sys.argv[1], sys.argv[2] == "module", sys.argv[3:6], sys.argv[6:])
