"""Parameters are 64 bits wide, in a training that hardly needs it.

## What it measures

The types of the gradients of DistributedDataParallel modules, and torch's default type. Where all are float64 the model
computes in double precision.

## Why it costs time

A double takes twice the memory, twice the bytes on every link, and on a CPU at least twice the time, for half as many
fit into a vector register. On GPUs for data centres fp64 runs at half the peak of fp32 without tensor cores, on others
at a 32nd or a 64th.

It mostly comes in by accident: NumPy's arrays are doubles, and `torch.from_numpy` keeps them so; then inputs and
parameters do not match, and `.double()` makes them.

## What to change

`model.float()`, and `tensor.float()` where data comes from NumPy; take out `torch.set_default_dtype(torch.float64)`.

What is said to be saved is a ceiling: all that is computed and exchanged. On a CPU half of it is what to hope for, four
fifths of convolutions, which oneDNN has for floats alone; on a GPU without fast doubles nearly all that is computed.

## When to leave it alone

- Physics, solvers, and second derivatives that need it.
- Tests that check gradients against differences.

## References

- PyTorch, "Default dtype": https://pytorch.org/docs/stable/generated/torch.set_default_dtype.html
- CUDA C++ Programming Guide, "Arithmetic Instructions", throughput by compute capability:
  https://docs.nvidia.com/cuda/cuda-c-programming-guide/
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, impact_of
from dptune.rule import Rule, RunView

WIDE = ("float64", "double")

RULE = Rule(
    code="DP402",
    name="double-precision",
    family="precision",
    kind="time",
    summary="parameters are 64 bits wide, in a training that hardly needs it",
    since="0.1",
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose single precision where gradients are doubles."""
    facts = run.any_facts()
    wide = [one for one in facts.ddp if one.gradient_dtypes and set(one.gradient_dtypes) <= set(WIDE)]
    if not wide:
        return
    share = run.unstretched(run.measured.share("compute_ns") + run.measured.share("exposed_communication_ns"))
    impact = impact_of(share / 2)  # a CPU computes twice as many floats at a time, and half of the bytes travel
    if impact is None:
        return
    default = facts.settings.get("default_dtype")
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"The parameters of {wide[0].module} are float64: single precision takes half of the memory, and of "
        "the bytes that travel",
        why="Doubles take twice the bytes in memory and on links, and at most half as many are computed at a time.",
        changes=[],
        saves=run.bound(0.0, share, "no more than all that is computed and exchanged"),
        confidence="high",
        evidence=[
            Evidence(label="gradients are", value=", ".join(wide[0].gradient_dtypes)),
            *([Evidence(label="torch's default type", value=str(default))] if default else []),
            Evidence(label="compute and exposed communication", value=share, unit="of a step").at(
                run.measured.where("compute_ns", "exposed_transfer_ns")
            ),
        ],
        numerics="changes",
        watch="float32 keeps 7 decimal digits of 16: compare the loss over the first hundreds of steps.",
        fingerprint=f"{RULE.code}:{wide[0].module}",
    )
