"""A forward hook computes results in every step that nothing reads.

## What it measures

The forward hooks that the script registers on modules, in three warm-up steps: whether an operator outside of the hook
takes a tensor that the hook made, whether a backward pass goes through one, and whether the hook changes a tensor in
place that it did not make. If none of these is the case, the hook's time is its share of the stack samples of untraced
steps. Values that the hook converts to NumPy arrays or Python numbers are not followed.

## Why it matters

A hook runs in each forward pass of its module, so hooks on all layers copy or summarize the whole model's activations
in each step. They often remain from debugging, or from plots that are drawn once per epoch. Kept copies also take
memory.

## What to change

Remove the hooks once they are no longer needed:

    handle = layer.register_forward_hook(record)
    ...
    handle.remove()

If their results are read only occasionally, skip the work in all other steps:

    def record(module, inputs, output):
        if step % 100 == 0:
            kept[name].append(output.detach().clone())

On a CPU the saving is predicted: 0.7 to 1.3 times the sampled time, with its sampling error, and up to 2.3 times if the
hook makes NumPy arrays (References). Otherwise it is an upper bound: all of the time in the hook.

## When to leave it alone

- Steps after the warm-up read the results, for example a preconditioner that is updated every tenth step.
- The script reads the NumPy arrays or numbers in each step, for example to control a loss weight.

## References

- PyTorch, `torch.nn.Module.register_forward_hook`:
  https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_forward_hook
- CPU time per step of a ConvNeXt, alternating runs with and without hooks on all layers, one thread: removing hooks
  that keep NumPy copies saved 1.1, 1.7, 2.0 and 2.3 times the time spent in them, because later operators wait for
  newly allocated memory; removing hooks that clone or summarize outputs saved 0.7 to 1.05 times that time.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import HookCallFacts, Missing, Rule, RunView, SampledShare, Threshold
from dptune_rules.call_paths import line_evidence
from dptune_rules.known import known

SAVED_PART, SAVED_PART_OF_ARRAYS = (0.7, 1.3), (0.7, 2.3)  # of the time in the hook, see References
WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")

RULE = Rule(
    code="DP628",
    name="forward-hooks",
    family="host",
    kind="time",
    summary="a forward hook computes results in every step that nothing reads",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each hook of the first rank whose unread results take a share of the step worth it."""
    facts = run.any_facts()
    for hook in facts.hook_calls:
        found = run.sampled_share(hook.function, hook.where, training=True)
        if found is None:
            if run.found_share(facts.rank, hook.function, hook.where) is None:
                raise Missing("no stack samples of untraced steps: record more untraced steps (--untraced)")
            continue  # it is in too few of them
        share = max((share.likely for share in found.by_rank.values()), default=0.0)
        if run.impact(share, WORTH_SHARE) is not None:
            yield _advice(run, hook, found, share)


def _advice(run: RunView, hook: HookCallFacts, found: SampledShare, share: float) -> Advice:
    where = run.hottest_line(hook.function, hook.where) or hook.where
    name = hook.function.rpartition(".")[2]
    of_modules = f" on {hook.modules} modules" if hook.modules > 1 else ""
    how, part = f"`{name}` is in {found.samples} stack samples", SAVED_PART_OF_ARRAYS if hook.arrays else SAVED_PART
    removed = run.removed(found.by_rank, how, part) if run.times_hold else None
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=run.impact(share, WORTH_SHARE) or "low",
        title=f"`{hook.function}` ({where}), a forward hook{of_modules}, takes {100 * share:.0f} % of the step, but no "
        "operator reads its results",
        why="A hook runs in each forward pass of its module. In the watched steps, no operator outside the hook "
        "used a tensor that it created, and no backward pass went through one.",
        changes=[],
        remedy=f"Remove the hook, or return early from `{name}` in all but every N-th step.",
        saves=removed or run.bound(0.0, share, "the time in this hook"),
        confidence="medium" if removed else "low",
        evidence=[
            Evidence(label=f"{hook.function} at {hook.where}", value=share, unit="of a step"),
            Evidence(label="operators in the hook", value=", ".join(hook.operators)),
            Evidence(label="calls of these operators", value=hook.calls, unit="per step"),
            *known("modules with this hook", hook.modules),
            Evidence(label="watched steps", value=hook.steps),
            *line_evidence(run, hook.function, hook.where),
        ],
        numerics="same",
        watch="Only warm-up steps were watched; NumPy arrays and Python numbers were not tracked. Keep the hook if "
        "later steps or the script read its results.",
        fingerprint=f"{RULE.code}:{hook.function}",
    )
