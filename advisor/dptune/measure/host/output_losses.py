"""Cross entropies with the matrix products that compute their logits, and with their backward pass.

Read from the sizes of inputs in the detailed window: the product is the last one before the loss, on the same thread,
with as many columns as the loss has classes and no fewer rows. What reads at least half of the logits in between, such
as a cast or a copy, counts as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dptune.measure.host.by_function import lengths_ns, longest_first, outside_backward, taken_ns, whole_step_ns
from dptune.measure.host.callers import callers
from dptune.measure.host.frames import FRAME
from dptune.measure.host.outermost import Call, calls, numel
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.intervals import NOTHING, Intervals, Ints
from dptune.measure.views import RankView
from dptune.measured import OutputLoss
from dptune.trace.kernels import OPERATOR_CATEGORIES

_LOSSES = ("aten::cross_entropy_loss", "aten::nll_loss_nd")
_OPERANDS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}  # by product, where its rows are
_MOST = 50_000  # products whose sizes are read


def output_losses(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> list[OutputLoss]:
    """By number of classes, each on the rank where it takes most.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    return longest_first(_of_rank(view, untraced_ns.get(view.rank)) for view in views)


def _of_rank(view: RankView, untraced_ns: float | None) -> Iterator[OutputLoss]:
    columns = view.columns
    losses = outside_backward(view, columns.rows(OPERATOR_CATEGORIES, lambda name: name in _LOSSES))
    recorded = RecordedOperators.of(view) if len(losses) else None
    if recorded is None:
        return
    differentiated = recorded.rows[recorded.numbers >= 0]  # not those of a validation loop
    losses = losses[np.isin(losses, differentiated)]
    products = outside_backward(view, columns.rows(OPERATOR_CATEGORIES, lambda name: name in _OPERANDS))
    products = products[np.isin(products, differentiated)][:_MOST]
    known = calls(view, [*losses.tolist(), *products.tolist()])
    of_classes: dict[int, list[tuple[Call, Call]]] = defaultdict(list)
    for loss, product in _pairs(view, known):
        of_classes[_classes(loss)].append((loss, product))
    step_ns = whole_step_ns(view, untraced_ns)
    for classes, pairs in of_classes.items():
        made = list({product.row: product for _, product in pairs}.values())
        longest = made[int(lengths_ns(columns, np.array([product.row for product in made])).argmax())]
        match = FRAME.match(callers(columns, np.array([longest.row]))[0].function or "")
        if match is None:
            continue
        counted = _counted(recorded, pairs)
        forward = Intervals.union(columns.ts_ns[counted], columns.ends(counted))
        cost_ns = taken_ns(view, forward, recorded.steps)
        backward_ns = taken_ns(view, recorded.backward_of(counted) or NOTHING, recorded.steps)
        yield OutputLoss(
            name=match["name"],
            at=f"{match['file']}:{match['line']}",
            classes=classes,
            rows=sum(_size(product)[0] for product in made) / recorded.steps,
            calls=len(pairs) / recorded.steps,
            rank=view.rank,
            cost_ns=cost_ns,
            backward_ns=backward_ns,
            share=min(1.0, (cost_ns + backward_ns) / step_ns),
        )


def _pairs(view: RankView, known: Mapping[int, Call]) -> Iterator[tuple[Call, Call]]:
    """Each loss with its product."""
    columns = view.columns
    ordered = sorted(known, key=lambda row: int(columns.ts_ns[row]))
    last: dict[tuple[int, int], Call] = {}  # by thread and number of columns
    ends: dict[int, int] = {}  # of the last loss, by thread
    starts = [step.start_ns for step in view.steps]
    for row in ordered:
        thread, call = int(columns.thread[row]), known[row]
        start, end = int(columns.ts_ns[row]), int(columns.ends(np.array([row]))[0])
        if call.name in _OPERANDS:
            last[thread, _size(call)[1]] = call
        elif start >= ends.get(thread, 0):  # of two where one calls the other the outer
            ends[thread] = end
            product = last.get((thread, _classes(call)))
            if product is None or not _classes(call):
                continue
            begun = int(columns.ts_ns[product.row])
            same_step = sum(begun >= step for step in starts) == sum(start >= step for step in starts)
            if same_step and numel(_size(product)) >= numel(call.shapes[0]):
                yield call, product


def _classes(loss: Call) -> int:
    """0 where its size is not known."""
    shape = loss.shapes[0] if loss.shapes else []
    return shape[1] if len(shape) > 1 else 0


def _size(product: Call) -> tuple[int, int]:
    """Rows and columns of what it computes; 0 where they are not known."""
    at = _OPERANDS[product.name]
    if len(product.shapes) < at + 2 or len(product.shapes[at]) < 2 or len(product.shapes[at + 1]) < 2:
        return 0, 0
    return numel(product.shapes[at][:-1]), product.shapes[at + 1][-1]


def _counted(recorded: RecordedOperators, pairs: Sequence[tuple[Call, Call]]) -> Ints:
    """The products, the losses, and what reads their logits in between."""
    columns, rows = recorded.columns, recorded.rows
    starts, ends = columns.ts_ns[rows], columns.ends(rows)
    counted = np.zeros(len(rows), dtype=bool)
    for loss, product in pairs:
        begin, end = columns.ts_ns[product.row], columns.ends(np.array([loss.row]))[0]
        inside = (starts >= begin) & (ends <= end) & (columns.thread[rows] == columns.thread[loss.row])
        counted |= inside & (recorded.elements >= numel(_size(product)) // 2)
        counted |= np.isin(rows, (loss.row, product.row))
    return rows[counted]
