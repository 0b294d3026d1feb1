"""Waiting for the data loader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from dptune.measure.host.launch_idle import EVENT_NS, events_in
from dptune.measure.views import RankView
from dptune.measured import InputFigures, PreparingFigures
from dptune.runfile.facts import Facts
from dptune.runfile.loader import LoaderFacts

_NO_LOADER = "no batch was drawn from a torch DataLoader in the untraced steps"
_NO_RANGES = "the script uses no torch DataLoader, or its ranges were not recorded"


@dataclass(frozen=True)
class LoaderWait:
    """What one rank waits for its loader in `steps` steps that take `steps_ns` together.

    `median_ns` is its median untraced step; None where the steps are traced. `events` are those of the host that were
    recorded in the wait; None where they were not read.
    """

    waited_ns: int
    steps_ns: int
    steps: int
    median_ns: float | None = None
    events: int | None = None

    @property
    def share(self) -> float:
        """Of the step."""
        return self.waited_ns / self.steps_ns


def waits(facts: Facts | None, view: RankView | None) -> LoaderWait | str:
    """What one rank waits, or why that is not known: in untraced steps where recorded, else in those of `view`.

    Of untraced steps only those that drew the median number of batches count: between two epochs a step may contain
    a whole validation. Traced steps are the device's windows, as in the account. Of a host that runs ahead of its
    device, a step is shorter than on the device, and the loader takes a larger share of it.
    """
    window = facts.window("untraced") if facts else None
    if window is not None and sum(window.durations_ns) > 0 and len(window.loader_wait_ns) == window.steps:
        if not any(window.loader_batches):
            return _NO_LOADER
        steps = window.usual_steps
        waited_ns = sum(window.loader_wait_ns[n] for n in steps)
        return LoaderWait(
            waited_ns, sum(window.durations_ns[n] for n in steps), len(steps), median(window.durations_ns)
        )
    if view is None or not view.windows:
        return view.no_steps if view is not None and view.no_steps else "no steps were recorded"
    if not len(view.host.loading):
        return _NO_RANGES
    windows = [window for device in view.devices for window in device.windows]
    waited = [view.host.loading.within(window.start_ns, window.end_ns) for window in windows]
    return LoaderWait(
        waited_ns=sum(each.total_ns for each in waited),
        steps_ns=sum(window.length_ns for window in windows),
        steps=len(windows),
        events=sum(events_in(view, each) for each in waited) if view.whole else None,
    )


def least_share(known: Iterable[LoaderWait]) -> float:
    """Of traced steps what waiting takes at least, if the profiler adds as much as it can to each event in it."""
    read = [rank for rank in known if rank.events is not None]
    left_ns = sum(rank.waited_ns - EVENT_NS * (rank.events or 0) for rank in read)
    return max(0.0, left_ns / sum(rank.steps_ns for rank in read)) if read else 0.0


def computed_share(facts: Iterable[Facts]) -> float | None:
    """Of the wait in the usual untraced steps of all ranks, the part in which the training thread itself computed."""
    waited = computed = 0
    for window in (rank_facts.window("untraced") for rank_facts in facts):
        if window is not None and len(window.loader_cpu_ns) == len(window.loader_wait_ns) == window.steps:
            steps = window.usual_steps
            waited += sum(window.loader_wait_ns[n] for n in steps)
            computed += sum(window.loader_cpu_ns[n] for n in steps)
    return computed / waited if waited else None


def other_share(facts: Iterable[Facts]) -> float:
    """Of the wait in the usual untraced steps of all ranks that have no workers, what was not preparing batches."""
    waited = fetched = 0
    for window in (rank_facts.window("untraced") for rank_facts in facts):
        if window is None or not len(window.loader_fetch_ns) == len(window.loader_wait_ns) == window.steps:
            continue
        steps = [n for n in window.usual_steps if window.loader_fetch_ns[n]]
        if 2 * len(steps) > len(window.usual_steps):
            waited += sum(window.loader_wait_ns[n] for n in steps)
            fetched += sum(window.loader_fetch_ns[n] for n in steps)
    return max(0.0, 1 - fetched / waited) if waited else 0.0


def drawn_from(facts: Sequence[Facts]) -> LoaderFacts | None:
    """The loader that steps drew most from, on the rank that waited longest for it."""

    def waited(facts: Facts) -> int:
        window = facts.window("untraced")
        return sum(window.loader_wait_ns) if window else 0

    loaders = max(facts, key=waited).loaders if facts else []
    return max(loaders, key=lambda loader: (loader.batches_drawn or 0, loader.dataset_samples or 0), default=None)


def preparing(loader: LoaderFacts | None) -> PreparingFigures | None:
    """What its batches are made of; None where that was not metered, or cannot be."""
    preparation = loader.preparing if loader else None
    if preparation is None or preparation.batches <= 0 or min(preparation.reading_ns, preparation.collating_ns) < 0:
        return None
    whole = preparation.reading_ns + preparation.collating_ns
    if not whole:
        return None
    return PreparingFigures(
        batch_ns=round(whole / preparation.batches),
        reading_share=preparation.reading_ns / whole,
        reading_computed_share=min(1.0, preparation.reading_cpu_ns / max(preparation.reading_ns, 1)),
        collating_share=preparation.collating_ns / whole,
        computed_share=min(1.0, (preparation.reading_cpu_ns + preparation.collating_cpu_ns) / whole),
        read_by=preparation.read_by or "",
        collated_by=preparation.collated_by or "",
        tensors=_per_batch(preparation.tensors, preparation.batches),
        tensor_bytes=_per_batch(preparation.tensor_bytes, preparation.batches),
    )


def _per_batch(total: int | None, batches: int) -> int | None:
    return None if total is None or total < 0 else round(total / batches)


def input_figures(ranks: Sequence[LoaderWait | str], facts: Iterable[Facts] = ()) -> InputFigures:
    """Of all ranks, as step times are: untraced the median over them, traced the mean over all of their steps.

    Untraced figures of some ranks leave the traced ones of others out.
    """
    recorded = list(facts)
    computed, other = computed_share(recorded), other_share(recorded)
    made_of = preparing(drawn_from(recorded))
    unknown = {} if computed is not None else {"computed_share": "only `dptune profile` measures this"}
    if made_of is None:
        unknown["preparing"] = "only `dptune profile` measures this, where workers are forked"
    known = [rank for rank in ranks if not isinstance(rank, str)]
    if not known:
        why = next((rank for rank in ranks if isinstance(rank, str)), "no rank was recorded")
        return InputFigures(
            computed_share=computed,
            other_share=other,
            preparing=made_of,
            missing={"wait_share": why, "wait_ns": why, **unknown},
        )
    untraced = [(rank.share, rank.share * rank.median_ns) for rank in known if rank.median_ns is not None]
    if untraced:
        wait_share, wait_ns = (median(figure) for figure in zip(*untraced, strict=True))
    else:
        waited_ns = sum(rank.waited_ns for rank in known)
        wait_share = waited_ns / sum(rank.steps_ns for rank in known)
        wait_ns = waited_ns / sum(rank.steps for rank in known)
    return InputFigures(
        wait_share=wait_share,
        wait_ns=round(wait_ns),
        computed_share=computed,
        other_share=other,
        preparing=made_of,
        basis="untraced" if untraced else "traced",
        least_share=0.0 if untraced else least_share(known),
        missing=unknown,
    )
