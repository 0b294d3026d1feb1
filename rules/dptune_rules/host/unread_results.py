"""The forward pass computes results that nothing reads.

## What it measures

Operators of the forward pass in two warm-up steps, if their results require gradients. An operator counts if, by the
end of the next step, no backward pass has gone through its result and the result is freed, and if every operator that
takes the result counts as well. Reading values is use: `item`, `detach`, comparisons, operators without gradients. So
is keeping the result in a variable or a list. The share is of the watched steps, without the overhead of watching; on a
GPU it is the operators' share of host time in the forward pass, applied to the GPU's compute in that pass.

## Why it matters

The work has no effect. Typical cases: a model that is given labels computes its own loss, while the script computes
another one from the logits; no loss uses the outputs of a head or a branch; a metric is computed in each step but read
only in some.

## What to change

- The model's own loss is not used: call the model without labels.

      labels = inputs.pop("labels")
      loss = criterion(model(**inputs).logits, labels)

- A head or a branch: leave it out, or call it only if its output is read.
- A metric: compute it in the steps that report it, under `torch.no_grad()`.

On a CPU the saving is predicted from the time of these operators in at least two warm-up steps: from 0.8 times the
smallest share to 1.3 times the largest. Otherwise it is an upper bound: the time of all of these operators.

## When to leave it alone

- The result is read in steps after the warm-up, for example in every hundredth.
- An operator is called for its side effects: BatchNorm in a branch updates its statistics.

## References

- Hugging Face, Trainer, "compute_loss":
  https://huggingface.co/docs/transformers/main_classes/trainer#transformers.Trainer.compute_loss
- Aho, Lam, Sethi, Ullman, "Compilers" (2006), section 9.1.6 (dead-code elimination)
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, Threshold, UnreadResultFacts
from dptune_rules.known import known

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")

RULE = Rule(
    code="DP627",
    name="unread-results",
    family="host",
    kind="time",
    summary="the forward pass computes results that nothing reads",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each function whose unread results take a share of the step worth it."""
    facts = run.any_facts()
    repeated = {line for found in facts.repeated_forward if found.unused for line in found.lines}
    for found in facts.unread_results:
        share = run.same_results_share(found)
        impact = run.impact(share, WORTH_SHARE)
        if impact is None or _place(found)[1] in repeated:  # repeated-forward names the whole pass
            continue
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact=impact,
            title=f"{_computes(found)} results that nothing reads ({100 * share:.0f} % of the step): {_remedy(found)}",
            why="No backward pass goes through these results, no other operator uses them, and they are freed by the "
            "end of the next step.",
            changes=[],
            saves=run.without_same([found], share) or run.bound(0.0, share, "the time of all of these operators"),
            confidence="medium" if len(found.step_ns) > 1 and run.times_hold else "low",
            evidence=[
                Evidence(label="operators whose results are not read", value=share, unit="of a step"),
                *known("operators", ", ".join(found.operators)),
                *known("called by", found.library),
                Evidence(label="calls of these operators", value=found.calls, unit="per step"),
                Evidence(label="watched steps", value=len(found.step_ns)),
            ],
            numerics="same",
            watch="Only warm-up steps were watched: keep what later steps read.",
            fingerprint=f"{RULE.code}:{_place(found)[0] or _place(found)[1].rpartition(':')[0]}:{found.library}",
        )


def _place(found: UnreadResultFacts) -> tuple[str, str]:
    """The function, "" outside of one, and its line."""
    name, _, place = found.function.removesuffix(")").rpartition(" (")
    return name, place


def _computes(found: UnreadResultFacts) -> str:
    name, place = _place(found)
    function = f"`{name}` ({place})" if name else place
    return f"{function} calls `{found.library}`, which computes" if found.library else f"{function} computes"


def _remedy(found: UnreadResultFacts) -> str:
    if found.library and any("loss" in name or "cross_entropy" in name for name in found.operators):
        return "call the model without labels"
    return f"leave them out ({', '.join(found.operators)})"
