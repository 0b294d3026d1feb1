"""Which of the calls of modules between two optimizer steps were not needed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dptune.capture.injected.observe.call_contents import Contents
from dptune.capture.injected.observe.repeated_rows import Rows
from dptune.capture.injected.observe.source_loops import Line

_LEAST_PREFIXES = 3


@dataclass(eq=False)
class Call:
    """One call of a module, `training` or not, `after` so many backward passes.

    `inputs` and `outputs` only of modules that were called before. `features` are the inputs without labels. `reached`:
    a backward pass went through the outputs of the outermost call around it, as far as that is known.
    """

    module: Any
    around: Call | None
    after: int
    training: bool = True
    graph: bool = False
    spent_ns: int = 0
    inputs: Contents | None = None
    outputs: Contents | None = None
    lines: tuple[Line, ...] = ()
    rows: tuple[Rows, Rows] | None = None  # of its inputs and of its outputs
    features: Contents | None = None
    reached: bool = True

    @property
    def goes_back(self) -> bool:
        """Whether a backward pass goes through it."""
        return self.graph and self.outermost.reached

    @property
    def outermost(self) -> Call:
        """The outermost of the calls around it, or itself."""
        return self if self.around is None else self.around.outermost

    def inside(self, calls: set[Call]) -> bool:
        """Whether one of these calls is around it."""
        return self.around is not None and (self.around in calls or self.around.inside(calls))


@dataclass
class Repeat:
    """Calls of modules that run in turn: `calls` of the module that takes longest, on `inputs`; `spare`: not needed.

    `trained`: they run without gradients on what the first of `calls` was trained on. `rows_repeat` is how often each
    row of their inputs occurs: if more than once, that part of `spare` is not needed. `unused`: they run on it with
    gradients, and no backward pass goes through their outputs.
    """

    calls: list[Call]
    spare: list[Call]
    prefixes: bool
    inputs: int = 1
    rows_repeat: int = 1
    trained: bool = False
    unused: bool = False

    @property
    def module(self) -> Any:
        """The module that takes longest."""
        return self.calls[0].module

    def spare_ns(self, *, with_graph: bool) -> int:
        """The time that is not needed: all of it, or that of calls with a backward pass."""
        spent = sum(call.spent_ns for call in self.spare if call.goes_back or not with_graph)
        return spent if self.rows_repeat == 1 else spent - spent // self.rows_repeat


def repeats(calls: Sequence[Call]) -> list[Repeat]:
    """The outermost repeated calls, those that run in turn together."""
    prefixes = [*_prefixes(calls)]
    looped = {call for repeat in prefixes for call in repeat.calls}
    return [
        *(repeated for repeated in _same(calls) if not all(call.inside(looped) for call in repeated.spare)),
        *prefixes,
        *_repeated_rows(calls),
    ]


def trained_again(calls: Sequence[Call], before: Sequence[Call], found: Sequence[Repeat]) -> Iterator[Repeat]:
    """Outermost calls without gradients on the inputs of an earlier call with gradients, whose backward pass has run.

    `before`: the calls that the last optimizer step trained on. Those `found` already give the same result again, so
    several on one input are calls of a search that changes the weights.
    """
    known = {call for repeat in found for call in repeat.spare}
    with_graph = [(-1, call) for call in before if call.graph]
    with_graph += [(call.after, call) for call in calls if call.graph]
    earlier: dict[Any, list[tuple[int, Call]]] = defaultdict(list)
    for after, call in with_graph:
        if call.inputs is not None:
            earlier[(id(call.module), call.inputs.key(placed=True))].append((after, call))
    together: dict[int, list[tuple[Call, Call]]] = defaultdict(list)
    for call in calls:
        if call.graph or call.around is not None or call.inputs is None or call in known:
            continue
        same = earlier[(id(call.module), call.inputs.key(placed=True))]
        first = next((trained for after, trained in same if after < call.after), None)
        if first is not None:
            together[id(call.module)].append((first, call))
    for pairs in together.values():
        if len({id(first) for first, _ in pairs}) < len(pairs):
            continue  # with other weights in each of them, as in a line search
        spare = [call for _, call in pairs]
        yield Repeat([pairs[0][0], *spare], spare, prefixes=False, inputs=len(pairs), trained=True)


def unused_again(calls: Sequence[Call], before: Sequence[Call], found: Sequence[Repeat]) -> Iterator[Repeat]:
    """Outermost calls on the inputs of a call that was trained on, through which no backward pass has gone since.

    `before`: the calls that the optimizer step before trained on. Several calls on one input are samples of a random
    result, as with dropout for the uncertainty of a prediction.
    """
    known = {call for repeat in found for call in repeat.spare}
    trained: dict[Any, Call] = {}
    for call in (*calls, *before):
        if call.goes_back and call.around is None and call.features is not None:
            trained.setdefault((id(call.module), call.features.key(placed=True)), call)
    together: dict[int, list[tuple[Call, Call]]] = defaultdict(list)
    for call in calls:
        if call.reached or not call.graph or call.around is not None or call.features is None or call in known:
            continue
        first = trained.get((id(call.module), call.features.key(placed=True)))
        if first is not None:
            together[id(call.module)].append((first, call))
    for pairs in together.values():
        if len({id(first) for first, _ in pairs}) == len(pairs):
            spare = [call for _, call in pairs]
            yield Repeat([pairs[0][0], *spare], spare, prefixes=False, inputs=len(pairs), trained=True, unused=True)


def _repeated_rows(calls: Sequence[Call]) -> Iterator[Repeat]:
    """The outermost calls whose inputs have repeated rows, and so do their outputs, as without dropout.

    Named after the module that takes longest.
    """
    found: dict[int, list[Call]] = defaultdict(list)
    repeated: set[Call] = set()
    for call in calls:
        if call.rows is None or call.inside(repeated):
            continue
        inputs, outputs = call.rows
        times = inputs.repeats()
        if times > 1:
            repeated.add(call)
            if inputs.count == outputs.count and outputs.repeats() == times:
                found[times].append(call)
    for times, together in found.items():
        spent: Counter[int] = Counter()
        for call in together:
            spent[id(call.module)] += call.spent_ns
        most = max(spent, key=lambda each: spent[each])
        of_module = [call for call in together if id(call.module) == most]
        different = (of_module[0].rows[0].count if of_module[0].rows else 0) // times
        yield Repeat(of_module, together, prefixes=False, inputs=different, rows_repeat=times)


def _same(calls: Sequence[Call]) -> Iterator[Repeat]:
    groups: dict[Any, list[Call]] = defaultdict(list)
    for call in calls:
        if call.inputs is not None and call.outputs is not None:
            key = (id(call.module), call.module.training, call.inputs.key(placed=True), call.outputs.key())
            groups[key].append(call)
    several = [group for group in groups.values() if len(group) > 1 and not _parts_of_different(group, groups)]
    accumulated = {call for group in several if _accumulates(group, calls) for call in group}
    accumulated |= _cached(several)
    spares = {id(group[0]): _spare(group) for group in several}
    spare = {call for group in several for call in spares[id(group[0])]}
    found: dict[Any, list[tuple[list[Call], list[Call]]]] = defaultdict(list)
    for group in several:
        outer = [
            call
            for call in spares[id(group[0])]
            if call not in accumulated and not call.inside(spare) and not call.inside(accumulated)
        ]
        if outer:
            found[(id(group[0].around), *(id(call.around) for call in outer))].append((group, outer))
    for together in found.values():
        spent: Counter[int] = Counter()
        for group, outer in together:
            spent[id(group[0].module)] += sum(call.spent_ns for call in outer)
        module = max(spent, key=lambda each: spent[each])
        most = [group for group, _ in together if id(group[0].module) == module]
        unneeded = [call for _, outer in together for call in outer]
        yield Repeat([call for group in most for call in group], unneeded, prefixes=False, inputs=len(most))


def _parts_of_different(group: Collection[Call], groups: Mapping[Any, Sequence[Call]]) -> bool:
    """Whether they are parts of calls of one module that differ: on equal inputs, in dropout or in gradients.

    Or on other inputs, each with its backward pass: nothing that has a graph can be used in both.
    """
    around = {call.around for call in group if call.around is not None}
    if any(call.around is None for call in group) or len(around) < 2 or len({id(call.module) for call in around}) > 1:
        return False
    if any(call.inside(around) for call in around):
        return False  # a module that calls itself
    if any(around <= {*equal} for equal in groups.values()):
        return _parts_of_different(around, groups)
    inputs = {(call.features or call.inputs).key() for call in around if call.inputs is not None}
    return len(inputs) < len(around) or len({call.after for call in group}) > 1


def _spare(group: Sequence[Call]) -> list[Call]:
    """All but the first of those with a backward pass, else of those with gradients, or all but the first."""
    keep = max(group, key=lambda call: (call.goes_back, call.graph))
    return [call for call in group if call is not keep]


def _cached(groups: Sequence[Sequence[Call]]) -> set[Call]:
    """Calls on parts of a batch: all without gradients for a loss of all parts, then each again with its own pass.

    Gradient caching computes twice to save memory, as checkpointing does.
    """
    of_module: dict[int, list[tuple[Call, Call]]] = defaultdict(list)
    for group in groups:
        if len(group) == 2 and not group[0].graph and group[1].graph:
            of_module[id(group[0].module)].append((group[0], group[1]))
    return {
        call
        for pairs in of_module.values()
        if len({first.after for first, _ in pairs}) == 1 and len({again.after for _, again in pairs}) == len(pairs) > 1
        for pair in pairs
        for call in pair
    }


def kept(group: Sequence[Call], spare: Sequence[Call]) -> list[Call]:
    """The group, the call to keep first."""
    return [*(call for call in group if call not in spare), *(call for call in group if call in spare)]


def _accumulates(group: Sequence[Call], calls: Sequence[Call]) -> bool:
    """Whether whole forward passes are repeated, each with its backward pass: one batch, accumulated."""
    if group[0].around is not None or not all(call.graph for call in group):
        return False
    passes: dict[int, set[int]] = defaultdict(set)
    for call in calls:
        if call.around is None and call.graph:
            passes[call.after].add(id(call.module))
    after = {call.after for call in group}
    return len(after) > 1 and len({frozenset(passes[number]) for number in after}) == 1


def _prefixes(calls: Sequence[Call]) -> Iterator[Repeat]:
    series: dict[tuple[int, int], list[Call]] = defaultdict(list)
    for call in calls:
        if call.inputs is not None:
            outermost = call.outermost
            series[(0 if outermost is call else id(outermost), id(call.module))].append(call)
    found: dict[Any, list[tuple[list[Call], bool]]] = defaultdict(list)
    for (around, _), of_module in series.items():
        for run, lengths, views in _runs(of_module):
            found[(around, lengths)].append((run, views))
    for together in found.values():
        if not any(views for _, views in together):
            continue  # inputs that grow by what was computed, as in generation
        all_calls = {call for run, _ in together for call in run}
        outer = [run for run, _ in together if not run[0].inside(all_calls)]
        most = max(outer, key=lambda run: sum(call.spent_ns for call in run))
        yield Repeat(most, [call for run in outer for call in run[:-1]], prefixes=True)


def _runs(calls: Sequence[Call]) -> Iterator[tuple[list[Call], tuple[int, ...], bool]]:
    """Calls with an argument that grows along one dimension, its lengths, and if it is a view of the same memory."""
    for position in range(min(len(call.inputs.tensors) for call in calls if call.inputs is not None)):
        tensors = [call.inputs.tensors[position] for call in calls if call.inputs is not None]
        start = 0
        for at in range(1, len(tensors) + 1):
            if at < len(tensors) and _grows(tensors[start : at + 1]):
                continue
            run = tensors[start:at]
            if len(run) >= _LEAST_PREFIXES:
                dimension = _varied(run[0].shape, run[1].shape)[0]
                views = len({(tensor.memory, tensor.strides, tensor.dtype) for tensor in run}) == 1
                yield list(calls[start:at]), tuple(tensor.shape[dimension] for tensor in run), views
            start = at


def _grows(tensors: Sequence[Any]) -> bool:
    """Whether the last is longer than the one before along one dimension: that along which the earlier ones grow."""
    *_, before, last = (tensor.shape for tensor in tensors)
    if len(before) != len(last):
        return False
    varied = _varied(before, last)
    return (
        len(varied) == 1
        and last[varied[0]] > before[varied[0]]
        and (len(tensors) == 2 or _varied(tensors[0].shape, tensors[1].shape) == varied)
    )


def _varied(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [n for n, (size, other) in enumerate(zip(a, b, strict=True)) if size != other]
