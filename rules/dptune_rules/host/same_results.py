"""A function computes the same results in every step, or several times in one step.

## What it measures

Operators that functions of the script call outside of backward passes, in two or three warm-up steps. An operator
counts if all of its inputs are the same as in an earlier step: tensors that no step changes, results of such operators,
and equal numbers and sizes. Its result must agree with the earlier one in about 256 values spread over it. Trained
weights, batches and random numbers change from step to step, so what depends on them does not count. Also not counted:
calls of less than 20 us, tensors of zeros, ones or ranges, and copies, except copies to another dtype or device that
nothing changes in place. The share is of the watched steps, without the time that watching takes; on a GPU it is the
operators' part of the host's time in the forward pass, applied to its compute.

Operators that follow from plain values alone, as a table that loops fill with numbers, count however short they are. A
function that calls nothing else counts as a whole, by stack samples, with the Python between its operators.

Functions that each take less than `worth_share` are reported together.

The same within one step: calls whose inputs are the same as in an earlier call of that step, and whose results agree
and need no gradient. The first call of each is not counted. These are left out if DP314 reports that a policy's ratio
stays 1: its second evaluation is then the fault, and the first one's results are no remedy.

## Why it matters

The result is known after the first step: normalized adjacency matrices, filter banks, position tables, masks, anchors,
or features that a frozen layer computes on fixed data.
Within a step, what each layer computes from the batch alone is the same for all layers: attention masks, distances,
position biases.

## What to change

Compute it once, before training, and keep it:

    self.register_buffer("adjacency", normalize(adjacency))

Where it depends on a size that changes, keep it in a dictionary by size, or use `functools.lru_cache`.

What depends on the batch: compute it once in the forward pass of the model, and pass it to the layers.

On a CPU the saving is predicted from the time of these operators in at least two warm-up steps: from 0.8 times the
smallest share to 1.3 times the largest. The upper end is that of the whole function by stack samples, if these
operators take at least half of it: this includes operators that are too short to compare. Otherwise the saving is an
upper bound: the time of all of these operators.

## When to leave it alone

- The inputs change later, beyond the warm-up steps: compute it again when they do.
- The result does not fit into memory next to the model.

## References

- torch.nn.Module.register_buffer:
  https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer
- Aho, Lam, Sethi, Ullman, "Compilers" (2006), sections 8.5 (value numbers) and 9.5 (loop-invariant code motion)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Evidence, Saving
from dptune.rule import Rule, RunView, SameResultFacts, SampledShare, Threshold
from dptune_rules.call_paths import call_path_evidence
from dptune_rules.known import ratio_stays_one

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")

RULE = Rule(
    code="DP625",
    name="same-results",
    family="host",
    kind="time",
    summary="a function computes the same results in every step, or several times in one step",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    asked_when_busy=True,
    needs="recording",
)

MOSTLY = 0.5  # of the function's time
NAMED = 3  # operators


def check(run: RunView) -> Iterator[Advice]:
    """Name each function whose repeated results take a share of the step worth it."""
    facts = run.any_facts()
    little: list[SameResultFacts] = []
    named = set()
    by_others = facts.repeated_forward or ratio_stays_one(run)  # repeated-forward names the whole pass
    for found in facts.same_results:
        if (found.within_step and by_others) or _in_fixed_module(run, found):
            continue
        share = max(run.same_results_share(found), _whole(run, found))
        if run.impact(share, WORTH_SHARE):
            named.add(_named(found))
            yield _advice(run, [found], share, _besides(run, found))
        elif not found.within_step:
            little.append(found)
    little = [found for found in little if _named(found) not in named]
    together = sum(map(run.same_results_share, little))
    if len(little) > 1 and run.impact(together, WORTH_SHARE):
        yield _advice(run, little, together, 0.0)


def _whole(run: RunView, found: SameResultFacts) -> float:
    """The share of a function that computes nothing else, with the Python between its operators; 0 if not known."""
    share = _sampled_share(run, found) if found.whole else None
    return max((each.likely for each in share.by_rank.values()), default=0.0) if share else 0.0


def _sampled_share(run: RunView, found: SameResultFacts) -> SampledShare | None:
    name, _, place = _parts(found)
    if not name or run.measured.device_kind != "cpu":
        return None
    return run.sampled_share(name.rpartition(".")[2], place, training=True)


def _in_fixed_module(run: RunView, found: SameResultFacts) -> bool:
    """Whether the function runs mostly in a frozen module that is called with the same inputs in every step."""
    name, _, place = _parts(found)
    places = [each.where for each in run.any_facts().frozen_features if each.same_inputs and each.where]
    return any((run.part_at(name.rpartition(".")[2], place, where) or 0.0) > MOSTLY for where in places)


def _besides(run: RunView, found: SameResultFacts) -> float:
    """The share of what the same function computes in every step: whoever calls it once saves that too."""
    if not found.within_step:
        return 0.0
    function = _named(found)
    return sum(
        run.same_results_share(other)
        for other in run.any_facts().same_results
        if not other.within_step and _named(other) == function
    )


def _named(found: SameResultFacts) -> tuple[str, str]:
    """The function and its file."""
    name, _, place = found.function.removesuffix(")").rpartition(" (")
    return name, place.rpartition(":")[0]


def _advice(run: RunView, functions: Sequence[SameResultFacts], share: float, besides: float) -> Advice:
    """Of one function, or of several that each take less."""
    found = functions[0]
    name, _, place = _parts(found)
    sampled = 0.0 if len(functions) > 1 else _sampled(run, found, name, place, share + besides)
    most = min(1.0, max(share + besides, sampled))
    operators = list(dict.fromkeys(operator for each in functions for operator in each.operators))[:NAMED]
    names = ",".join(name or place for name, _, place in map(_parts, functions))
    size = " x ".join(f"{length:,}" for length in found.size)
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=run.impact(share, WORTH_SHARE) or "low",
        title=f"{_words(functions)} the same results {_often(found)}, {100 * share:.0f} % of the step: "
        f"compute them once, {_when(found)} ({', '.join(operators)})",
        why=_why(found),
        changes=[],
        saves=(_without_whole(run, found, share) if len(functions) == 1 else None)
        or run.without_same(functions, most)
        or run.bound(0.0, most, f"all of {'the function' if sampled else 'these operators'}"),
        confidence="medium" if len(found.step_ns) > 1 and run.times_hold else "low",
        evidence=[
            Evidence(label="operators with the same results", value=share, unit="of a step"),
            Evidence(label="calls of these operators", value=sum(each.calls for each in functions), unit="per step"),
            *([Evidence(label="largest result", value=size)] if size else []),
            Evidence(label="steps that were compared", value=len(found.step_ns)),
            *(call_path_evidence(run, name, place) if name and len(functions) == 1 else []),
        ],
        numerics="same",
        watch=_watch(found),
        fingerprint=f"{RULE.code}:{names}{':step' if found.within_step else ''}",
    )


def _without_whole(run: RunView, found: SameResultFacts, share: float) -> Saving | None:
    """The saving without a function that computes nothing else, where stack samples show more than its operators."""
    sampled = _sampled_share(run, found) if found.whole and share > run.same_results_share(found) else None
    if sampled is None or not run.times_hold:
        return None
    return run.removed(sampled.by_rank, f"`{_parts(found)[0]}` is in {sampled.samples} stack samples")


def _sampled(run: RunView, found: SameResultFacts, name: str, place: str, share: float) -> float:
    """What the function's repeated calls take at most, if these operators are most of it; else 0."""
    sampled = run.sampled_share(name, place, training=True) if name and run.measured.device_kind == "cpu" else None
    if sampled is None:
        return 0.0
    function = max(sampled.by_rank.values(), key=lambda each: each.likely)
    if share < MOSTLY * function.likely or function.most <= share:
        return 0.0
    return function.most * (1 - 1 / found.times if found.within_step else 1.0)


def _parts(found: SameResultFacts) -> tuple[str, str, str]:
    return found.function.removesuffix(")").rpartition(" (")


def _words(functions: Sequence[SameResultFacts]) -> str:
    """What computes: the functions and their lines."""
    named = [f"`{name}` ({place})" if name else place for name, _, place in map(_parts, functions)]
    return f"{named[0]} computes" if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]} compute"


def _often(found: SameResultFacts) -> str:
    return f"{found.times:.0f} times in each step" if found.within_step else "in every step"


def _when(found: SameResultFacts) -> str:
    return "and pass them on" if found.within_step else "before training"


def _why(found: SameResultFacts) -> str:
    if found.within_step:
        return "Within a step, nothing changes the inputs of these operators, and their results agreed."
    return "No compared step changes the inputs of these operators, and their results agreed."


def _watch(found: SameResultFacts) -> str:
    if found.within_step:
        return "Compute them again where their inputs change within the step."
    return "Only steps of the warm-up were compared: compute the results again where their inputs change later."
