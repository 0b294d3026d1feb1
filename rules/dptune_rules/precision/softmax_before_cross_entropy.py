"""A loss that expects logits is given probabilities, or `nll_loss` or `kl_div` anything but log-probabilities.

## What it measures

In warm-up steps, the functions that each backward pass will run, from the loss back to the model's outputs: whether the
log_softmax of a cross-entropy, or a loss `..._with_logits`, takes the result of a softmax or a sigmoid, with nothing
between them but changes of layout. A second softmax must be over the same dimension. Losses inside a part compiled by
torch.compile are not seen.

Also an `nll_loss` that takes the result of a softmax, of a sigmoid, or of a linear or convolution layer that nothing
else reads. It does not take logarithms itself.

For `kl_div`: the values that each call with gradients gets in two or three warm-up steps. Probabilities are between 0
and 1, with a sum of 1 within 0.01 over some dimension: 16-bit sums differ by as much. dptune reports an input of
probabilities, of a softmax or of a sigmoid; outputs of a layer, also divided by a temperature, with values above 0; a
target of log-probabilities, or with several negative values; a target of probabilities with `log_target=True`; and
swapped arguments. All calls at a line must have the fault. The default `reduction="mean"`, of which torch warns, only
scales the divergence, by the number of classes: it is not reported.

## Why it matters

It hurts convergence. Probabilities lie between 0 and 1, so the second softmax can give no class more than
e / (e + classes - 1): 17 % with 14 classes. Even a perfect model has a loss of ln(e + classes - 1) - 1, and gradients
are small because both softmaxes flatten them. The model trains slowly and torch does not warn.
`binary_cross_entropy_with_logits` after a sigmoid sees no logit below 0, so a negative sample costs at least
ln 2 = 0.69.

`nll_loss` only negates what it gets for the class of each sample. Probabilities give it small gradients exactly where
a prediction is wrong. The outputs of a layer are not limited: the loss falls below zero without end, and no class
competes with another.

`kl_div(input, target)` computes `target * (log(target) - input)`, and takes no logarithm of its input. With
probabilities as input, the loss is smallest where all probability is at the class with the largest target, not where
it equals the target. A negative target makes the loss NaN and gives the gradients other weights.

## What to change

Return the logits, and apply softmax only where probabilities are needed:

    logits = model(inputs)
    loss = F.cross_entropy(logits, targets)
    probabilities = logits.softmax(dim=1)

`F.nll_loss(F.log_softmax(logits, dim=1), targets)` is the same loss.

Distillation from a teacher:

    student = F.log_softmax(student_logits / temperature, dim=1)
    teacher = F.softmax(teacher_logits / temperature, dim=1)
    loss = F.kl_div(student, teacher, reduction="batchmean") * temperature**2

## When to leave it alone

- An experiment limits the logits on purpose. A scale shows this: `cross_entropy(probabilities / temperature, targets)`
  is not reported.

## References

- PyTorch, CrossEntropyLoss, "The input is expected to contain the unnormalized logits for each class":
  https://pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
- PyTorch, NLLLoss, "The input given through a forward call is expected to contain log-probabilities of each class":
  https://pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html
- PyTorch, KLDivLoss, "this loss expects the argument input in the log-space":
  https://pytorch.org/docs/stable/generated/torch.nn.KLDivLoss.html
- PyTorch, BCEWithLogitsLoss, which "combines a Sigmoid layer and the BCELoss in one single class":
  https://pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import ProbabilityLossFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known
from dptune_rules.precision.kl_div_arguments import kl_div_remedy, kl_div_title, kl_div_why

NLL, KL_DIV, LAYER = "nll_loss", "kl_div", "layer"  # as facts name the loss, and what its input comes from

RULE = Rule(
    code="DP407",
    name="softmax-before-cross-entropy",
    family="precision",
    kind="risk",
    summary="a loss that expects logits or log-probabilities is given other outputs",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each loss of the first rank that has one."""
    if run.recorded_about("probability_losses") is None:
        return
    for losses in [facts.probability_losses for facts in run.facts if facts.probability_losses][:1]:
        yield from map(_advice, losses)


def _advice(found: ProbabilityLossFacts) -> Advice:
    if found.loss == KL_DIV:
        return _divergence(found)
    at = f" ({found.where})" if found.where and found.where != found.loss_where else ""
    loss_at = in_parentheses(found.loss_where)
    expected = "log-probabilities" if found.loss == NLL else "logits"
    gets = "outputs of a layer" if found.applied == LAYER else f"{found.applied} outputs"
    return results_at_risk(
        RULE,
        title=f"{_name(found)}{loss_at} expects {expected} and gets {gets}{at}{_floor(found)}",
        why=_why(found),
        evidence=[
            Evidence(label="backward passes with this loss", value=found.passes, unit=f"of {found.passes_seen}"),
            *known("classes", found.classes),
            *([] if found.least_loss is None else [Evidence(label="lowest possible loss", value=found.least_loss)]),
            *known("layer called at" if found.applied == LAYER else f"{found.applied} applied at", found.where),
            *known("loss computed at", found.loss_where),
        ],
        remedy=_remedy(found),
        watch="Losses before and after the change cannot be compared.",
        subject=f"{found.loss}:{found.applied}",
    )


def _divergence(found: ProbabilityLossFacts) -> Advice:
    return results_at_risk(
        RULE,
        title=kl_div_title(found),
        why=kl_div_why(found),
        evidence=[
            Evidence(label="calls at this line with this fault", value=found.passes, unit=f"of {found.passes_seen}"),
            *known("loss computed at", found.loss_where),
        ],
        remedy=kl_div_remedy(found),
        watch="Losses before and after the change cannot be compared.",
        subject=f"{found.loss}:{found.applied}:{found.argument}",
    )


def _remedy(found: ProbabilityLossFacts) -> str:
    if found.loss == NLL and found.applied == LAYER:
        return "Use cross_entropy, or apply log_softmax first."
    if found.loss == NLL:
        return f"Use cross_entropy on the logits, or log_softmax in place of {found.applied}."
    return f"Return the logits, and apply {found.applied} only where probabilities are needed."


def _name(found: ProbabilityLossFacts) -> str:
    return "The cross-entropy loss" if found.loss == "log_softmax" else f"The loss {found.loss}"


def _floor(found: ProbabilityLossFacts) -> str:
    if found.applied == LAYER:
        return ": it can fall without limit"
    if found.least_loss is None:
        return ""
    return f": with {found.classes} classes it cannot fall below {found.least_loss:.2f}"


def _why(found: ProbabilityLossFacts) -> str:
    if found.applied == LAYER:
        return (
            "nll_loss only negates the output for the class of each sample. Training makes these outputs larger "
            "without limit, and nothing makes those for other classes smaller."
        )
    if found.loss == NLL:
        return (
            "nll_loss only negates the probability of the class of each sample. Its gradient is smallest where the "
            "prediction is wrong."
        )
    if found.loss == "log_softmax":
        return (
            "The loss applies softmax itself. Its inputs lie between 0 and 1, so it can give no class a probability "
            "near 1, and gradients stay small."
        )
    return (
        "The loss applies a sigmoid itself. Its inputs lie between 0 and 1, so it can give no probability below 0.5 "
        "or above 0.73, and gradients stay small."
    )
