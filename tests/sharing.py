"""What one process of tests has made, for those that run beside it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

FOLDER = "TESTS_SHARED"  # the folder of what is shared; tests/conftest.py makes it where several processes run tests
Made = TypeVar("Made")


def place(name: str) -> Path | None:
    """Where it is, or would be; None where tests run in one process."""
    folder = os.environ.get(FOLDER)
    return None if folder is None else Path(folder, hashlib.sha256(name.encode()).hexdigest())


def once(name: str, make: Callable[[], Made], is_shared: Callable[[Made], bool] = lambda _: True) -> Made:
    """What was made by that name; made here where no other process has done so. Others wait for it meanwhile."""
    path = place(name)
    if path is None:
        return make()
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if kept := file.read():
            return pickle.loads(kept)  # type: ignore[no-any-return]
        made = make()
        if is_shared(made):
            pickle.dump(made, file, pickle.HIGHEST_PROTOCOL)
    return made
