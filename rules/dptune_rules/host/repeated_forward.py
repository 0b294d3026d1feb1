"""A module computes the same forward pass several times in each step.

## What it measures

Calls of modules with parameters between two optimizer steps, in the warm-up steps: inputs and outputs of a module that
is called several times are compared. The rule finds calls with equal inputs and equal outputs, and calls on growing
prefixes of one tensor: `x[:, :1]`, `x[:, :2]` and so on. Large tensors are compared by about 4,096 values spread over
them. It also finds calls on batches in which each row occurs k times in a regular order, as after `repeat_interleave`,
`tile` or `expand`, if the rows of the outputs repeat in the same way; about 32 values of each row are compared. The
forward share is the host time of these calls, on a GPU their part of the compute of the forward pass. The backward
share is their part of the backward pass.

It also finds passes without gradients, in training or evaluation mode, on a batch that the module was trained on: in
the previous step, or earlier in the same step. Their outputs are not compared. A pass with gradients counts in the same
way if no backward pass goes through its outputs by the end of the next step, once for each batch; labels among its
arguments may differ.

Other calls that differ do not count: with another dropout mask, with and without gradients of the input, in training
and evaluation mode, or after an optimizer step. Neither do activation checkpointing, gradient caching, accumulation
over one fixed batch, and passes of a line search, each with other weights.

On CPUs it also finds frozen encoders: modules that no optimizer trains, whose inputs are the batch as the loader
prepares it, whose outputs need no gradient, which draw no random numbers, and whose weights stay the same. Reported if
the loader draws no random numbers for the samples of its first batches, and the script plans at least two epochs. A
frozen module whose inputs and outputs are the same in every warm-up step, for example an encoder of one prompt, is
reported without these conditions.

## Why it matters

The second call repeats a known result, and the backward pass goes through both. So does each row after the first. A
loop over N prefixes computes about N / 2 times as much as one pass over the longest.

## What to change

- Equal calls: keep the output and use it twice. Gradients add up in one backward pass.
- A pass without gradients on the same input: use the output of the pass with gradients, detached.
- A pass for a metric, on a batch that was trained on: compute the metric from the outputs of the training pass, which
  are from before the update and with dropout, or run the pass less often.
- Prefixes: run one pass over the longest, with a causal mask (teacher forcing). Position i then sees the same prefix.

      mask = nn.Transformer.generate_square_subsequent_mask(length)
      outputs = decoder(targets, memory, tgt_mask=mask)

- Repeated rows: call the module on the distinct rows, and repeat its output.
- A frozen encoder: compute the features of all samples once, and train on a data set of features.
- A frozen module with fixed inputs: call it once before training, and keep the result.

On a CPU the saving is predicted for equal calls, fixed inputs, and passes without gradients or whose gradients are not
used: from 0.8 to 1.3 times the time of the calls in at least two warm-up steps, with half to one and a half times the
estimated backward pass; for repeated rows, if a call takes 3 ms or more, from 0.6 times as much. Otherwise it is an
upper bound: all calls but the needed ones, of repeated rows all but one in k, and the backward pass through them.

## When to leave it alone

- The loop over prefixes runs a module that is not causal: each output then depends on where the prefix ends.
- Memory: the output must be kept until its second use.

## References

- Vaswani et al., "Attention Is All You Need" (2017), section 3.2.3 (masked self-attention in the decoder):
  https://arxiv.org/abs/1706.03762
- torch.nn.Transformer.generate_square_subsequent_mask:
  https://pytorch.org/docs/stable/generated/torch.nn.Transformer.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Evidence
from dptune.rule import RepeatedForwardFacts, Rule, RunView, Threshold
from dptune_rules.host.frozen_features import fixed_inputs, frozen_features
from dptune_rules.known import ratio_stays_one

WORTH_SHARE = Threshold("worth_share", 0.05, "impact is medium from here; identical steps differ by about as much")
NAMED = 3  # lines in a title

RULE = Rule(
    code="DP612",
    name="repeated-forward",
    family="host",
    kind="time",
    summary="a module computes the same forward pass, or the same rows, several times in each step",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each module whose repeated calls take a share of the step worth it."""
    yield from fixed_inputs(RULE, run, WORTH_SHARE)
    yield from frozen_features(RULE, run, WORTH_SHARE)
    for found in run.any_facts().repeated_forward:
        forward, backward = run.repeated_share(found)
        share = forward + backward
        impact = run.impact(share, WORTH_SHARE)
        if impact is None or (_of_old_policy(found) and ratio_stays_one(run)):
            continue
        needed = _unneeded(found)
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact=impact,
            title=_title(found),
            why=_why(found, forward, backward),
            changes=[],
            saves=run.without_repeated(found)
            or run.bound(0.0, share, f"{needed}{', with the backward pass' if backward else ''}"),
            confidence="medium" if found.prefixes or found.trained or not run.times_hold else "high",
            evidence=[
                *([Evidence(label="called at", value=_places(found.lines))] if found.lines else []),
                Evidence(label=f"calls of {found.module}", value=found.calls, unit="per step"),
                *([Evidence(label="distinct rows", value=found.inputs)] if found.rows_repeat > 1 else []),
                Evidence(label="forward calls not needed", value=forward, unit="of a step"),
                *([Evidence(label="backward pass through them", value=backward, unit="of a step")] if backward else []),
            ],
            numerics="changes" if found.prefixes or found.in_training else "same",
            watch=_watch(found),
            fingerprint=f"{RULE.code}:{found.module}{_kind(found)}",
        )


def _of_old_policy(found: RepeatedForwardFacts) -> bool:
    """Whether it may compute the old log-probabilities of a policy."""
    return (found.trained or found.without_graph) and not found.unused


def _unneeded(found: RepeatedForwardFacts) -> str:
    if found.trained:
        return "the passes whose gradients are not used" if found.unused else "the passes without gradients"
    if found.rows_repeat > 1:
        return f"all but one in {found.rows_repeat} rows"
    return "all but the longest prefix" if found.prefixes else "all calls but the first"


def _kind(found: RepeatedForwardFacts) -> str:
    if found.trained:
        return ":unused" if found.unused else ":trained"
    return ":rows" if found.rows_repeat > 1 else ":prefixes" if found.prefixes else ""


def _title(found: RepeatedForwardFacts) -> str:
    at = _at(found.lines)
    if found.rows_repeat > 1:
        return (
            f"`{found.module}` computes each row of its input {_times(found.rows_repeat)}{at}: call it on the distinct "
            "rows and repeat its output"
        )
    if found.trained:
        trained, again = _at(found.lines[:1]), _at(found.lines[1:])
        if found.unused:
            return (
                f"`{found.module}` runs a second time{again} on the batch it is trained on{trained}, and no backward "
                "pass uses the result: use the outputs of the training pass"
            )
        return (
            f"`{found.module}` runs again without gradients{again} on the batch it was trained on{trained}: use the "
            "outputs of the training pass"
        )
    each = found.calls // found.inputs
    if found.prefixes:
        of = "the same tensor" if found.inputs == 1 else f"each of {found.inputs} tensors"
        loop = " in a loop" if len(found.lines) == 1 else ""
        return (
            f"`{found.module}` is called for {each} growing prefixes of {of}{loop}{at}: run one pass over the longest "
            "with a causal mask"
        )
    if found.without_graph and len(found.lines) > 1:
        return (
            f"`{found.module}` runs without gradients ({_places(found.lines[1:])}) on the same input as with gradients "
            f"({found.lines[0]}): use that pass's output, detached"
        )
    if found.inputs > 1:
        return (
            f"`{found.module}` is called {found.calls} times in each step with only {found.inputs} different "
            f"inputs{at}: call it once per input and reuse the result"
        )
    remedy = "keep one result and detach it" if found.without_graph else f"use the result {_times(each)}"
    return f"`{found.module}` is called {_times(each)} in each step with the same input{at}: call it once and {remedy}"


def _at(lines: Sequence[str]) -> str:
    return f" ({_places(lines)})" if lines else ""


def _times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"


def _why(found: RepeatedForwardFacts, forward: float, backward: float) -> str:
    calls = "The calls on shorter prefixes" if found.prefixes else "The repeated calls"
    if found.rows_repeat > 1:
        calls = "The repeated rows"
    if found.trained:
        return (
            f"The repeated pass takes {100 * forward:.0f} % of the step. The training pass already computed outputs "
            "for this batch."
        )
    through = f", and the backward pass through them {100 * backward:.0f} %" if backward else ""
    known = (
        "In a causal module the longest prefix contains the outputs of all of them."
        if found.prefixes
        else "Inputs and outputs were equal in every step that was checked."
    )
    return f"{calls} take {100 * forward:.0f} % of the step{through}. {known}"


def _watch(found: RepeatedForwardFacts) -> str:
    if found.trained:
        mode = "Without this pass, later dropout masks and BatchNorm statistics differ. " if found.in_training else ""
        return (
            f"{mode}Outputs of the training pass are from before the update, with dropout and batch statistics; for a "
            "metric without these, run the pass every N steps. Keep it if training needs it."
        )
    if found.prefixes:
        return (
            f"Outputs agree only if `{found.module}` is causal: no attention, convolution or normalization across "
            "later positions. Dropout then draws one mask for all positions."
        )
    if found.rows_repeat > 1:
        return "Outputs and weights agree up to floating-point rounding. Use repeat_interleave or expand on the output."
    return (
        "Weights agree up to floating-point rounding. BatchNorm layers in the module update their running statistics "
        "once per input instead of in each call."
    )


def _places(lines: Sequence[str]) -> str:
    """`train.py:53 and :54`: the file once for lines that follow each other in it."""
    shown, file = [], ""
    for line in lines[:NAMED]:
        name, _, number = line.rpartition(":")
        shown.append(f":{number}" if name == file else line)
        file = name
    if len(lines) > NAMED:
        return f"{', '.join(shown)} and {len(lines) - NAMED} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
