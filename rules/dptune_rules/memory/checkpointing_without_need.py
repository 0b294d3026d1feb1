"""Activation checkpointing recomputes forward passes although memory has room for the activations.

## What it measures

Whether `torch.utils.checkpoint` runs in the steps, called by the script or by a library, and how long functions are
recomputed in untraced steps. This is compared with the memory that their activations would take, measured during
warm-up (storages saved for backward in the recomputed parts, without parameters) and with the memory that is free.

On a CPU the saving is predicted as 0.3 to 1.3 times that time; communication that the recomputation may hide is
subtracted from the lower end. On a GPU the host only launches the recomputation, so the saving is bounded by the
compute of the forward pass.

A trace that dptune did not record shows operators of the forward pass that run again inside the backward pass, but not
the memory of their activations. The finding then has low confidence: remove checkpoints block by block. Where only a
custom `autograd.Function` reruns operators, as reversible layers do, nothing is reported.

## Why it matters

Each checkpointed block runs its forward pass twice: about a third more compute per step. That saves memory, and is
wasted if memory is free.

## What to change

Call the blocks without `checkpoint()`. In Hugging Face drop `gradient_checkpointing=True` or call
`model.gradient_checkpointing_disable()`; with torch's own wrapper leave out `apply_activation_checkpointing`. Where not
everything fits, checkpoint every second block only.

`dptune verify` can try it: `memory.checkpointing` is switched off from outside.

## When to leave it alone

- Longer sequences or larger batches are still to come in this run.
- The saved memory allows a larger batch, which saves more.

## References

- torch.utils.checkpoint: https://pytorch.org/docs/stable/checkpoint.html
- Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost": https://arxiv.org/abs/1604.06174
- Two CPU ranks: a small BERT recomputed for 33 % of a step and was 39 % faster without checkpoints on an idle machine,
  because the hooks for saved tensors, random states and autocast contexts cost time as well; on a busy one it
  recomputed for 28 % and was 10 % faster. A linear network recomputed for 21 % and was 23 % faster.
- The memory is an upper bound: the inputs of checkpointed parts, which are kept either way, are counted in.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from dptune.advice import Advice, Change, Evidence, Location, Saving
from dptune.measured import Missing, digits
from dptune.rule import Rule, RunView, Threshold, line_of_argument, passed_at
from dptune_rules.known import known
from dptune_rules.predicted_memory import fits, peak_evidence

WORTH_SHARE = Threshold("worth_share", 0.05, "medium impact from here: a single checkpointed head is less")
FULL_SHARE = Threshold(
    "full_share", 0.8, "of the GPU's memory: above it fragmentation and longer batches run out of memory"
)
HOST_SHARE = Threshold(
    "host_share", 0.5, "of the host's available memory, for all ranks on it: page cache and workers need the rest"
)
_ARGUMENTS = ("gradient_checkpointing", "activation_checkpointing")  # the second since transformers 5
_TRAINER = "TrainingArguments(..., gradient_checkpointing=False)"
# Saving / recomputation time: a checkpoint's hooks and saved states add to it (1.2 on a small BERT); a forward pass
# that keeps its activations takes longer (0.36 on a busy machine).
LEAST, MOST = 0.3, 1.3

RULE = Rule(
    code="DP803",
    name="checkpointing-without-need",
    family="memory",
    kind="time",
    summary="activation checkpointing recomputes forward passes although memory has room for the activations",
    since="0.1",
    thresholds=(WORTH_SHARE, FULL_SHARE, HOST_SHARE),
    needs="recording",
    also_traces=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose no checkpoints where recomputing takes a share of the step worth it, and the activations fit."""
    inferred = None if run.facts else run.measured.known("inferred")
    if inferred is not None and inferred.recomputed_share:
        yield from _of_trace(run, run.unstretched(inferred.recomputed_share))
        return
    facts = run.recorded_about("checkpointing")
    checkpointing = None if facts is None else facts.checkpointing
    if facts is None or checkpointing is None:
        return
    on_cpu = run.measured.device_kind == "cpu"
    share = _recomputed(run) if on_cpu else _recomputed_on_device(run)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    kept_bytes = max((facts.checkpointing.kept_bytes or 0 for facts in run.facts if facts.checkpointing), default=0)
    if not kept_bytes:
        raise Missing("activation memory was not measured: record with --warmup 2 or more")
    if not _fits(run, kept_bytes, on_cpu):
        return
    by_trainer = checkpointing.through.startswith("transformers.") and checkpointing.enabled_where is None
    calls = facts.library_calls if by_trainer else []
    argument = next(iter(passed_at(calls, _ARGUMENTS)), None)
    argument = argument or line_of_argument(calls, "TrainingArguments", _ARGUMENTS[0])
    at = Location.parse(checkpointing.enabled_where or argument or checkpointing.where)
    snippet = _TRAINER if checkpointing.through.startswith("transformers.") else ""
    changes = [Change(knob="memory.checkpointing", now=True, then=False, at=at, snippet=snippet)]
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"Recomputing activations takes {100 * share:.0f} % of a step, although memory has room for them "
        f"({digits(kept_bytes / 2**20)} MiB per rank)",
        why="Each checkpointed block runs its forward pass twice, to save memory that is free anyway.",
        changes=changes,
        saves=(_predicted(run, share) if on_cpu else None) or run.saving(changes, _bound(run, share, on_cpu)),
        confidence="high" if on_cpu else "medium",
        evidence=[
            Evidence(label="recomputing forward passes", value=share, unit="of a step (untraced)").at(
                run.measured.where("compute_ns")
            ),
            Evidence(label="activations that checkpointing discards", value=kept_bytes, unit="bytes per rank"),
            *peak_evidence(run, {"memory.checkpointing": False}),
            *known("called by", checkpointing.through),
            *(known("runs at", checkpointing.where) if checkpointing.where != str(at) else []),
        ],
        numerics="same",
        watch="Memory use rises by the size of the activations: check the peak with the longest batch.",
        fingerprint=f"{RULE.code}:memory.checkpointing",
    )


def _of_trace(run: RunView, share: float) -> Iterator[Advice]:
    """Fewer checkpoints, of a trace that dptune did not record: it does not show what the activations would take."""
    impact = run.impact(share, WORTH_SHARE)
    peaks = [peak for memory in run.measured.known("memory") or () if (peak := memory.known("peak_share"))]
    if impact is None or max(peaks, default=0.0) >= run.limit(FULL_SHARE):
        return
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"Recomputing activations takes {100 * share:.0f} % of a step: checkpoint fewer blocks, if memory has "
        "room for more activations",
        why="Each checkpointed block runs its forward pass twice, to save memory.",
        changes=[Change(knob="memory.checkpointing", now=True, then=False)],
        saves=run.bound(0.0, share, "the time of the repeated forward passes"),
        confidence="low",
        evidence=[
            Evidence(label="forward operators that the backward pass reruns", value=share, unit="of a step").at(
                run.measured.where("compute_ns")
            ),
            *(Evidence(label="peak memory", value=peak, unit="of the device's memory") for peak in sorted(peaks)[-1:]),
        ],
        numerics="same",
        watch="The trace does not show how much memory the activations need: remove checkpoints block by block, and "
        "check the peak.",
        fingerprint=f"{RULE.code}:memory.checkpointing",
    )


def _recomputed(run: RunView) -> float:
    """The share of a step in which the host runs forward passes again: medians over steps, then ranks."""
    windows = [window for facts in run.facts if (window := facts.window("untraced")) and window.steps]
    shares = [
        median(again / took for again, took in zip(window.recomputed_ns, window.durations_ns, strict=True))
        for window in windows
        if len(window.recomputed_ns) == window.steps
    ]
    if not shares:
        raise Missing("recomputation time was not recorded")
    return median(shares)


def _recomputed_on_device(run: RunView) -> float:
    """Of the forward pass's compute the part that the host spends recomputing, against its own forward pass."""
    phases = {phase.phase: phase for phase in run.measured.phases}
    host_ns = sum(phase_figures.known("host_ns") or 0 for phase_figures in phases.values())
    if "forward" not in phases or not host_ns:
        raise Missing("the traces do not separate the forward pass from the rest")
    again = _recomputed(run) * host_ns / max(1, phases["forward"].host_ns)
    share: float = min(1.0, again) * phases["forward"].compute_ns / run.measured.account.window_ns
    return share


def _fits(run: RunView, kept_bytes: int, on_cpu: bool) -> bool:
    """Whether the predicted peak without checkpoints fits, else whether the activations do in what is free."""
    if fits(run, {"memory.checkpointing": False}) is False:
        return False
    return _fits_host(run, kept_bytes) if on_cpu else _fits_device(run, kept_bytes)


def _fits_host(run: RunView, kept_bytes: int) -> bool:
    """Whether the activations of all ranks on a host take only a part of what it could still give."""
    for facts in run.facts:
        available = facts.device.available_bytes if facts.device else None
        if available is None:
            raise Missing("free host memory was not recorded")
        ranks = sum(other.host == facts.host for other in run.facts)
        if ranks * kept_bytes > run.limit(HOST_SHARE) * available:
            return False
    return True


def _fits_device(run: RunView, kept_bytes: int) -> bool:
    for facts in run.facts:
        peak, capacity = (
            (facts.device.peak_allocated_bytes, facts.device.memory_bytes) if facts.device else (None, None)
        )
        if peak is None or not capacity:
            raise Missing("the peak of allocated memory was not recorded")
        if peak + kept_bytes > run.limit(FULL_SHARE) * capacity:
            return False
    return True


def _predicted(run: RunView, share: float) -> Saving | None:
    """On a CPU from LEAST times the recomputation, less communication that it hides, to MOST times.

    A shorter backward pass hides less communication: at most in proportion.
    """
    windows = [window for facts in run.facts if (window := facts.window("untraced")) and window.steps]
    backward = (
        median(sum(rank_window.backward_ns) / sum(rank_window.durations_ns) for rank_window in windows)
        if windows
        else 0.0
    )
    least = LEAST * share
    if run.measured.world_size > 1:
        least -= run.measured.share("hidden_communication_ns") * min(1.0, share / backward if backward else 1.0)
    if least <= 0 or len(run.facts) < run.measured.world_size:
        return None
    how = f"{LEAST:g} to {MOST:g} times the recomputation, the lower end less communication that it may hide"
    return run.timed(least, share, MOST * share, how, saved_part=(1.0, 1.0))


def _bound(run: RunView, share: float, on_cpu: bool) -> Saving:
    """A CPU saves at most the recomputation and the cost of checkpoints, a GPU at most what it recomputes."""
    if not on_cpu:
        return run.bound(0.0, min(1.0, share), "the compute time of the repeated forward passes")
    how = f"{MOST:g} times the recomputation, because checkpoint hooks also cost time"
    return run.bound(0.0, min(1.0, MOST * share), how)
