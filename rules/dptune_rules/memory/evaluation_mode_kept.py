"""The model is trained in evaluation mode.

## What it measures

Whether all modules with parameters of the optimizer, and all their dropout and BatchNorm layers, are in evaluation mode
at each recorded optimizer step. Models that have neither dropout (`p > 0`) nor trained BatchNorm layers are skipped:
evaluation mode changes nothing in them. A model with some part in training mode is not reported, because frozen parts
are often kept in evaluation mode on purpose.

If the recording ends before the first validation, dptune reads the source of the training loop and of the functions it
calls. It reports a call of `.eval()` on the model if nothing in the loop switches back to training mode.

A trace that dptune did not record shows it if it has sizes of operator inputs: every call of dropout has p > 0 and
drops nothing, and gradients flow through most of them to the weights before them. Frozen parts are left out.

## Why it matters

It costs no time, and may even make steps faster. In evaluation mode dropout does nothing, and BatchNorm normalizes with
its running statistics, which are no longer updated. The model then trains without dropout and with outdated statistics.
The usual cause is a validation function that calls `model.eval()` but not `model.train()` afterwards; another is a
pretrained model that a library returns in evaluation mode.

## What to change

Call `model.train()` at the end of validation, or before each training step or epoch:

    @torch.no_grad()
    def validate(model, loader):
        model.eval()
        ...
        model.train()

Then put frozen parts back into evaluation mode: `model.train(); model.backbone.eval()`.

## When to leave it alone

- The whole model is fine-tuned without dropout and with frozen statistics on purpose.

## References

- PyTorch, "Autograd mechanics", evaluation mode: https://pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval
- Hugging Face, `from_pretrained` returns a model in evaluation mode:
  https://huggingface.co/docs/transformers/main_classes/model#transformers.PreTrainedModel.from_pretrained
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import EvaluationModeFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import known

WHY = "In evaluation mode dropout does nothing, and BatchNorm neither uses nor updates batch statistics."
WATCH = "Keep frozen parts in evaluation mode. Steps may take longer."

RULE = Rule(
    code="DP804",
    name="evaluation-mode-kept",
    family="memory",
    kind="risk",
    summary="the model is trained in evaluation mode, without dropout and with fixed BatchNorm statistics",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
    also_traces=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the line that put the model into evaluation mode."""
    inferred = None if run.facts else run.measured.known("inferred")
    if inferred is not None and inferred.dropouts_off:
        yield _of_trace(inferred.dropouts_off)
        return
    run.any_facts()
    found = next((facts.evaluation_mode for facts in run.facts if facts.evaluation_mode), [])
    for mode in found:
        yield results_at_risk(
            RULE,
            impact="high" if mode.trained_before or not mode.steps else "medium",
            title=f"`{mode.model}` {_seen(mode) if mode.steps else _ahead(mode)}",
            why=WHY,
            confidence="high" if mode.steps and mode.trained_before and run.times_hold else "medium",
            evidence=[
                Evidence(label="recorded steps in evaluation mode", value=mode.steps, unit=f"of {mode.recorded_steps}"),
                Evidence(label="for example", value=", ".join(mode.names)),
                *known("last .eval() call", mode.eval_where),
                *([Evidence(label="not reached in the recording", value=mode.keeps_where)] if not mode.steps else []),
            ],
            remedy=_remedy(mode.eval_where or mode.keeps_where),
            watch=WATCH,
            subject=mode.model,
        )


def _of_trace(calls: float) -> Advice:
    """A trace that dptune did not record shows that dropout is off, but not the model nor the line."""
    where = "the only call" if round(calls) == 1 else f"all {calls:.0f} calls"
    return results_at_risk(
        RULE,
        impact="medium",
        title=f"Dropout is off in {where} of a step: the model is probably in evaluation mode. Call .train() before "
        "training steps",
        why=WHY,
        confidence="medium",
        evidence=[Evidence(label="calls of dropout that drop nothing", value=round(calls, 1), unit="per step")],
        remedy=_remedy(None),
        watch=WATCH,
        subject="dropout",
    )


def _remedy(where: str | None) -> str:
    return f"Call .train(){_after(where)}, at the end of validation or before each training step."


def _seen(mode: EvaluationModeFacts) -> str:
    often = "all" if mode.steps == mode.recorded_steps else f"{mode.steps} of {mode.recorded_steps}"
    call = f"Call .train(){_after(mode.eval_where) or ' before training'}"
    return f"trains in evaluation mode in {often} recorded steps: {_effects(mode)}. {call}"


def _ahead(mode: EvaluationModeFacts) -> str:
    return (
        f"stays in evaluation mode{_after(mode.keeps_where)}: the training loop never calls .train(), so "
        f"{_effects(mode)}"
    )


def _after(where: str | None) -> str:
    return f" after .eval() in {where}" if where else ""


def _effects(mode: EvaluationModeFacts) -> str:
    dropout = f"{mode.dropouts} dropout {'layer is' if mode.dropouts == 1 else 'layers are'} off"
    norm = f"{mode.norms} BatchNorm {'layer uses' if mode.norms == 1 else 'layers use'} fixed statistics"
    return " and ".join(text for text, count in ((dropout, mode.dropouts), (norm, mode.norms)) if count)
