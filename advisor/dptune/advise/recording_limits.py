"""What the ranks say of the recording that limits what it shows: windows cut short, cores shared or
taken away, debug switches, warnings of torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.finding import Finding
from dptune.runfile.facts import Facts
from dptune.runfile.ranks import spans

_TORCHRUN = "TORCHELASTIC_RUN_ID"  # set by torchrun, which binds no rank to cores of its own
_EFFECTS = {
    "CUDA_LAUNCH_BLOCKING": "the host waits for every kernel, so nothing overlaps",
    "TORCH_DISTRIBUTED_DEBUG": "every collective is checked across ranks",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver",
}


def limits(facts: Sequence[Facts]) -> Iterator[Finding]:
    """A finding for each."""
    yield from _windows(facts)
    yield from _stacks(facts)
    yield from _cores(facts)
    yield from _gpus(facts)
    yield from _taken(facts)
    yield from _switches(facts)
    yield from _warnings(facts)


def _windows(facts: Sequence[Facts]) -> Iterator[Finding]:
    cut = [window for rank in facts[:1] for window in rank.windows if window.cut_short]
    if cut:
        counted = ", ".join(f"{window.name} {window.steps}" for window in cut)
        text = f"steps are long: windows reached their time limit with fewer steps than requested ({counted})"
        yield Finding(code="windows-cut", level="info", text=text)
    for name in ("untraced", "light", "detailed"):
        begun = {rank.rank: window.first_step for rank in facts if (window := rank.window(name)) and window.complete}
        if len(set(begun.values())) > 1:
            first, other = min(begun), next(rank for rank in begun if begun[rank] != begun[min(begun)])
            text = (
                f"ranks recorded different steps ({name}: rank {first} from step {begun[first]} on, rank {other} from "
                f"{begun[other]}): their steps cannot be aligned"
            )
            yield Finding(code="windows-apart", level="partial", text=text)
            return


def _stacks(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Why the training thread's stack was not sampled."""
    why = next((rank.unread["stacks"] for rank in facts if "stacks" in rank.unread), "")
    if why:
        text = f"no stack samples were taken ({why}): functions and lines of the script that take time are not named"
        yield Finding(code="stacks-unread", level="info", text=text)


def _gpus(facts: Sequence[Facts]) -> Iterator[Finding]:
    """GPUs on which several ranks compute, by their UUID."""
    ranks: dict[str, list[int]] = {}
    for rank in facts:
        if rank.device and rank.device.uuid:
            ranks.setdefault(rank.device.uuid, []).append(rank.rank)
    shared = [numbers for numbers in ranks.values() if len(numbers) > 1]
    if shared:
        more = f" ({len(shared)} GPUs are shared)" if len(shared) > 1 else ""
        text = f"ranks {spans(shared[0])} share one GPU{more}: their kernels compete, and no GPU link joins them"
        yield Finding(code="gpu-shared", level="info", text=text)


def _cores(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Hosts on which more ranks compute than there are cores for, one finding for those that are alike.

    A rank that may use only some of a host's cores shares those with the others where torchrun started it, which binds
    none; another launcher may have bound each rank to cores of its own.
    """
    alike: dict[tuple[int, int], list[str]] = {}
    for host in dict.fromkeys(rank.host for rank in facts if rank.host):
        host_ranks = [rank for rank in facts if rank.host == host]
        device = host_ranks[0].device
        if device is None or device.kind != "cpu" or not device.usable_cores:
            continue
        ranks = max(len(host_ranks), *(1 + (rank.local_rank or 0) for rank in host_ranks))
        shared = device.usable_cores == device.cores or _TORCHRUN in host_ranks[0].environment
        if shared and ranks > device.usable_cores:
            alike.setdefault((ranks, device.usable_cores), []).append(host)
    for (ranks, count), hosts in alike.items():
        cores = f"{count} {'core' if count == 1 else 'cores'}"
        others = len(hosts) - 1
        more = f" and of {others} other {'host' if others == 1 else 'hosts'}" if others else ""
        text = f"{ranks} ranks share {cores} of {hosts[0]}{more}: they slow each other"
        yield Finding(code="cores-shared", level="info", text=text)


def _taken(facts: Sequence[Facts]) -> Iterator[Finding]:
    """The host that lost most of its cores' time while steps were timed, and how much of it."""
    shares = {
        rank.host: window.taken_share
        for rank in facts
        if (window := rank.window("untraced") or rank.window("light")) and window.disturbed
    }
    if not shares:
        return
    host, share = max(shares.items(), key=lambda host_share: host_share[1] or 0.0)
    text = (
        f"{100 * (share or 0.0):.0f} % of the CPU time of {host} was taken by other virtual machines while steps "
        f"were timed, so steps took longer than on an idle host: record again"
    )
    yield Finding(code="cores-taken", level="info", text=text)


def _warnings(facts: Sequence[Facts]) -> Iterator[Finding]:
    """What torch warned of, once for each text and line, with the ranks."""
    ranks: dict[tuple[str, str | None], list[int]] = {}
    for rank in facts:
        for warning in rank.warnings:
            ranks.setdefault((warning.text, warning.where), []).append(rank.rank)
    for (said, where), of in ranks.items():
        at = f" at {where}" if where else ""
        on = "" if len(of) == len(facts) else f" on {'rank' if len(of) == 1 else 'ranks'} {', '.join(map(str, of[:8]))}"
        yield Finding(code="torch-warning", level="info", text=f"PyTorch warning{at}{on}: {said}")


def _switches(facts: Sequence[Facts]) -> Iterator[Finding]:
    left_on: dict[str, str] = {}
    for rank in facts:
        left_on |= {f"{name}={value}": _EFFECTS[name] for name, value in rank.debug_switches.items()}
        if rank.detects_anomalies:
            left_on["torch.autograd.detect_anomaly"] = "every backward operation is checked for NaN"
    for switch, effect in left_on.items():
        text = f"{switch} is on: {effect}. Switch it off and record again: times include its cost"
        yield Finding(code="debug-switch", level="info", text=text)
