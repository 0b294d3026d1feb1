"""Remembers what the script makes (DDP, FSDP, loaders, optimizers, ...), and the user's line that made it.

Also whether autocast was entered and with which type, and what was compiled.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import sys
import sysconfig
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from dptune.capture.injected.imports import imports

TORCHS = os.path.join(Path(torch.__file__).parent, "")  # noqa: PTH118 - a prefix
OURS = os.path.join(Path(__file__).parents[1], "")  # noqa: PTH118 - a prefix
# Where torch runs operators on tensors, sharded ones among them.
_OPERATORS = tuple(TORCHS + name for name in ("_tensor.py", "functional.py", os.path.join("distributed", "tensor")))  # noqa: PTH118
_DECORATOR = re.compile("wrap|decorate")
# The package of a file that was installed: into the environment that runs, or one that it takes packages from.
_PACKAGE = re.compile(r".*[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_NOT_THE_USERS = (
    TORCHS,
    OURS,
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    "<frozen",
    "<eval_with_key>",  # code that torch.fx generates
)


@functools.lru_cache(maxsize=4096)
def is_the_users(file: str) -> bool:
    """Whether a file is neither torch's, the standard library's nor an installed package's."""
    return not file.startswith(_NOT_THE_USERS) and _PACKAGE.match(file) is None


KINDS = (DistributedDataParallel, DataLoader, Optimizer, GradScaler, LRScheduler)
_HERE = os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118 - a prefix: where the script was started


def relative(file: str) -> str:
    """A file of the script, relative to the folder the script was started in where it lies below it."""
    return file.removeprefix(_HERE)


def users_line(frame: FrameType | None) -> str | None:
    """`file:line` of the innermost frame that is neither torch's, the standard library's nor an installed package's.

    The file is relative to the folder the script was started in, where it lies below it.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        if is_the_users(name):
            return f"{name.removeprefix(_HERE)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def caller(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not dptune's: several observers may wrap the function that was called."""
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return frame


def users_function(frame: FrameType | None) -> str | None:
    """The function and line of the same frame, as `function (file:line)`; outside of functions `file:line`."""
    while frame is not None and not is_the_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    name = function_name(frame.f_code)
    return f"{users_line(frame)}" if name == "<module>" else f"{name} ({users_line(frame)})"


def function_name(code: CodeType) -> str:
    """The name of a function, with that of its class from Python 3.11 on."""
    return str(getattr(code, "co_qualname", code.co_name)).rpartition("<locals>.")[2]


def _made_by_library(frame: FrameType | None) -> bool:
    """Whether a library constructs the object, rather than wraps the constructor that the script calls."""
    while frame is not None and not is_the_users(frame.f_code.co_filename):
        name = frame.f_code.co_name
        wraps = frame.f_code.co_filename.startswith(OURS) or name == "__init__" or _DECORATOR.search(name)
        if not wraps:
            return True
        frame = frame.f_back
    return False


def library(frame: FrameType | None) -> str:
    """The installed package that a frame is of; "" where it is the script's own."""
    frame = caller(frame)
    return package(frame.f_code) if frame is not None else ""


def package(code: CodeType) -> str:
    """The installed package that code is of; "" where it is the script's own."""
    if code.co_filename.startswith(TORCHS):
        return "torch"
    found = _PACKAGE.match(code.co_filename)
    return found[1].removesuffix(".py") if found else ""


def entry(frame: FrameType | None) -> str:
    """The function of an installed package, but torch's, that the script calls for a frame, after the package's name.

    "" where no such function does.
    """
    found = ""
    while frame is not None and not is_the_users(frame.f_code.co_filename):
        if (name := library(frame)) not in ("", "torch"):
            found = f"{name}.{getattr(frame.f_code, 'co_qualname', frame.f_code.co_name)}"  # from Python 3.11 on
        frame = frame.f_back
    return found if frame is not None else ""


def torch_entry(frame: FrameType | None) -> str:
    """The function of torch that a frame was called through, by its name after `torch.`: the outermost, but decorators.

    "" where that is an operator on a tensor that the script calls.
    """
    found = ""
    while frame is not None and not is_the_users(frame.f_code.co_filename):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(TORCHS) and not file.startswith(_OPERATORS) and not _DECORATOR.search(name):
            found = f"torch.{name}"
        frame = frame.f_back
    return found if frame is not None else ""


def users_code(code: CodeType | None) -> str | None:
    """`file:line` at which a function begins; None where it is not the user's."""
    return None if code is None else users_place(code.co_filename, code.co_firstlineno)


def users_place(file: str, line: int) -> str | None:
    """`file:line` of a line of a file; None where the file is not the user's."""
    return f"{file.removeprefix(_HERE)}:{line}" if is_the_users(file) else None


Call = tuple[CodeType, int]  # a function of the script, and the instruction in it that calls


class _MadeAt(NamedTuple):
    """Where a thing was made: the line, the library's function that the script calls there, and the script's call."""

    thing: weakref.ref[Any]
    line: str | None
    through: str
    call: Call | None


def _users_call(frame: FrameType | None) -> Call | None:
    while frame is not None and not is_the_users(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lasti)


class Places:
    """Live objects of a kind, in the order they were made, each with its line; nothing is kept alive."""

    def __init__(self) -> None:
        self._made: dict[type, list[weakref.ref[Any]]] = {}
        self._made_at: dict[int, _MadeAt] = {}  # by identity: a thing may have no hash
        self.autocast: str | None = None
        self.autocast_line: str | None = None
        self.compiled: list[str | None] = []  # the user's line of each torch.compile
        self.ddp_graphs: list[int] = []  # into how many DDPOptimizer split each compiled graph
        self._stepped_at: dict[int, tuple[weakref.ref[Any], str | None]] = {}  # schedulers, by identity
        self.engine: str | None = None
        self.sharded: list[tuple[weakref.ref[Any], str | None]] = []  # the state of each call of fully_shard
        self.before_group: Callable[[], None] = lambda: None
        self.draws: Counter[int] = Counter()  # batches drawn, by the identity of the sampler they were drawn with
        self.pins: dict[int, bool] = {}  # by the same, whether the iterator puts them into page-locked memory

    def install(self) -> None:
        """Wrap the constructors. Their signatures stay readable through `__wrapped__`."""
        for kind in KINDS:
            self.watch(kind)
        self.watch(DistributedSampler)
        self._watch_autocast()
        self._watch_compile()
        self._watch_schedulers()
        self._watch_groups()
        imports.after("torch.distributed.fsdp.fully_sharded_data_parallel", self._watch_fsdp1)
        imports.after("torch.distributed.fsdp._fully_shard._fsdp_state", self._watch_fsdp2)
        imports.after("torch._dynamo.backends.distributed", self._watch_ddp_optimizer)
        imports.after("deepspeed.runtime.engine", self._watch_deepspeed)
        imports.after("torch.distributed.algorithms.model_averaging.averagers", self._watch_averagers)
        imports.after("accelerate.local_sgd", self._watch_local_sgd)
        imports.after("pytorch_lightning.trainer.trainer", self._watch_trainers)
        imports.after("lightning.pytorch.trainer.trainer", self._watch_trainers)
        imports.after("transformers.trainer", self._watch_trainers)

    def adopt(self) -> None:
        """Take in what was made before `install`, without its line."""
        for thing in gc.get_objects():
            for kind in KINDS:
                # type(), not isinstance: asking a proxy for its class can make it do things
                if issubclass(type(thing), kind) and all(known is not thing for known in self.alive(kind)):
                    self._made[kind].append(weakref.ref(thing))

    def alive(self, kind: type | str) -> list[Any]:
        """Objects of that kind, or of the kind of that name, that still exist, oldest first."""
        refs = [
            ref
            for known_kind, made in self._made.items()
            if known_kind is kind or known_kind.__name__ == kind
            for ref in made
        ]
        return [thing for thing in (ref() for ref in refs) if thing is not None]

    def ddp(self) -> list[Any]:
        """The DistributedDataParallel modules that still exist."""
        return self.alive(DistributedDataParallel)

    def line(self, thing: Any) -> str | None:
        """`file:line` of the user's call that made it."""
        found = self._found(thing)
        return None if found is None else found.line

    def through(self, thing: Any) -> str:
        """The function of an installed package that the script calls there; "" where the script makes it itself."""
        found = self._found(thing)
        return "" if found is None else found.through

    def call(self, thing: Any) -> Call | None:
        """The call of the script that made it; None where a library did."""
        found = self._found(thing)
        return None if found is None else found.call

    def _found(self, thing: Any) -> _MadeAt | None:
        found = self._made_at.get(id(thing))
        return found if found is not None and found.thing() is thing else None

    def watch(self, kind: type) -> None:
        """Remember every object of that kind from now on."""
        made = self._made.setdefault(kind, [])
        construct = kind.__init__  # type: ignore[misc]

        @functools.wraps(construct)
        def watched(this: Any, *args: Any, **kwargs: Any) -> None:
            construct(this, *args, **kwargs)
            with contextlib.suppress(Exception):
                frame = sys._getframe(1)
                made.append(weakref.ref(this))
                by_library = _made_by_library(frame)
                copied = self._copied(this) if by_library else None
                if copied is not None:
                    self._made_at[id(this)] = _MadeAt(made[-1], copied.line, entry(frame), copied.call)
                else:
                    call = None if by_library else _users_call(frame)
                    self._made_at[id(this)] = _MadeAt(made[-1], users_line(frame), entry(frame), call)

        kind.__init__ = watched  # type: ignore[misc]

    def _copied(self, thing: Any) -> _MadeAt | None:
        """The script's loader that a library copies, to give it a sampler that deals to ranks."""
        if not isinstance(thing, DataLoader):
            return None
        loaders = [loader for loader in self.alive(DataLoader) if loader is not thing]
        found = [self._found(loader) for loader in loaders if loader.dataset is thing.dataset]
        return next((made for made in reversed(found) if made is not None and made.line), None)

    def _watch_autocast(self) -> None:
        enter = autocast.__enter__

        @functools.wraps(enter)
        def watched(this: Any) -> Any:
            with contextlib.suppress(Exception):
                if getattr(this, "_enabled", False):
                    entered = f"{this.device}:{str(this.fast_dtype).removeprefix('torch.')}"
                    if entered != self.autocast:
                        self.autocast, self.autocast_line = entered, users_line(sys._getframe(1))
            return enter(this)  # type: ignore[no-untyped-call]

        autocast.__enter__ = watched  # type: ignore[method-assign]

    def _watch_fsdp1(self, module: ModuleType) -> None:
        self.watch(module.FullyShardedDataParallel)

    def _watch_fsdp2(self, module: ModuleType) -> None:
        begin = module.FSDPState.init

        @functools.wraps(begin)
        def watched(this: Any, *args: Any, **kwargs: Any) -> None:
            begin(this, *args, **kwargs)
            with contextlib.suppress(Exception):
                self.sharded.append((weakref.ref(this), users_line(sys._getframe(1))))

        module.FSDPState.init = watched

    def _watch_deepspeed(self, module: ModuleType) -> None:
        construct = module.DeepSpeedEngine.__init__

        @functools.wraps(construct)
        def watched(this: Any, *args: Any, **kwargs: Any) -> None:
            self.engine = "deepspeed"
            construct(this, *args, **kwargs)

        module.DeepSpeedEngine.__init__ = watched

    def _watch_averagers(self, module: ModuleType) -> None:
        self.watch(module.ModelAverager)

    def _watch_local_sgd(self, module: ModuleType) -> None:
        self.watch(module.LocalSGD)

    def _watch_trainers(self, module: ModuleType) -> None:
        self.watch(module.Trainer)

    def _watch_ddp_optimizer(self, module: ModuleType) -> None:
        split = module.DDPOptimizer.compile_fn

        @functools.wraps(split)
        def watched(this: Any, *args: Any, **kwargs: Any) -> Any:
            compiled = split(this, *args, **kwargs)
            with contextlib.suppress(Exception):
                self.ddp_graphs.append(len(this.buckets))
            return compiled

        module.DDPOptimizer.compile_fn = watched

    def _watch_compile(self) -> None:
        """nn.Module.compile and the decorator come through here as well."""
        compile_ = torch.compile

        @functools.wraps(compile_)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.compiled.append(users_line(sys._getframe(1)))
            return compile_(*args, **kwargs)

        torch.compile = watched

    def stepped_at(self, scheduler: Any) -> str | None:
        """The line of the script that steps a learning-rate scheduler; None where it was not stepped."""
        reference, line = self._stepped_at.get(id(scheduler), (None, None))
        return line if reference is not None and reference() is scheduler else None

    def _watch_schedulers(self) -> None:
        """Their first step is that of the constructor."""
        step = LRScheduler.step

        @functools.wraps(step)
        def watched(this: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                if self._found(this) is not None and self.stepped_at(this) is None:
                    self._stepped_at[id(this)] = weakref.ref(this), users_line(sys._getframe(1))
            return step(this, *args, **kwargs)

        LRScheduler.step = watched  # type: ignore[method-assign, assignment]

    def _watch_groups(self) -> None:
        begin = getattr(dist, "init_process_group", None)  # absent where torch was built without distributed
        if begin is None:
            return

        @functools.wraps(begin)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                self.before_group()
            return begin(*args, **kwargs)

        dist.init_process_group = dist.distributed_c10d.init_process_group = watched


def function_at(code: CodeType, line: int) -> str:
    """A function with the line within it, `step (train.py:9)`; the line alone of what is in no function."""
    place = users_place(code.co_filename, line) or f"{code.co_filename}:{line}"
    name = function_name(code)
    return place if name == "<module>" else f"{name} ({place})"


def script_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame if it is the script's, not that of a library that the script calls."""
    while frame is not None and frame.f_code.co_filename.startswith((TORCHS, OURS)):  # observers pass calls on
        frame = frame.f_back
    return frame if frame is not None and is_the_users(frame.f_code.co_filename) else None
