"""The link that all-reduces use: as measured, or derived from the other collectives of a ring."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from dptune.measured import LinkFigures, Measured, Missing
from dptune.measured.collectives import collective
from dptune.runfile.link_age import age, in_words
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.topology import ALONE

AS_ALL_REDUCES = "the run's own reduce-scatters, which gloo runs as all-reduces"
DERIVED = "the run's own reduce-scatters and all-gathers, the two halves of a ring all-reduce"
_GLOO_LANES = 2  # threads of a process group of gloo
_HALVES = ("reduce_scatter", "all_gather")  # of a ring all-reduce
# A ring all-reduce is both, one after the other: each sends (n - 1) / n of the message, it sends 2 (n - 1) / n
# (Patarasuk & Yuan, J. Parallel Distrib. Comput. 69, 2009). NCCL may choose another algorithm or protocol for it,
# in-switch reduction above all; by how much that changes the rate is assumed.
_DERIVED_LOW, _DERIVED_HIGH = 0.75, 1.35


def link_figures(measured: Measured) -> LinkFigures:
    """The link that all-reduces go over: by `dptune links`, else by what the trace shows."""
    fitted = [link for link in measured.links if link.known("algbw_gb_per_s")]
    if measured.known("world_size") == 1:
        raise Missing(ALONE)
    on_cpus = measured.known("device_kind") == "cpu"
    found = [link for link in fitted if link.kind == "all_reduce"] or (_on_gloo if on_cpus else _derived)(fitted)
    if not found:
        raise Missing("latency and bandwidth of all-reduces are unknown: measure them with `dptune links`")
    return min(found, key=lambda figures: (figures.basis != "sweep", -len(figures.ranks)))


def source_of(measured: Measured, recorded: str) -> str:
    """What that link is from, in words, and how long before the run (`recorded`) it was measured."""
    figures = link_figures(measured)
    if figures.basis != "sweep":
        return figures.source or "the run's own all-reduces"
    old = in_words(age(figures.measured, recorded))
    when = f", measured {old} before this run" if old else ""
    return f"dptune links ({figures.source}{when})"


def link_of(figures: LinkFigures, backend: str) -> Link:
    """The link of these figures, with the lanes of the backend."""
    return Link(figures.alpha_us * 1e3, figures.algbw_gb_per_s, _GLOO_LANES if backend == "gloo" else 1)


def link_range(figures: LinkFigures) -> list[Link]:
    """The quickest and the slowest link that the fit allows."""
    if figures.known("alpha_low_us") is None or not figures.known("busbw_low_gb_per_s"):
        return []
    factor = figures.algbw_gb_per_s / figures.busbw_gb_per_s if figures.known("busbw_gb_per_s") else 1.0
    return [
        Link(figures.alpha_low_us * 1e3, figures.busbw_high_gb_per_s * factor),
        Link(figures.alpha_high_us * 1e3, figures.busbw_low_gb_per_s * factor),
    ]


def _on_gloo(fitted: Sequence[LinkFigures]) -> list[LinkFigures]:
    """All-reduces of each set of ranks whose reduce-scatters were fitted (`ProcessGroupGloo::_reduce_scatter_base`).

    A rate on the bus counts the bytes that each rank sends, which are twice those of a reduce-scatter.
    """
    busbw = ("busbw_gb_per_s", "busbw_low_gb_per_s", "busbw_high_gb_per_s")
    return [
        link.model_copy(
            update={
                "kind": "all_reduce",
                "source": AS_ALL_REDUCES,
                **{name: 2 * rate for name in busbw if (rate := link.known(name)) is not None},
            }
        )
        for link in fitted
        if link.kind == "reduce_scatter"
    ]


def _derived(fitted: Sequence[LinkFigures]) -> list[LinkFigures]:
    """All-reduces of each set of ranks of which a half was fitted; the half that was not is like the other."""
    halves: dict[tuple[int, ...], list[LinkFigures]] = defaultdict(list)
    for link in fitted:
        if link.kind in _HALVES:
            halves[tuple(link.ranks)].append(link)
    return [_both(links[0], links[-1]) for links in halves.values()]


def _both(first: LinkFigures, second: LinkFigures) -> LinkFigures:
    """An all-reduce that takes as long as both."""
    algbw = 1 / (1 / first.algbw_gb_per_s + 1 / second.algbw_gb_per_s)
    busbw = algbw * (collective("all_reduce").bus_factor(len(first.ranks)) or 1.0)
    low, high = ((_known(first, name) + _known(second, name)) for name in ("alpha_low_us", "alpha_high_us"))
    return first.model_copy(
        update={
            "kind": "all_reduce",
            "source": DERIVED,
            "alpha_us": first.alpha_us + second.alpha_us,
            "alpha_low_us": low,
            "alpha_high_us": high,
            "algbw_gb_per_s": algbw,
            "busbw_gb_per_s": busbw,
            "busbw_low_gb_per_s": _DERIVED_LOW * busbw,
            "busbw_high_gb_per_s": _DERIVED_HIGH * busbw,
            "missing": {name: why for name, why in first.missing.items() if first.known(name) is None},
        }
    )


def _known(figures: LinkFigures, name: str) -> float:
    """An end of the latency, or the latency itself."""
    end_us: float | None = figures.known(name)
    return figures.alpha_us if end_us is None else end_us
