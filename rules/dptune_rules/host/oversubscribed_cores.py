"""The ranks of a host compute with more threads than it has cores.

## What it measures

Where the model computes on the CPU: the number of threads that torch computes with on each rank, added up over the
ranks of a host, compared with the number of cores that they may use.

## Why it matters

By default torch starts as many threads as there are cores, on each rank. The threads of one operator wait for the
slowest of them. With more threads than cores, one of them is always without a core, and the others spin while they
wait, which takes cores from other ranks.

## What to change

Set `OMP_NUM_THREADS` in the environment of each rank, or call `torch.set_num_threads`: cores of the host / its ranks.
torchrun sets the variable to 1 where it is unset; other launchers (`mp.spawn`, mpirun, a scheduler) do not. If the
variable is set and torch uses another number, the script calls `torch.set_num_threads`: change it there.

The saving is an upper bound: all of a step except waiting for input, because compute also takes cores from
communication.

## When to leave it alone

- A GPU computes, and the threads are idle: nothing is reported.
- The ranks are pinned to separate cores, and each counts only those.
- There are more ranks than cores, with one thread each: use fewer ranks.

## References

- PyTorch, "Grokking PyTorch Intel CPU performance from first principles":
  https://pytorch.org/tutorials/intermediate/torchserve_with_ipex.html
- torchrun, on OMP_NUM_THREADS: https://pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Change, Evidence, impact_of
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold

VARIABLE = "OMP_NUM_THREADS"

TIMES = Threshold("times", 1.5, "one or two threads more than cores belong to other work, for example a loader")

RULE = Rule(
    code="DP604",
    name="oversubscribed-cores",
    family="host",
    kind="time",
    summary="the ranks of a host compute with more threads than it has cores",
    since="0.1",
    thresholds=(TIMES,),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose fewer threads where ranks that compute on a CPU have more of them than there are cores."""
    facts = run.any_facts()
    if run.measured.device_kind != "cpu":
        return
    device = facts.device
    if device is None or not device.usable_cores or not device.torch_threads:
        raise Missing("numbers of threads and cores were not recorded")
    rank_threads = [
        rank_facts.device.torch_threads or 1
        for rank_facts in run.facts
        if rank_facts.host == facts.host and rank_facts.device
    ]
    local = max(
        len(rank_threads),
        *(1 + (rank_facts.local_rank or 0) for rank_facts in run.facts if rank_facts.host == facts.host),
    )
    threads = sum(rank_threads) * local / len(rank_threads)  # of ranks that were not recorded as many
    if len(rank_threads) < 2 or device.usable_cores != device.cores or threads < run.limit(TIMES) * device.usable_cores:
        return
    share = run.measured.share("compute_ns")
    impact = impact_of(share * (1 - device.usable_cores / threads))
    if impact is None:
        return
    most = run.unstretched(1 - run.measured.share("input_idle_ns"))  # gloo's threads and Python lose their cores, too
    now = facts.environment.get(VARIABLE)
    then = str(max(1, device.usable_cores // local))
    if int(then) >= max(rank_threads):
        return  # there are more ranks than cores
    by_script = (now or "").isdecimal() and int(now or 0) != device.torch_threads
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{local} ranks use {threads:.0f} threads on {device.usable_cores} cores: give each {then}",
        why="The threads of an operator wait for the slowest one, and there are fewer cores than threads."
        + (f" The script calls torch.set_num_threads, which overrides {VARIABLE}={now}." if by_script else ""),
        changes=[] if by_script else [Change(knob=f"env.{VARIABLE}", now=now, then=then)],
        saves=run.bound(0.0, most, "the step, without waiting for input"),
        confidence="medium",
        evidence=[
            Evidence(label="threads of torch", value=round(threads), unit="on this host"),
            Evidence(label="cores", value=device.usable_cores),
            Evidence(label="compute", value=share, unit="of a step").at(run.measured.where("compute_ns")),
        ],
        numerics="same",
        watch="Sums over another number of threads differ in the last bits.",
        fingerprint=f"{RULE.code}:{VARIABLE}",
    )
