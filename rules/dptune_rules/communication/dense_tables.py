"""An embedding table has a dense gradient although a step uses few of its rows.

## What it measures

For each `nn.Embedding` and `nn.EmbeddingBag` that an optimizer updates: the nonzero rows of its gradient in two warm-up
steps, and the share of a step spent on sending these gradients and updating the tables. That share is estimated from
the size of the tables among all gradients and parameters.

Row counts do not depend on timing, so the rule also runs where other processes keep the machine too busy to time steps,
with low confidence.

## Why it matters

A dense gradient is as large as its table: the backward pass fills it with zeros, DistributedDataParallel all-reduces
all of it, and the optimizer reads and writes every row and its state. A step that looks up 2,000 of 60,000 rows does
this for 58,000 rows whose gradient is zero.

## What to change

- Create the table with `sparse=True`, and use an optimizer that supports sparse gradients: `torch.optim.SparseAdam`, or
  SGD or Adagrad without weight decay. Use a separate optimizer for the tables, and keep the current one for all other
  parameters. Over gloo, DDP then sends only the used rows and their indices.
- Adam, AdamW and others reject sparse gradients, and so do `clip_grad_norm_` and `clip_grad_value_` (with transformers'
  Trainer: `max_grad_norm` above 0). Then the change needs another optimizer for the tables, or gradients of the tables
  that are not clipped. The recommendation names these conditions, and is given for high impact only.
- NCCL does not support sparse gradients. Shard the table instead, so that each rank holds and updates some of its rows
  (TorchRec, or `torch.distributed.tensor` by rows).

The saving is an upper bound: the time spent on rows that a step does not use. On a CPU it includes overlapped
all-reduces, because they take cores away from compute, and writing the unused rows of the gradient in the backward
pass, at 2 GB/s or more.

On a CPU, a sparse update takes longer per row than a dense one: SparseAdam takes 16 to 36 times as long as fused Adam,
and up to 5 times as long as Adam's loop over tensors; SGD up to 5 times as long as on a dense gradient. In place of
fused Adam, with 4 to 5 % of the rows used, SparseAdam saved 8 to 37 % of the optimizer's time; with 20 %, it took four
times as long. The impact is what remains of the saving after this cost; where little remains, nothing is reported.

## When to leave it alone

- Weights tied to an output layer: their gradient is dense in any case. These tables are not reported.
- Adam keeps updating rows without a gradient through their momentum; SparseAdam does not, so results differ.
- Gradients are clipped and the tables cannot be left out of it.

## References

- torch.nn.Embedding, `sparse`: https://pytorch.org/docs/stable/generated/torch.nn.Embedding.html
- torch.optim.SparseAdam: https://pytorch.org/docs/stable/generated/torch.optim.SparseAdam.html
- PyTorch, "Sparse allreduce for ProcessGroupNCCL": https://github.com/pytorch/pytorch/issues/22400
- TorchRec: https://docs.pytorch.org/torchrec/
- The factors: tables of 20,000 to 200,000 rows with 0.5 to 20 % used, one core of a server, torch 2.13.
- Tried with torch 2.13 on CPU ranks: DDP over gloo trains a table with `sparse=True`; SGD, SGD with momentum, Adagrad
  and SparseAdam step on its gradient; SGD with weight decay, AdamW and `clip_grad_norm_` raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import Missing
from dptune.rule import DenseTableFacts, Rule, RunView, Threshold
from dptune_rules.known import in_parentheses, known

WORTH_SHARE = Threshold("worth_share", 0.05, "medium impact from here: less does not justify another optimizer")
UNUSED_SHARE = Threshold(
    "unused_share",
    0.75,
    "with sparse gradients, ranks gather their used rows with an 8-byte index per row instead of all-reducing the "
    "table: with a quarter of the rows used, two ranks may send the same amount as before",
)
CONDITIONS_SHARE = Threshold(
    "conditions_share",
    0.15,
    "where sparse gradients need another optimizer for the tables, or no clipping of them: the usual 15 % for high "
    "impact, because training results change",
)

# What a row takes in a sparse step on a CPU, times what it takes in a dense one; see above.
SPARSE_TIMES, FUSED_SPARSE_TIMES = 5, 36
WRITTEN_BYTES_PER_NS = 2.0  # of a gradient, at least: 2.9 to 5.3 were measured

MOST_LINES = 3  # of tables

SUPPORT_SPARSE = ("SGD", "Adagrad", "SparseAdam")  # optimizers of torch that step on sparse gradients

RULE = Rule(
    code="DP111",
    name="dense-tables",
    family="communication",
    kind="time",
    summary="an embedding table has a dense gradient although a step uses few of its rows",
    since="0.1",
    thresholds=(WORTH_SHARE, UNUSED_SHARE, CONDITIONS_SHARE),
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose sparse gradients, or a sharded table, where unused rows take a large enough share of a step."""
    if (facts := run.recorded_about("dense_tables")) is None:
        return
    tables = [dense_table for dense_table in facts.dense_tables if dense_table.unused_share >= run.limit(UNUSED_SHARE)]
    if not tables or facts.fsdp or facts.engine:
        return
    sending, updating = _sending(run, tables), _updating(run, tables)
    share = min(1.0, sending + updating)
    worth = min(1.0, sending + _updating(run, tables, sparse=True))
    impact = run.impact(worth, WORTH_SHARE)
    if impact is None:
        return
    largest = tables[0]
    on_nccl = any(ddp.backend == "nccl" for ddp in facts.ddp)
    conditions = [] if on_nccl else list(_conditions(run, largest.optimizer))
    if conditions and worth < run.limit(CONDITIONS_SHARE):
        return
    rows, used = sum(table.rows for table in tables), sum(embedding.used_rows for embedding in tables)
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{_what(tables)}, but a step uses {used:,} of {rows:,} rows: "
        + ("shard the table over the ranks" if on_nccl else " and ".join(["pass sparse=True", *conditions])),
        why=f"Rows with a zero gradient cost up to {100 * share:.0f} % of a step: "
        + (f"{100 * sending:.0f} % to send them, {100 * updating:.0f} %" if facts.ddp else "all of it")
        + f" for {largest.optimizer} to update them.",
        changes=[],
        saves=_saving(run, tables, share),
        confidence="medium" if run.times_hold else "low",
        evidence=[
            *(
                Evidence(
                    label=f"rows of {embedding.module} used per step",
                    value=embedding.used_rows,
                    unit=f"of {embedding.rows:,} rows",
                )
                for embedding in tables[:3]
            ),
            Evidence(label="optimizer time for unused rows", value=updating, unit="of a step").at(
                run.measured.where("optimizer")
            ),
            Evidence(
                label="size of these gradients",
                value=sum(embedding.gradient_bytes for embedding in tables),
                unit="bytes",
            ),
            *(Evidence(label="table created at", value=line) for line in _lines(tables)),
            *known("optimizer created at", _updated_at(run, largest)),
        ],
        numerics="changes",
        watch=_watch(largest.optimizer, on_nccl),
        fingerprint=f"{RULE.code}:{largest.module}",
    )


def _lines(tables: Sequence[DenseTableFacts]) -> list[str]:
    """The lines that create the tables, those of the largest ones first."""
    return list(dict.fromkeys(table.where for table in tables if table.where))[:MOST_LINES]


def _updated_at(run: RunView, table: DenseTableFacts) -> str | None:
    """The line that creates the optimizer of a table; None where several have its class."""
    lines = {optimizer.where for optimizer in run.any_facts().optimizers if optimizer.name == table.optimizer}
    return lines.pop() if len(lines) == 1 else None


def _conditions(run: RunView, optimizer: str) -> Iterator[str]:
    """What else has to change so that training steps on sparse gradients."""
    if optimizer not in SUPPORT_SPARSE:
        yield "update it with SparseAdam or SGD"
    user_code = run.measured.known("user_code")
    if user_code is not None and user_code.clips:
        yield "leave it out of gradient clipping"


def _what(tables: Sequence[DenseTableFacts]) -> str:
    largest = tables[0]
    at = in_parentheses(largest.where)
    others = len(tables) - 1
    if not others:
        return f"The gradient of embedding table `{largest.module}`{at} is dense"
    more = f"{others} other embedding tables" if others > 1 else "another embedding table"
    return f"The gradients of `{largest.module}`{at} and {more} are dense"


def _watch(optimizer: str, on_nccl: bool) -> str:
    if on_nccl:
        return "NCCL does not support sparse gradients: sparse=True fails under DDP with NCCL."
    words = "clip_grad_norm_ and weight decay fail on sparse gradients."
    if optimizer in SUPPORT_SPARSE:
        return words
    other = "use a separate SparseAdam or SGD for the tables, which skip unused rows"
    return f"{optimizer} rejects sparse gradients: {other}. {words}"


def _sending(run: RunView, tables: Sequence[DenseTableFacts]) -> float:
    """The share of a step that all-reduces of unused rows take: exposed time, on a CPU also overlapped time."""
    wrapped = run.any_facts().ddp
    whole = sum(ddp.gradient_bytes or 0 for ddp in wrapped)
    if not whole or run.measured.world_size == 1:
        return 0.0
    rows = [row for row in run.measured.overlap.rows if row.kind == "all_reduce"]
    if rows and all(collective.known("purpose") is None for collective in rows):
        raise Missing("the traces do not show which all-reduces carry gradients")
    rows = [collective for collective in rows if collective.known("purpose") == "gradients"]
    cpu = run.measured.device_kind == "cpu"
    spent_ns = sum(collective.communication_ns if cpu else collective.exposed_transfer_ns for collective in rows)
    unused = sum(table.unused_share * table.gradient_bytes for table in tables)
    return min(1.0, unused / whole) * spent_ns / run.measured.account.window_ns


def _saving(run: RunView, tables: Sequence[DenseTableFacts], share: float) -> Saving:
    """An upper bound; on a CPU with the time in which the backward pass writes unused rows."""
    what, most = "send and update the unused rows", run.unstretched(share)
    if run.measured.device_kind == "cpu":
        written = sum(table.unused_share * table.gradient_bytes for table in tables)
        most += written / WRITTEN_BYTES_PER_NS / run.measured.step.time_ns
        what = "write, send and update the unused rows"
    return run.bound(0.0, min(1.0, most), f"the time to {what}")


def _spared(run: RunView, table: DenseTableFacts) -> float:
    """The part of a table's update that a sparse step on a CPU spares; elsewhere that of unused rows."""
    if run.measured.device_kind != "cpu":
        return table.unused_share
    optimizers = [optimizer for optimizer in run.any_facts().optimizers if optimizer.name == table.optimizer]
    fused = table.optimizer not in SUPPORT_SPARSE and any(optimizer.fused for optimizer in optimizers)
    return max(0.0, 1 - (FUSED_SPARSE_TIMES if fused else SPARSE_TIMES) * (1 - table.unused_share))


def _updating(run: RunView, tables: Sequence[DenseTableFacts], *, sparse: bool = False) -> float:
    """The share of a step that optimizers spend on unused rows: of host time on a CPU, else of device time.

    `sparse`: less what used rows take longer in a sparse step.
    """
    parameters = sum(optimizer.parameters for optimizer in run.any_facts().optimizers)
    if not parameters:
        return 0.0
    phases = [phase for phase in run.measured.phases if phase.phase != "unknown"]
    updates = [phase_figures for phase_figures in phases if phase_figures.phase == "optimizer"]
    if run.measured.device_kind == "cpu":
        spent, whole = sum(update.host_ns for update in updates), sum(phase_figures.host_ns for phase_figures in phases)
    else:
        spent, whole = sum(phase_figures.compute_ns for phase_figures in updates), run.measured.account.window_ns
    unused = sum(
        (_spared(run, table) if sparse else table.unused_share) * table.rows * table.columns for table in tables
    )
    return min(1.0, unused / parameters) * spent / whole if whole else 0.0
