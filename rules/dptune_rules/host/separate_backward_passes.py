"""Several backward passes go through one graph, where the sum of the losses needs one.

## What it measures

Calls of backward with `retain_graph=True`, and others that follow them in the same optimizer step, if they go through
the same operators of the forward pass and add to gradients that are already there; and the time of all but the first of
them in untraced steps.

## Why it matters

Each pass computes the gradients of the shared part of the model again. Gradients are linear: those of the sum of the
losses are the sum of their gradients, from one pass. Retained graphs also keep all activations until the last pass.

## What to change

    loss = sum(weight * loss for weight, loss in losses)
    loss.backward()

The parts of the model that only one loss uses are computed in either case. On a CPU, operators are timed in warm-up
steps, and the saving is predicted from the part of the later passes in operators that an earlier pass went through. In
measurements, a single pass saved 0.8 to 1.2 times the time of the others. Otherwise the saving is an upper bound: all
passes but the first, on a CPU 1.2 times that.

## When to leave it alone

- The gradients of each loss are needed by themselves: PCGrad, GradNorm, clipping per loss.

## References

- Measured CPU time (alternating runs, one thread, loaded machine) with two losses of convolutions, linear layers, a
  transformer and an LSTM: a single pass saved 0.8 to 1.2 times the time of the second in 19 of 22 measurements, 0.99
  times in the median.
- torch.autograd.backward, `retain_graph`: https://pytorch.org/docs/stable/generated/torch.autograd.backward.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Evidence, Saving
from dptune.rule import RepeatedPassFacts, Rule, RunView, Threshold
from dptune_rules.known import known

WORTH_SHARE = Threshold("worth_share", 0.05, "impact is medium from here; identical steps differ by about as much")

UNSURE = 0.2  # relative, of the part in shared operators: warm-up steps show it
SAVED_PART = (0.8, 1.2)  # of the time of later passes through the same operators: see the references

RULE = Rule(
    code="DP611",
    name="separate-backward-passes",
    family="host",
    kind="time",
    summary="several backward passes through one graph, where one pass over the summed losses is enough",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each call of backward that a sum of losses would spare."""
    if (facts := run.recorded_about("repeated_passes")) is None:
        return
    for found in facts.repeated_passes:
        share = run.backward_share(found.again_ns)
        impact = run.impact(share, WORTH_SHARE)
        if impact is None:
            continue
        at = found.where or "the script"
        lines = [at, *found.also_at]
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact=impact,
            title=f"{_listed(lines)} {found.passes:.0f} backward passes through one graph in each step: add the "
            "losses, and call backward once",
            why=f"All passes but the first take {100 * share:.0f} % of the step. Each computes the gradients of the "
            "shared part of the model again.",
            changes=[],
            saves=_predicted(run, found, share) or _bound(run, share),
            confidence="high",
            evidence=[
                *known("called at", ", ".join(lines) if found.where else None),
                Evidence(label="backward passes with retain_graph", value=round(found.passes, 1), unit="per step"),
                Evidence(label="all but the first", value=share, unit="of a step (untraced)"),
            ],
            numerics="same",
            watch="Weights agree up to floating-point rounding.",
            fingerprint=f"{RULE.code}:{at}",
        )


def _listed(lines: Sequence[str]) -> str:
    return f"{lines[0]} runs" if len(lines) == 1 else f"{', '.join(lines[:-1])} and {lines[-1]} run"


def _predicted(run: RunView, found: RepeatedPassFacts, share: float) -> Saving | None:
    """The saving of one pass, by the part of the others that goes through operators again."""
    part = found.shared_part
    if part is None:
        return None
    how = f"operators that an earlier pass went through take {100 * part:.0f} % of all passes but the first"
    least, most = (1 - UNSURE) * part, min(1.0, (1 + UNSURE) * part)
    return run.of_pass(share, least, part, most, how, SAVED_PART)


def _bound(run: RunView, share: float) -> Saving:
    """All passes but the first; on a CPU as much more as was saved of them at most."""
    if run.measured.known("device_kind") != "cpu":
        return run.bound(0.0, share, "all passes but the first")
    how = f"{SAVED_PART[1]} times the time of all passes but the first"
    return run.bound(0.0, min(1.0, SAVED_PART[1] * share), how)
