"""A function of the model or the loss spends a large share of the step in operators that only read and write memory.

## What it measures

Operators that a function of the script itself calls in forward passes and losses, with the nodes of their backward pass
by autograd's sequence numbers, as a share of the steps of the detailed window. On a GPU it is the time of the kernels
that they launch. Operators that leave little to improve in the script are left out: layers, matrix products,
convolutions, attention, activations, normalization, pooling, dropout, losses and lookups. What remains is arithmetic on
each element, reductions, sorts, copies and interpolation. The training loop itself and functions that another rule
names are left out, too. Where other processes use the cores the rule runs as well: they slow all operators of a step.

## Why it matters

Such operators do little arithmetic for each byte, and each of them reads and writes whole tensors. In most models they
take a few percent of a step. A larger share often has a cause in the script: a result is computed several times, only
a part of a tensor is used, or one operator could replace several.

## What to change

Look at the function, with the operators and sizes in the evidence:

- It runs many times per step: compute once what does not differ between the runs.
- Its tensors are larger than its result: reduce, select or project first.
- Many operators of the same size follow each other: one call of torch may compute them, or `torch.compile` fuses them.
- Its result is not needed in every step: compute it every N steps.

The saving is an upper bound: all of this time. Confidence is low, because the trace does not show what is needed.

## When to leave it alone

- The method needs it: a physical loss, a scan, or an operator that torch does not have.

## References

- Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model" (2009):
  https://doi.org/10.1145/1498765.1498785
- torch.compile: https://pytorch.org/docs/stable/generated/torch.compile.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.measured import MemoryBoundFunction, OperatorCost
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.call_paths import call_path_evidence
from dptune_rules.host.costly_functions import costs, seen_in_kernels

WORTH_SHARE = Threshold(
    "worth_share",
    0.2,
    "of the step: functions took up to 13 % in recordings of healthy scripts, and 23 to 63 % in those with a fault",
)
MEDIUM = 0.3  # of the step: below this share the impact is low
MOST = 2  # functions that are named
ELEMENTWISE = ("elementwise", "reduce", "aten::mul", "aten::add", "aten::sub", "aten::div", "aten::pow", "aten::sum")
NAMED = 3  # operators in a title
LISTED = 4  # operators in the evidence
SEVERAL = 2  # runs per step
GENERATOR = "<genexpr>"

RULE = Rule(
    code="DP902",
    name="memory-bound-functions",
    family="uncovered",
    kind="time",
    summary="a function of the model or the loss takes a large share of the step in memory-bound operators",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    last=True,
    asked_when_busy=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the functions that take a share of the step worth it, and that no other advice names."""
    seen = seen_in_kernels(run, lambda name: any(word in name for word in ELEMENTWISE), run.limit(WORTH_SHARE))
    if run.measured.known("user_code") is None and not seen:
        return  # such operators take less
    found = [
        function
        for function in run.measured.user_code.memory_bound
        if not function.calls_backward
        and run.impact(function.share, WORTH_SHARE)
        and not run.explained(function.at, function.name)
    ]
    for function in found[:MOST]:
        yield _advice(run, function)


def _advice(run: RunView, function: MemoryBoundFunction) -> Advice:
    where = run.hottest_line(function.name, function.at) or function.at
    through = ", with the backward pass" if function.backward_ns else ""
    names = ", ".join(f"{_name(cost)} {100 * cost.share:.0f} %" for cost in function.operators[:NAMED])
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="medium" if function.share >= MEDIUM else "low",
        title=f"`{function.name}` ({where}) spends {100 * function.share:.0f} % of the step in memory-bound operators"
        f"{_runs(function)}{through}: {names}",
        why="This time excludes matrix products, convolutions, attention and layers. No other rule explains it.",
        changes=[],
        remedy=f"Check whether {'its runs repeat results' if _runs(function) else 'it repeats work'}, only a part of "
        "a tensor is used, or one call could replace several operators. torch.compile fuses elementwise operators. If "
        "the method needs all of this work, leave it unchanged.",
        saves=run.bound(0.0, function.share, "all of these operators and their backward pass"),
        confidence="low",
        evidence=[
            *costs(f"{function.name} at {function.at}", function),
            Evidence(label="runs", value=round(function.runs, 1), unit="per step"),
            *(
                Evidence(label=_label(cost), value=cost.share, unit="of a step", rank=function.rank)
                for cost in function.operators[:LISTED]
            ),
            *call_path_evidence(run, function.name, function.at),
        ],
        numerics="same",
        fingerprint=f"{RULE.code}:{function.name}",
    )


def _runs(function: MemoryBoundFunction) -> str:
    """How often it runs in a step; a generator runs again for each of its values."""
    if function.name == GENERATOR or function.runs < SEVERAL:
        return ""
    return f" in {function.runs:,.0f} runs"


def _name(cost: OperatorCost) -> str:
    return cost.name.removeprefix("aten::")


def _label(cost: OperatorCost) -> str:
    size = f" on {' x '.join(map(str, cost.size))}" if cost.size else ""
    times = "1 call" if cost.calls == 1 else f"{cost.calls:,.3g} calls"
    return f"{_name(cost)}: {times}{size}"
