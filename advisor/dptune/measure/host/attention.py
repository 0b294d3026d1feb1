"""Attention computed operator by operator: the product of queries and keys, softmax, and the product with values.

On each thread these are the outermost aten operators of a forward pass: a batched product, then at most _REACH other
operators with a softmax among them, then another batched product. Where the trace has sizes, softmax is over the last
dimension, and both products have as many elements as its input. Fused attention calls its own products and softmax
inside one outermost operator, so it is not found here.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dptune.errors import TraceError
from dptune.measure.host.by_function import (
    LEAST_SHARE,
    longest_by,
    outside_backward,
    over_ranks,
    taken_ns,
    whole_step_ns,
)
from dptune.measure.host.callers import PYTHON_CATEGORIES, callers
from dptune.measure.host.frames import FRAME, is_scripts, library_of
from dptune.measure.host.function_names import function_names
from dptune.measure.host.operator_arguments import operator_arguments
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.intervals import NOTHING, Intervals, Ints
from dptune.measure.views import RankView
from dptune.measured import EagerAttention
from dptune.trace.columns import Columns
from dptune.trace.kernels import OPERATOR_CATEGORIES

_SOFTMAX = frozenset({"aten::softmax", "aten::_softmax", "aten::special_softmax"})
_PRODUCT = frozenset({"aten::bmm", "aten::baddbmm"})  # that a batched matmul or einsum calls
_DROPOUT = frozenset({"aten::native_dropout", "aten::_fused_dropout", "aten::bernoulli_"})  # none of them if p is 0
_REACH = 40  # operators: scaling, a mask or a position bias, casts and views
# Between a product and its softmax these show that they do not belong together: another layer.
_LAYER = re.compile(
    r"^aten::(linear|addmm|mm|mv|matmul|einsum|\w*conv\w*|\w*_norm|\w*scaled_dot_product\w*|\w*softmax)$"
)
# Between the softmax and the next product also these: routing to experts, sampling, or a loss.
_CHOICE = re.compile(
    r"^aten::(topk|sort|argmax|argsort|gather|multinomial|scatter\w*|one_hot|nonzero|cumsum|nll_loss\w*|cross_entropy_loss)$"
)
_HEAD = re.compile(r"^torch/nn/functional\.py\(\d+\): multi_head_attention_forward$")
_MOST = 2_000  # softmax operators whose sizes are read


@dataclass(frozen=True, eq=False)
class _Chain:
    """The outermost operators from one product to the other, both products, and what shows in the sizes."""

    operators: Ints
    products: tuple[int, int]
    softmax: int
    dropout: bool
    keys: int | None = None
    head: int | None = None


def eager_attention(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> list[EagerAttention]:
    """The places that compute attention operator by operator, each on the rank where it takes most, longest first.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    ranks = [
        longest_by(_of_rank(view, untraced_ns.get(view.rank)), lambda found: (found.name, found.at, found.module))
        for view in views
        if view.steps
    ]
    worth = [found for found in over_ranks(ranks) if found.share >= LEAST_SHARE]
    return sorted(worth, key=lambda found: (-found.share, found.at))


def attention_spans(view: RankView) -> Intervals:
    """When the host runs eager attention and its backward pass; nothing where the trace shows none."""
    chains = list(_chains(view)) if view.steps else []
    recorded = RecordedOperators.of(view) if chains else None
    if recorded is None:
        return NOTHING
    measured = [chain.operators for chain in _measured(view, chains)]
    if not measured:
        return NOTHING
    rows = np.concatenate(measured)
    forward = Intervals.union(view.columns.ts_ns[rows], view.columns.ends(rows))
    return forward | (recorded.backward_of(rows) or NOTHING)


def _of_rank(view: RankView, untraced_ns: float | None) -> Iterator[EagerAttention]:
    chains = list(_chains(view))
    recorded = RecordedOperators.of(view) if chains else None
    if recorded is None:
        return
    last = set(recorded.covered(np.array([chain.products[1] for chain in chains], dtype=np.int64)).tolist())
    chains = _measured(view, [chain for chain in chains if chain.products[1] in last])
    step_ns = whole_step_ns(view, untraced_ns)
    for (function, module), group in _grouped(view, chains).items():
        whole = _spent(view, recorded, np.concatenate([chain.operators for chain in group]))
        products = _spent(view, recorded, np.array([row for chain in group for row in chain.products], dtype=np.int64))
        sizes = Counter((chain.keys, chain.head) for chain in group if chain.keys is not None)
        keys, head = max(sizes, key=lambda size: (size[0] or 0) * sizes[size]) if sizes else (None, None)
        other_ns = max(0, sum(whole) - sum(products))
        place = _place(view.columns, group[0].products[1], function)
        yield EagerAttention(
            **place,
            module=module,
            calls=len(group) / recorded.steps,
            rank=view.rank,
            cost_ns=whole[0],
            backward_ns=whole[1],
            share=min(1.0, sum(whole) / step_ns),
            other_share=min(1.0, other_ns / step_ns),
            dropout=any(chain.dropout for chain in group),
            keys=keys,
            head=head,
        )


def _spent(view: RankView, recorded: RecordedOperators, rows: Ints) -> tuple[int, int]:
    """The time of these operators in a step, and of their backward pass, ns."""
    columns = view.columns
    forward = Intervals.union(columns.ts_ns[rows], columns.ends(rows))
    backward = recorded.backward_of(rows) or NOTHING
    return taken_ns(view, forward, recorded.steps), taken_ns(view, backward, recorded.steps)


def _chains(view: RankView) -> Iterator[_Chain]:
    """Without a look at the sizes."""
    columns = view.columns
    softmaxes = outside_backward(view, columns.rows(OPERATOR_CATEGORIES, _SOFTMAX.__contains__))
    threads = np.unique(columns.thread[softmaxes])
    for thread in threads.tolist():
        rows = columns.rows(OPERATOR_CATEGORIES, lambda name: name.startswith("aten::"))
        rows = rows[columns.thread[rows] == thread]
        rows = rows[np.lexsort((-columns.ends(rows), columns.ts_ns[rows]))]
        ends = columns.ends(rows)
        outer = rows[np.append(True, ends[1:] > np.maximum.accumulate(ends)[:-1])]
        names = columns.names_of(outer)
        product = _products(columns, rows, outer)
        dropping = _inside(columns, rows, outer, _DROPOUT)
        for at in np.flatnonzero(np.isin(outer, softmaxes)).tolist():
            before = _next(names, product, range(at - 1, max(-1, at - 1 - _REACH), -1))
            after = _next(names, product, range(at + 1, min(len(outer), at + 1 + _REACH)))
            if before is None or after is None or any(map(_CHOICE.match, names[at + 1 : after])):
                continue
            yield _Chain(
                outer[before : after + 1],
                (product[before], product[after]),
                int(outer[at]),
                any(place in dropping for place in range(at, after)),
            )


def _next(names: Sequence[str], product: Mapping[int, int], places: range) -> int | None:
    """The first place with a batched product, unless another computation comes before it."""
    for place in places:
        if place in product:
            return place
        if _LAYER.match(names[place]):
            return None
    return None


def _products(columns: Columns, rows: Ints, outer: Ints) -> dict[int, int]:
    """By place among the outermost operators the batched product in it: the last of several."""
    return _inside(columns, rows, outer, _PRODUCT)


def _inside(columns: Columns, rows: Ints, outer: Ints, names: frozenset[str]) -> dict[int, int]:
    found = rows[columns.named(names.__contains__, rows)]
    places = np.searchsorted(columns.ts_ns[outer], columns.ts_ns[found], side="right") - 1
    return dict(zip(places.tolist(), found.tolist(), strict=True))


def _measured(view: RankView, chains: Sequence[_Chain]) -> list[_Chain]:
    """The chains with their sizes, without those whose sizes are not of attention; as they are where none are known."""
    chains = chains[:_MOST]
    rows = [row for chain in chains for row in (*chain.products, chain.softmax)]
    try:
        found = iter(operator_arguments(view.trace, np.array(rows, dtype=np.int64)))
    except TraceError:
        return list(chains)
    kept = []
    for chain in chains:
        first, second, softmax = next(found), next(found), next(found)
        scores = next(iter(_shapes(softmax)), [])
        asked, given = (
            _factors(view.columns.name(row), call) for row, call in zip(chain.products, (first, second), strict=True)
        )
        if not scores or len(asked) < 2 or len(given) < 2:
            kept.append(chain)
            continue
        count = math.prod(scores)
        if len(scores) < 3 or not _over_last(softmax, len(scores)) or count not in map(math.prod, given):
            continue
        if math.prod(asked[0][:-1]) * asked[1][-1] == count:
            kept.append(replace(chain, keys=scores[-1], head=asked[0][-1]))
    return kept


def _factors(name: str, call: Mapping[str, Any]) -> list[list[int]]:
    """The sizes of both factors of a batched product; baddbmm has what it adds first."""
    shapes = _shapes(call)
    return shapes[1:3] if name.endswith("baddbmm") else shapes[:2]


def _shapes(call: Mapping[str, Any]) -> list[list[int]]:
    """The sizes of the tensors among the inputs, none where the trace lacks them."""
    shapes = call.get("Input Dims")
    inputs = shapes if isinstance(shapes, list) else []
    return [
        shape for shape in inputs if isinstance(shape, list) and shape and all(type(length) is int for length in shape)
    ]


def _over_last(call: Mapping[str, Any], dimensions: int) -> bool:
    """Whether softmax is over the last dimension; true where the trace does not show it."""
    values = call.get("Concrete Inputs")
    dimension = values[1] if isinstance(values, list) and len(values) > 1 else ""
    return dimension in ("", "-1", str(dimensions - 1))


def _grouped(view: RankView, chains: Sequence[_Chain]) -> dict[tuple[str, str], list[_Chain]]:
    """By the function around the second product, and the class of the innermost module."""
    columns, names = view.columns, function_names(view)
    found: dict[tuple[str, str], list[_Chain]] = defaultdict(list)
    frames: dict[str, str] = {}
    last = np.array([chain.products[1] for chain in chains], dtype=np.int64)
    for chain, caller in zip(chains, callers(columns, last), strict=True):
        module = re.sub(r"_\d+$", "", caller.module or "")
        function = frames.setdefault(names.of(caller.function or ""), caller.function or "")
        found[function, module].append(chain)
    return found


def rows_around(columns: Columns, row: int) -> list[int]:
    """The functions of Python around a row, the outermost first."""
    rows = columns.rows(PYTHON_CATEGORIES)
    around = rows[
        (columns.thread[rows] == columns.thread[row])
        & (columns.ts_ns[rows] <= columns.ts_ns[row])
        & (columns.ends(rows) >= columns.end_ns[row])
    ]
    return [int(each) for each in around[np.lexsort((-columns.ends(around), columns.ts_ns[around]))]]


def _place(columns: Columns, row: int, function: str) -> dict[str, Any]:
    """Where the script and the library are that call it; empty without Python's stacks."""
    around = rows_around(columns, row)
    frames = [columns.name(each) for each in around]
    caller = next((frame for frame in reversed(frames) if is_scripts(frame)), "")
    library = next((name for each in reversed(around) if (name := library_of(columns, each))), "")
    in_library = bool(function) and not is_scripts(function)
    inner, outer = FRAME.match(function), FRAME.match(caller)
    return {
        "name": inner["name"] if inner else "",
        "at": f"{inner['file']}:{inner['line']}" if inner else "",
        "caller": outer["name"] if outer and in_library else "",
        "caller_at": f"{outer['file']}:{outer['line']}" if outer and in_library else "",
        "library": library if in_library else "",
        "of_torch": any(_HEAD.match(frame) for frame in frames),
    }
