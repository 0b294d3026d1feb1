"""Which user on which machine recorded a run: enough to distinguish a user's run folders from others, and no more.

Digests, since run folders are sent around: neither a user's number nor a machine's identity can be read from them.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_DIGITS = 16


@dataclass
class Origin:
    """`machine` and `user` as digests; "" in runs of older versions."""

    machine: str = ""
    user: str = ""


def here() -> Origin:
    """This user on this machine."""
    machine = _machine_id()
    user = str(os.geteuid()) if hasattr(os, "geteuid") else os.environ.get("USERNAME", "")
    return Origin(_digest("machine", machine), _digest("user", machine, user))


def is_foreign(folder: Path, recorded: Origin) -> bool:
    """Whether a file or folder belongs to another user, or was recorded by another user or on another machine.

    Also where nothing was recorded: whoever unpacks an archive owns what is in it. Raises OSError.
    """
    if hasattr(os, "geteuid") and folder.stat().st_uid != os.geteuid():
        return True
    return recorded != here()


def _machine_id() -> str:
    """The system's own identity of this machine, else its name."""
    for path in _MACHINE_IDS:
        try:
            found = path.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if found:
            return found
    return _windows_id() or socket.gethostname()


def _windows_id() -> str:
    if sys.platform != "win32":
        return ""
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SOFTWARE\Microsoft\Cryptography") as key:
            return str(winreg.QueryValueEx(key, "MachineGuid")[0])
    except OSError:
        return ""


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(("dptune run folder", *words)).encode("utf-8", "replace")).hexdigest()[:_DIGITS]
