"""Python that has torch loaded and forks processes that start as `python SCRIPT` does.

Importing torch is most of what a short recording costs. tests/forks.py starts this once, with this folder alone on
PYTHONPATH, and asks for processes. Each gets the words, the environment, the folder and the streams of its request; it
has no torch in sys.modules, and goes on where Python was: with the `sitecustomize` of dptune, then with the script.
There `import torch` is an import like any other, whose end is what the one here ended with; so are those of dptune's
modules, which take 0.2 s where they are made anew. What C++ libraries take apart at the end of a process stays whole,
0.2 s, as in every child that a recorded script forks; so do modules (without_compiler/).
"""

import _testinternalcapi
import ast
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import resource
import socket
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SERVER = "TESTS_FORK_SERVER"  # the socket over which requests come
LONGEST = 1 << 18  # bytes of a request
# What each recorded process imports of dptune, with what these import; and how a module asks the process at its import.
RECORDS = ("start", "applying.seeding", "record.recorder")
ASKS = {"cwd", "environ", "getcwd", "getpid"}


class _Loaded:
    """Finds torch, and loads it by giving back what its import left."""

    def __init__(self):
        names = [name for name in sys.modules if name == "torch" or name.startswith("torch.")]
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._spec = self._modules["torch"].__spec__

    def find_spec(self, name, path=None, target=None):
        """Answer for `torch` alone."""
        if name != "torch":
            return None
        folders = self._spec.submodule_search_locations
        return importlib.util.spec_from_file_location(
            name, self._spec.origin, loader=self, submodule_search_locations=folders
        )

    def create_module(self, spec):
        """The module that was loaded."""
        return self._modules[spec.name]

    def exec_module(self, module):
        """Everything that importing it imported is there again."""
        module.__spec__ = self._spec
        module.default_generator.seed()
        sys.modules.update(self._modules)


class _Kept:
    """Finds modules of dptune, and loads them by giving back what their import left: no class is made again.

    What a module imports is imported again, so that the same modules are there as where Python is started, and what it
    asks of the process is asked again. The package itself is an import like any other: where it is depends on who asks.
    """

    def __init__(self):
        torchs = _names_of("torch")
        for name in RECORDS:
            importlib.import_module(f"dptune.capture.injected.{name}")
        assert _names_of("torch") == torchs, "a script would find more of torch than there is where Python is started"
        modules = {name: sys.modules.pop(name) for name in _names_of("dptune")}
        for name, module in modules.items():
            package, _, part = name.rpartition(".")
            if vars(modules.get(package, object)).get(part) is module:
                delattr(modules[package], part)  # else `from package import part` would import nothing
        del modules["dptune"]
        self._modules = {name: (module, module.__spec__, *_to_run_again(module)) for name, module in modules.items()}
        self._folders = {name: _folder_of(module.__spec__) for name, module in modules.items()}

    def find_spec(self, name, path=None, target=None):
        """Answer for a module that was loaded from one of these folders."""
        if name not in self._modules or self._folders[name] not in (path or ()):
            return None
        _, spec, *_ = self._modules[name]
        found = importlib.util.spec_from_loader(name, self, origin=spec.origin, is_package=False)
        found.submodule_search_locations = spec.submodule_search_locations
        return found

    def create_module(self, spec):
        """The module that was loaded."""
        return self._modules[spec.name][0]

    def exec_module(self, module):
        """What it imports is there again."""
        _, module.__spec__, code, names = self._modules[module.__name__]
        exec(code, vars(module))
        vars(module).update(names)  # a function may have the name of a module in the package, which was imported before


def _folder_of(spec):
    """Where its package is."""
    return str(Path(spec.origin).parents[spec.submodule_search_locations is not None])


def _names_of(package):
    return [name for name in sys.modules if name == package or name.startswith(f"{package}.")]


def _to_run_again(module):
    """The statements of a module that import, or assign what they ask of the process, and what else it holds."""
    source = Path(module.__file__).read_text(encoding="utf-8")
    tree = ast.parse(source)
    tree.body = [statement for statement in tree.body if _is_to_run_again(statement)]
    asked = {target.id for target in ast.walk(tree) if isinstance(target, ast.Name) and type(target.ctx) is ast.Store}
    names = {name: held for name, held in vars(module).items() if name not in asked and not name.startswith("__")}
    return compile(tree, module.__file__, "exec"), names


def _is_to_run_again(statement):
    inner = list(ast.walk(statement))
    if isinstance(statement, (ast.If, ast.Try)):
        return any(isinstance(each, (ast.Import, ast.ImportFrom)) for each in inner)
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return any(isinstance(each, ast.Attribute) and each.attr in ASKS for each in inner)
    return isinstance(statement, (ast.Import, ast.ImportFrom))


class _Fork(BaseException):
    """Raised in a forked process, out of what its parent was doing."""

    def __init__(self, words, environment, folder=".", limits=(), streams=()):
        super().__init__()
        self._words, self._environment, self._folder = words, environment, folder
        self._limits, self._streams = limits, streams

    def start(self):
        """Be like Python that has started with these words, before its `sitecustomize`."""
        for number, stream in enumerate(self._streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(self._folder)
        for number, limit in self._limits:
            resource.setrlimit(number, tuple(limit))
        os.environ.clear()
        os.environ.update(self._environment)
        unbuffered = self._words[0] == "-u"
        for stream in (sys.stdout, sys.stderr) if unbuffered else ():
            stream.reconfigure(write_through=True)
        words = self._words[unbuffered:]
        _configure(
            run_filename=os.path.abspath(words[0]),  # noqa: PTH100 - as Python does when it reads its words
            argv=words,
            orig_argv=[sys.executable, *self._words],
            buffered_stdio=int(not unbuffered),
        )
        if "numpy.random" in sys.modules:  # has another seed in each process, as Python's own generator and torch's do
            sys.modules["numpy.random"].seed()
        libc = ctypes.CDLL(None)
        for last in (libc._exit, libc.fcloseall):  # what is registered last runs first
            libc.on_exit(ctypes.cast(last, ctypes.c_void_p), None)


def _configure(**changed):
    """What this Python was started to do, for the part of its start that is still to come."""
    path = list(sys.path)
    _testinternalcapi.set_config({**_testinternalcapi.get_configs()["config"], **changed})
    sys.path[:] = path


def _serve(asked):
    """Fork at each request until no more can come."""
    while True:
        request, streams, _, _ = socket.recv_fds(asked, LONGEST, 3)
        if not request:
            os._exit(0)
        parent = os.fork()
        if not parent:
            _fork_child_of_who_asked(asked, json.loads(request), streams)
        for stream in streams:
            os.close(stream)
        os.waitpid(parent, 0)


def _fork_child_of_who_asked(asked, request, streams):
    """Its parent ends at once, and who asked is the next above that takes in what is left."""
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        time.sleep(0.0005)
    asked.send(str(os.getpid()).encode())
    asked.close()
    raise _Fork(**request, streams=streams)


def _fork_rank(words, environment):
    """What launch_workers.py does by starting Python."""
    rank = os.fork()
    if not rank:
        raise _Fork(words, environment)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])


def _run(name, path):
    """Run a module, which is known by that name from then on."""
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _main(asked):
    sys.path.remove(str(TESTS / "fork_server"))
    _run("without_compiler", TESTS / "without_compiler" / "sitecustomize.py")
    import torch  # noqa: F401 - that it is loaded is what this is for

    kept, loaded = _Kept(), _Loaded()
    gc.collect()
    gc.freeze()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "only one thread is forked"
    try:
        _serve(asked)
    except _Fork as fork:
        fork.start()
    if sys.argv[0].endswith("launch_workers.py"):
        try:
            launcher = _run("launch_workers", sys.argv[0])
            del sys.modules["launch_workers"]  # which no rank imports
            os._exit(launcher.main(sys.argv[1:], _fork_rank))
        except _Fork as fork:
            fork.start()
    sys.meta_path[:0] = [loaded, kept]
    *first, last = os.environ["PYTHONPATH"].split(os.pathsep)
    sys.path[:0] = first
    for folder in first:
        _run("sitecustomize", Path(folder, "sitecustomize.py"))
    sys.path.insert(0, last)  # without_compiler/, which has been run


if SERVER in os.environ:
    _main(socket.socket(fileno=int(os.environ.pop(SERVER))))
