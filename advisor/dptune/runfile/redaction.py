"""Keeps secrets out of what is written down: the environment and the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

HIDDEN = "<redacted>"

# Variables that change how training communicates or computes; nothing else of the environment is recorded.
_RECORDED = (
    "NCCL_",
    "RCCL_",
    "GLOO_",
    "CUDA_",
    "HIP_",
    "OMP_",
    "MKL_",
    "TORCH_",
    "PYTORCH_",
    "TORCHELASTIC_",
)
_SECRET = re.compile(r"(?i)(token|secret|passw|pwd|api[-_]?key|access[-_]?key|private[-_]?key|credential|auth)")
_URL_LOGIN = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s@]+@")


def redacted_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The recorded variables that are set, with secrets hidden."""
    source = os.environ if environment is None else environment
    return {
        name: HIDDEN if _SECRET.search(name) else _without_login(value)
        for name, value in sorted(source.items())
        if name.startswith(_RECORDED)
    }


def redacted_command(words: Sequence[str]) -> list[str]:
    """A command line with the values of secret-looking options and logins inside URLs hidden."""
    shown: list[str] = []
    hide_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        if hide_next and not word.startswith("-"):
            shown.append(HIDDEN)
            hide_next = False
            continue
        secret = bool(_SECRET.search(name)) and (word.startswith("-") or bool(equals))
        hide_next = secret and not equals
        shown.append(f"{name}={HIDDEN}" if secret and equals else _without_login(word))
    return shown


def _without_login(text: str) -> str:
    return _URL_LOGIN.sub(rf"\1{HIDDEN}@", text)
