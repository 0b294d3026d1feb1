"""Small pieces of real traces: their header, some events of each kind, their footer; cut when they are needed."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "real_traces"
SAMPLES = ROOT / "sample_traces"
OF_EACH_KIND = 3
IN_A_ROW = 40
MOST_BYTES = 48_000  # of a piece
_EVENTS = re.compile(r'^\s*(?:\{.*?"traceEvents"\s*:\s*)?\[', re.DOTALL)
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"ph")')
_DECODER = json.JSONDecoder()


def pieces(largest_bytes: int, every: int = 1) -> dict[str, bytes]:
    """Pieces of the sound traces by name, of every n-th file up to a size (packed); `not_torch/` is in some names."""
    files = [*sorted(REAL.rglob("*.gz")), *sorted(SAMPLES.rglob("*.trace.json.gz"))]
    files = [path for path in files if "damaged" not in path.parts and path.stat().st_size <= largest_bytes]
    cut = {str(path.relative_to(ROOT.parent)): piece(gzip.decompress(path.read_bytes())) for path in files[::every]}
    return {name: data for name, data in cut.items() if data}


def damaged() -> dict[str, bytes]:
    """The damaged files, cut down around the first byte in which each differs from the sound one."""
    folder = REAL / "damaged"
    sound = _text((folder / "json_named_gz_but_plain.json.gz").read_bytes())
    found = {}
    for path in sorted(folder.glob("*.json*")):
        if path.name != "DERIVED.json":
            data = path.read_bytes()
            text = _text(data)
            start = 0 if text[:1] == b"[" else 3000
            at = next((at for at in range(start, len(text), 64) if text[at : at + 64] != sound[at : at + 64]), start)
            cut = _around(text, at)
            found[f"damaged/{path.name}"] = cut.decode().encode("utf-16") if data[:2] == b"\xff\xfe" else cut
    return found


def piece(text: bytes) -> bytes:
    """The header, some of the events as they are written, and the footer; b"" where it has none."""
    try:
        written = text.decode()
        head = _EVENTS.match(written)
        if head is None:
            return b""
        events = _events(written, head.end())
    except ValueError:
        return b""
    if not events:
        return b""
    chosen = _chosen(events)
    between = written[events[0][2] : events[1][1]] if len(events) > 1 else ","
    body = between.join(written[begin:close] for _, begin, close in chosen)
    return (written[: events[0][1]] + body + written[events[-1][2] :][-MOST_BYTES // 4 :]).encode()


def _events(text: str, at: int) -> list[tuple[Any, int, int]]:
    """Each event, and where its text begins and ends."""
    found = []
    gap = re.compile(r"[\s,]*")
    while text[at := gap.match(text, at).end()] != "]":  # type: ignore[union-attr]
        event, end = _DECODER.raw_decode(text, at)
        found.append((event, at, end))
        at = end
    return found


def _chosen(events: list[tuple[Any, int, int]]) -> list[tuple[Any, int, int]]:
    """Some of each kind, some in a row, the steps, and what launched the kernels among them."""
    seen: Counter[object] = Counter()
    chosen: set[int] = set()
    middle = len(events) // 2
    for at, (event, _, _) in enumerate(events):
        kind = (event.get("ph"), event.get("cat"), str(event.get("name"))[:12] if event.get("ph") != "X" else "")
        seen[kind] += 1
        step = "ProfilerStep" in str(event.get("name")) and seen["step"] < 6
        seen["step"] += step
        if seen[kind] <= OF_EACH_KIND or step or middle <= at < middle + IN_A_ROW:
            chosen.add(at)
    of_chosen = {_correlation(events[at][0]) for at in chosen} - {None}
    linked = [at for at, (event, _, _) in enumerate(events) if _correlation(event) in of_chosen]
    size = 0
    kept = []
    for at in [*sorted(chosen), *linked[:100]]:
        size += events[at][2] - events[at][1]
        if size < MOST_BYTES:
            kept.append(at)
    return [events[at] for at in sorted(set(kept))]


def _correlation(event: dict[str, Any]) -> object:
    args = event.get("args")
    return args.get("correlation") if isinstance(args, dict) else None


def _text(data: bytes) -> bytes:
    if data[:2] == b"\x1f\x8b":
        data = zlib.decompressobj(wbits=31).decompress(data)
    return data.decode("utf-16").encode() if data[:2] == b"\xff\xfe" else data


def _around(text: bytes, at: int) -> bytes:
    """The beginning of a text, what stands around one place, and its end, cut between events."""
    ends = [match.end() for match in _BETWEEN.finditer(text)]
    if not ends or len(text) < MOST_BYTES:
        return text[:MOST_BYTES]
    first = _after(ends, 8_000)
    begin, end = _after(ends, max(at - 6_000, first)), _after(ends, at + 6_000)
    return text[:first] + text[begin:end] + text[max(_after(ends, len(text) - 6_000), end) :]


def _after(ends: list[int], at: int) -> int:
    return next((end for end in ends if end >= at), ends[-1])
