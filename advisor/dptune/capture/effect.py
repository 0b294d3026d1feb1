"""Whether settings that were changed from outside took effect: read off the facts, whatever the applier believes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any

from dptune.capture.fsdp_effect import OF_UNITS, Explanation, Reading, flat_instead, units_of
from dptune.knobs import ENVIRONMENT, KNOBS, PATCHED, UNKNOWN, Knob, of_change
from dptune.knobs.ddp import DDP
from dptune.knobs.loader import LOADER
from dptune.runfile.facts import Facts
from dptune.runfile.redaction import HIDDEN, redacted_text

MIB = 2**20
_TORCHS_BUCKET_BYTES = 25 * MIB

_NO_BETAS = "the script creates no optimizer with betas (like Adam)"

_THREADS = "OMP_NUM_THREADS"
_LONGEST = 60  # characters of a value


def without_effect(settings: Mapping[str, Any], facts: Sequence[Facts]) -> dict[str, str]:
    """The settings that did not take effect on every rank, by the names of their knobs, with the reason."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        for rank_facts in facts:
            if why := _lacks(name, value, rank_facts):
                found[name] = why if len(facts) == 1 else f"rank {rank_facts.rank}: {why}"
                break
    return found


def in_force(name: str, value: Any, facts: Sequence[Facts]) -> bool:
    """Whether every rank has the setting so already; False where the facts do not tell."""
    return bool(facts) and not without_effect({name: value}, facts)


def _lacks(name: str, value: Any, rank_facts: Facts) -> str:
    if name in rank_facts.refused:
        return rank_facts.refused[name]
    if name.startswith(ENVIRONMENT):
        return _variable_lacks(name.removeprefix(ENVIRONMENT), value, rank_facts)
    if name not in KNOBS and name not in PATCHED:
        return f"{UNKNOWN}: not a setting of this version"
    read, nothing = reading(name)
    try:
        there = list(read(rank_facts, value))
    except (AttributeError, TypeError, ValueError, OverflowError):  # run.json may come from another hand
        return f"{UNKNOWN}: {str(value)[:_LONGEST]!r} is not a valid value"
    if not there:
        unread = rank_facts.unread.get(_recorded_as(name)) or _freed(name, rank_facts)
        return f"unknown: {unread}" if unread else flat_instead(name, rank_facts) or nothing
    other = [actual for actual in there if actual != value]
    if not other:
        return ""
    return str(other[0]) if isinstance(other[0], Explanation) else f"it is {other[0]} in the script"


def reading(name: str) -> tuple[Reading, str]:
    """How a knob is read off the facts, and what to say where nothing has it.

    A switch is among the rank's settings, and an argument among the facts of what the call made.
    """
    knob = of_change(name)
    absent = _ABSENT.get(name) or (knob.call.absent if knob.call else "torch did not report it")
    if name in _READINGS:
        return _READINGS[name], absent
    return (_switch(knob.switch) if knob.switch else _argument(knob)), absent


def _switch(path: str) -> Reading:
    return lambda rank_facts, _: iter([rank_facts.settings[path]] if path in rank_facts.settings else [])


def _argument(knob: Knob) -> Reading:
    assert knob.call is not None
    objects, name = knob.call.facts, knob.argument

    def read(rank_facts: Facts, _: Any) -> Iterator[Any]:
        for made in getattr(rank_facts, objects):
            if getattr(made, "batches_drawn", True):  # of loaders those that the training thread drew from
                yield getattr(made, name) if hasattr(made, name) else made.arguments.get(name)

    return read


def _freed(name: str, rank_facts: Facts) -> str:
    """Why a loader that steps drew batches from is not among the facts: its iterator does not keep it alive."""
    drawn = any(any(window.loader_batches) for window in rank_facts.windows)
    of_loader = of_change(name).call is LOADER
    return "the DataLoader was freed before its settings were read" if of_loader and drawn else ""


def _recorded_as(name: str) -> str:
    """The name under which a knob's fact is listed where it could not be read; empty where none is."""
    if name in _RECORDED_AS:
        return _RECORDED_AS[name]
    knob = of_change(name)
    return knob.switch or (knob.call.facts if knob.call else "")


def _variable_lacks(variable: str, value: Any, rank_facts: Facts) -> str:
    variable_facts = next((candidate for candidate in rank_facts.variables if candidate.name == variable), None)
    if variable_facts is None:
        return f"unknown: {rank_facts.unread.get('variables', 'the script did not report the variable')}"
    if not variable_facts.as_asked:
        return (
            f"{variable} is not set in the script"
            if variable_facts.value is None
            else f"{variable} is {variable_facts.value} in the script"
        )
    shown = variable_facts.value  # what was asked of that process, which may be another value than this one
    if shown not in (None, HIDDEN, redacted_text(str(value))):
        return f"{variable} is {shown} in the script"
    threads = rank_facts.device.torch_threads if rank_facts.device is not None else None
    if variable == _THREADS and isinstance(value, str) and threads is not None:
        asked = value.split(",")[0].strip()  # one number for each level of nesting
        if asked.isdecimal() and int(asked) != threads:
            return f"torch computes with {threads} {'thread' if threads == 1 else 'threads'} in the script"
    return ""


def _bucket_cap(rank_facts: Facts, value: float | None) -> Iterator[Any]:
    """torch's default is a first bucket of its own; a size that is given is that of the first one too."""
    wanted = _TORCHS_BUCKET_BYTES if value is None else _bytes_of(value)
    for ddp in rank_facts.ddp:
        cap, first = ddp.bucket_cap_bytes, ddp.first_bucket_bytes
        if ddp.bucket_caps_bytes:
            yield Explanation("the script sets a size for each bucket: " + _in_mib(ddp.bucket_caps_bytes))
        elif cap is not None and cap == wanted and value is None and first == wanted:
            yield Explanation(f"the first bucket also has {cap / MIB:g} MiB in the script")
        else:
            yield value if cap == wanted else None if cap is None else cap / MIB


def _bytes_of(mib: float) -> int:
    if not isinstance(mib, int | float):  # multiplying a string by 2**20 would make gigabytes
        raise TypeError
    return int(mib * MIB)


def _first_bucket(rank_facts: Facts, value: float) -> Iterator[Any]:
    wanted = _bytes_of(value)
    for ddp in rank_facts.ddp:
        size = ddp.first_bucket_bytes
        if size is None:
            yield Explanation("unknown: torch does not report the size it uses")
        elif size != wanted and size == ddp.bucket_cap_bytes:
            yield Explanation(f"the script sets the size of all buckets, including the first: {size / MIB:g} MiB")
        else:
            yield value if size == wanted else size / MIB


def _bucket_caps(rank_facts: Facts, value: str) -> Iterator[Any]:
    wanted = [int(float(size) * MIB) for size in value.split(",")]
    for ddp in rank_facts.ddp:
        there = ddp.bucket_caps_bytes
        yield value if there == wanted else _in_mib(there) or "one size for all"


def _in_mib(caps: Sequence[int]) -> str:
    return ",".join(f"{cap / MIB:g}" for cap in caps)


def _batch_size(rank_facts: Facts, value: int) -> Iterator[Any]:
    """Of the loader that most batches were drawn from; others may have batches of another size."""
    drawn = [loader for loader in rank_facts.loaders if loader.batches_drawn]
    if drawn:
        yield max(drawn, key=lambda drawn_loader: drawn_loader.batches_drawn or 0).batch_size


def _fused(rank_facts: Facts, value: bool) -> Iterator[Any]:
    return (bool(optimizer.fused) for optimizer in rank_facts.optimizers)


def _foreach(rank_facts: Facts, value: bool) -> Iterator[Any]:
    """Where it is not set, torch takes many tensors at once on GPUs, unless it fuses."""
    on_cpu = rank_facts.device is None or rank_facts.device.kind == "cpu"
    for optimizer in rank_facts.optimizers:
        yield not on_cpu and not optimizer.fused if optimizer.foreach is None else optimizer.foreach


def _learning_rate(rank_facts: Facts, value: float | None) -> Iterator[Any]:
    """By what a scheduler starts from, else by the rate there is: without a scheduler nothing should have moved it."""
    bases = [
        scheduler.base_learning_rate for scheduler in rank_facts.schedulers if scheduler.base_learning_rate is not None
    ]
    for optimizer in rank_facts.optimizers:
        there = next(iter(bases), optimizer.first_learning_rate) or next(iter(optimizer.learning_rates), None)
        if there is None:
            yield Explanation("unknown: the optimizer has no learning rate")
        elif value is None or isclose(there, value, rel_tol=1e-6):
            yield value
        elif rank_facts.schedulers:
            yield Explanation(f"{rank_facts.schedulers[0].name} starts from {there:g} in the script")
        else:
            yield there


def _betas(rank_facts: Facts, value: str) -> Iterator[Any]:
    wanted = [float(part) for part in value.split(",")]
    for optimizer in rank_facts.optimizers:
        if optimizer.betas:
            same = len(optimizer.betas) == len(wanted) and all(map(isclose, optimizer.betas, wanted))
            yield value if same else ",".join(f"{beta:g}" for beta in optimizer.betas)


def _eps(rank_facts: Facts, value: float) -> Iterator[Any]:
    return (
        value if isclose(optimizer.eps, value) else optimizer.eps
        for optimizer in rank_facts.optimizers
        if optimizer.eps is not None
    )


def _hook(rank_facts: Facts, value: str) -> Iterator[Any]:
    for ddp in rank_facts.ddp:
        name = ddp.comm_hook or "none"
        yield next((word for word in ("fp16", "bf16", "powersgd") if f"{word}_gradients" in name), name)


def _left_out(rank_facts: Facts, value: bool) -> Iterator[Any]:
    """Whether passes went by without a collective, in the steps of most micro-batches: an epoch may end with fewer."""
    if rank_facts.ddp:
        yield from _unsynced(rank_facts, value)


def _unreduced(rank_facts: Facts, value: bool) -> Iterator[Any]:
    if units_of(rank_facts) and not rank_facts.ddp:
        yield from _unsynced(rank_facts, value)


def _unsynced(rank_facts: Facts, value: bool) -> Iterator[Any]:
    passes = [
        each for window in rank_facts.windows for each in zip(window.backwards, window.unsynced_backwards, strict=False)
    ]
    most = max((count for count, _ in passes), default=0)
    if most > 1:
        whole = [unsynced for count, unsynced in passes if count == most]
        asked = sum(unsynced == (most - 1 if value else 0) for unsynced in whole)
        # a patch for a static graph leaves the first step of each epoch as it was
        if asked == len(whole) or (value and 2 * asked > len(whole)):
            yield value
        else:
            yield (
                Explanation("the module is compiled: its passes are not seen")
                if value and rank_facts.compiled
                else not value
            )


def _wrapper(rank_facts: Facts, value: str) -> Iterator[Any]:
    if rank_facts.ddp or rank_facts.fsdp:
        yield "fsdp" if rank_facts.fsdp else "ddp"


def _autocast(rank_facts: Facts, value: str) -> Iterator[Any]:
    """By the last autocast that was entered. `off` needs no DistributedDataParallel: it disables the script's."""
    if rank_facts.ddp or value == "off":
        kind = (rank_facts.autocast or "").rpartition(":")[2]
        yield {"bfloat16": "bf16", "float16": "fp16"}.get(kind, "off")


def _pins(rank_facts: Facts, value: bool) -> Iterator[Any]:
    for loader in rank_facts.loaders:
        if loader.batches_drawn and loader.pins is not None and loader.pins != loader.pin_memory:
            yield Explanation("the loader has pin_memory=True, but does not pin")
        elif loader.batches_drawn:
            yield loader.pin_memory


def _checkpointed(rank_facts: Facts, value: bool) -> Iterator[Any]:
    yield rank_facts.checkpointing is not None


def _compiled(rank_facts: Facts, value: bool) -> Iterator[Any]:
    yield rank_facts.compiled is not None


# Of what takes more than its argument or switch. Every other knob is read by those.
_READINGS: Mapping[str, Reading] = {
    **OF_UNITS,
    "ddp.bucket_cap_mb": _bucket_cap,
    "ddp.bucket_cap_mb_list": _bucket_caps,
    "ddp.first_bucket_mb": _first_bucket,
    "ddp.comm_hook": _hook,
    "ddp.no_sync": _left_out,
    "fsdp.no_sync": _unreduced,
    "wrapper": _wrapper,
    "loader.pin_memory": _pins,
    "loader.batch_size": _batch_size,
    "precision.autocast": _autocast,
    "memory.checkpointing": _checkpointed,
    "compile.model": _compiled,
    "optimizer.lr": _learning_rate,
    "optimizer.betas": _betas,
    "optimizer.eps": _eps,
    "optimizer.fused": _fused,
    "optimizer.foreach": _foreach,
}
_ABSENT = {
    "ddp.no_sync": "no step has several DDP backward passes",
    "fsdp.no_sync": "no step has several backward passes through fully_shard",
    "precision.autocast": DDP.absent,
    "optimizer.betas": _NO_BETAS,
    "optimizer.eps": _NO_BETAS,
    "wrapper": "the script wraps no model in DistributedDataParallel or fully_shard",
}
_RECORDED_AS = {
    "ddp.no_sync": "",
    "fsdp.no_sync": "",
    "precision.autocast": "autocast",
    "memory.checkpointing": "checkpointing",
    "compile.model": "compiled",
}
