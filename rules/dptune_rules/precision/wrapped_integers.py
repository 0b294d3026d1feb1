"""Arithmetic on narrow integer tensors, or a conversion to a narrow integer dtype, wraps around.

## What it measures

In three warm-up steps, additions, subtractions and products of two tensors of 8 or 16 bits (`a - b`, `torch.diff`) in
functions of the script, and conversions to such a dtype (`.byte()`, `.to(torch.uint8)`), also where the main process
prepares samples. The same operator is computed in int64 on up to about a million values, and the results are compared.
Truncated fractions do not count. Values that wrapped count once they are read as numbers, not by bitwise operators or
tests for zero. Not checked: operators with a number (`labels - 1`, `255 - image`), NumPy arrays, loader workers, and
tensors on GPUs.

Conversions before the first step are not checked, for example `ids.astype(np.uint8)` in the constructor of a data set:
NumPy's conversions cannot be observed, and wrapped values are indistinguishable from valid ones (byte-level models also
use ids of 0 to 255 with a larger embedding). Check at the conversion: `assert ids.max() <= np.iinfo(np.uint8).max`.

## Why it matters

This is a correctness bug. Tensors of uint8 hold 0 to 255, so `10 - 12` gives 254: in a difference of two images, a
pixel that gets slightly darker looks as if it got much brighter. torch raises no error, and training still converges.
Converting afterwards, as in `(a - b).float()`, is too late.

## What to change

Convert before the operator:

    moved = frames[:, 1:].float() - frames[:, :-1].float()

Where values are converted to a narrow dtype, clamp them first, or choose a dtype that holds all of them:

    image = (255 * image).clamp(0, 255).to(torch.uint8)

## When to leave it alone

- Wrapping is intended and the values are used as numbers, as in counters that restart at zero.

## References

- PyTorch, tensor attributes, `torch.dtype`: https://pytorch.org/docs/stable/tensor_attributes.html
- NumPy, "Overflow errors": https://numpy.org/doc/stable/user/basics.types.html#overflow-errors
- The limit is not from measurements: one value in 1,000 is 150 values of a 3 x 224 x 224 image.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, Threshold, WrappedIntegerFacts
from dptune_rules.at_risk import results_at_risk

LEAST_SHARE = Threshold("least_share", 0.001, "of the results: a few wrapped values hardly change what a model learns")
RANGES = {"uint8": "0 to 255", "int8": "-128 to 127", "int16": "-32,768 to 32,767", "uint16": "0 to 65,535"}
WIDEN = "Convert the tensors before the operator, for example with .float() or .to(torch.int32)."
CLAMP = "Clamp the values first, or choose a dtype that holds all of them."
VERBS = {
    "sub": "subtracts {} tensors",
    "add": "adds {} tensors",
    "mul": "multiplies {} tensors",
    "convert": "converts to {}",
}

RULE = Rule(
    code="DP413",
    name="wrapped-integers",
    family="precision",
    kind="risk",
    summary="arithmetic on narrow integer tensors, or a conversion to a narrow integer dtype, wraps around",
    since="0.1",
    thresholds=(LEAST_SHARE,),
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each such line of the first rank that has one."""
    run.any_facts()
    for found in next((facts.wrapped_integers for facts in run.facts if facts.wrapped_integers), []):
        if found.share >= run.limit(LEAST_SHARE) and found.operator in VERBS and found.dtype in RANGES:
            yield _advice(found)


def _advice(found: WrappedIntegerFacts) -> Advice:
    at = f"`{found.function}` ({found.where})" if found.function else found.where
    return results_at_risk(
        RULE,
        title=f"{at} {VERBS[found.operator].format(found.dtype)}: {_percent(found.share)} of the results are outside "
        f"{RANGES[found.dtype]} and wrap around",
        why=f"{found.dtype} holds {RANGES[found.dtype]}; torch wraps larger and smaller results without an error.",
        evidence=[
            Evidence(label="results that wrapped around", value=found.share, unit="of those compared"),
            Evidence(label="results compared", value=found.values),
            Evidence(label="operator", value=found.operator),
            Evidence(label="computed at", value=found.where),
        ],
        remedy=CLAMP if found.operator == "convert" else WIDEN,
        subject=found.function or found.where.rpartition(":")[0],
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
