"""The sizes of the gradients of units of fully_shard, where the trace has the sizes of operators' inputs.

torch records AccumulateGrad with the gradient as its input; those of a unit run before its gradients are reduced.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np

from dptune.errors import TraceError
from dptune.measure.host.operator_arguments import OperatorArguments
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.views import RankView
from dptune.trace.kernels import RANGE_CATEGORIES
from dptune.whatif.gpu.gathers import unit_of
from dptune.whatif.gpu.unit_reductions import REDUCES

_TAKES = re.compile(r"torch::autograd::AccumulateGrad$")


def unit_gradients(view: RankView) -> Mapping[str, tuple[int, ...]]:
    """By unit the elements of its gradients, in the order in which they become ready; only units with known sizes."""
    columns = view.columns
    ranges, taken = columns.rows(RANGE_CATEGORIES, REDUCES.match), HostEvents(view).rows(_TAKES)
    if not len(ranges) or not len(taken):
        return {}
    ranges = ranges[np.argsort(columns.ts_ns[ranges], kind="stable")]
    try:
        read = OperatorArguments.reading(view.trace, taken)
    except TraceError:
        return {}
    elements = read.elements[read.places(taken)].tolist()
    borders = np.searchsorted(columns.ts_ns[taken], columns.ts_ns[ranges]).tolist()
    found: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for row, first, last in zip(ranges.tolist(), [0, *borders], borders, strict=False):
        found[unit_of(REDUCES, columns.name(row))][tuple(elements[first:last])] += 1
    usual = {unit: each.most_common(1)[0][0] for unit, each in found.items()}
    return {unit: sizes for unit, sizes in usual.items() if sizes and all(sizes)}
