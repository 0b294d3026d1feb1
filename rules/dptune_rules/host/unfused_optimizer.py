"""The optimizer updates parameters one by one, where one kernel could update them all.

## What it measures

The share of the traced step that the optimizer's loop takes, where the optimizer is one that torch can fuse (Adam,
AdamW, SGD, Adagrad) and is not fused; on a GPU only if it is not `foreach` either, torch's default there. On a GPU it
is the host time of `step()` and of a `zero_grad()` that launches a kernel for each tensor, up to the time in which the
GPU idles because of the host or runs the optimizer. Waiting for a batch counts as such idle time if the training
process prepares batches itself (`num_workers=0`), because it starts the next one after the optimizer's step. Any trace
with the optimizer's ranges shows this.

On a CPU the loop is the operators inside the optimizer's step, plus at most 0.1 ms of Python between them for each
tensor. Hooks, callbacks and closures that a script or a library runs inside the step take longer, and fusing does not
remove them. Functions of the script that the detailed window shows there are left out.

Also custom optimizer classes defined in the script whose step calls three or more operators per tensor: the share is
that of the optimizer's step in stack samples, or in the traced steps. The class is read from the detailed window.
Classes of installed packages, and classes that add something to a step of torch, do not count.

## Why it matters

An optimizer that is neither fused nor `foreach` loops over all parameter tensors, with several operators for each. With
thousands of small tensors the calls dominate; with large ones each operator reads and writes the whole tensor again. A
fused step reads and writes every element once.

## What to change

`fused=True` of the optimizer. Where it is not supported (parameters on several kinds of devices, complex numbers), try
`foreach=True`, which saves less on a CPU. Before 2.0, torch loops on a GPU by default: pass `foreach=True`, or upgrade.
`zero_grad(set_to_none=True)`, the default since 2.0, launches nothing.

For a class of the script: the class of `torch.optim` that computes the same, with `fused=True`. A step of elementwise
operators with a square root may be Adam or AdamW, one of sums and products may be SGD with momentum. If torch has no
such class: `torch._foreach_*` operators on lists of all tensors. On a CPU they are proposed for small tensors only, see
References.

    torch.optim.AdamW(model.parameters(), lr=lr, betas=betas, eps=eps, weight_decay=decay, fused=True)

For Adam and AdamW on a CPU the saving is predicted from stack samples of untraced steps: from half of the loop's time
to all of it, with the sampling error. Without samples in the loop it is predicted from the traced steps: at the lower
end all of the profiler's overhead is taken to be in the loop. Otherwise it is an upper bound: all time in the loop, or
55 % of it for SGD on large tensors. For a class of the script that has Adam in its name it is predicted from samples in
the same way, otherwise it is an upper bound. Time spent on unused rows of embedding tables is not counted:
`dense-tables` reports it.

## When to leave it alone

- The last bits of the weights must be the same as before: the order of roundings differs.
- `torch.compile` compiles the step already.
- A class of the script computes something that `torch.optim` lacks, with large tensors.

## References

- torch.optim, "Algorithms", on foreach and fused implementations: https://pytorch.org/docs/stable/optim.html
- Measured on a CPU, one thread, AdamW (torch 2.13): fused took 0.8 instead of 3.5 ms for 17 tensors of 1.1 million
  elements, 5 instead of 28 ms for 400 tensors of 0.1 million; `foreach` between 0.7 times and 1.8 times as long as the
  loop.
- Measured again on two shared cores, for 2 to 200 tensors of 16 to 5 million elements: fused saved 57 to 98 % of the
  loop of Adam and AdamW. Two scripts whose loop took 37 and 83 % of a traced step became 20 and 44 % faster.
- Measured in the same way for 400 tensors of 16 elements: the loop of AdamW takes 35 us for each tensor, operators and
  Python together. Under the profiler the Python between the operators takes 20 to 80 us of it. So the 70 us for each
  tensor of 0.1 million elements are half calls, half reading and writing: from about 256 KiB on, a tensor is large.
- SGD on large tensors without momentum accesses each element 3 times, like the fused step: nothing is saved (4.2 and
  4.6 ms for 6 tensors of 1 million elements). With momentum the loop accesses each element 8 times, the fused step 5
  times (11.2 and 6.3 ms); with weight decay as well 11 and 5 times, which is 55 % less.
- Steps written in Python, measured on a CPU with one thread, for 8 to 400 tensors of 16 to 2 million elements: the
  fused AdamW took 74 to 87 % less time than an in-place Adam of 8 operators per tensor, and 82 to 94 % less than one of
  17 operators that allocate their results. The fused SGD took 34 to 82 % less than a loop with momentum. Lion with
  `torch._foreach_*` took 48 to 52 % less than its loop for tensors of 16 and 1,000 elements, and 1.6 to 3 times as long
  for tensors of 16,384 elements and more: the lists of intermediates leave the cache. SGD with one operator per tensor
  saves 4 % for tensors of 400,000 elements.
- Tried on public traces of ResNet-50 on one GPU, where SGD makes 644 launches a step for 161 tensors: a finding where
  the GPU waits for launches, and where it waits for batches that the training process prepares itself (18 % of the
  host's time in the loop; the replay without it is 9.5 to 15.8 % shorter).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from dptune.advice import Advice, Change, Evidence, Location, Saving, impact_of
from dptune.measured import Missing, OptimizerLaunches, PhaseFigures
from dptune.rule import Rule, RunView, Share, Threshold
from dptune_rules.call_paths import call_path_evidence
from dptune_rules.host.written_optimizers import FUSED_ADAM, Written, unknown, written
from dptune_rules.input.loader_waits import script_loads
from dptune_rules.known import known

ADAM = ("Adam", "AdamW")
FUSED_SAVES = (0.5, 1.0)  # of the time of Adam's loop; see the references
CAN_BE_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
UNUSED_SHARE = 0.75  # of an embedding table's rows: `dense-tables` proposes sparse gradients from here
SGD_LARGE = 0.55  # of the time of SGD's loop over large tensors: fusing saves no more, see References
PYTHON_NS = 100_000  # between the operators of one tensor, with the profiler, at most: see References
LEAST_LAUNCHES = 20  # per step on a GPU: for few tensors, foreach launches hardly fewer kernels
LARGE_BYTES = 2**18  # of a tensor: from here reading and writing it takes longer than the calls, see References

WORTH_SHARE = Threshold("worth_share", 0.1, "a fused step still takes half: below 10 % the saving is within noise")

RULE = Rule(
    code="DP603",
    name="unfused-optimizer",
    family="host",
    kind="time",
    summary="the optimizer updates parameters one at a time instead of in one fused kernel",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose the fused implementation where the optimizer loops, and takes a share of the step worth it."""
    yield from _of_torch(run)
    if run.facts:  # only a recording shows whether the script defines the class
        yield from _of_script(run)


def _of_torch(run: RunView) -> Iterator[Advice]:
    facts = run.any_facts("optimizers", "optimizers.fused")
    cpu = run.measured.device_kind == "cpu"
    of_script = {optimizer.loop.optimizer for optimizer in written(run)} if run.facts else set()
    looping = [
        optimizer
        for optimizer in facts.optimizers
        if optimizer.name in CAN_BE_FUSED
        and optimizer.name not in of_script
        and not optimizer.fused
        and not optimizer.foreach
        and ((cpu and run.facts) or optimizer.foreach is False)
    ]
    if not looping:
        return
    if len(looping) < len(facts.optimizers):
        raise Missing("several optimizers step; their time cannot be separated")
    phases = [phase for phase in run.measured.phases if phase.phase != "unknown"]
    host_ns = sum(phase_figures.host_ns for phase_figures in phases)
    optimizer_phases = [phase_figures for phase_figures in phases if phase_figures.phase == "optimizer"]
    tensors = sum(optimizer_facts.parameter_tensors for optimizer_facts in looping)
    total_bytes = sum(
        optimizer_facts.parameters * max(map(_number_bytes, optimizer_facts.dtypes), default=4)
        for optimizer_facts in looping
    )
    large = total_bytes >= LARGE_BYTES * tensors > 0
    gain = _gain(run, looping, large=large)
    share = _loop_ns(run, optimizer_phases, tensors) / host_ns if host_ns else 0.0
    computed = (
        sum(phase_figures.compute_ns + phase_figures.exposed_communication_ns for phase_figures in optimizer_phases)
        / run.measured.account.window_ns
    )
    launches = None if cpu else _launches(run)
    zeroing = launches if launches is not None and launches.zeroing_per_step >= 1 else None
    if launches is not None and launches.per_step < LEAST_LAUNCHES:
        return
    if not cpu:
        zeroing_ns = zeroing.zeroing_host_ns if zeroing else 0
        idle = run.host_caused_idle_share() + (run.measured.share("input_idle_ns") if script_loads(run) else 0.0)
        share = min(share + zeroing_ns / host_ns if host_ns else 0.0, idle + computed)
    if run.impact(gain * share, WORTH_SHARE) is None:
        return
    changes = [
        Change(knob="optimizer.fused", now=False, then=True, at=Location.parse(optimizer_facts.where))
        for optimizer_facts in looping
    ]
    most = gain * run.unstretched(max(share, computed))
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact_of(gain * share / 2) or "low",  # a fused step still takes half
        title=f"{looping[0].name} takes {100 * share:.0f} % of a step {_reason(tensors, large=large)}: pass fused=True"
        + (", and set_to_none=True to zero_grad" if zeroing else ""),
        why="The loop calls several operators for each tensor, and each of them reads and writes the whole tensor.",
        changes=changes,
        saves=_predicted(run, [optimizer_facts.name for optimizer_facts in looping], share, most, gain)
        or run.saving(changes, run.bound(0.0, most, f"{_part(gain)}the optimizer's loop time on host or device")),
        confidence="medium",
        evidence=[
            Evidence(label="the optimizer's loop", value=share, unit="of a traced step").at(
                run.measured.where("optimizer")
            ),
            *_without_profiler(run, most),
            *_counts(looping, zeroing),
        ],
        numerics="same",
        watch="Weights agree up to floating-point rounding."
        + ("" if run.facts else " Before torch 2.0, which fuses fewer optimizers, pass foreach=True."),
        fingerprint=f"{RULE.code}:optimizer.fused:{looping[0].name}",
    )


def _without_profiler(run: RunView, most: float) -> Iterator[Evidence]:
    """The share of an untraced step, where one was timed; without one it equals that of the traced step."""
    if run.measured.step.basis != "traced":
        yield Evidence(
            label="upper bound, assuming no profiler overhead in the loop", value=most, unit="of an untraced step"
        )


def _of_script(run: RunView) -> Iterator[Advice]:
    """Steps that the script wrote itself."""
    phase = _phase_share(run.measured.known("phases") or [])
    if unknown(run) and phase >= run.limit(WORTH_SHARE):
        raise Missing(run.measured.missing["optimizer_loops"])
    cpu = run.measured.known("device_kind") == "cpu"
    alone = len(run.any_facts("optimizers").optimizers) == 1
    for optimizer in written(run):
        remedy = optimizer.replacement(cpu=cpu)
        found = run.sampled_phase("optimizer") if alone else None
        share = most = phase if alone else min(phase, optimizer.loop.share)
        if found is not None:
            share = max(spent.likely for spent in found.by_rank.values())
            most = max(spent.most for spent in found.by_rank.values())
        if remedy is None or run.impact(share, WORTH_SHARE) is None:
            continue
        saves = None
        if found is not None and remedy == FUSED_ADAM and "adam" in optimizer.loop.optimizer.lower():
            how = f"the optimizer's step is in {found.samples} stack samples"
            saves = run.removed(found.by_rank, how, FUSED_SAVES)
        saves = saves or run.bound(0.0, most, "the optimizer's step")
        yield _of_class(run, optimizer, remedy, share, saves)


def _of_class(run: RunView, optimizer: Written, remedy: str, share: float, saves: Saving) -> Advice:
    loop = optimizer.loop
    name, _, at = next(iter(loop.functions), "step").partition(" at ")
    where = run.hottest_line(name, at) or at
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact_of(share / 2) or "low",  # a fused step still takes half
        title=f"`{loop.optimizer}`{f' ({where})' if where else ''} takes {100 * share:.0f} % of a step calling "
        f"{optimizer.calls / optimizer.tensors:.0f} operators for each of {optimizer.tensors} tensors: use {remedy}",
        why="Each operator reads and writes the whole tensor, and each call costs the host microseconds.",
        changes=[],
        saves=saves,
        confidence="medium",
        evidence=[
            Evidence(label="optimizer.step()", value=share, unit="of a step").at(run.measured.where("optimizer")),
            *(Evidence(label=function, value=loop.optimizer) for function in loop.functions),
            *call_path_evidence(run, name, at),
            Evidence(label="operators", value=round(optimizer.calls, 1), unit="per step"),
            Evidence(label="tensors", value=optimizer.tensors),
            Evidence(label="parameters", value=optimizer.numbers),
        ],
        numerics="same",
        watch="Weights agree up to floating-point rounding if the class computes the same update: compare the weights "
        "of both after a few steps. State dicts of the optimizer differ.",
        fingerprint=f"{RULE.code}:{loop.optimizer}",
    )


def _phase_share(phases: Sequence[PhaseFigures]) -> float:
    """The optimizer's share of the host's time in traced steps."""
    host_ns = sum(phase.host_ns for phase in phases if phase.phase != "unknown")
    return sum(phase.host_ns for phase in phases if phase.phase == "optimizer") / host_ns if host_ns else 0.0


def _gain(run: RunView, looping: Sequence[Any], *, large: bool) -> float:
    """The part of the loop's time that fusing can save, without the unused rows that `dense-tables` reports.

    An SGD step on large tensors is memory-bound, and the fused step still reads and writes all of them.
    """
    parameters = sum(optimizer.parameters for optimizer in looping)
    tables = [
        dense_table
        for dense_table in run.any_facts("optimizers").dense_tables
        if dense_table.unused_share >= UNUSED_SHARE
    ]
    dense = sum(table.unused_share * table.rows * table.columns for table in tables)
    rest = max(0.0, 1 - dense / parameters) if parameters else 1.0
    return rest * (SGD_LARGE if large and all(optimizer.name == "SGD" for optimizer in looping) else 1.0)


def _part(gain: float) -> str:
    return "" if gain == 1 else f"{100 * gain:.0f} % of "


def _predicted(run: RunView, names: Collection[str], share: float, most: float, gain: float) -> Saving | None:
    """The saving for Adam and AdamW on a CPU, from stack samples in the optimizer's step; None for other optimizers.

    Samples include what a script or a library runs inside the step, so the trace's share of the loop limits them.
    Without samples the traced loop counts, at the lower end without all of the profiler's overhead in a step. `most`
    and the result are scaled by `gain`, the part of the loop's time that fusing can save.
    """
    if not set(names) <= set(ADAM) or not run.times_hold:
        return None
    found = run.sampled_phase("optimizer")
    if found is None:
        stretch = max(1.0, run.measured.traced_step_ns / run.measured.recorded_step_ns)
        least = max(0.0, share * stretch - (stretch - 1))
        loop = Share(gain * min(least, share), gain * share, most)
        how = "the optimizer's loop in traced steps; at the lower end without all profiler overhead of a step"
        return run.removed({facts.rank: loop for facts in run.facts}, how, FUSED_SAVES, timed=True)
    by_rank = {
        rank: Share(gain * min(spent.least, share), gain * min(spent.likely, share), min(gain * spent.most, most))
        for rank, spent in found.by_rank.items()
    }
    return run.removed(by_rank, f"the optimizer's step is in {found.samples} stack samples", FUSED_SAVES)


def _loop_ns(run: RunView, optimizer_phases: Sequence[PhaseFigures], tensors: int) -> int:
    """What the loop over tensors can take of the host's time in the optimizer's step, over the steps of every rank."""
    host_ns = sum(phase.host_ns for phase in optimizer_phases)
    steps = sum(len(rank.devices[0].steps) for rank in run.measured.ranks if rank.devices)
    code = run.measured.known("user_code")
    scripts_ns = sum(site.cost_ns for site in code.sites if site.phase == "optimizer") * steps if code else 0
    if run.measured.device_kind != "cpu":
        return max(0, host_ns - scripts_ns)
    operators_ns = sum(phase.compute_ns for phase in optimizer_phases)
    between_ns = min(host_ns - operators_ns - scripts_ns, PYTHON_NS * tensors * steps)
    return operators_ns + max(0, between_ns)


def _launches(run: RunView) -> OptimizerLaunches | None:
    """The launches of an optimizer that launches kernels for each tensor; None if not known."""
    waited = run.measured.known("launch_idle")
    launches: OptimizerLaunches | None = waited.known("optimizer") if waited else None
    return launches if launches is not None and launches.for_each_tensor else None


def _counts(looping: Sequence[Any], zeroing: OptimizerLaunches | None) -> Iterator[Evidence]:
    """The numbers of tensors and parameters, if known, and the launches in `zero_grad`."""
    yield from known("tensors", sum(optimizer_facts.parameter_tensors for optimizer_facts in looping))
    yield from known("parameters", sum(optimizer_facts.parameters for optimizer_facts in looping))
    if zeroing is not None:
        launches = f"of {zeroing.per_step:,.0f} launches of {zeroing.name} per step"
        yield Evidence(label="launches in zero_grad", value=round(zeroing.zeroing_per_step), unit=launches)


def _reason(tensors: int, *, large: bool) -> str:
    """Why the loop takes long, by the mean size of its tensors."""
    if large:
        return f"reading and writing each of {tensors} tensors several times"
    return f"updating {f'{tensors} ' if tensors else ''}tensors one at a time"


def _number_bytes(dtype: str) -> int:
    return {"float64": 8, "bfloat16": 2, "float16": 2}.get(dtype, 4)
