"""Collectives that the script calls itself hold up each step.

## What it measures

Collectives that are issued outside of backward passes and exposed, as a share of the step:
`all_gather_object`, `barrier`, `all_reduce` of a loss or a metric, broadcasts of batches, and parameters or gradients
of FSDP that the script gathers itself with `full_tensor()` or an operator on a sharded tensor. The wrappers'
collectives are left out: buffers that DDP broadcasts, and whatever FSDP's hooks or a sharded optimizer issue.

The evidence names the functions that the script calls, with their lines. If a line reaches a collective through a
library, it also names the library's function: for Lightning, Accelerate and TorchMetrics with the setting that avoids
it, for other libraries only if it gathers, broadcasts or scatters objects.

On a CPU the share is the time that the script spent in these calls in untraced steps. On a GPU, waiting in them for a
rank that is late by 10 % of the step or more is left out: the all-reduce of gradients would wait for it instead.
Nothing is reported where the library that runs the training loop calls all of them, nor for the all-reduces of
`clip_grad_norm_` over sharded gradients: the norm needs them, unless a loop calls it for each parameter.

## Why it matters

A collective that the script waits for costs its latency on every link, and makes each rank wait for the slowest rank
once more in each step. Objects are pickled, and their sizes are sent in a collective of their own.

## What to change

- Lightning: `self.log(..., sync_dist=True)` reduces the value in each step. Pass `sync_dist=False`, or `on_step=False,
  on_epoch=True` to reduce it once an epoch.
- Accelerate: an iterable data set is read by rank 0, which sends each batch to the others. With
  `DataLoaderConfiguration(dispatch_batches=False)` each rank reads its own batches: give each rank different samples.
- Metrics: add them up on each rank, and reduce them every hundred steps, or once an epoch.
- Weights that the script broadcasts or averages after each step: leave it out. DDP starts from equal weights and gives
  every rank the same gradients, so the weights stay equal.
- `barrier` in the loop: remove it. The all-reduce of gradients keeps ranks together.
- `all_gather_object` and Accelerate's `gather_object`: gather tensors, or call it every N steps. One tensor of all
  samples is sent directly; a list of objects is pickled element by element.
- `full_tensor()` for logging: reduce each rank's shard (`to_local()`) to one number, put all of them into one tensor,
  and all-reduce that every hundred steps.
- `clip_grad_norm_` for each parameter of a sharded model: call it once with all parameters, which all-reduces one norm.
- One rank that reads the data for all: let each rank read its own part (`DistributedSampler`).
- Values that must be reduced in each step: pass `async_op=True`, and wait when the result is needed.

On a CPU the saving is predicted for collectives that all ranks complete together. Lower end: 0.8 times the time in
these calls without waiting for other ranks, because the next all-reduce may wait for them instead. Upper end: the time
on the rank that spends most, or the time in the function that makes the calls, if it does nothing else. Where one rank
sends to the others, the saving is an upper bound.

## When to leave it alone

- Model, tensor or pipeline parallel training, and losses over the samples of all ranks: there the step needs them.
- The loss or the update uses the result, for example the number of tokens over all ranks that the loss is divided by.
  Impact and confidence are low if the source of the function shows that the result goes into a backward pass, or is
  stored in rows of a tensor.
- The collectives are hidden: they then cost no time.

## References

- torch.distributed, "Collective functions" and "Synchronous and asynchronous collective operations":
  https://pytorch.org/docs/stable/distributed.html
- PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization":
  https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from statistics import mean
from typing import NamedTuple

from dptune.advice import Advice, Evidence
from dptune.measured import CommunicationFigures, digits
from dptune.rule import CallFacts, ClippingFacts, DdpFacts, Rule, RunView, Threshold
from dptune_rules.communication.collective_savings import without_calls

# What spares the collectives of a library's function, by its package and its name.
_LIGHTNING = dict.fromkeys(
    ("log", "log_dict"), "pass sync_dist=False, or on_step=False, on_epoch=True to reduce once an epoch"
)
_NEEDED = "Keep a call whose result the loss or the update uses, for example a number of tokens over all ranks."
_USED = "The source shows that training uses the result: pass async_op=True, and wait where the result is needed."
_GATHERED = "call it every N steps instead of every step"
BARRIERS = ("barrier", "monitored_barrier", "Accelerator.wait_for_everyone")  # which have no result
_PICKLED = "each call pickles objects: send tensors, or call it every N steps"
_REMEDY = (
    "Remove calls that a step does not need, reduce metrics every N steps, or pass async_op=True and wait when the "
    "result is needed."
)
OF_OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
SETTINGS = {
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "accelerate": {
        "__iter__": "set dispatch_batches=False in DataLoaderConfiguration, and let each rank read its own batches",
        **dict.fromkeys(("gather", "gather_for_metrics", "reduce", "wait_for_everyone"), _GATHERED),
    },
    "torchmetrics": dict.fromkeys(("forward", "compute", "wrapped_func"), "compute the metric once an epoch"),
}
_DISPATCHED = SETTINGS["accelerate"]["__iter__"]
# What communicates for a sharded tensor, as it is named to the user.
TENSORS = {
    "full_tensor": "full_tensor()",
    "redistribute": "redistribute()",
    "redistribute_local_tensor": "DTensor operator",
}
_KEPT_EQUAL = "leave it out: DDP gives all ranks the same gradients, which keeps equal weights equal"
_MOST_PARAMETERS = 0.9  # of their bytes, from which on what is sent after a step are the model's parameters
_OF_SHARDS = "reduce each rank's shard with to_local(), and log every N steps"

_CLIPPED = "clip all parameters in one clip_grad_norm_ call, which all-reduces one norm"
_OWN_NORMS = "One call scales all gradients by one norm, and usually needs a larger max_norm."
ONE_BY_ONE = 8  # calls of clip_grad_norm_ per optimizer step, from which on a loop clips parameter by parameter

EACH_STEP = 0.5  # calls for each step from which on a line is taken to belong to the steps

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

OF_A_MODEL = ("p2p", "all_to_all")

CLIPPING = "torch.clip_grad_norm_"

_IN_ROWS = "their exposed time on the rank where it is longest, plus idle time other than input"

RULE = Rule(
    code="DP105",
    name="collectives-in-steps",
    family="communication",
    kind="time",
    summary="collectives that the script calls itself hold up each step",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    needs="recording",
)


class _Called(NamedTuple):
    """A function that calls collectives at a line of the script, and what spares them, where a library's does."""

    name: str
    where: str
    calls: int
    host_ns: int
    setting: str
    untraced_calls: int = 0
    untraced_ns: int = 0
    trained: bool = False

    @property
    def call_ns(self) -> float:
        """What a call takes, in untraced steps where it was counted there."""
        return self.untraced_ns / self.untraced_calls if self.untraced_calls else self.host_ns / self.calls

    def with_others(self, other: _Called) -> _Called:
        """Several collectives of one call of a library."""
        return self._replace(
            calls=max(self.calls, other.calls),
            host_ns=self.host_ns + other.host_ns,
            untraced_calls=max(self.untraced_calls, other.untraced_calls),
            untraced_ns=self.untraced_ns + other.untraced_ns,
            trained=self.trained or other.trained,
        )


def check(run: RunView) -> Iterator[Advice]:
    """Name the collectives outside of backward passes that no wrapper makes, where they hold up steps."""
    facts = run.any_facts("ddp", "fsdp")
    if not (facts.ddp or facts.fsdp):
        return
    facts = run.any_facts()
    if facts.engine or not (facts.ddp or facts.fsdp):
        return  # others' groups are not known
    rows = [row for row in run.measured.overlap.rows if row.known("phase") in ("forward", "optimizer")]
    rows = [collective for collective in rows if not _of_a_wrapper(run, collective)]
    if any(collective.kind in OF_A_MODEL for collective in rows):
        return  # pipelines and experts send activations: the step needs them
    counted = [call for call in facts.calls if call.calls >= EACH_STEP * facts.calls_steps > 0]
    called = _by_line(run) if counted else []
    if not called and (counted or facts.fsdp):
        return
    if _share_a_model(run):
        return  # ranks that share a model, or a sequence, communicate activations: the step needs them
    window_ns = run.measured.account.window_ns
    exposed = sum(map(run.held_up_share, rows))
    spent = _spent(run, called)
    share = exposed if spent is None else mean(spent)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    steps = sum(len(device.steps) for rank in run.measured.ranks for device in rank.devices)
    # Pickling objects and reading results back come on top of the collectives themselves.
    idle = run.unstretched(run.measured.account.other_idle_ns / window_ns)
    kinds = sorted({collective.kind for collective in rows}, key=lambda kind: -_exposed_ns(rows, kind))
    names = [f"{line.name} ({line.where})" if line.where else line.name for line in called[:3]] or kinds
    settings = list(dict.fromkeys(line.setting for line in called if line.setting and not line.trained))
    needed = bool(called) and all(line.trained for line in called)
    sends = any(line.setting == _DISPATCHED for line in called)
    if len(called) == 1 and _DISPATCHED in settings[:1] and _longest_wait(run) >= share:
        return  # the others wait while one rank prepares all batches: each would prepare its own as slowly
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="low" if needed else impact,
        title=f"Exposed collectives outside of backward passes take {100 * share:.0f} % of a step: {', '.join(names)}"
        + "".join(f"; {setting}" for setting in settings),
        why="Each call pickles and unpickles objects, and waits until the slowest rank has arrived."
        if _PICKLED in settings
        else "The script waits in each call until the slowest rank has arrived.",
        changes=[],
        remedy=_USED if needed else "" if settings else _REMEDY,
        saves=run.bound(0.0, min(1.0, run.most_exposed(rows) + idle), _IN_ROWS)
        if spent is None
        else without_calls(run, {line.where for line in called}, rows, spent, one_sends=sends),
        confidence="low" if needed else "medium",
        evidence=[
            Evidence(
                label=f"{collective.kind} ({collective.phase} phase)",
                value=run.held_up_share(collective),
                unit=f"of a step, {_per_step(collective.calls / steps)}",
            ).at(collective.known("longest"))
            for collective in rows
        ]
        + [
            Evidence(
                label=f"{line.name} at {line.where or 'a line that is not known'}",
                value=line.call_ns / 1e6,
                unit=f"ms per call on this rank, {_per_step(line.calls / facts.calls_steps)}",
                rank=facts.rank,
            )
            for line in called
        ],
        numerics="changes" if _CLIPPED in settings else "same",
        watch=_watch(called),
        fingerprint=RULE.code,
    )


def _per_step(calls: float) -> str:
    return "1 call per step" if calls == 1 else f"{digits(calls)} calls per step"


def _watch(called: list[_Called]) -> str:
    if any(line.setting == _CLIPPED for line in called):
        return _OWN_NORMS
    return _NEEDED if any(line.setting in ("", _GATHERED) and line.name not in BARRIERS for line in called) else ""


def _longest_wait(run: RunView) -> float:
    """The share of a step that the rank with most of it waits for its data loader; 0 where that is not known."""
    waits = [rank.known("loader_wait_share") for rank in run.measured.ranks]
    return max((share for share in waits if share is not None), default=0.0)


def _by_line(run: RunView) -> list[_Called]:
    """What the script's lines call in each step, those that take longest first; of a library's function all as one."""
    return sorted(_called(run, 0).values(), key=lambda line: -line.host_ns)


def _called(run: RunView, at: int) -> dict[tuple[str, str], _Called]:
    """The same of the rank whose facts stand at that place, by name and line."""
    facts, found = run.facts[at], dict[tuple[str, str], _Called]()
    wheres = (gathered.where or "" for gathered in facts.gathered_embeddings)  # `function (file:line)`
    in_losses = {where.removesuffix(")").rpartition("(")[2] for where in wheres} - {""}
    for call in facts.calls:
        package, _, function = call.through.partition(".")
        setting = SETTINGS.get(package, {}).get(function.rpartition(".")[2], "") if call.library else ""
        setting = _of_objects(call.function, function, call.library, setting)
        if _clips_one_by_one(facts.clipping, call):
            setting = _CLIPPED
        if call.calls < EACH_STEP * facts.calls_steps or (call.library and not setting):
            continue
        if call.function in TENSORS:
            setting = setting or _OF_SHARDS
        if _sends_parameters(facts.ddp, call, facts.calls_steps):
            setting = _KEPT_EQUAL
        called = _Called(
            function if call.library else TENSORS.get(call.function, call.function),
            call.where or "",
            call.calls,
            call.host_ns,
            setting,
            call.untraced_calls,
            call.untraced_ns,
            (call.trained or call.where in in_losses) and setting in ("", _GATHERED),
        )
        before = found.get((called.name, called.where)) if call.library else None
        found[called.name, called.where] = called if before is None else before.with_others(called)
    return found


def _clips_one_by_one(lines: list[ClippingFacts], call: CallFacts) -> bool:
    """Whether the line clips sharded gradients by a norm for each parameter."""
    return call.through == CLIPPING and any(
        clipped.where == call.where and clipped.calls >= ONE_BY_ONE * clipped.steps > 0 for clipped in lines
    )


def _sends_parameters(wrapped: list[DdpFacts], call: CallFacts, steps: int) -> bool:
    """Whether the line broadcasts or averages the weights that DDP keeps equal, between each step and the next pass."""
    if call.function not in ("broadcast", "all_reduce") or call.after_updates < call.calls or call.library:
        return False
    sent = call.sent_bytes / steps
    return any(
        ddp.gradient_bytes and not ddp.comm_hook and sent >= _MOST_PARAMETERS * ddp.gradient_bytes for ddp in wrapped
    )


def _of_objects(collective: str, through: str, library: str, setting: str) -> str:
    """What spares a collective of pickled objects that the script calls, also by a library's function named for it."""
    if collective not in OF_OBJECTS or setting:
        return setting
    named = through.rpartition(".")[2]
    return _PICKLED if not library or any(word in named for word in ("gather", "broadcast", "scatter")) else ""


def _spent(run: RunView, called: list[_Called]) -> list[float] | None:
    """The share of the untraced steps that each rank spends in these calls.

    None on GPUs, where a call returns before its collective has run, and where calls were not counted in those steps.
    """
    lines = {(line.name, line.where) for line in called}
    shares = []
    for at, facts in enumerate(run.facts if run.measured.known("device_kind") == "cpu" else ()):
        window = facts.window("untraced")
        rank_lines = [line for key, line in _called(run, at).items() if key in lines]
        if window is None or not window.durations_ns or not all(line.untraced_calls for line in rank_lines):
            return None
        shares.append(sum(line.untraced_ns for line in rank_lines) / sum(window.durations_ns))
    return shares if any(shares) else None


def _share_a_model(run: RunView) -> bool:
    """Whether ranks of other groups than those that share gradients communicate, or not all ranks shard one model."""
    facts = run.any_facts()
    counted = [call for call in facts.calls if call.calls >= EACH_STEP * facts.calls_steps > 0]
    if any(counted_call.ranks != ddp.ranks for counted_call in counted for ddp in facts.ddp if ddp.ranks):
        return True
    return any(prod(fsdp.mesh) != run.measured.world_size for fsdp in facts.fsdp if fsdp.mesh)


def _of_a_wrapper(run: RunView, row: CommunicationFigures) -> bool:
    """Whether FSDP or DDP issues it, which sends buffers in forward passes, or a sharded optimizer.

    The same goes for the norm of sharded gradients, which clipping needs.
    """
    facts = run.any_facts()
    if row.known("purpose") in ("gradients", "sharding") or (facts.fsdp and row.known("purpose") is None):
        return True
    clips = [call for call in facts.calls if call.through == CLIPPING]
    if row.kind == "all_reduce" and any(not _clips_one_by_one(facts.clipping, call) for call in clips):
        return True
    if row.known("phase") == "forward" and any(ddp.sync_batch_norm for ddp in facts.ddp):
        return True  # statistics of batches, gathered by the module
    if row.kind == "broadcast" and row.known("phase") == "forward":
        return any(ddp.broadcast_buffers and ddp.buffer_bytes for ddp in facts.ddp)
    return row.known("phase") == "optimizer" and any(
        optimizer.name == "ZeroRedundancyOptimizer" for optimizer in facts.optimizers
    )


def _exposed_ns(rows: list[CommunicationFigures], kind: str) -> int:
    return sum(row.exposed_ns for row in rows if row.kind == kind)
