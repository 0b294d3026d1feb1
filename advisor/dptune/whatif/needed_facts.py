"""The facts that predictions are made of: where one could not be read, nothing is predicted from its default."""

from __future__ import annotations

from collections.abc import Iterable

from dptune.measured import Missing
from dptune.runfile.facts import Facts

_NEEDED = (
    *("host", "backend", "device", "ddp", "fsdp", "engine", "loaders", "optimizers"),
    *("autocast", "compiled", "checkpointing", "tensors"),
)


def check(facts: Iterable[Facts]) -> None:
    """Raise Missing where a rank's could not be read."""
    for rank_facts in facts:
        if lacking := rank_facts.lacking(*_NEEDED):
            raise Missing(lacking)
