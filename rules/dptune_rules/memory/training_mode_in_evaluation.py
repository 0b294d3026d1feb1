"""The model is evaluated in training mode, or its dropout stays active in evaluation mode.

## What it measures

Calls of a trained model with gradients disabled, on a batch that a data loader has just returned with gradients
disabled, in the recorded steps: whether all its dropout (`p > 0`) and trained BatchNorm layers are in training mode.
Models without such layers, models with some of them in evaluation mode, functions named after statistics or repeated
sampling (`update_bn`, `mc_dropout`), and compiled models are left out. If the recording ends before the first
evaluation, dptune reads the source of the training loop and of the functions it calls, and reports a loop over a data
loader that calls the model with gradients disabled, if the script never changes the mode of a module.

Also reported: calls of `torch.nn.functional.dropout` in a module of the script without `training=`, and of
`scaled_dot_product_attention` with a `dropout_p` in a function that never reads `self.training`. Calls behind a
condition on the mode, in the function or in a module that calls it, are left out, and so are modules and functions
named after repeated sampling. If an argument of the function decides, the call is reported once it has run in
evaluation mode.

## Why it matters

With active dropout, scores are worse than in evaluation mode and vary from run to run. BatchNorm normalizes by the
statistics of the evaluated batch and adds them to its running statistics: each evaluation changes the model, with data
that it should not see. Early stopping and the choice of the best checkpoint depend on these scores.

## What to change

    @torch.no_grad()
    def validate(model, loader):
        model.eval()
        ...
        model.train()

    nn.functional.dropout(x, 0.1, training=self.training)
    scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)

## When to leave it alone

- Dropout or batch statistics are wanted in evaluation, for example to estimate uncertainty.

## References

- PyTorch, "Autograd mechanics", evaluation mode: https://pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval
- torch.nn.Module.eval: https://pytorch.org/docs/stable/generated/torch.nn.Module.html
- torch.nn.functional.scaled_dot_product_attention, "This function always applies dropout":
  https://pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import ActiveDropoutFacts, Rule, RunView, TrainingModeFacts
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses

RULE = Rule(
    code="DP806",
    name="training-mode-in-evaluation",
    family="memory",
    kind="risk",
    summary="the model is evaluated in training mode, or its dropout stays active in evaluation mode",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)
LEAST_CALLS = 2  # the first may be a trial of the model


def check(run: RunView) -> Iterator[Advice]:
    """Name the model and the line that evaluates it, and lines whose dropout ignores the mode."""
    if run.recorded_about("training_mode") is None:
        return
    dropouts = ([each for each in facts.active_dropouts if 0 < each.probability <= 1] for facts in run.facts)
    if active := next(filter(None, dropouts), []):
        yield _active(active)
    for found in next((facts.training_mode for facts in run.facts if facts.training_mode), []):
        if not found.calls and found.ahead:
            yield _ahead(found, found.ahead)
        if found.training < LEAST_CALLS or found.training < found.calls:
            continue
        yield results_at_risk(
            RULE,
            title=f"`{found.model}` is evaluated in training mode{in_parentheses(found.where)}: {_effects(found)}",
            why="Scores depend on random dropout or on the batch, not only on the model.",
            confidence="high" if found.norms else "medium",
            evidence=[
                Evidence(
                    label="calls without gradients in training mode", value=found.training, unit=f"of {found.calls}"
                )
            ],
            remedy="Call `model.eval()` before the evaluation, and `model.train()` after it.",
            watch="Scores change: do not compare them with earlier ones.",
            subject=found.model,
        )


def _ahead(found: TrainingModeFacts, line: str) -> Advice:
    return results_at_risk(
        RULE,
        title=f"`{found.model}` will be evaluated in training mode at {line}: the script never calls .eval(), so "
        f"{_effects(found)}",
        why="Scores depend on random dropout or on the batch, not only on the model.",
        confidence="medium",
        evidence=[Evidence(label="not reached in the recording", value=line)],
        remedy="Call `model.eval()` before the evaluation, and `model.train()` after it.",
        watch="Scores change: do not compare them with earlier ones.",
        subject=found.model,
    )


def _active(found: list[ActiveDropoutFacts]) -> Advice:
    lines = [each.where for each in found]
    more = f" and {len(lines) - 2} more" if len(lines) > 2 else ""
    at = f"{' and '.join(lines[:2]) if not more else ', '.join(lines[:2])}{more}"
    seen = any(each.evaluated for each in found)
    attention = found[0].operator == "scaled_dot_product_attention"
    return results_at_risk(
        RULE,
        title=f"Dropout stays active in evaluation mode: {found[0].operator} at {at} does not use self.training",
        why=f"In evaluation it still drops {100 * found[0].probability:.0f} % of the values, so scores vary from run "
        "to run and understate the model.",
        confidence="high" if seen else "medium",
        evidence=[
            *(
                Evidence(label=f"{each.where}: probability in {each.module}", value=each.probability)
                for each in found[:4]
            ),
            *([Evidence(label="ran in evaluation mode", value=lines[0])] if seen else []),
        ],
        remedy="Pass `dropout_p=p if self.training else 0.0`." if attention else "Pass `training=self.training`.",
        watch="Scores change: do not compare them with earlier scores.",
        subject="dropout",
    )


def _effects(found: TrainingModeFacts) -> str:
    dropout = f"{found.dropouts} dropout {'layer is' if found.dropouts == 1 else 'layers are'} active"
    layers = "layer uses and updates" if found.norms == 1 else "layers use and update"
    norm = f"{found.norms} BatchNorm {layers} statistics of the evaluated batches"
    return " and ".join(text for text, count in ((dropout, found.dropouts), (norm, found.norms)) if count)
