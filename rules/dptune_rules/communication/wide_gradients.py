"""An fp32 all-reduce cannot be hidden behind backward on this link; 16-bit compression would halve it.

## What it measures

The part of a step in which DistributedDataParallel's all-reduces of gradients transfer data and nothing is computed,
with no communication hook registered and all gradients of type float32. Metrics, buffers, barriers and FSDP's
all-gathers are not counted, nor is the wait for a late rank. Where the link is known, time = latency + bytes /
bandwidth gives the part of the all-reduces' time that grows with their bytes.

## Why it matters

Where bandwidth limits the all-reduces, half the bytes take half the time. Start-up times stay the same: for many small
messages little is saved, see `bucket-size`.

## What to change

Use `register_comm_hook` with `bf16_compress_hook` or `fp16_compress_hook`: gradients are cast before the all-reduce,
and back after it. The weights, and the optimizer's arithmetic, stay 32 bits wide. bf16 has the range of float32 and 8
bits of precision. fp16 has 11 bits, and overflows beyond 65,504: torch casts before it divides by the number of ranks,
and under a GradScaler gradients are tens of thousands of times as large. Use bf16 there. With other backends than NCCL,
torch rejects its bf16 hook: wrap it in your own function, as `dptune verify` does.

The hook with the larger predicted saving is proposed, casts included; where both are equal, bf16. Where the predicted
interval includes zero, nothing is proposed. Where the step model misses the recorded steps by too much to predict, bf16
is proposed if half of the exposed communication's bandwidth share, minus the casts, reaches the threshold. No saving is
larger than the exposed communication of gradients. Without a step model nothing is proposed: on a fast link the casts
take longer than the transfer time that they save.

## When to leave it alone

- The communication is already hidden: fewer bytes then change nothing.
- Latency dominates: many small buckets. See `bucket-size`.
- The link is fast compared with the casts: two ranks on one host communicate through memory.
- Training that is known to be sensitive to 16-bit arithmetic. Sums over very many ranks lose more precision.

## References

- torch.distributed.algorithms.ddp_comm_hooks: https://pytorch.org/docs/stable/ddp_comm_hooks.html
- Measured with two gloo ranks over a link of 200 Mbit/s, 2.4 MB of gradients: the fp16 hook ran 1.57 times as fast,
  bf16 1.64 times.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Change, Evidence, Location, Saving
from dptune.measured import CommunicationFigures, Missing, digits
from dptune.rule import Rule, RunView, Threshold

HOOKS = ("bf16", "fp16")  # the first where both save the same, as on GPUs

EXPOSED_SHARE = Threshold(
    "exposed_share", 0.05, "medium impact from here: less exposed communication is seldom worth 16 bits"
)
WORTH_SHARE = Threshold("worth_share", 0.05, "medium impact from here: less does not justify lower precision")

BANDWIDTH_SHARE = Threshold(
    "bandwidth_share",
    0.5,
    "where latency takes more than half of the time, half the bytes save less than a quarter of it",
)

# What a hook takes where the replay cannot tell: both casts of each byte of 32-bit gradients (torch 2.13, one core,
# buckets of 1 to 16 MB: 0.15 to 0.33 ns to bf16 and back; ranks share the memory's bandwidth, so more than that), and
# Python for each bucket (torch 2.13, gloo: 66 to 192 us).
CASTS_NS, HOOK_NS = 0.5, 100e3

NO_LINK = "the latency and bandwidth of all-reduces are not known: measure them with `dptune links`"

RULE = Rule(
    code="DP103",
    name="wide-gradients",
    family="communication",
    kind="time",
    summary="fp32 all-reduce cannot be hidden behind backward on this link; 16-bit compression would halve it",
    since="0.1",
    thresholds=(EXPOSED_SHARE, WORTH_SHARE, BANDWIDTH_SHARE),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose the hook that is predicted to save most, where gradients are exposed and bandwidth takes their time."""
    if run.measured.known("world_size") == 1:
        return
    wrapped = run.any_facts("ddp", "ddp.comm_hook").ddp
    if not wrapped or any(ddp.comm_hook for ddp in wrapped):
        return
    if any(ddp.gradient_dtypes and ddp.gradient_dtypes != ["float32"] for ddp in wrapped):
        return
    account = run.measured.account
    rows = _reduced(run)
    exposed = min(sum(row.exposed_transfer_ns for row in rows), account.exposed_without_waiting_ns) / account.window_ns
    if exposed < run.limit(EXPOSED_SHARE):
        return
    sizes = _bucket_sizes(run, rows)
    bandwidth = _bandwidth_share(run, sizes)
    if bandwidth is not None and bandwidth < run.limit(BANDWIDTH_SHARE):
        return
    each = [
        [Change(knob="ddp.comm_hook", now="none", then=hook, at=Location.parse(ddp.where)) for ddp in wrapped]
        for hook in HOOKS[: None if run.measured.known("device_kind") == "cpu" else 1]
    ]
    try:
        changes, saves = max(
            ((hook_changes, run.predict(hook_changes)) for hook_changes in each),
            key=lambda trial: trial[1].central_share or 0.0,
        )
    except Missing:
        changes, saves = each[0], run.ceiling(each[0])
        if bandwidth is None:
            raise Missing(NO_LINK) from None
        gain = exposed * bandwidth / 2 - _casting(run, sizes)
        share, then = min(gain, saves.high_share), "16 bits halve the bytes"
        saves = _within(run, saves, exposed)
    else:
        if saves.low_share <= 0:
            return  # it may as well save nothing
        saves = _within(run, saves, exposed)
        share = saves.central_share or 0.0
        then = f"with 16 bits a step takes {saves.part_in_words.removeprefix('about ')} less time"
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    gradient_bytes = sum(ddp.gradient_bytes or 0 for ddp in wrapped)
    size = f"{digits(gradient_bytes / 2**20)} MiB of gradients" if gradient_bytes else "Gradients"
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{size} are all-reduced in fp32, and {100 * exposed:.0f} % of a step waits for them: {then}",
        why="The link cannot carry the gradients while the backward pass computes. In 16 bits they are half as large.",
        changes=changes,
        saves=saves,
        confidence="medium" if saves.basis == "replayed" else "low",
        evidence=[
            Evidence(label="exposed communication of gradients", value=exposed, unit="of a step").at(
                max(rows, key=lambda collective: collective.exposed_transfer_ns).known("longest")
            ),
            Evidence(
                label="all-reduces of gradients",
                value=sum(one.communication_ns for one in rows) / account.window_ns,
                unit="of a traced step",
            ),
            *(
                []
                if bandwidth is None
                else [Evidence(label="share of their time due to bandwidth, not latency", value=bandwidth)]
            ),
            Evidence(label="gradients", value=gradient_bytes, unit="bytes"),
        ],
        numerics="changes",
        watch="Gradients are rounded to 16 bits before they are added: compare the loss over the first hundreds of "
        "steps.",
        fingerprint=f"{RULE.code}:ddp.comm_hook:{wrapped[0].module}",
    )


def _reduced(run: RunView) -> list[CommunicationFigures]:
    """The all-reduces of gradients; raises Missing where the traces do not show which those are."""
    rows = [row for row in run.measured.overlap.rows if row.kind == "all_reduce"]
    if rows and all(collective.known("purpose") is None for collective in rows):
        raise Missing("the traces do not show which all-reduces carry gradients")
    return [collective for collective in rows if collective.known("purpose") == "gradients"]


def _bucket_sizes(run: RunView, rows: list[CommunicationFigures]) -> list[float]:
    """Bytes of each all-reduce of gradients in a step."""
    wrapped = run.any_facts("ddp").ddp
    known = [size for ddp in wrapped for size in ddp.rebuilt_bucket_sizes or ddp.bucket_sizes]
    if known:
        return [float(size) for size in known]
    steps = sum(len(device.steps) for rank in run.measured.ranks for device in rank.devices)
    calls = max(1, round(sum(row.calls for row in rows) / max(1, steps)))
    return [sum(ddp.gradient_bytes or 0 for ddp in wrapped) / calls] * calls


def _bandwidth_share(run: RunView, sizes: list[float]) -> float | None:
    """The part of the time of these all-reduces that grows with their bytes; None where no link is known."""
    links = [candidate for candidate in run.measured.known("links") or [] if candidate.kind == "all_reduce"]
    links = [
        candidate
        for candidate in links
        if candidate.known("alpha_us") is not None and candidate.known("algbw_gb_per_s")
    ]
    if not links or not sum(sizes):
        return None
    link = max(links, key=lambda one: (one.basis == "sweep", len(one.ranks)))
    latency_us: float = len(sizes) * max(0.0, link.alpha_us)
    transfer_us: float = sum(sizes) / link.algbw_gb_per_s / 1e3
    return transfer_us / (latency_us + transfer_us)


def _casting(run: RunView, sizes: list[float]) -> float:
    """The share of a step that the hook takes on a CPU: a cast each way, and Python for each bucket."""
    if run.measured.device_kind != "cpu":
        return 0.0
    return (sum(sizes) * CASTS_NS + len(sizes) * HOOK_NS) / run.measured.step.time_ns


def _within(run: RunView, saves: Saving, exposed: float) -> Saving:
    """The saving, but no more than the exposed communication of gradients: what is hidden takes no time of the step."""
    if saves.high_share <= exposed:
        return saves
    if saves.basis == "bound":
        bound = run.bound(0.0, exposed, "the exposed communication of gradients")
        return bound.without_prediction(saves.unpredicted or "")
    low = min(saves.low_share, exposed)
    likely = None if saves.is_range else min(saves.predicted_share or 0.0, exposed)
    return run.narrowed(saves, low, likely, exposed, "up to the exposed communication of gradients")
