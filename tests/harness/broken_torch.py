"""Put on PYTHONPATH as `sitecustomize`: one thing that the harness relies on raises, as in another version of torch.

`BROKEN` is a name in the table of `torch_private`: with `HOW` as `lookup` the name itself cannot be had, with `use`
what stands under it raises when anything is done with it. Or it is a function of the harness, such as
`window.ProfilerWindow.start`: with `HOW` as `before` it raises at once, with `after` when its work is done. The file
`ASKED` appears when it was first asked for.
"""

import importlib
import os
from pathlib import Path
from typing import Any

from bottleneck.harness import torch_private

BROKEN, HOW = os.environ["BROKEN"], os.environ["HOW"]


def fail(*_: Any, **__: Any) -> Any:
    """Raises what no caller expects."""
    raise RuntimeError(f"another {BROKEN}")


class Other:
    """Stands for whatever the name meant; nothing can be done with it."""

    __call__ = __getattr__ = __iter__ = __bool__ = __int__ = __len__ = __getitem__ = __eq__ = __hash__ = fail


def break_private() -> None:
    """Breaks the name of torch."""
    look_up, lose = torch_private._get, torch_private._lose

    def get(thing: Any, name: str, path: str) -> Any:
        if path != BROKEN or name != BROKEN.rpartition(".")[2]:
            return look_up(thing, name, path)
        Path(os.environ["ASKED"]).touch()
        if HOW == "use":
            return Other()
        lose(path)
        return None

    torch_private._get = get


def break_function() -> None:
    """Breaks the function of the harness."""
    module, *owners, name = BROKEN.split(".")
    owner: Any = importlib.import_module(f"bottleneck.harness.{module}")
    for each in owners:
        owner = getattr(owner, each)
    works = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        Path(os.environ["ASKED"]).touch()
        if HOW == "after":
            works(*arguments, **options)
        fail()

    setattr(owner, name, call)


break_private() if BROKEN in torch_private.PRIVATE else break_function()
