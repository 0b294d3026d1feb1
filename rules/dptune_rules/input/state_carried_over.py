"""A recurrent layer starts each batch of shuffled samples with the state of the previous batch.

## What it measures

In the warm-up steps, the state that is passed to `nn.LSTM`, `nn.GRU`, `nn.RNN` and their cells in the first training
call after a batch was drawn: whether some of its values equal those of the state that they returned for the previous
batch. Reported if all batches, at least two, start with that state, and the loader that most batches are drawn from
shuffles its samples.

## Why it matters

Carrying the state over is right if row i of a batch continues row i of the previous one. Shuffled samples do not
continue it: each starts with the state of an unrelated sample. This adds noise to training, and outputs depend on the
order of batches, in evaluation too.

## What to change

Pass no state at the start of a batch:

    outputs, state = self.rnn(rows)

If sequences continue from batch to batch, keep their order: `shuffle=False`, and a batch sampler whose row i continues
row i of the previous batch. Reset the state where a sequence ends.

## When to leave it alone

- Each sample of the data set is a whole batch, and the state does not depend on the order of samples.

## References

- torch.nn.LSTM, whose state is zero if none is passed: https://pytorch.org/docs/stable/generated/torch.nn.LSTM.html
- Merity et al. 2017, "Regularizing and Optimizing LSTM Language Models", on states and truncated backpropagation:
  https://arxiv.org/abs/1708.02182
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import CarriedStateFacts, LoaderFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP514",
    name="state-carried-over",
    family="input",
    kind="risk",
    summary="a recurrent layer starts each batch of shuffled samples with the state of the previous batch",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)
LEAST_BATCHES = 2
SHUFFLING = ("RandomSampler", "SeedableRandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")


def check(run: RunView) -> Iterator[Advice]:
    """Name the layer of the first rank that has one."""
    if run.recorded_about("carried_states") is None:
        return
    for facts in run.facts:
        drawn = [loader for loader in facts.loaders if loader.batches_drawn]
        loader = max(drawn, key=lambda candidate: candidate.batches_drawn or 0, default=None)
        found = [found for found in facts.carried_states if LEAST_BATCHES <= found.batches == found.batches_seen]
        if found and loader is not None and _shuffles(loader):
            yield _advice(found[0], loader)
            return


def _shuffles(loader: LoaderFacts) -> bool:
    if loader.own_batches or loader.iterable:  # in an order of the script
        return False
    return loader.sampler in SHUFFLING or (bool(loader.distributed_sampler) and loader.sampler_epoch is not None)


def _advice(found: CarriedStateFacts, loader: LoaderFacts) -> Advice:
    return results_at_risk(
        RULE,
        title=f"{found.module}{in_parentheses(found.where)} starts each batch with the state of the previous batch, "
        "but the loader shuffles: samples start with the state of unrelated ones",
        why="Shuffled samples do not continue those of the previous batch, so the state is noise, and outputs depend "
        "on the order of batches.",
        evidence=[
            Evidence(label="batches that start with this state", value=found.batches, unit=f"of {found.batches_seen}"),
            *known("sampler", loader.sampler),
            *known("loader created at", loader.where),
        ],
        remedy="Pass no state at the start of a batch, or keep the order of sequences: `shuffle=False` and batches "
        "whose row i continues row i of the previous batch.",
        watch="Train again from scratch: the weights were trained with the states of unrelated samples.",
        subject=found.module,
    )
