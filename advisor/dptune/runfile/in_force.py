"""Which settings a run has already, as the facts of its ranks tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dptune.runfile.facts import Facts

_OF_DDP = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view", "broadcast_buffers")
_OF_LOADER = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "batch_size")
_SWITCHES = {
    "precision.float32_matmul": "float32_matmul_precision",
    "cudnn.benchmark": "backends.cudnn.benchmark",
    "cudnn.allow_tf32": "backends.cudnn.allow_tf32",
}
_AUTOCAST = {"bfloat16": "bf16", "float16": "fp16"}


def in_force(facts: Sequence[Facts], name: str) -> set[object]:
    """The values that a knob has in a run: several where ranks, or modules, differ; none where they do not tell."""
    read = _READ.get(name)
    found = [value for one in facts for value in read(one)] if read else []
    return set() if None in found else set(found)


def _each(of: Callable[[Facts], Iterable[object]], attribute: str) -> Callable[[Facts], list[object]]:
    return lambda facts: [getattr(one, attribute) for one in of(facts)]


def _switch(name: str) -> Callable[[Facts], list[object]]:
    return lambda facts: [facts.settings.get(name)]


def _autocast(facts: Facts) -> list[object]:
    """`off` where it was never entered."""
    if facts.autocast is None:
        return [None if "autocast" in facts.unread or not facts.steps else "off"]
    return [_AUTOCAST.get(facts.autocast.rpartition(":")[2])]


def _fused(facts: Facts) -> list[object]:
    """torch fuses only where it is told to."""
    return [bool(one.fused) for one in facts.optimizers]


def _foreach(facts: Facts) -> list[object]:
    """Where it is not told, torch takes many tensors at once on GPUs only."""
    of_cpu = facts.device is not None and facts.device.kind == "cpu"
    return [False if one.foreach is None and of_cpu else one.foreach for one in facts.optimizers]


_READ: dict[str, Callable[[Facts], list[object]]] = {
    **{f"ddp.{one}": _each(lambda facts: facts.ddp, one) for one in _OF_DDP},
    **{f"loader.{one}": _each(lambda facts: facts.loaders, one) for one in _OF_LOADER},
    **{knob: _switch(name) for knob, name in _SWITCHES.items()},
    "precision.autocast": _autocast,
    "optimizer.fused": _fused,
    "optimizer.foreach": _foreach,
}
