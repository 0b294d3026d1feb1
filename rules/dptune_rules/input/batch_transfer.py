"""Workers that prepare batches in time, so that a step waits for batches to get from them to the training process."""

from __future__ import annotations

from dptune.measured import PreparingFigures, in_ms
from dptune.rule import RunView, Threshold
from dptune_rules.input.loader_waits import batches_per_step

KEEPS_UP_SHARE = Threshold(
    "keeps_up_share",
    0.25,
    "of a step: workers that prepare a batch in a quarter of it keep up even if the slowest take four times the mean",
)
MANY_TENSORS = Threshold(
    "many_tensors",
    64,
    "each takes a file descriptor and a connection between the processes: batches of about 121 small tensors made two "
    "workers on two cores take 60 ms for what they prepared in 4.5 ms",
)

WHY = "Workers send each tensor through shared memory on its own, and each costs the same, however small it is."


def interval_ns(
    run: RunView, preparing: PreparingFigures | None, workers: int | None, keeps_up_share: float
) -> float | None:
    """How often the workers have a batch ready; None where preparation may be what the step waits for."""
    if not workers or preparing is None or sum(bool(loader.batches_drawn) for loader in run.facts[0].loaders) > 1:
        return None
    interval: float = preparing.batch_ns / workers
    keeps_up = interval * batches_per_step(run) < keeps_up_share * run.measured.step.time_ns
    return interval if keeps_up else None


def remedy(preparing: PreparingFigures, workers: int, every_ns: float, many_tensors: float) -> str:
    """What to send less of, and why it is not preparation that takes the time."""
    collate = f"`{name}`" if (name := preparing.collated_by) else "the collate_fn"
    if name and "(" in name:
        function, _, line = name.partition(" (")
        collate = f"`{function}` ({line}"
    has = "1 worker has" if workers == 1 else f"{workers} workers have"
    ready = f"its {has} one ready every {in_ms(every_ns)} ms"
    if (preparing.tensors or 0) >= many_tensors:
        return f"merge the {preparing.tensors} tensors of a batch into a few in {collate}; {ready}"
    return f"transferring batches from workers takes the rest, because {ready}: return fewer and smaller objects"
