"""The labels of a language model are shifted twice: it learns the token after the next.

## What it measures

In up to four backward passes of the warm-up steps, dptune compares the targets of cross entropies with the token ids
that the model embeds. A loss that trains the next token has targets one position ahead of the inputs. The rule reports
targets that are two positions ahead, in every pass, if no loss of the pass has targets one position ahead.

## Why it matters

The causal language models of transformers (`GPT2LMHeadModel`, `LlamaForCausalLM` and others) shift `labels` by one
position themselves. If the data set, the collate function or the script has shifted them before, position t is trained
on token t + 2. The loss decreases and looks plausible, but generated text skips a token at each position.

## What to change

Shift once: pass `labels=input_ids` to a model that shifts (with -100 at ignored positions), and keep both of the same
slice of the text. Keep the shift in the data only where the script computes the loss from `logits` itself.

## When to leave it alone

- The model predicts two tokens ahead on purpose. With several prediction heads, one that trains the next token keeps
  this rule quiet.

## References

- transformers, GPT-2: "the labels are shifted inside the model, i.e. you can set labels = input_ids":
  https://huggingface.co/docs/transformers/model_doc/gpt2
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Evidence
from dptune.rule import PreparingFacts, Rule, RunView, Threshold
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import known

AFTER_NEXT_SHARE = Threshold(
    "after_next_share", 0.95, "of the targets: they are a slice of the same text, which few masked tokens interrupt"
)
NEXT_SHARE = Threshold(
    "next_share", 0.5, "of a loss's targets: text that repeats a token agrees with both shifts, and so is not reported"
)
LEAST_TARGETS = 32  # of a pass: fewer may agree by chance

RULE = Rule(
    code="DP509",
    name="labels-shifted-twice",
    family="input",
    kind="risk",
    summary="labels of a language model are shifted twice: it learns the token after the next",
    since="0.1",
    thresholds=(AFTER_NEXT_SHARE, NEXT_SHARE),
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Report targets that are two positions ahead of the inputs."""
    run.any_facts()
    for facts in [facts for facts in run.facts if facts.shifted_labels][:1]:
        passes = facts.shifted_labels
        if any(
            found.targets < LEAST_TARGETS
            or found.after_next < run.limit(AFTER_NEXT_SHARE) * found.targets
            or found.following > run.limit(NEXT_SHARE)
            for found in passes
        ):
            continue
        share = sum(found.after_next for found in passes) / sum(found.targets for found in passes)
        loader = max(facts.loaders, key=lambda loader: loader.batches_drawn or 0, default=None)
        preparing, shifts = (loader.preparing, loader.shifts_at) if loader else (None, [])
        yield results_at_risk(
            RULE,
            title=f"Labels are shifted twice: {100 * share:.0f} % of the targets are the token after the next, and no "
            f"loss trains the next token{_source(preparing, shifts)}",
            why="The data set or the script shifts the labels, and the model shifts them once more, as transformers' "
            "causal language models do.",
            evidence=[
                Evidence(label="targets two positions ahead of the inputs", value=share, unit="of those compared"),
                Evidence(
                    label="targets one position ahead",
                    value=max(found.following for found in passes),
                    unit="of those compared",
                ),
                Evidence(label="backward passes compared", value=len(passes)),
                *known("the loss shifts labels at", ", ".join(passes[0].loss_shifts_at)),
                *known("batches are collated by", preparing.collated_by if preparing else None),
            ],
            remedy="Shift once: pass labels=input_ids to a model that shifts labels itself.",
            watch="Losses before and after the change cannot be compared.",
            subject="labels",
        )


def _source(preparing: PreparingFacts | None, shifts: Sequence[str]) -> str:
    """The lines that shift what is read, else the function that reads samples, where it is the script's."""
    if shifts:
        return f"; samples are shifted at {' and '.join(shifts)}"
    name, _, line = (preparing.read_by or "").partition(" (") if preparing else ("", "", "")
    return f"; samples come from `{name}` ({line}" if line else ""
