"""torch.compile compiles the model again in training steps.

## What it measures

The time in which torch.compile compiles, in untraced steps, as a share of their time: in each step on the rank that
spends most, because the others wait for it. If the second half of the steps compiles less, its share counts:
compilations that end soon cost a long run nothing. Which function is compiled again, and the guard that failed, are as
torch reports them. In traces that dptune did not record: the ranges in which torch compiles, in the traced steps.

## Why it matters

A compiled function is valid for inputs that pass its guards: shapes, types, Python values. Another input makes torch
compile it again, which takes a tenth of a second to minutes. With `dynamic=False`, or batches padded to their own
longest sample, each new length is another input.

## What to change

- Shapes that vary: leave out `dynamic=False`, pass `dynamic=True`, or mark the dimension with
  `torch._dynamo.mark_dynamic(tensor, dim)` before the call.
- Or pad batches to a few lengths (buckets, for example multiples of 64): one compilation for each.
- The last batch of an epoch: `drop_last=True`.
- A Python number that changes (a step, a learning rate): pass it as a tensor.

`TORCH_LOGS=recompiles python train.py` prints the guard that fails each time.

On a CPU the saving is predicted: the time spent compiling, less a fifth for what is still compiled once. It is an upper
bound if the second half of the steps compiles less: in a longer run, compiling may stop once all shapes have been seen.

## When to leave it alone

- The first steps of a run: those are not timed.
- There are few shapes, and soon all of them have been seen.

## References

- PyTorch, "Recompilation": https://pytorch.org/docs/stable/compile/programming_model.recompilation.html
- PyTorch, "Dynamic shapes": https://pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
- Measured: `compile_ns` under the run folder's facts. A small encoder with a new length in each step took 950 ms a
  step, 62 ms in a step with a known length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.05, "in a slow model, a single compilation in the timed steps takes less")

LEAST_STEPS = 2  # in which it compiles: once may be the last batch of an epoch

STEADY = 0.8  # of the share of all steps: if the second half compiles less than this, nothing is predicted

RULE = Rule(
    code="DP607",
    name="recompiles",
    family="host",
    kind="time",
    summary="torch.compile compiles the model again in training steps",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


class _Again(NamedTuple):
    """A function that was compiled again: its line, where it is the user's, and why."""

    function: str
    where: str
    reason: str
    times: int


def check(run: RunView) -> Iterator[Advice]:
    """Propose dynamic shapes where compiling takes a share of the timed steps."""
    if not run.facts:
        yield from _of_trace(run)
        return
    if run.facts[0].compiled is None:
        return
    took_ns, compiled_ns = _by_step(run)
    share, steps = _share(took_ns, compiled_ns), sum(1 for ns in compiled_ns if ns)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None or steps < LEAST_STEPS:
        return
    again = _again(run)
    called = _called(run)
    named = f" of the model compiled at {called[0]}" if called else ""
    if again is not None and again.where:
        named = f" of `{again.function}` ({again.where})"
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"Recompilation{named} takes {100 * share:.0f} % of the time, in {steps} of {len(took_ns)} steps: "
        f"{_remedy(again)}",
        why="torch.compile recompiles whenever an input fails the guards of the compiled code."
        + (f" Last failure: {again.reason.rstrip('.')}." if again else ""),
        changes=[],
        saves=_predicted(run, share, sum(compiled_ns) / sum(took_ns))
        or run.bound_of_all(share, "the time spent compiling in the timed steps", took_ns),
        confidence="high",
        evidence=[
            Evidence(label="compiling", value=share, unit="of the steps (untraced)"),
            Evidence(label="steps that compile", value=steps, unit=f"of {len(took_ns)} timed"),
            Evidence(label="compile time of these steps", value=sum(compiled_ns) / steps / 1e6, unit="ms"),
            *([Evidence(label="guard that failed", value=again.reason)] if again else []),
            *(Evidence(label="torch.compile is called at", value=where) for where in called),
        ],
        numerics="same",
        watch="Dynamic shapes can select other kernels, which round differently.",
        fingerprint=RULE.code,
    )


def _of_trace(run: RunView) -> Iterator[Advice]:
    """The finding on a trace that dptune did not record: it shows neither the function nor the guard."""
    found = run.measured.compiling
    share, steps = _share(found.steps_ns, found.compile_ns), sum(1 for ns in found.compile_ns if ns)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None or steps < LEAST_STEPS:
        return
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"Recompilation takes {100 * share:.0f} % of the time, in {steps} of {len(found.steps_ns)} traced steps: "
        "if shapes vary, pass dynamic=True or pad batches to a few lengths",
        why="torch.compile recompiles whenever an input fails the guards of the compiled code.",
        changes=[],
        saves=run.bound_of_all(share, "the time spent compiling in the traced steps", found.steps_ns),
        confidence="medium",
        evidence=[
            Evidence(label="compile time", value=share, unit="of the traced steps"),
            Evidence(label="steps that compile", value=steps, unit=f"of {len(found.steps_ns)} traced"),
            Evidence(label="mean compile time of these steps", value=sum(found.compile_ns) / steps / 1e6, unit="ms"),
            *(
                [Evidence(label="compilations of one function so far", value=found.compilations)]
                if found.compilations > 1
                else []
            ),
        ],
        numerics="same",
        watch="Run with TORCH_LOGS=recompiles to see which guard fails. Dynamic shapes can select other kernels, which "
        "round differently.",
        fingerprint=RULE.code,
    )


def _share(took_ns: Sequence[float], compiled_ns: Sequence[float]) -> float:
    """The share of the steps spent compiling; that of their second half if it is smaller, because the run goes on."""
    later = len(took_ns) // 2
    return min(1.0, sum(compiled_ns) / sum(took_ns), sum(compiled_ns[later:]) / sum(took_ns[later:]))


def _predicted(run: RunView, share: float, of_all: float) -> Saving | None:
    """On a CPU the time that the busiest rank saves; None where later steps compile less: compiling may soon stop."""
    windows = {facts.rank: facts.window("untraced") for facts in run.facts}
    timed = {rank: window for rank, window in windows.items() if window and len(window.compile_ns) == window.steps}
    if share < STEADY * of_all:
        return None
    how = "the time spent compiling; the interval includes its variation between steps"
    return run.removed_of_steps({rank: window.compile_ns for rank, window in timed.items()}, how)


def _by_step(run: RunView) -> tuple[list[float], list[float]]:
    """How long each timed step took, and how long of that the rank compiled that compiled longest, ns."""
    windows = [window for facts in run.facts if (window := facts.window("untraced")) and window.steps]
    windows = [window for window in windows if len(window.compile_ns) == window.steps]
    if not windows:
        raise Missing("compile time was not recorded")
    steps = min(window.steps for window in windows)
    took = [float(max(window.durations_ns[step] for window in windows)) for step in range(steps)]
    compiled = [float(max(window.compile_ns[step] for window in windows)) for step in range(steps)]
    return took, compiled


def _again(run: RunView) -> _Again | None:
    """The function that was compiled again most often, the user's before those of libraries."""
    listed = [again for facts in run.facts if facts.compiled for again in facts.compiled.recompiles]
    found = [_Again(each.function, each.where or "", each.reason, each.times) for each in listed]
    return max(found, key=lambda again: (bool(again.where), again.times), default=None)


def _called(run: RunView) -> list[str]:
    compiled = run.any_facts().compiled
    return [where for where in compiled.where if where] if compiled is not None else []


def _remedy(again: _Again | None) -> str:
    reason = again.reason if again else ""
    if "size mismatch" in reason or "stride mismatch" in reason:
        return "pass dynamic=True, mark the dimension with torch._dynamo.mark_dynamic, or pad batches to a few lengths"
    if "dtype" in reason or "requires_grad" in reason or "grad_mode" in reason:
        return "pass tensors of the same dtype and grad mode in every step"
    return "keep what the guard checks the same in every step, or pass it as a tensor"
