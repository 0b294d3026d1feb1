"""Whether a file is a torch.profiler trace, and what it looks like when it is not."""

from __future__ import annotations

import re

from dptune.errors import NotATraceError, TraceError
from dptune.trace.columns import Columns
from dptune.trace.kernels import STEP_NAME, TORCH_CATEGORIES

_HINT = (
    "dptune reads what torch.profiler writes: export_chrome_trace(), tensorboard_trace_handler(), or `dptune profile`"
)
_RUN_NAME = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2}-[^\n]{1,200}\n?")
# First bytes -> what kind of file that is.
_MAGIC = (
    (b"SQLite format 3", "an SQLite database, such as an Nsight Systems export"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstandard file"),
    (b"\x80", "a Python pickle, such as a CUDA memory snapshot"),
    (b"PAR1", "a Parquet file"),
    (b"\x89HDF", "an HDF5 file"),
)
# A word of the text -> whose file that is. Checked in this order, in the first part of the text.
_WORDS = (
    (b"dynamo_timed", "torch.compile's own timing log"),
    (b"JSONTraceHandler", "a trace of MosaicML Composer's own profiler"),
    (b"backward-compute", "a pipeline timeline of Megatron-LM"),
    (b'"nodes"', "a PyTorch execution trace (a graph, without times)"),
    (b"highres-ticks", "a TensorFlow or JAX profile"),
    (b"Cmpt Prep", "an accelerator vendor's own trace"),
)
LOOKED_AT_BYTES = 64 * 1024  # of the text, from its beginning


def is_torch(columns: Columns, header_is_torch: bool) -> bool:
    """Whether the events or the header are torch.profiler's."""
    if header_is_torch or any(category in TORCH_CATEGORIES for category in columns.categories):
        return True
    return any(STEP_NAME.match(name) for name in columns.names)


def refusal(path: str, text: bytes, columns: Columns | None = None, *, whole: bool = False) -> TraceError:
    """The error for a file that is not a torch.profiler trace, naming what it looks like.

    `whole`: the file is complete JSON, so no part of a trace was lost; `{}` may have lost all of it.
    """
    kind = NotATraceError if whole and text.strip() not in (b"{}", b"[]") else TraceError
    return kind(f"{path} is not a torch.profiler trace: it looks like {_looks_like(text, columns)}", _HINT)


def _looks_like(text: bytes, columns: Columns | None) -> str:
    start = text.lstrip()[:LOOKED_AT_BYTES]
    lower = start[:500].lower()
    if b"<html" in lower or b"<!doctype html" in lower:
        return "a web page (was the download link a page about the file?)"
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer: the file itself was not downloaded"
    for magic, what in _MAGIC:
        if start.startswith(magic):
            return what
    if start[:1] not in (b"{", b"["):
        if _RUN_NAME.fullmatch(start):
            return "what dptune-runs/latest holds, the name of a run: name that folder itself"
        return "text, not JSON" if _is_text(start) else "a binary file of an unknown kind"
    if start.rstrip() in (b"{}", b"[]"):
        return "an empty JSON object" if start.startswith(b"{") else "an empty JSON list"
    if b'"traceEvents"' not in start and b'"ph"' not in start:
        return "JSON without trace events"
    for word, what in _WORDS:
        if word in start:
            return what
    if columns is not None and not len(columns) and b'"M"' in start:
        return "a Chrome trace that names processes and threads but holds no timed event"
    return "a Chrome trace of another tool"


def _is_text(start: bytes) -> bool:
    """Whether bytes are UTF-8, but for a letter that the end cuts off, and without control characters."""
    text = start.decode("utf-8", errors="ignore")
    return len(start) - len(text.encode()) <= 3 and all(letter >= " " or letter.isspace() for letter in text)
