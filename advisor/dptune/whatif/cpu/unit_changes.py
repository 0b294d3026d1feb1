"""Changes of how units of fully_shard communicate, as changes of a step model.

What a model cannot tell raises Missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby

from dptune.knobs import Value
from dptune.knobs.fsdp import DTYPES
from dptune.measured import Missing
from dptune.whatif.cpu.model import Pass, RankStep, StepModel
from dptune.whatif.cpu.units import CALL_NS, Direction, Sharding, UnitCall, element_bytes

TO_GROUPS = "resharding to groups of ranks is not modelled: only true and false are"


def reshard_after_forward(model: StepModel, value: Value) -> StepModel:
    """Units that stay gathered are not gathered in backward passes; None, torch's default: only the root stays so."""
    if not isinstance(value, bool | None):
        raise Missing(TO_GROUPS)
    if value is not False:
        if any(_gathers_again(pass_) for pass_ in _passes(model)):
            return model
        kept = {place for place, name in enumerate(sharding_of(model).names) if value is None and not name}
        return replace(model, steps=model.each_pass(lambda pass_: gathering_again(pass_, kept)))
    return replace(model, steps=model.each_pass(lambda pass_: without(pass_, _is_gathered_again)))


def prefetch(model: StepModel, value: Value) -> StepModel:
    """A gather blocks whenever it is issued, so issuing it ahead leaves the step as it is."""
    return model


def reduce_dtype(model: StepModel, value: Value) -> StepModel:
    """Reductions send elements of another size; the cast replaces a copy, which takes as long."""
    sharding = sharding_of(model)
    dtype = None if value is None else DTYPES[str(value)]
    before, after = (name or sharding.parameter_dtype for name in (sharding.reduce_dtype, dtype))
    times = element_bytes(after) / element_bytes(before)
    resized = _resized(model, lambda call: times if call.kind == "reduce" else 1.0)
    return replace(resized, sharding=replace(sharding, reduce_dtype=dtype))


def parameter_dtype(model: StepModel, value: Value) -> StepModel:
    """Gathers send elements of another size, and so do reductions where no dtype is set for them."""
    sharding = sharding_of(model)
    dtype = None if value is None else DTYPES[str(value)]
    times = element_bytes(dtype) / element_bytes(sharding.parameter_dtype)
    both = sharding.reduce_dtype is None
    resized = _resized(model, lambda call: times if both or call.kind == "gather" else 1.0)
    return replace(resized, sharding=replace(sharding, parameter_dtype=dtype))


def no_sync(model: StepModel, value: Value) -> StepModel:
    """All passes but the last reduce no gradients; or each as the last one does."""

    def of(step: RankStep) -> RankStep:
        *before, last = step.passes
        reductions = [call for call in last.calls if call.kind == "reduce"]
        if not reductions:
            raise Missing("the last backward pass of a step does not reduce gradients")
        if value:
            silent = (without(pass_, lambda call: call.kind == "reduce") for pass_ in before)
            return replace(step, passes=(*silent, last))
        return replace(step, passes=(*(_reducing(pass_, last, reductions) for pass_ in before), last))

    return replace(model, steps={rank: [of(step) for step in steps] for rank, steps in model.steps.items()})


def units(model: StepModel, value: Value) -> StepModel:
    """So many units: neighbours are merged until they are of like size, or each is split into equal parts.

    A merged unit is gathered where the first of its parts was, and reduced where the last was. Each collective that
    goes spares the part of its hook that does not depend on the size of a unit, and each new one takes it again.
    """
    names, count, call_ns = sharding_of(model).names, int(value or 0), model.wrapper_times * CALL_NS
    sizes = {call.unit: call.message_bytes for pass_ in _passes(model) for call in pass_.calls if call.kind == "gather"}
    if count < 1:
        raise Missing("a model needs at least one unit")
    if count <= len(names):
        group = grouped([sizes[place] for place in range(len(names))], count)
        merged = tuple(", ".join(found) for found in _by_group(names, group))
        steps = model.each_pass(lambda pass_: _merged(pass_, group, call_ns))
        return replace(model, steps=steps, sharding=replace(sharding_of(model), names=merged))
    if count % len(names):
        raise Missing(f"units can only be split evenly: set fsdp.units to a multiple of {len(names)}")
    parts = count // len(names)
    split = tuple(f"{name} ({part + 1} of {parts})" for name in names for part in range(parts))
    steps = model.each_pass(lambda pass_: _split(pass_, parts, call_ns))
    return replace(model, steps=steps, sharding=replace(sharding_of(model), names=split))


def sharding_of(model: StepModel) -> Sharding:
    """How units are sharded. Raises Missing where none is."""
    if model.sharding is None:
        raise Missing("the script does not call fully_shard")
    return model.sharding


def _passes(model: StepModel) -> Iterator[Pass]:
    """Of each rank those of its first step: all steps issue the same collectives."""
    return (pass_ for steps in model.steps.values() for pass_ in steps[0].passes)


def _is_gathered_again(call: UnitCall) -> bool:
    return (call.kind, call.direction) == ("gather", "backward")


def _gathers_again(pass_: Pass) -> bool:
    return any(map(_is_gathered_again, pass_.calls))


def without(pass_: Pass, dropped: Callable[[UnitCall], bool]) -> Pass:
    """The pass without some collectives, nor their hooks and copies."""
    kept = []
    spared = {"forward": 0.0, "backward": 0.0}
    for call in pass_.calls:
        if dropped(call):
            spared[call.direction] += call.around_ns
        else:
            kept.append(replace(call, at_ns=max(0.0, call.at_ns - spared[call.direction])))
    return replace(
        pass_,
        forward_ns=max(0.0, pass_.forward_ns - spared["forward"]),
        backward_ns=max(0.0, pass_.backward_ns - spared["backward"]),
        calls=tuple(kept),
    )


def gathering_again(pass_: Pass, kept: Collection[int] = ()) -> Pass:
    """The pass with a gather of each unit before its backward compute, issued one unit ahead, as torch does it.

    Not of those that are `kept` after the forward pass.

    Those of the first two units start the backward pass; each further one follows the reduction two units before.
    """
    gathers = {call.unit: call for call in pass_.calls if call.kind == "gather"}
    reductions = [call for call in pass_.calls if call.kind == "reduce"]
    order = [call.unit for call in reductions if call.unit in gathers] or sorted(gathers, reverse=True)
    again = [replace(gathers[unit], direction="backward", at_ns=0.0) for unit in order if unit not in kept]
    issued = again[:2] if reductions else again
    for place, reduction in enumerate(reductions):
        issued.append(reduction)
        issued += [replace(call, at_ns=reduction.at_ns) for call in again[place + 2 : place + 3]]
    calls, added_ns = [call for call in pass_.calls if call.direction == "forward"], 0.0
    for call in issued:
        added_ns += call.around_ns if call.kind == "gather" else 0.0
        calls.append(replace(call, at_ns=call.at_ns + added_ns))
    return replace(pass_, backward_ns=pass_.backward_ns + added_ns, calls=tuple(calls))


def _reducing(pass_: Pass, last: Pass, reductions: Sequence[UnitCall]) -> Pass:
    """The pass with the reductions of another, at the same parts of its backward pass, where it has none."""
    if any(call.kind == "reduce" for call in pass_.calls):
        return pass_
    times = pass_.backward_ns / last.backward_ns if last.backward_ns else 1.0
    calls = [*pass_.calls, *(call.scaled(times) for call in reductions)]
    calls.sort(key=lambda call: (call.direction == "backward", call.at_ns))
    added_ns = sum(call.around_ns for call in reductions)
    return replace(pass_, backward_ns=pass_.backward_ns + added_ns, calls=tuple(calls))


def _resized(model: StepModel, times: Callable[[UnitCall], float]) -> StepModel:
    """Collectives of so many times the bytes."""

    def of(pass_: Pass) -> Pass:
        calls = (replace(call, message_bytes=call.message_bytes * times(call)) for call in pass_.calls)
        return replace(pass_, calls=tuple(calls))

    return replace(model, steps=model.each_pass(of))


def grouped(sizes: Sequence[float], count: int) -> list[int]:
    """Which of so many units each of the present ones becomes a part of: neighbours, of about equal bytes together."""
    total = sum(sizes) or 1.0
    middles = [end - size / 2 for end, size in zip(accumulate(sizes), sizes, strict=True)]
    wanted = [min(count - 1, int(count * middle / total)) for middle in middles]
    found: list[int] = []
    for place, group in enumerate(wanted):  # none is left out, and none is empty
        least = max(found[-1] if found else 0, count - (len(sizes) - place))
        found.append(max(least, min(group, found[-1] + 1 if found else 0)))
    return found


def _by_group(names: Sequence[str], group: Sequence[int]) -> Iterator[list[str]]:
    for _, pairs in groupby(zip(group, names, strict=True), key=lambda pair: pair[0]):
        yield [name for _, name in pairs]


def _merged(pass_: Pass, group: Sequence[int], call_ns: float) -> Pass:
    """One call for all of a unit's parts in a row, of the same kind and pass: a gather at the first, else at the last.

    Hooks and copies of the parts take what they took, but for `call_ns` of each collective that goes, at most all.
    """
    together: dict[tuple[str, str, int], list[UnitCall]] = {}
    for call in pass_.calls:
        together.setdefault((call.direction, call.kind, group[call.unit]), []).append(call)
    kept = []
    spared: dict[Direction, float] = {"forward": 0.0, "backward": 0.0}
    for call in pass_.calls:
        parts = together[call.direction, call.kind, group[call.unit]]
        if call is not (parts[0] if call.kind == "gather" else parts[-1]):
            spared[call.direction] += min(call_ns, call.around_ns)
            continue
        gone = [part for part in parts if part is not call]
        around_ns = call.around_ns + sum(max(0.0, part.around_ns - call_ns) for part in gone)
        size, at_ns = sum(part.message_bytes for part in parts), max(0.0, call.at_ns - spared[call.direction])
        kept.append(replace(call, unit=group[call.unit], at_ns=at_ns, message_bytes=size, around_ns=around_ns))
    forward_ns, backward_ns = pass_.forward_ns - spared["forward"], pass_.backward_ns - spared["backward"]
    return replace(pass_, forward_ns=max(0.0, forward_ns), backward_ns=max(0.0, backward_ns), calls=tuple(kept))


def _split(pass_: Pass, parts: int, call_ns: float) -> Pass:
    """The pass with each call in so many, one after the other: at even distances until the next call of its kind.

    Each further part takes `call_ns` again, or what the whole call took around it where that is less.
    """
    calls: list[UnitCall] = []
    wholes_ns = []
    for direction, whole_ns in (("forward", pass_.forward_ns), ("backward", pass_.backward_ns)):
        of_pass = [call for call in pass_.calls if call.direction == direction]
        at_ns = [*(call.at_ns for call in of_pass), whole_ns]
        added_ns = 0.0
        for place, call in enumerate(of_pass):
            gap_ns = (at_ns[place + 1] - at_ns[place]) / parts if call.kind == "gather" else 0.0
            fixed_ns = min(call_ns, call.around_ns)
            size, around_ns = call.message_bytes / parts, (call.around_ns - fixed_ns) / parts + fixed_ns
            for part in range(parts):
                added_ns += fixed_ns if part else 0.0
                unit = call.unit * parts + (part if direction == "forward" else parts - 1 - part)
                moment = call.at_ns + part * gap_ns + added_ns
                calls.append(replace(call, unit=unit, at_ns=moment, message_bytes=size, around_ns=around_ns))
        wholes_ns.append(whole_ns + added_ns)
    forward_ns, backward_ns = wholes_ns
    return replace(pass_, forward_ns=forward_ns, backward_ns=backward_ns, calls=tuple(calls))
