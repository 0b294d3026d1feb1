"""Which ranks share a host, and whether they share its cores."""

from __future__ import annotations

from collections.abc import Mapping

from dptune.runfile.facts import Facts


def hosts_of(facts: Mapping[int, Facts]) -> int:
    """How many hosts the ranks were on; 1 where the recording does not say."""
    return len({rank_facts.host for rank_facts in facts.values()}) or 1


def share_gpus(facts: Mapping[int, Facts]) -> bool:
    """Whether two ranks or more compute on one GPU, as far as their recordings name it."""
    named = [rank_facts.device.uuid for rank_facts in facts.values() if rank_facts.device and rank_facts.device.uuid]
    return len(set(named)) < len(named)


def are_crowded(facts: Mapping[int, Facts]) -> bool:
    """Whether all ranks are on one host, with no core but their own; False where its cores are not known.

    Ranks that may use some of a host's cores only may have been bound to cores of their own each.
    """
    hosts = {rank_facts.host for rank_facts in facts.values()}
    devices = [
        rank_facts.device
        for rank_facts in facts.values()
        if rank_facts.device is not None and rank_facts.device.usable_cores
    ]
    if len(hosts) != 1 or len(facts) < 2 or len(devices) < len(facts):
        return False
    bound = any(device.usable_cores != device.cores for device in devices)
    cores = min(host_device.usable_cores or 0 for host_device in devices)
    return cores <= (1 if bound else len(facts))
