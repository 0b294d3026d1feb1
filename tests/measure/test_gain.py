"""What the steps would gain without the delays of one rank: runs whose truth is computed beside, in plain loops.

A rank computes a segment, asks for a collective, and so on; a step ends when its compute and collectives are over, or
each collective is waited for at once. Times in microseconds.
"""

from statistics import median

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dptune.measure.across_ranks import across
from dptune.measure.communication import gain as module
from dptune.measure.communication.gain import gain
from dptune.measure.views import light_views

from .handmade import NCCL, launched, load_events, measure_events, step

TRANSFER = 700


def played(work, blocking):
    """`work` by rank, step and segment -> the kernels of each rank as (name, step, start, end), and when all ends."""
    compute, stream = [100] * len(work), [0] * len(work)
    kernels = [[] for _ in work]
    for number, segments in enumerate(work[0]):
        for at in range(len(segments)):
            arrivals = []
            for rank, steps in enumerate(work):
                kernels[rank].append(("gemm", number, compute[rank], compute[rank] + steps[number][at]))
                compute[rank] += steps[number][at]
                arrivals.append(max(compute[rank], stream[rank]))
            for rank, arrival in enumerate(arrivals):
                stream[rank] = max(arrivals) + TRANSFER
                kernels[rank].append((NCCL, number, arrival, stream[rank]))
                if blocking or at == len(segments) - 1:
                    compute[rank] = max(compute[rank], stream[rank])
    return kernels, max(compute)


def mended(work, late):
    """The work with that of one rank as the median of the others', but for the first segment: ranks start apart."""
    ours = [
        [
            work[late][number][at]
            if number == at == 0
            else median(steps[number][at] for rank, steps in enumerate(work) if rank != late)
            for at in range(len(work[late][number]))
        ]
        for number in range(len(work[late]))
    ]
    return [ours if rank == late else steps for rank, steps in enumerate(work)]


def traces(work, blocking):
    """The events of each rank."""
    ranks, _ = played(work, blocking)
    found = []
    for kernels in ranks:
        events = [step(number, 10 * number, 10 * number + 9) for number in range(len(work[0]))]
        for correlation, (name, number, start, end) in enumerate(kernels, 1):
            events += launched(name, 10 * number + 1, start, end, correlation, stream=20 if name == NCCL else 7)
        found.append(events)
    return found


def measured_gain(folder, work, blocking):
    return measure_events(folder, *traces(work, blocking))


def truth(work, late, blocking):
    """Of the whole steps between the first collectives of the first and the last step."""
    took = [between(played(one, blocking)[0]) for one in (work, mended(work, late))]
    return 1 - took[1] / took[0]


def between(kernels):
    """From when all ranks have come to the first collective of the first step to when they have to that of the last."""
    last = max(number for _, number, _, _ in kernels[0])
    begins = [
        max(next(start for name, step, start, _ in rank if name == NCCL and step == number) for rank in kernels)
        for number in (0, last)
    ]
    return begins[1] - begins[0]


def stalled(ranks, steps, segments, late, extra, usual=6_000):
    """All ranks alike, but that one takes `extra` longer in the second segment of each step."""
    return [
        [[usual + (extra if rank == late and at == 1 else 0) for at in range(segments)] for _ in range(steps)]
        for rank in range(ranks)
    ]


def test_a_delay_before_each_of_which_all_wait_is_gained_each_step(tmp_path):
    """Steps of 2 x 6 ms and 2 x 0.7, one rank 4 more in each: 4 of each 17.4, as all others wait in each."""
    measured = measured_gain(tmp_path, stalled(3, 4, 2, late=1, extra=4_000), blocking=True)
    assert measured.straggler.gain_share == pytest.approx(4 / 17.4)
    assert measured.straggler.waiting_share * 3 / 2 == pytest.approx(4 / 17.4, rel=0.1)  # two of three ranks wait


def test_a_delay_before_three_collectives_is_gained_once(tmp_path):
    """Nobody waits for the first two: the rank is 4 ms late to each of the three, and the step is 4 longer."""
    work = [[[6_000, 6_000, 6_000] for _ in range(4)] for _ in range(2)]
    for number in range(1, 4):
        work[1][number][0] += 4_000
    measured = measured_gain(tmp_path, work, blocking=False)
    assert measured.straggler.gain_share == pytest.approx(4 / (18.7 + 4))
    assert [one.lag_ns for one in measured.ranks[1].arrival.steps][1:] == [4_000_000] * 3


def test_a_delay_that_another_rank_hides_gains_what_it_is_longer(tmp_path):
    work = stalled(3, 4, 2, late=1, extra=5_000)
    for number in range(4):
        work[2][number][1] += 4_000
    measured = measured_gain(tmp_path, work, blocking=True)
    assert measured.straggler.gain_share == pytest.approx(1 / (13.4 + 5))


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """What `gain` takes of three ranks: 2 is 5 ms late in each step, 1 is 4."""
    work = stalled(3, 4, 2, late=2, extra=5_000)
    for number in range(4):
        work[1][number][1] += 4_000
    run = load_events(tmp_path_factory.mktemp("run"), *traces(work, blocking=True))
    found = across(run, [*light_views(run)])
    windows = {(view.rank, device.operations.device): device.windows for view, device, _ in found.spent}
    return found.compared, found.clocks, found.tracks, windows


def test_of_more_calls_than_are_replayed_the_ranks_that_wait_longest_are_left_out(replayed, monkeypatch):
    """Without rank 0 in the replay, the median of the others is the work of rank 1 alone."""
    assert gain({2}, *replayed).share == pytest.approx(1 / (13.4 + 5))
    monkeypatch.setattr(module, "MOST_ARRIVALS", 1)
    assert gain({2}, *replayed).share == pytest.approx(1 / (13.4 + 5))
    assert gain({1, 2}, *replayed) is None


def test_without_ranks_to_compare_with_nothing_is_gained(replayed):
    """All ranks are late, none is, or the others have no steps."""
    *found, windows = replayed
    assert gain({0, 1, 2}, *replayed) is None
    assert gain(set(), *replayed) is None
    assert gain({2}, *found, {}) is None
    assert gain({2}, *found, {key: steps if key[0] == 2 else [] for key, steps in windows.items()}) is None


def test_a_single_step_gains_of_the_time_from_its_first_collective_on(tmp_path):
    """Without others to tell where it ends: 4 ms of the 17.4 without the first 6."""
    measured = measured_gain(tmp_path, stalled(3, 1, 2, late=1, extra=4_000), blocking=True)
    assert measured.straggler.gain_share == pytest.approx(4 / (17.4 - 6))


WORK, ALIKE = st.integers(4_000, 9_000), st.integers(6_000, 6_500)


@pytest.mark.long
@settings(deadline=None, max_examples=settings.default.max_examples // 2)
@given(st.data(), st.integers(2, 4), st.booleans())
def test_the_replay_is_that_of_plain_loops(tmp_path_factory, data, ranks, blocking):
    """The late rank takes 3 ms longer, so that no rank is so early that its next collective queues for the last."""
    steps, segments = 3, 2
    draw = st.lists(
        st.lists(WORK if blocking else ALIKE, min_size=segments, max_size=segments),
        min_size=steps,
        max_size=steps,
    )
    work = [data.draw(draw) for _ in range(ranks)]
    for number in range(steps):
        work[0][number][-1] += 3_000
    measured = measured_gain(tmp_path_factory.mktemp("run"), work, blocking)
    late = measured.known("straggler")
    assume(late is not None)
    assert measured.straggler.gain_share == pytest.approx(max(0.0, truth(work, late.rank, blocking)), abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(("segments", "usual"), [(2, 6_000), (4, 500), (6, 300), (12, 650)])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_delay_before_queued_collectives_is_gained_whole(tmp_path, segments, usual, ranks):
    """Each transfer takes 0.7 ms, longer than the compute between most of them: all but the first are queued.

    The rank is 5 ms late to the first of each step. The others wait beside their compute, then for their transfers.
    """
    work = [[[usual] * segments for _ in range(5)] for _ in range(ranks)]
    for number in range(5):
        work[0][number][0] += 5_000
    measured = measured_gain(tmp_path, work, blocking=False)
    late = measured.straggler
    assert late.rank == 0
    assert late.gain_share == pytest.approx(truth(work, 0, blocking=False))
    assert late.gain_share * between(played(work, blocking=False)[0]) == pytest.approx(4 * 5_000)
    assert [one.lag_ns for one in measured.ranks[0].arrival.steps][1:] == [5_000_000] * 4


def test_a_slower_device_is_gained_over_all_queued_collectives(tmp_path):
    """Each of 12 segments takes 0.65 ms, on rank 1 0.3 more: the step is as much longer as its last transfer begins."""
    work = [[[650 + 300 * (rank == 1)] * 12 for _ in range(5)] for rank in range(3)]
    measured = measured_gain(tmp_path, work, blocking=False)
    expected = 4 * (12 * 950 - (650 + 11 * TRANSFER))  # ends with the last segment, not with the queue
    span = between(played(work, blocking=False)[0])
    assert truth(work, 1, blocking=False) * span == pytest.approx(expected)
    assert measured.straggler.gain_share * span == pytest.approx(expected, rel=0.05)
