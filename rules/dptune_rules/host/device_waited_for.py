"""The script waits for the GPU inside each step, and the GPU then idles until the next launch.

## What it measures

Time in which a GPU is idle while the script is held by a call that waits for it, or launches the next operation after
one, as a share of the step, the mean of all GPUs. Of one that alone waits so long, and holds up the others, `late-rank`
speaks.

## Why it costs time

The host launches kernels ahead of the GPU, so that one follows the other. Where the script asks for a value that the
GPU computes, it waits until all that was launched is over; then nothing is queued, and the GPU idles for as long as the
host takes to launch again. `loss.item()`, `print(loss)`, `tensor.cpu()`, `if tensor:`, `tensor.nonzero()`, indexing
with a mask, `torch.cuda.synchronize()` and the clipping of gradients with `error_if_nonfinite` do so.

## What to change

Keep losses and metrics on the GPU, add them up there, and read them every so many steps; copy what has to be read with
`non_blocking=True`, and look at it a step later. Shapes that depend on values (`nonzero`, masks) become `torch.where`.
`dptune report` names the functions that copies to the host are asked for in, where steps were recorded in detail.

The step saves at most that idle time, in each step that of the GPU where it is most. Traced steps have more of it than
others, for the profiler slows the host: no more of it is counted than a step without the profiler has beside what the
busiest GPU computed.

## When to leave it alone

- The value decides what the step does next: a search, or reinforcement learning.
- A GradScaler looks for overflows once a step, which is such a call: bf16 needs none.
- `cudaFree` waits, too: where calls for memory are half of it, their own rule speaks.

## References

- PyTorch, "Performance Tuning Guide", "Avoid unnecessary CPU-GPU synchronization":
  https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- A preview: quiet on all public traces that could be judged (21 runs), of which none shows it beside calls for memory,
  and no run of a script that waits so was recorded yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.05, "medium impact from here: less is often one loss read in each step")

RULE = Rule(
    code="DP606",
    name="device-waited-for",
    family="host",
    kind="time",
    summary="the script waits for the GPU inside each step, and the GPU then idles until the next launch",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    preview=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose to read results back less often where the GPU idles for it."""
    if run.measured.device_kind == "cpu":
        return
    if any("CUDA_LAUNCH_BLOCKING" in facts.debug_switches for facts in run.facts):
        return  # each launch waits for its kernel: another rule says so
    traced = run.measured.share("sync_idle_ns")
    share = min(traced, run.idle_share())
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    if run.allocating_share() >= share / 2:
        return
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"The GPU idles {100 * share:.0f} % of a step because the script waits for it: read results back less "
        "often",
        why="While the script waits it launches nothing, so the GPU runs out of work.",
        changes=[],
        saves=run.bound(
            0.0,
            min(run.unstretched(run.most_share("sync_idle_ns")), run.idle_share()),
            "no more than the idle time of calls that wait for the GPU",
        ),
        confidence="medium" if run.measured.step.basis == "untraced" else "low",
        evidence=[
            Evidence(label="idle while the script waits for the GPU", value=traced, unit="of a traced step").at(
                run.measured.where("sync_idle_ns")
            ),
            *_copies(run),
        ],
        numerics="same",
        fingerprint=RULE.code,
    )


def _copies(run: RunView) -> Iterator[Evidence]:
    """Copies to the host that hold the script, and where the most of them are asked for."""
    back = [
        copy for copy in run.measured.known("copies") or [] if copy.direction == "d2h" and copy.known("blocking_calls")
    ]
    for copy in back:
        share = copy.blocking_calls / max(1, copy.calls)
        yield Evidence(
            label="copies to the host that block the script",
            value=round(share * copy.calls_per_step, 1),
            unit="per rank and step",
        )
    sites = [site for copy in back for site in copy.known("sites") or [] if site.known("blocking_calls")]
    most = max(sites, key=lambda site: site.calls_per_step, default=None)
    if most is not None:
        named = most.known("function") or most.known("module") or most.known("operator")
        if named:
            yield Evidence(label="most of them are issued in", value=named)
