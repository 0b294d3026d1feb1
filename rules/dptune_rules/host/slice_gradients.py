"""The backward pass of each of many slices fills a gradient of the whole tensor.

## What it measures

Slices (`x[i]`, `x[:, i]`, `x[a:b]`) of tensors of one size that a function of the script takes, 16 or more in a step,
and the nodes of their backward pass by autograd's sequence numbers: making zeros of the whole size, copying the
gradient of the slice into them, and adding them up. The share is of the untraced step. On a GPU it is the time of the
kernels that these nodes launch. Slices that `torch.autograd.functional.jacobian` and `hessian` take for operators
without a batching rule count as well, but not those in layers of torch.

## Why it matters

For N slices of a tensor with N rows the backward pass writes and adds N tensors of the whole size, so it grows with N
squared. `unbind`, `split` and `chunk` have one node, which writes each gradient once.

## What to change

- A loop over one dimension, `x[:, t]` for each t: `for row in x.unbind(1)`.
- Parts of a tensor: `q, k, v = x.chunk(3, dim=-1)`, or `x.split([...], dim=-1)`.
- Windows that overlap, `x[:, t - 8 : t + 1]` for each t: `x.unfold(1, 9, 1)`, a pooling layer for their means or
  maxima, or differences of `x.cumsum(1)`.
- `torch.autograd.functional.jacobian(..., vectorize=True)`: if each output depends only on its own sample,
  `torch.autograd.grad(outputs[:, i].sum(), inputs, create_graph=True)` for each output i, or
  `torch.func.vmap(torch.func.jacrev(f))(inputs)`.

On a CPU the saving is predicted from the part of this time that was saved in measurements (References). Otherwise it is
an upper bound: the slices and all of this time. In `jacobian` and `hessian` the bound is the whole call with the
backward pass through it, since the remedy computes no derivatives of one sample by another.

## When to leave it alone

- Only a few slices of a large tensor are used: `unbind` then saves little.
- They are the inputs of a recurrent cell (`nn.LSTMCell`): `operator-loops` then proposes the layer instead.

## References

- torch.unbind: https://pytorch.org/docs/stable/generated/torch.unbind.html
- torch.func.jacrev: https://pytorch.org/docs/stable/generated/torch.func.jacrev.html
- The backward pass of `select` (`select_backward`, zeros of the input's size):
  https://github.com/pytorch/pytorch/blob/main/tools/autograd/derivatives.yaml
- CPU time in turn, one thread, forward and backward, 16 to 128 slices of tensors with 8 to 128 samples and 8 to 128
  columns: a loop over `unbind` with a `stack` at its end took 69 to 92 % less than over slices. For means of two
  columns each, `split` took 26 to 65 % less; for means of 4 and 9 columns that overlap, `unfold` took 66 to 94 %
  less.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import SliceGradients
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.host.costly_functions import advice, seen_in_kernels

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")
SAVED_PART = (0.25, 0.75, 0.95)  # of the time of slices and their nodes, see References
OF_BATCH = ("jacobian", "hessian")  # of torch.autograd.functional: they loop over operators without a batching rule
CELL = "_cell"  # ends the operators of recurrent cells

RULE = Rule(
    code="DP622",
    name="slice-gradients",
    family="host",
    kind="time",
    summary="each of many slices fills a gradient of the whole tensor in the backward pass",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    asked_when_busy=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each function whose slices take a share of the step worth it."""
    seen = seen_in_kernels(run, lambda name: "fill" in name.lower() or "select" in name.lower())
    if run.measured.known("user_code") is None and not seen:
        return  # no operator that fills tensors is among those that take most
    found = run.measured.user_code
    cells = {(loop.name, loop.at): loop.share for loop in found.loops if loop.operator.endswith(CELL)}
    for function in found.slice_gradients:
        impact = run.impact(function.share, WORTH_SHARE)
        if impact is None or (function.through and function.through not in OF_BATCH):
            continue
        if cells.get((function.name, function.at), 0.0) >= function.share:
            continue  # `operator-loops` proposes the layer, which takes no slices
        size = " x ".join(f"{length:,}" for length in function.size)
        yield advice(
            RULE,
            run,
            function,
            impact,
            spends=f"on the gradients of {function.calls:,.0f} slices of {size} tensors{_through(function)}: "
            f"{_remedy(function)}",
            why="The backward pass of each slice allocates zeros of the whole size and accumulates them.",
            most=f"{_whole(function)} and {'its' if function.through else 'their'} backward pass",
            saved_share=function.saved_share,
            confidence="medium" if found.basis == "untraced" and run.times_hold else "low",
            details=[
                Evidence(label="slices", value=round(function.calls, 1), unit="per step"),
                Evidence(label="size of the tensors", value=size),
            ],
            numerics="same",
            watch="Gradients agree up to floating-point rounding.",
            saves=None if function.through else _predicted(run, function),
        )


def _predicted(run: RunView, function: SliceGradients) -> Saving | None:
    how = "unbind, split and unfold saved 26 to 94 % of loops over slices in measurements"
    return run.replaced(function, SAVED_PART, how, of_all=min(1.0, function.saved_share / function.share))


def _through(function: SliceGradients) -> str:
    return f" in `{function.through}`" if function.through else ""


def _remedy(function: SliceGradients) -> str:
    if function.through:
        return "use torch.autograd.grad on sums over the batch, or torch.func.vmap and jacrev"
    return "use unbind, split or chunk, or unfold if they overlap"


def _whole(function: SliceGradients) -> str:
    return f"all of `{function.through}`" if function.through else "these slices"
