"""Micro-batches per optimizer step, and samples per step: what only the recording process counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from dptune.measured import AccumulationFigures
from dptune.runfile.facts import Facts
from dptune.runfile.window import Window

_NO_FACTS = "only `dptune profile` counts this"


def accumulation(facts: Sequence[Facts], no_facts: str = _NO_FACTS) -> AccumulationFigures:
    """Backward calls per optimizer step, medians over the untraced steps and then over ranks; or why there are none."""
    backwards = _median(facts, _backwards, _backwards)
    why = "no backward call was counted in the untraced steps" if facts else no_facts
    why_not_synchronised = _nothing_to_synchronise(facts) if backwards else why
    synchronised = None if why_not_synchronised else _median(facts, _synchronised, _backwards)
    missing = {
        **({} if backwards else {"backwards_per_step": why}),
        **({"synchronised_backwards_per_step": why_not_synchronised} if why_not_synchronised else {}),
    }
    return AccumulationFigures(
        backwards_per_step=backwards, synchronised_backwards_per_step=synchronised, missing=missing
    )


def _nothing_to_synchronise(facts: Sequence[Facts]) -> str:
    """Why no backward pass of these ranks averages gradients; empty where passes do."""
    if all(rank_facts.world_size < 2 for rank_facts in facts):
        return "a single process averages no gradients"
    if not any(rank_facts.ddp or rank_facts.fsdp or rank_facts.engine for rank_facts in facts):
        if lacking := next((why for each in facts if (why := each.lacking("ddp", "fsdp", "engine"))), ""):
            return lacking
        return "no DDP or FSDP module averages gradients in backward passes"
    return ""


def samples_per_step(facts: Sequence[Facts], world_size: int | None) -> tuple[int | None, str]:
    """The global batch, and why where it is not known: the median rank's samples times the number of ranks."""
    if not facts:
        return None, _NO_FACTS
    samples = _median(facts, _samples, _samples)
    if not samples:
        return None, "no batch was drawn from a torch DataLoader with a known batch size in the untraced steps"
    return samples * (world_size or len(facts)), ""


def _backwards(window: Window) -> list[int]:
    return window.backwards


def _samples(window: Window) -> list[int]:
    return window.loader_samples


def _synchronised(window: Window) -> list[int]:
    return [every - held for every, held in zip(window.backwards, window.unsynced_backwards, strict=False)]


def _median(
    facts: Sequence[Facts], counts: Callable[[Window], list[int]], seen: Callable[[Window], list[int]]
) -> int | None:
    """Median over ranks of each rank's median count per step; None where no step was counted, or `seen` is all 0."""
    by_rank = []
    for rank_facts in facts:
        window = rank_facts.window("untraced")
        if window is not None and any(seen(window)) and counts(window):
            by_rank.append(median(counts(window)))
    return round(median(by_rank)) if by_rank else None
