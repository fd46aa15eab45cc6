"""Runs a file or module exactly as `python` does.

It gets a fresh __main__, the same paths, tracebacks and exit status.
"""

import builtins
import os
import runpy
import sys
import traceback
from collections.abc import Sequence, Set
from importlib.machinery import FrozenImporter, PathFinder, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

# With os.path throughout: it says what the interpreter's own C code does to a path, which pathlib would normalise.
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120
_LONGEST_ERROR = 300
# The modules that `python FILE` has loaded before the file; null in a process that is not to look like it.
_at_start: Set[str] | None = None
# When the first line of ours ran in this process, by `time.perf_counter_ns`; null in a process that others started.
_began_ns: int | None = None


def note_start(names: Set[str], began_ns: int) -> None:
    """Notes what plain Python has loaded at a start, and when ours began."""
    global _at_start, _began_ns
    _at_start, _began_ns = names, began_ns


def began_ns() -> int | None:
    """When the first line of ours ran in this process."""
    return _began_ns


def run_file(path: str, arguments: Sequence[str]) -> None:
    """Runs a script as `python path arguments` would; what the script raises comes through."""
    sys.argv = [path, *arguments]
    # Python does not normalise the path of the script, it only makes it absolute.
    absolute = _absolute(path)
    if os.path.isdir(path) or _is_archive(path):  # noqa: PTH112
        sys.path.insert(0, absolute)
        _leave_names_to(absolute)
        _fresh_main()
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    _put_on_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    module = _fresh_main()
    module.__dict__.update(
        __file__=absolute, __cached__=None, __loader__=SourceFileLoader("__main__", absolute), __annotations__={}
    )
    exec(_compile(path, absolute), module.__dict__)


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Runs a module as `python -m name arguments` would."""
    sys.argv = ["-m", *arguments]
    _put_on_path(os.getcwd())  # noqa: PTH109
    _fresh_main()
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # what `python -m` itself calls


def load_file(path: str, arguments: Sequence[str]) -> ModuleType:
    """Loads a workload file as a module under its own name.

    `if __name__ == "__main__"` stays out of it.
    """
    sys.argv = [path, *arguments]
    directory, file_name = os.path.split(os.path.realpath(path))
    _put_on_path(directory)
    absolute = _absolute(path)
    stem = file_name.removesuffix(".py")
    # Classes pickle to worker processes by module name, so it should be one that they can import.
    name = stem if stem.isidentifier() and stem not in sys.modules else f"workload_of_{stem}"
    module = ModuleType(name)
    module.__dict__.update(__file__=absolute, __loader__=SourceFileLoader(name, absolute), __builtins__=builtins)
    _fresh_main()
    sys.modules[name] = module
    exec(_compile(path, absolute), module.__dict__)
    return module


def exit_status(code: object) -> int:
    """The status that a process has which leaves by `sys.exit(code)`."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def leave_at_once(status: int = 0) -> NoReturn:
    """Ends this process without what Python does at its end.

    Threads, workers and exit handlers of the program are skipped.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def describe_error(error: BaseException) -> str:
    """The error in one line, with the next one where a colon announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # torch's compiler wraps the error of a backend in "backend='…' raised:", which alone says nothing.
    text = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return f"{type(error).__name__}: {text}"[:_LONGEST_ERROR] if text else type(error).__name__


# What torch, Python and the system say where memory is short: torch has a type of error for some devices only.
_NO_MEMORY = ("OutOfMemoryError", "out of memory", "MemoryError", "can't allocate memory")


def says_out_of_memory(text: str) -> bool:
    """Tells whether a program's last words are about a lack of memory.

    They may be those of torch, Python or the system.
    """
    return any(words in text for words in _NO_MEMORY)


def show_only_their_frames() -> None:
    """Makes the last traceback start in the user's code.

    Replaces the hook that is about to be called.
    """
    theirs = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        sys.excepthook = theirs
        trace = _without_our_frames(trace)
        sys.last_traceback = trace
        error.__traceback__ = trace
        try:
            theirs(kind, error, trace)
        except SystemExit:
            raise
        except BaseException as failure:
            sys.stderr.write("Error in sys.excepthook:\n")
            _print(failure, _without_our_frames(failure.__traceback__))
            sys.stderr.write("\nOriginal exception was:\n")
            _print(error, trace)

    sys.excepthook = hook


def _print(error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(type(error), error, trace)


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Gives the traceback without our frames.

    Frames of an import that is ours on the way are left out too: Python hides these.
    """
    shown: list[TracebackType] = []
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_OURS):
            shown.append(trace)
        else:
            while shown and shown[-1].tb_frame.f_code.co_filename.startswith("<frozen importlib."):
                shown.pop()
        trace = trace.tb_next
    for entry, following in zip(shown, [*shown[1:], None], strict=False):
        entry.tb_next = following
    return shown[0] if shown else None


def _put_on_path(directory: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, directory)
        _leave_names_to(directory)


def _leave_names_to(directory: str) -> None:
    """Lets a program import modules whose names we have loaded before it.

    Our own modules are among them.

    Ours go on, no longer found by their names: no module of this package imports another at run time. Many a program
    has a `random.py` beside it, and a block of a residual network is called `bottleneck`.
    """
    own = __name__.partition(".")[0]
    names = {name.partition(".")[0] for name in sys.modules}
    shadowed = {name for name in names - (_at_start or names - {own}) if _is_shadowed(name, directory)}
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] in shadowed]:
        del sys.modules[loaded]


def _is_shadowed(name: str, directory: str) -> bool:
    """Tells whether plain Python finds another module of this name there.

    The directory is the first on its path.
    """
    if name in sys.builtin_module_names or FrozenImporter.find_spec(name) is not None:
        return False
    spec = PathFinder.find_spec(name, [directory])
    if spec is None or spec.origin is None or spec.origin.startswith(_OURS):
        return False
    loaded = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    return loaded is None or os.path.realpath(spec.origin) != os.path.realpath(loaded)


def _absolute(path: str) -> str:
    """Makes the path absolute.

    Python leaves it as it is where the working folder is gone.
    """
    try:
        return os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118
    except OSError:
        return path


def _is_archive(path: str) -> bool:
    import zipimport

    try:
        zipimport.zipimporter(path)
    except (zipimport.ZipImportError, OSError):
        return False
    return True


def _compile(path: str, absolute: str) -> CodeType:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            source = file.read()
    except OSError as exc:
        sys.stderr.write(f"{sys.executable}: can't open file {absolute!r}: [Errno {exc.errno}] {exc.strerror}\n")
        sys.exit(2)
    return compile(source, absolute, "exec", dont_inherit=True)


def _fresh_main() -> ModuleType:
    """An empty __main__; it stays in sys.modules, for pickling and for callbacks at exit."""
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return module
