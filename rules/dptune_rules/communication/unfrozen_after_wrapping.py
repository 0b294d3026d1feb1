"""Parameters unfrozen after DistributedDataParallel wrapped the model: DDP does not average their gradients.

## What it measures

Optimizer steps that update parameters of a DDP module which were frozen, or did not exist, when DDP wrapped it. Sums of
these parameters are compared across ranks: if they are equal, nothing is reported.

## Why it matters

This is a correctness bug. DDP registers the parameters that require gradients once, in its constructor. Parameters that
are unfrozen or added later get gradients, but DDP never averages them. Each rank trains these layers on its own part of
the data, the replicas drift apart, and a checkpoint contains only the weights of the rank that saves it.

## What to change

Wrap the model again after unfreezing, on all ranks at the same step:

    network.encoder.requires_grad_(True)
    model = DistributedDataParallel(network)
    optimizer.add_param_group({"params": network.encoder.parameters()})

Or wrap it with all layers unfrozen, and add each layer to the optimizer when its training starts; DDP then averages
its gradients from the start.

Wrapping again overwrites replicas that have drifted apart with the weights of rank 0. To discard the drift, restart
from a checkpoint saved before unfreezing.

`find_unused_parameters=True` does not help: it only affects registered parameters.

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
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

AVERAGED_SHARE = Threshold(
    "averaged_share",
    0.5,
    "if the script's collectives send this share of these parameters' bytes, it may average them itself",
)

RULE = Rule(
    code="DP112",
    name="unfrozen-after-wrapping",
    family="communication",
    kind="risk",
    summary="gradients of parameters unfrozen after DDP wrapped the model are not averaged",
    since="0.1",
    asked_when_busy=True,
    thresholds=(AVERAGED_SHARE,),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the line that wraps the model, and the one that unfreezes part of it later."""
    facts = run.recorded_about("ddp")
    if facts is None or facts.fsdp or facts.engine or facts.averages_models:
        return
    agree = run.unaveraged_agree()
    if agree:
        return
    for found in facts.unaveraged:
        sent = sum(call.sent_bytes for call in facts.calls) / max(1, facts.calls_steps)
        if agree is None and sent >= run.limit(AVERAGED_SHARE) * found.size_bytes:
            continue
        wrapped = in_parentheses(found.where)
        later = f"unfrozen later in {found.unfrozen_where}" if found.unfrozen_where else "unfrozen or added later"
        yield results_at_risk(
            RULE,
            title=f"DDP{wrapped} does not average the gradients of {found.tensors} "
            f"{'tensor' if found.tensors == 1 else 'tensors'} of `{found.module}` {later}: wrap the model again",
            why="DDP registers the parameters that require gradients once, in its constructor. Without averaging, the "
            "replicas drift apart.",
            confidence="high" if agree is False and run.times_hold else "medium",
            evidence=[
                Evidence(label="parameters updated without averaging", value=found.parameters),
                Evidence(label="for example", value=", ".join(found.names)),
                *known("wrapped at", found.where),
                *known("unfrozen at", found.unfrozen_where),
                *(
                    [Evidence(label="values of these parameters", value="differ between ranks")]
                    if agree is False
                    else []
                ),
            ],
            remedy="Wrap the model in DistributedDataParallel again after unfreezing. find_unused_parameters=True does "
            "not help.",
            watch="Wrapping broadcasts the weights of rank 0.",
            subject=found.module,
        )
