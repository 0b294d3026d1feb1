"""The model of the recorded process as that of the middle one of all: by hand, and over any factors."""

from dataclasses import replace
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.runfile.facts import Facts
from dptune.runfile.window import Window
from dptune.whatif.cpu.buckets import Caps
from dptune.whatif.cpu.median_process import communicating, computing
from dptune.whatif.cpu.model import Pass, RankStep, StepModel
from dptune.whatif.cpu.replay import step_ns
from dptune.whatif.cpu.shared_link import Link

MS = 1_000_000
STEP = RankStep((Pass(2 * MS, 20 * MS, 30 * MS, (10 * MS, 30 * MS), 1 * MS, 4 * MS),), 8 * MS)
MODEL = StepModel({0: [STEP]}, (40 * MS, 20 * MS), Caps((1,)), Link(0, 1.0))  # 52 + 20 of communication beyond it + 8


def facts(backward_ms, rest_ms, loader_ms=2.0, timed=True):
    """One step in which rank 0 computes so long in backward passes, waits for its batch, and does the rest."""
    window = Window(
        "untraced",
        0,
        durations_ns=[round((loader_ms + rest_ms + 50) * MS)],
        loader_wait_ns=[round(loader_ms * MS)],
        backward_ns=[50 * MS],
        backward_cpu_ns=[round(backward_ms * MS)] if timed else [],
    )
    return {0: Facts(rank=0, world_size=1, host="a", pid=1, windows=[window])}


def only(model):
    ((step,),) = model.steps.values()
    return step


def test_what_threads_compute_is_of_the_middle_process():
    """Backward passes take 1.5 times as long as in the recorded one, waits twice, the rest, and collectives, 1.1."""
    processes = [facts(10, 10), facts(15, 11, 4), facts(20, 12, 5)]
    (one,) = only(computing(MODEL, processes)).passes
    told = (one.loader_ns, one.forward_ns, one.sent_ns, one.backward_ns, one.hooks_ns, *one.ready_ns)
    assert told == pytest.approx([4 * MS, 22 * MS, 4.4 * MS, 45 * MS, 1.5 * MS, 15 * MS, 45 * MS])
    assert only(computing(MODEL, processes)).after_ns == pytest.approx(8.8 * MS)
    sending = computing(replace(MODEL, others_ns={0: 10.0}, buffers_ns={0: 5.0}), processes)
    assert (sending.others_ns, sending.buffers_ns) == ({0: pytest.approx(11)}, {0: pytest.approx(5.5)})


@pytest.mark.parametrize("others", [[], [facts(20, 20, timed=False)], [{}]])
def test_one_process_is_the_middle_one(others):
    assert only(computing(MODEL, [facts(10, 10), *others])) == STEP


def test_what_the_step_lacks_is_mostly_its_communication_where_much_of_it_is():
    """Gradients of 40 MB are ready after 10, of 20 after 30: all was reduced 70 after the pass began, 40 beyond it.

    So the step takes 22 + 70 + 8 = 100, and 115 or 88 where collectives take 1.25 times as long or as short: 60 times
    the factor beyond 10 of waiting. It lacks 5: of 5 % by the model, most is by the collective, which may be a tenth
    off.
    """
    unchanged = step_ns(MODEL)
    assert unchanged == 100 * MS
    longer, shorter = (step_ns(replace(MODEL, communication_times=times)) for times in (1.25, 0.8))
    told = (longer - shorter) / (2 * log(1.25))
    assert (longer, shorter) == pytest.approx((115 * MS, 88 * MS))
    found = communicating(MODEL, 105 * MS).communication_times
    assert found == pytest.approx(exp(5 * MS * told * 0.01 / ((0.1 * told) ** 2 + (0.02 * 105 * MS) ** 2)))
    assert 1.06 < found < 5 / 60 + 1


def test_what_the_step_lacks_is_no_collective_that_is_hidden():
    hidden = replace(MODEL, gradient_bytes=(1, 1))
    assert communicating(hidden, 105 * MS).communication_times == pytest.approx(1, abs=1e-3)


@given(lacks=st.floats(-0.3, 0.3), size=st.integers(0, 200 * MS))
def test_the_model_comes_nearer_to_the_measured_step(lacks, size):
    """Whatever it lacks, and however much of it is communication."""
    model = replace(MODEL, gradient_bytes=(size, size // 2))
    before = step_ns(model)
    measured = before * (1 + lacks)
    after = step_ns(communicating(model, measured))
    assert abs(after - measured) <= abs(before - measured) * (1 + 1e-9) + 1
    if size >= 50 * MS:  # half of the step and more is communication
        assert abs(after - measured) <= 0.6 * abs(before - measured) + 1
