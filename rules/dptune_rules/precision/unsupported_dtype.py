"""The script computes in a dtype that this device does not support in hardware.

## What it measures

On a CPU: how long a small matrix product and a small convolution take in the 16-bit dtype of the script and in fp32,
timed once on the recorded machine, and the time of these operators in the steps. The cost is what they take beyond the
same operators in fp32. Attention is counted as matrix products.

On NVIDIA GPUs: whether the GPU of any rank lacks hardware support for the dtype. bf16 needs compute capability 8.0
(Ampere), fp8 needs 8.9 (Ada).

## Why it matters

Without instructions for a dtype, each operator converts its inputs, computes in fp32 and rounds the result, or falls
back to a reference implementation without vector instructions. Measured with torch 2.13 on one core, with oneDNN
limited to fewer instructions (`ONEDNN_MAX_CPU_ISA`): with AVX-512 but without AVX512-FP16, fp16 autocast made training
steps 11 to 28 times as long (encoder, MLP); with AVX2 only, bf16 autocast 11 to 21 times. Instructions alone do not
decide: on a CPU with AVX512-FP16, matrix products in fp16 were as fast as in fp32, and a convolutional network took 400
times as long, because the gradients of convolutions have no fast implementation there.

## What to change

Compute in fp32: remove `torch.autocast`, or pass `enabled=False`; in a Hugging Face or Lightning trainer drop
`fp16=True`, `bf16=True` or `precision="16-mixed"`. Do not convert the model by `.half()` or `.to(torch.bfloat16)`. On a
CPU with AVX512-BF16 or AMX, bf16 is worth a try.

On a GPU of compute capability 7.x use fp16 autocast with a GradScaler: its tensor cores compute in fp16.

## When to leave it alone

- A short test on a CPU of a script that trains on GPUs.
- Memory is short, and 16-bit activations are what makes the model fit.

## References

- PyTorch, "Automatic Mixed Precision package": https://pytorch.org/docs/stable/amp.html
- oneDNN, "Data types", with the instructions that each needs:
  https://uxlfoundation.github.io/oneDNN/dev_guide_data_types.html
- CUDA C++ Programming Guide, "Compute Capabilities": https://docs.nvidia.com/cuda/cuda-c-programming-guide/
- Supported dtypes took 0.7 to 1.8 times as long as fp32 at sizes of 128 to 1,024, unsupported ones 2.4 to 90 times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dptune.advice import Advice, Change, Evidence, Location, Saving
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold

SLOWER = Threshold("slower", 2.0, "times as long as in fp32; supported dtypes took at most 1.8 times as long")
WORTH_SHARE = Threshold("worth_share", 0.05, "medium impact from here: less is lost in the difference between two runs")

_SHORT = {"float16": "fp16", "bfloat16": "bf16"}
_COUNTED_AS = {"matrix product": ("matrix product", "attention"), "convolution": ("convolution",)}
_SINCE = {"bfloat16": (8, 0), "float8": (8, 9)}  # compute capability

RULE = Rule(
    code="DP405",
    name="unsupported-dtype",
    family="precision",
    kind="time",
    summary="the script computes in a dtype that this device does not support in hardware",
    since="0.1",
    thresholds=(SLOWER, WORTH_SHARE),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose fp32 where a CPU is slower in the script's dtype, and fp16 where a GPU has no bf16."""
    if run.measured.device_kind == "cpu":
        yield from _on_cpu(run, run.any_facts())
    elif run.measured.device_kind == "cuda":
        yield from _on_gpu(run)


def _on_cpu(run: RunView, facts: Any) -> Iterator[Advice]:
    used = _dtypes(facts, "cpu") & _SHORT.keys()
    if not used:
        return
    if not facts.dtype_speeds:
        raise Missing(f"the speed of this CPU in {' and '.join(sorted(used))} was not measured")
    slow = [
        dtype_speed
        for dtype_speed in facts.dtype_speeds
        if dtype_speed.dtype in used and dtype_speed.took_ns >= run.limit(SLOWER) * max(1, dtype_speed.float32_ns)
    ]
    if not slow:
        return
    shares = run.measured.matmul.operator_shares
    taken = {speed.operator: sum(shares.get(kind, 0.0) for kind in _COUNTED_AS[speed.operator]) for speed in slow}
    slow = [speed for speed in slow if taken[speed.operator]]
    lost = min(1.0, sum(taken[speed.operator] * (1 - speed.float32_ns / speed.took_ns) for speed in slow))
    impact = run.impact(lost, WORTH_SHARE)
    if impact is None:
        return
    worst = max(slow, key=lambda one: taken[one.operator] * (1 - one.float32_ns / one.took_ns))
    dtype, times = _SHORT[worst.dtype], worst.took_ns / worst.float32_ns
    by_autocast = facts.autocast == f"cpu:{worst.dtype}"
    changes = [_without_autocast(dtype, facts.autocast_where)] if by_autocast else []
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{dtype} is slow on this CPU: {worst.operator}s take {times:.{0 if times >= 10 else 1}f}x as long as in "
        f"fp32, and {100 * min(1.0, taken[worst.operator]):.0f} % of the step",
        why=f"torch has no fast {dtype} implementation for this CPU.",
        changes=changes,
        saves=_saving(run, dtype, lost, *_between(run, slow, taken, shares.get("copy", 0.0))),
        confidence="high",
        evidence=[
            *_speeds(slow),
            *(
                Evidence(label=f"{operator}s", value=share, unit="of a step").at(run.measured.where("compute_ns"))
                for operator, share in taken.items()
                if share
            ),
            *_instructions(facts),
        ],
        numerics="changes",
        watch="fp32 is more precise: results differ by rounding."
        if by_autocast
        else f"Keep the model in fp32: its parameters are {dtype} (.half() or .to(torch.{worst.dtype})).",
        fingerprint=f"{RULE.code}:precision.autocast",
    )


def _saving(run: RunView, dtype: str, likely: float, low: float, high: float) -> Saving:
    """Predicted by the measured speeds where the step time holds and something is saved at any size."""
    how = f"the {dtype} operators and casts, less their time in fp32; at least half the measured speedup"
    if not low or not run.times_hold:
        return run.bound(low, high, how)
    return run.timed(low, likely, high, how, saved_part=(1.0, 1.0))


def _between(run: RunView, slow: Sequence[Any], taken: dict[str, float], copies: float) -> tuple[float, float]:
    """At other sizes the operators may be slower than in fp32 by half as much as at the size that was timed, or more.

    At most the operators and all copies are saved, but for what the operators take in fp32.
    """
    left = {speed.operator: taken[speed.operator] * speed.float32_ns / speed.took_ns for speed in slow}
    least = sum(max(0.0, taken[operator] - 2 * share) for operator, share in left.items())
    most = min(run.unstretched(sum(taken.values()) + copies), 1 - min(1.0, sum(left.values()) / 4))
    return min(least, most), most


def _without_autocast(dtype: str, where: str | None) -> Change:
    return Change(
        knob="precision.autocast",
        now=dtype,
        then="off",
        at=Location.parse(where),
        snippet="with torch.autocast(device.type, enabled=False):  # or without autocast",
    )


def _on_gpu(run: RunView) -> Iterator[Advice]:
    versions = {shown: _version(capability) for shown, (capability, _) in run.gpus().items() if capability}
    if versions and min(versions.values()) >= max(_SINCE.values()):
        return
    facts = run.any_facts("autocast")
    used = _dtypes(facts, "cuda")
    since = next(
        ((name, least) for name, least in _SINCE.items() if any(name in used_dtype for used_dtype in used)), None
    )
    if since is None:
        return
    if not versions:
        run.any_facts("device")
        return
    name, least = since
    older = {shown: version for shown, version in versions.items() if version < least}
    if not older:
        return
    share = run.unstretched(run.measured.share("compute_ns"))
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    dtype, has_fp16 = _SHORT.get(name, "fp8"), min(older.values()) >= (7, 0)
    capability = " and ".join(".".join(map(str, version)) for version in sorted({*older.values()}))
    which = "this GPU" if len(versions) == 1 else " and ".join(older)
    waited_for = " Ranks on newer GPUs wait for it." if len(older) < len(versions) else ""
    changes = []
    if facts.autocast == "cuda:bfloat16":
        then = "fp16" if has_fp16 else "off"
        changes = [Change(knob="precision.autocast", now=dtype, then=then, at=Location.parse(facts.autocast_where))]
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{dtype} has no hardware support on {which} (compute capability {capability}; it needs "
        f"{'.'.join(map(str, least))})",
        why=f"{'This GPU emulates' if len(older) == 1 else 'These GPUs emulate'} {dtype}: no tensor cores, and "
        f"conversions around each operation.{waited_for}",
        changes=changes,
        saves=run.bound(0.0, share, "the GPU's compute time"),
        confidence="medium",
        evidence=[
            Evidence(label="compute capability", value=capability),
            Evidence(label="compute", value=share, unit="of a step").at(run.measured.where("compute_ns")),
        ],
        numerics="changes",
        watch="fp16 overflows beyond 65,504: use a GradScaler, and compare the loss over the first few hundred steps."
        if has_fp16
        else "fp32 takes more memory: check that the model still fits.",
        fingerprint=f"{RULE.code}:precision.autocast",
    )


def _version(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


def _dtypes(facts: Any, device: str) -> set[str]:
    """Those of autocast on that device, and of parameters."""
    kind, _, autocast = (facts.autocast or "").partition(":")
    found = {autocast} if kind == device else set()
    return found.union(
        *(optimizer.dtypes for optimizer in facts.optimizers), *(ddp.gradient_dtypes for ddp in facts.ddp)
    )


def _speeds(slow: Sequence[Any]) -> Iterator[Evidence]:
    for speed in slow:
        yield Evidence(
            label=f"{speed.operator} in {_SHORT[speed.dtype]}", value=speed.took_ns / speed.float32_ns, unit="x fp32"
        )


def _instructions(facts: Any) -> Iterator[Evidence]:
    if facts.device and facts.device.name:
        found = ", ".join(facts.device.instructions) or "none"
        yield Evidence(label="16-bit instructions", value=f"{found} ({facts.device.name})")
