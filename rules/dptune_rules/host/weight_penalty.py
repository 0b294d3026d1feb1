"""The loss contains an L2 penalty on the weights, which the optimizer's weight decay applies at hardly any cost.

## What it measures

In warm-up steps, the graph of the loss: squares of trainable weights (`p.pow(2)`, `p ** 2`, `p.square()`, `p * p`,
`p.norm() ** 2`) that are reduced to one number, and the function of the script that computes them. The time is that of
its squares, norms and sums in the detailed window, with the nodes of their backward pass, as a share of the steps of
this window. On a GPU it is the time of the kernels that they launch.

## Why it matters

An L2 penalty reads all weights and writes their squares, and its backward pass reads them again and adds a gradient as
large as the model. The optimizer reads weights and gradients anyway: with `weight_decay` it adds the same gradient in
the same pass.

## What to change

For a penalty of `factor * sum(p.pow(2).sum() for p in parameters)`, leave it out of the loss and set

    torch.optim.SGD(parameters, lr=..., weight_decay=2 * factor)

The same holds for `torch.optim.Adam`, `RMSprop`, `Adagrad` and others that add `weight_decay * p` to the gradient. Put
weights that are not penalized in a parameter group with `weight_decay=0`.

With SGD on a CPU the saving is predicted: 0.65 to 0.95 times this time, as measured (References). Otherwise it is an
upper bound: all of this time. `weight_decay` of Adam may itself take as long as the penalty.

## When to leave it alone

- `AdamW` decouples weight decay from the gradient, so it is no L2 penalty: training differs.
- Gradients are clipped: the optimizer adds weight decay after clipping.
- The value of the penalty is logged: compute it every N steps, without gradients.

## References

- torch.optim.SGD, `weight_decay`: https://pytorch.org/docs/stable/generated/torch.optim.SGD.html
- Loshchilov, Hutter, "Decoupled Weight Decay Regularization" (2019): https://arxiv.org/abs/1711.05101
- CPU time in turn, one thread, 2 to 20 weight matrices with 32,768 to 6,078,464 numbers: `weight_decay` of SGD saved 68
  to 94 % of the penalty's time, that of Adam between nothing and all of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import MemoryBoundFunction
from dptune.rule import Rule, RunView, Threshold, WeightPenaltyFacts

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")
SQUARING = ("pow", "square", "mul", "norm", "linalg_norm", "linalg_vector_norm", "sum", "mean")
# Optimizers of torch.optim that add `weight_decay * parameter` to the gradient.
COUPLED = ("SGD", "Adam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD")

SAVED_PART = (0.65, 0.82, 0.95)  # of its time, with SGD, see References

RULE = Rule(
    code="DP623",
    name="weight-penalty",
    family="host",
    kind="time",
    summary="the loss computes an L2 penalty on the weights instead of the optimizer's weight_decay",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the function that squares the weights, if it takes a share of the step worth it."""
    penalty = run.any_facts().weight_penalty
    if penalty is None or penalty.function is None or penalty.passes < penalty.passes_seen:
        return
    code = run.measured.user_code
    for function in code.memory_bound:
        share = sum(cost.share for cost in function.operators if cost.name.removeprefix("aten::") in SQUARING)
        impact = run.impact(share, WORTH_SHARE)
        if impact is not None and _is_function(function, penalty.function):
            yield _advice(run, penalty, function, share, clips=code.clips)


def _is_function(function: MemoryBoundFunction, named: str) -> bool:
    """Whether a function of the trace has the name and file of `name (file:line)`."""
    name, _, place = named.removesuffix(")").partition(" (")
    file, traced = place.rpartition(":")[0], function.at.rpartition(":")[0]
    return name.rpartition(".")[2] == function.name and (file == traced or file.endswith(f"/{traced}"))


def _advice(
    run: RunView, penalty: WeightPenaltyFacts, function: MemoryBoundFunction, share: float, *, clips: bool
) -> Advice:
    name, _, place = (penalty.function or "").removesuffix(")").partition(" (")
    optimizer = next((optimizer.name for optimizer in run.any_facts().optimizers), "")
    same = optimizer in COUPLED and not clips
    impact = run.impact(share, WORTH_SHARE) or "low"
    tensors = f"{penalty.tensors} weight tensors" if penalty.tensors > 1 else "a weight tensor"
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"`{name}` ({place}) computes an L2 penalty on {tensors}, {100 * share:.0f} % of the step with "
        f"the backward pass: use weight_decay of {optimizer if optimizer in COUPLED else 'the optimizer'}",
        why="The penalty reads all weights and adds a gradient as large as the model; the optimizer adds weight_decay "
        "in a pass that it makes anyway.",
        changes=[],
        saves=_predicted(run, function, share, optimizer)
        or run.bound(0.0, share, "the squares, their sums and their backward pass"),
        confidence="medium" if run.times_hold else "low",
        evidence=[
            Evidence(label="weights in the penalty", value=penalty.elements),
            Evidence(label="tensors", value=penalty.tensors),
            Evidence(label="squares, sums and their backward pass", value=share, unit="of a step", rank=function.rank),
            *([Evidence(label="optimizer", value=optimizer)] if optimizer else []),
        ],
        numerics="same" if same else "changes",
        watch=_watch(optimizer, clips=clips),
        fingerprint=f"{RULE.code}:{name}",
    )


def _predicted(run: RunView, function: MemoryBoundFunction, share: float, optimizer: str) -> Saving | None:
    if optimizer != "SGD" or not function.share:
        return None
    how = "weight_decay of SGD saved 0.65 to 0.95 times as much in measurements"
    return run.replaced(function, SAVED_PART, how, of_all=min(1.0, share / function.share))


def _watch(optimizer: str, *, clips: bool) -> str:
    words = "For factor * sum of squares, weight_decay is 2 * factor. The reported loss no longer contains the penalty."
    if optimizer and optimizer not in COUPLED:
        words += f" weight_decay of {optimizer} may not be an L2 penalty; that of Adam and SGD is."
    return words + (" The optimizer adds weight decay after gradients are clipped." if clips else "")
