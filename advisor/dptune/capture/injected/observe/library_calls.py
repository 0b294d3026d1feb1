"""The script's calls that set up a library, with the line of each argument, read from the source of the call.

The cost is a walk up the stack for each of these calls, of which a script has a few, and parsing the file once.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from types import FrameType, ModuleType
from typing import Any

from dptune.capture.injected.imports import imports
from dptune.capture.injected.observe.call_source import argument_lines, calling_frame
from dptune.capture.injected.observe.places import relative
from dptune.runfile.library_calls import LibraryCallFacts

_CALLS = 16  # that are remembered
_PARSED = "TrainingArguments"  # which HfArgumentParser makes
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
        frame, direct = calling_frame(frame)
        if frame is None or len(self._calls) >= _CALLS or not (direct or name == _PARSED):
            return
        file = frame.f_code.co_filename
        found = LibraryCallFacts(name, f"{relative(file)}:{frame.f_lineno}")
        self._calls.append(found)
        if direct:
            found.arguments = argument_lines((frame.f_code, frame.f_lasti))
