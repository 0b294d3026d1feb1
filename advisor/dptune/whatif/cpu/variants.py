"""Other models that the data allow, each group of one cause: how far a prediction may be off by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from dptune.knobs import Value
from dptune.measured import Measured
from dptune.whatif.cpu import hybrid
from dptune.whatif.cpu.model import StepModel
from dptune.whatif.link import link_figures, link_range

_HOOK_TIMES = (0.6, 2.0)  # how far what a hook computes may be from its prediction
# How far what the code of another wrapper takes may be from its prediction, and what is computed under it.
_WRAPPER_TIMES = ((0.5, 0.87), (1.5, 1.15))
_OTHER_APART = (0.05, 0.2)  # what ranks compute apart between collectives of units, where that is not recorded
_OTHER_BESIDE = (0.8, 1.25)  # times what is predicted of collectives beside compute
_OTHER_CROWDED = (1.2, 1.8)  # slowdowns, once no rank is late
_UNEVEN_LEFT = 0.25  # of the difference: batches of samples sorted by length, or cut by tokens, are not of equal cost
# Times what a pass computes once it no longer communicates: the threads and the kernel that moved its gradients leave
# cores and caches to it, after the collective, too. Of two scripts with four passes, of which three communicated no
# more, one computed 12 % less in all of a step; the other's step was 7 % of what it computes shorter than predicted.
_QUIET = 0.85


def variants(model: StepModel, measured: Measured) -> Iterator[tuple[StepModel, ...]]:
    """The model with other links that the data allow, and with either half of the steps: a group for each cause."""
    alone = model.latency.alone
    if model.sharding is not None and model.sharding.hybrid is not None:
        yield hybrid.variants_of(model)
    else:
        yield tuple(
            replace(model, link=replace(model.link, alpha_ns=alone * link.alpha_ns, bytes_per_ns=link.bytes_per_ns))
            for link in link_range(link_figures(measured))
        )
    yield tuple(replace(model, fixed_share=min(1.0, share * model.fixed_share)) for share in (0.7, 1.4))
    if model.sharding is None:
        yield tuple(
            replace(model, slowdown=slowdown)
            for slowdown in {(1 + model.slowdown) / 2, 1.5 * model.slowdown - 0.5} - {model.slowdown}
        )
        yield tuple(replace(model, beside=max(1.0, times * model.beside)) for times in _OTHER_BESIDE)
    links = [replace(model.link, alpha_ns=times * model.link.alpha_ns) for times in model.latency.others]
    yield tuple(replace(model, link=other_link) for other_link in links)
    count = min(map(len, model.steps.values()))
    if count > 1:
        halves = (slice(0, count // 2), slice(count // 2, count))
        yield tuple(replace(model, steps={rank: steps[half] for rank, steps in model.steps.items()}) for half in halves)


def others(model: StepModel, changes: Mapping[str, Value]) -> Iterator[StepModel]:
    """Models that differ in what only these changes do: what a hook computes, how kernels grow with the batch, ..."""
    if changes.get("ddp.comm_hook") not in (None, "none"):
        for times in _HOOK_TIMES:
            yield replace(model, hook_times=times)
    if "wrapper" in changes:
        for times, compute in _WRAPPER_TIMES:
            yield replace(model, wrapper_times=times * model.wrapper_times).computing(compute)
        for share in _OTHER_APART if model.sharding is None else ():
            yield replace(model, apart_share=share)
    elif "fsdp.units" in changes:
        for times, _ in _WRAPPER_TIMES:
            yield replace(model, wrapper_times=times * model.wrapper_times)
    if changes.get(hybrid.WITHIN_HOSTS):
        yield from hybrid.others_of(model, changes)
    if "ddp.no_sync" in changes:
        yield replace(model, quiet_times=_QUIET)
    if changes.get("straggler.balanced"):
        yield replace(model, uneven_left=_UNEVEN_LEFT)
    if changes.get("straggler.removed") or changes.get("straggler.balanced"):
        for slowdown in _OTHER_CROWDED:
            yield replace(model, crowded_slowdown=slowdown)
