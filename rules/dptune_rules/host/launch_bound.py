"""The GPU runs out of work, because the host cannot launch its kernels as fast as it computes them.

## What it measures

Time in which a GPU is idle while the host prepares and launches the next operation, as a share of the step, the mean of
all GPUs. Of one that alone waits so long, and holds up the others, `late-rank` speaks.

## Why it costs time

Calling an operator takes the host some microseconds whatever it computes. A kernel that is shorter than that is over
before the next one is launched, and with many of them the GPU waits after each.

## What to change

In the order of effort:

- more work in each kernel: a larger batch, where memory has room (`small-batch` says what goes with it);
- fewer kernels: `torch.compile(model)`, which fuses pointwise operations; `foreach` or `fused` optimizers;
- launching all of them at once: `torch.compile(model, mode="reduce-overhead")`, which captures CUDA graphs, where
  shapes stay the same.

The step saves at most that idle time, in each step that of the GPU that waits longest. Traced steps have more of it
than others, for the profiler slows the host and not the GPU: no more of it is counted than a step without the profiler
has beside what the busiest GPU computed.

## When to leave it alone

- The host is held up by something else: calls that allocate memory, waiting for the device, Python of the script. Those
  are told apart, and where the allocator's calls are half of it, its own rule speaks.
- `CUDA_LAUNCH_BLOCKING` is set, so that each launch waits for its kernel: `debug-switches` speaks of that.
- A single step of inference, where latency is what counts.

## References

- PyTorch, "Accelerating PyTorch with CUDA Graphs": https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/
- torch.compile, modes: https://pytorch.org/docs/stable/generated/torch.compile.html
- Calibrated on public traces: it speaks of ResNet-18 on two V100 (84 % of a step), ResNet-50 on one (18 to 24 %) and
  small loops (54 and 62 %); it is quiet on the same ResNet-50 where it waits for batches (5 %), and on training of a
  GPT on eight H100 (3 %).
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.15, "traced steps of healthy runs have up to 10 %, most of it the profiler's")

RULE = Rule(
    code="DP601",
    name="launch-bound",
    family="host",
    kind="time",
    summary="the GPU runs out of work, because the host cannot launch its kernels as fast as it computes them",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose fewer and larger kernels where the GPU waits for them to be launched."""
    if run.measured.device_kind == "cpu":
        return
    if any("CUDA_LAUNCH_BLOCKING" in facts.debug_switches for facts in run.facts):
        return  # each launch waits for its kernel: another rule says so
    traced = run.measured.share("launch_idle_ns")
    share = min(traced, run.idle_share())
    severity = run.severity(share, WORTH_SHARE)
    if severity is None:
        return
    if run.allocating_share() >= share / 2:
        return
    kernels = run.measured.kernels
    compiled = bool(run.facts and run.facts[0].compiled)
    remedy = "capture CUDA graphs" if compiled else "compile the model"
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        severity=severity,
        title=f"The GPU waits {100 * share:.0f} % of a step for kernels to be launched, {kernels.per_step:.0f} of "
        f"them in each step: {remedy}, or give each of them more to do",
        why="Launching a kernel takes the host longer than computing it takes the GPU.",
        changes=[],
        saves=run.bound(
            0.0,
            min(run.unstretched(run.most_share("launch_idle_ns")), run.idle_share()),
            "of launching alone: what compiling fuses may save of the kernels themselves comes on top",
        ),
        confidence="medium" if run.measured.step.basis == "unprofiled" else "low",
        evidence=[
            Evidence(label="idle while the host launches", value=traced, unit="of a traced step").at(
                run.measured.where("launch_idle_ns")
            ),
            Evidence(label="kernels", value=round(kernels.per_step, 1), unit="per rank and step"),
            Evidence(label="median kernel", value=kernels.median_ns / 1e3, unit="us"),
            *_short(run),
        ],
        numerics="same",
        fingerprint=RULE.code,
    )


def _short(run: RunView) -> Iterator[Evidence]:
    short = run.measured.kernels.known("short_share")
    if short is not None:
        yield Evidence(label="shorter than 10 us", value=short, unit="of the kernels")
