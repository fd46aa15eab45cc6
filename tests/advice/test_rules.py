"""The table of rules holds every rule once."""

import importlib
import inspect
import pkgutil

from bottleneck import advice
from bottleneck.advice import RULES
from bottleneck.advice.drafts import Draft


def _rules_in_modules() -> set[str]:
    """Public functions of the package that take a case alone and may return a draft."""
    found = set()
    for each in pkgutil.iter_modules(advice.__path__):
        module = importlib.import_module(f"bottleneck.advice.{each.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            signature = inspect.signature(function)
            is_own = function.__module__ == module.__name__ and not name.startswith("_")
            if is_own and len(signature.parameters) == 1 and signature.return_annotation == Draft | None:
                found.add(f"{each.name}.{name}")
    return found


def test_every_rule_stands_in_the_table_once() -> None:
    listed = [f"{rule.__module__.rpartition('.')[2]}.{rule.__name__}" for rule in RULES]
    assert sorted(listed) == sorted(_rules_in_modules())


def test_the_search_finds_rules() -> None:
    assert {"host.host_sync", "compilation.other_backends"} <= _rules_in_modules()
