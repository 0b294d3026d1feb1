"""Matrix decompositions and their backward pass, by hand; times in microseconds, steps of 1000."""

import pytest

from dptune.measure.host.decompositions import decompositions
from dptune.measure.views import view

from .handmade import US, kernel, launch, load_events, operator, python, step

STEPS = 3
NODE = "autograd::engine::evaluate_function: "


def events_of(at, number):
    """The largest singular value from 10 to 110, a product to 150, backward from 400: the SVD's node takes 60."""
    return [
        step(at // 1000, at, at + 1000),
        python("nn.Module: Spectral_0", at, at + 200),
        python("critic.py(16): forward", at + 1, at + 199),
        operator("aten::linalg_svdvals", at + 10, at + 110, **{"Sequence number": number}),
        operator("aten::_linalg_svd", at + 12, at + 108, **{"Sequence number": number}),
        operator("aten::mm", at + 120, at + 150, **{"Sequence number": number + 1}),
        python("torch/_tensor.py(500): backward", at + 400, at + 600),
        operator(NODE + "MmBackward0", at + 410, at + 430, **{"Sequence number": number + 1}),
        operator(NODE + "LinalgSvdBackward0", at + 440, at + 500, **{"Sequence number": number}),
        operator("aten::linalg_solve", at + 450, at + 490),  # of the backward pass: counted with its node only
    ]


def rank_view(folder, *more):
    events = [one for n in range(STEPS) for one in events_of(1000 * n, 10 * n)]
    loop = python("critic.py(90): main", 0, 1000 * STEPS)
    return view(0, load_events(folder, [loop, *events, *more]).ranks[0].light)


def test_the_function_with_its_backward_pass(tmp_path):
    (found,) = decompositions([rank_view(tmp_path)], {})
    assert (found.name, found.at, found.operator, found.calls) == ("forward", "critic.py:16", "svdvals", 1)
    assert (found.cost_ns, found.backward_ns) == (100 * US, 60 * US)
    assert found.share == pytest.approx(0.16)


def test_shares_are_of_the_step_without_the_profiler(tmp_path):
    (found,) = decompositions([rank_view(tmp_path)], {0: 800 * US})
    assert found.share == pytest.approx(0.2)


def test_products_are_none(tmp_path):
    events = [
        one
        for n in range(STEPS)
        for one in (
            step(n, 1000 * n, 1000 * n + 1000),
            operator("aten::mm", 1000 * n + 1, 1000 * n + 900),
            operator("aten::linalg_vector_norm", 1000 * n + 901, 1000 * n + 990),
        )
    ]
    events.append(python("critic.py(90): main", 0, 1000 * STEPS))
    assert decompositions([view(0, load_events(tmp_path, events).ranks[0].light)], {}) == []


def test_on_a_gpu_what_was_launched_counts_and_not_the_host(tmp_path):
    """A kernel of 300 for the SVD of each step, launched within its operator, and one of 50 by its node."""
    more = []
    for n in range(STEPS):
        more += [launch(10 * n + 1, 1000 * n + 20, 1000 * n + 25), launch(10 * n + 2, 1000 * n + 460, 1000 * n + 465)]
        more += [kernel("gesvdj", 1000 * n + 30, 1000 * n + 330, 10 * n + 1)]
        more += [kernel("gemm", 1000 * n + 470, 1000 * n + 520, 10 * n + 2)]
    (found,) = decompositions([rank_view(tmp_path, *more)], {})
    assert (found.cost_ns, found.backward_ns) == (300 * US, 50 * US)
