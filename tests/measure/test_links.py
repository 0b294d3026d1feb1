"""Which collectives of a run are fitted, for which ranks, and what a sweep adds."""

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from statistics import median

import pytest

from dptune.commands.shared.sweeps import sweep_of
from dptune.errors import UsageError
from dptune.measure.communication.calls import Call
from dptune.measure.communication.links import Sweep, fitted, from_sweep, links, scope
from dptune.measure.communication.matching import RankCalls, match
from dptune.measured import RankFigures
from dptune.runfile import json_files
from dptune.runfile.links import KindTimes, LinkRecord, SizeTimes, read
from dptune.runfile.record import RunRecord

from .. import reading  # noqa: TID252 - tests are no installed package

KB = 1000
TIMES = ((1 * KB, 1500), (10 * KB, 6000), (100 * KB, 51_000))  # 1,000 ns + bytes / (2 bytes per ns)
SWEEP = LinkRecord(
    backend="gloo",
    world_size=2,
    hosts=["a", "b"],
    devices=["cpu", "cpu"],
    measured="2026-11-20",
    kinds=[
        KindTimes("all_gather", [0, 1], [SizeTimes(size, ns / 1e9, ns / 1e9, ns / 1e9, 7, 70) for size, ns in TIMES]),
        KindTimes("p2p", [0, 1], [SizeTimes(KB, 1e-6, 1e-6, 1e-6, 7, 70)], left_out="sizes from 10000 bytes: no time"),
    ],
)


def ran(found, numbers=(0, 1), waits=(0, 300)):
    """The same calls on each rank; a rank begins `wait` later and ends with the others."""
    return [
        RankCalls(
            number,
            f"cuda:{number}",
            0,
            [0],
            [
                Call(0, kind, at + wait, ns - wait, group, len(numbers), "f", size)
                for kind, group, at, ns, size in found
            ],
        )
        for number, wait in zip(numbers, waits, strict=True)
    ]


def one_after_the_other(kind="all_reduce", group="dp", waited=300, times=TIMES, gap=10):
    """Calls whose last rank takes the times of the line."""
    found, at = [], 0
    for size, ns in times:
        found.append((kind, group, at, ns + waited, size))
        at += ns + waited + gap
    return found


def figures(numbers=(0, 1), hosts=("a", "a"), name="NVIDIA H100 80GB HBM3"):
    why = "not needed"
    return [
        RankFigures.only(why, rank=number, host=host, device_name=name, source="", events=0)
        for number, host in zip(numbers, hosts, strict=True)
    ]


def test_by_hand_without_the_waiting():
    ranks = ran(one_after_the_other())
    (one,) = links(match(ranks, 2), ranks, figures(), None)
    assert (one.kind, one.group, one.ranks, one.basis) == ("all_reduce", "dp", [0, 1], "trace")
    assert one.alpha_us == pytest.approx(1.0)
    assert one.algbw_gb_per_s == pytest.approx(2.0)
    assert one.busbw_gb_per_s == pytest.approx(2.0)  # 2(n-1)/n is 1 for two ranks
    assert [(size.message_bytes, size.median_ns) for size in one.sizes] == list(TIMES)
    assert (one.calls, one.shared_calls) == (3, 0)
    assert (one.scope, one.peak_gb_per_s) == ("intra-node", 450)


@pytest.mark.parametrize(("kind", "factor"), [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75)])
def test_busbw_of_four_ranks(kind, factor):
    numbers = (0, 1, 2, 3)
    ranks = ran(one_after_the_other(kind), numbers, (0, 300, 100, 200))
    (one,) = links(match(ranks, 4), ranks, figures(numbers, "aabb"), None)
    assert one.busbw_gb_per_s == pytest.approx(2.0 * factor)
    assert one.scope == "inter-node"
    assert "the network between the hosts is unknown" in one.missing["peak_gb_per_s"]


def test_what_shares_its_time_with_another_collective_is_left_out():
    """The second size runs twice: alone, and ten times slower beside a broadcast of another group."""
    found = one_after_the_other()
    found += [("all_reduce", "dp", 10**6, 60_300, 10 * KB), ("broadcast", "tp", 10**6 + 40_000, 25_000, 64)]
    ranks = ran(found)
    (one,) = links(match(ranks, 2), ranks, figures(), None)
    assert (one.calls, one.shared_calls) == (3, 1)
    assert one.algbw_gb_per_s == pytest.approx(2.0)


def test_a_range_that_is_closed_a_little_late_does_not_share():
    found = one_after_the_other()
    found += [("all_reduce", "dp", 10**6, 60_300, 10 * KB), ("broadcast", "tp", 10**6 + 59_000, 5000, 64)]
    ranks = ran(found)
    (one,) = [link for link in links(match(ranks, 2), ranks, figures(), None) if link.kind == "all_reduce"]
    assert (one.calls, one.shared_calls) == (4, 0)


def test_a_long_wait_does_not_hide_what_shares_the_transfer():
    """Rank 0 waits 100 us, then the data move for 1.5 us: with a broadcast beside them, or beside the last 0.06 us."""
    first, second = ran(one_after_the_other(times=TIMES[:1], waited=100_000), waits=(0, 100_000))
    for begins, shared in ((100_000, 1), (101_440, 0)):
        beside = [*first.calls, Call(0, "broadcast", begins, 1500, "tp", 2, "f", 64)]
        ranks = [RankCalls(0, "cuda:0", 0, [0], beside), second]
        (one,) = links(match(ranks, 2), ranks, figures(), None)
        assert (one.calls, one.shared_calls) == (1 - shared, shared)


def test_collectives_that_only_touch_do_not_share():
    ranks = ran(one_after_the_other(gap=0), waits=(0, 0))
    (one,) = links(match(ranks, 2), ranks, figures(), None)
    assert (one.calls, one.shared_calls) == (3, 0)


def test_where_all_share_there_is_no_fit():
    found = one_after_the_other()
    found.append(("broadcast", "tp", 0, 10**6, 64))
    ranks = ran(found)
    (one,) = links(match(ranks, 2), ranks, figures(), None)
    assert (one.calls, one.shared_calls) == (0, 3)
    assert one.missing["alpha_us"] == "every call overlapped another collective"


def test_a_call_without_duration_tells_nothing():
    ranks = ran([*one_after_the_other(), ("all_reduce", "dp", 10**6, 300, 10 * KB)])
    (one,) = links(match(ranks, 2), ranks, figures(), None)
    assert [size.calls for size in one.sizes] == [1, 1, 1]


def test_devices_of_two_kinds_have_no_peak_in_common():
    ranks = ran(one_after_the_other())
    mixed = figures((0,), ("a",)) + figures((1,), ("a",), name="NVIDIA A100-SXM4-80GB")
    (one,) = links(match(ranks, 2), ranks, mixed, None)
    assert "dptune has no peak for" in one.missing["peak_gb_per_s"]


def test_ranks_on_one_gpu_have_no_link_with_a_peak():
    ranks = ran(one_after_the_other())
    shared = [rank.model_copy(update={"gpu_ranks": [0, 1]}) for rank in figures()]
    (one,) = links(match(ranks, 2), ranks, shared, None)
    assert one.missing["peak_gb_per_s"] == "its ranks share a GPU"


def test_what_cannot_be_split_gives_no_links():
    """A broadcast's root may leave first; a group that was not read whole may wait for the ones not seen."""
    ranks = ran(one_after_the_other("broadcast"))
    assert links(match(ranks, 2), ranks, figures(), None) is None
    ranks = [
        RankCalls(own.rank, own.device, 0, [0], [replace(c, group_size=3) for c in own.calls])
        for own in ran(one_after_the_other())
    ]
    assert links(match(ranks, 3), ranks, figures(), None) is None


def test_scope_and_peak_need_to_be_known():
    assert scope(["a", None]) == scope([""]) == scope([]) == "unknown"
    ranks = ran(one_after_the_other())
    (one,) = links(match(ranks, 2), ranks, figures(hosts=("a", None)), None)
    assert (one.scope, one.scope_inferred) == ("unknown", False)
    assert "hosts of its ranks are not known" in one.missing["peak_gb_per_s"]
    (one,) = links(match(ranks, 2), ranks, figures(name="NVIDIA A10G"), None)
    assert "dptune has no peak for" in one.missing["peak_gb_per_s"]


def without_hosts(gpus=(0, 1), numbers=(0, 1), name="NVIDIA H100 80GB HBM3", times=TIMES):
    """The links of ranks on these GPUs, of which no host is known: 2 GB/s, by TIMES."""
    ranks = [
        replace(own, device=f"cuda:{gpu}")
        for own, gpu in zip(ran(one_after_the_other(times=times), numbers), gpus, strict=True)
    ]
    (one,) = links(match(ranks, 2), ranks, figures(numbers, (None, None), name), None)
    return one.scope, one.scope_inferred, one.known("peak_gb_per_s")


def test_consecutive_ranks_on_consecutive_gpus_share_a_host():
    assert without_hosts() == ("intra-node", True, 450)
    assert without_hosts((6, 7), (14, 15)) == ("intra-node", True, 450)
    unknown = ("unknown", False, None)
    assert without_hosts((0, 0)) == unknown  # the first GPU of two hosts
    assert without_hosts((7, 0), (7, 8)) == unknown
    assert without_hosts((0, 2)) == unknown
    assert without_hosts((0, 1), (0, 9)) == unknown
    assert without_hosts(name="NVIDIA A10G") == unknown
    fast = [(size, round(1000 + size / 500)) for size in (10**6, 10**7, 10**8)]  # 500 bytes per ns
    assert without_hosts(times=fast) == unknown
    assert without_hosts(times=fast, name="NVIDIA B200") == ("intra-node", True, 900)


def test_a_sweep():
    gather, p2p = from_sweep(Sweep(SWEEP, "links.json"))
    assert (gather.basis, gather.source, gather.measured, gather.scope) == (
        "sweep",
        "links.json",
        "2026-11-20",
        "inter-node",
    )
    assert gather.alpha_us == pytest.approx(1.0)
    assert (gather.algbw_gb_per_s, gather.busbw_gb_per_s) == pytest.approx((2.0, 1.0))
    assert gather.calls == 210
    assert p2p.missing["alpha_us"].startswith("1 message size; a fit needs")


def test_calls_that_are_asked_for_at_once():
    queued = [SizeTimes(size, ns / 1e9, 900 / 1e9, 7000 / 1e9, 5, 160) for size, ns in ((10 * KB, 6000), (KB, 1300))]
    gather = replace(SWEEP.kinds[0], kind="all_reduce", queued=queued)
    (one,) = from_sweep(Sweep(replace(SWEEP, kinds=[gather]), "links.json"))
    assert [(size.message_bytes, size.median_ns) for size in one.queued] == [(KB, 1300), (10 * KB, 6000)]
    assert {(size.q1_ns, size.q3_ns, size.calls) for size in one.queued} == {(900, 7000, 160)}
    assert not any(kind.queued for kind in from_sweep(Sweep(SWEEP, "links.json")))


def test_a_message_of_no_bytes_takes_the_latency():
    sizes = [SizeTimes(size, ns / 1e9, ns / 1e9, ns / 1e9, 7, 70) for size, ns in ((0, 1000), *TIMES)]
    (one,) = from_sweep(Sweep(replace(SWEEP, kinds=[KindTimes("all_gather", [0, 1], sizes)]), "links.json"))
    assert (one.alpha_us, one.algbw_gb_per_s) == pytest.approx((1.0, 2.0))


NOT_MEASURED = [
    {"median_s": float("nan")},
    {"q1_s": float("nan"), "q3_s": float("nan")},
    {"q3_s": float("inf")},
    {"median_s": 0.0, "q1_s": 0.0},
    {"q1_s": -1e-6},
    {"q1_s": 2e-6},
    {"median_s": 1e300, "q3_s": 1e300},
    {"calls": -3},
    {"samples": 0},
    {"message_bytes": -1},
    {"message_bytes": 10**30},
]


@pytest.mark.parametrize("wrong", NOT_MEASURED, ids=str)
def test_a_sweep_that_nobody_measured_is_refused_where_named_and_else_left_out(tmp_path, capsys, wrong):
    good = SizeTimes(KB, 1e-6, 1e-6, 1e-6, 7, 70)
    path = tmp_path / "links.json"
    json_files.write(tmp_path / "run.json", RunRecord())
    json_files.write(path, replace(SWEEP, kinds=[KindTimes("p2p", [0, 1], [good])]))
    assert sweep_of([tmp_path], None).record.kinds[0].sizes == [good]
    json_files.write(path, replace(SWEEP, kinds=[KindTimes("p2p", [0, 1], [replace(good, **wrong)])]))
    with pytest.raises(UsageError, match="sizes, times or counts"):
        sweep_of([], path)
    assert sweep_of([tmp_path], None) is None
    assert "links.json is left out" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [KindTimes("p2p", [0, 2]), KindTimes("p2p", [-1, 1]), "twice"], ids=str)
def test_ranks_and_sizes_of_a_sweep_are_its_own(tmp_path, kind):
    if kind == "twice":
        kind = KindTimes("p2p", [0, 1], [SizeTimes(KB, 1e-6, 1e-6, 1e-6, 7, 70)] * 2)
    json_files.write(tmp_path / "links.json", replace(SWEEP, kinds=[kind]))
    with pytest.raises(ValueError, match=r"does not have|has a message size twice"):
        read(tmp_path / "links.json")


def test_a_sweep_comes_after_what_the_run_itself_shows():
    ranks = ran(one_after_the_other())
    found = links(match(ranks, 2), ranks, figures(), Sweep(SWEEP, "links.json"))
    assert [(one.kind, one.basis) for one in found] == [
        ("all_reduce", "trace"),
        ("all_gather", "sweep"),
        ("p2p", "sweep"),
    ]


def test_the_fit_is_kept_with_the_times():
    gather, p2p = fitted(SWEEP).kinds
    assert gather.fit.alpha_us == pytest.approx(1.0)
    assert (gather.fit.algbw_gb_per_s, gather.fit.busbw_gb_per_s) == pytest.approx((2.0, 1.0))
    assert (p2p.fit, p2p.left_out) == (None, "sizes from 10000 bytes: no time")
    assert p2p.no_fit.startswith("1 message size")


@pytest.mark.parametrize(
    ("backend", "ranks", "asked", "fits"),
    [
        ("gloo", 2, False, True),
        ("gloo", 4, False, False),
        ("nccl", 2, True, False),
        (None, 2, False, False),
        (None, None, True, True),
    ],
)
def test_a_sweep_is_of_a_run_with_its_backend_and_ranks(backend, ranks, asked, fits):
    assert Sweep(SWEEP, "links.json", asked).fits(backend, ranks) is fits


@pytest.mark.thorough
def test_eight_h100_beside_a_plain_computation(real_traces):
    """The n-th kernel of a size is the same collective on all ranks; the shortest of them is the transfer."""
    paths = sorted((real_traces / "nanogpt_8xh100").glob("*.json.gz"))
    durations = defaultdict(list)  # (rank, kind, bytes) -> ns, in order of time
    for path in paths:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        for event in sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"]):
            args = event["args"]
            if "Collective name" in args:
                elements = max(args["In msg nelems"], args["Out msg nelems"])
                size = elements * {"Float": 4, "BFloat16": 2, "Int": 4, "Long": 8}[args["dtype"]]
                durations[path, args["Collective name"], size].append(event["dur"] * 1e3)
    found = reading.measured(real_traces / "nanogpt_8xh100").links
    assert {one.kind for one in found} == {"all_gather", "reduce_scatter"}
    for one in found:
        name = {"all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base"}[one.kind]
        for size in one.sizes:
            of_ranks = [durations[path, name, size.message_bytes] for path in paths]
            assert {len(own) for own in of_ranks} == {size.calls}
            transfers = [min(same) for same in zip(*of_ranks, strict=True)]
            assert size.median_ns == pytest.approx(median(transfers), abs=2)
        largest = one.sizes[-1]
        alone = 7 / 8 * largest.message_bytes / largest.median_ns  # busbw of that size, latency in it
        assert alone <= one.busbw_gb_per_s * 1.1
        assert 250 < one.busbw_gb_per_s < 450  # NVLink 4 gives 450 in one direction
        assert 5 < one.alpha_us < 50
        assert (one.scope, one.scope_inferred, one.peak_gb_per_s) == ("intra-node", True, 450)
