"""Puts the results of a card into the project: the figures beside the benchmarks', small traces among the samples."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.gpu.driver import commit, source
from tests.gpu.packing import worth
from tests.gpu.wheels import ROOT

RESULTS = ROOT / "tests" / "benchmarks" / "results" / "gpu"
SAMPLES = ROOT / "sample_traces" / "gpu"
MOST_TRACES = 7
MOST_BYTES = 5 * 2**20  # of all traces of a run folder
_HEAD = """# Recorded on real cards

By `make gpu-check` ([its scripts](../../tests/gpu/scripts)); kept by `python -m tests.gpu --keep`.

| run | command | on |
| --- | --- | --- |
"""


def keep(folder: Path) -> Iterator[str]:
    """Copy result.json and extract small runs; says what was kept, a line each."""
    result = json.loads((folder / "result.json").read_text())
    if result["device"] != "cuda":
        raise SystemExit(f"{folder} is a rehearsal without a card: nothing is kept of it")
    target = RESULTS / f"{_name(result)}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    if result["source"] == source():
        result["commit"] = commit()  # the card may have had the tree without git, or with an older commit's
    target.write_text(_without_place(json.dumps(result, indent=1)) + "\n")
    yield f"{target.relative_to(ROOT)}"
    kept = list(_chosen(folder))
    yield from (f"{(SAMPLES / name).relative_to(ROOT)}" for name in kept)
    if kept:
        readme = SAMPLES / "README.md"
        text = readme.read_text() if readme.exists() else _HEAD
        readme.write_text(text + "".join(f"| `{name}` | {_made(name)} | {_on(result)} |\n" for name in kept))


def _without_place(text: str) -> str:
    """Paths of the check's own scripts from the project on: where it lay on the card's machine is nobody's business."""
    return re.sub(r"/[^\s\"]*/(tests/gpu/)", r"\1", text)


def _made(name: str) -> str:
    """The command of the recording."""
    words = json.loads((SAMPLES / name / "run.json").read_text())["command"]
    return f"`{' '.join(Path(word).name if '/' in word else word for word in words)}`"


def _on(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return f"{machine['card']}, torch {machine['torch']}, NCCL {machine.get('nccl', '-')}, commit {result['commit']}"


def _name(result: dict[str, Any]) -> str:
    card = re.sub(r"[^a-z0-9]+", "-", result["machine"]["card"].lower()).strip("-")
    return f"{card}-{result['when'][:10]}-{result['source']}"


def _chosen(folder: Path) -> Iterator[str]:
    found = [
        (member.name.split("/")[0], archive)
        for archive in sorted(folder.glob("traces-*.tar"))
        for member in _of(archive)
    ]
    runs = dict(found)
    kept = 0
    for name in sorted(runs, key=worth):
        if kept == MOST_TRACES or (SAMPLES / name).exists():
            continue
        with tarfile.open(runs[name]) as archive:
            members = [one for one in archive.getmembers() if one.name.startswith(f"{name}/")]
            traces = sum(one.size for one in members if ".trace." in one.name)
            if not traces or traces > MOST_BYTES:
                continue
            SAMPLES.mkdir(parents=True, exist_ok=True)
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 or later
            archive.extractall(SAMPLES, members)
        for file in (SAMPLES / name).glob("*.json"):
            file.write_text(_without_place(file.read_text()))
        kept += 1
        yield name


def _of(archive: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(archive) as opened:
        return opened.getmembers()
