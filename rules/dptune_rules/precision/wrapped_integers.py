"""Arithmetic of narrow integer tensors, or a conversion to their dtype, wraps around.

## What it measures

In three warm-up steps, additions, subtractions and products of two tensors of 8 or 16 bits (`a - b`, `torch.diff`) in
functions of the script, and conversions to such a dtype (`.byte()`, `.to(torch.uint8)`), also where the main process
prepares samples. The same operator is computed in int64 on up to about a million values, and the results are compared.
Fractions that a conversion cuts off do not count. Values that wrapped count once they are read as numbers: operators on
bits do not read them so, nor do tests whether a difference is zero. Operators with a number (`labels - 1`,
`255 - image`) are not looked at, and neither are those of NumPy, of loader workers and on GPUs.

## Why it matters

It costs correctness. Tensors of uint8 hold 0 to 255, and `10 - 12` is 254 there: in a difference of two images, what
becomes slightly darker looks as if it became very bright. torch raises no error, and training still converges.
Converting afterwards, as in `(a - b).float()`, is too late.

## What to change

Convert before the operator:

    moved = frames[:, 1:].float() - frames[:, :-1].float()

Where numbers are converted to a narrow dtype, clamp them first, or choose a dtype that holds all of them:

    image = (255 * image).clamp(0, 255).to(torch.uint8)

## When to leave it alone

- Wrapping is meant, and the values are used as numbers, as in counters that start again at zero.

## References

- PyTorch, tensor attributes, `torch.dtype`: https://pytorch.org/docs/stable/tensor_attributes.html
- NumPy, "Overflow errors": https://numpy.org/doc/stable/user/basics.types.html#overflow-errors
- There is no measured limit. One value in 1,000 is 150 of an image of 3 x 224 x 224.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, Threshold, WrappedIntegerFacts
from dptune_rules.at_risk import results_at_risk

LEAST_SHARE = Threshold("least_share", 0.001, "of the results: a few wrapped values hardly change what a model learns")
RANGES = {"uint8": "0 to 255", "int8": "-128 to 127", "int16": "-32,768 to 32,767", "uint16": "0 to 65,535"}
WIDEN = "Convert the tensors before the operator, for example with .float() or .to(torch.int32)."
CLAMP = "Clamp the numbers first, or choose a dtype that holds all of them."
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
    summary="arithmetic of narrow integer tensors, or a conversion to their dtype, wraps around",
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
        f"of {RANGES[found.dtype]} and wrap around",
        why=f"{found.dtype} holds {RANGES[found.dtype]}; torch wraps larger and smaller results without an error.",
        evidence=[
            Evidence(label="results that wrapped", value=found.share, unit="of those compared"),
            Evidence(label="results that were compared", value=found.values),
            Evidence(label="operator", value=found.operator),
            Evidence(label="computed at", value=found.where),
        ],
        remedy=CLAMP if found.operator == "convert" else WIDEN,
        subject=found.function or found.where.rpartition(":")[0],
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
