"""1x1 convolutions on what was just upsampled, by function of the script, with their backward pass.

Read from the order and the input sizes of operators in the detailed window. Interpolation weighs pixels of each channel
alike, and a convolution of one pixel weighs channels of each pixel alike: either order gives the same result. It counts
if nothing but views is between the two, and the convolution has fewer output than input channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.host.by_function import by_function, longest_first, outside_backward, taken_ns, whole_step_ns
from dptune.measure.host.outermost import Call, Outermost, calls, numel
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.host.view_operators import VIEWS
from dptune.measure.intervals import NOTHING, Intervals
from dptune.measure.views import RankView
from dptune.measured import UpsampledConvolution
from dptune.trace.kernels import OPERATOR_CATEGORIES

_UPSAMPLING = "aten::upsample_"
_CONVOLUTIONS = frozenset(f"aten::{name}" for name in ("conv1d", "conv2d", "conv3d", "convolution", "_convolution"))
_AFTER = 8  # operators after an interpolation, among which the convolution is
_MOST = 2_000  # interpolations that are looked at


@dataclass(frozen=True, eq=False)
class _Pair:
    """An interpolation and the convolution after it, with the sizes of their inputs and of the kernel."""

    upsampling: int
    convolution: int
    small: list[int]
    large: list[int]
    kernel: list[int]


def upsampled_convolutions(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> list[UpsampledConvolution]:
    """The functions that spend most in them, each on the rank where it spends most.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    return longest_first(_of_rank(view, untraced_ns.get(view.rank)) for view in views)


def _of_rank(view: RankView, untraced_ns: float | None) -> Iterator[UpsampledConvolution]:
    columns = view.columns
    upsampling = columns.rows(OPERATOR_CATEGORIES, lambda name: name.startswith(_UPSAMPLING))
    upsampling = outside_backward(view, upsampling)
    recorded = RecordedOperators.of(view) if len(upsampling) else None
    if recorded is None:
        return
    order = Outermost.of(view, recorded)
    upsampling = upsampling[np.isin(upsampling, order.rows)][:_MOST]
    known = calls(view, [near for row in upsampling.tolist() for near in (row, *order.after(row, _AFTER))])
    pairs: dict[int, _Pair] = {}
    for row in upsampling.tolist():
        following = [known[after] for after in order.after(row, _AFTER) if after in known]
        pair = _pair(known[row], following) if row in known else None
        if pair is not None:
            pairs |= {pair.upsampling: pair, pair.convolution: pair}
    for function in by_function(view, np.array(sorted(pairs), dtype=np.int64), untraced_ns):
        found = {pairs[row] for row in function.rows.tolist()}
        saved = sum(
            _ns(view, recorded, pair.upsampling) * (1 - pair.kernel[0] / pair.kernel[1])
            + _ns(view, recorded, pair.convolution) * (1 - numel(pair.small) / numel(pair.large))
            for pair in found
        )
        largest = max(found, key=lambda pair: numel(pair.large))
        yield UpsampledConvolution(
            name=function.name,
            at=function.at,
            before=largest.small,
            after=largest.large,
            channels=largest.kernel[0],
            saved_share=min(function.share, saved / whole_step_ns(view, untraced_ns)),
            calls=len(found) / function.steps,
            rank=function.rank,
            cost_ns=function.cost_ns,
            backward_ns=function.backward_ns,
            share=function.share,
        )


def _ns(view: RankView, recorded: RecordedOperators, row: int) -> float:
    """Its time with its backward pass in one of the steps, as a part of the mean step."""
    columns, rows = view.columns, np.array([row], dtype=np.int64)
    forward = taken_ns(view, Intervals.union(columns.ts_ns[rows], columns.ends(rows)), recorded.steps)
    return forward + taken_ns(view, recorded.backward_of(rows) or NOTHING, recorded.steps)


def _pair(upsampling: Call, following: Sequence[Call]) -> _Pair | None:
    small = upsampling.shapes[0] if upsampling.shapes else []
    for call in following:
        if call.name in VIEWS:
            continue
        if call.name not in _CONVOLUTIONS or len(call.shapes) < 2:
            return None
        large, kernel = call.shapes[:2]
        enlarged = small[:2] == large[:2] and len(small) == len(large) and numel(small) < numel(large)
        of_pixels = len(kernel) == len(large) and set(kernel[2:]) == {1} and kernel[1] == large[1]
        if enlarged and of_pixels and kernel[0] < kernel[1]:
            return _Pair(upsampling.row, call.row, small, large, kernel)
        return None
    return None
