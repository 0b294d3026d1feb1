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

The saving is an upper bound: all of this time, as a lookup takes little.

## When to leave it alone

- The rows are not one-hot in every case, for example with label smoothing or mixing.
- Gradients have to reach the one-hot rows themselves, as for relaxed samples.
- `index_add_` on a GPU adds in no fixed order; a product is deterministic.

## References

- torch.nn.functional.embedding: https://pytorch.org/docs/stable/generated/torch.nn.functional.embedding.html
- torch.Tensor.index_add_: https://pytorch.org/docs/stable/generated/torch.Tensor.index_add_.html
- torch.nn.functional.one_hot: https://pytorch.org/docs/stable/generated/torch.nn.functional.one_hot.html, which returns
  64-bit integers
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.measured import OneHotProduct
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.host.costly_functions import advice, seen_in_kernels

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")

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
        )


def _backward(function: OneHotProduct) -> str:
    return ", with the backward pass" if function.backward_ns else ""
