"""What readers of timelines get wrong, and dptune must not. Times in microseconds."""

from .handmade import NCCL, US, call, launched, measure_events, operator, step

STEP = step(1, 0, 1000)


def test_a_union_is_not_a_sum(tmp_path):
    """Three kernels at once on three streams are as long as their union: 100 + 50, not 250."""
    measured = measure_events(
        tmp_path,
        [
            STEP,
            *launched("a", 1, 10, 110, 1, stream=7),
            *launched("b", 2, 10, 110, 2, stream=8),
            *launched("c", 3, 110, 160, 3, stream=9),
        ],
    )
    assert measured.account.compute_ns == 150 * US
    assert measured.account.window_ns == 150 * US


def test_exposed_is_not_blocking(tmp_path):
    """The script waits for an all-reduce all along: only the part with no compute beside it is exposed."""
    waits = call("cudaStreamSynchronize", 5, 310)
    measured = measure_events(
        tmp_path,
        [STEP, *launched("gemm", 1, 10, 210, 1), *launched(NCCL, 2, 110, 310, 2, stream=20), waits],
        [STEP, *launched("gemm", 1, 10, 30, 1)],
    )
    account = measured.ranks[0].devices[0].steps[0].account
    assert account.communication_ns == 200 * US
    assert account.hidden_communication_ns == 100 * US
    assert account.exposed_communication_ns == 100 * US
    assert account.sync_idle_ns == 0  # the device works while the script is held


def test_rank_0_is_not_representative(tmp_path):
    """Rank 0 waits for rank 1: what it shows as communication is rank 1's computing."""
    first = [*launched("gemm", 1, 10, 110, 1), *launched(NCCL, 2, 110, 510, 2, stream=20)]
    second = [*launched("gemm", 1, 10, 490, 1), *launched(NCCL, 2, 490, 510, 2, stream=20)]
    measured = measure_events(tmp_path, [STEP, *first], [STEP, *second])
    one, other = (rank.devices[0].total for rank in measured.ranks)
    assert (one.exposed_waiting_ns, one.exposed_transfer_ns) == (380 * US, 20 * US)
    assert (other.exposed_waiting_ns, other.exposed_transfer_ns) == (0, 20 * US)
    assert measured.straggler.rank == 1
    place = measured.overlap.rows[0].longest  # of the exposed 400, what is no waiting
    assert place.end_ns - place.start_ns == 20 * US
    assert measured.account.exposed_transfer_ns == 40 * US  # of the run, not of rank 0
    (collective,) = measured.collectives
    assert (collective.median_ns, collective.transfer_ns) == (210 * US, 20 * US)


def test_the_occupant_of_a_gap_is_not_its_cause(tmp_path):
    """An operator runs on the host throughout the gap, but the next kernel was launched long before it."""
    kernels = [*launched("a", 1, 10, 100, 1), *launched("b", 20, 300, 400, 2)]
    measured = measure_events(tmp_path, [STEP, *kernels, operator("aten::mul", 100, 300)])
    assert measured.account.idle_ns == measured.account.dependency_idle_ns == 200 * US
    (gap,) = measured.gaps
    assert (gap.meanwhile, gap.causes_ns) == ("aten::mul", {"dependency": 200 * US})
