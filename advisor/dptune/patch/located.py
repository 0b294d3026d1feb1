"""Changes of the script that are asked for by name: the line is that of the object they change, as it was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from dptune.advice import Change, Location
from dptune.errors import UsageError
from dptune.knobs import Value, is_patched
from dptune.knobs.patched import BLOCKS, FSDP, WITHIN_HOSTS, WRAPPER, mesh_line
from dptune.patch.diff import patches
from dptune.runfile.facts import Facts


def located(settings: Mapping[str, Value], facts: Sequence[Facts]) -> list[Change]:
    """The changes for those of the settings that only a patch makes."""
    return [_change(name, value, facts) for name, value in settings.items() if is_patched(name, value)]


def check_patched(changes: Sequence[Change], root: Path) -> None:
    """Raises UsageError where a change that only a patch makes cannot be made in the script below `root`."""
    for unpatched in patches(changes, root).left_out:
        change = unpatched.change
        if is_patched(change.knob, change.then):
            place = f" in {change.at}" if change.at else ""
            raise UsageError(
                f"{change.knob} is set by a patch alone, and there is none{place}: {unpatched.why}",
                "edit the script by hand, record it again, then: dptune compare RUN NEW",
            )


def _change(name: str, value: Value, facts: Sequence[Facts]) -> Change:
    first = facts[0] if facts else None
    block = first.tensors.block if first and first.tensors else ""
    sharded = [fsdp for fsdp in first.fsdp if fsdp.where and fsdp.version == 2] if first else []
    if name == BLOCKS.name:
        finest = max(sharded, key=lambda fsdp: fsdp.units, default=None)
        now = 1 if finest and block in finest.modules else None
        if now == value:
            raise UsageError(f"the run was already recorded with {name}={value}", "name another value")
        return Change(knob=name, now=now, then=value, at=Location.parse(finest.where if finest else None), block=block)
    if name == WRAPPER.name and value == FSDP:
        sharded = []
    snippet = _mesh(facts) if name == WITHIN_HOSTS.name else ""
    where = next((fsdp.where for fsdp in sharded if fsdp.root), None) or next((fsdp.where for fsdp in sharded), None)
    if not sharded and first:
        where = next((ddp.where for ddp in first.ddp if ddp.where), None)
    return Change(knob=name, now=None, then=value, at=Location.parse(where), snippet=snippet, block=block)


def _mesh(facts: Sequence[Facts]) -> str:
    """The line that creates a mesh of hosts and their ranks; raises UsageError where the ranks have none."""
    on_host = Counter(rank_facts.host for rank_facts in facts)
    if len(on_host) < 2 or len(set(on_host.values())) > 1:
        raise UsageError("the ranks of this run are not spread evenly over several hosts", "HSDP needs several hosts")
    device = facts[0].device.kind if facts[0].device else "cuda"
    return mesh_line(device, len(on_host), next(iter(on_host.values())))
