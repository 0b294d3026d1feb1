"""Fewer, larger micro-batches: the part of `small-batch` that keeps the global batch."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Impact, Saving, impact_of
from dptune.measured import Missing
from dptune.rule import Rule, RunView
from dptune_rules.known import in_parentheses

MOST_TIMES = 8  # as for larger global batches: the step model was checked up to that
NEAR_BEST = 0.02  # of the step: what less than that saves is not worth the memory of larger micro-batches
# Libraries that accumulate for the script, by how their functions are named, and what sets both there.
_SETTINGS = {
    "transformers.": "per_device_train_batch_size={batch} and gradient_accumulation_steps={passes}",
    "lightning.": "batch_size={batch} of the DataLoader and accumulate_grad_batches={passes}",
    "pytorch_lightning.": "batch_size={batch} of the DataLoader and accumulate_grad_batches={passes}",
}


def micro_batches(run: RunView) -> int:
    """Micro-batches per optimizer step, each a batch of the loader; 1 where gradients do not accumulate, or unknown.

    And 1 where several of them all-reduce gradients: that costs more, and another rule removes it first.
    """
    if (run.measured.accumulation.known("synchronised_backwards_per_step") or 1) > 1:
        return 1
    if not run.facts or not all(facts.accumulates() and len(facts.optimizers) == 1 for facts in run.facts):
        return 1  # several optimizers may step in turn, each on batches of its own
    passes = run.measured.accumulation.known("backwards_per_step") or 1
    drawn = any(any(window.loader_batches) for facts in run.facts for window in facts.windows)
    parts = drawn and any(facts.batches_per_step() < passes for facts in run.facts)  # of one batch
    return 1 if parts else passes


def larger_micro_batches(run: RunView, now: int, passes: int, fits: int) -> tuple[int, Saving] | None:
    """How many times as large micro-batches have to be, and what fewer of them save; None where no model predicts it.

    The smallest size within `NEAR_BEST` of the best prediction. `fits`: at most how many times as large fit in memory.
    """
    tried: list[tuple[int, Saving]] = []
    for times in range(2, min(MOST_TIMES, passes, fits) + 1):
        if passes % times:
            continue
        try:
            saves = run.predict({"loader.batch_size": times * now, "accumulation.micro_batches": passes // times})
        except Missing:
            break
        if not saves.may_be_nothing:
            tried.append((times, saves))
    best = max((saves.central_share or 0.0 for _, saves in tried), default=0.0)
    return next(((times, saves) for times, saves in tried if (saves.central_share or 0.0) >= best - NEAR_BEST), None)


def host_has_room(run: RunView, times: int, passes: int, most_share: float) -> bool:
    """Whether a CPU's host has memory for larger micro-batches, were all of their allocations alive at once.

    Taken to have it where either is not known.
    """
    device = run.any_facts().device
    allocated = [memory.known("allocated_bytes_per_step") or 0 for memory in run.measured.known("memory") or []]
    if device is None or not device.available_bytes or not any(allocated):
        return True
    more_bytes = (times - 1) * max(allocated) / passes * run.ranks_here()
    return more_bytes <= most_share * device.available_bytes


def advice(rule: Rule, run: RunView, now: int, passes: int, times: int, saves: Saving) -> Advice:
    """The card: what to set, where, and that the global batch stays."""
    loader = next(candidate for candidate in run.any_facts().loaders if candidate.batches_drawn)
    then, left = times * now, passes // times
    impact: Impact = impact_of(saves.central_share or 0.0) or "low"
    normalizes = _has_batch_norm(run)
    where = in_parentheses(loader.where)
    of = f"{now} sample{'s' if now > 1 else ''}"
    do = f"run {left} of {then}" if left > 1 else f"run 1 batch of {then} without accumulation"
    return Advice(
        rule=rule.code,
        slug=rule.name,
        kind=rule.kind,
        impact=impact,
        title=f"Each optimizer step runs {passes} micro-batches of {of}: {do}{where}",
        why=f"Calling the operators of a forward and backward pass takes as long for {of} as for {then}.",
        changes=[],
        saves=saves,
        confidence="low" if normalizes else "medium",
        evidence=list(_evidence(run, now, passes, then, left)),
        numerics="changes" if normalizes else "same",
        watch=" ".join(_watch(run, then, passes, left, normalizes)),
        fingerprint=f"{rule.code}:accumulation:{loader.dataset or 'loader'}",
    )


def _evidence(run: RunView, now: int, passes: int, then: int, left: int) -> Iterator[Evidence]:
    yield Evidence(label="micro-batches per optimizer step", value=passes)
    yield Evidence(label="batch_size of the loader", value=now, unit=f"sample{'s' if now > 1 else ''}")
    yield Evidence(label="micro-batches then", value=left)
    yield Evidence(label="batch_size then", value=then, unit="samples")
    yield Evidence(label="global batch, before and after", value=run.measured.samples_per_step, unit="samples")


def _watch(run: RunView, then: int, passes: int, left: int, normalizes: bool) -> Iterator[str]:
    through = [call.through for call in run.any_facts().calls]
    names = (words for begin, words in _SETTINGS.items() if any(name.startswith(begin) for name in through))
    named = next(names, "")
    if named:
        yield f"Set {named.format(batch=then, passes=left)} together."
    else:
        divided = (
            f"divide the loss by {left} instead of {passes}" if left > 1 else f"do not divide the loss by {passes}"
        )
        yield (
            f"Change both together: batch_size={then} of the DataLoader, and {left} "
            f"micro-batch{'es' if left > 1 else ''} per optimizer step; if the script averages the loss over "
            f"micro-batches, {divided}."
        )
    if normalizes:
        yield (
            f"The global batch and the learning rate stay, but BatchNorm layers in training mode normalize over {then} "
            "samples then: compare the loss."
        )
    else:
        yield (
            "The global batch and the learning rate stay; gradients are the same up to floating-point summation order "
            "if the loss is a mean over samples."
        )


def _has_batch_norm(run: RunView) -> bool:
    """Whether BatchNorm runs in the steps: by the modules that were recorded, else by operators or kernels."""
    attribution, kernels = run.measured.known("attribution"), run.measured.known("kernels")
    modules = attribution.known("modules") if attribution is not None else None
    names = [module.name for module in modules.top] if modules else []
    if any("BatchNorm" in name for name in names):
        return True
    if any("InstanceNorm" in name for name in names):
        return False  # it calls the operator of BatchNorm
    return kernels is not None and any("batch_norm" in kernel.name for kernel in kernels.top)
