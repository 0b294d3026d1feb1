"""Facts of a rank that no recording has, inferred from its trace: what wraps the model, what updates it, what feeds it.

Torch names its own parts: DDP's reducer, FSDP's hooks, optimizers, loaders. What they leave in a trace says most of
what a recording reads from the objects. A part that the trace would show and does not show is absent, as a fact.
"""

from dptune.measure.inferred.ranks import (
    inferred_accumulation,
    inferred_facts,
    inferred_samples,
    inferred_world_size,
)

__all__ = ["inferred_accumulation", "inferred_facts", "inferred_samples", "inferred_world_size"]
