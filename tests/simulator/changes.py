"""The catalogue of changes: what a run needs for a change to matter, and what differs after it.

A change is named as `dptune whatif --set` names it. Changes without a name there are named here in the same manner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.simulator.machine import Draw, Machine
from tests.simulator.settings import MIB, Loader, Settings, Straggler

Run = tuple[Machine, Settings]


@dataclass(frozen=True)
class Change:
    """`prepare` makes a drawn run one to which the change applies, `apply` changes it to that value."""

    name: str
    values: Callable[[Draw, Run], str]
    prepare: Callable[[Draw, Settings], Settings]
    apply: Callable[[Run, str], Run]


def _same(_: Draw, settings: Settings) -> Settings:
    return settings


def _prepared(**fields: object) -> Callable[[Draw, Settings], Settings]:
    return lambda _, settings: replace(settings, **fields)  # type: ignore[arg-type]


_replicated = _prepared(strategy="ddp")


def _one_of(*values: str) -> Callable[[Draw, Run], str]:
    return lambda draw, _: draw.random.choice(values)


def _set(**fields: object) -> Callable[[Run, str], Run]:
    return lambda run, _: (run[0], replace(run[1], **fields))  # type: ignore[arg-type]


def _caps(run: Run, value: str) -> Run:
    return run[0], replace(run[1], bucket_caps=tuple(float(size) * MIB for size in value.split(",")))


def _first_bucket(run: Run, value: str) -> Run:
    return run[0], replace(run[1], bucket_caps=(float(value) * MIB, 25.0 * MIB))


def _accumulating(draw: Draw, settings: Settings) -> Settings:
    batch = max(1, settings.batch // 2)
    return replace(settings, strategy="ddp", micro_batches=draw.random.choice((2, 4)), batch=batch)


def _batch(run: Run, value: str) -> Run:
    return run[0], replace(run[1], batch=int(value))


def _even(_: Draw, settings: Settings) -> Settings:
    return replace(settings, batch=max(2, settings.batch))


def _batch_times(run: Run, value: str) -> Run:
    return run[0], replace(run[1], batch=round(float(value) * run[1].batch))


def _reading(draw: Draw, settings: Settings) -> Settings:
    return replace(settings, losses_read=draw.random.choice((1, settings.layers)))


def _loading(pinned: bool, workers: tuple[int, ...]) -> Callable[[Draw, Settings], Settings]:
    def prepare(draw: Draw, settings: Settings) -> Settings:
        decode_us = draw.between(50.0, 600.0)
        sample_bytes = int(draw.between(1e5, 2e6)) // 4 * 4
        return replace(settings, loader=Loader(draw.random.choice(workers), decode_us, pinned, sample_bytes))

    return prepare


def _workers(run: Run, value: str) -> Run:
    loader = run[1].loader
    assert loader is not None
    return run[0], replace(run[1], loader=replace(loader, workers=int(value)))


def _non_blocking(run: Run, _: str) -> Run:
    loader = run[1].loader
    assert loader is not None
    return run[0], replace(run[1], loader=replace(loader, pinned=True))


def _late(draw: Draw, settings: Settings) -> Settings:
    rank = draw.random.randrange(settings.ranks)
    if draw.chance(0.5):
        return replace(settings, straggler=Straggler(rank, "compute", compute_times=draw.between(1.1, 1.6)))
    # a host that reads its loss cannot hide its sleep behind the launch queue
    late = Straggler(rank, "host", host_us=draw.between(2e3, 2e4), spread=draw.between(0.01, 0.2))
    return replace(settings, straggler=late, losses_read=1)


def _uneven(draw: Draw, settings: Settings) -> Settings:
    rank = draw.random.randrange(settings.ranks)
    if draw.chance(0.5):
        return replace(settings, straggler=Straggler(rank, "compute", compute_times=draw.between(1.1, 1.6)))
    # every rank has a step in which it takes longer
    return replace(settings, straggler=Straggler(-1, "host", host_us=draw.between(2e3, 2e4)), losses_read=1)


def _balanced(run: Run, _: str) -> Run:
    settings = run[1]
    assert settings.straggler is not None
    if settings.straggler.kind == "host":
        return run[0], replace(settings, straggler=None, pause_us=settings.straggler.host_us / settings.ranks)
    mean = 1 + (settings.straggler.compute_times - 1) / settings.ranks
    return run[0], replace(settings, straggler=None, compute_times=settings.compute_times * mean)


def algorithm_bandwidth(run: Run) -> float:
    """GB/s of an all-reduce, as `dptune whatif` counts it: the buffer over its time."""
    machine, settings = run
    return machine.link.gb_per_s * settings.ranks / (2 * (settings.ranks - 1))


def _faster(draw: Draw, run: Run) -> str:
    return f"{algorithm_bandwidth(run) * draw.random.choice((0.5, 2.0, 4.0)):.3g}"


def _link(run: Run, value: str) -> Run:
    machine, settings = run
    bus = float(value) * 2 * (settings.ranks - 1) / settings.ranks
    return replace(machine, link=replace(machine.link, gb_per_s=bus)), settings


def latency_us(run: Run) -> float:
    """Of an all-reduce of all ranks."""
    machine, settings = run
    return machine.link.transfer_us("all_reduce", 0, settings.ranks)


def _quicker(draw: Draw, run: Run) -> str:
    return f"{latency_us(run) * draw.random.choice((0.5, 2.0)):.3g}"


def _latency(run: Run, value: str) -> Run:
    link = run[0].link
    factor = float(value) / latency_us(run)
    return replace(run[0], link=replace(link, base_us=factor * link.base_us, hop_us=factor * link.hop_us)), run[1]


def _hook(run: Run, value: str) -> Run:
    return run[0], replace(run[1], hook=value)


def _micro_batches(run: Run, value: str) -> Run:
    return run[0], replace(run[1], micro_batches=int(value))


def _ranks(run: Run, value: str) -> Run:
    return run[0], replace(run[1], ranks=int(value))


def _host_times(run: Run, value: str) -> Run:
    return replace(run[0], host=run[0].host.times(float(value))), run[1]


def _compute_times(run: Run, value: str) -> Run:
    return run[0], replace(run[1], compute_times=run[1].compute_times * float(value))


def _doubled(field: str) -> Callable[[Draw, Run], str]:
    return lambda _, run: str(2 * getattr(run[1], field))


def _sharding(_: Draw, settings: Settings) -> Settings:
    precision = "fp32" if settings.precision == "tf32" else settings.precision
    return replace(settings, strategy="fsdp", precision=precision)


def _whole_gradients(draw: Draw, settings: Settings) -> Settings:
    return replace(_accumulating(draw, settings), strategy="fsdp", precision=_sharding(draw, settings).precision)


def _fewer_units(draw: Draw, run: Run) -> str:
    layers = run[1].layers
    return str(draw.random.choice([units for units in range(1, layers) if layers % units == 0]))


def _units(run: Run, value: str) -> Run:
    return run[0], replace(run[1], unit_layers=run[1].layers // int(value))


_ALL = (
    Change("ddp.bucket_cap_mb", _one_of("1", "5", "10", "50", "100"), _replicated, _caps),
    Change("ddp.bucket_cap_mb_list", _one_of("1,8,25", "5,25", "2,50"), _replicated, _caps),
    Change("ddp.first_bucket_mb", _one_of("5", "10"), _replicated, _first_bucket),
    Change("ddp.no_sync", _one_of("true"), _accumulating, _set(no_sync=True)),
    Change(
        "ddp.comm_hook", _one_of("bf16", "fp16"), _replicated, lambda run, value: (run[0], replace(run[1], hook=value))
    ),
    Change("accumulation.micro_batches", _one_of("1"), _accumulating, _micro_batches),
    Change(
        "ddp.gradient_as_bucket_view",
        _one_of("true"),
        _prepared(strategy="ddp", gradient_as_bucket_view=False),
        _set(gradient_as_bucket_view=True),
    ),
    Change("loader.batch_size", _doubled("batch"), _loading(True, (4,)), _batch),
    Change("batch.times", _one_of("0.5", "2", "4"), _even, _batch_times),
    Change("loader.num_workers", _one_of("4"), _loading(True, (0,)), _workers),
    Change("copies.non_blocking", _one_of("true"), _loading(False, (2, 4)), _non_blocking),
    Change("precision.float32_matmul", _one_of("high"), _prepared(precision="fp32"), _set(precision="tf32")),
    Change("precision.autocast", _one_of("bf16"), _prepared(precision="fp32", strategy="ddp"), _set(precision="bf16")),
    Change("optimizer.fused", _one_of("true"), _prepared(optimizer="foreach"), _set(optimizer="fused")),
    Change("optimizer.foreach", _one_of("true"), _prepared(optimizer="loop"), _set(optimizer="foreach")),
    Change("attention.sdpa", _one_of("true"), _prepared(attention="naive"), _set(attention="sdpa")),
    Change("syncs.removed", _one_of("true"), _reading, _set(losses_read=0)),
    Change("straggler.removed", _one_of("true"), _late, _set(straggler=None)),
    Change("straggler.balanced", _one_of("true"), _uneven, _balanced),
    Change("link.alpha_us", _quicker, _same, _latency),
    Change("link.gb_per_s", _faster, _same, _link),
    Change("world_size", _doubled("ranks"), _same, _ranks),
    Change("fsdp.prefetch", _one_of("true"), _sharding, _set(prefetch=1)),
    Change("fsdp.reshard_after_forward", _one_of("false"), _sharding, _set(reshard=False)),
    Change("fsdp.no_sync", _one_of("true"), _whole_gradients, _set(no_sync=True)),
    Change("fsdp.units", _fewer_units, _sharding, _units),
    Change("wrapper", _one_of("ddp"), _prepared(strategy="fsdp", precision="fp32"), _set(strategy="ddp")),
    Change("host.times", _one_of("0.5", "0.8"), _same, _host_times),
    Change("compute.times", _one_of("0.8", "1.25"), _same, _compute_times),
    Change("cuda.graphs", _one_of("true"), _prepared(losses_read=0), _set(graphs=True)),
)
CHANGES = {change.name: change for change in _ALL}
