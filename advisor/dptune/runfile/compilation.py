"""What `torch.compile` is used on in a script, and what it compiles again."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RecompileFacts:
    """A function that torch.compile compiled more than once: its line (None where it is not the user's), the reason of
    the last time, as torch states it, and how many of the last 64 compilations were of it again.
    """

    function: str
    where: str | None
    reason: str
    times: int = 1


@dataclass
class CompileFacts:
    """What torch.compile was used on: the lines that call it (None where unknown), and what it made of DDP.

    `ddp_graphs`: for each compiled graph, into how many its DDPOptimizer split it, so that buckets go out early.
    `recompiles`: the functions that were compiled again, those compiled most often first.
    """

    where: list[str | None] = field(default_factory=list)
    ddp_graphs: list[int] = field(default_factory=list)
    recompiles: list[RecompileFacts] = field(default_factory=list)
