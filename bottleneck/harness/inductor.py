"""Has Inductor name its C++ kernels in the trace, and notes what each of them computes while it is generated.

It changes one setting of the program's compiler (`cpp.enable_kernel_profile`: a scope around each kernel, whose loops
and arithmetic stay as they were) and watches three of its functions. Inductor keeps what it compiles under a key that
includes its settings, so the first measured run of a program compiles anew. The notes ride along in what it keeps: a
later run, which compiles nothing, has them too.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import wraps
from typing import Any

from bottleneck.compiled import COMPILED_SCHEMA, Compiled, CompiledKernel, as_text
from bottleneck.harness.kernels import describe_kernel

# Where notes hang on the objects of the compiler; as plain text, which any process can unpickle.
_NOTES = "bottleneck_notes"


class Inductor:
    """The kernels of every graph that this process has compiled or loaded; ``problem`` says why some are missing.

    ``is_on`` turns true when the program's compiler has been told to name its kernels.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.problem: str | None = None
        self._kernels: dict[str, Any] = {}
        self._watched: set[str] = set()
        self._give_back: Callable[[], None] | None = None

    def watchers(self) -> dict[str, Callable[[Any], None]]:
        """What to call once a module of the compiler is loaded, by the module's name."""
        return {
            "torch._inductor.config": self._careful(self._name_kernels),
            "torch._inductor.codegen.cpp": self._careful(self._watch_generation),
            "torch._inductor.output_code": self._careful(self._watch_graphs),
        }

    def resume(self) -> None:
        """Does the same to what the program has loaded already, as after ``rest``."""
        for name, watch in self.watchers().items():
            if name in sys.modules and name not in self._watched:
                watch(sys.modules[name])

    def rest(self) -> None:
        """Gives the program its own setting back; what it has compiled meanwhile keeps its names."""
        give_back, self._give_back, self.is_on = self._give_back, None, False
        if give_back is not None:
            give_back()

    @property
    def has_something_to_tell(self) -> bool:
        """Whether the program compiled anything, or could not be watched doing so."""
        return bool(self._kernels) or self.problem is not None

    def as_text(self) -> str:
        """The content of the file that lies beside the trace."""
        return as_text(Compiled(tuple(self._kernels.values()), self.problem))

    def _careful(self, work: Callable[..., None]) -> Callable[..., None]:
        """The same work, without ever disturbing the program in whose middle it is done."""

        def call(*arguments: Any) -> None:
            try:
                work(*arguments)
            except Exception as exc:  # another version of the compiler
                self.problem = f"this version of torch.compile could not be watched: {type(exc).__name__}: {exc}"

        return call

    def _name_kernels(self, config: Any) -> None:
        import torch

        # A GPU program's C++ kernels are few, and compiling all of its kernels anew can take long.
        if not torch.cuda.is_available():
            usual = config.cpp.enable_kernel_profile
            self._give_back = lambda: setattr(config.cpp, "enable_kernel_profile", usual)
            config.cpp.enable_kernel_profile = True
            self.is_on = True

    def _watch_generation(self, cpp: Any) -> None:
        self._watched.add("torch._inductor.codegen.cpp")
        scheduling = cpp.CppScheduling
        define, note = scheduling.define_kernel, self._careful(self._note_kernel)

        @wraps(define)
        def define_kernel(this: Any, source: str, nodes: Sequence[Any], kernel_args: Any = None) -> Any:
            name = define(this, source, nodes, kernel_args)
            note(cpp.V.graph, name, nodes, this.kernel_group.args if kernel_args is None else kernel_args)
            return name

        scheduling.define_kernel = define_kernel

    def _note_kernel(self, graph: Any, name: str, nodes: Sequence[Any], arguments: Any) -> None:
        """Hangs the description of one kernel on the graph that is being compiled."""
        notes = graph.__dict__.setdefault(_NOTES, {})
        if self.is_on and name not in notes:
            notes[name] = asdict(describe_kernel(graph, name, nodes, arguments))

    def _watch_graphs(self, output_code: Any) -> None:
        self._watched.add("torch._inductor.output_code")
        kind = output_code.CompiledFxGraph
        make, finish = kind.__init__, kind.post_compile
        hand_on, collect = self._careful(_hand_on), self._careful(self._collect)

        @wraps(make)
        def make_and_note(this: Any, *arguments: Any, **keywords: Any) -> None:
            make(this, *arguments, **keywords)
            hand_on(this, (*arguments, *keywords.values()))

        @wraps(finish)
        def collect_and_finish(this: Any, *arguments: Any, **keywords: Any) -> Any:
            collect(this)
            return finish(this, *arguments, **keywords)

        kind.__init__, kind.post_compile = make_and_note, collect_and_finish

    def _collect(self, compiled: Any) -> None:
        """Takes over the notes of a graph that was just compiled, or loaded as it was compiled by an earlier process.

        A kernel's name holds the number of its graph in the process that compiled it, so that two may share one.
        """
        notes = json.loads(getattr(compiled, _NOTES, "{}"))
        if notes.get("schema") != COMPILED_SCHEMA:
            return
        for kernel in notes["kernels"]:
            name = kernel["name"]
            if self._kernels.setdefault(name, kernel) != kernel:
                reason = "two compiled graphs have a kernel of this name"
                self._kernels[name] = asdict(CompiledKernel(name, reason=reason))


def _hand_on(compiled: Any, made_from: Sequence[Any]) -> None:
    """Hangs the notes of the graph that it was made from on what the compiler keeps."""
    for source in made_from:
        notes = getattr(source, "__dict__", {}).get(_NOTES)
        if notes is not None:
            setattr(compiled, _NOTES, json.dumps({"schema": COMPILED_SCHEMA, "kernels": [*notes.values()]}))
