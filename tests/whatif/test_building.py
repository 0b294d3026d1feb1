"""How a collective is slowed beside compute, from traced steps by hand (as in test_replay.py)."""

import math
from dataclasses import replace

import pytest

from dptune.measured import LinkFigures, LinkSize, Missing
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.loader import LoaderFacts
from dptune.whatif.cpu.building import ALL, USUAL_CALL_NS, Recorded, _buffers_ns, call_times, fixed_share
from dptune.whatif.cpu.ddp import ddp_of, low_rank_of
from dptune.whatif.cpu.latency import latency_of
from dptune.whatif.cpu.latency import seen as seen_in
from dptune.whatif.cpu.model import Latency, LowRank, Pass, RankStep
from dptune.whatif.cpu.operator_calls import OperatorCalls
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.step_times import Stretch
from dptune.whatif.cpu.timeline import Timeline
from dptune.whatif.hosts import are_crowded, share_gpus

STEP = RankStep((Pass(0.0, 100.0, 60.0, (10.0, 50.0)),), 50.0)
DDP = DdpFacts("M", bucket_caps_bytes=[1], gradient_sizes=[30, 30], grad_ready_order=[0, 1])


@pytest.mark.parametrize(
    ("took_ns", "beside"),
    [
        (220, 1.0),  # it moves from 110 to 140, and from 150 to 180: 230 without compute beside it
        (230, 1.0),
        (236, 50 / 34),  # both at 160 + 60 - 50 / 1.47, and 50 after it
        (10_000, 6.0),  # more than a collective beside compute could be slowed
    ],
)
def test_as_much_as_traced_steps_took_longer(took_ns, beside):
    both = dict.fromkeys((0, 1), Timeline((STEP, STEP), 0.0, 0.0, 1.0, durations_ns=(took_ns, took_ns)))
    recorded = Recorded(facts={}, timelines=both, ddp=DDP, link=Link(0, 1.0), samples=None, crowded=True)
    assert recorded._traced(ALL, (30, 30)).beside == pytest.approx(beside, rel=0.03)
    alone = replace(recorded, crowded=False)  # ranks of which each has cores: the step does not tell
    assert alone._traced(ALL, (30, 30)).beside == 1.2


@pytest.mark.parametrize(
    ("tails", "seen_ns"),
    [
        # 10 of 100 bytes at 1 a ns, on two lanes: what 1600 and 1800 ns are beyond 1000, twice a tenth of it.
        ([[(10, 1600)] * 3, [(10, 1800)] * 3], 120),
        ([[(10, 1600), (10, 1700), (10, 9000)], [(10, 1800)] * 3], 140),  # the median of its passes
        ([[(12, 1920)], [(12, 1920)]], 120),  # as many as there are
        ([[(10, 1600)], []], None),  # of each rank
        ([[(7, 1600)], [(7, 1800)]], None),  # too few to tell
        ([[(13, 1920)], [(13, 1920)]], None),  # more than there are buckets: of something else
        ([[(10, 1240)], [(10, 1240)]], None),  # as far off as the rate may be
        ([[(10, 1250)], [(10, 1250)]], 50),
        ([[(10, 1600), (3, 400), (3, 400)], [(10, 1800)] * 3], None),  # in most passes
    ],
)
def test_latency_is_what_collectives_after_the_pass_take_beyond_their_bytes(tails, seen_ns):
    own = [Timeline((STEP,), 0.0, 0.0, 1.0, tails=tuple(each)) for each in tails]
    found = seen_in(dict(enumerate(own)), [100] * 12, Link(0.0, 1.0, lanes=2))
    assert found == (None if seen_ns is None else pytest.approx((100, seen_ns)))


@pytest.mark.parametrize(
    ("ddp", "others", "told"),
    [
        ({}, 2, {0: 15.0, 1: 5.0}),
        ({}, 4, {0: 15.0, 1: 5.0}),  # of floats, and of whole numbers
        ({}, 3, {}),  # something else is communicated as well
        ({"buffer_bytes": 0}, 2, {}),
        ({"broadcast_buffers": False}, 2, {}),
    ],
)
def test_buffers_are_all_that_is_communicated_in_forward_passes(ddp, others, told):
    """30 of a step with three passes, of which the second communicates nothing."""
    facts = DdpFacts("Net", **{"broadcast_buffers": True, "buffer_bytes": 8, **ddp})
    passes = [Pass(0.0, 100.0, 60.0, ready) for ready in ((50.0,), (), (50.0,))]
    assert _buffers_ns(facts, RankStep(tuple(passes), 0.0), others, {0: 30.0, 1: 10.0}) == told


QUEUED = {1000: 1600, 4000: 4300, 16_000: 16_000}  # on two lanes 1200, 600 and 0 beyond their bytes


@pytest.mark.parametrize(
    ("seen", "sizes", "crowded", "alone", "queued", "others"),
    [
        ((2000.0, 900.0), {}, False, 1.0, {2000: 0.9}, ()),
        ((2000.0, 900.0), {}, True, 0.65, {2000: 0.9}, ()),
        ((2000.0, 1000.0), QUEUED, False, 1.0, {1000: 1.3, 4000: 0.7, 16_000: 0.1}, ()),  # 100 more than measured
        ((1000.0, 500.0), QUEUED, False, 1.0, {1000: 0.5, 4000: 0.0, 16_000: 0.0}, ()),  # 700 less, and none below 0
        (None, QUEUED, False, 1.0, {1000: 1.2, 4000: 0.6, 16_000: 0.0}, (0.85, 1.3)),
        (None, QUEUED, True, 0.65, {}, (0.4, 1.75)),  # on one host it is another each time
        (None, {}, False, 1.0, {}, (0.8, 1.4)),
    ],
)
def test_latency_is_what_is_known_best(seen, sizes, crowded, alone, queued, others):
    asked = [LinkSize(message_bytes=size, calls=9, median_ns=ns, q1_ns=ns, q3_ns=ns) for size, ns in sizes.items()]
    figures = LinkFigures.only(
        "no", kind="all_reduce", ranks=[0, 1], scope="unknown", basis="sweep", sizes=[], calls=0, queued=asked
    )
    link = Link(1000.0, 1.0, lanes=2)
    found = latency_of(seen, figures, link, crowded)
    assert (found.alone, dict(found.queued), found.others) == (alone, pytest.approx(queued), others)
    assert bool(found.why) == bool(queued or alone != 1)
    assert latency_of(seen, figures, replace(link, alpha_ns=0.0), crowded) == Latency()  # of none there is no share


def test_a_link_as_training_finds_it():
    """Alone it takes 500 in place of 1000, beside others 1500: 3 times those."""
    link = Latency(0.5, ((10.0, 1.5),)).on(Link(1000.0, 2.0, lanes=2))
    assert link == Link(500.0, 2.0, 2, ((10.0, 3.0),))
    assert (link.crowded(1.0), link.alone_ns(10)) == (3.0, 505.0)


@pytest.mark.parametrize(
    ("facts", "batches"),
    [
        ({"dataset_samples": 100, "batch_size": 16}, 7),
        ({"dataset_samples": 100, "batch_size": 16, "drop_last": True}, 6),
        ({"dataset_samples": 100, "batch_size": 16, "distributed_sampler": True}, 4),  # 50 of each rank
        ({"dataset_samples": 10, "batch_size": 16, "drop_last": True}, 1),
        ({"dataset_samples": 5, "batch_size": 1, "distributed_sampler": True, "drop_last": True}, 3),  # filled up to 6
        ({"batch_size": 16}, None),
    ],
)
def test_batches_of_an_epoch(facts, batches):
    assert LoaderFacts(**facts).epoch_batches(2) == batches


@pytest.mark.parametrize("shape", [(100, 50), (100,), (4, 4), (8, 4), (5, 6, 7), (64, 3, 3, 3), (1, 1000), (3, 7), ()])
def test_what_powersgd_sends_of_a_gradient_is_what_torch_decides(shape):
    hook = pytest.importorskip("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")
    elements = math.prod(shape)
    rows = shape[0] if len(shape) > 1 else 0
    found = low_rank_of(DdpFacts("M", gradient_sizes=[4 * elements], gradient_rows=[rows]))
    if rows:
        compressed, whole, small = hook._should_compress(rows, elements // rows, 1, 2)
        assert found == LowRank(int(compressed), 4 * (small if compressed else whole))
    else:
        assert found == LowRank(0, 4 * elements)


def test_what_powersgd_sends_of_all_gradients():
    """100 x 50 floats become 150; a vector of 100 and a matrix of 4 x 4 stay as they are."""
    ddp = DdpFacts("M", gradient_sizes=[20_000, 400, 64], gradient_rows=[100, 0, 4])
    assert low_rank_of(ddp) == LowRank(1, 600 + 400 + 64)
    assert low_rank_of(DdpFacts("M", gradient_sizes=[400])) is None


@pytest.mark.parametrize(
    ("hosts", "cores", "usable", "crowded"),
    [
        ("aa", 2, 2, True),
        ("aa", 8, 2, False),  # bound: perhaps to two cores each
        ("aa", 8, 1, True),
        ("aa", 8, 8, False),
        ("ab", 2, 2, False),
        ("a", 1, 1, False),
        ("aa", None, None, False),
    ],
)
def test_ranks_without_a_core_but_their_own(hosts, cores, usable, crowded):
    device = DeviceFacts("cpu", cores=cores, usable_cores=usable)
    facts = {rank: Facts(rank, host=host, device=device) for rank, host in enumerate(hosts)}
    assert are_crowded(facts) == crowded


@pytest.mark.parametrize(("uuids", "shared"), [("ab", False), ("aa", True), ("aba", True), ("a", False), ("  ", False)])
def test_ranks_that_share_a_gpu(uuids, shared):
    facts = {rank: Facts(rank, device=DeviceFacts("cuda", uuid=uuid.strip())) for rank, uuid in enumerate(uuids)}
    assert share_gpus(facts) == shared


def test_collectives_may_be_slower_still_where_cores_are_shared():
    both = dict.fromkeys((0, 1), Timeline((STEP, STEP), 0.0, 0.0, 1.0, durations_ns=(10_000, 10_000)))
    recorded = Recorded(facts={}, timelines=both, ddp=DDP, link=Link(0, 1.0), samples=None, crowded=True)
    made = recorded._traced(ALL, (30, 30))
    assert made.beside == pytest.approx(6.0, rel=0.03)


def test_what_a_pass_takes_whatever_the_batch():
    """Of 100 + 60 us the passes send for 20. Fixed are 6 between operators, 10 calls of 1.9 * 2, and 10 kB at 0.45 ns.

    Without an operator that computes nothing a call takes 1.5 us. The profiler makes it and the bytes 2 times as long.
    """
    us = 1000
    one = RankStep((Pass(0.0, 100.0 * us, 60.0 * us, (10.0, 50.0), sent_ns=20.0 * us),), 50.0)
    told = Timeline((one,), 0.0, 0.0, 1.0, OperatorCalls(10.0, 6.0 * us, 2.0 * us))
    stretch = {0: Stretch(1.0, 2.0)}
    assert fixed_share({0: told}, stretch, 10_000) == pytest.approx((6 + 38 + 9) / 140)
    assert fixed_share({0: replace(told, calls=replace(told.calls, view_ns=0.0))}, stretch, 10_000) == pytest.approx(
        (6 + 30 + 9) / 140
    )


@pytest.mark.parametrize(
    ("wrapped", "why"),
    [
        ({}, "the script has no DistributedDataParallel module"),
        ({"ddp": [DDP, DDP]}, "the script has 2 DistributedDataParallel modules"),
    ],
)
def test_what_the_model_of_cpu_steps_does_not_support_is_named(wrapped, why):
    with pytest.raises(Missing, match=why):
        ddp_of(Facts(rank=0, **wrapped))


def test_calls_take_what_they_take_on_the_slower_rank():
    known = {rank: Facts(rank, call_ns=times * USUAL_CALL_NS) for rank, times in enumerate((0.5, 1.5))}
    assert call_times(known) == 1.5
    assert call_times({**known, 2: Facts(2)}) == 1.5
    assert call_times({0: Facts(0)}) == 1.0
