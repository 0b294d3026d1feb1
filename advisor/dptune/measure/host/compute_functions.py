"""Which functions of the script compute, with their backward passes, by the operators that they call.

Read from Python's stacks and autograd's sequence numbers in the detailed window. An operator counts for the innermost
function of the user around it, and its nodes of the backward pass with it. On a GPU the kernels count that operators
launch. What a backward pass itself adds to the graph (`create_graph=True`) has no function, and neither has the
optimizer's step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dptune.measure.host.by_function import by_function, lengths_ns, longest_first
from dptune.measure.host.callers import callers, has_stacks
from dptune.measure.host.function_names import function_names
from dptune.measure.host.outermost import Outermost
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.host.training import backward_calls, training
from dptune.measure.views import RankView
from dptune.measured import ComputeFunction

NO_STACKS = "no traced step holds Python stacks and operators: profile with with_stack=True"
MOST = 8  # functions that are listed


def compute_functions(views: Sequence[RankView]) -> list[ComputeFunction] | None:
    """The functions that compute longest, each on the rank where it does; None where no view has stacks.

    Shares are of the traced step, whose operators and whole length the profiler slows alike.
    """
    stacked = [view for view in views if view.steps and has_stacks(view.columns)]
    return longest_first(map(_of_rank, stacked))[:MOST] if stacked else None


def _of_rank(view: RankView) -> Iterator[ComputeFunction]:
    recorded = RecordedOperators.of(view)
    if recorded is None:
        return
    columns = view.columns
    rows = Outermost.of(view, recorded).rows
    rows = rows[~training(view)["optimizer"].hold(columns.ts_ns[rows])]
    names = function_names(view)
    looping = {names.of(caller.function) for caller in callers(columns, backward_calls(columns)) if caller.function}
    for function in by_function(view, rows, None):
        spent = Counter[str]()
        for row, ns in zip(function.rows.tolist(), lengths_ns(columns, function.rows).tolist(), strict=True):
            spent[columns.name(row)] += ns
        yield ComputeFunction(
            name=function.name,
            at=function.at,
            operator=max(sorted(spent), key=lambda name: spent[name]),
            calls_backward=names.of(function.frame) in looping,
            calls=len(function.rows) / function.steps,
            rank=function.rank,
            cost_ns=function.cost_ns,
            backward_ns=function.backward_ns,
            share=function.share,
        )
