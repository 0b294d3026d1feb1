"""Gradients travel as 32-bit floats over a link that cannot carry them while the step computes.

## What it measures

The part of a step in which gradients travel and nothing is computed, with the model wrapped in
DistributedDataParallel, no communication hook registered, and all gradients of type float32.

## Why it costs time

Where the bytes are what takes the time, half of them take half of it. Start-ups stay as they are, so that many small
messages gain little: there `bucket-size` has more to say.

## What to change

`register_comm_hook` with `bf16_compress_hook` or `fp16_compress_hook`: gradients are cast before they are exchanged,
and back after it. The weights, and what the optimizer computes with, stay 32 bits wide. bf16 has the range of float32
and 8 bits of precision; fp16 has 11, and overflows beyond 65,504: torch casts before it divides by the number of ranks,
and under a GradScaler gradients are tens of thousands of times as large. There take bf16. Off NCCL, torch refuses its
bf16 hook: wrap it in a function of your own, which is what
`dptune verify` does.

Proposed is whichever of the two is predicted to save more; where both are alike, bf16. Where the step model misses the
recorded steps by too much to predict, bf16 is, if half of the exposed transfer is worth it; the ceiling is then what a
replay can save at most, and no more than all exposed communication. Without a step model nothing is: over a quick link
the casts take longer than what they spare.

## When to leave it alone

- The communication is hidden already: fewer bytes then change nothing.
- The link is quick beside the casts: two ranks on one host exchange through memory.
- Training that is known to be delicate in 16 bits. Sums over very many ranks lose more.

## References

- torch.distributed.algorithms.ddp_comm_hooks: https://pytorch.org/docs/stable/ddp_comm_hooks.html
- Measured with two gloo ranks over a link of 200 Mbit/s, 2.4 MB of gradients: the fp16 hook ran 1.57 times as fast,
  bf16 1.64 times.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Change, Evidence, Location, Saving
from dptune.measured import Missing, digits
from dptune.rule import Rule, RunView, Threshold

HOOKS = ("bf16", "fp16")  # the first where both save the same

EXPOSED_SHARE = Threshold(
    "exposed_share", 0.05, "what a warning is: less exposed communication is seldom worth 16 bits"
)
WORTH_SHARE = Threshold("worth_share", 0.05, "what a warning is: for less nobody should have to think about precision")

RULE = Rule(
    code="DP103",
    name="wide-gradients",
    family="communication",
    kind="time",
    summary="gradients travel as 32-bit floats over a link that cannot carry them while the step computes",
    since="0.1",
    thresholds=(EXPOSED_SHARE, WORTH_SHARE),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose the hook that is predicted to save most, where gradients are exposed."""
    wrapped = run.any_facts().ddp
    if not wrapped or any(one.comm_hook for one in wrapped):
        return
    if any(one.gradient_dtypes and one.gradient_dtypes != ["float32"] for one in wrapped):
        return
    exposed = run.measured.account.exchange_ns / run.measured.account.window_ns
    if exposed < run.limit(EXPOSED_SHARE):
        return
    each = [
        [Change(knob="ddp.comm_hook", now="none", then=hook, at=Location.parse(one.where)) for one in wrapped]
        for hook in HOOKS
    ]
    try:
        changes, saves = max(((one, run.predict(one)) for one in each), key=lambda one: one[1].predicted_share or 0.0)
        share = saves.predicted_share or 0.0
        then = f"with 16 bits a step takes {100 * share:.0f} % less"
    except Missing:
        changes, saves = each[0], _within_exposed(run, run.ceiling(each[0]))
        share, then = min(exposed / 2, saves.high_share), "16 bits are half as much to send"
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    gradient_bytes = sum(one.gradient_bytes or 0 for one in wrapped)
    waits = run.unstretched(exposed)
    size = f"{digits(gradient_bytes / 2**20)} MiB of gradients" if gradient_bytes else "Gradients"
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{size} travel as 32-bit floats, and {100 * waits:.0f} % of a step waits for them: {then}",
        why="The link cannot carry the gradients while the backward pass computes. In 16 bits they are half as large.",
        changes=changes,
        saves=saves,
        confidence="medium" if saves.basis == "replayed" else "low",
        evidence=[
            Evidence(label="exposed transfer", value=waits, unit="of a step").at(
                run.measured.where("exposed_transfer_ns")
            ),
            Evidence(label="communication", value=run.measured.share("communication_ns"), unit="of a traced step"),
            Evidence(label="gradients", value=gradient_bytes, unit="bytes"),
        ],
        numerics="changes",
        watch="Gradients are rounded to 16 bits before they are added: compare the loss over the first hundreds of "
        "steps.",
        fingerprint=f"{RULE.code}:ddp.comm_hook:{wrapped[0].module}",
    )


def _within_exposed(run: RunView, ceiling: Saving) -> Saving:
    """A ceiling that is no more than the exposed communication: hidden bytes take no time that half of them spare."""
    exposed = run.unstretched(run.measured.share("exposed_communication_ns"))
    if ceiling.high_share <= exposed:
        return ceiling
    bound = run.bound(0.0, exposed, "no more than the exposed communication")
    return bound.without_prediction(ceiling.unpredicted or "")
