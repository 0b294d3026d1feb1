"""No change of what is communicated saves the waiting for one late rank: the next collective waits for it instead."""

import pytest

from dptune.measured import Account, StragglerFigures
from dptune.runfile.communication import DdpFacts
from dptune.runfile.window import Window

MS = 10**6
MIB = 2**20
DDP = DdpFacts("Net", "train.py:31", broadcast_buffers=True, buffer_bytes=0)
MICRO_BATCHES = Window("untraced", 5, [10] * 3, loader_batches=[4] * 3, backwards=[4] * 3)


def straggler(lag_ms):
    return StragglerFigures.only(
        "made by hand", rank=1, lag_ns=int(lag_ms * MS), steps_share=1.0, waiting_share=0.2, differences=[]
    )


@pytest.fixture
def waiting(make_measured):
    """Steps of 10 ms on two ranks: each transfers for 1 ms that nothing hides, and rank 0 waits 4 ms for rank 1."""
    spent = [
        Account(
            window_ns=10 * MS,
            compute_ns=9 * MS - waits,
            exposed_transfer_ns=MS,
            exposed_waiting_ns=waits,
            communication_ns=MS + waits,
        )
        for waits in (4 * MS, 0)
    ]

    def make(lag_ms=4, **more):
        return make_measured(spent=spent, straggler=straggler(lag_ms), lags_ms=[[0] * 5, [lag_ms] * 5], **more)

    return make


@pytest.mark.parametrize(
    ("lag_ms", "high"),
    [
        (4, 0.1 - 0.02),  # 10 % is transfer; of four all-reduces that take 0.2 ms at least, one stays
        (0.5, 0.3 - 0.02),  # ranks that take turns are waited for once instead of four times: 20 % more
    ],
)
def test_micro_batches_without_synchronisation(ask, waiting, make_all_reduce, make_facts, lag_ms, high):
    run = waiting(lag_ms, synchronised=4, collectives=[make_all_reduce(MIB, 4, 200_000)])
    (advice,) = ask("DP102", run, [make_facts(ddp=[DDP], windows=[MICRO_BATCHES])])
    assert advice.saves.high_share == pytest.approx(high)
    assert ("waiting for the late rank" in advice.saves.how) == (lag_ms == 4)
    shown = {evidence.label: evidence.value for evidence in advice.evidence}
    label, exposed = ("exposed communication", 0.1) if lag_ms == 4 else ("exposed communication and waiting", 0.3)
    assert shown[label] == pytest.approx(exposed)
    assert advice.impact == "medium"  # 3 of 4 parts of the transfer: 7.5 %


@pytest.mark.parametrize(("lag_ms", "share"), [(4, 0.05), (0.5, 0.25)])
def test_collectives_of_the_script(ask, waiting, make_facts, hand_made, lag_ms, share):
    """25 % of the steps in an all-gather that nothing hides, four fifths of that waiting for the last rank."""
    run = waiting(lag_ms, overlap=hand_made.overlap(("all_gather", "forward", 0.25), waiting=0.8))
    (advice,) = ask("DP105", run, [make_facts(ddp=[DDP])])
    assert f"take {100 * share:.0f} % of a step" in advice.title
    assert advice.saves.high_share == pytest.approx(share)


def test_marks_of_unused_parameters(ask, waiting, make_all_reduce, make_facts):
    """Marks of 100 tensors, 0.3 ms of a step of 10, and 4 us for each tensor; 1 ms is transfer."""
    marks = make_all_reduce(400, 1, 300_000, dtype="int32")
    ddp = DdpFacts("Net", "train.py:31", find_unused_parameters=True, unused_parameter_bytes=0, parameter_tensors=100)
    (advice,) = ask("DP106", waiting(collectives=[marks]), [make_facts(ddp=[ddp])])
    assert advice.saves.high_share == pytest.approx(0.1 + 0.04)
    assert "exposed communication" in {evidence.label for evidence in advice.evidence}
