"""The GPU model that a user gives for traces that do not name it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from dptune.finding import Finding
from dptune.measure.device.architectures import of_columns
from dptune.measure.device.operations import vendor
from dptune.measure.efficiency.peaks import architecture_has, model_of
from dptune.runfile.ranks import spans
from dptune.trace.events import Device, Trace
from dptune.trace.kernels import KERNEL_CATEGORIES, LAUNCH_CATEGORIES
from dptune.trace.loading.same_device import capability_of
from dptune.trace.run import RankTrace, Run
from dptune.trace.vendors import VENDORS, vendor_of

GIVEN, IGNORED = "gpu-given", "gpu-given-ignored"
_FIRST_OF = {"Volta": (7, 0), "Turing": (7, 5), "Ampere": (8, 0), "Hopper": (9, 0), "Blackwell": (10, 0)}


def with_gpu(run: Run, name: str) -> Run:
    """The run with `name` as the GPU of each rank whose GPU neither its facts nor its trace name.

    A rank that names another GPU, or whose trace shows that it ran on another, is left as it is. A finding says which
    ranks were named, and one for each reason to ignore the name.
    """
    ignored: dict[str, list[int]] = defaultdict(list)
    named: dict[int, RankTrace] = {}
    for rank in run.every_rank:
        recorded = _recorded_name(run, rank)
        if recorded:
            if not _same(recorded, name):
                ignored[f"{'the recording names' if _in_facts(run, rank) else 'the trace names'} {recorded}"].append(
                    rank.rank
                )
        elif why := _contradiction(rank, name):
            ignored[why].append(rank.rank)
        else:
            named[rank.rank] = replace(rank, light=_named(rank.light, name))
    found = [
        Finding(code=IGNORED, level="info", text=f"--gpu {name} is ignored for {_which(ranks)}: {why}")
        for why, ranks in ignored.items()
    ]
    if named:
        text = f"GPU of {_which(named)}: {name}, given with --gpu; the trace does not name it"
        found.append(Finding(code=GIVEN, level="info", text=text))
    return replace(
        run,
        ranks=[named.get(rank.rank, rank) for rank in run.ranks],
        digested=[named.get(rank.rank, rank) for rank in run.digested],
        findings=[*run.findings, *found],
    )


def _which(ranks: Collection[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {spans(ranks)}"


def _in_facts(run: Run, rank: RankTrace) -> bool:
    facts = run.facts.get(rank.rank)
    return bool(facts and facts.device and facts.device.name)


def _recorded_name(run: Run, rank: RankTrace) -> str:
    facts = run.facts.get(rank.rank)
    if facts and facts.device and facts.device.name:
        return facts.device.name
    return next((device.name for device in rank.light.devices if device.name), "")


def _same(recorded: str, given: str) -> bool:
    """Whether two names are of one model: the same row of peaks, or the same words."""
    model = model_of(recorded)
    return (model is not None and model is model_of(given)) or recorded.casefold() == given.casefold()


def _contradiction(rank: RankTrace, name: str) -> str:
    """What the trace of a rank shows that no GPU of this name does; "" where nothing contradicts it."""
    columns, kind = rank.light.columns, vendor_of((), (), [name]).kind
    if rank.digest is None and not len(columns.rows(KERNEL_CATEGORIES)):
        return "the trace has no GPU kernels"
    signs = frozenset[str]().union(*(each.signs for each in VENDORS))
    shows_vendor = len(columns.rows(LAUNCH_CATEGORIES)) or signs & frozenset(columns.categories)
    if shows_vendor and (shown := vendor(rank.light).kind) != kind:
        return f"the trace is of a {shown} device"
    known = _numbers(capability_of(name))
    listed = next((device for device in rank.light.devices if device.compute_major is not None), None)
    if listed is not None and known and listed.compute_major != known[0]:
        return f"the trace lists compute capability {listed.compute_major}.{listed.compute_minor or 0}"
    shown_as = of_columns(columns)
    if shown_as is None:
        return ""
    least = _FIRST_OF.get(shown_as.name)
    if least is None:  # an ISA of AMD
        fits = architecture_has(shown_as.name, name)
    elif not known:
        fits = kind == "cuda"
    else:
        fits = known[0] == least[0] if shown_as.exact and least[0] < 10 else known >= least
    return "" if fits else f"the kernels show {shown_as.text}"


def _numbers(capability: str) -> tuple[int, int] | None:
    major, _, minor = capability.partition(".")
    return (int(major), int(minor)) if major and minor else None


def _named(trace: Trace, name: str) -> Trace:
    major, minor = _numbers(capability_of(name)) or (None, None)
    listed = [
        replace(device, name=name)
        if device.compute_major is not None
        else replace(device, name=name, compute_major=major, compute_minor=minor)
        for device in trace.devices or (Device(index=0, name=""),)
    ]
    return replace(trace, devices=tuple(listed))
