"""torchrun's options, of every verb that starts ranks through it."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING

from dptune.commands.shared.amounts import count, nodes, ranks_per_node

if TYPE_CHECKING:
    from dptune.capture.torchrun import Torchrun


def torchrun_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    group = parser.add_argument_group("start ranks through torchrun (same options)")
    options = (
        ("nproc-per-node", ranks_per_node, "N|gpu|cpu|auto", "ranks on this node (default: 1)"),
        ("nnodes", nodes, "N|MIN:MAX", "nodes; run dptune on each"),
        ("node-rank", count, "I", "this node's number"),
        ("master-addr", str, "HOST", "address of node 0"),
        ("master-port", count, "PORT", "port there"),
        ("rdzv-backend", str, "NAME", "rendezvous backend, if no node is the master"),
        ("rdzv-endpoint", str, "HOST:PORT", "rendezvous endpoint"),
        ("rdzv-id", str, "ID", "job id; also names the run folder"),
        ("rdzv-conf", str, "K=V,...", "extra rendezvous options"),
    )
    for name, kind, metavar, text in options:
        group.add_argument(f"--{name}", type=kind, metavar=metavar, help=text)
        if "-" in name:  # torchrun takes both
            hidden = argparse.SUPPRESS
            group.add_argument(f"--{name.replace('-', '_')}", type=kind, default=hidden, help=hidden)


def torchrun_of(args: argparse.Namespace) -> Torchrun:
    """What was asked of torchrun."""
    from dptune.capture.torchrun import Torchrun

    return Torchrun(**{field.name: getattr(args, field.name) for field in fields(Torchrun)})
