"""Rows are sorted completely, although perhaps only their first values are read.

## What it measures

Sorts (`sort`, `argsort`, `msort`, `quantile`) of rows with 256 values or more that a function of the script calls,
outside of backward passes, with the nodes of their backward pass. The share is of the untraced step. On a GPU it is the
time of the kernels that the sorts launch. Slices and elements of the result that follow show how many values are read:
the confidence is then medium, otherwise low, as the trace does not show what else reads the result. Left out: sorts
before an operator that reads all their values (curves, ranks, cumulative sums), and sorts of which more than
`inner_values` values are read that are neither the first nor the last ones (a table of quantiles).

## Why it matters

Sorting N values takes about N log2(N) comparisons, and on a CPU `torch.sort` moves values and their positions several
times. Selecting the best k takes about N comparisons, and writes k values. `torch.quantile` sorts all values to read
two of them.

## What to change

- `scores.argsort(dim=1, descending=True)[:, :k]` is `scores.topk(k, dim=1).indices`.
- Only the best: `max` or `argmax`. One value in order, as for a quantile: `kthvalue` or `median`.
- The rank of one candidate: count the scores above it, `(scores > scores.gather(1, target)).sum(1)`.
- A metric: compute it every N steps, or from the scores that `topk` selects.

On a CPU the saving is predicted if the trace shows what is read: from the part of the sorts' time that was saved in
measurements (References). Otherwise it is an upper bound: all of the time in the sorts.

## When to leave it alone

- The complete order is needed: ranking losses, areas under curves, nucleus sampling, sorted sequences.
- `topk` does not order equal values as a stable sort does. `kthvalue` does not interpolate as `quantile` does.

## References

- torch.topk: https://pytorch.org/docs/stable/generated/torch.topk.html
- torch.sort: https://pytorch.org/docs/stable/generated/torch.sort.html
- torch.kthvalue: https://pytorch.org/docs/stable/generated/torch.kthvalue.html
- Hoare, "Algorithm 65: Find" (1961), selection in linear time: https://doi.org/10.1145/366622.366647
- Measured on a CPU, rows of 10,000 to 2,000,000 values: `kthvalue` takes 15 to 19 % of the time of `sort`.
- CPU time in turn, one thread, 1 to 1,024 rows of 256 to 100,000 values: `topk` for up to an eighth of a row took 70 to
  97 % less than `sort` and `argsort`; `kthvalue` took 68 to 94 % less than `sort` for 1,000 values and more, and 79 to
  94 % less than `quantile`. For a single row of 256 values it took 30 % less than `sort`.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import FullSort
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.host.costly_functions import advice, seen_in_kernels

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")
READ_SHARE = Threshold("read_share", 0.25, "of a row's values: to select more takes about as long as to sort")
INNER_VALUES = Threshold(
    "inner_values", 4, "selected one by one, values take a sixth of a sort each on a CPU: more of them save little"
)
# The part of their time that was saved, see References: lower end, likely value and upper end.
TOPK_PART = (0.65, 0.94, 0.98)
KTHVALUE_PART = (0.65, 0.88, 0.95)
QUANTILE_PART = (0.75, 0.88, 0.95)
LEAST_VALUES = 2**12  # that are sorted: fewer take as long as the call

RULE = Rule(
    code="DP618",
    name="full-sorts",
    family="host",
    kind="time",
    summary="rows are sorted completely, although perhaps only their first values are read",
    since="0.1",
    thresholds=(WORTH_SHARE, READ_SHARE, INNER_VALUES),
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each function whose sorts of long rows take a share of the step worth it."""
    seen = seen_in_kernels(run, lambda name: "sort" in name.lower())
    if run.measured.known("user_code") is None and not seen:
        return  # none is among the kernels or operators that take most
    found = run.measured.user_code
    for function in found.full_sorts:
        impact = run.impact(function.share, WORTH_SHARE)
        if impact is None or (function.read or 0) > run.limit(READ_SHARE) * function.length:
            continue
        if function.inner and _selected(function) > run.limit(INNER_VALUES):
            continue
        yield advice(
            RULE,
            run,
            function,
            impact,
            spends=_spends(function),
            why="Selecting the first k of N values takes about N comparisons, sorting them N log2(N).",
            most="the sorts",
            confidence="medium" if found.basis == "untraced" and function.read is not None else "low",
            details=[
                Evidence(label="row length", value=function.length),
                *([] if function.read is None else [Evidence(label="values read per row", value=function.read)]),
                Evidence(label="rows", value=function.rows),
                Evidence(label="sorts", value=round(function.calls, 1), unit="per step"),
            ],
            numerics="changes" if function.quantile else "same",
            watch=_watch(function),
            saves=_predicted(run, function),
        )


def _predicted(run: RunView, function: FullSort) -> Saving | None:
    """The saving where it is known what is read; values within a row are selected one after another."""
    if function.read is None or function.length * function.rows < LEAST_VALUES:
        return None
    part = QUANTILE_PART if function.quantile else KTHVALUE_PART if function.inner else TOPK_PART
    taken = max(1, _selected(function)) if function.inner else 1
    least, likely, most = (max(0.0, 1 - taken * (1 - each)) for each in part)
    called = "torch.kthvalue" if function.inner else "torch.topk"
    return run.replaced(function, (least, likely, most), f"{called} took at least 65 % less time in measurements")


def _selected(function: FullSort) -> int:
    """How many selections replace the sort: a quantile is interpolated between two neighbors."""
    return (function.read or 0) // (2 if function.quantile else 1)


def _spends(function: FullSort) -> str:
    rows = f"rows of {function.length:,} values"
    if function.quantile:
        return f"in torch.quantile, which sorts {rows}: use torch.kthvalue"
    if function.read is None:
        return f"sorting {rows}: use torch.topk if only the first values are read"
    if function.inner:
        each = "one" if function.read == 1 else f"{function.read:,} of each"
        return f"sorting {rows} to read {each}: use torch.kthvalue"
    if function.read == 1:
        return f"sorting {rows} to read one: use torch.topk, max or kthvalue"
    return f"sorting {rows} to read {function.read:,} of each: use torch.topk"


def _watch(function: FullSort) -> str:
    if function.quantile:
        return "torch.kthvalue returns a value of the row, torch.quantile interpolates between two."
    if function.inner:
        return ""
    whole = "" if function.read else " If the complete order is needed, leave it unchanged."
    return f"torch.topk may order equal values differently.{whole}"
