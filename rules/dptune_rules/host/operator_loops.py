"""A Python loop calls the same operators for each sample, position or element.

## What it measures

Functions of the script that call one operator 16 times or more per call, directly and not through modules, in the
detailed window. Their share of the step comes from stack samples of untraced steps, because the profiler slows loops of
small operators most. Functions that call the same module 16 times or more count too, for example `self.net(row)` for
each row, unless they evaluate or run backward passes between the calls. Four calls are enough if each is for another
slice of one tensor, none needs the one before by the source of the loop, and most of their time is not compute or a
call takes 2 ms at most (the saving is then an upper bound). Time in a function that is reported itself is not counted
again for its caller. With too few samples, or for a function that runs the training loop itself, the share is the host
time of these operators and of the Python between them. Cells of recurrent networks (`nn.LSTMCell`) count although
modules call them. A function whose repeated operators take less than a tenth of its time is left out: it does other
things in the loop. Loops inside a library that the function calls, for example over tokens in `generate`, do not count.
Loops over parameters are reported by `per-tensor-loops`, those of an optimizer's step by `unfused-optimizer`, slow data
loading by the input rules.

## Why it matters

Each operator call costs microseconds, however few elements it computes on: on a GPU a kernel launch, and in the forward
pass a node of the autograd graph, so the backward pass calls the same number of operators again. One operator on the
whole batch pays that cost once.

## What to change

- Over pairs: a matrix product, of `F.normalize(a, dim=-1)` and `F.normalize(b, dim=-1).mT` for cosine similarities, or
  `torch.cdist`. Over samples: one call on the whole batch; use `torch.gather`, `index_select` or a mask to pick;
  `torch.bincount`, `scatter_add_` or `index_add_` to count.
- Over a list of states: `torch.stack` them and call the model once.
- Over slices of one tensor, for example the frames of a clip: `model(x.flatten(0, 1)).unflatten(0, x.shape[:2])`.
- Over positions with `nn.LSTMCell`, `nn.GRUCell` or `nn.RNNCell`: `nn.LSTM`, `nn.GRU` or `nn.RNN`, which run the whole
  sequence in one call, if all inputs are known before the loop. The weights are the same: copy `weight_ih` to
  `weight_ih_l0`, and so on.
- For values that never change (a table of positions): compute them once and keep them as a buffer.
- `torch.vmap` for a function of one sample.
- For copies of a state (`copy.deepcopy(model.state_dict())`, or a comprehension that clones each tensor): copy less
  often, for example once per evaluation. A training loss that is averaged over steps is lowest in nearly every step.
- For checks of single tensors for NaN or infinity: check the loss, or one norm of all tensors (`torch._foreach_norm`
  and a norm of their stack), or check every N steps. Look for the tensor only after a check has failed.

A module that a loop over a list calls with one row for each item is reported from two items on, by the line of the
loop: one call with all rows costs the host hardly more than one of them. In the warm-up steps, each loop must call it
once for each item, with one shape, and by the source no call may need the one before. The saving is an upper bound: the
time at that line, except one call of each loop. Functions that spend most of their time there are not reported again.
A line that calls four or more modules of one class and shape on the same input is reported in the same way (each head
of attention a module), if a call takes 2 ms at most.

On a CPU, what an operator takes beyond 10 us is compute, up to 10 ns per input element. Where that is half or more of
the time of all operators in the loop, one call for the whole batch would compute the same and save little. Look for
results that recur: with the same pairs in every permutation, compute each pair once and index the table of pairs.
Whether results recur is not recorded, so the confidence is low, the impact at most medium, and the saving an upper
bound. Checks for NaN are exempt: none of their compute is needed.

On a CPU, with enough stack samples, the saving is predicted from the sampled time of the loop and of its backward pass,
which the trace matches by autograd's sequence numbers. Lower end: 0.8 times the part that is not compute; compute is
taken as one nanosecond per input element, for matrix products as their whole time. Upper end: 1.3 times this time. The
interval includes the sampling error, and 30 % for the backward pass, which only the trace shows. Otherwise the
saving is an upper bound: the time of the loop, or three times that for a loop in the forward pass, because its backward
pass takes up to twice as long. If the backward pass runs none of these operators, the results of the loop need no
gradient, and the bound is the time of the loop.

## When to leave it alone

- Each iteration needs the result of the one before, in a cell that torch has no layer for: use `torch.compile`. Cells
  whose input needs the output before, as a token that is sampled, are not reported; where the source does not show it,
  impact and confidence are low.
- The function collects experience for reinforcement learning (`rollout`, `collect`, or one that draws actions and steps
  an environment): each action depends on the step before. The impact is then low.
- It calls a module in a loop: the trace does not show whether a call needs the result of the one before. Unless calls
  are for one sample each, as many as the batch has samples, impact and confidence are low.
- Memory: one operator on all pairs holds all pairs at once.

## References

- PyTorch, "Performance Tuning Guide": https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- torch.vmap: https://pytorch.org/docs/stable/generated/torch.vmap.html
- Measured on a CPU: convolutions on 10 frames of 4 x 3 x 24 x 24 and their backward pass took 7.1 ms in a loop, and
  2.1 ms in one call for all frames.
- Measured on a CPU: a table filled element by element takes 41 % of the step by stack samples; without it a step was 35
  to 54 % shorter. The detailed window alone shows 94 %, because recording 55,000 events per step is slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import hypot

from dptune.advice import Advice, Confidence, Evidence, Saving
from dptune.measured import OperatorLoop, digits, in_ms
from dptune.rule import Rule, RunView, Share, Threshold
from dptune_rules.call_paths import call_path_evidence
from dptune_rules.host.known_calls import (
    LAYERS,
    OF_SLICES,
    OF_STEPS,
    WATCH_STEPS,
    inputs_known,
    is_by_sample,
    slices_of,
    watch_slices,
)
from dptune_rules.host.row_calls import covered, row_calls
from dptune_rules.host.sibling_calls import sibling_calls
from dptune_rules.known import named_with_class

WORTH_SHARE = Threshold("worth_share", 0.05, "impact is medium from here; identical steps differ by about as much")

COMPUTED_SHARE = Threshold(
    "computed_share",
    0.5,
    "of the time of the loop's operators: if most of it is compute, one call for all saves less than half. In loops of "
    "small operators 10 to 32 % was beyond 10 us per operator, in a loop over 80,000 samples of sound 62 to 76 %",
)

PART = Threshold(
    "part",
    0.1,
    "of the function's time that the repeated operators take, with the Python between them: a loop over time steps of "
    "an environment, which also runs a policy, had 0.02",
)

MOST_NS = 10  # per input element: operators on small tensors that take longer wait for the host, as on a busy machine

BACKWARD_TIMES = 2  # a backward pass computes two products for each one of the forward pass
MOST = 3  # loops that are named
IF_APART = "use one call if none needs the result of the one before"
SLICES = "DP622"  # which reports what the slices of a loop take
TIMES_SLICES = 1.5  # as long as its slices: without them, the loop still takes a third of its time
LEAST_CALLS = 16  # of a module, if nothing else shows that calls are independent
SLICE_NS = 2_000_000  # of a call for one slice: of longer ones most is compute, on tensors that are large enough
BACKWARD_ERROR = 0.3  # relative, of the backward pass, which only traced steps show

RULE = Rule(
    code="DP610",
    name="operator-loops",
    family="host",
    kind="time",
    summary="a Python loop calls the same operators for each sample, position or element",
    since="0.1",
    thresholds=(WORTH_SHARE, COMPUTED_SHARE, PART),
    last=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each function that loops over operators for a share of the step worth it."""
    of_rows = [*row_calls(RULE, run, WORTH_SHARE), *sibling_calls(RULE, run, WORTH_SHARE)]
    yield from of_rows
    if of_rows and run.measured.known("user_code") is None:
        return
    run = replace(run, advised=(*run.advised, *of_rows))
    if run.measured.known("user_code") is None and run.measured.share("other_idle_ns") < run.limit(WORTH_SHARE):
        return  # as uncovered-cost: whatever the script does takes less
    found = run.measured.user_code
    loops = [loop for loop in found.loops if f"{loop.name} at {loop.at}" not in _of_optimizers(run)]
    loops = [loop for loop in loops if inputs_known(run, loop) is not False]  # else each round needs the one before
    loops = [loop for loop in loops if not loop.module or loop.repeats >= LEAST_CALLS or _by_slice(run, loop)]
    loops = [loop for loop in loops if not covered(run, loop.name, loop.at) and _takes_its_part(run, loop)]
    loops = [loop.model_copy(update={"share": _share(run, loop)}) for loop in loops]
    worth = [loop for loop in loops if run.impact(loop.share, WORTH_SHARE)]
    worth = [loop for loop in worth if not (loop.module and run.reports(loop.name))]
    named = [operator_loop for operator_loop in worth if not _explained(run, operator_loop)]
    alone = [(operator_loop, _called(operator_loop, named)) for operator_loop in named]
    alone = [
        (operator_loop.model_copy(update={"share": _share(run, operator_loop, called)}), called)
        for operator_loop, called in alone
    ]
    alone = [(operator_loop, called) for operator_loop, called in alone if run.impact(operator_loop.share, WORTH_SHARE)]
    for loop, called in sorted(alone, key=lambda each: -each[0].share)[:MOST]:
        yield _advice(run, loop, called, "medium" if found.basis == "untraced" else "low")


def _takes_its_part(run: RunView, loop: OperatorLoop) -> bool:
    """Whether what is repeated takes a considerable part of the function, which else does other things meanwhile.

    The profiler slows small operators most, so that their part is rather overestimated.
    """
    found = None if loop.crossing else run.found_share(loop.rank, loop.name, loop.at)
    return found is None or loop.share >= run.limit(PART) * found[0]


def _of_optimizers(run: RunView) -> set[str]:
    """Functions of optimizer steps, whose loops over parameters `unfused-optimizer` weighs."""
    return {function for loop in run.measured.known("optimizer_loops") or [] for function in loop.functions}


def _called(loop: OperatorLoop, named: Sequence[OperatorLoop]) -> list[tuple[str, str]]:
    """The other functions that are named: where the loop calls them, their time is not counted twice."""
    return [
        (other.name, other.at)
        for other in named
        if (other.name, other.at) != (loop.name, loop.at) and not other.crossing
    ]


def _explained(run: RunView, loop: OperatorLoop) -> bool:
    """Whether another rule names the function, or the line where most of its time goes: a collective, say.

    Slices are only a part of a loop that takes much longer than they do.
    """
    slices = [
        function.share
        for function in run.measured.user_code.slice_gradients
        if (function.name, function.at) == (loop.name, loop.at)
    ]
    whole = loop.share * (1 + (loop.backward_share or 0.0))
    but = (SLICES,) if slices and whole >= TIMES_SLICES * max(slices) else ()
    if named_with_class(run, loop.name, loop.at):
        return True
    return run.explained(loop.at, loop.name, run.hottest_line(loop.name, loop.at) or "", but=but)


def _share(run: RunView, loop: OperatorLoop, called: Sequence[tuple[str, str]] = ()) -> float:
    """Of the function with all that it calls but `called`, by stack samples; of its operators where it runs the
    training loop.
    """
    found = run.found_share(loop.rank, loop.name, loop.at, called)
    if found is None or loop.crossing:
        return run.agreed_share(loop.share, loop.rank, loop.name, loop.at)
    return found[0]


def _predicted(run: RunView, loop: OperatorLoop, called: Sequence[tuple[str, str]], copies: bool) -> Saving | None:
    """The saving without the loop, from every rank; None where stack samples or the trace do not show it."""
    found = None if loop.crossing else run.sampled_share(loop.name, loop.at, training=True, without=called)
    backward = loop.backward_share
    if found is None or loop.computed_share is None or (backward is None and loop.phase == "forward"):
        return None
    again, computed = backward or 0.0, 0.0 if copies else loop.computed_share
    by_rank = {rank: _with_backward(share, again, computed) for rank, share in found.by_rank.items()}
    how = f"`{loop.name}` is in {found.samples} stack samples"
    how += f", and its backward pass takes {digits(again)} times as long in the trace" if again else ""
    return run.removed(by_rank, how)


def _with_backward(sampled: Share, again: float, computed: float) -> Share:
    """The share of the loop and its backward pass, at least without its compute. The two errors are independent."""
    both = sampled.likely * (1 + again)
    of_backward = BACKWARD_ERROR * again * sampled.likely
    below, above = (
        hypot(off * (1 + again), of_backward) for off in (sampled.likely - sampled.least, sampled.most - sampled.likely)
    )
    return Share(max(0.0, (both - below) * (1 - computed)), min(1.0, both), min(1.0, both + above))


def _by_slice(run: RunView, loop: OperatorLoop) -> bool:
    """Whether its calls are for one slice each, and short: operators on small tensors cost more than their compute."""
    short = not _computes(run, loop) or loop.cost_ns <= SLICE_NS * loop.repeats
    return short and slices_of(run, loop) is not None


def _computes(run: RunView, loop: OperatorLoop) -> bool:
    """Whether most of it is compute that one call for the whole batch also needs; checks need no compute."""
    computed = _least_computed_share(loop)
    if loop.checks or loop.operator in LAYERS:
        return False
    return computed is not None and computed >= run.limit(COMPUTED_SHARE)


def _least_computed_share(loop: OperatorLoop) -> float | None:
    """Of the time of the loop's operators: what is beyond the cost of calls, as far as inputs are large enough."""
    least, most = loop.least_computed_share, loop.computed_share
    return least if least is None or most is None else min(least, MOST_NS * most)


def _copies(run: RunView, loop: OperatorLoop) -> bool:
    """Whether most of its time is in lines that copy a state: less of that is needed, whatever it computes."""
    form = None if loop.crossing else run.line_form(loop.name, loop.at)
    return form is not None and form.form == "copy"


def _remedy(loop: OperatorLoop, computes: bool, copies: bool, unsure: bool, of_module: str) -> str:
    layer = LAYERS.get(loop.operator)
    if unsure:
        return f"use {layer} if all inputs are known before the loop" if layer else IF_APART
    if of_module and not layer:
        return of_module
    if copies:
        return "copy less often, for example once per evaluation"
    if loop.checks:
        return "check the loss, or one norm of all tensors (torch._foreach_norm), or check every N steps"
    if computes:
        return "compute results that recur once"
    return f"use {layer} for the whole sequence" if layer else "use one call for the whole batch"


def _why(loop: OperatorLoop, computes: bool, copies: bool, goes_back: bool) -> str:
    if copies:
        return "Each copy of a model or optimizer state makes new tensors and copies all values."
    if loop.checks:
        return "Each check calls several operators on one tensor, and Python waits for its result."
    if computes:
        return "Most of the time is compute and not the cost of calls: one call for the whole batch computes the same."
    words = "Each call costs the host microseconds, however few elements it computes on."
    return words + " The backward pass calls the same number of operators again." if goes_back else words


def _watch(loop: OperatorLoop, collects: bool, computes: bool, copies: bool) -> str:
    if copies:
        return "Decide by a validation metric, which changes only at an evaluation."
    if collects:
        return "Each step of an environment needs the action before it: step many environments in one call instead."
    if loop.checks:
        return (
            "A NaN is then found through the loss or the norm, up to N steps later. To name the tensor, check each one "
            "after that."
        )
    if computes:
        return "Results agree up to floating-point rounding. If none recurs, there is little to save here."
    if loop.operator in LAYERS:
        return (
            "Results agree up to floating-point rounding. The layer has the cell's weights under other names "
            "(`weight_ih` is `weight_ih_l0`), so old checkpoints must be renamed."
        )
    return (
        "Results agree up to floating-point rounding. If each iteration needs the result of the one before, only "
        "a fused module or torch.compile helps."
    )


def _advice(run: RunView, loop: OperatorLoop, called: Sequence[tuple[str, str]], confidence: Confidence) -> Advice:
    where = run.hottest_line(loop.name, loop.at) or loop.at
    times = 1 + BACKWARD_TIMES if loop.phase == "forward" and loop.backward else 1
    collects = run.collects_experience(loop.name, "" if loop.crossing else loop.at)
    slices = slices_of(run, loop) if loop.module and _by_slice(run, loop) else None
    where = slices.where if slices else where
    known = inputs_known(run, loop)
    unsure = bool(loop.module) and not slices and not known and not is_by_sample(run, loop)
    unsure = unsure or (loop.operator in LAYERS and not known)
    copies = _copies(run, loop)
    capped = not copies and _computes(run, loop)
    computes = capped and not slices and not known
    most = "the loop" + (", plus twice its time in the backward pass" if times > 1 else "")
    saves = _predicted(run, loop, called, copies) or run.bound(0.0, min(1.0, times * loop.share), most)
    impact = "low" if collects or unsure else run.impact(loop.share, WORTH_SHARE) or "low"
    what, share = loop.module or loop.operator, f"{100 * loop.share:.0f} % of the step"
    if capped:
        saves = run.bound(0.0, saves.high_share or 0.0, "the loop and its backward pass")
        impact = "medium" if impact == "high" else impact
    if computes:
        share += f", mostly compute (at least {in_ms(loop.least_computed_ns or 0)} ms in a traced step)"
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"`{loop.name}` ({where}) calls {what} {loop.repeats:,.0f} times in a Python loop, {share}"
        + (
            ""
            if collects
            else f": {_remedy(loop, computes, copies, unsure, OF_SLICES if slices else OF_STEPS if known else '')}"
        ),
        why=_why(loop, computes, copies, goes_back=times > 1),
        changes=[],
        saves=saves,
        confidence="low" if collects or computes or unsure else confidence,
        evidence=[
            Evidence(label=f"{loop.name} at {loop.at}", value=loop.cost_ns / 1e6, unit="ms per step", rank=loop.rank),
            Evidence(label=f"calls of {what}", value=loop.repeats, unit="per call of the function"),
            *(
                [Evidence(label="compute, at least", value=least, unit="of the loop's operators")]
                if (least := _least_computed_share(loop)) is not None
                else []
            ),
            *([] if loop.crossing else call_path_evidence(run, loop.name, loop.at)),
        ],
        numerics="changes" if slices and slices.norms else "same",
        watch=watch_slices(slices)
        if slices
        else WATCH_STEPS
        if known and loop.module
        else _watch(loop, collects, computes, copies),
        fingerprint=f"{RULE.code}:{loop.name}",
    )
