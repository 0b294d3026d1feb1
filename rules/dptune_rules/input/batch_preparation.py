"""What makes preparing a batch slow: the part and the function that take most, and what a worker would send."""

from __future__ import annotations

from dptune.measured import PreparingFigures
from dptune.rule import HotFunction, LoaderFacts, RunView, Threshold
from dptune_rules.input.loader_cores import COMPUTED_SHARE

MOST_SHARE = Threshold("most_share", 0.6, "a smaller part does not explain slow batch preparation")
BY_INDEX = ("TensorDataset",)  # takes a list of indices as well as one
# Of the CPU time of preparing batches of a TensorDataset, one call for each tensor saved 87, 84, 64, 43 and -24 % for
# samples of 0.3, 0.3, 4, 12 and 48 KiB (torch 2.13).
MOST_SAMPLE_BYTES = 16 * 2**10


def slow_part(run: RunView, preparing: PreparingFigures, a_core: float) -> str | None:
    """What most of preparing a batch is; None where it is neither part."""
    if preparing.reading_share >= run.limit(MOST_SHARE):
        computes = preparing.reading_computed_share >= COMPUTED_SHARE * a_core
        how = "compute" if computes else "mostly waiting, for example for storage"
        part = f"{100 * preparing.reading_share:.0f} % of batch preparation"
        return f"reading and transforming samples takes {part} ({how})"
    if preparing.collating_share >= run.limit(MOST_SHARE):
        return f"collating takes {100 * preparing.collating_share:.0f} % of batch preparation"
    return None


def takes_indices(loader: LoaderFacts | None, preparing: PreparingFigures | None) -> bool:
    """Whether one call for each tensor could take a whole batch out of those that hold all samples, and save time."""
    if loader is None or preparing is None or loader.batch_size is None or loader.own_batches:
        return False
    sample_bytes = (preparing.tensor_bytes or 0) / loader.batch_size
    of_tensors = loader.dataset == "Subset" and (preparing.read_by or "").startswith(BY_INDEX)
    indexes = loader.takes_lists or of_tensors or loader.dataset in BY_INDEX
    by_index = indexes and preparing.collated_by in ("", "default_collate")
    return by_index and sample_bytes <= MOST_SAMPLE_BYTES


def takes_whole_batches(preparing: PreparingFigures | None) -> bool:
    """Whether the data set already returns a whole batch in one call."""
    return preparing is not None and ".__getitems__" in (preparing.read_by or "")


def costly_function(run: RunView, preparing: PreparingFigures | None) -> HotFunction | None:
    """The function that takes most of preparing batches, with its line, and the share; None where none is known."""
    hot = run.hottest_in_loader()
    if hot and hot.share >= run.limit(MOST_SHARE):
        return hot
    if preparing is None:
        return None
    parts = (preparing.reading_share, preparing.read_by), (preparing.collating_share, preparing.collated_by)
    share, function = max(parts, key=lambda part: part[0])
    name, _, at = (function or "").removesuffix(")").partition(" (")
    if share < run.limit(MOST_SHARE) or not at:
        return None
    name = name.replace(".<locals>", "")
    return HotFunction(name, run.hottest_line(name.rpartition(".")[2], at) or at, share)


def sent_mib(run: RunView, preparing: PreparingFigures | None, workers: int | None) -> float:
    """MiB of a batch that first workers would send; 0 where that is not known, or takes no cores from the model."""
    if workers != 0 or preparing is None or run.measured.known("device_kind") != "cpu":
        return 0.0
    return (preparing.tensor_bytes or 0) / 2**20
