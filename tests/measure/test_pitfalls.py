"""What readers of timelines get wrong, and dptune must not. Times in microseconds."""

import json

from dptune.measure import measure
from dptune.trace import load

US = 1000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def host(category, name, start, end, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": 9, "ts": start, "dur": end - start, "args": args}


def launched(number, name, start, end, stream=7, at=None, category="kernel"):
    args = {"device": 0, "stream": stream, "correlation": number}
    at = number if at is None else at
    return [
        host("cuda_runtime", "cudaLaunchKernel", at, at + 1, correlation=number),
        {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": 0,
            "tid": stream,
            "ts": start,
            "dur": end - start,
            "args": args,
        },
    ]


def run(folder, *ranks):
    for number, events in enumerate(ranks):
        document = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": number, "world_size": len(ranks)},
            "traceEvents": [host("user_annotation", "ProfilerStep#1", 0, 1000), *events],
        }
        (folder / f"rank{number}.json").write_text(json.dumps(document))
    return measure(load([folder]))


def test_a_union_is_not_a_sum(tmp_path):
    """Three kernels at once on three streams are as long as their union: 100 + 50, not 250."""
    measured = run(
        tmp_path,
        [
            *launched(1, "a", 10, 110, stream=7),
            *launched(2, "b", 10, 110, stream=8),
            *launched(3, "c", 110, 160, stream=9),
        ],
    )
    assert measured.account.compute_ns == 150 * US
    assert measured.account.window_ns == 150 * US


def test_exposed_is_not_blocking(tmp_path):
    """The script waits for an all-reduce all along: only the part with no compute beside it is exposed."""
    waits = host("cuda_runtime", "cudaStreamSynchronize", 5, 310)
    measured = run(
        tmp_path,
        [*launched(1, "gemm", 10, 210), *launched(2, NCCL, 110, 310, stream=20), waits],
        [*launched(1, "gemm", 10, 30)],
    )
    account = measured.ranks[0].devices[0].steps[0].account
    assert account.communication_ns == 200 * US
    assert account.hidden_communication_ns == 100 * US
    assert account.exposed_communication_ns == 100 * US
    assert account.sync_idle_ns == 0  # the device works while the script is held


def test_rank_0_is_not_representative(tmp_path):
    """Rank 0 waits for rank 1: what it shows as communication is rank 1's computing."""
    first = [*launched(1, "gemm", 10, 110), *launched(2, NCCL, 110, 510, stream=20)]
    second = [*launched(1, "gemm", 10, 490), *launched(2, NCCL, 490, 510, stream=20)]
    measured = run(tmp_path, first, second)
    one, other = (rank.devices[0].total for rank in measured.ranks)
    assert (one.exposed_waiting_ns, one.exposed_transfer_ns) == (380 * US, 20 * US)
    assert (other.exposed_waiting_ns, other.exposed_transfer_ns) == (0, 20 * US)
    assert measured.straggler.rank == 1
    assert measured.account.exposed_transfer_ns == 40 * US  # of the run, not of rank 0
    (collective,) = measured.collectives
    assert (collective.median_ns, collective.transfer_ns) == (210 * US, 20 * US)


def test_the_occupant_of_a_gap_is_not_its_cause(tmp_path):
    """An operator runs on the host throughout the gap, but the next kernel was launched long before it."""
    occupant = host("cpu_op", "aten::mul", 100, 300)
    measured = run(tmp_path, [*launched(1, "a", 10, 100), *launched(2, "b", 300, 400, at=20), occupant])
    assert measured.account.idle_ns == measured.account.dependency_idle_ns == 200 * US
    (gap,) = measured.gaps
    assert (gap.meanwhile, gap.causes_ns) == ("aten::mul", {"dependency": 200 * US})
