"""Parameters that DistributedDataParallel does not average, because they were unfrozen after it wrapped the model.

## What it measures

For each optimizer step, whether it updates parameters of a DDP module that did not require gradients, or did not exist,
when DDP wrapped it. It also compares sums of these parameters between ranks: where they are equal, nothing is reported.

## Why it costs time

It costs correctness. DDP registers the parameters that require gradients once, in its constructor. Parameters that are
unfrozen or added later get gradients, but DDP never averages them. Each rank trains these layers on its own part of
the data, the replicas drift apart, and the checkpoint holds those of rank 0.

## What to change

Wrap the model again after unfreezing, on all ranks at the same step:

    network.encoder.requires_grad_(True)
    model = DistributedDataParallel(network)
    optimizer.add_param_group({"params": network.encoder.parameters()})

Or wrap it with all layers unfrozen, and leave the frozen ones out of the optimizer until they are to be trained; this
averages their gradients from the start. Replicas that have drifted apart stay apart: DDP sends the weights of rank 0 to
the others when it wraps the model again, or restart from a checkpoint made before unfreezing.

`find_unused_parameters=True` does not help: it concerns registered parameters only.

## When to leave it alone

- The script averages these gradients or parameters itself, in steps that were not recorded.
- Parameters that are meant to differ between ranks: list them in `_ddp_params_and_buffers_to_ignore`, or accept it with
  `dptune check --accept FILE --update-accepted`.

## References

- DistributedDataParallel, the warning not to change a model's parameters after wrapping it:
  https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, Threshold

AVERAGED_SHARE = Threshold(
    "averaged_share",
    0.5,
    "of these parameters' bytes per step, sent by the script's own collectives: then it may average them itself",
)

RULE = Rule(
    code="DP112",
    name="unfrozen-after-wrapping",
    family="communication",
    kind="risk",
    summary="parameters were unfrozen after DDP wrapped the model, and their gradients are not averaged",
    since="0.1",
    asked_when_busy=True,
    thresholds=(AVERAGED_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the line that wraps the model, and the one that unfreezes part of it later."""
    facts = run.any_facts()
    if facts.fsdp or facts.engine or facts.averages_models:
        return
    agree = run.unaveraged_agree()
    if agree:
        return
    for found in facts.unaveraged:
        sent = sum(one.sent_bytes for one in facts.calls) / max(1, facts.calls_steps)
        if agree is None and sent >= run.limit(AVERAGED_SHARE) * found.size_bytes:
            continue
        wrapped = f" ({found.where})" if found.where else ""
        later = (
            f"{found.unfrozen_where} unfroze after wrapping" if found.unfrozen_where else "were unfrozen or added later"
        )
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact="high",
            title=f"Replicas drift apart: DistributedDataParallel{wrapped} does not average the gradients of "
            f"{found.tensors} parameter tensors of `{found.module}` that {later}: wrap the model again",
            why="DDP registers the parameters that require gradients once, in its constructor.",
            changes=[],
            confidence="high" if agree is False and run.times_hold else "medium",
            evidence=[
                Evidence(label="parameters updated without averaging", value=found.parameters),
                Evidence(label="for example", value=", ".join(found.names)),
                *([Evidence(label="wrapped at", value=found.where)] if found.where else []),
                *([Evidence(label="unfrozen at", value=found.unfrozen_where)] if found.unfrozen_where else []),
                *([Evidence(label="these parameters", value="differ between ranks")] if agree is False else []),
            ],
            numerics="changes",
            watch="Wrap the model in DistributedDataParallel again after unfreezing: that sends the weights of rank 0 "
            "to all ranks. find_unused_parameters=True does not help.",
            fingerprint=f"{RULE.code}:{found.module}",
        )
