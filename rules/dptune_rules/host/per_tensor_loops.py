"""A Python loop over parameters calls an operator for each tensor.

## What it measures

Functions of the script that, outside of forward and backward passes and the optimizer's step, call one operator about
as often per step as the model has parameter tensors: the operator that they call most, or that their loop repeats. And
the host time of these functions, as a share of the untraced step. Read from the detailed window. Typical are moving
averages of the weights (EMA), clipping of gradients, weight decay, and zeroing.

## Why it matters

Calling an operator costs the host a few microseconds however small its tensor is. A loop pays for each tensor and each
operator; a `torch._foreach_*` call pays once, and on a GPU launches a few kernels instead of hundreds.

## What to change

- Moving average: `torch._foreach_lerp_(averages, parameters, 1 - decay)`; `torch.optim.swa_utils.AveragedModel` with
  `multi_avg_fn=get_ema_multi_avg_fn(decay)` does so.
- Clipping by the norm of all gradients: `torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)`. It is
  proposed only if the trace shows that the norms are stacked into one norm and that tensors are scaled after it;
  without the scaling, `torch._foreach_norm(tensors)` and one norm of their stack.
- Norms that are used one by one, as in adaptive clipping: `torch._foreach_norm(tensors)` for all norms, and
  `torch._foreach_mul_(tensors, factors)` with a factor for each tensor. `clip_grad_norm_` would change the results.
  With FSDP2, take the norms of the shards (`to_local()`), and all-reduce their squares in one call.
- `clip_grad_norm_` for each parameter: one call for all. It scales all gradients by one norm, so results change.
- Scaling and weight decay: `torch._foreach_mul_(tensors, factor)`.
- Zeroing: `optimizer.zero_grad()`, which sets gradients to None, or `torch._foreach_zero_(gradients)`.

On a CPU the saving is predicted if tensors have 4,096 numbers or fewer on average, and the operator was measured
(References): that part of its time by stack samples; at the lower end the Python of the function stays. Otherwise the
saving is an upper bound: all of the time in the function. On a CPU large tensors take as long in one call as in many.

## When to leave it alone

- The loop does something else for each tensor, or runs every N steps.
- `torch.compile` compiles the function already.

## References

- torch.nn.utils.clip_grad_norm_, `foreach`:
  https://pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
- torch.optim, "Weight Averaging": https://pytorch.org/docs/stable/optim.html
- CPU time in turn, one thread, 20 to 200 tensors: of 16 to 4,096 numbers each, `torch._foreach_lerp_` took 65 to 86 %
  less than `mul_` and `add_`, and 42 to 70 % less than `lerp_`; `_foreach_mul_` 13 to 36 % less than `mul_`,
  `_foreach_norm` 41 to 58 %, `_foreach_zero_` 39 to 71 %, `_foreach_copy_` 38 to 46 %. Of 65,536 numbers each they took
  6 % more to 36 % less.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import CodeSite, UserCodeFigures
from dptune.rule import Rule, RunView, Share, Threshold
from dptune_rules.call_paths import call_path_evidence

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

LEAST_TENSORS = 20  # of fewer the calls take no time
EACH = 0.5  # calls for each parameter tensor from which on a loop is taken to be over parameters

REMEDIES = {
    "lerp_": "torch._foreach_lerp_(averages, parameters, 1 - decay)",
    "mul_": "torch._foreach_mul_(tensors, factor), or for a moving average torch._foreach_lerp_",
    "add_": "torch._foreach_add_(tensors, others, alpha=...), or for a moving average torch._foreach_lerp_",
    "sub_": "torch._foreach_sub_(tensors, others)",
    "div_": "torch._foreach_div_(tensors, divisor)",
    "copy_": "torch._foreach_copy_(targets, sources)",
    "zero_": "torch._foreach_zero_(gradients)",
    "clamp_": "torch._foreach_clamp_max_(tensors, limit), or torch._foreach_clamp_min_",
    "addcmul_": "torch._foreach_addcmul_(tensors, first, second)",
    "addcdiv_": "torch._foreach_addcdiv_(tensors, first, second)",
    "mul": "torch._foreach_mul(tensors, factor), or torch._foreach_lerp_ for a moving average",
}
# The part of their time that one call for all tensors saved, see References: lower end, likely value and upper end.
SAVED_PARTS = {
    "lerp_": (0.4, 0.6, 0.7),
    **dict.fromkeys(("mul_", "add_"), (0.13, 0.5, 0.86)),
    **dict.fromkeys(("norm", "linalg_vector_norm"), (0.4, 0.55, 0.6)),
    "zero_": (0.35, 0.6, 0.7),
    "copy_": (0.35, 0.45, 0.5),
}
SMALL_NUMBERS = 4096  # of a tensor, on average: up to here calling operators takes most of the time
SAVED_TIMES = (0.8, 1.1)  # of that part: lower and upper end

NORMS = ("norm", "linalg_vector_norm")
CLIPPING = "torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)"
TOTAL_NORM = "torch._foreach_norm(tensors) and one norm of their stack"
SINGLE_NORMS = "torch._foreach_norm(tensors) for the norms and torch._foreach_mul_(tensors, factors) for the scaling"

ONE_CALL = "one call of torch.nn.utils.clip_grad_norm_(parameters, max_norm)"
OWN_NORMS = "One call scales all gradients by one norm, and usually needs a larger max_norm."

RULE = Rule(
    code="DP608",
    name="per-tensor-loops",
    family="host",
    kind="time",
    summary="a Python loop over parameters calls an operator for each tensor",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose a foreach call for each function that loops over the parameters for a share of the step worth it."""
    facts = run.any_facts("optimizers", "optimizers.parameter_tensors")
    tensors = max((optimizer.parameter_tensors for optimizer in facts.optimizers), default=0)
    if tensors < LEAST_TENSORS:
        return
    found = run.measured.user_code
    for site in (_looping(site, found) for site in found.sites):
        remedy = ONE_CALL if _clips_one_by_one(run, site, tensors) else _remedy(site, tensors)
        most = site.share if site.part else run.agreed_share(site.share, site.rank, site.name, site.at)
        site = _sampled(run, site, most)
        impact = run.impact(site.share, WORTH_SHARE)
        if remedy and impact and site.phase == "loop" and site.operator_calls >= EACH * tensors:
            yield Advice(
                rule=RULE.code,
                slug=RULE.name,
                kind=RULE.kind,
                impact=impact,
                title=f"{_what(run, site)} loops over parameters for {100 * site.share:.0f} % of the step, in "
                f"{site.operator_calls:.0f} calls of {site.operator}: use {remedy}",
                why="Each call costs the host a few microseconds however small the tensor is; one foreach call updates "
                "all tensors.",
                changes=[],
                saves=_predicted(run, site) or run.bound(0.0, most, "the time in this function"),
                confidence="medium" if found.basis == "untraced" else "low",
                evidence=[
                    Evidence(
                        label=f"{site.name} at {site.at}", value=site.cost_ns / 1e6, unit="ms per step", rank=site.rank
                    ),
                    Evidence(label=f"calls of {site.operator}", value=round(site.operator_calls, 1), unit="per step"),
                    Evidence(label="parameter tensors", value=tensors),
                    *([] if site.part else call_path_evidence(run, site.name, site.at)),
                ],
                numerics="changes" if remedy == ONE_CALL else "same",
                watch=_watch(remedy, sharded=bool(facts.fsdp)),
                fingerprint=f"{RULE.code}:{site.name}",
            )


def _predicted(run: RunView, site: CodeSite) -> Saving | None:
    """The saving where tensors are small: at least without the Python between operators, which may stay."""
    part = SAVED_PARTS.get((site.operator or "").removeprefix("aten::"))
    optimizers = run.any_facts("optimizers").optimizers
    tensors = sum(optimizer.parameter_tensors for optimizer in optimizers)
    numbers = sum(optimizer.parameters for optimizer in optimizers)
    if part is None or site.part or not 0 < numbers <= SMALL_NUMBERS * tensors or not run.times_hold:
        return None
    found = run.sampled_share(site.name, site.at)
    if found is None:
        return None
    least, likely, most = part
    spent = {
        rank: Share(least * site.operator_share * share.least, likely * share.likely, most * share.most)
        for rank, share in found.by_rank.items()
    }
    how = f"`{site.name}` is in {found.samples} stack samples, and one call for all tensors saved "
    how += f"{100 * least:.0f} to {100 * most:.0f} % in measurements"
    return run.removed(spent, how, SAVED_TIMES)


def _sampled(run: RunView, site: CodeSite, most: float) -> CodeSite:
    """With the share of stack samples, if less, and `most` at most: the profiler slows loops of small operators."""
    found = None if site.part else run.found_share(site.rank, site.name, site.at)
    share = min(most, found[0]) if found and found[0] else most
    return site.model_copy(update={"share": share, "cost_ns": round(site.cost_ns * share / site.share)})


def _looping(site: CodeSite, found: UserCodeFigures) -> CodeSite:
    """The function with the operator of its loop, where a call outside of the loop calls another one more often."""
    if site.part or (site.operator or "").removeprefix("aten::") in (*REMEDIES, *NORMS):
        return site
    repeated = next((loop for loop in found.loops if (loop.name, loop.at) == (site.name, site.at)), None)
    if repeated is None or repeated.module or repeated.crossing:
        return site
    return site.model_copy(update={"operator": repeated.operator, "operator_calls": repeated.repeats * site.runs})


def _clips_one_by_one(run: RunView, site: CodeSite, tensors: int) -> bool:
    """Whether it mostly clips, and a line of the script clips for about each tensor by itself."""
    lines = [line for facts in run.facts[:1] for line in facts.clipping]
    return site.mostly == "clip_grad_norm_" and any(line.calls >= EACH * tensors * line.steps > 0 for line in lines)


def _remedy(site: CodeSite, tensors: int) -> str | None:
    """The call that does the same for all tensors; of norms by what becomes of them."""
    operator = (site.operator or "").removeprefix("aten::")
    if operator not in NORMS:
        return REMEDIES.get(operator)
    if site.part and site.mostly == "clip_grad_norm_":
        return CLIPPING
    if site.combined_norms < EACH * tensors:
        return SINGLE_NORMS
    return CLIPPING if site.scales else TOTAL_NORM


def _watch(remedy: str, *, sharded: bool) -> str:
    if remedy == ONE_CALL:
        return OWN_NORMS
    words = "Weights agree up to floating-point rounding."
    if remedy != SINGLE_NORMS:
        return words
    words += " If each norm is used for its own tensor, clip_grad_norm_ is no replacement: it uses one norm for all."
    if sharded:
        words += " Of FSDP shards take the norms of to_local() and all-reduce their squares in one call."
    return words


def _what(run: RunView, site: CodeSite) -> str:
    where = run.hottest_line(site.name, site.at, site.mostly if site.part else "") or site.at
    return f"`{site.mostly}` in `{site.name}` ({where})" if site.part else f"`{site.name}` ({where})"
