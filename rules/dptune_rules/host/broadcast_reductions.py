"""Broadcasting materializes values of all pairs and then reduces them, where one call computes the result.

## What it measures

Differences or products of two broadcast tensors, for example `a[:, None] - b[None]`, with at least 16 times the
elements of the larger input, read only by elementwise operators and a reduction: sums of squared or absolute
differences, norms, and sums of products. Calls of `F.cosine_similarity` and `F.pairwise_distance` on such operands
count, because they materialize the same tensor. Read from the order, input sizes and strides of operators in the
detailed window, outside of backward passes. The time is that of these operators and their backward nodes, matched by
autograd's sequence numbers, as a share of the untraced step. On a GPU it is the time of the kernels that they launch.

## Why it matters

For N and M rows of D features each operator reads and writes N x M x D elements, the backward pass again, and
autograd keeps several of these tensors. The result has N x M elements. A matrix product computes it from the N x D and
M x D inputs, block by block in the cache.

## What to change

- Squared distances, `(a[:, None] - b[None]).pow(2).sum(-1)`: `torch.cdist(a, b).square()`, or
  `a.square().sum(-1, keepdim=True) + b.square().sum(-1) - 2 * a @ b.mT`, with `clamp_min(0)`.
- Distances, `(a[:, None] - b[None]).norm(dim=-1)`: `torch.cdist(a, b)`.
- Sums of absolute differences: `torch.cdist(a, b, p=1)`.
- Sums of products, `(a[:, None] * b[None]).sum(-1)`: `a @ b.mT`, or `torch.einsum("nd,md->nm", a, b)` with the
  dimensions in question.
- `F.cosine_similarity(a[:, None], b[None], dim=-1)`: `F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).mT`.

On a CPU the saving is predicted from the part of this time that was saved in measurements (References). Otherwise it is
an upper bound: all of this time.

## When to leave it alone

- Small distances matter: the matrix product subtracts large numbers and loses digits.
  `torch.cdist(..., compute_mode="donot_use_mm_for_euclid_dist")` does not, but is slower.
- `torch.compile` fuses these operators.
- Under autocast a matrix product computes in lower precision than these operators; `torch.cdist` does not.

Sums of absolute differences without a backward pass on a CPU are left out: `torch.cdist` with `p=1` was not always
faster there.

## References

- torch.cdist: https://pytorch.org/docs/stable/generated/torch.cdist.html
- torch.einsum: https://pytorch.org/docs/stable/generated/torch.einsum.html
- Measured on a CPU, one thread, float32, fastest of 5 runs, forward and backward. 64 to 512 rows on each side, 7 to
  128 features: `cdist` and the products took 65 to 99 % less time for squared distances, 50 to 99 % less for sums of
  products, 92 to 99 % less for cosine similarities, and `cdist` with `p=1` 44 to 90 % less for absolute differences
  (without the backward pass 20 % less to 48 % more). 2 and 3 features: 29 to 82 % less. 512 batches of 16 and 16 rows
  with 32 features: 50 to 92 % less. 4,096 batches of 8 and 8 rows: products took 4 times as long as the sums of
  products, so a smaller factor than 16 does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import BroadcastReduction, PairKind
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.call_paths import call_path_evidence

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")
LEAST_TIMES = Threshold(
    "least_times", 16, "times the larger input: with 8, products of small matrices took up to 4 times as long on a CPU"
)

RULE = Rule(
    code="DP621",
    name="broadcast-reductions",
    family="host",
    kind="time",
    summary="broadcasting materializes values of all pairs and then reduces them",
    since="0.1",
    thresholds=(WORTH_SHARE, LEAST_TIMES),
)

# The part of their time that was saved, see References: lower end, likely value and upper end.
SAVED_PARTS: dict[PairKind, tuple[float, float, float]] = {
    "squared": (0.5, 0.85, 0.99),
    "distance": (0.5, 0.85, 0.99),
    "absolute": (0.44, 0.7, 0.9),
    "product": (0.5, 0.8, 0.99),
    "cosine": (0.5, 0.95, 0.99),
}
FEW_FEATURES, OF_FEW = 7, (0.29, 0.6, 0.82)  # the same for fewer features

WHAT: dict[PairKind, str] = {
    "squared": "squared distances",
    "distance": "distances",
    "absolute": "sums of absolute differences",
    "product": "sums of products",
    "cosine": "cosine similarities",
}
REMEDIES: dict[PairKind, str] = {
    "squared": "torch.cdist(a, b).square()",
    "distance": "torch.cdist(a, b)",
    "absolute": "torch.cdist(a, b, p=1)",
    "product": "a matrix product or torch.einsum",
    "cosine": "a matrix product of F.normalize(a, dim=-1) and F.normalize(b, dim=-1).mT",
}


def check(run: RunView) -> Iterator[Advice]:
    """Name each function whose pairs take a share of the step worth it."""
    if run.measured.known("user_code") is None and not _seen(run):
        return  # such operators take less
    found = run.measured.user_code
    for function in found.broadcast_reductions:
        impact = run.impact(function.share, WORTH_SHARE)
        if impact is None or _times(function) < run.limit(LEAST_TIMES) or not _faster(run, function):
            continue
        where = run.hottest_line(function.name, function.at) or function.at
        through = ", with the backward pass" if function.backward_ns else ""
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact=impact,
            title=f"`{function.name}` ({where}) spends {100 * function.share:.0f} % of the step on "
            f"{WHAT[function.kind]} of all pairs, which materializes {_size(function.whole)} elements{through}: use "
            f"{REMEDIES[function.kind]}",
            why=f"Each operator reads and writes a tensor {_times(function):,.0f} times as large as its inputs; one "
            "call computes the result without it.",
            changes=[],
            saves=_predicted(run, function)
            or run.bound(0.0, function.share, "these operators and their backward pass"),
            confidence="medium" if found.basis == "untraced" else "low",
            evidence=[*_evidence(function), *call_path_evidence(run, function.name, function.at)],
            numerics="changes" if _casts(run, function.kind) else "same",
            watch=_watch(function.kind, casts=_casts(run, function.kind)),
            fingerprint=f"{RULE.code}:{function.name}",
        )


def _predicted(run: RunView, function: BroadcastReduction) -> Saving | None:
    part = OF_FEW if function.whole[-1] < FEW_FEATURES else SAVED_PARTS[function.kind]
    spared = f"{100 * part[0]:.0f} to {100 * part[2]:.0f} %"
    return run.replaced(function, part, f"one call took {spared} less time in measurements")


def _seen(run: RunView) -> bool:
    """Whether elementwise operators are among those that take most."""
    kernels = run.measured.known("kernels")
    if kernels is None:
        return True
    return any("elementwise" in kernel.name or kernel.name in ("aten::sub", "aten::mul") for kernel in kernels.top)


def _times(function: BroadcastReduction) -> float:
    """The elements of the materialized tensor, relative to the larger input."""
    return prod(function.whole) / max(1, prod(function.left), prod(function.right))


def _faster(run: RunView, function: BroadcastReduction) -> bool:
    """Whether the one call was measured to be faster: with p=1 on a CPU only with its backward pass."""
    return function.kind != "absolute" or function.backward_ns > 0 or run.measured.device_kind != "cpu"


def _size(shape: list[int]) -> str:
    return " x ".join(f"{length:,}" for length in shape)


def _casts(run: RunView, kind: PairKind) -> bool:
    """Whether autocast lowers the precision of the call, but not of the operators that it replaces."""
    return kind in ("product", "cosine") and any(facts.autocast for facts in run.facts)


def _watch(kind: PairKind, *, casts: bool) -> str:
    if casts:
        return "Under autocast a matrix product computes in lower precision: disable it around the product to keep it."
    words = "Results agree up to floating-point rounding."
    if kind in ("squared", "distance"):
        return words + (
            " Small distances of large numbers lose digits in a matrix product: if they matter, pass "
            'compute_mode="donot_use_mm_for_euclid_dist" to torch.cdist.'
        )
    return words + (" Integers and masks need a cast to the dtype of the other input." if kind == "product" else "")


def _evidence(function: BroadcastReduction) -> list[Evidence]:
    label = f"{function.name} at {function.at}"
    backward_ms = function.backward_ns / 1e6
    backward = Evidence(label="their backward pass", value=backward_ms, unit="ms per step", rank=function.rank)
    return [
        Evidence(label=label, value=function.cost_ns / 1e6, unit="ms per step", rank=function.rank),
        *([backward] if function.backward_ns else []),
        Evidence(label="first input", value=_size(function.left)),
        Evidence(label="second input", value=_size(function.right)),
        Evidence(label="materialized", value=_size(function.whole)),
        Evidence(label="calls", value=round(function.calls, 1), unit="per step"),
    ]
