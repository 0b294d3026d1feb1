"""The link that all-reduces use, as measured."""

from __future__ import annotations

from dptune.measured import LinkFigures, Measured, Missing
from dptune.whatif.cpu.topology import ALONE
from dptune.whatif.cpu.wire import Link

_GLOO_LANES = 2  # threads of a process group of gloo


def link_figures(measured: Measured) -> LinkFigures:
    """The link that all-reduces go over: by `dptune links`, else by what the trace shows."""
    fitted = [link for link in measured.links if link.kind == "all_reduce" and link.known("algbw_gb_per_s")]
    if measured.known("world_size") == 1:
        raise Missing(ALONE)
    if not fitted:
        raise Missing("latency and bandwidth of all-reduces are unknown: measure them with `dptune links`")
    return min(fitted, key=lambda figures: (figures.basis != "sweep", -len(figures.ranks)))


def link_of(figures: LinkFigures, backend: str) -> Link:
    """The link of these figures, with the lanes of the backend."""
    return Link(figures.alpha_us * 1e3, figures.algbw_gb_per_s, _GLOO_LANES if backend == "gloo" else 1)
