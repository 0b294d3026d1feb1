"""What the benchmarks on a shaped network have in common: ranks on two nodes, recorded and verified from here."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from command_line import run

from dptune.compare import signed_ranks
from dptune.runfile.window import MOST_TAKEN

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
from tests.testbed.network import FAST, SLOW, Node, shaped  # noqa: E402 - Python looks in a script's own folder
from tests.testbed.running import on_both  # noqa: E402

__all__ = [
    "FAST",
    "SLOW",
    "Node",
    "is_whole",
    "medians",
    "ranks_a_node",
    "record",
    "recorded",
    "settle",
    "shaped",
    "swept",
    "times_as_long",
    "verified",
]

DPTUNE = (sys.executable, "-m", "dptune")
_TRIAL = (
    *("side", "status", "began", "seconds", "step_ns", "fast_step_ns", "median_step_ns", "samples_per_step"),
    *("taken_share", "set_aside"),
)
_PROOF = ("outcome", "decided_by", "ended", "objective", "a_step_ns", "b_step_ns", "ratio", "fast_ratio", "looks")


def settle(nodes: Sequence[Node]) -> None:
    """Let run.sh start a rank on each of these nodes; on none of them both run here, beside each other."""
    for i in range(2):
        os.environ[f"NODE_{i}"] = shlex.join(nodes[i].command()) if nodes else ""
        os.environ[f"DEVICE_{i}"] = nodes[i].device if nodes else "lo"
    address = nodes[0].address if nodes else "127.0.0.1"
    os.environ.update(MASTER_ADDR=address, MASTER_PORT="29733", PYTHON=sys.executable)
    ranks_a_node(1)


def ranks_a_node(count: int) -> None:
    """Let run.sh start so many on each."""
    os.environ["EACH"] = str(count)


def is_whole(folder: Path) -> bool:
    """Whether a run was recorded to its end: an interrupted one has a run.json, too."""
    file = folder / "run.json"
    return file.exists() and json.loads(file.read_text())["ending"]["how"] not in ("recording", "interrupted")


def recorded(place: Path, options: str, both: str, windows: Sequence[str]) -> Path:
    """The recording of on_the_wire.py in a folder of its own, which trials are made in copies of."""
    folder = place / "run"
    if not is_whole(folder):
        shutil.rmtree(folder, ignore_errors=True)
        place.mkdir(parents=True, exist_ok=True)
        for file in (HERE / "on_the_wire.py", HERE / "scripts" / "run.sh"):
            (place / file.name).write_bytes(file.read_bytes())
        setting = ("--set", both) if both else ()
        script = ("sh", "run.sh", "on_the_wire.py", *options.split())
        record(folder, [*windows, *setting, *script])
    return folder


_RECORDINGS = 3


def record(folder: Path, words: Sequence[str]) -> None:
    """Record beside a folder that is not there yet; anew, some times, where its cores were others' meanwhile."""
    words = [*DPTUNE, "profile", "-q", "--no-links", "--run-dir", str(folder), *words]
    for _ in range(_RECORDINGS):
        shutil.rmtree(folder, ignore_errors=True)
        status = subprocess.run(words, cwd=folder.parent, check=False).returncode
        if status:
            shutil.rmtree(folder, ignore_errors=True)
            raise SystemExit(f"{' '.join(words)}\nended with {status}, in {folder.parent}")
        if (share := _taken_share(folder)) <= MOST_TAKEN:
            break
        print(f"{folder}: {100 * share:.0f} % of the time of the cores went to others", file=sys.stderr, flush=True)


def _taken_share(folder: Path) -> float:
    """What of the cores' time went to others in any window, at most."""
    facts = [json.loads(path.read_text()) for path in folder.glob("rank-*.facts.json")]
    return max((window["taken_share"] or 0.0 for own in facts for window in own["windows"]), default=0.0)


_SWEEPS = 5


def swept(nodes: Sequence[Node], folder: Path, each: int = 1) -> Path:
    """What `dptune links` measures of all-reduces between ranks, so many on each node; anew where that fits no line."""
    target = folder / "links.json"
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(_SWEEPS):
        if target.exists() and json.loads(target.read_text())["kinds"][0]["fit"]:
            break
        _sweep(nodes, target, each)
    return target


def _sweep(nodes: Sequence[Node], target: Path, each: int) -> None:
    sizes = ("--kinds", "all_reduce", "--sizes", "1k,4k,16k,64k,256k,1m,4m", "--seconds", "60", "-o", str(target))
    if not nodes:
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [*DPTUNE, "links", *sizes, "--nproc-per-node", "2"], check=True, env=env, stdout=subprocess.DEVNULL
        )
        return
    on_both(nodes, [target.parent] * 2, ("links", "--nproc-per-node", str(each), *sizes), port=29731)


def medians(found: dict[str, Any]) -> tuple[float, float] | None:
    """Of each side's trials that count, the median of their median steps, which is what reports call a step."""
    sides = [
        [one["median_step_ns"] for one in found.get("trials", []) if one["side"] == side and not one.get("set_aside")]
        for side in "AB"
    ]
    ran = [[step for step in side if step] for side in sides]
    return (median(ran[0]), median(ran[1])) if all(ran) else None


def times_as_long(found: dict[str, Any], which: str = "median_step_ns") -> float | None:
    """B / A of median steps, with `step_ns` of mean ones.

    Of the ratios within pairs of trials, and of the means of any two of them, the median: a machine that is slower for
    a while is so for both of a pair, and that is in neither. None where no pair ran.
    """
    a, b = (
        [one[which] for one in found.get("trials", []) if one["side"] == side and not one.get("set_aside")]
        for side in "AB"
    )
    whole = [(before, after) for before, after in zip(a, b, strict=False) if before and after]
    return median(signed_ranks.means(*zip(*whole, strict=True))) if whole else None


def verified(folder: Path, *change: str) -> dict[str, Any]:
    """What `dptune verify` finds of a change of a recording, made or gone on with."""
    words = [*DPTUNE, "verify", str(folder), "--format", "json", *change]
    done = run(words, cwd=folder.parent, stdout=subprocess.PIPE)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)}\nended with {done.returncode}")
    proof = json.loads(done.stdout)
    trials = [{field: one[field] for field in _TRIAL} for one in proof["trials"]]
    return {**{field: proof[field] for field in _PROOF}, "learning": proof["learning"]["outcome"], "trials": trials}
