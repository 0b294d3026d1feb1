"""One traced window: torch's own profiler, and its file moved into the run folder whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler.profiler import _KinetoProfile

from dptune.capture.injected.leave.gloo import let_gloo_rest

# A rank must not keep the others waiting while it compresses.
_GZIP_LEVEL = 5


class Tracing:
    """The light window records names and times; the detailed one also shapes, Python stacks and memory."""

    def __init__(self, window: str, sync_events: bool = False) -> None:
        """`sync_events`: also record CUDA's synchronization events, where this torch can, in the light window."""
        detailed = window == "detailed"
        self._profiler = _KinetoProfile(
            record_shapes=detailed,
            with_stack=detailed,
            profile_memory=detailed,
            experimental_config=_with_sync_events() if sync_events and not detailed else None,
        )
        self._step: Any = None
        self.recording = False

    def prepare(self) -> None:
        """Let the profiler set itself up, one step before it records."""
        with _without_loading_inductor():
            self._profiler.prepare_trace()

    def begin(self) -> None:
        """Start to record."""
        self._profiler.start_trace()
        self.recording = True

    def begin_step(self, number: int) -> None:
        """Mark the start of optimizer step `number` in the trace, as torch.profiler's own schedule does."""
        self._step = torch.profiler.record_function(f"ProfilerStep#{number}")
        self._step.__enter__()

    def end_step(self) -> None:
        """Mark the end of the step that was begun."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def end(self) -> None:
        """Stop to record."""
        self.end_step()
        if self.recording:
            self.recording = False
            let_gloo_rest()
            self._profiler.stop_trace()

    def save(self, target: Path) -> int:
        """Write the trace to `target`, gzip-compressed, by way of temporary names beside it; bytes of its plain text.

        Raises OSError, with nothing left of it, where it could not be written whole.
        """
        plain = target.with_name(f"{target.name}.{os.getpid()}.json.part")
        packed = target.with_name(f"{target.name}.{os.getpid()}.part")
        try:
            self._profiler.export_chrome_trace(str(plain))
            size = _whole(plain)
            with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=_GZIP_LEVEL) as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            os.replace(packed, target)  # noqa: PTH105 - atomic on every platform
            return size
        finally:
            for left in (plain, packed):
                left.unlink(missing_ok=True)


def _with_sync_events() -> Any:
    """None where this torch has no such option (before 2.2); without a GPU nothing is recorded by it."""
    try:
        return torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    except (AttributeError, TypeError):
        return None


@contextlib.contextmanager
def _without_loading_inductor() -> Iterator[None]:
    """Leave torch.compile's backend unloaded where the script has not loaded it.

    The profiler looks whether `torch` has an `_inductor`, to ask it for CUDA graphs, and looking loads it: the training
    stands still for seconds, and keeps modules that it would not have. What is not loaded has compiled nothing.
    """
    lazy: set[str] = getattr(torch, "_lazy_modules", set())
    if "torch._inductor" in sys.modules or "_inductor" not in lazy:
        yield
        return
    lazy.discard("_inductor")
    try:
        yield
    finally:
        lazy.add("_inductor")


def _whole(plain: Path) -> int:
    """The size of what the profiler wrote; it does not say when the disk was full."""
    try:
        with open(plain, "rb") as source:
            size = source.seek(0, os.SEEK_END)
            source.seek(max(0, size - 16))
            if source.read().rstrip().endswith(b"}"):
                return size
    except FileNotFoundError:
        pass
    raise OSError(f"the profiler could not write {plain.name} whole: is the disk full?")
