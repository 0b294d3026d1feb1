"""Debug options that slow training are enabled.

## What it measures

`CUDA_LAUNCH_BLOCKING`, `TORCH_DISTRIBUTED_DEBUG=DETAIL` and `PYTORCH_NO_CUDA_MEMORY_CACHING` in the environment of the
ranks, torch's anomaly detection (on for the whole run, or as a context of at least every second step), and a profiler
of the script itself that keeps recording. Any trace shows two of them by their effect: launches that block until their
kernel ends, and driver calls that allocate and free each tensor.

## Why it matters

With `CUDA_LAUNCH_BLOCKING` the host waits for every kernel before it launches the next one. With
`TORCH_DISTRIBUTED_DEBUG=DETAIL` ranks compare each collective before they start it. With
`PYTORCH_NO_CUDA_MEMORY_CACHING` the driver allocates memory for every tensor. Anomaly detection checks for NaN after
every operation of a backward pass, and keeps a stack for each operation of the forward pass.

torch.profiler slows the steps that it records, and processes their events after each cycle of its schedule. A schedule
without `repeat` starts a new cycle until the profiler is stopped; without a schedule it records every step, and keeps
all events in memory. dptune only times such steps and does not trace them, because two profilers can crash a process.
It reports schedules that continue after a whole cycle, and profilers without a schedule after 20 optimizer steps.

## What to change

Remove the variables from the environment, and `torch.autograd.set_detect_anomaly` or `detect_anomaly` from the script.
Leave the profiler out of training, or let it record one cycle: `schedule(wait=..., warmup=1, active=3, repeat=1)`.
The trace does not show how much faster steps are without them, except for `PYTORCH_NO_CUDA_MEMORY_CACHING`: the saving
is at most the time in which the GPU idles while the driver allocates or frees memory. Record again.

## When to leave it alone

- You are searching for an error. The other findings of the report then do not apply to training without these options.

## References

- torch.distributed, "Debugging torch.distributed applications": https://pytorch.org/docs/stable/distributed.html
- torch.profiler, `schedule` and its `repeat`: https://pytorch.org/docs/stable/profiler.html
- torch.autograd, "Anomaly detection": https://pytorch.org/docs/stable/autograd.html
- PyTorch, "CUDA environment variables": https://pytorch.org/docs/stable/cuda_environment_variables.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Change, Evidence, impact_of
from dptune.rule import Rule, RunView, ScriptProfilerFacts, passed_at
from dptune_rules.known import known

OFF = {
    "CUDA_LAUNCH_BLOCKING": "0",
    "TORCH_DISTRIBUTED_DEBUG": "OFF",
}  # what is on whatever it is set to can only be taken out
SHOWN_BY = {  # in a trace that does not have the environment
    "CUDA_LAUNCH_BLOCKING": "each launch blocks until its kernel ends",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "the driver allocates and frees memory for each tensor",
}
WHY = {
    "CUDA_LAUNCH_BLOCKING": "The host waits for the device at each of these calls.",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "The host launches nothing during these calls, and freeing memory waits for the "
    "device. torch's caching allocator reuses memory instead.",
}
CLASS_NS = "malloc_idle_ns"
LEAST_STEPS = 3  # of fewer no time is judged
LEAST_RECORDED = 20  # optimizer steps that a profiler without a schedule recorded: far more than one looks at
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"

RULE = Rule(
    code="DP605",
    name="debug-switches",
    family="host",
    kind="risk",
    summary="debug options that slow training are enabled",
    since="0.1",
    asked_without_steps=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the switches that are on, on any rank."""
    if not run.facts:
        for name in run.any_facts("environment").debug_switches:
            yield _costing(run, _seen(name)) if name == UNCACHED else _seen(name)
        return
    yield from _profiler(run)
    on = {name: value for facts in run.facts for name, value in facts.debug_switches.items()}
    anomaly = any(rank_facts.detects_anomalies for rank_facts in run.facts)
    if not on and not anomaly:
        return
    named = [*(f"{name}={value}" for name, value in on.items()), *(["anomaly detection"] if anomaly else [])]
    turned_on = _turned_on(run) if anomaly else []
    where = f" ({turned_on[0].value})" if turned_on else ""
    unset = ", ".join(name for name in on if name not in OFF)
    remedies = [
        *([f"Unset {unset} in the environment of the job."] if unset else []),
        *([f"Turn off anomaly detection{where}."] if anomaly else []),
    ]
    advice = Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="medium",
        title=f"Debug options are on: {', '.join(named)}",
        why="They check operations at run time, which slows every step.",
        changes=[Change(knob=f"env.{name}", now=value, then=OFF[name]) for name, value in on.items() if name in OFF],
        remedy=" ".join(remedies),
        confidence="high",
        evidence=[Evidence(label="is on", value=switch) for switch in named] + turned_on,
        numerics="same",
        fingerprint=RULE.code,
    )
    yield _costing(run, advice) if UNCACHED in on else advice


def _profiler(run: RunView) -> Iterator[Advice]:
    """The finding on the script's own profiler, where it keeps recording on any rank."""
    found = next((facts.script_profiler for facts in run.facts if _left_on(facts.script_profiler)), None)
    if found is None:
        return
    where = f" ({found.where})" if found.where else ""
    if found.cycle:
        wait, warmup, active = found.cycle
        records = f"{active} of every {sum(found.cycle)} steps"
        once = f"`schedule(wait={wait}, warmup={warmup}, active={active}, repeat=1)`"
    else:
        records, once = "every step", "`schedule(wait=5, warmup=1, active=3, repeat=1)`, with a `step()` in each step"
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="medium",
        title=f"The script's own profiler records {records}, all through training{where}: leave it out",
        why="Recorded steps take longer, and processing their events takes time after each cycle. dptune cannot trace "
        "these steps, as two profilers can crash a process.",
        changes=[],
        remedy=f"Leave the profiler{where} out of training, or let it record one cycle: {once}. Then record again.",
        confidence="high",
        evidence=[
            *known("started at", found.where),
            Evidence(label="optimizer steps while it ran", value=found.optimizer_steps),
            *_cost(found),
        ],
        numerics="same",
        fingerprint=f"{RULE.code}:profiler",
    )


def _left_on(profiler: ScriptProfilerFacts | None) -> bool:
    """Whether it runs, and nothing ends it before training does."""
    if profiler is None or not profiler.running or profiler.repeat != 0:
        return False
    return profiler.cycles > 0 if profiler.cycle else profiler.optimizer_steps >= LEAST_RECORDED


def _cost(found: ScriptProfilerFacts) -> list[Evidence]:
    if not found.lasted_ns:
        return []
    share = found.spent_ns / found.lasted_ns
    label = "in its `step`, which starts, stops and processes cycles"
    return [Evidence(label=label, value=share, unit="of the time since it started")]


def _turned_on(run: RunView) -> list[Evidence]:
    """The line that turns anomaly detection on: of Lightning's Trainer that of its argument."""
    first = run.facts[0]
    argument = next(iter(passed_at(first.library_calls, ["detect_anomaly"])), None)
    return known("turned on at", argument or first.anomaly_where)


def _seen(name: str) -> Advice:
    """The finding on a switch whose effect a trace shows."""
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="medium",
        title=f"{SHOWN_BY[name].capitalize()}: {name} appears to be set",
        why=WHY[name],
        changes=[],
        remedy=f"Unset {name} in the environment of the job.",
        confidence="medium",
        evidence=[],
        numerics="same",
        watch="If it is not set there, the memory allocator of another library has the same effect."
        if name not in OFF
        else "",
        fingerprint=f"{RULE.code}:{name}",
    )


def _costing(run: RunView, advice: Advice) -> Advice:
    """The advice with what the driver's memory calls cost: in figures, and as an upper bound where the GPU idles."""
    calls = [memory for memory in run.measured.known("memory") or [] if memory.known("malloc_share") is not None]
    evidence = list(advice.evidence)
    if calls:
        worst = max(calls, key=lambda memory: memory.malloc_share)
        evidence += [
            Evidence(
                label="calls that allocate or free GPU memory",
                value=round(worst.malloc_calls_per_step, 1),
                unit="per step",
                rank=worst.rank,
            ),
            Evidence(label="in these calls", value=worst.malloc_share, unit="of the traced steps", rank=worst.rank).at(
                run.measured.where("malloc")
            ),
        ]
    steps = [len(device.steps) for rank in run.measured.ranks for device in rank.devices]
    idle = run.measured.share(CLASS_NS) if max(steps, default=0) >= LEAST_STEPS else 0.0
    if idle > 0:
        evidence.append(Evidence(label="GPU idle time during these calls", value=idle, unit="of the traced steps"))
    impact = impact_of(idle)
    if impact is None:
        return advice.model_copy(update={"evidence": evidence})
    saves = run.bound(
        0.0,
        min(run.unstretched(run.most_share(CLASS_NS)), run.idle_share()),
        "the time the GPU idles while the driver allocates or frees memory",
    )
    return advice.model_copy(update={"kind": "time", "impact": impact, "saves": saves, "evidence": evidence})
