"""Words for a `kl_div` whose input holds no log-probabilities, or whose target is of the wrong kind."""

from __future__ import annotations

from dptune.rule import ProbabilityLossFacts
from dptune_rules.known import in_parentheses

TARGET, LOG_TARGET, SWAPPED = "target", "log target", "swapped"  # as facts name the argument
PROBABILITIES, NEGATIVE, LAYER = "probabilities", "negative values", "layer"  # and what it gets


def kl_div_title(found: ProbabilityLossFacts) -> str:
    """What it expects and what it gets, with its line."""
    at = in_parentheses(found.loss_where)
    if found.argument == SWAPPED:
        return f"The arguments of kl_div{at} are swapped: it expects log-probabilities first, then probabilities"
    if found.argument == TARGET:
        return f"The target of kl_div{at} has {found.applied} and must have probabilities"
    if found.argument == LOG_TARGET:
        return f"The target of kl_div{at} with log_target=True has probabilities and must have log-probabilities"
    gets = {LAYER: "outputs of a layer", PROBABILITIES: PROBABILITIES}.get(found.applied, f"{found.applied} outputs")
    return f"The loss kl_div{at} expects log-probabilities and gets {gets}"


def kl_div_why(found: ProbabilityLossFacts) -> str:
    """What the loss computes instead of the divergence."""
    if found.argument in (TARGET, SWAPPED):
        return (
            "kl_div takes the logarithm of its target: negative values make the loss NaN. The target also weighs the "
            "gradients, which then have the wrong sign."
        )
    if found.argument == LOG_TARGET:
        return (
            "With log_target=True kl_div takes the exponential of its target. Of probabilities that is between 1 and "
            "2.72, so all classes have nearly the same weight."
        )
    if found.applied == LAYER:
        return (
            "kl_div only multiplies its input by the target and does not normalize it. Training makes all outputs "
            "larger without limit."
        )
    return (
        "kl_div takes no logarithm of its input. The loss is smallest where all probability is at the class with the "
        "largest target, not where it equals the target, and gradients are small."
    )


def kl_div_remedy(found: ProbabilityLossFacts) -> str:
    """What to pass instead."""
    if found.argument == SWAPPED:
        return "Pass the log-probabilities first: `kl_div(log_probabilities, target)`."
    if found.argument == TARGET:
        change = "Apply softmax to it" if found.applied == NEGATIVE else "Pass log_target=True"
        return f"{change}, or pass probabilities as target."
    if found.argument == LOG_TARGET:
        return "Leave out log_target=True, or pass log-probabilities as target."
    if found.applied == "softmax":
        return "Use log_softmax in place of softmax for the input."
    if found.applied == "sigmoid":
        return "Use logsigmoid in place of sigmoid for the input."
    return "Apply log_softmax to the logits, and pass the result as input."
