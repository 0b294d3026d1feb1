"""Matrix decompositions (SVD, eigenvalues, QR, inverse) take a share of the step.

## What it measures

Operators of torch.linalg that factor, invert or exponentiate a matrix, outside of backward passes, with the nodes of
their backward pass, which autograd's sequence numbers in the detailed window identify. The share is of the untraced
step. On a GPU it is the time of the kernels that these operators launch.

## Why it matters

A decomposition consists of short steps that depend on each other, so it uses few cores of a CPU and little of a GPU: it
takes many times as long as a product of matrices of that size. On a GPU most of them also wait for the device.

## What to change

- The largest singular value, as for a Lipschitz constant: power iteration, one product with the matrix and one with its
  transpose in each step. `torch.nn.utils.parametrizations.spectral_norm` does it, and keeps its vectors between steps.
- An orthogonal factor, a matrix root or its inverse: Newton-Schulz iterations, which are matrix products only.
- The inverse times a vector: `torch.linalg.solve`, or a Cholesky factor that is used again (`cholesky_solve`).
- Statistics, preconditioners and whitening: decompose every N steps, and keep the factors in between.
- A penalty or a metric: a smaller matrix, for example W^T W of the smaller side, or a random sketch of it.
- Do it in float32 where it runs in float64.

The saving is an upper bound: all of the time in the decompositions and their backward pass.

## When to leave it alone

- It is the method, and each step needs the exact factors: for example Kabsch alignment or natural gradients. For
  anything but singular values, confidence is low for this reason.

## References

- Miyato et al., "Spectral Normalization for Generative Adversarial Networks" (2018): https://arxiv.org/abs/1802.05957
- torch.nn.utils.parametrizations.spectral_norm:
  https://pytorch.org/docs/stable/generated/torch.nn.utils.parametrizations.spectral_norm.html
- torch.linalg: https://pytorch.org/docs/stable/linalg.html
- Golub and Van Loan, "Matrix Computations", 4th edition, figure 8.6.1: the SVD takes 4 m^2 n + 8 m n^2 + 9 n^3
  floating-point operations with both factors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.host.costly_functions import advice, seen_in_kernels

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")

SINGULAR_VALUES = ("svdvals",)  # without vectors: a norm or a penalty, for which power iteration is enough
REMEDIES = {
    **dict.fromkeys(
        ("svdvals", "eigvalsh", "eigvals"),
        "use power iteration (torch.nn.utils.parametrizations.spectral_norm), or compute it every N steps",
    ),
    **dict.fromkeys(
        ("svd", "eigh", "eig", "symeig", "qr", "geqrf", "householder_product"),
        "use Newton-Schulz iterations, or decompose every N steps",
    ),
    **dict.fromkeys(("inv", "inverse", "pinv", "pinverse"), "use torch.linalg.solve, or invert every N steps"),
}
OTHERWISE = "use a smaller matrix, or compute it every N steps"

# As LAPACK, MAGMA, cuSOLVER and torch.linalg name them.
_KERNEL = re.compile(r"gesvd|gesdd|syev|geev|geqrf|orgqr|getr[fi]|potr[fi]|linalg_\w*(svd|eig|qr|inv|solve|chol)")

RULE = Rule(
    code="DP613",
    name="matrix-decompositions",
    family="host",
    kind="time",
    summary="matrix decompositions (SVD, eigenvalues, QR, inverse) take a share of the step",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each function that decomposes matrices for a share of the step worth it."""
    seen = seen_in_kernels(run, lambda name: _KERNEL.search(name) is not None)
    if run.measured.known("user_code") is None and not seen:
        return  # none is among the kernels or operators that take most
    found = run.measured.user_code
    for decomposition in found.decompositions:
        impact = run.impact(decomposition.share, WORTH_SHARE)
        if impact is None:
            continue
        surest = decomposition.operator in SINGULAR_VALUES and found.basis == "untraced"
        yield advice(
            RULE,
            run,
            decomposition,
            impact,
            spends=f"in torch.linalg.{decomposition.operator}"
            f"{' and its backward pass' if decomposition.backward_ns else ''}: "
            f"{REMEDIES.get(decomposition.operator, OTHERWISE)}",
            why="A decomposition runs in short dependent steps on few cores, so it takes many times as long as a "
            "matrix product of that size.",
            most="the decompositions and their backward pass",
            confidence="medium" if surest else "low",
            details=[
                Evidence(
                    label=f"calls of torch.linalg.{decomposition.operator}",
                    value=round(decomposition.calls, 1),
                    unit="per step",
                )
            ],
            numerics="changes",
            watch="An approximation or an older decomposition changes results. If the method needs exact factors in "
            "each step, leave it unchanged.",
        )
