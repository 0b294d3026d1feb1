"""A process that ends trials, or commands of a server, if the dptune that started them is killed.

It reads a pipe whose other end only dptune holds: the pipe ends when dptune does. A dptune that ends by itself kills it
first. A search that it ends keeps its results so far. Processes are found by their environment, so ranks of any
launcher and their workers are ended, too. Linux only: it reads /proc.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from dptune.capture import processes

_LOOKS = 5  # a process that dptune or a launcher was about to start carries its environment a moment later
_BETWEEN_S = 0.3


@contextlib.contextmanager
def guarded(entries: Sequence[str]) -> Iterator[None]:
    """While this lasts: if this process is killed, end all that carry these `NAME=value` in their environment."""
    guard = _start(entries)
    try:
        yield
    finally:
        if guard is not None:
            guard.kill()
            guard.communicate()


def _start(entries: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """In a session of its own, without dptune's streams: Ctrl-C and whoever reads the output do not wait for it."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError):  # trials run without it, too
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "dptune.prove.guard", *entries],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return None


def main(entries: Sequence[str]) -> None:
    """Wait until the pipe ends, then end what is left."""
    os.chdir("/")  # the folder of the script may be removed meanwhile
    sys.stdin.buffer.read()
    for _ in range(_LOOKS):
        processes.end_all(set.intersection(*(set(processes.carrying(entry)) for entry in entries)))
        time.sleep(_BETWEEN_S)


if __name__ == "__main__":
    main(sys.argv[1:])
