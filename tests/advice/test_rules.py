"""The table of rules holds every rule of every module once."""

import importlib
import inspect
import pkgutil
from collections.abc import Sequence

from bottleneck import advice
from bottleneck.advice import RULES, Rule
from bottleneck.advice.host import host_sync
from bottleneck.advice.ranking import Draft


def rules_in_modules() -> set[str]:
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


def mistakes_of(rules: Sequence[Rule]) -> set[str]:
    """Rules that are missing from a table or stand in it more than once."""
    listed = [f"{rule.__module__.rpartition('.')[2]}.{rule.__name__}" for rule in rules]
    return rules_in_modules() ^ set(listed) | {name for name in listed if listed.count(name) > 1}


def test_every_rule_stands_in_the_table_once() -> None:
    assert mistakes_of(RULES) == set()


def test_a_missing_rule_and_a_repeated_one_would_be_seen() -> None:
    assert mistakes_of([rule for rule in RULES if rule is not host_sync]) == {"host.host_sync"}
    assert mistakes_of([*RULES, host_sync]) == {"host.host_sync"}
