"""One script at a time on the card: the next ones start meanwhile, and wait here with all that takes seconds done.

A lock on the file that GPU_CHECK_TURN names, held until the process ends. Without that variable nobody waits.
"""

import fcntl
import os

_held = []


def wait_for_turn():
    path = os.environ.get("GPU_CHECK_TURN")
    if path and not _held:
        # after the loader's workers were forked: they would hold it, too
        _held.append(os.open(path, os.O_CREAT | os.O_WRONLY))
        fcntl.flock(_held[0], fcntl.LOCK_EX)
