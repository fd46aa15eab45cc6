"""What torch says about itself and its devices, without ever waking a device that the program did not wake."""

from collections.abc import Callable
from typing import Any

_FIELDS = (
    "name",
    "total_memory",
    "multi_processor_count",
    "major",
    "minor",
    "clock_rate",
    "memory_clock_rate",
    "memory_bus_width",
    "L2_cache_size",
    "gcnArchName",
    "uuid",
)


def describe_torch(torch: Any) -> dict[str, Any]:
    """Fields of the notes: version, threads, and the facts of each GPU that the program can see."""
    return {
        "framework": f"PyTorch {torch.__version__}",
        "threads": torch.get_num_threads(),
        "device_facts": tuple(_device_facts(torch)),
        "libraries": _libraries(torch),
    }


def _libraries(torch: Any) -> dict[str, str | int | bool]:
    """Versions and abilities of what torch computes with; those of a GPU where the program uses one."""
    facts: dict[str, Any] = {
        "isa": _asked(lambda: str(torch.backends.cpu.get_cpu_capability())),
        "onednn": _asked(lambda: torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),
        "mkl": _asked(lambda: bool(torch.backends.mkl.is_available())),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        facts["cuda"], facts["hip"] = torch.version.cuda, getattr(torch.version, "hip", None)
        facts["cudnn"] = _asked(lambda: int(torch.backends.cudnn.version()))
    return {name: value for name, value in facts.items() if isinstance(value, str | int | bool)}


def _asked(question: Callable[[], Any]) -> Any:
    """The answer, null where this version of torch has none."""
    try:
        return question()
    except (AttributeError, RuntimeError, TypeError):
        return None


def _device_facts(torch: Any) -> list[dict[str, str | int | float | None]]:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return []
    return [_facts(torch.cuda.get_device_properties(index), index) for index in range(torch.cuda.device_count())]


def _facts(properties: Any, index: int) -> dict[str, str | int | float | None]:
    facts: dict[str, str | int | float | None] = {"index": index}
    for name in _FIELDS:
        value = getattr(properties, name, None)
        facts[name] = value if isinstance(value, str | int | float) or value is None else str(value)
    return facts
