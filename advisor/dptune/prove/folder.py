"""The folder of a proof: proof.json and what each trial recorded. One dptune at a time works in it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from dptune.capture import processes
from dptune.errors import RunError
from dptune.prove import judging
from dptune.prove.guard import guarded
from dptune.prove.result import Proof
from dptune.runfile import json_files, locking

PROOF = "proof.json"
EARLIER = "earlier"  # beside the folders of proofs: those that were begun anew
MARK = "DPTUNE_TRIALS"
_STARTED_BY = "DPTUNE_TRIALS_STARTED_BY"
_LARGEST_BYTES = 64 * 2**20
_MOVE = "check free space and permissions there, and move away files that are not dptune's"


def read(path: Path) -> Proof:
    """A proof that was written. Raises RunError where there is none that can be read."""
    try:
        proof = Proof.model_validate_json(json_files.regular(path, _LARGEST_BYTES))
        if any(trial.status == "ran" and trial.known("step_ns") is None for trial in proof.trials):
            raise ValueError("a trial that ran has no time")
        if not judging.consistent(proof):
            raise ValueError("its figures are not those of its trials")
        return proof
    except (OSError, ValueError) as error:
        raise RunError(f"{path} has no readable result: {str(error).splitlines()[0]}") from None


def write(folder: Path, proof: Proof) -> None:
    """Write it whole or not at all."""
    json_files.put(folder / PROOF, proof.model_dump_json(indent=1) + "\n")


def set_aside(folder: Path) -> Path:
    """Move what a folder holds out of the way; where to. Raises RunError where that cannot be done."""
    earlier = folder.parent / EARLIER
    try:
        earlier.mkdir(exist_ok=True)
        number = 1
        while (target := earlier / f"{folder.name}-{number}").exists():
            number += 1
        folder.rename(target)
        folder.mkdir()
    except OSError as error:
        raise RunError(f"cannot move {folder} into {earlier}: {error.strerror}", _MOVE) from None
    return target


def take_back(folder: Path, fits: Callable[[Proof], bool]) -> Proof | None:
    """Move what was set aside of a folder back, where that is empty and a proof fits; the latest that does."""
    for place in reversed(aside(folder)):
        with contextlib.suppress(OSError, RunError):
            if fits(proof := read(place / PROOF)):
                folder.rmdir()
                place.rename(folder)
                return proof
    return None


def aside(folder: Path) -> list[Path]:
    """Where what was set aside of a folder lies, the latest last."""
    numbers = {path: path.name.removeprefix(f"{folder.name}-") for path in (folder.parent / EARLIER).glob("*")}
    paths = [path for path, number in numbers.items() if number != path.name and number.isdecimal()]
    return sorted(paths, key=lambda path: int(numbers[path]))


def mark(folder: Path) -> dict[str, str]:
    """The variables that processes of trials beside a folder of proofs carry: the place, and who started them."""
    return {MARK: str(folder.parent.resolve()), _STARTED_BY: str(os.getpid())}


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make the folder, and be the only one to run trials beside it: others would disturb each other's times.

    Processes of trials that an earlier dptune left are ended, and those of this one if it is killed. Raises RunError
    where another one is at work.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder.parent / "lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o644)
    except OSError as error:
        raise RunError(f"cannot write into {folder.parent}: {error.strerror}", _MOVE) from None
    try:
        if sys.platform != "win32" and not locking.lock(lock):
            whose = os.read(lock, 20).decode(errors="replace") or "unknown"
            raise RunError(f"another dptune runs trials in {folder.parent} (process {whose})", "wait until it ends")
        try:
            os.ftruncate(lock, 0)
            os.write(lock, str(os.getpid()).encode())
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write into {folder}: {error.strerror}", _MOVE) from None
        entries = [f"{name}={value}" for name, value in mark(folder).items()]
        processes.end_all(processes.carrying(entries[0]))
        with guarded(entries):
            yield
    finally:
        os.close(lock)
