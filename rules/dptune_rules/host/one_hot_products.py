"""One-hot rows are multiplied with a matrix, which only looks up or adds up its rows.

## What it measures

Tensors that `F.one_hot`, `scatter_` into zeros or indexing an identity matrix makes, with 32 classes or more, and the
matrix products that read them, outside of backward passes. Read from the order and input sizes of operators in the
detailed window. Counted are the one-hot rows, their casts, the products, and their backward pass by autograd's sequence
numbers. The share is of the untraced step. On a GPU it is the time of the kernels that these operators launch. Rows
that other operators change before the product are left out, for example those of a Gumbel softmax.

## Why it matters

All but one element of a one-hot row are zero. The product of R rows over N classes with a matrix of D columns reads and
writes R x N elements, several times with a cast from integers, and multiplies R x N x D; a lookup copies R x D. The
backward pass computes the same product again.

## What to change

- `F.one_hot(ids, n).float() @ table` is `F.embedding(ids, table)`, or `table[ids]`. With a linear layer:
  `F.embedding(ids, linear.weight.T) + linear.bias`, or an `nn.Embedding` in its place.
- `F.one_hot(ids, n).float().T @ values`, a sum by class, is `values.new_zeros(n, values.shape[1]).index_add_(0, ids,
  values)`.

On a CPU the saving is predicted from the part of this time that was saved in measurements (References), which grows
with the number of classes. Otherwise it is an upper bound: all of this time.

## When to leave it alone

- The rows are not one-hot in every case, for example with label smoothing or mixing.
- Gradients have to reach the one-hot rows themselves, as for relaxed samples.
- `index_add_` on a GPU adds in no fixed order; a product is deterministic.

## References

- torch.nn.functional.embedding: https://pytorch.org/docs/stable/generated/torch.nn.functional.embedding.html
- torch.Tensor.index_add_: https://pytorch.org/docs/stable/generated/torch.Tensor.index_add_.html
- torch.nn.functional.one_hot: https://pytorch.org/docs/stable/generated/torch.nn.functional.one_hot.html, which returns
  64-bit integers
- CPU time in turn, one thread, forward and backward, 64 to 4,096 rows, 16 to 256 columns: lookups and `index_add_` took
  72 to 97 % less for 1,000 and 5,000 classes, 65 to 71 % less for 200, and 20 to 56 % less for 32 and 64.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import OneHotProduct
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.host.costly_functions import advice, seen_in_kernels

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")

# The part of their time that was saved, by the least number of classes, see References: lower end, likely value and
# upper end.
SAVED_PARTS = {1000: (0.65, 0.95, 0.98), 200: (0.5, 0.75, 0.98), 0: (0.2, 0.4, 0.95)}

LOOKUP = "use F.embedding or nn.Embedding to look the rows up"
SUM = "use index_add_ to sum by class"

RULE = Rule(
    code="DP617",
    name="one-hot-products",
    family="host",
    kind="time",
    summary="one-hot rows are multiplied with a matrix instead of looking its rows up",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each function whose one-hot products take a share of the step worth it."""
    seen = seen_in_kernels(run, lambda name: "one_hot" in name or "scatter" in name)
    if run.measured.known("user_code") is None and not seen:
        return  # no operator that makes one-hot rows is among those that take most
    found = run.measured.user_code
    for function in found.one_hot_products:
        impact = run.impact(function.share, WORTH_SHARE)
        if impact is None:
            continue
        yield advice(
            RULE,
            run,
            function,
            impact,
            spends=f"multiplying one-hot rows over {function.classes:,} classes"
            f"{_backward(function)}: {SUM if function.sums else LOOKUP}",
            why="All but one element of each row are zero, and the product reads and multiplies them all.",
            most="the one-hot rows, the products and their backward pass",
            confidence="medium" if found.basis == "untraced" else "low",
            details=[
                Evidence(label="classes", value=function.classes),
                Evidence(label="one-hot rows", value=function.rows),
                Evidence(label="products", value=round(function.calls, 1), unit="per step"),
            ],
            numerics="same",
            watch="Results agree up to floating-point rounding if the rows are exactly one-hot and need no gradient."
            + (" index_add_ on a GPU adds in no fixed order." if function.sums else ""),
            saves=_predicted(run, function),
        )


def _predicted(run: RunView, function: OneHotProduct) -> Saving | None:
    part = next(part for least, part in SAVED_PARTS.items() if function.classes >= least)
    called = "index_add_" if function.sums else "a lookup"
    spared = f"{100 * part[0]:.0f} to {100 * part[2]:.0f} %"
    return run.replaced(function, part, f"{called} took {spared} less time in measurements with as many classes")


def _backward(function: OneHotProduct) -> str:
    return ", with the backward pass" if function.backward_ns else ""
