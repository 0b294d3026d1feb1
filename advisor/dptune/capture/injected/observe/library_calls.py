"""The script's calls that set up a library, with the line of each argument, read from the source of the call.

The cost is a walk up the stack for each of these calls, of which a script has a few, and parsing the file once.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
from itertools import islice
from types import FrameType, ModuleType
from typing import Any

from dptune.capture.injected.imports import imports
from dptune.capture.injected.observe.places import OURS, is_the_users, relative
from dptune.runfile.library_calls import LibraryCallFacts

_CALLS, _ARGUMENTS = 16, 100  # that are remembered
_CONSTRUCTING = ("__init__", "__post_init__")
_PARSED = "TrainingArguments"  # which HfArgumentParser makes
_GENERATED = "<string>"  # the file of a constructor that dataclasses write
# Module, class, and the method that runs once for each object, of subclasses too.
_WATCHED = (
    ("transformers.training_args", "TrainingArguments", "__post_init__"),
    ("accelerate.accelerator", "Accelerator", "__init__"),
    ("accelerate.utils.dataclasses", "DistributedDataParallelKwargs", "__init__"),
    ("lightning.pytorch.strategies.ddp", "DDPStrategy", "__init__"),
    ("lightning.pytorch.trainer.trainer", "Trainer", "__init__"),
    ("lightning.pytorch.callbacks.model_checkpoint", "ModelCheckpoint", "__init__"),
    ("pytorch_lightning.callbacks.model_checkpoint", "ModelCheckpoint", "__init__"),
    ("pytorch_lightning.strategies.ddp", "DDPStrategy", "__init__"),
    ("pytorch_lightning.trainer.trainer", "Trainer", "__init__"),
)


class LibraryCalls:
    """Remembers the first of these calls."""

    def __init__(self) -> None:
        self._calls: list[LibraryCallFacts] = []

    def install(self) -> None:
        """Follow the classes as soon as the script imports them."""
        for module, name, method in _WATCHED:
            imports.after(module, functools.partial(self._watch, name=name, method=method))

    def facts(self) -> list[LibraryCallFacts]:
        """The calls, in their order."""
        return self._calls

    def _watch(self, module: ModuleType, *, name: str, method: str) -> None:
        kind = getattr(module, name)
        run = getattr(kind, method)

        @functools.wraps(run)
        def wrapped(this: Any, *args: Any, **kwargs: Any) -> None:
            run(this, *args, **kwargs)
            with contextlib.suppress(Exception):  # there may be no source to read
                self._note(name, sys._getframe(1))

        setattr(kind, method, wrapped)

    def _note(self, name: str, frame: FrameType | None) -> None:
        """What a library makes for the script has no argument to set, unless it was parsed from a command line."""
        frame, direct = _calling(frame)
        if frame is None or len(self._calls) >= _CALLS or not (direct or name == _PARSED):
            return
        file = frame.f_code.co_filename
        found = LibraryCallFacts(name, f"{relative(file)}:{frame.f_lineno}")
        self._calls.append(found)
        call = _call(frame) if direct else None
        given = {word.arg: word.lineno for word in call.keywords if word.arg} if call is not None else {}
        found.arguments = {key: f"{relative(file)}:{line}" for key, line in islice(given.items(), _ARGUMENTS)}


def _calling(frame: FrameType | None) -> tuple[FrameType | None, bool]:
    """The script's frame that makes an object, and whether it calls the constructor, or that of a subclass, itself."""
    direct = True
    while frame is not None:
        code = frame.f_code
        generated = code.co_filename == _GENERATED
        if not generated and is_the_users(code.co_filename):
            break
        direct = direct and (generated or code.co_name in _CONSTRUCTING or code.co_filename.startswith(OURS))
        frame = frame.f_back
    return frame, direct


def _call(frame: FrameType) -> ast.Call | None:
    """The call that a frame is in, by its position in the source; None where that is not known."""
    position = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None, None, None, None))
    for node in ast.walk(_tree(frame.f_code.co_filename)):
        if isinstance(node, ast.Call) and position == (
            *(node.lineno, node.end_lineno),
            *(node.col_offset, node.end_col_offset),
        ):
            return node
    return None


@functools.lru_cache(maxsize=4)
def _tree(file: str) -> ast.AST:
    return ast.parse("".join(linecache.getlines(file)))
