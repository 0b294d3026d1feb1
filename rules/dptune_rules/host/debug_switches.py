"""Debug options that slow training are enabled.

## What it measures

`CUDA_LAUNCH_BLOCKING`, `TORCH_DISTRIBUTED_DEBUG=DETAIL` and `PYTORCH_NO_CUDA_MEMORY_CACHING` in the environment of the
ranks, and torch's anomaly detection. Any trace shows two of them by their effect: launches that block until their
kernel ends, and driver calls that allocate and free each tensor.

## Why it matters

With `CUDA_LAUNCH_BLOCKING` the host waits for every kernel before it launches the next one. With
`TORCH_DISTRIBUTED_DEBUG=DETAIL` ranks compare each collective before they start it. With
`PYTORCH_NO_CUDA_MEMORY_CACHING` the driver allocates memory for every tensor. Anomaly detection checks for NaN after
every operation of a backward pass, and keeps a stack for each operation of the forward pass.

## What to change

Remove the variables from the environment, and `torch.autograd.set_detect_anomaly` or `detect_anomaly` from the script.
The trace does not show how much faster steps are without them. Record again.

## When to leave it alone

- You are searching for an error. The other findings of the report then do not apply to training without these options.

## References

- torch.distributed, "Debugging torch.distributed applications": https://pytorch.org/docs/stable/distributed.html
- torch.autograd, "Anomaly detection": https://pytorch.org/docs/stable/autograd.html
- PyTorch, "CUDA environment variables": https://pytorch.org/docs/stable/cuda_environment_variables.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Change, Evidence
from dptune.rule import Rule, RunView

OFF = {
    "CUDA_LAUNCH_BLOCKING": "0",
    "TORCH_DISTRIBUTED_DEBUG": "OFF",
}  # what is on whatever it is set to can only be taken out
SHOWN_BY = {  # in a trace that does not have the environment
    "CUDA_LAUNCH_BLOCKING": "each launch blocks until its kernel ends",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "the driver allocates and frees memory for each tensor",
}

RULE = Rule(
    code="DP605",
    name="debug-switches",
    family="host",
    kind="risk",
    summary="debug options that slow training are enabled",
    since="0.1",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the switches that are on, on any rank."""
    if not run.facts:
        yield from map(_seen, run.any_facts("environment").debug_switches)
        return
    on = {name: value for facts in run.facts for name, value in facts.debug_switches.items()}
    anomaly = any(rank_facts.settings.get("anomaly_mode") for rank_facts in run.facts)
    if not on and not anomaly:
        return
    named = [*(f"{name}={value}" for name, value in on.items()), *(["anomaly detection"] if anomaly else [])]
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="medium",
        title=f"Debug options are on: {', '.join(named)}",
        why="They check operations at run time, which slows every step.",
        changes=[Change(knob=f"env.{name}", now=value, then=OFF[name]) for name, value in on.items() if name in OFF],
        confidence="high",
        evidence=[Evidence(label="is on", value=switch) for switch in named],
        numerics="same",
        fingerprint=RULE.code,
    )


def _seen(name: str) -> Advice:
    """The finding on a switch whose effect a trace shows."""
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="medium",
        title=f"{SHOWN_BY[name].capitalize()}: {name} appears to be set",
        why="The host waits for the device at each of these calls.",
        changes=[],
        confidence="medium",
        evidence=[],
        numerics="same",
        watch=f"Check the environment of the job. A memory allocator of another library has the same effect as {name}."
        if name not in OFF
        else "",
        fingerprint=f"{RULE.code}:{name}",
    )
