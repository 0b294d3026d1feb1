"""DDP broadcasts buffers before every forward pass although ranks could keep their own.

## What it measures

The larger of two shares of the step, where a DistributedDataParallel module has buffers and broadcasts them
(`broadcast_buffers`, on by default):

- exposed broadcasts in forward passes;
- the host's time to flatten the buffers, send them and copy them back one by one: on a CPU all of it, on a GPU up to
  the idle time that the host causes (blocking calls, launches, Python).

## Why it matters

Before each forward pass DDP sends rank 0's buffers to all other ranks: mostly the running statistics of batch norm. The
forward pass waits for them, so nothing overlaps the broadcast. A ResNet-50 has 159 such buffers: on an
A100 the transfer took 0.04 ms, but the host was busy with them for 38 ms of a 220 ms step. With gradient accumulation
this happens in every micro-batch, unless the micro-batch before it ran under `no_sync`.

## What to change

Pass `broadcast_buffers=False` to DistributedDataParallel (`ddp_broadcast_buffers=False` in transformers'
`TrainingArguments`, `DistributedDataParallelKwargs` in Accelerate, `DDPStrategy` in Lightning). Since torch 2.13 it is
deprecated: use `forward_sync_buffers=False`, which still sends the buffers once at the start. Each rank then keeps
statistics of its own samples; a checkpoint contains rank 0's, as before. Constants registered as buffers (masks,
position tables) are the same on all ranks anyway: name them in `_ddp_params_and_buffers_to_ignore`.

On a CPU the saving is predicted from the time of these broadcasts in untraced steps, for buffers of `least_bytes` or
more. Lower end: 0.8 times the time on the rank that arrives last in each step, which waits for no other. Upper end:
twice the share of the traced step, because cores that compute also send and copy the buffers.

## When to leave it alone

- Batches per rank are small, so the statistics of a single rank are noisy: use SyncBatchNorm.
- Buffers change on rank 0 only, and the other ranks need the new values.

## References

- DistributedDataParallel, `broadcast_buffers`:
  https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- Li et al. 2020, "PyTorch Distributed", section 4.1 on buffers: https://arxiv.org/abs/2006.15704
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import HOST_IDLE, Missing, digits
from dptune.rule import DdpFacts, Rule, RunView, Threshold
from dptune_rules.communication.ddp_argument import change
from dptune_rules.known import passed_at

# Times the time that passes wait for them on a CPU: cores that compute also send and copy them. Without 25 and 28 MiB
# of buffers, two ranks on two cores saved 32 and 21 % of a step, with 16 and 19 % of it in sending them.
BESIDES = 2.0
LEAST_SAVED = 0.8  # of the time of broadcasts: what follows may take longer, as the next collective waits then
TIMES = 1.5  # the bytes of the buffers: what is more is not theirs

LEAST_BYTES = Threshold(
    "least_bytes",
    2**16,
    "below it the time is latency and waiting for other ranks, which an all-reduce would have as "
    "well: 656 bytes of a small batch norm took 5 % of a step of 8 ms, so the impact is low",
)
WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

RULE = Rule(
    code="DP104",
    name="broadcast-buffers",
    family="communication",
    kind="time",
    summary="DDP broadcasts buffers before every forward pass although ranks could keep their own",
    since="0.1",
    thresholds=(WORTH_SHARE, LEAST_BYTES),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose to keep buffers where sending them holds up forward passes."""
    sending = [ddp for ddp in run.any_facts("ddp").ddp if ddp.broadcast_buffers and ddp.buffer_bytes]
    if not sending:
        return
    rows = [row for row in run.measured.overlap.rows if row.kind == "broadcast" and row.known("phase") == "forward"]
    exposed, hosted = sum(map(run.held_up_share, rows)), _hosted(run)
    share = max(exposed, hosted)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    if _sent(run) > TIMES * sum(ddp.buffer_bytes or 0 for ddp in sending) * _passes(run):
        raise Missing("the script has broadcasts of its own, so the time of DDP's buffer broadcasts is unknown")
    on_cpu = run.measured.device_kind == "cpu"
    most = "the exposed broadcasts"
    if hosted > exposed:
        most = "host time of the broadcasts, or GPU idle time caused by the host, whichever is smaller"
        most = "flattening, sending and copying the buffers" if on_cpu else most
    saved = max(run.most_exposed(rows), min(hosted, run.idle_share()))
    if on_cpu:  # the rank that waits longest copies as well
        times = BESIDES if sum(ddp.buffer_bytes or 0 for ddp in sending) >= run.limit(LEAST_BYTES) else 1.0
        saved = min(1.0, times * max(run.most_exposed(rows), hosted + run.most_exposed(rows) - exposed))
    changes = [change(run, ddp, "broadcast_buffers", True, False) for ddp in sending]
    sent = sum(ddp.buffer_bytes or 0 for ddp in sending)
    saves = run.saving(changes, run.bound(0.0, saved, most))
    if saves.basis == "bound" and sent >= run.limit(LEAST_BYTES):
        saves = _timed(run, saved) or saves
    if sent < run.limit(LEAST_BYTES) and (on_cpu or exposed >= hosted):
        impact = "low"
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=_title(share, sent, hosted=hosted > exposed),
        why="DDP broadcasts rank 0's buffers before each forward pass, which waits for them.",
        changes=changes,
        saves=saves,
        confidence="medium",
        evidence=[
            Evidence(label="exposed broadcasts in forward", value=exposed, unit="of a step").at(
                rows[0].known("longest") if rows else None
            ),
            *(
                [Evidence(label="host time to flatten, send and copy buffers", value=hosted, unit="of a traced step")]
                if hosted > exposed
                else []
            ),
            Evidence(label="buffers", value=sent, unit="bytes"),
            *passed_at(sending[0], "broadcast_buffers"),
        ],
        numerics="changes",
        watch=_watch(sending),
        fingerprint=f"{RULE.code}:ddp.broadcast_buffers:{sending[0].module}",
    )


def _timed(run: RunView, most: float) -> Saving | None:
    """The saving on CPUs, at least the time that the rank spends which arrives last in each step: it waits for none.

    `most` is the upper end that is known otherwise. None where not every rank was timed.
    """
    windows = [window for facts in run.facts if (window := facts.window("untraced")) and any(window.buffer_sync_ns)]
    steps = {(window.first_step, window.steps, len(window.buffer_sync_ns)) for window in windows}
    if run.measured.device_kind != "cpu" or len(windows) != run.measured.world_size or len(steps) != 1:
        return None
    whole_ns = sum(sum(window.durations_ns) for window in windows) / len(windows)
    least = sum(map(min, zip(*(window.buffer_sync_ns for window in windows), strict=True))) / whole_ns
    likely = sum(sum(window.buffer_sync_ns) for window in windows) / len(windows) / whole_ns
    if least <= 0:
        return None
    how = "the time of these broadcasts in untraced steps; the lower end leaves out waiting for other ranks"
    return run.timed(least, (least + likely) / 2, max(most, likely), how, saved_part=(LEAST_SAVED, 1.0))


def _watch(sending: list[DdpFacts]) -> str:
    if all(ddp.batch_norms == 0 for ddp in sending):
        return "The model has no batch norm: only buffers that a rank changes during training would then differ."
    has = "" if all(ddp.batch_norms for ddp in sending) else "If the model has batch norm: "
    each = "each rank" if has else "Each rank"
    return f"{has}{each} then keeps its own running statistics: compare the validation loss."


def _title(share: float, sent: int, *, hosted: bool) -> str:
    size = f"{digits(sent / 2**20)} MiB" if sent >= 2**20 else f"{digits(sent / 2**10)} KiB"
    if hosted:
        return f"The host spends {100 * share:.0f} % of a step on DDP's buffer broadcasts ({size})"
    return f"Exposed buffer broadcasts take {100 * share:.0f} % of a step ({size})"


def _hosted(run: RunView) -> float:
    """The share of a step that the host takes for buffers: of a GPU's step while it idles for the host's sake."""
    spent = run.measured.known("buffer_sync_share")
    if spent is None or run.measured.device_kind == "cpu":
        return spent or 0.0
    beside = sum(run.measured.step_share(name) for name in HOST_IDLE)
    return float(min(spent, beside, run.idle_share()))


def _sent(run: RunView) -> float:
    """Bytes of all broadcasts of a step."""
    sent = [collective for collective in run.measured.collectives if collective.kind == "broadcast"]
    return sum(broadcast.calls_per_step * (broadcast.known("message_bytes") or 0) for broadcast in sent)


def _passes(run: RunView) -> int:
    """Forward passes of a step: as many as backward passes."""
    return run.measured.accumulation.known("backwards_per_step") or 1
