"""What `dptune profile` asks of torchrun: how many ranks on how many nodes, and how the nodes find each other."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Torchrun:
    """Options of torchrun, by their names there; None where they were not given."""

    nproc_per_node: int | str | None = None
    nnodes: int | str | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    rdzv_backend: str | None = None
    rdzv_endpoint: str | None = None
    rdzv_id: str | None = None
    rdzv_conf: str | None = None

    @property
    def asked(self) -> list[str]:
        """The options that were given, as they are written."""
        return [_option(field.name) for field in fields(self) if getattr(self, field.name) is not None]

    @property
    def words(self) -> list[str]:
        """The options as words; `--standalone` where nothing is said of a rendezvous: it takes any free port."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given["nproc_per_node"] = given["nproc_per_node"] or 1
        words = [f"{_option(name)}={value}" for name, value in given.items() if value is not None]
        alone = not self.several_nodes and not any(option.startswith(("--rdzv", "--master")) for option in self.asked)
        return ["--standalone", *words] if alone else words

    @property
    def several_nodes(self) -> bool:
        """Whether there may be more than one node."""
        return str(self.nnodes or 1).rpartition(":")[2] != "1"

    @property
    def node(self) -> str | None:
        """This node's name among the others, where the command line gives it one."""
        static = self.rdzv_backend in (None, "static")
        number = self.node_rank if self.node_rank is not None or not static else 0
        return None if number is None else f"node-{number}"

    @property
    def local_ranks(self) -> int:
        """How many ranks start on this node; where torchrun counts the devices, what it is expected to find."""
        asked = self.nproc_per_node or 1
        if isinstance(asked, int):
            return asked
        cores = os.cpu_count() or 1
        return cores if asked == "cpu" else _visible_gpus() or (cores if asked == "auto" else 1)

    @property
    def world_size(self) -> int | None:
        """How many ranks there are in all; None where torchrun decides that."""
        nodes = self.nnodes or 1
        counted = isinstance(self.nproc_per_node or 1, int) and isinstance(nodes, int)
        return self.local_ranks * int(nodes) if counted else None


def _visible_gpus() -> int:
    """GPUs of this machine that a process would see, without asking torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
