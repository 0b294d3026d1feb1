"""Allocated memory grows every step (possible leak).

## What it measures

The first of these three sources that was recorded:

- The detailed window, where torch records each allocation: memory allocated at the end of a step, minus that at the end
  of the step before. It needs four steps (`dptune profile --detailed 4`).
- On a GPU: memory allocated after each untraced step.
- On a CPU: the storage of all tensors that Python can see, counted before the first window and after the next two.
  Resident memory does not count, because it grew by up to 2 MiB a step in healthy runs. Exception: where each step
  leaves a tensor with an autograd graph and 8 MiB more resident memory, that growth is taken as its activations.

Each part of the recording must show at least half of the overall growth per step.

Where memory does not grow by that much, but each step leaves a tensor with an autograd graph, that is reported with low
impact. Of 306 recorded ranks without this fault, none left one in each step of both parts of its recording.

The holder of the tensors is found by what refers to them: a list, a dict or an attribute of an object. The line that
adds to it is read from the source. Hooks on modules that steps register and do not remove are counted by line.

## Why it matters

It costs nothing until the memory is full; then the training fails, perhaps hours later. The usual cause is a collection
of tensors: outputs for a metric, or losses without a backward pass, each of which keeps its whole graph with all
activations. A backward pass frees these, but not the functions of the graph: with a recurrent model, losses that were
kept after it took 0.9 MB a step.

## What to change

Do not keep tensors with a graph: use `.item()` or `.detach()`. Reduce outputs to the metric in the step, and put
`torch.no_grad()` around code that needs no gradients. Look for lists and dicts that the loop appends to, caches without
a bound, hooks that are registered in each step.

## When to leave it alone

- A cache that fills up and then stays, or a replay buffer of a fixed size: look again after an epoch. A holder with
  such a name, a bounded deque or a part of a data set is reported with low confidence.
- The first steps of an optimizer that creates its state in the first step of each parameter: record after more warm-up.

## References

- PyTorch, "Frequently Asked Questions", "My model reports CUDA out of memory":
  https://pytorch.org/docs/stable/notes/faq.html
- PyTorch, "Understanding CUDA Memory Usage": https://pytorch.org/docs/stable/torch_cuda_memory.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Evidence
from dptune.measured import MemoryFigures, digits
from dptune.rule import MemoryGrowth, RegisteredHookFacts, Rule, RunView, Threshold, left_by_steps

_TENSORS = "Do not keep tensors with a graph: use `.item()` or `.detach()`. Reduce outputs in the step."
_HOOKS = "Register the hooks once, before training, or call `remove()` on their handles after the pass."
_LIMITED = "Check whether it has a limit: if it has none, drop old entries."
SOON_STEPS = 10_000  # a run that is out of memory before that many steps will hardly come to its end

LEAST_KIB = Threshold("least_kib", 64.0, "a logger keeps less; a tensor that is kept with its graph takes more")
ALIKE = Threshold(
    "alike", 0.5, "a leak keeps about the same amount in each step; batches of varying length keep varying amounts"
)

RULE = Rule(
    code="DP802",
    name="growing-memory",
    family="memory",
    kind="risk",
    summary="allocated memory grows every step (possible leak)",
    since="0.1",
    thresholds=(LEAST_KIB, ALIKE),
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the rank on which memory grows from step to step, and what keeps it."""
    counted = next(iter(run.memory_growth()), None)
    figures = run.measured.memory if counted is None else run.measured.known("memory") or []
    traced = _traced(run, figures)
    if traced is not None:
        yield _advice(run, traced.growth_bytes_per_step, traced, counted)
    elif counted is not None and counted.bytes_per_step >= run.limit(LEAST_KIB) * 1024:
        rank_figure = next((figure for figure in figures if figure.rank == counted.rank), None)
        yield _advice(run, counted.bytes_per_step, rank_figure, counted)
    else:
        yield from map(_of_graphs, [growth for growth in run.memory_growth() if growth.graphs_each_step][:1])


def _of_graphs(growth: MemoryGrowth) -> Advice:
    """Each step leaves tensors with their graphs, which take little memory so far."""
    number = growth.graphs_each_step
    tensors = "a tensor with its autograd graph" if number == 1 else f"{number} tensors with their autograd graphs"
    kept = growth.kept
    held = f" in `{kept.held_by}`" if kept and kept.held_by else ""
    held += f" ({kept.where})" if kept and kept.where and held else ""
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="low",
        title=f"Each step keeps {tensors}{held}",
        why="The functions that computed a tensor are kept with it, and their activations until a backward pass.",
        changes=[],
        remedy=_TENSORS,
        confidence="medium",
        evidence=[*_left(growth), Evidence(label="steps measured", value=growth.steps)],
        numerics="same",
        fingerprint=RULE.code,
    )


def _left(growth: MemoryGrowth) -> list[Evidence]:
    return [
        Evidence(label="tensors left by each step", value=growth.tensors),
        Evidence(label="of these with a grad_fn", value=growth.with_graph),
    ]


def _traced(run: RunView, figures: Sequence[MemoryFigures]) -> MemoryFigures | None:
    """The device on which it grows by the allocations of the detailed window."""
    known = [figure for figure in figures if figure.known("least_growth_bytes") is not None]
    worst = max(known, key=lambda candidate: candidate.growth_bytes_per_step, default=None)
    if worst is None:
        return None
    growth, least = worst.growth_bytes_per_step, worst.least_growth_bytes
    if growth <= 0 or growth < run.limit(LEAST_KIB) * 1024 or least < run.limit(ALIKE) * growth:
        return None
    return worst


def _advice(run: RunView, growth: float, figure: MemoryFigures | None, counted: MemoryGrowth | None) -> Advice:
    left = None if figure is None else _steps_left(figure, growth)
    full = "" if left is None else f": the device is full after about {left:,} more steps"
    kept = counted.kept if counted is not None and counted.kept is not None and counted.kept.shapes else None
    by = f"`{kept.held_by}`" if kept and kept.held_by else ""
    held = f", kept in {by}" if by else ""
    held += f" ({kept.where})" if kept and kept.where and by else ""
    hooks = _hooks(run, figure.rank if figure is not None else counted.rank if counted is not None else 0)
    if hooks is not None:
        held = f", kept by hooks that steps register and never remove ({hooks.where})"
    evidence = []
    if figure is not None and figure.known("least_growth_bytes") is not None:
        evidence.append(
            Evidence(label=f"growth on {figure.device}", value=growth, unit="bytes per step", rank=figure.rank)
        )
        evidence.append(Evidence(label="steps of the detailed window", value=run.measured.step.detailed_steps))
    elif counted is not None:
        label = {"allocated": "allocated GPU memory", "resident": "resident memory"}.get(
            counted.basis, "tensor storage"
        )
        evidence.append(Evidence(label=f"growth of {label}", value=growth, unit="bytes per step", rank=counted.rank))
        evidence.append(Evidence(label="steps measured", value=counted.steps))
    if counted is not None and counted.tensors >= 1:
        evidence += _left(counted)
    if kept is not None:
        evidence.append(Evidence(label="shapes", value=", ".join(kept.shapes)))
    if hooks is not None:
        evidence.append(Evidence(label=f"hooks registered at {hooks.where} and not removed", value=hooks.kept))
    limited = kept is not None and kept.limited and hooks is None
    soon = left is not None and left < SOON_STEPS
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="low" if limited else "high" if soon else "medium",
        title=f"Allocated memory grows by {digits(growth / 2**20)} MiB every step{held}{full}",
        why=_why(by, hooks=hooks is not None, limited=limited),
        changes=[],
        remedy=_LIMITED if limited else _HOOKS if hooks is not None else _TENSORS,
        confidence="low" if limited else "medium",
        evidence=evidence,
        numerics="same",
        fingerprint=RULE.code,
    )


def _why(by: str, *, hooks: bool, limited: bool) -> str:
    if hooks:
        return "Each hook keeps what its function refers to, and runs in each later pass of the module."
    if limited:
        return f"{by} looks like a buffer of limited size: it is a leak only if it has no limit."
    return f"{by or 'Something'} keeps tensors from every step: collected outputs, or losses with their graph."


def _hooks(run: RunView, rank: int) -> RegisteredHookFacts | None:
    """The line of that rank whose hooks become more from step to step."""
    return next((left_by_steps(facts.hooks) for facts in run.facts if facts.rank == rank), None)


def _steps_left(figure: MemoryFigures, growth: float) -> int | None:
    """How many steps there is memory for; None where it is not known how much there is."""
    capacity, taken = figure.known("capacity_bytes"), figure.known("peak_reserved_bytes")
    if capacity is None or taken is None:
        return None
    return max(0, int((capacity - taken) // growth))
