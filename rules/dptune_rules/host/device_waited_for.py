"""The script waits for the GPU inside each step, and the GPU then idles until the next launch.

## What it measures

The larger of two shares of the step, each the mean over all GPUs:

- time in which a GPU is idle while the script is blocked in a call that waits for it, or launches the next operation
  after such a call;
- time for which copies to the host block the script, up to the GPU idle time that the host causes (blocking calls,
  launches, Python). A script that waits has launched nothing ahead, so its next operations find the GPU idle.

If a single GPU waits that long and holds up the others, `late-rank` reports it.

## Why it matters

The host launches kernels ahead of the GPU, so that they run back to back. Where the script reads a value that the GPU
computes, it waits until all launched work is finished. The launch queue is then empty, and the GPU idles until the host
has launched again. `loss.item()`, `print(loss)`, `tensor.cpu()`, `if tensor:`, `tensor.nonzero()`, indexing with a
mask, `torch.cuda.synchronize()` and gradient clipping with `error_if_nonfinite` do so.

## What to change

Keep losses and metrics on the GPU, add them up there, and read them every N steps. Copy values that must be read with
`non_blocking=True`, and read them a step later. Replace shapes that depend on values (`nonzero`, masks) by
`torch.where`. The evidence names the operator and the range around the longest waits, and the function if the trace has
Python stacks, as the detailed window has.

For copies that block the script, confidence is medium: the profiler slows the host, not the GPU that they wait for. For
other waits it is low without untraced steps.

The saving is an upper bound: in each step, the time of the GPU that idles longest. A step cannot get shorter than the
GPU's busy time, nor than the remaining host time. Traced steps have more idle time, because the profiler slows the
host. The bound is therefore limited to the untraced step, minus what the busiest GPU computed.

## When to leave it alone

- The value decides what the step does next: a search, or reinforcement learning.
- The call is the overflow check that a GradScaler makes once a step: bf16 needs no GradScaler.
- `cudaFree` waits, too: where memory calls are half of the wait, `allocator-churn` reports them.

## References

- PyTorch, "Performance Tuning Guide", "Avoid unnecessary CPU-GPU synchronization":
  https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- Tried on public traces: recommendation training on an A100, where 10 copies per step block the script for 12.6 of
  77.4 ms, and the GPU idles for the same time. Not reported on an H200: one value read per step, or one per layer in
  a step that is launch-bound anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.measured import WaitSite
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.05, "medium impact from here: less is often one loss read in each step")

WORTH_NAMING = 0.01  # of a step, for a place where the script waits

RULE = Rule(
    code="DP606",
    name="device-waited-for",
    family="host",
    kind="time",
    summary="the script waits for the GPU inside each step, and the GPU then idles until the next launch",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose to read results back less often where the GPU idles for it."""
    if run.measured.device_kind == "cpu":
        return
    if "CUDA_LAUNCH_BLOCKING" in run.debug_switches():
        return  # each launch waits for its kernel: another rule says so
    idle, held = run.measured.share("sync_idle_ns"), _held(run)
    share = min(max(idle, held), run.idle_share())
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    if run.allocating_share() >= share / 2:
        return
    most = run.most_share("sync_idle_ns")
    title = f"The GPU idles {100 * share:.0f} % of a step because the script waits for it"
    how = "the idle time of calls that wait for the GPU"
    if held > idle:
        most = max(most, held)
        title = (
            f"Copies to the host block the script for {100 * _blocked(run):.0f} % of a step, and the GPU idles "
            f"{100 * run.host_caused_idle_share():.0f} % because of the host"
        )
        how = "time blocked in these copies, or GPU idle time caused by the host, whichever is smaller"
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{title}{_longest(run)}: read results back less often",
        why="While the script waits it launches nothing, so the GPU runs out of work.",
        changes=[],
        saves=run.bound(0.0, min(run.unstretched(most), run.idle_share()), how),
        confidence="medium" if run.measured.step.basis == "untraced" or held > idle else "low",
        evidence=[
            Evidence(label="idle while the script waits for the GPU", value=idle, unit="of a traced step").at(
                run.measured.where("sync_idle_ns")
            ),
            *(
                [Evidence(label="blocked in copies to the host", value=_blocked(run), unit="of a traced step")]
                if held > idle
                else []
            ),
            *_copies(run),
            *_sites(run),
        ],
        numerics="same",
        fingerprint=RULE.code,
    )


def _held(run: RunView) -> float:
    """The share of a step for which copies to the host block the script, and the GPU idles for the host's sake."""
    return min(_blocked(run), run.host_caused_idle_share())


def _blocked(run: RunView) -> float:
    copies = run.measured.known("copies") or []
    held_ns: int = sum(copy.known("held_ns") or 0 for copy in copies if copy.direction == "d2h")
    return held_ns / run.measured.account.window_ns


def _copies(run: RunView) -> Iterator[Evidence]:
    """Copies to the host that block the script."""
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


def _sites(run: RunView) -> Iterator[Evidence]:
    """Where the script waits longest."""
    for site in run.measured.known("wait_sites") or []:
        if site.share >= WORTH_NAMING:
            unit = f"of a {'detailed' if site.window == 'detailed' else 'traced'} step"
            yield Evidence(label=f"blocked in {site.call}, {_place(site)}", value=site.share, unit=unit, rank=site.rank)


def _longest(run: RunView) -> str:
    """The place where the script waits longest, for the title."""
    first = next(iter(run.measured.known("wait_sites") or []), None)
    return f" (longest: {_place(first)})" if first is not None and first.share >= WORTH_NAMING else ""


def _place(site: WaitSite) -> str:
    around = site.known("function") or site.known("annotation") or site.known("module")
    operator = site.known("operator")
    named = [f"`{name}`" for name in (operator, around) if name]
    return " in ".join(named) or "outside any operator"
