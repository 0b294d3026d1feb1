"""The noise scale of gradients: from how many samples on a larger batch teaches little more.

The gradient of b samples is that of all of them, G, and noise whose square is S / b. Its squared norm is |G|^2 + S / b
in the mean, so that two sizes of batch tell both: a small one, of one backward pass of one rank, and a large one, of
all passes of all ranks. Both are estimated without bias in each step and averaged over the steps, and then divided:
S / |G|^2 is the noise scale in samples (McCandlish et al. 2018, appendix A.1: https://arxiv.org/abs/1812.06162).

What passes add up to need not be divided by their number in the script: either way what a pass adds, times their
number, is a gradient that the large one is the mean of.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from dptune.measured import NoiseFigures
from dptune.runfile.facts import Facts

LEAST_STEPS = 8
_DRAWN_ANEW = 2000  # times the steps are drawn anew for the interval
_NOT_ASKED = "gradient norms were not measured: record with `dptune profile --noise-scale`"

Floats = NDArray[np.float64]


def noise(facts: Sequence[Facts], world_size: int | None) -> NoiseFigures | str:
    """The noise scale with its interval of 90 %, from the window `noise` of all ranks; or why there is none."""
    normed_facts = [rank_facts for rank_facts in facts if rank_facts.noise is not None]
    if not normed_facts:
        return _NOT_ASKED
    why = next(
        (rank_facts.noise.why for rank_facts in normed_facts if rank_facts.noise is not None and rank_facts.noise.why),
        "",
    )
    if why:
        return why
    ranks = world_size or len(facts)
    if ranks > 1 and not all(rank_facts.ddp for rank_facts in normed_facts):
        return "how ranks average gradients is known for DistributedDataParallel only"
    passes = _passes(normed_facts)
    if isinstance(passes, str):
        return passes
    samples = _samples(normed_facts, passes)
    if isinstance(samples, str):
        return samples
    if passes * ranks == 1:
        return "one rank with one backward pass per step has one batch size only: two ranks or micro-batches are needed"
    small, large = _squares(normed_facts, passes)
    if len(large) < LEAST_STEPS:
        return f"gradient norms were measured in {len(large)} steps; {LEAST_STEPS} are needed"
    return _figures(small, large, samples, samples * passes * ranks)


def _passes(facts: Sequence[Facts]) -> int | str:
    """Backward passes of a step, where all steps have as many."""
    counts = {len(step) for rank_facts in facts if rank_facts.noise is not None for step in rank_facts.noise.of_passes}
    if len(counts) != 1:
        return "the number of backward passes differs between steps" if counts else "no gradient was seen"
    return counts.pop()


def _samples(facts: Sequence[Facts], passes: int) -> int | str:
    """Samples of a pass, where each draws a batch of that size."""
    windows = [window for window in (rank_facts.window("noise") for rank_facts in facts) if window is not None]
    if {drawn for window in windows for drawn in window.loader_batches} != {passes}:
        return "a backward pass did not use exactly one batch of a torch DataLoader"
    sizes = {samples / passes for window in windows for samples in window.loader_samples}
    if len(sizes) != 1 or not min(sizes):
        return "the batches differ in size, or their size is not known"
    return int(sizes.pop())


def _squares(facts: Sequence[Facts], passes: int) -> tuple[Floats, Floats]:
    """By step: the mean square over ranks and passes of small gradients, and that of the large one."""
    kept = [rank_facts.noise for rank_facts in facts if rank_facts.noise is not None]
    steps = min(len(rank_noise.of_steps) for rank_noise in kept)
    small = [
        mean(chain.from_iterable(rank_noise.of_passes[at] for rank_noise in kept)) * passes**2 for at in range(steps)
    ]
    large = [mean(rank_noise.of_steps[at] for rank_noise in kept) for at in range(steps)]
    both = np.array([small, large], dtype=np.float64)
    finite = np.isfinite(both).all(axis=0)  # a step that a GradScaler skips has none
    return both[0][finite], both[1][finite]


def _figures(small: Floats, large: Floats, few: int, many: int) -> NoiseFigures:
    signal = (many * large - few * small) / (many - few)
    variance = (small - large) / (1 / few - 1 / many)
    drawn = np.random.default_rng(0).integers(0, len(small), (_DRAWN_ANEW, len(small)))
    scales = sorted(_scale(variance[at].mean(), signal[at].mean()) for at in drawn)
    low, high = scales[int(0.05 * _DRAWN_ANEW)], scales[int(0.95 * _DRAWN_ANEW)]
    scale = _scale(variance.mean(), signal.mean())
    lost = "the mean gradient is lost in its noise: more steps or ranks are needed"
    figures = {"noise_scale": scale, "low": low, "high": high}
    known = {name: float(value) for name, value in figures.items() if np.isfinite(value)}
    return NoiseFigures(
        steps=len(small),
        small_batch=few,
        large_batch=many,
        **known,
        missing=dict.fromkeys(figures.keys() - known, lost),
    )


def _scale(variance: float, signal: float) -> float:
    """Never below 0: where all samples have one gradient, the estimate of the noise may be."""
    return float("inf") if signal <= 0 else max(0.0, variance / signal)
