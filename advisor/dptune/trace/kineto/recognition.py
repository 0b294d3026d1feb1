"""Whether a file is a torch.profiler trace, and what it looks like when it is not."""

from __future__ import annotations

import re

from dptune.errors import NotATraceError, TraceError
from dptune.trace.columns import Columns
from dptune.trace.kernels import STEP_NAME, TORCH_CATEGORIES
from dptune.trace.kineto.scan import STRING

_HINT = (
    "dptune reads what torch.profiler writes: export_chrome_trace(), tensorboard_trace_handler(), or `dptune profile`"
)
_RUN_NAME = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2}-[^\n]{1,200}\n?")
_UNPACK = "unpack it, and pass the trace inside"
# First bytes -> what kind of file that is, and what to do with it where that is not to record a trace.
_MAGIC = (
    (b"SQLite format 3", "an SQLite database, for example an Nsight Systems export", ""),
    (
        b"\x1f\x8b",
        "a gzip file that was compressed twice",
        "unpack it once with gunzip, and pass the result",
    ),
    (b"PK\x03\x04", "a zip archive", _UNPACK),
    (b"PK\x05\x06", "an empty zip archive", ""),
    (b"\x28\xb5\x2f\xfd", "a zstandard file", _UNPACK),
    (b"\xfd7zXZ\0", "an xz file", _UNPACK),
    (b"BZh", "a bzip2 file", _UNPACK),
    (b"\x04\x22\x4d\x18", "an lz4 file", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", _UNPACK),
    (b"\x80", "a Python pickle, for example a CUDA memory snapshot", ""),
    (b"PAR1", "a Parquet file", ""),
    (b"\x89HDF", "an HDF5 file", ""),
)
_SAVED = b"data.pkl"  # the first file in what torch.save() writes, which is a zip archive
_TAR = (257, b"ustar")  # where a tar archive has its mark
# The only value of a JSON text that is neither an object nor a list.
_ONLY = (
    (re.compile(rb"-?[0-9]++(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"), "a number"),
    (re.compile(STRING, re.DOTALL), "a string"),
    (re.compile(rb"null"), "null"),
    (re.compile(rb"true|false"), "true or false"),
)
_UNCLOSED = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+\\?+', re.DOTALL)
# A word of the text -> whose file that is. Checked in this order, in the first part of the text.
_WORDS = (
    (b"dynamo_timed", "torch.compile's own timing log"),
    (b"JSONTraceHandler", "a trace of MosaicML Composer's own profiler"),
    (b"backward-compute", "a pipeline timeline of Megatron-LM"),
    (b'"nodes"', "a PyTorch execution trace (a graph, without times)"),
    (b"highres-ticks", "a TensorFlow or JAX profile"),
    (b"Cmpt Prep", "an accelerator vendor's own trace"),
)
_NONE = re.compile(rb'"traceEvents"\s*+:\s*+\[\s*+\]')
_NO_EVENT = re.compile(rb'"traceEvents"\s*+:\s*+\[\s*+[^{\s]')  # what comes first in the list is none
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
    what, hint = _looks_like(text, columns)
    complete = whole and text.strip() not in (b"{}", b"[]")
    kind = NotATraceError if complete or _only(text) else TraceError
    looks = "is" if text.strip() in (b"{}", b"[]") else "looks like"
    return kind(f"{path} is not a torch.profiler trace: it {looks} {what}", hint or _HINT)


def _looks_like(text: bytes, columns: Columns | None) -> tuple[str, str]:
    """What the text is, and what to do with it ("" where that is to record a trace)."""
    start = text.lstrip()[:LOOKED_AT_BYTES]
    lower = start[:500].lower()
    if b"<html" in lower or b"<!doctype html" in lower:
        return "a web page (was the download link a page about the file?)", "download the file itself"
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer: the file itself was not downloaded", "download it: git lfs pull"
    for magic, what, hint in _MAGIC:
        if text.startswith(magic):
            return ("a torch.save() file", "") if _SAVED in text[:300] else (what, hint)
    if text[_TAR[0] :].startswith(_TAR[1]):
        return "a tar archive", _UNPACK
    if start[:1] in (b"{", b"["):
        return _json(start, columns)
    if only := _only(text):
        return f"JSON that contains only {only}", ""
    if not start:
        return "a file of whitespace only", ""
    if not text.strip(b"\0"):
        return "a file of zero bytes, as left by a crash while writing", "record or copy it again"
    if _RUN_NAME.fullmatch(start):
        return "what dptune-runs/latest holds, the name of a run: name that folder itself", ""
    return ("text, not JSON" if _is_text(start) else "a binary file of an unknown kind"), ""


def _json(start: bytes, columns: Columns | None) -> tuple[str, str]:
    """What an object or a list is."""
    if start.rstrip() in (b"{}", b"[]"):
        what = "an empty JSON object" if start.startswith(b"{") else "an empty JSON list"
        return what, "it contains no events: record again, or pass another file"
    if b'"traceEvents"' not in start and b'"ph"' not in start:
        return "JSON without trace events", ""
    for word, what in _WORDS:
        if word in start:
            return what, ""
    if columns is None and b'"ph"' not in start:
        return "JSON without trace events", ""
    if columns is not None and _NONE.search(start):
        return "JSON with an empty traceEvents list", "it contains no events: record again, or pass another file"
    if columns is not None and not len(columns) and (b'"ph"' not in start or _NO_EVENT.search(start)):
        return "JSON whose traceEvents are not events", ""
    if columns is not None and not len(columns) and b'"M"' in start:
        return "a Chrome trace that names processes and threads but holds no timed event", ""
    return "a Chrome trace of another tool", ""


def _only(text: bytes) -> str:
    """What the only value of a JSON text is; "" where the text is none, or an object or a list."""
    if len(text) >= LOOKED_AT_BYTES and _UNCLOSED.fullmatch(text):
        return "a string"
    return next((what for pattern, what in _ONLY if pattern.fullmatch(text.strip())), "")


def _is_text(start: bytes) -> bool:
    """Whether bytes are UTF-8, but for a letter that the end cuts off, and without control characters."""
    text = start.decode("utf-8", errors="ignore")
    return len(start) - len(text.encode()) <= 3 and all(letter >= " " or letter.isspace() for letter in text)
