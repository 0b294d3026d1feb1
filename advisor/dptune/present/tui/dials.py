"""The settings of the what-if tab: which can be turned for a run, their values, and what a recommendation sets."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from math import isclose
from typing import NamedTuple

from dptune.advice import Advice
from dptune.knobs import Value, written
from dptune.measure.steps.input_wait import drawn_from
from dptune.measured import Measured, Missing, digits
from dptune.trace.run import Run
from dptune.whatif.cpu.buckets import DEFAULT_CAP_BYTES, MIB
from dptune.whatif.link import link_figures

UNCHANGED = "unchanged"
NO_STRAGGLER = "straggler.removed"


class Dial(NamedTuple):
    """A setting and the values that the arrow keys go through, UNCHANGED among them; `now` is what that is."""

    knob: str
    what: str
    values: tuple[Value | str, ...]
    now: str = ""

    @property
    def other(self) -> Value:
        """A value that is not what is now, the next one where there is one."""
        at = self.values.index(UNCHANGED)
        return self.values[at + 1 if at + 1 < len(self.values) else at - 1]


def dials(run: Run, measured: Measured) -> list[Dial]:
    """What can be turned for a run: other values of what it has now, in order of size."""
    world = measured.known("world_size") or 1
    on_cpus, units = measured.known("device_kind") == "cpu", _units(run)
    sharded = units > 0 or any(facts.fsdp for facts in run.facts.values())
    found = list(_of_gpus(run, sharded) if not on_cpus else _of_units(run, units) if sharded else _of_ddp(run))
    if world > 1:
        found += [] if sharded else [Dial("ddp.comm_hook", "gradients sent as", (UNCHANGED, "fp16", "bf16"))]
        found += _of_links(measured)
        found.append(Dial("world_size", "ranks", (UNCHANGED, *(world * times for times in (2, 4, 8))), str(world)))
        found.append(Dial(NO_STRAGGLER, "remove straggler", (UNCHANGED, True)))
    return found


def _of_gpus(run: Run, sharded: bool) -> Iterator[Dial]:
    """What its model knows of any trace; of a recording, what its facts allow."""
    yield from _OF_ALL_GPUS
    if sharded:
        yield Dial("fsdp.reshard_after_forward", "free gathered units", (UNCHANGED, False))
        yield Dial("fsdp.prefetch", "gather units ahead", (UNCHANGED, True))
    if run.facts:
        yield Dial("precision.autocast", "autocast", (UNCHANGED, "bf16"))
        yield Dial("optimizer.fused", "fused optimizer", (UNCHANGED, True))
        is_replicated = any(facts.ddp for facts in run.facts.values())
        yield from _of_ddp(run) if is_replicated else _of_loader(run)


def _of_ddp(run: Run) -> Iterator[Dial]:
    every = list(run.facts.values())
    caps = {(module.first_bucket_bytes, module.bucket_cap_bytes) for facts in every for module in facts.ddp}
    first, cap = caps.pop() if len(caps) == 1 else (None, None)
    sizes = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0)
    is_default = cap is None or (cap == DEFAULT_CAP_BYTES and first != cap)
    now = _DEFAULT_MB if is_default or cap is None else cap / MIB
    yield Dial("ddp.bucket_cap_mb", "bucket size, MiB", _around(sizes, now), "default" if is_default else f"{now:.3g}")
    yield from _of_loader(run)
    yield Dial("ddp.no_sync", "all-reduce once per step", (UNCHANGED, True))


def _units(run: Run) -> int:
    """How many units of fully_shard have parameters."""
    first = next(iter(run.facts.values()), None)
    return sum(len(fsdp.names) for fsdp in first.fsdp) if first else 0


def _of_units(run: Run, units: int) -> Iterator[Dial]:
    yield Dial("fsdp.reshard_after_forward", "free gathered units", (UNCHANGED, False))
    if units:
        counts: tuple[Value, ...] = (*sorted({1, max(1, units // 2)} - {units}),)
        yield Dial("fsdp.units", "units", (*counts, UNCHANGED, 2 * units), str(units))
    yield Dial("fsdp.reduce_dtype", "gradients sent as", (UNCHANGED, "bf16"))
    if any(fsdp.version == 2 for facts in run.facts.values() for fsdp in facts.fsdp):
        yield Dial("wrapper", "wrapper", (UNCHANGED, "ddp"), "fsdp")
    yield from _of_loader(run)
    yield Dial("fsdp.no_sync", "reduce once per step", (UNCHANGED, True))


def _of_loader(run: Run) -> Iterator[Dial]:
    loader = drawn_from(list(run.facts.values()))
    if loader and loader.batch_size:
        batches = (loader.batch_size * times for times in (2, 4, 8))
        yield Dial("loader.batch_size", "loader batch size", (UNCHANGED, *batches), str(loader.batch_size))
    if loader and not loader.num_workers:
        yield Dial("loader.num_workers", "loader workers", (UNCHANGED, 1, 2, 4, 8), "0")


def _of_links(measured: Measured) -> Iterator[Dial]:
    try:
        link = link_figures(measured)
    except Missing:
        return
    rate, alpha = link.algbw_gb_per_s, link.alpha_us
    yield Dial("link.gb_per_s", "link, GB/s", _around((0.01, 0.1, 1.0, 10.0, 100.0), rate), digits(rate))
    latencies = (1.0, 10.0, 100.0, 1000.0, 10_000.0)
    yield Dial("link.alpha_us", "latency, us", _around(latencies, alpha), digits(alpha))


def _around(values: Sequence[float], now: float) -> tuple[Value | str, ...]:
    """Values in order of size, with what it is now at its place among them, or in place of one that is the same."""
    below = [value for value in values if value < now and not isclose(value, now, rel_tol=_SAME)]
    above = [higher for higher in values if higher > now and not isclose(higher, now, rel_tol=_SAME)]
    return (*below, UNCHANGED, *above)


_DEFAULT_MB = 24.0  # torch's own: 25 but for the first bucket, which is of 1, so a little less than 25 for all
_SAME = 0.02
_NAMES = {  # of settings that only a recommendation needs
    "ddp.bucket_cap_mb": "bucket size, MiB",
    "ddp.bucket_cap_mb_list": "bucket sizes, MiB",
    "ddp.first_bucket_mb": "first bucket, MiB",
    "ddp.comm_hook": "gradients sent as",
    "ddp.no_sync": "all-reduce once per step",
    "fsdp.no_sync": "reduce once per step",
    "fsdp.reshard_after_forward": "free gathered units",
    "optimizer.lr": "learning rate",
    "optimizer.betas": "Adam betas",
    "optimizer.eps": "Adam epsilon",
    "ddp.gradient_as_bucket_view": "gradients in buckets",
    "ddp.broadcast_buffers": "broadcast buffers",
    "loader.batch_size": "loader batch size",
    "loader.num_workers": "loader workers",
    "loader.persistent_workers": "workers kept",
    "loader.prefetch_factor": "batches ahead",
    "loader.pin_memory": "pinned memory",
    "copies.non_blocking": "non-blocking copies",
    "cuda.graphs": "CUDA graphs",
    "compile.model": "torch.compile",
    "attention.sdpa": "fused attention",
    "cudnn.allow_tf32": "TF32 convolutions",
    "optimizer.foreach": "foreach optimizer",
    "fsdp.reduce_dtype": "gradients sent as",
    "fsdp.param_dtype": "parameters in",
    "fsdp.within_hosts": "shard within hosts",
    "accumulation.micro_batches": "micro-batches",
    "optimizer.fused": "fused optimizer",
    "precision.autocast": "autocast",
    "precision.float32_matmul": "float32 products",
    "fsdp.forward_prefetch": "gathered ahead, forward",
    "fsdp.backward_prefetch": "gathered ahead, backward",
    "wrapper": "wrapper",
    "straggler.balanced": "even work over ranks",
}
_OF_ALL_GPUS = (
    Dial("host.times", "host time factor", (0.0, 0.5, UNCHANGED, 2.0)),
    Dial("compute.times", "kernel time factor", (0.25, 0.5, UNCHANGED, 2.0)),
    Dial("syncs.removed", "remove host-device syncs", (UNCHANGED, True)),
)


def advised(
    made: Sequence[Dial], advice: Sequence[Advice], known: Container[str] = ()
) -> tuple[list[Dial], dict[str, Value], str]:
    """The settings with a value for each recommendation that can be predicted; the values of the first of these, by
    setting; and its rule and name. No value and no name where there is none.

    `known`: settings that the model predicts or bounds; those only recommendations need come last.
    """
    turned = {dial.knob: dial for dial in made}
    added: dict[str, Dial] = {}
    first, by = dict[str, Value](), ""
    for recommendation in advice:
        wanted = wanted_of(recommendation)
        if not wanted or not all(knob in turned or knob in known for knob in wanted):
            continue
        now = {change.knob: change.now for change in recommendation.changes}
        for knob, value in wanted.items():
            dials = turned if knob in turned else added
            dials[knob] = _with(dials.get(knob) or _dial_of(knob, now.get(knob)), value)
        if not by:
            first, by = wanted, name_of(recommendation)
    return [*turned.values(), *added.values()], first, by


def wanted_of(advice: Advice) -> dict[str, Value]:
    """The settings that predict a recommendation: those that were replayed for it, else those that it changes."""
    replayed = advice.saves.settings if advice.saves else {}
    return dict(replayed or {change.knob: change.then for change in advice.changes})


def name_of(advice: Advice) -> str:
    """`DP102 no-sync-missing`."""
    return f"{advice.rule} {advice.slug}"


def _dial_of(knob: str, now: Value) -> Dial:
    """A setting that only a recommendation needs."""
    what = _NAMES.get(knob, re.sub(r"[._]", " ", knob))
    return Dial(knob, what, (UNCHANGED,), "" if now is None else written(now))


def _with(dial: Dial, value: Value) -> Dial:
    """The setting with one more value: before the next larger one, words after what is now."""
    if value in dial.values:
        return dial
    at = dial.values.index(UNCHANGED) + 1
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        larger = (place for place, other in enumerate(dial.values) if isinstance(other, (int, float)) and other > value)
        at = next(larger, len(dial.values))
    return dial._replace(values=(*dial.values[:at], value, *dial.values[at:]))
