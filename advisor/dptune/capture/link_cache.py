"""Sweeps of links that are kept for later runs in the user's cache folder: one for each way of connecting ranks.

Kept are those among the ranks of one host. Another host, boot, network namespace, backend, number of ranks, device,
torch or variable of NCCL or gloo is another way.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from dptune.runfile import json_files, links
from dptune.runfile.facts import Facts
from dptune.runfile.links import LinkRecord
from dptune.runfile.redaction import HIDDEN

_CONNECTS = ("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_")
_LOGS = ("NCCL_DEBUG",)  # where and how much NCCL writes connects nobody


def connecting(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which NCCL and gloo choose how to connect ranks."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_CONNECTS) and not name.startswith(_LOGS) and HIDDEN not in value
    }


def load(facts: Facts) -> LinkRecord | None:
    """What was measured of ranks that were connected like these; None where nothing was."""
    path = _path(facts)
    if path is not None:
        with contextlib.suppress(OSError, ValueError):
            return links.read(path)
    return None


def store(facts: Facts, record: LinkRecord) -> None:
    """Keep a sweep; nothing where that cannot be."""
    path = _path(facts)
    if path is not None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            json_files.write(path, record)


def _path(facts: Facts) -> Path | None:
    """The file for ranks that are connected as these are."""
    device = (facts.device.name or facts.device.kind) if facts.device else ""
    way = [
        [facts.host, _boot(), _network()],
        [facts.backend, facts.world_size, device, facts.torch],
        sorted(connecting(facts.environment).items()),
    ]
    name = hashlib.sha256(json.dumps(way).encode()).hexdigest()[:24]
    try:
        return platformdirs.user_cache_path("dptune") / "links" / f"{name}.json"
    except RuntimeError:  # there may be no home
        return None


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _network() -> str:
    """The network namespace: containers of one name may have other networks."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/net")  # noqa: PTH115 - no file
    return ""
