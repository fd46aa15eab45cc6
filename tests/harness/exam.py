"""Small scripts that a plain interpreter and `bottleneck run` must treat alike."""

SCRIPTS = {
    "environment": """
        import os, sys
        print(sys.argv, __name__, __file__, __package__, __spec__, __cached__, type(__loader__).__name__)
        print(sorted(globals()), sys.modules["__main__"].__dict__ is globals())
        print(sys.path[0] == os.path.dirname(os.path.abspath(__file__)), len(sys.path), sys.flags)
        print(os.getcwd(), sorted(name for name in os.environ if "KINETO" in name or "BOTTLENECK" in name))
    """,
    "ends_well": "print('fine')",
    "starts_a_session": "import os; os.setsid(); print(os.getsid(0) == os.getpid() == os.getpgrp())",
    "exits_with_none": "import sys; sys.exit()",
    "exits_with_3": "import sys; print('x'); sys.exit(3)",
    "exits_with_257": "import sys; sys.exit(257)",
    "exits_with_message": "import sys; sys.exit('that is wrong')",
    "raises": """
        def inner(value):
            return 1 / value

        def outer():
            try:
                inner(0)
            except ZeroDivisionError as error:
                raise ValueError("outer") from error

        outer()
    """,
    "has_a_syntax_error": "def broken(:\n    pass",
    "hooks_exceptions": """
        import sys

        def hook(kind, error, trace):
            print("hooked", kind.__name__, error, trace.tb_frame.f_code.co_name)

        sys.excepthook = hook
        raise KeyError("k")
    """,
    "hook_raises": """
        import sys

        def hook(kind, error, trace):
            raise RuntimeError("the hook is broken")

        sys.excepthook = hook
        raise KeyError("k")
    """,
    "hook_exits": """
        import sys

        def hook(kind, error, trace):
            sys.exit(9)

        sys.excepthook = hook
        raise KeyError("k")
    """,
    "says_goodbye": """
        import atexit, sys
        value = "kept"
        atexit.register(lambda: print("bye", value, sys.modules["__main__"].value))
        print("hello")
    """,
    "thread_outlives_main": """
        import threading
        gate = threading.Event()
        thread = threading.Thread(target=lambda: (gate.wait(), print("thread")))
        thread.start()
        print("main")
        gate.set()
    """,
    "pools_by_spawn": """
        import multiprocessing

        class Box:
            def __init__(self, value):
                self.value = value

        def double(box):
            return Box(box.value * 2)

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print([box.value for box in pool.map(double, [Box(1), Box(2)])])
    """,
    "pools_by_fork": """
        import multiprocessing

        def double(value):
            return 2 * value

        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
    """,
    "forks_and_exits": """
        import os, sys
        child = os.fork()
        if child == 0:
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """,
    "fork_returns": """
        import os
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        print("parent" if child else "child", flush=True)
    """,
    "reads_stdin": "import sys; print(repr(input()), repr(sys.stdin.read()))",
    "leaves_at_once": "import os; print('unflushed', flush=True); os._exit(6)",
    "kills_itself": "import os, signal; print('x', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "terminates_itself": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "aborts": "import os; os.abort()",
    "interrupts_itself": "import os, signal; os.kill(os.getpid(), signal.SIGINT); input()",
    "writes_bytes": "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4000)",
    "closes_stdout": "import sys; print('x'); sys.stdout.close()",
    "warns": "import warnings; warnings.warn('careful'); warnings.warn('old', DeprecationWarning)",
    "pickles": """
        import pickle

        class Point:
            pass

        print(type(pickle.loads(pickle.dumps(Point()))) is Point)
    """,
    "changes_directory": """
        import os, tempfile
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        os.rmdir(folder)
        print("gone")
    """,
    "imports_its_neighbour": "import neighbour; print(neighbour.VALUE)",
    "reads_signals": """
        import signal
        print([signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)])
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    """,
    "runs_a_loop": """
        import asyncio

        async def work(value):
            await asyncio.sleep(0)
            return value

        async def main():
            print(await asyncio.gather(*(work(value) for value in range(3))))
            asyncio.get_running_loop().call_soon(1 / 0 if False else lambda: None)
            raise TimeoutError("in a task")

        asyncio.run(main())
    """,
    "explains_itself": """
        import argparse
        parser = argparse.ArgumentParser(description="theirs")
        parser.add_argument("-o", "--output")
        parser.parse_args()
    """,
    "starts_children": """
        import subprocess, sys
        code = "import sys; print(sorted(m for m in sys.modules if 'bottleneck' in m)); sys.exit(4)"
        done = subprocess.run([sys.executable, "-c", code])
        print(done.returncode, flush=True)
        subprocess.run("echo from a shell; exit 5", shell=True, check=True)
    """,
    "becomes_another": """
        import os, sys
        print("before", flush=True)
        os.execv(sys.executable, [sys.executable, "-c", "import sys; print(sys.argv); sys.exit(11)", "x"])
    """,
    "pools_by_forkserver": """
        import multiprocessing

        class Box:
            def __init__(self, value):
                self.value = value

        if __name__ == "__main__":
            context = multiprocessing.get_context("forkserver")
            with context.Pool(1) as pool:
                print([box.value for box in pool.map(Box, [1, 2])])
    """,
    "handles_signals": """
        import os, signal

        def handler(number, frame):
            print("got", signal.Signals(number).name, frame.f_code.co_name)

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM):
            signal.signal(number, handler)
            os.kill(os.getpid(), number)
    """,
    "replaces_stdout": """
        import contextlib, io, sys
        buffer = io.StringIO()
        with contextlib.redirect_stdout(buffer):
            print("inside")
        print(repr(buffer.getvalue()), sys.stdout is sys.__stdout__)
        sys.stdout = sys.stderr
        print("on the other")
    """,
    "finalizes": """
        import atexit, weakref

        class Noisy:
            def __del__(self):
                print("deleted")

        kept, gone = Noisy(), Noisy()
        weakref.finalize(kept, print, "finalized")
        atexit.register(print, "first registered")
        atexit.register(print, "last registered")
        del gone
    """,
    "leaves_a_daemon": """
        import threading
        gate = threading.Event()
        threading.Thread(target=gate.wait, daemon=True).start()
        print(threading.active_count(), threading.current_thread().name)
    """,
    "traces_itself": """
        import sys
        seen = []
        sys.setprofile(lambda frame, event, argument: seen.append((event, frame.f_code.co_name)))

        def inner():
            return 1

        inner()
        sys.setprofile(None)
        sys.settrace(lambda frame, event, argument: seen.append((event, frame.f_lineno)))
        inner()
        sys.settrace(None)
        print(seen, sys.getprofile(), sys.gettrace())
    """,
    "turns_warnings_into_errors": """
        import warnings
        warnings.simplefilter("error")
        print(len(warnings.filters))
        warnings.warn("now an error")
    """,
    "asks_for_the_locale": """
        import locale, sys
        print(locale.setlocale(locale.LC_ALL, ""), locale.getpreferredencoding(), sys.getfilesystemencoding())
        print(sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors, sys.stdout.line_buffering)
    """,
    "fails_in_a_thread": """
        import threading
        thread = threading.Thread(target=lambda: 1 / 0, name="worker")
        thread.start()
        thread.join()
    """,
    "fails_where_nobody_can_raise": """
        import sys
        sys.unraisablehook = lambda unraisable: print("unraisable", unraisable.exc_value, file=sys.stderr)

        class Broken:
            def __del__(self):
                raise ValueError("in a finalizer")

        Broken()
    """,
    "recurses_too_deep": """
        import sys

        def deeper(depth):
            return deeper(depth + 1)

        print(sys.getrecursionlimit())
        try:
            deeper(0)
        except RecursionError as error:
            print(error)
    """,
    "raises_a_group": "raise ExceptionGroup('two', [ValueError(1), TypeError(2)])",
    "reads_its_own_source": """
        import inspect, linecache, typing

        class Typed:
            value: "int"

        def shown():
            return 1

        print(inspect.getsource(shown), typing.get_type_hints(Typed), inspect.getmodule(shown).__name__)
        print(linecache.getline(__file__, 1), __annotations__ == {})
    """,
    "writes_ten_megabytes": "import sys; sys.stdout.write('x\\n' * 5_000_000); sys.stderr.write('y' * 999_999)",
    "faults": "import ctypes; print('x', flush=True); ctypes.string_at(0)",
    "limits_itself": """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        files = [open(__file__) for _ in range(40)]
        print(len(files), resource.getrlimit(resource.RLIMIT_CORE))
    """,
    "looks_at_its_process": """
        import os, threading
        print(sorted(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))
        print([thread.name for thread in threading.enumerate()], os.umask(0o22), os.nice(0))
    """,
}

PACKAGE = {
    "__init__.py": "",
    "__main__.py": "print('package', __name__, __package__)",
    "shared.py": "VALUE = 42",
    "tool.py": """
        import pickle, sys
        from .shared import VALUE

        class Kept:
            pass

        print(VALUE, __name__, __package__, __spec__.name, sys.argv, sys.path[0])
        print(type(pickle.loads(pickle.dumps(Kept()))) is Kept)
    """,
    "raises.py": "raise LookupError('from a module')",
}
