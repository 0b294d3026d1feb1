"""Workers, ranks or epochs draw the same random numbers for their samples.

## What it measures

Random number generators that the data set, its transforms, its collate function or a global variable of their module
hold (`numpy.random.Generator`, `numpy.random.RandomState`, `random.Random`, `torch.Generator`): the state in which each
process that prepares batches first draws from them. Equal states give equal numbers. Generators that can be seeded
again must also be in equal states after the batch. Measured for the loader that most batches are drawn from, if its
data set has an index and its workers are forked.

On several ranks with DistributedDataParallel or FSDP, also lines of the script that draw random numbers with torch
outside of a loader in the warm-up steps: tensors with one row per sample of the batch, or with any number of rows if
the script has no loader. Noise for parameters and gradients is left out. Reported if all ranks drew the same values in
at least three calls, and no two calls of a rank drew the same.

## Why it matters

It hurts model quality. A worker process starts with a copy of the data set. A generator created in `__init__` is copied
in the same state, so all workers crop, flip or add noise in the same way, and start again from that state in each epoch
unless `persistent_workers=True`. Ranks that create it with the same seed have the same numbers too. The model sees a
fraction of the augmentations it should see. torch seeds `torch`, `random` and `numpy.random` in each worker, but not
generators that a script creates. If all ranks draw the same noise, masks or timesteps, more ranks add no variety to a
step. If the numbers make or choose samples, all ranks train on the same data.

## What to change

Make the generator in each worker, from a seed that differs between workers, epochs and ranks:

    def seed_worker(worker_id):
        seed = [torch.initial_seed(), torch.distributed.get_rank()]
        torch.utils.data.get_worker_info().dataset.rng = numpy.random.default_rng(seed)

    loader = DataLoader(dataset, num_workers=4, worker_init_fn=seed_worker)

`torch.initial_seed()` differs between the workers of a rank and between epochs. It is the same on ranks that call
`torch.manual_seed` with the same number, so the rank is part of the seed. `torch.distributed.get_rank()` works in
forked workers; `os.environ["RANK"]` works in all. Without workers, make the generator with
`numpy.random.default_rng([seed, rank])`.

For numbers that steps draw, seed the ranks differently once the model is made: `torch.manual_seed(seed + rank)`, or
with Accelerate `set_seed(seed, device_specific=True)`.

## When to leave it alone

- The numbers decide something that all workers and ranks must agree on, for example the image size of a step.

## References

- PyTorch, "Randomness in multi-process data loading":
  https://pytorch.org/docs/stable/data.html#randomness-in-multi-process-data-loading
- NumPy, "Parallel random number generation", seeds from a list:
  https://numpy.org/doc/stable/reference/random/parallel.html
- Accelerate, `set_seed`, on `device_specific`:
  https://huggingface.co/docs/accelerate/package_reference/utilities#accelerate.utils.set_seed
- Three calls: the first may initialize something on all ranks. Equal numbers by chance are practically impossible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Evidence
from dptune.rule import EqualGenerators, Rule, RunView, StepDrawFacts, equal_draws, equal_generators
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP508",
    name="same-random-numbers",
    family="input",
    kind="risk",
    summary="workers, ranks or epochs draw the same random numbers for their samples",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)

LEAST_CALLS = 3


def check(run: RunView) -> Iterator[Advice]:
    """Name each generator that processes or epochs drew from in the same state, and lines that ranks draw alike."""
    yield from _drawn_in_steps(run)
    if (facts := run.recorded_about("loaders")) is None:
        return
    loader = max(facts.loaders, key=lambda loader: loader.batches_drawn or 0, default=None)
    if loader is None:
        return
    replicas = run.facts if (facts.ddp or facts.fsdp) and not facts.engine else [facts]
    ranks = [
        next((same.generators for same in of_rank.loaders if same.where == loader.where and same.generators), [])
        for of_rank in replicas
    ]
    for equal in equal_generators(ranks):
        yield _advice(equal, loader.where, _remedy(equal, loader.dataset) if loader.num_workers else "")


def _drawn_in_steps(run: RunView) -> Iterator[Advice]:
    """The lines that draw alike on all ranks, in one finding."""
    if not all((facts.ddp or facts.fsdp) and not facts.engine for facts in run.facts):
        return
    found = equal_draws(run.facts, LEAST_CALLS)
    lines = list(dict.fromkeys(draw.where for draw in found))
    if lines:
        yield _of_lines(found, lines, len(run.facts))


def _of_lines(found: Sequence[StepDrawFacts], lines: Sequence[str], ranks: int) -> Advice:
    more = f" and {len(lines) - 2} more" if len(lines) > 2 else ""
    known_rows = all(draw.of_batch for draw in found)
    return results_at_risk(
        RULE,
        title=f"{'Both' if ranks == 2 else f'All {ranks}'} ranks draw the same random numbers in each step "
        f"({', '.join(lines[:2])}{more})",
        why="The ranks have the same seed, so they draw the same noise, masks or choices for different samples."
        if known_rows
        else "The ranks have the same seed. If these numbers make or choose samples, all ranks train on the same data.",
        impact="medium",
        confidence="high" if known_rows else "medium",
        evidence=[
            *(
                Evidence(label=f"{draw.where}: torch's {draw.operator}", value=" x ".join(map(str, draw.size)))
                for draw in found[:4]
            ),
            Evidence(label="calls with the same numbers", value=min(len(draw.values) for draw in found)),
        ],
        remedy="After the model is made, seed each rank differently: `torch.manual_seed(seed + rank)`.",
        watch="What must be equal on all ranks, for example the image size of a step, then needs a generator of its "
        "own with a common seed.",
        subject="steps",
    )


def _advice(equal: EqualGenerators, where: str | None, in_workers: str) -> Advice:
    facts = equal.facts
    at = in_parentheses(facts.where)
    shared = [
        *([f"in {equal.workers} workers of a rank"] if equal.workers > 1 else []),
        *([f"on {equal.ranks} ranks"] if equal.ranks > 1 else []),
        *([f"in {equal.epochs} epochs"] if equal.epochs > 1 else []),
    ]
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="medium" if equal.workers > 1 or equal.epochs > 1 else "low",
        title=f"{facts.name}{at} draws the same random numbers {_listed(shared)}",
        why="Each worker gets a copy of the generator in the same state, so samples are augmented in the same way."
        if in_workers
        else "The ranks seed the generator with the same value, so they augment their samples in the same way.",
        changes=[],
        remedy=in_workers
        or "Seed the generator with the rank as well, for example numpy.random.default_rng([seed, rank]).",
        confidence="high",
        evidence=[
            Evidence(label="workers of a rank with the same state", value=equal.workers),
            Evidence(label="ranks with the same state", value=equal.ranks),
            Evidence(label="epochs that start from the same state", value=equal.epochs),
            Evidence(label="class of the generator", value=facts.kind),
            *known("generator created at", facts.where),
            *known("loader created at", where),
        ],
        numerics="changes",
        fingerprint=f"{RULE.code}:{facts.name}",
    )


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _remedy(equal: EqualGenerators, dataset: str | None) -> str:
    holder, _, attribute = equal.facts.name.rpartition(".")
    target = f"get_worker_info().dataset.{attribute}" if holder and holder == dataset else equal.facts.name
    made = (
        f"{target} = numpy.random.default_rng([torch.initial_seed(), rank])"
        if equal.facts.kind == "numpy.random.Generator"
        else f"seed {target} with torch.initial_seed() and the rank"
    )
    return (
        f"Create the generator in worker_init_fn: {made}. torch.initial_seed() differs between workers and epochs, "
        "but not between ranks with the same torch.manual_seed."
    )
