"""FSDP all-gathers are exposed although the parameters would fit unsharded.

## What it measures

The exposed communication of all-gathers issued in a step by the hooks of FullyShardedDataParallel or `fully_shard`, and
whether each rank would have room for the whole model: parameters, gradients and the optimizer's state. All-gathers that
the script issues itself, for example by `full_tensor()`, are not counted: `collectives-in-steps` reports them. If they
take longer than FSDP's, this rule has no finding. On a CPU, a gather blocks the script, and only those of forward
passes decide the impact: DDP's all-reduces send as much as the reduce-scatters and the other gathers.

## Why it matters

Each layer's parameters are gathered before its forward pass, freed after it, and gathered again before its backward
pass: a step sends 1.5 times the bytes of DDP's all-reduces, and the forward pass waits for its gathers.

## What to change

From least to most memory:

- `reshard_after_forward=False` of `fully_shard` (`SHARD_GRAD_OP` of FullyShardedDataParallel): gathered layers are kept
  for the backward pass, so that they are gathered once;
- a 2-D mesh (HYBRID_SHARD): layers are gathered only within a node;
- DistributedDataParallel: nothing is gathered.

Where units compute in 16 bits, DistributedDataParallel is not proposed: it would compute in fp32.

Where all layers stay gathered already, only DistributedDataParallel is proposed, with low confidence: an all-gather and
a reduce-scatter send the bytes of an all-reduce, and only the waits of the forward pass for gathers are saved.

If several forward passes precede a backward pass, each of them gathers every layer again. Then
`reshard_after_forward=False` comes first, because it gathers each layer once.

The saving with `fully_shard` is predicted by replay. Otherwise it is an upper bound, all the time that
sharding takes in a step: every collective of FSDP (also its reduce-scatters; DDP's all-reduces may be hidden), host
time in its hooks, copies into and out of gathered buffers, and the optimizer, which updates sharded tensors one by
one. On a CPU, collectives count in full, because they block the script. On a GPU, overlapped collectives count only by
how much they slow compute. For `reshard_after_forward=False`, the bound is the time of all-gathers in backward passes,
overlapped or not: the collectives after them then start earlier.

Less sharding is proposed only if its predicted peak memory fits (`dptune whatif --set wrapper=ddp` shows it by
components). Where memory cannot be predicted, the parameters that the optimizer updates are counted as 32-bit floats,
and others, for example a frozen base model, are not; on a CPU, confidence is low if the memory that the host has left
was not recorded.

## When to leave it alone

- The memory is needed for a larger batch, which saves more.
- The setup is meant for a larger model.
- Other processes kept the cores busy: an all-gather then waits for a rank without a core, and a DDP all-reduce would
  too. The rule is skipped if they withheld 5 % or more of the CPU time that the ranks needed.
- The units are many and small: follow `small-shard-units` first, which keeps the memory savings. What less sharding
  still saves with larger units is unknown, so confidence is low.

## References

- Zhao et al. 2023, "PyTorch FSDP", section 3.2 on sharding strategies: https://arxiv.org/abs/2304.11277
- Measured with FSDP2 and two ranks on one H200: DDP saved 26 % of a step (bound 39 %), `reshard_after_forward=False`
  14 % (bound 25 %).
- fully_shard, `reshard_after_forward`: https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from statistics import median

from dptune.advice import Advice, Change, Evidence, Location, Saving
from dptune.knobs import Value
from dptune.measured import CommunicationFigures, Missing, shard_messages
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.exposed import exposed_rows
from dptune_rules.known import known
from dptune_rules.predicted_memory import fits, peak_evidence

AGAIN = " and again before its backward pass"
_ALL = "the time of FSDP's collectives, hooks and copies, and of the optimizer"
_AGAIN = "the time of all-gathers in backward passes"
COPIES = 4  # of the parameters, at most: themselves, gradients and two of Adam's
FULL_SHARE = 0.9  # of a device's memory, that may be taken then
ROOM_SHARE = 0.7  # of a device's memory: where the peak is below, a rank has room to keep gathered layers

BUSY_SHARE = 0.05  # of the CPU time a job needs, withheld by others: the report calls a machine shared from here

WORTH_SHARE = Threshold("worth_share", 0.05, "medium impact from here: the saved memory is worth a smaller cost")

FAIR_SHARE = 0.08  # of a step: healthy scripts on two CPU ranks paid 5 %, so below it confidence is low
MANY_UNITS, SMALL_BYTES = 8, 2**20  # from which on, and below which, `small-shard-units` takes units for small

ONCE = "`reshard_after_forward=False` gathers each layer once"
_WHOLE = "DistributedDataParallel needs no all-gathers"
_AS_REPLICAS: dict[str, Value] = {"wrapper": "ddp"}
_GATHERED_ONCE: dict[str, Value] = {"fsdp.reshard_after_forward": False}
_CHECKPOINTS = "Sharded checkpoints must be loaded differently."
_IN_16_BITS = ("bfloat16", "float16")
SEVERAL_PASSES = 1.5  # all-gathers of a unit for forward passes: one pass makes one

RULE = Rule(
    code="DP204",
    name="sharded-parameters",
    family="topology",
    kind="time",
    summary="FSDP all-gathers are exposed although the parameters would fit unsharded",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose to shard less where gathering holds up steps and there is room."""
    if (facts := run.recorded_about("fsdp")) is None:
        return
    sharded = [fsdp for fsdp in facts.fsdp if fsdp.offload is None]
    if not sharded or run.measured.world_size == 1:
        return
    rows = _gathers(run)
    share = _transfer_ns(rows) / run.measured.account.window_ns
    beyond_share = _beyond_replicas_ns(run, rows) / run.measured.account.window_ns
    if run.impact(beyond_share, WORTH_SHARE) is None:
        return
    reshards = any(fsdp.reshard_after_forward for fsdp in sharded)
    kept = all(fsdp.reshard_after_forward is False for fsdp in sharded)
    less = _less(run, reshards)
    if less is None:
        return
    once_pays = less == _WHOLE and reshards and _only_once_pays(run, sharded[0].version)
    if once_pays:
        less = ONCE
    if less == ONCE:  # spares those of backward passes alone
        rows = [row for row in rows if row.known("phase") == "backward"]
        share = beyond_share = _transfer_ns(rows) / run.measured.account.window_ns
    impact = run.impact(beyond_share, WORTH_SHARE)
    if (impact is None and not once_pays) or _of_script_ns(run) > _transfer_ns(rows):
        return
    _check_load(run)
    where = next((fsdp.where for fsdp in sharded if fsdp.where), None)
    passes = _forward_passes(run, rows)
    repeated = reshards and less == _WHOLE and passes >= SEVERAL_PASSES
    if repeated:
        less = ONCE.replace(" gathers", f" ({where}) gathers") if where else ONCE
    taken = run.measured.sharding
    all_of_it = repeated or less == _WHOLE
    replicated = all_of_it and not repeated
    most = taken.most_share + run.slowed_share("sharding") if all_of_it else taken.again_most_share
    saves = _saving(run, sharded[0].version, replicated, most, _ALL if all_of_it else _AGAIN)
    if saves.central_share is not None:
        impact = run.impact(saves.central_share, WORTH_SHARE)
    if impact is None:
        return
    changes = _replicated(run) if replicated else _kept(run)
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"Exposed FSDP all-gathers take {100 * share:.0f} % of a step, and memory has room: {less}",
        why=f"Each layer is gathered before {'each' if repeated else 'its'} forward pass{AGAIN if reshards else ''}; "
        "unsharded parameters are never gathered.",
        changes=changes,
        remedy=_remedy(sharded[0].version, where, replicated, kept, bool(changes)),
        saves=saves,
        confidence="low" if kept or _is_doubtful(run, beyond_share) else "medium",
        evidence=[
            *exposed_rows(run, rows),
            Evidence(label="sharded units", value=_units(run)),
            *_memory(run, replicated),
            *([Evidence(label="forward passes before a backward pass", value=passes)] if repeated else []),
            *known("sharded at", where),
        ],
        numerics="same",
        watch="Each rank then needs more memory. "
        + ("DistributedDataParallel gathers nothing and needs more still." if repeated else _CHECKPOINTS),
        fingerprint=f"{RULE.code}:{next((name for fsdp in sharded for name in fsdp.modules), 'sharded')}",
    )


def _saving(run: RunView, version: int, replicated: bool, most: float, how: str) -> Saving:
    """What sharding less saves: predicted for `fully_shard`, else bounded."""
    bound = run.bound(0.0, run.most_of_process(most), how)
    if version == 1:
        return bound
    return run.saving(_AS_REPLICAS if replicated else _GATHERED_ONCE, bound)


def _only_once_pays(run: RunView, version: int) -> bool:
    """Whether gathering once saves time by the step model, where replicas may save none."""
    if version == 1:
        return False
    nothing = run.bound(0.0, 0.0, "")
    replicas, once = (run.saving(change, nothing) for change in (_AS_REPLICAS, _GATHERED_ONCE))
    return replicas.may_be_nothing and once.basis == "replayed" and not once.may_be_nothing


def _is_doubtful(run: RunView, share: float) -> bool:
    """Whether little is at stake, units are so small that their number is the cause, or memory is not known."""
    unsure = _host_memory(run) is None and fits(run, _AS_REPLICAS) is None
    return share < FAIR_SHARE or _small_units(run) or unsure


def _remedy(version: int, where: str | None, whole: bool, kept: bool, changed: bool) -> str:
    """What to change in the script; `whole`: memory has room for replicas; `kept`: layers stay gathered already;
    `changed`: a change of the setting comes before it.
    """
    wrapper, keeps = (
        ("FullyShardedDataParallel", "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP")
        if version == 1
        else ("fully_shard", "reshard_after_forward=False")
    )
    place = f" at {where}" if where else ""
    if whole:
        to_try = "" if version == 1 else " (to try it: `--set fsdp.reshard_after_forward=false`)"
        less = "" if kept else f" Or pass `{keeps}`, which needs less memory{to_try}."
        first = "" if changed else f"Use `DistributedDataParallel` in place of `{wrapper}`{place}."
        return f"{first}{less}".strip()
    return "" if changed else f"Pass `{keeps}` to `{wrapper}`{place}."


def _replicated(run: RunView) -> list[Change]:
    """DistributedDataParallel in place of fully_shard, where that has the default mesh or another 1-D one."""
    sharded = run.any_facts("fsdp").fsdp
    made = [fsdp for fsdp in sharded if fsdp.mesh]
    if any(fsdp.version == 1 or len(fsdp.mesh) > 1 for fsdp in sharded) or not made:
        return []
    where = next((fsdp.where for fsdp in made if fsdp.root and fsdp.where), made[0].where)
    return [Change(knob="wrapper", now="fsdp", then="ddp", at=Location.parse(where))]


def _kept(run: RunView) -> list[Change]:
    """Units of fully_shard stay gathered after the forward pass."""
    return [
        Change(
            knob="fsdp.reshard_after_forward",
            now=fsdp.reshard_after_forward,
            then=False,
            at=Location.parse(fsdp.where) if fsdp.where else None,
        )
        for fsdp in run.any_facts("fsdp").fsdp
        if fsdp.version == 2 and fsdp.reshard_after_forward
    ]


def _gathers(run: RunView) -> list[CommunicationFigures]:
    """The all-gathers of FSDP's hooks; raises Missing where the traces do not show which those are."""
    rows = [row for row in run.measured.overlap.rows if row.kind == "all_gather"]
    if rows and all(collective.known("purpose") != "sharding" for collective in rows):
        raise Missing("the traces do not show which all-gathers FSDP issued")
    return [collective for collective in rows if collective.known("purpose") == "sharding"]


def _forward_passes(run: RunView, rows: list[CommunicationFigures]) -> float:
    """How often each unit is gathered for forward passes before a backward pass; 0 where that was not counted."""
    steps = sum(max((len(device.steps) for device in rank.devices), default=0) for rank in run.measured.ranks)
    units = _units(run)
    calls = sum(row.calls for row in rows if row.known("phase") == "forward")
    window = run.any_facts().window("untraced")
    backwards = median(window.backwards) if window is not None and window.backwards else 0
    return calls / steps / units / backwards if steps and units and backwards else 0.0


def _units(run: RunView) -> int:
    """How many units gather parameters: a root without its own has no mesh."""
    sharded = [fsdp for fsdp in run.any_facts("fsdp").fsdp if fsdp.offload is None]
    return sum(fsdp.units for fsdp in [fsdp for fsdp in sharded if fsdp.mesh] or sharded)


def _beyond_replicas_ns(run: RunView, rows: list[CommunicationFigures]) -> int:
    """What is exposed beyond what DDP would send: on a CPU, where nothing is overlapped, the gathers of one pass."""
    on_cpu = run.measured.known("device_kind") == "cpu"
    return _transfer_ns([row for row in rows if not on_cpu or row.known("phase") != "backward"])


def _of_script_ns(run: RunView) -> int:
    """Exposed communication of all-gathers that the script or a library issues itself."""
    rows = run.measured.overlap.rows
    return _transfer_ns([row for row in rows if row.kind == "all_gather" and row.known("purpose") != "sharding"])


def _check_load(run: RunView) -> None:
    """Raise Missing where waits for cores that other processes use may be counted as all-gathers."""
    withheld = max((load.known("withheld_share") or 0.0 for load in run.measured.known("load") or []), default=0.0)
    if withheld >= BUSY_SHARE:
        raise Missing(
            f"other processes withheld {100 * withheld:.0f} % of the CPU time this job needed, so waits for cores may "
            "be counted as all-gathers: record again on an idle machine"
        )


def _small_units(run: RunView) -> bool:
    """Whether larger units alone would spare much of the gathering."""
    if sum(fsdp.units for fsdp in run.any_facts().fsdp if fsdp.mesh) < MANY_UNITS:
        return False
    try:
        return shard_messages(run.measured).latency_bound(SMALL_BYTES)
    except Missing:
        return False


def _transfer_ns(rows: list[CommunicationFigures]) -> int:
    """Exposed, without the wait for late ranks: they are late whatever is gathered."""
    return sum(row.exposed_transfer_ns for row in rows)


def _shard_bytes(run: RunView) -> int:
    """What the optimizer updates on a rank, as 32-bit floats."""
    return 4 * sum(optimizer.parameters for optimizer in run.any_facts().optimizers)


def _memory(run: RunView, replicas: bool) -> list[Evidence]:
    """The predicted peak with replicas, or with layers that stay gathered; else what these would add to each rank, and
    what there is.
    """
    if predicted := list(peak_evidence(run, _AS_REPLICAS if replicas else _GATHERED_ONCE)):
        return predicted
    shard_bytes, ranks = _shard_bytes(run), run.measured.world_size
    if not shard_bytes:
        return []
    added = COPIES * shard_bytes * (ranks - 1) if replicas else shard_bytes * ranks
    label = (
        "replicas add (parameters, gradients, optimizer state in fp32)" if replicas else "gathered layers add (fp32)"
    )
    found = [Evidence(label=label, value=added / 2**20, unit="MiB per rank")]
    if run.measured.device_kind == "cpu":
        left = _host_memory(run)
        return found if left is None else [*found, Evidence(label="free on the host", value=left / 2**30, unit="GiB")]
    free = [device.capacity_bytes - device.peak_reserved_bytes for device in run.measured.known("memory") or []]
    return [*found, Evidence(label="free on each device", value=min(free) / 2**30, unit="GiB")] if free else found


def _less(run: RunView, reshards: bool) -> str | None:
    """The text of the change that memory has room for; None if it has none.

    Where units compute in 16 bits DistributedDataParallel is no alternative: it would compute in fp32.
    """
    narrow = any(fsdp.parameter_dtype in _IN_16_BITS for fsdp in run.any_facts("fsdp").fsdp)
    whole = False if narrow else fits(run, _AS_REPLICAS)
    if whole:
        return _WHOLE
    if whole is False and (once := fits(run, _GATHERED_ONCE)) is not None:
        return ONCE if reshards and once else None
    shard_bytes = _shard_bytes(run)
    more = COPIES * shard_bytes * (run.measured.world_size - 1)
    if run.measured.device_kind == "cpu":
        if narrow:
            return None
        left = _host_memory(run)
        return _WHOLE if left is None or more * run.ranks_here() <= FULL_SHARE * left else None
    memory = run.measured.memory
    if not memory:
        raise Missing("GPU memory use was not recorded")
    if (
        not narrow
        and shard_bytes
        and all(
            device_memory.peak_reserved_bytes + more <= FULL_SHARE * device_memory.capacity_bytes
            for device_memory in memory
        )
    ):
        return _WHOLE
    whole_bytes = shard_bytes * run.measured.world_size  # what layers that stay gathered take at most, as floats
    room = all(
        device_memory.peak_reserved_bytes + whole_bytes <= FULL_SHARE * device_memory.capacity_bytes
        for device_memory in memory
    )
    if reshards and room and all(device_memory.peak_share <= ROOM_SHARE for device_memory in memory):
        return ONCE
    return None


def _host_memory(run: RunView) -> float | None:
    """Bytes that the host of the lowest rank has left; None where not known. Infinite where the ranks have GPUs."""
    if run.measured.device_kind != "cpu":
        return inf
    device = run.any_facts().device
    return device.available_bytes if device else None
