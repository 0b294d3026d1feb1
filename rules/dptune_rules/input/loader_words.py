"""What the advice of `loader-starves-step` says of the loader: the mechanism, its figures and what to keep."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Evidence
from dptune.measured import PreparingFigures
from dptune.rule import RunView
from dptune_rules.input.loader_waits import has_workers

_DIFFERS = 0.01  # of a step: a smaller difference between ranks is noise

SENDING = (
    "With num_workers=0 the training process prepares every batch itself. A worker would copy each batch into shared "
    "memory, which takes cores from the model."
)
ITERABLE = " An IterableDataset must divide its samples among workers."


WORKERS = " Workers run in parallel."


def why(now: int | None, device: str | None) -> str:
    """The mechanism, by the number of workers, where that is known, and what the device does meanwhile."""
    if now:
        return "The workers deliver batches more slowly than steps consume them."
    idle = "" if device == "cpu" else " and the device waits"
    if now == 0:
        return f"With num_workers=0 the training process prepares every batch itself{idle}.{WORKERS}"
    return "The loader is slower than the steps that consume its batches. `dptune profile` records how they are loaded."


def watch(run: RunView, then: int | None) -> str:
    """What workers change, and what torch says of more of them than cores; of a cheaper batch what is to stay."""
    if then is None:
        return "Keep the samples unchanged."
    words = "Random augmentation in workers draws other numbers than in the training process."
    device = run.facts[0].device if run.facts else None
    if device is None or then <= (device.usable_cores or then):
        return words
    return f"{words} Ignore torch's warning about more workers than cores: these mostly wait for storage."


def repeats(workers: int | None, dataset: str, reader: str) -> str:
    """What workers do to an iterable data set that does not divide its samples, and how it can."""
    return (
        f"{'More workers' if workers else 'Workers'} would each return every sample: the code of {dataset} does not "
        f"split them. Before setting num_workers, make {reader or f'{dataset}.__iter__'} skip the samples of other "
        "workers before it prepares them: `info = torch.utils.data.get_worker_info()` has `info.id` and "
        "`info.num_workers`."
    )


def evidence(
    run: RunView, host: float, wait: float, now: int | None, cores: int | None, where: str
) -> Iterator[Evidence]:
    """The wait, on which rank it is longest, the workers and cores, and what preparing a batch takes."""
    yield Evidence(
        label="the host waits for the loader" if wait < host else "waiting for the loader",
        value=host,
        unit=f"of a step ({run.measured.input.basis}, median over ranks)",
    ).at(run.measured.where("input_idle_ns"))
    if wait < host:
        yield Evidence(label="of this wait, with the device idle", value=wait, unit="of a traced step")
    least = run.measured.input.least_share
    if least and now is None and has_workers(run) is False:
        yield Evidence(
            label="lower bound of the host's wait, less 10 us of profiler overhead per event",
            value=least,
            unit="of a step",
        )
    waits = {rank.rank: rank.known("loader_wait_share") for rank in run.measured.ranks}
    slowest = max(waits, key=lambda rank: waits[rank] or 0.0, default=None)
    longest = (waits[slowest] if slowest is not None else None) or 0.0
    if longest - host >= _DIFFERS:
        yield Evidence(label="longest wait of a rank", value=longest, unit="of its step", rank=slowest)
    if now is not None:
        yield Evidence(label="workers", value=now, unit="processes")
    if cores is not None:
        yield Evidence(label="cores that are free for workers", value=cores)
    if preparing := run.measured.input.known("preparing"):
        yield from _parts(preparing, now)
    if where:
        yield Evidence(label="loader created at", value=where)


def _parts(preparing: PreparingFigures, workers: int | None) -> Iterator[Evidence]:
    # Of the first batches and of traced steps, too: with one batch a step it may be more than the step takes.
    unit = f"ms{' in a worker' if workers else ''}, the mean since the script started, including traced steps"
    yield Evidence(label="preparing a batch", value=preparing.batch_ns / 1e6, unit=unit)
    if preparing.tensors:
        yield Evidence(label="tensors in a batch", value=preparing.tensors)
    if preparing.tensor_bytes:
        yield Evidence(label="size of the tensors in a batch", value=preparing.tensor_bytes, unit="bytes")
    for label, share, by in (
        ("reading and transforming samples", preparing.reading_share, preparing.read_by),
        ("collating", preparing.collating_share, preparing.collated_by),
    ):
        yield Evidence(label=label, value=share, unit=f"of batch preparation{f', by {by}' if by else ''}")
    yield Evidence(label="compute, not waiting", value=preparing.computed_share, unit="of batch preparation")
