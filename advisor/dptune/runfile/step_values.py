"""Some values of a step's weights and gradients: whether ranks apply the same gradients to different weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dptune.runfile.facts import Facts


@dataclass
class StepValues:
    """What ranks compare of a step of an optimizer, the first of which in the recording is step 1.

    `gradients` is a digest of sampled values of the gradients that the step used. The lists have an element for each
    sampled tensor that has a gradient: `distinct`, the different nonzero values among those sampled of its gradient;
    `sums` and `scales`, the sums of sampled weights and of their absolute values, before the step.
    """

    step: int
    gradients: str
    distinct: list[int] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)


@dataclass
class StepValueFacts:
    """The last warm-up steps of an optimizer; `where` is the script's line that makes it."""

    optimizer: str
    where: str | None = None
    steps: list[StepValues] = field(default_factory=list)


@dataclass(frozen=True)
class DifferentWeights:
    """Weights of an optimizer that differ between ranks which apply the same gradients to them.

    `tensors` of the `sampled` ones differ; `difference` is the largest, as a share of the weights' absolute values;
    `distinct` the different nonzero gradients that were compared on these tensors.
    """

    optimizer: str
    where: str | None
    ranks: int
    tensors: int
    sampled: int
    difference: float
    distinct: int


def different_weights(ranks: Sequence[Facts], least_difference: float) -> DifferentWeights | None:
    """The first optimizer whose gradients are the same on several ranks, and its weights are not.

    In the last step that all of these ranks have recorded.
    """
    if len(ranks) < 2:
        return None
    for same in zip(*(facts.step_values for facts in ranks), strict=False):
        if len({(found.optimizer, found.where) for found in same}) > 1:
            continue
        common = set.intersection(*({values.step for values in found.steps} for found in same))
        if not common:
            continue
        last = max(common)
        of_ranks = [next(values for values in found.steps if values.step == last) for found in same]
        found = _compare(same[0], of_ranks, least_difference)
        if found is not None:
            return found
    return None


def _compare(facts: StepValueFacts, ranks: list[StepValues], least_difference: float) -> DifferentWeights | None:
    """The largest group of ranks with the same gradients and different weights."""
    alike: dict[tuple[str, tuple[int, ...]], list[StepValues]] = {}
    for values in ranks:
        if _is_sound(values):
            alike.setdefault((values.gradients, tuple(values.distinct)), []).append(values)
    for group in sorted(alike.values(), key=len, reverse=True):
        shares = [_difference(group, at) for at in range(len(group[0].sums))]
        differ = [at for at, share in enumerate(shares) if share >= least_difference]
        if differ:
            return DifferentWeights(
                facts.optimizer,
                facts.where,
                ranks=len(group),
                tensors=len(differ),
                sampled=len(shares),
                difference=max(shares),
                distinct=sum(group[0].distinct[at] for at in differ),
            )
    return None


def _is_sound(values: StepValues) -> bool:
    """Whether these can be figures of weights."""
    lengths = {len(values.distinct), len(values.sums), len(values.scales)}
    pairs = zip(values.sums, values.scales, strict=False)
    if len(lengths) > 1 or min(values.distinct, default=0) < 0:
        return False
    return all(isfinite(scale) and abs(total) <= 1.001 * scale for total, scale in pairs)  # but for rounding


def _difference(group: Sequence[StepValues], at: int) -> float:
    """Between the sums of a tensor on any two ranks, as a share of the largest sum of its absolute values."""
    sums, scale = [values.sums[at] for values in group], max(values.scales[at] for values in group)
    return (max(sums) - min(sums)) / scale if scale > 0 else 0.0
