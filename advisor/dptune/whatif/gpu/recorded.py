"""A recorded run of GPUs -> the program of its traced steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from dptune.errors import TraceError
from dptune.measure.across_ranks import matched_calls
from dptune.measure.complete import complete_views
from dptune.measure.device.matmul import device_of
from dptune.measure.efficiency.peaks import common, differing
from dptune.measure.steps.steady import steady
from dptune.measure.views import RankView, detailed_view
from dptune.measured import Measured, Missing
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import Facts
from dptune.trace.kernels import RANGE_CATEGORIES
from dptune.trace.run import Run
from dptune.whatif.gpu.building import build
from dptune.whatif.gpu.links import linked
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.unit_gradients import unit_gradients
from dptune.whatif.hosts import hosts_of, share_gpus

_DRAWN = re.compile(r"enumerate\(DataLoader\)#.*__next__$")


def views_of(run: Run) -> list[RankView]:
    """The ranks, with the steps that are replayed."""
    return steady([view for view in complete_views(run) if view.whole])[0]


def program_of(run: Run, measured: Measured, read: Sequence[RankView] = ()) -> Program:
    """The program of all ranks. Raises Missing with the reason where the traces are not enough for one.

    `read`: the result of `views_of`, if already known.
    """
    views = read or views_of(run)
    lacking = next((rank_view.no_steps for rank_view in views if rank_view.no_steps), "")
    if lacking:
        raise Missing(lacking)
    ranks = measured.known("world_size") or len(run.ranks)
    samples = measured.known("samples_per_step")
    batch = _batch(run.facts) or _shown_batch(measured)
    program = build(views, matched_calls(run, views), None, ranks, samples, batch, _ddp(run.facts))
    models = _models(run, views)
    known = replace(
        program,
        hosts=hosts_of(run.facts),
        shared=share_gpus(run.facts),
        workers=0 if _all_named(views, "_SingleProcess") else None,
        has_workers=_all_named(views, "_MultiProcessing"),
        peaks=common(models, ("fp32", "tf32", "bf16", "fp16")),
        gpu="" if differing(models) else min(models, default=""),
        unit_gradients=_gradients(run, views[0]) if program.unit_reductions else {},
    )
    return linked(known.levelled(), measured)


def _gradients(run: Run, view: RankView) -> Mapping[str, tuple[int, ...]]:
    """Sizes of the gradients of units by one rank; from its detailed window if its light one has none."""
    found = unit_gradients(view)
    with suppress(TraceError):
        detail = None if found else detailed_view(run.by_rank[view.rank])
        found = found if detail is None else unit_gradients(detail)
    return found


def matches_collectives(run: Run) -> bool:
    """Whether any collective was matched on all its ranks.

    Without one a program has no reductions, which is so of some ranks of a run: its traces alone tell, and fast.
    """
    return any(
        collective.splits and collective.message_bytes for collective in matched_calls(run, views_of(run)).collectives
    )


def _all_named(views: Sequence[RankView], part: str) -> bool:
    """Whether all iterators of data loaders have that in their names."""
    names = {
        rank_view.columns.name(row)
        for rank_view in views
        for row in rank_view.columns.rows(RANGE_CATEGORIES, _DRAWN.match).tolist()
    }
    return bool(names) and all(part in name for name in names)


def _models(run: Run, views: Sequence[RankView]) -> set[str]:
    """What the devices call themselves, as recorded or else as the traces list them."""
    recorded = {facts.device.name for facts in run.facts.values() if facts.device and facts.device.name}
    return recorded or {device.name for device in map(device_of, views) if device and device.name}


def _ddp(facts: Mapping[int, Facts]) -> DdpFacts | None:
    """The only module of the script, if it was recorded."""
    modules = next((rank_facts.ddp for rank_facts in facts.values()), [])
    return modules[0] if len(modules) == 1 else None


def _shown_batch(measured: Measured) -> int | None:
    """The samples of a pass that several sources in the trace show."""
    inferred = measured.known("inferred")
    shown = None if inferred is None else inferred.batch
    return None if shown is None or shown.confidence == "low" else shown.samples


def _batch(facts: Mapping[int, Facts]) -> int | None:
    """The samples that the loader of each rank gives at once; None where they differ, or come from several."""
    sizes = {
        tuple(loader.batch_size for loader in rank_facts.loaders if loader.batches_drawn)
        for rank_facts in facts.values()
    }
    if len(sizes) != 1:
        return None
    (batch_sizes,) = sizes
    return batch_sizes[0] if len(batch_sizes) == 1 else None
