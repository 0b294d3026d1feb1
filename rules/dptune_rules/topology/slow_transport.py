"""NCCL uses a slower transport than the hardware offers.

## What it measures

The transport of NCCL's channels between ranks, from its log: P2P (NVLink or PCIe, from GPU to GPU), SHM (through the
host's memory), NET/IB and NET/Socket; the environment variables that control it; the networks that it found; and the
exposed communication, which must be large enough to matter.

## Why it matters

Through the host's memory each byte is copied twice, over links that all GPUs share. TCP takes CPU cores, and reaches a
fraction of the bandwidth of InfiniBand or RoCE. Without GPUDirect RDMA the network card reads from the host's memory.

## What to change

It depends on what was found:

- ranks of one host use the network: `NCCL_P2P_DISABLE` or `NCCL_SHM_DISABLE` is set, or containers do not share
  `/dev/shm` and their process ids (`--ipc=host`, one container per host);
- SHM where P2P is switched off: unset `NCCL_P2P_DISABLE`; try `NCCL_P2P_LEVEL=SYS` where GPUs are on several sockets;
- TCP where InfiniBand or RoCE is available: unset `NCCL_IB_DISABLE` and `NCCL_NET`; give the container
  `/dev/infiniband`;
- InfiniBand without GPUDirect RDMA: load `nvidia-peermem`, or use a driver with DMA-BUF.

The saving is an upper bound: the exposed communication. Waiting for a late rank remains.

## When to leave it alone

- P2P is off because it hangs or corrupts data on this board: some with IOMMU or access control services do.
- The host has neither NVLink nor a PCIe switch between GPUs: SHM is then as fast.

## References

- NCCL, environment variables: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
- NCCL, troubleshooting: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
- Preview: tested on lines of published logs, not on a recorded run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dptune.advice import Advice, Change, Evidence
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold

DISABLE = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE")  # 0 is as if they were not set

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

RULE = Rule(
    code="DP201",
    name="slow-transport",
    family="topology",
    kind="time",
    summary="NCCL uses a slower transport than the hardware offers",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    preview=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the slowest transport that need not be, and what would change it."""
    run.any_facts()
    if run.measured.world_size == 1 or run.measured.known("backend") not in (None, "nccl"):
        return
    logs = [facts.nccl for facts in run.facts if facts.nccl]
    if not logs:
        raise Missing("how NCCL connects the ranks was not logged: record with `dptune profile --nccl-log`")
    exposed = run.measured.share("exposed_without_waiting_ns")
    impact = run.impact(exposed, WORTH_SHARE)
    if impact is None:
        return
    by_transport = Counter[str]()
    for log in logs:
        for channel in log.channels:
            by_transport[channel.via] += channel.channels
    networks = list(dict.fromkeys(network for log in logs for network in log.networks))
    found = _slow(run, by_transport, networks)
    if found is None:
        return
    what, then, switched = found
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{what}: {then}",
        why="Data takes a longer path than necessary, and the step waits for it.",
        changes=[
            Change(knob=f"env.{name}", now=value, then="0") for name, value in switched.items() if name in DISABLE
        ],
        saves=run.bound(0.0, run.unstretched(exposed), "the exposed communication, without waiting for late ranks"),
        confidence="low",
        evidence=[
            *(Evidence(label=via, value=count, unit="channels") for via, count in by_transport.most_common()),
            *(Evidence(label="NCCL found", value=network) for network in networks),
            run.exposed_transfer(),
        ],
        numerics="same",
        fingerprint=f"{RULE.code}:{what}",
    )


def _slow(run: RunView, transports: Counter[str], networks: list[str]) -> tuple[str, str, dict[str, str]] | None:
    """What is slower than it need be, what to do, and the variables that make it so; None where nothing is."""
    hosts = {facts.host for facts in run.facts}
    over_network = [via for via in transports if via.startswith("NET/")]
    if len(hosts) == 1 and len(run.facts) == run.measured.world_size and over_network:
        made = _set(run, "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
        return "Ranks on one host communicate over the network", _unset(made) or "let them share /dev/shm", made
    made = _set(run, "NCCL_IB_DISABLE", "NCCL_NET")
    if "NET/Socket" in transports and (made or any(name.startswith("NET/IB: Using") for name in networks)):
        return "Hosts communicate over TCP, though InfiniBand or RoCE may be available", _unset(made) or "see why", made
    made = _set(run, "NCCL_P2P_DISABLE")
    if "SHM" in transports and made:
        return "GPUs of one host communicate through host memory", _unset(made), made
    if "NET/IB" in transports and "NET/IB/GDRDMA" not in transports:
        return "Network cards read from host memory", "load nvidia-peermem for GPUDirect RDMA", {}
    return None


def _set(run: RunView, *names: str) -> dict[str, str]:
    """Those of these variables that are set, to something else than 0."""
    found = {name: run.any_facts().environment.get(name, "") for name in names}
    return {name: value for name, value in found.items() if value not in ("", "0")}


def _unset(variables: dict[str, str]) -> str:
    return f"unset {' and '.join(variables)}" if variables else ""
