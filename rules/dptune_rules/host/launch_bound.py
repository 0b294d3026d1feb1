"""Launch-bound: the CPU cannot launch kernels fast enough to keep the GPU busy.

## What it measures

Time in which a GPU is idle while the host prepares and launches the next operation, as a share of the step: the mean
over all GPUs. If a single GPU waits that long and holds up the others, `late-rank` reports it.

## Why it matters

Each operator call costs the host some microseconds, whatever it computes. A kernel that is shorter than that ends
before the next one is launched, so with many short kernels the GPU waits after each.

## What to change

First fix the cause that the evidence names. An optimizer that loops over its tensors (a quarter of that idle time
or more): `foreach` or `fused`. One kernel that accounts for most of the wait: the operators that the host runs before
launching it; the evidence lists them with their calls per step. Where neither dominates, in the order of effort:

- more work in each kernel: a larger batch, where memory has room (see `small-batch` for what else changes);
- fewer kernels: `torch.compile(model)`, which fuses pointwise operations; `foreach` or `fused` optimizers;
- one launch for all kernels: `torch.compile(model, mode="reduce-overhead")`, which captures CUDA graphs, where shapes
  stay the same. For a model that is already compiled, only this is recommended.

The saving is an upper bound: that idle time, in each step on the GPU that waits longest. Traced steps have more of it,
because the profiler slows the host and not the GPU. The bound is therefore limited to the untraced step, minus what the
busiest GPU computed.

## When to leave it alone

- The host is held up by something else: calls that allocate memory, waiting for the device, Python code of the script.
  These are measured separately; where the allocator's calls are half of the time, `allocator-churn` reports them.
- `CUDA_LAUNCH_BLOCKING` is set, so that each launch waits for its kernel: see `debug-switches`.
- A single step of inference, where latency is what counts.
- The profiler causes it, at most 10 us for each event that the host records: without untraced steps, confidence is
  low unless launching leaves the GPU idle beyond that. If no untraced steps were timed, and the first traced steps
  started with work queued and waited for no launch while all others do, the host runs ahead when it is not profiled.
  The rule is then skipped, with this reason.

## References

- PyTorch, "Accelerating PyTorch with CUDA Graphs": https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/
- torch.compile, modes: https://pytorch.org/docs/stable/generated/torch.compile.html
- Calibrated on public traces: findings for ResNet-18 on two V100 (84 % of a step), ResNet-50 on one (18 to 24 %) and
  small loops (54 and 62 %); none for the same ResNet-50 where it waits for batches (5 %), nor for training of a GPT on
  eight H100 (3 %).
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.measured import IdlePart, LaunchIdleFigures, Missing, OptimizerLaunches, by_profiler, short_name
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold(
    "worth_share", 0.15, "traced steps of healthy runs have up to 10 %, most of it caused by the profiler"
)

ONE_KERNEL_SHARE = 0.5  # of the time waited for launches: then it is about that kernel, not about launching in general
LOOP_SHARE = 0.25  # of the time waited for launches: then the optimizer is the first thing to change

RULE = Rule(
    code="DP601",
    name="launch-bound",
    family="host",
    kind="time",
    summary="the CPU cannot launch kernels fast enough to keep the GPU busy",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose fewer and larger kernels where the GPU waits for them to be launched."""
    if run.measured.device_kind == "cpu":
        return
    if "CUDA_LAUNCH_BLOCKING" in run.debug_switches():
        return  # each launch waits for its kernel: another rule says so
    traced = run.measured.share("launch_idle_ns")
    share = min(traced, run.idle_share())
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    if run.allocating_share() >= share / 2:
        return
    waited = run.measured.known("launch_idle")
    queued = waited.known("queued") if waited else None
    if queued is not None and run.measured.step.basis == "traced":
        raise Missing(by_profiler(queued))
    kernels = run.measured.kernels
    beyond = waited.unprofiled_share if waited else 0.0
    cause, remedy = _cause(waited), _remedy(run, waited)
    says = f"{cause}. {remedy}" if cause else f"{remedy[0].lower()}{remedy[1:]}"
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"The GPU waits {100 * share:.0f} % of a step for kernel launches ({kernels.per_step:,.0f} kernels per "
        f"step): {says}",
        why="The host takes longer to launch a kernel than the GPU takes to run it.",
        changes=[],
        remedy=f"{remedy}.",
        saves=run.bound(
            0.0,
            min(run.unstretched(run.most_share("launch_idle_ns")), run.idle_share()),
            "GPU idle time while launching; fusion by torch.compile can shorten the kernels as well",
        ),
        confidence="medium" if run.measured.step.basis == "untraced" or beyond >= run.limit(WORTH_SHARE) else "low",
        evidence=[
            Evidence(label="idle while the host launches", value=traced, unit="of a traced step").at(
                run.measured.where("launch_idle_ns")
            ),
            *(_waited(waited) if waited else ()),
            *(_beyond_profiler(run, beyond)),
            Evidence(label="kernels", value=round(kernels.per_step, 1), unit="per rank and step"),
            Evidence(label="median kernel", value=kernels.median_ns / 1e3, unit="us"),
            *_short(run),
        ],
        numerics="same",
        fingerprint=RULE.code,
    )


def _cause(waited: LaunchIdleFigures | None) -> str:
    """What most of the time is waited for; empty where it is no single thing."""
    optimizer = waited.known("optimizer") if waited else None
    if optimizer is not None and _loops(optimizer):
        zeroing = f", {optimizer.zeroing_per_step:,.0f} of them in zero_grad" if optimizer.zeroing_per_step else ""
        return (
            f"{100 * optimizer.idle_share:.0f} % of that time is before launches of {optimizer.name}, which makes "
            f"{optimizer.per_step:,.0f} of {optimizer.of_per_step:,.0f} launches, one "
            f"tensor at a time{zeroing}"
        )
    first = _one_kernel(waited)
    if waited is not None and first is not None:
        busiest = next(iter(waited.operators), None)
        host = f". Busiest host operator: {_often(busiest)}" if busiest is not None else ""
        return f"{100 * first.share:.0f} % of that time is before one kernel, `{short_name(first.name)}`{host}"
    return ""


def _one_kernel(waited: LaunchIdleFigures | None) -> IdlePart | None:
    """The kernel for whose launch most of the time is waited."""
    first = next(iter(waited.operations), None) if waited else None
    return first if first is not None and first.share >= ONE_KERNEL_SHARE else None


def _remedy(run: RunView, waited: LaunchIdleFigures | None) -> str:
    """What to do about what most of the time is waited for, without its full stop."""
    optimizer = waited.known("optimizer") if waited else None
    if optimizer is not None and _loops(optimizer):
        zeroes = ", and set_to_none=True to zero_grad" if optimizer.zeroing_per_step else ""
        return f"Pass foreach=True or fused=True{zeroes}"
    if (first := _one_kernel(waited)) is not None:
        return f"Find out what the script does before the launch of `{short_name(first.name)}`"
    compiled = bool(run.facts and run.facts[0].compiled) or bool(waited and waited.compiled)
    return f"{'Capture CUDA graphs' if compiled else 'Compile the model'}, or give each kernel more to do"


def _loops(optimizer: OptimizerLaunches) -> bool:
    return optimizer.for_each_tensor and optimizer.idle_share >= LOOP_SHARE


def _often(operator: IdlePart) -> str:
    return (
        f"`{operator.name}` ({operator.per_step:,.0f} {'call' if round(operator.per_step) == 1 else 'calls'} per step)"
    )


def _waited(waited: LaunchIdleFigures) -> Iterator[Evidence]:
    """Of the time waited for launches: what waited, what the host ran, in which phase, and the optimizer's launches."""
    unit = "of launch-bound idle time"
    for operation in waited.operations[:2]:
        yield Evidence(label=f"before `{short_name(operation.name)}`", value=operation.share, unit=unit)
    for operator in waited.operators[:2]:
        yield Evidence(label=f"while the host runs {_often(operator)}", value=operator.share, unit=unit)
    for phase in (waited.known("phases") or [])[:1]:
        yield Evidence(label=f"before work of the {phase.name} phase", value=phase.share, unit=unit)
    optimizer = waited.known("optimizer")
    if optimizer is not None:
        each = "one tensor at a time" if optimizer.for_each_tensor else "foreach or fused"
        yield Evidence(
            label=f"{optimizer.name} launches ({each})",
            value=round(optimizer.per_step),
            unit=f"of {optimizer.of_per_step:,.0f} launches per step",
        )


def _beyond_profiler(run: RunView, share: float) -> Iterator[Evidence]:
    """What is left of the idle time if the profiler takes as much as it can, of a trace without untraced steps."""
    if run.measured.step.basis == "traced" and share > 0:
        yield Evidence(
            label="lower bound of launch-bound idle time, less 10 us of profiler overhead per event",
            value=share,
            unit="of a step",
        )


def _short(run: RunView) -> Iterator[Evidence]:
    short = run.measured.kernels.known("short_share")
    if short is not None:
        yield Evidence(label="shorter than 10 us", value=short, unit="of the kernels")
