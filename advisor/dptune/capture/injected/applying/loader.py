"""Arguments of DataLoader, only of those that the script trains from, as far as that is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from dptune.capture.injected.applying import without_effect
from dptune.capture.injected.applying.constructing import Arguments, adjust
from dptune.capture.injected.observe import process_rank

# What a loader without worker processes refuses, or has no use for.
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


def num_workers(value: int) -> None:
    """A data set that is iterated gives each worker all of itself, unless it knows of workers: it is left alone."""

    def change(given: Arguments) -> None:
        if isinstance(given.get("dataset"), IterableDataset):
            return
        given["num_workers"] = value
        if value == 0:
            for name in _OF_WORKERS:
                given.pop(name, None)

    adjust(DataLoader, change)


def _of_workers(name: str) -> Callable[[Any], None]:
    def apply(value: Any) -> None:
        def change(given: Arguments) -> None:
            if given.get("num_workers", 0) > 0:
                given[name] = value

        adjust(DataLoader, change)

    return apply


def pin_memory(value: bool) -> None:
    """Whether batches are put into page-locked memory. Without an accelerator torch warns of it, and does nothing."""

    def change(given: Arguments) -> None:
        if not value or not without_effect.settings({"loader.pin_memory": value}, process_rank.device_kind()):
            given["pin_memory"] = value

    adjust(DataLoader, change)


def batch_size(value: int) -> None:
    """Samples of a batch on each rank, of the loader that is made first and of those with batches as large.

    A loader of another size has another purpose, validation say, and is left alone; so is one that takes whole batches
    from a sampler. Whether the one that is trained from was meant is read off what was drawn.
    """
    first: list[int] = []

    def change(given: Arguments) -> None:
        script_batch_size = given.get("batch_size", 1)
        if given.get("batch_sampler") is None and script_batch_size is not None:
            first.append(script_batch_size)
            if script_batch_size == first[0]:
                given["batch_size"] = value

    adjust(DataLoader, change)


# In this order: prefetching and persistence ask whether there are workers by then.
APPLIERS: dict[str, Callable[[Any], None]] = {
    "loader.num_workers": num_workers,
    "loader.prefetch_factor": _of_workers("prefetch_factor"),
    "loader.persistent_workers": _of_workers("persistent_workers"),
    "loader.pin_memory": pin_memory,
    "loader.batch_size": batch_size,
}
