"""Model parameters are float64.

## What it measures

The dtypes of the gradients of DistributedDataParallel modules, and of the parameters that optimizers update. Where all
are float64 the model computes in double precision. The line named is the call that made them float64: `.double()`,
`.to(torch.float64)` or `.type(torch.float64)` of a module, or `torch.set_default_dtype(torch.float64)`.

Otherwise the functions of the script that compute on float64 tensors, from the detailed window: as a share of the step,
with their backward pass. Tensors of fewer than 1,024 elements do not count, nor do functions that decompose matrices or
solve equations.

## Why it matters

A double takes twice the memory, twice the bytes on every link, and on a CPU at least twice the time, because half as
many fit into a vector register. Without tensor cores, fp64 runs at half the peak of fp32 on data-center GPUs, and at
1/32 or 1/64 of it on others.

The usual cause is an accident: NumPy's arrays are float64 by default, and `torch.from_numpy` keeps the dtype. Inputs
and parameters then do not match, and `.double()` makes them match.

## What to change

Use `model.float()`, and `tensor.float()` where data comes from NumPy; remove `torch.set_default_dtype(torch.float64)`.
In a function: convert the constant that is float64, for example a buffer made with NumPy, and drop casts to float64.

On a CPU the saving is predicted: 10 to 75 % of compute, and at most as much of exposed communication, or of the time of
the function's operators (References). Otherwise it is an upper bound: all of it. Small operators save least, because
calling them takes as long. On a GPU without fast fp64 expect nearly all compute.

## When to leave it alone

- Physics, solvers, and second derivatives that need it.
- Tests that check gradients against differences.

## References

- PyTorch, "Default dtype": https://pytorch.org/docs/stable/generated/torch.set_default_dtype.html
- CUDA C++ Programming Guide, "Arithmetic Instructions", throughput by compute capability:
  https://docs.nvidia.com/cuda/cuda-c-programming-guide/
- CPU time in turn, one thread, training steps: an LSTM took 75 % less in float32, convolutions and a TCN 49 to 59 %, an
  attention layer 38 to 46 %, MLPs 27 to 51 %, and a GRU of 32 units 10 %. A linear network of 32 units took as long.
  Pairs of a TCN on two ranks: 45 % less time per step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Evidence, Saving, impact_of
from dptune.measured import DoubleFunction
from dptune.rule import Rule, RunView, Share, Threshold
from dptune_rules.call_paths import call_path_evidence
from dptune_rules.host.costly_functions import costs

WORTH_SHARE = Threshold("worth_share", 0.1, "of a function: float32 takes about half as long, 5 % of a step")

WIDE = ("float64", "double")

SAVED_PART = (0.1, 0.45, 0.75)  # of compute in float64, that float32 saved, see References
SAVED_TIMES = (0.8, 1.1)  # these times: the lower and the upper end in another model
MEASURED = "float32 saved 10 to 75 % of the time of models in measurements"

RULE = Rule(
    code="DP402",
    name="double-precision",
    family="precision",
    kind="time",
    summary="model parameters are float64",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose single precision where the parameters are doubles."""
    wide = _wide(run)
    if wide is None:
        code = run.measured.known("user_code")
        for function in code.double_functions if code is not None else ():
            if run.impact(function.share, WORTH_SHARE):
                yield _of_function(run, function)
        return
    whose, label, dtypes = wide
    share = run.unstretched(run.measured.share("compute_ns") + run.measured.share("exposed_communication_ns"))
    impact = impact_of(share / 2)  # a CPU computes twice as many floats at a time, and half of the bytes travel
    if impact is None:
        return
    default = run.facts[0].settings.get("default_dtype") if run.facts else None
    doubled = run.facts[0].doubled if run.facts else None
    made = [doubled.through, doubled.where] if doubled and doubled.where else []
    place = ", set by `{}` at {}".format(*made) if made else ""
    sends = " and sends half the bytes" if run.measured.world_size != 1 else ""
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"The parameters {whose} are float64{place}: float32 takes half the memory{sends}",
        why="float64 takes twice the memory and bandwidth, and at most half the arithmetic throughput.",
        changes=[],
        saves=_predicted(run) or run.bound(0.0, share, "compute and exposed communication"),
        confidence="high",
        evidence=[
            Evidence(label=label, value=", ".join(dtypes)),
            *([Evidence(label="default dtype of torch", value=str(default))] if default else []),
            Evidence(label="compute and exposed communication", value=share, unit="of a step").at(
                run.measured.where("compute_ns", "exposed_transfer_ns")
            ),
            *([Evidence(label="made float64 by", value=", ".join(made))] if made else []),
        ],
        numerics="changes",
        watch="float32 keeps 7 decimal digits of 16: compare the loss over the first few hundred steps.",
        fingerprint=f"{RULE.code}:{whose}",
    )


def _predicted(run: RunView) -> Saving | None:
    """The saving on CPUs where all of the model computes in float64; fewer bytes may not shorten what ranks wait."""
    computed, sent = run.measured.share("compute_ns"), run.measured.share("exposed_communication_ns")
    least, likely, most = SAVED_PART
    whole = run.unstretched(computed + sent)
    spent = Share(least * computed, likely * (computed + sent), most * whole)
    if not run.times_hold:
        return None
    how = f"compute and exposed communication; {MEASURED}"
    return run.removed({facts.rank: spent for facts in run.facts}, how, SAVED_TIMES, timed=True)


def _of_function(run: RunView, function: DoubleFunction) -> Advice:
    where = run.hottest_line(function.name, function.at) or function.at
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact_of(function.share / 2) or "low",  # as above
        title=f"`{function.name}` ({where}) computes on float64 tensors for {100 * function.share:.0f} % of the step, "
        "although most parameters are not float64: convert its constants and inputs to float32",
        why="float64 takes twice the memory and bandwidth, and at most half the arithmetic throughput. One float64 "
        "operand makes the results float64.",
        changes=[],
        saves=run.replaced(function, SAVED_PART, MEASURED)
        or run.bound(0.0, function.share, "the operators on float64 tensors and their backward pass"),
        confidence="medium",
        evidence=[
            *costs(f"{function.name} at {function.at}", function),
            Evidence(label="operators on float64 tensors", value=round(function.calls, 1), unit="per step"),
            Evidence(label="most of it in", value=function.operator),
            *call_path_evidence(run, function.name, function.at),
        ],
        numerics="changes",
        watch="float32 keeps 7 decimal digits of 16: keep float64 for sums over many values and differences of large "
        "ones.",
        fingerprint=f"{RULE.code}:{function.name}",
    )


def _wide(run: RunView) -> tuple[str, str, Sequence[str]] | None:
    """Whose parameters are all float64, what was looked at, and its dtypes; None where most are not."""
    facts = run.any_facts(*(["ddp"] if run.shows("ddp.gradient_dtypes") else ["optimizers", "optimizers.dtypes"]))
    for module in facts.ddp:
        if module.gradient_dtypes and set(module.gradient_dtypes) <= set(WIDE):
            return f"of {module.module}", "dtype of the gradients", module.gradient_dtypes
    parameters = sum(optimizer_facts.parameters for optimizer_facts in facts.optimizers)
    for optimizer in facts.optimizers:
        if optimizer.dtypes and set(optimizer.dtypes) <= set(WIDE) and optimizer.parameters >= parameters / 2:
            return f"that {optimizer.name} updates", "dtype of the parameters", optimizer.dtypes
    return None
