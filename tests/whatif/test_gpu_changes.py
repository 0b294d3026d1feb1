"""Changes of GPU steps by hand: micro-batches, graphs, updates, copies out of buckets, units of fully_shard."""

from __future__ import annotations

from dataclasses import replace
from math import hypot, sqrt
from statistics import pstdev

import pytest

from dptune.errors import UsageError
from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.assumptions import UNMATCHED as UNMATCHED_AS_RECORDED
from dptune.whatif.assumptions import assumed
from dptune.whatif.cpu.buckets import Caps
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.assumed import Side
from dptune.whatif.gpu.buckets import rebucketed
from dptune.whatif.gpu.changes import bounded, changed, without_part
from dptune.whatif.gpu.editing import requeued
from dptune.whatif.gpu.gathers import Gather
from dptune.whatif.gpu.graph import Edge, Kind, Message, Stretch
from dptune.whatif.gpu.optimizing import implementation_of
from dptune.whatif.gpu.parts import OUTSIDE, Part
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.reductions import Bucket, Reduction
from dptune.whatif.gpu.stragglers import latest
from dptune.whatif.gpu.uncertainty import unknown_ns
from dptune.whatif.gpu.unmatched import UNMATCHED, alone_ns, apart_ns, unknown
from dptune.whatif.scenarios import named
from dptune.whatif.traced_steps import HOST_LIMITS, least_of_devices_ns, why_only_a_bound

STEPS = 4


def chain(*parts: tuple[Kind, float, int, int], **known: object) -> Program:
    """One rank whose steps do these one after another: what the time is spent on, ns, the micro-batch, the part."""
    edges: list[list[Edge]] = [[]]
    numbers, flags, borders = [OUTSIDE], [0], [0]
    for _ in range(STEPS):
        for kind, took_ns, number, part in parts:
            edges.append([Edge(len(edges) - 1, took_ns, kind)])
            numbers.append(number)
            flags.append(part)
        borders.append(len(edges) - 1)
    recorded, at = [0], 0
    for (edge,) in edges[1:]:
        at += round(edge.lag_ns)
        recorded.append(at)
    steps = [Stretch(0, number, borders[number], borders[number + 1]) for number in range(STEPS)]
    made = Program(recorded, edges, [], steps, Link(0.0, 1.0), 1, 8.0, ranks=[0] * len(edges))
    return replace(made, micro_batches=numbers, parts=flags, **known)  # type: ignore[arg-type]


def far_ahead() -> Program:
    """A host that launches a kernel of 100 every 10; the device starts the first of them long after the last launch."""
    calls = [0, *range(2, 2 + 2 * STEPS, 2)]
    edges: list[list[Edge]] = [[], []]
    recorded, steps = [0, 1000], []
    for number in range(STEPS):
        edges.append([Edge(calls[number], 10.0, Kind.HOST)])
        begin = len(edges) - 2 if number else 1
        edges.append([Edge(begin, 100.0, Kind.COMPUTE), Edge(calls[number], 0.0, Kind.LAUNCH)])
        recorded += [10 * (number + 1), 1000 + 100 * (number + 1)]
        steps.append(Stretch(0, number, begin, len(edges) - 1, (calls[number], calls[number + 1])))
    return Program(recorded, edges, [], steps, None, 1, ranks=[0] * len(edges))


def test_a_host_that_is_ahead_limits_a_quick_device() -> None:
    """Kernels of 5 are launched every 10, of which those that were launched ahead show nothing."""
    made = far_ahead()
    assert made.run() == made.recorded_ns
    assert made.step_ns() == 100
    assert changed(made, {"compute.times": 0.05}).step_ns() == pytest.approx(10)
    assert changed(made, {"compute.times": 0.05, "host.times": 0.2}).step_ns() == pytest.approx(5)
    assert made.levelled() is made
    slow = replace(made, edges=[[edge.lasting(15 * edge.lag_ns) for edge in each] for each in made.edges])
    assert slow.recorded_step_ns() == 150  # more than the device took: that host's steps are not the mean ones
    assert slow.levelled().recorded_step_ns() == pytest.approx(100)


def test_a_quicker_host_spends_less_on_each_part() -> None:
    made = chain((Kind.HOST, 100.0, 0, 0), spent_ns={Part.REDUCING: {1: 40.0}})
    assert changed(made, {"host.times": 0.5}).spent_ns == {Part.REDUCING: {1: 20.0}}


def test_a_change_is_as_uncertain_as_the_step_and_the_saving_are_large() -> None:
    """A kernel of 200 ns becomes one of 100: shares of the 100 that are left, and of the 100 that are saved."""
    made = chain((Kind.COMPUTE, 200.0, 0, 0))
    half = changed(made, {"compute.times": 0.5})
    off = unknown_ns(made, half, 200.0, 0.0, only_a_bound=False)
    assert sorted(map(abs, off)) == pytest.approx([0, 0, 0, 1.5, 15])


def test_a_change_that_saves_most_of_the_step_is_as_uncertain_as_what_is_left() -> None:
    """A kernel of 200 ns becomes one of 20: 15 % of these, not of the 180 that are saved; one of 400 is off by 30."""
    made = chain((Kind.COMPUTE, 200.0, 0, 0))
    tenth, twice = (changed(made, {"compute.times": factor}) for factor in (0.1, 2.0))
    assert max(map(abs, unknown_ns(made, tenth, 200.0, 0.0, only_a_bound=False))) == pytest.approx(3)
    assert max(map(abs, unknown_ns(made, twice, 200.0, 0.0, only_a_bound=False))) == pytest.approx(30)


def test_fewer_micro_batches_are_the_last_ones() -> None:
    made = chain(
        (Kind.COMPUTE, 100.0, 0, 0), (Kind.COMPUTE, 120.0, 1, 0), (Kind.UPDATE, 30.0, OUTSIDE, 0), optimizer="fused"
    )
    assert made.step_ns() == 250
    one = changed(made, {"accumulation.micro_batches": 1})
    assert (one.step_ns(), one.samples) == (150, 4.0)
    four = changed(made, {"accumulation.micro_batches": 4})
    assert (four.step_ns(), four.samples) == (470, 16.0)
    assert changed(made, {"accumulation.micro_batches": 2}) is made
    alone = chain((Kind.COMPUTE, 100.0, 0, 0), (Kind.UNSIZED, 50.0, 0, 0))
    assert changed(alone, {"accumulation.micro_batches": 4}).step_ns() == 600
    with pytest.raises(Missing, match="backward passes"):
        changed(replace(made, micro_batches=[OUTSIDE] * len(made.edges)), {"accumulation.micro_batches": 1})


def reducing(made: Program) -> Program:
    """With the reductions of the last pass of each step, which take nothing but their collective."""
    return replace(made, reductions=[Reduction(number, (), {}, {}, ()) for number in range(STEPS)])


def test_more_micro_batches_of_which_the_last_reduces_are_more_of_the_others() -> None:
    two = reducing(chain((Kind.COMPUTE, 100.0, 0, 0), (Kind.COMPUTE, 70.0, 1, 0), (Kind.COLLECTIVE, 50.0, 1, 0)))
    assert changed(two, {"accumulation.micro_batches": 4}).step_ns() == 3 * 100 + 70 + 50
    each = chain((Kind.COLLECTIVE, 100.0, 0, 0), (Kind.COMPUTE, 70.0, 1, 0), (Kind.COLLECTIVE, 50.0, 1, 0))
    assert changed(reducing(each), {"accumulation.micro_batches": 4}).step_ns() == 2 * 220


def test_more_micro_batches_than_one_reduce_once_with_no_sync() -> None:
    """Of the host's 60 us before the last kernel 40 are the reducer's."""
    one = reducing(chain((Kind.COMPUTE, 100e3, 0, 0), (Kind.HOST, 60e3, 0, 0), (Kind.COLLECTIVE, 50e3, 0, 0)))
    one = replace(one, spent_ns={Part.REDUCING: dict.fromkeys(one.places((Kind.HOST,)), 40e3)})
    more: dict[str, Value] = {"accumulation.micro_batches": 3}
    assert changed(one, more).step_ns() == 3 * 210e3
    assert changed(one, {"ddp.no_sync": True, **more}).step_ns() == 3 * 120e3 + 40e3 + 50e3


def test_one_launch_for_the_calls_of_a_pass() -> None:
    """The loader's 40 us and the optimizer's 20 stay; of the pass's 50 + 60 the first call is a launch of 20."""
    made = chain(
        (Kind.INPUT, 40e3, OUTSIDE, 0),
        (Kind.HOST, 50e3, 0, 0),
        (Kind.HOST, 60e3, 0, 0),
        (Kind.UPDATING, 20e3, OUTSIDE, 0),
    )
    assert changed(made, {"cuda.graphs": True}).step_ns() == 80e3
    assert changed(made, {"cuda.graphs": True}, Side.LEAST).step_ns() == 40e3 + 50e3 + 15e3 + 20e3
    assert changed(made, {"cuda.graphs": False}) is made


def test_an_update_moves_a_third_in_one_kernel() -> None:
    made = chain((Kind.COMPUTE, 100.0, 0, 0), (Kind.UPDATING, 1e3, OUTSIDE, 0), (Kind.UPDATE, 9e3, OUTSIDE, 0))
    foreach = replace(made, optimizer="foreach")
    assert changed(foreach, {"optimizer.fused": True}).step_ns() == pytest.approx(100 + 350 + 3e3)
    assert changed(foreach, {"optimizer.foreach": True}) is foreach
    loop = changed(replace(made, optimizer="loop"), {"optimizer.foreach": True})
    assert loop.step_ns() == pytest.approx(100 + 120 + 7_200 + 0.05 * 1_800)
    with pytest.raises(Missing, match="element by element"):
        changed(made, {"optimizer.fused": True})
    with pytest.raises(Missing, match="foreach excludes"):
        changed(replace(made, optimizer="fused"), {"optimizer.foreach": True})
    with pytest.raises(Missing, match="foreach excludes"):  # as torch does, where both are set
        changed(foreach, {"optimizer.foreach": True, "optimizer.fused": True})


def test_what_is_left_without_an_update_waits_for_no_room_in_the_queue() -> None:
    """The call after it waits for the begin of a kernel that the queue holds behind the update's: 5 us here."""
    made = chain((Kind.COMPUTE, 100.0, 0, 0), (Kind.UPDATING, 1e3, OUTSIDE, 0), (Kind.UPDATE, 9e3, OUTSIDE, 0))
    edges = [*made.edges]
    edges[-1] = [*edges[-1], Edge(0, 5e3, Kind.QUEUE)]
    queued = replace(made, edges=edges, optimizer="loop")
    assert without_part(queued, {"optimizer.foreach": True}).step_ns() == 100


def test_eager_attention_at_best_takes_no_time() -> None:
    made = chain((Kind.COMPUTE, 100.0, 0, 0), (Kind.COMPUTE, 70.0, 0, Part.EAGER_ATTENTION))
    assert changed(made, {"attention.sdpa": True}).step_ns() == 100
    with pytest.raises(Missing, match="operator by operator"):
        changed(replace(made, parts=[0] * len(made.edges)), {"attention.sdpa": True})


def test_another_gpu_speeds_up_kernels_and_copies_by_its_largest_ratio_of_peaks_at_best() -> None:
    """An H200 has the FLOP/s of an H100 and 4.8 in place of 3.35 TB/s; host calls and collectives stay."""
    made = chain(
        (Kind.HOST, 30.0, 0, 0), (Kind.COMPUTE, 480.0, 0, 0), (Kind.COPY, 96.0, 0, 0), (Kind.COLLECTIVE, 50.0, 0, 0)
    )
    on_h100 = replace(made, gpu="NVIDIA H100 80GB HBM3")
    assert changed(on_h100, {"gpu.model": "H200"}).step_ns() == pytest.approx(30 + 335 + 67 + 50)
    # The L40S has less bandwidth and less of each type but fp32, of which it has 91.6 / 67.
    slower = changed(on_h100, {"gpu.model": "L40S"}).step_ns()
    assert slower == pytest.approx(30 + (480 + 96) * 67 / 91.6 + 50)
    assert changed(on_h100, {"gpu.model": "H100 80GB HBM3"}) is on_h100
    # An A100 has at most 2.04 / 3.35 of each peak, which a kernel that reaches little of these need not notice.
    assert changed(on_h100, {"gpu.model": "A100"}) is on_h100
    assert bounded(on_h100, {"gpu.model": "H200"}) == ["gpu.model"]
    with pytest.raises(Missing, match="--gpu"):
        changed(made, {"gpu.model": "H200"})
    with pytest.raises(Missing, match="peaks of a GPU of one's own"):
        changed(replace(made, gpu="a GPU of one's own"), {"gpu.model": "H200"})


def test_another_gpu_is_one_with_known_peaks() -> None:
    assert named("gpu.model").parse("h200") == "h200"
    with pytest.raises(UsageError, match="not a GPU with known peaks") as error:
        named("gpu.model").parse("H100")
    assert "H100 PCIe" in str(error.value.hint)


def units(step_count: int = 3) -> Program:
    """Two ranks, two units: each is gathered in 50 after the compute of 80 before it, and copied out in 10."""
    edges: list[list[Edge]] = []
    ranks: list[int] = []
    recorded: list[int] = []
    messages: list[Message] = []
    gathers: list[Gather] = []
    borders: dict[int, list[int]] = {0: [], 1: []}

    def add(rank: int, *waits: Edge) -> int:
        edges.append(list(waits))
        ranks.append(rank)
        recorded.append(round(max((recorded[edge.item] + edge.lag_ns for edge in waits), default=0)))
        return len(edges) - 1

    device = {rank: add(rank) for rank in (0, 1)}
    host = {rank: add(rank) for rank in (0, 1)}
    for number in range(step_count):
        for rank in (0, 1):
            borders[rank].append(device[rank])
        for unit in ("a", "b"):
            calls, begins = {}, {}
            for rank in (0, 1):
                calls[rank] = host[rank] = add(rank, Edge(host[rank], 1.0, Kind.HOST))
                begins[rank] = add(rank, Edge(calls[rank], 0.0, Kind.LAUNCH), Edge(device[rank], 0.0, Kind.ORDER))
            messages.append(Message("all_gather", 50, "float"))
            for rank in (0, 1):
                waits = [Edge(begin, 50.0, Kind.COLLECTIVE, len(messages) - 1) for begin in begins.values()]
                end = add(rank, *waits)
                used_call = host[rank] = add(rank, Edge(host[rank], 1.0, Kind.HOST))
                ready = add(
                    rank,
                    Edge(end, 0.0, Kind.ORDER),
                    Edge(used_call, 0.0, Kind.LAUNCH),
                    Edge(device[rank], 0.0, Kind.ORDER),
                )
                copied = add(rank, Edge(ready, 10.0, Kind.COMPUTE))
                device[rank] = add(rank, Edge(copied, 80.0, Kind.COMPUTE))
                operations = ((begins[rank], end),)
                gathers.append(Gather(rank, number, False, unit, operations, calls[rank], used_call, copied))
    for rank in (0, 1):
        borders[rank].append(device[rank])
    steps = [
        Stretch(rank, number, borders[rank][number], borders[rank][number + 1])
        for rank in (0, 1)
        for number in range(step_count)
    ]
    made = Program(recorded, edges, messages, steps, Link(0.0, 1.0), 2, ranks=ranks, gathers=gathers)
    return replace(made, micro_batches=[0] * len(edges), parts=[0] * len(edges))


def test_a_unit_gathered_ahead_overlaps_the_one_before() -> None:
    """280 = 2 x (50 + 10 + 80); the second gather is issued with the copy of the first unit, within its 90."""
    made = units()
    assert made.step_ns() == 280
    assert changed(made, {"fsdp.forward_prefetch": 1}).step_ns() == pytest.approx(50 + 2 * 90, abs=3)
    assert changed(made, {"fsdp.forward_prefetch": 0}) is made
    assert changed(made, {"fsdp.prefetch": True}).step_ns() == pytest.approx(230, abs=3)
    with pytest.raises(Missing, match="fully_shard"):
        changed(replace(made, gathers=[]), {"fsdp.forward_prefetch": 1})


def test_parameters_kept_after_the_forward_pass_are_not_gathered_again() -> None:
    made = units()
    again = [Part.REGATHER if edges and edges[0].kind == Kind.COLLECTIVE else Part.NONE for edges in made.edges]
    kept = changed(replace(made, parts=again), {"fsdp.reshard_after_forward": False})
    assert kept.step_ns() == pytest.approx(180, abs=3)
    of_fsdp1 = changed(replace(made, parts=again, gathers=[]), {"fsdp.reshard_after_forward": False})
    assert of_fsdp1.step_ns() == kept.step_ns()
    with pytest.raises(Missing, match="backward"):
        changed(made, {"fsdp.reshard_after_forward": True})


def test_sixteen_bits_help_what_computes_in_fp32() -> None:
    """A run whose products are in 16 bits already has nothing to gain, and autocast would only cast."""
    made = chain((Kind.COMPUTE, 90e3, 0, 0), (Kind.FP32, 1e3, 0, 0))
    with pytest.raises(Missing, match="less than 2 %"):
        changed(made, {"precision.autocast": "bf16"})


@pytest.mark.parametrize(("host_us", "why"), [(120, HOST_LIMITS), (1, "")])
def test_a_traced_host_that_autocast_keeps_busier_gives_only_a_bound(host_us: int, why: str) -> None:
    """34 us of products become 2 + 32 / (16 * 0.62), and the host takes 1.3 times as long: 36 us more than 120."""
    made, changes = chain((Kind.HOST, host_us * 1e3, 0, 0), (Kind.FP32, 34e3, 0, 0)), {"precision.autocast": "fp16"}
    after = changed(made, changes)
    longer_ns = after.step_ns() - made.step_ns()
    assert longer_ns == pytest.approx((0.3 * host_us - 32 + 32 / (16 * 0.62)) * 1e3, abs=5)
    assert why_only_a_bound(made, after, changes, longer_ns) == why
    assert why_only_a_bound(made, after, {"host.times": 2.0}, longer_ns) == ""
    assert least_of_devices_ns(made, made.step_ns(), 4e3) == pytest.approx(made.step_ns() - 30e3)


def test_an_unknown_device_has_no_ratio_of_peaks() -> None:
    made, changes = chain((Kind.FP32, 34e3, 0, 0)), {"precision.autocast": "fp16"}
    known = replace(made, peaks={"fp32": 1.0, "fp16": 8.0})
    said = [next(words for words in assumed(each, changes, traced=True) if "peak" in words) for each in (made, known)]
    assert said[0].startswith("the device and its peak FLOP/s are unknown")
    assert said[1].endswith("in the new precision to that in the old")


@pytest.mark.parametrize(
    ("names", "implementation"),
    [
        ({"multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float>>"}, "fused"),
        ({"multi_tensor_apply_kernel<TensorListMetadata<2>, LerpFunctor<float>>", "vectorized_elementwise"}, "foreach"),
        ({"vectorized_elementwise_kernel"}, "loop"),
        ({"multi_tensor_apply_kernel<LerpFunctor>", "nvjet_tst_128x256_NNT"}, ""),  # Muon multiplies
        ({"triton_poi_fused_add_mul_0"}, ""),
        (set(), ""),
    ],
)
def test_how_an_optimizer_updates_by_its_kernels(names: set[str], implementation: str) -> None:
    assert implementation_of(names) == implementation


def buckets_beside_a_kernel() -> Program:
    """Two gradients of 100 bytes, ready at 100 and 200, in one bucket; another in one of its own, ready at 1,000.

    Links send a byte per ns; the first bucket takes 240 while the rank computes, the second 100 alone.
    """
    edges: list[list[Edge]] = [[]]
    numbers, recorded, steps, found = [0], [0], [], []

    def add(at: int, *waits: Edge) -> int:
        edges.append([*waits])
        recorded.append(at)
        return len(edges) - 1

    for number in range(STEPS):
        start, since = numbers[-1], 1_110 * number
        one = add(since + 100, Edge(start, 100.0, Kind.COMPUTE))
        two = add(since + 200, Edge(one, 100.0, Kind.COMPUTE))
        begin = add(since + 200, Edge(two, 0.0, Kind.ORDER), Edge(start, 0.0, Kind.LAUNCH))
        end = add(since + 440, Edge(begin, 240.0, Kind.COLLECTIVE, 0))
        three = add(since + 1_000, Edge(two, 800.0, Kind.COMPUTE))
        last = add(since + 1_000, Edge(three, 0.0, Kind.ORDER), Edge(end, 0.0, Kind.ORDER))
        over = add(since + 1_100, Edge(last, 100.0, Kind.COLLECTIVE, 1))
        numbers.append(add(since + 1_110, Edge(over, 10.0, Kind.COMPUTE)))
        buckets = (Bucket(1, 0, {0: begin}, {0: end}), Bucket(2, 1, {0: last}, {0: over}))
        found.append(Reduction(number, (100, 100, 100), {0: (one, two, three)}, {0: (start, start, start)}, buckets))
        steps.append(Stretch(0, number, start, numbers[-1]))
    messages = [Message("all_reduce", 200, "float"), Message("all_reduce", 100, "float")]
    return Program(recorded, edges, messages, steps, Link(0.0, 1.0), 1, reductions=found, ranks=[0] * len(edges))


@pytest.mark.parametrize(
    ("sizes", "took"), [((300,), [300]), ((100, 100, 100), [120, 120, 100])], ids=["one", "of a gradient each"]
)
def test_new_buckets_are_slowed_while_their_rank_computes(sizes: tuple[int, ...], took: list[float]) -> None:
    """Beside compute 240 / 200 of the time alone, as recorded."""
    made = buckets_beside_a_kernel()
    assert made.run() == made.recorded_ns
    other = rebucketed(made, Caps(sizes), Side.MIDDLE)
    for reduction in other.reductions:
        ends = [bucket.ends[0] for bucket in reduction.buckets]
        assert [edge.lag_ns for end in ends for edge in other.edges[end]] == pytest.approx(took)
    # kernels until 1,000, the last bucket, the update of 10
    assert other.step_ns() == pytest.approx(1_000 + took[-1] + 10)


def test_other_buckets_than_those_of_gradients_out_of_order_are_unknown() -> None:
    """The second bucket was complete before the first: both are reduced with the same gradient."""
    made = buckets_beside_a_kernel()
    found = [replace(each, buckets=(replace(each.buckets[0], last=2), each.buckets[1])) for each in made.reductions]
    with pytest.raises(Missing, match="order gradients differently from how they become ready"):
        rebucketed(replace(made, reductions=found), Caps((300,)), Side.MIDDLE)


def test_new_buckets_take_longer_or_less_by_chance() -> None:
    """The second bucket takes 90 and 110 in turn: 10 % apart over four steps of one bucket of 300.

    Of the recorded ones, 200 and 100, sqrt(5) / 3 of that is left.
    """
    made = buckets_beside_a_kernel()
    edges, ends = [*made.edges], [reduction.buckets[1].ends[0] for reduction in made.reductions]
    for end, ns in zip(ends, (90.0, 110.0, 90.0, 110.0), strict=True):
        edges[end] = [edge.lasting(ns) for edge in edges[end]]
    varied = replace(made, edges=edges)
    least, middle, most = (rebucketed(varied, Caps((300,)), side) for side in Side)
    share = 1.645 * pstdev([1.0] * 4 + [0.9, 1.1, 0.9, 1.1]) / 2 * hypot(1, sqrt(5) / 3)
    ends = [each.reductions[0].buckets[0].ends[0] for each in (least, middle, most)]
    took = [each.edges[end][0].lag_ns for each, end in zip((least, middle, most), ends, strict=True)]
    assert took[0] / took[1] == pytest.approx(1 + share)
    assert took[2] / took[1] == pytest.approx(1 - share)


def test_a_queue_without_what_is_launched_no_more_has_more_room() -> None:
    """Each call waits for the begin two launches before it; without those of even numbers call 5 waits for begin 1."""
    edges: list[list[Edge]] = []
    for number in range(6):
        call = len(edges)
        waits = [Edge(call - 2, 1.0, Kind.HOST)] if number else []
        if number >= 2:
            waits.append(Edge(call - 3, 0.0, Kind.QUEUE))
        edges.append(waits)
        edges.append([Edge(call, 0.0, Kind.LAUNCH), *([Edge(call - 1, 100.0, Kind.COMPUTE)] if number else [])])
    made = Program([*range(12)], edges, [], [], None, 1, ranks=[0] * 12)
    fewer = requeued(made, {0, 4, 8})
    waited = [[edge.item for edge in each if edge.kind == Kind.QUEUE] for each in fewer.edges]
    assert waited[10] == [3]
    assert waited[6] == []
    assert requeued(made, set()) is made


def test_each_queue_has_the_room_of_what_is_launched_into_it() -> None:
    """Launches into two queues of one place in turn: call 5 comes once 4 has room, behind 2; without that, behind 0."""
    edges: list[list[Edge]] = []
    for number in range(6):
        call = len(edges)
        waits = [Edge(call - 2, 1.0, Kind.HOST)] if number else []
        if number >= 3:
            waits.append(Edge(call - 5, 0.0, Kind.QUEUE))
        edges.append(waits)
        edges.append([Edge(call, 0.0, Kind.LAUNCH), *([Edge(call - 1, 100.0, Kind.COMPUTE)] if number else [])])
    made = Program([*range(12)], edges, [], [], None, 1, ranks=[0] * 12)
    made = replace(made, queues=dict.fromkeys((3, 7, 11), 1))
    fewer = requeued(made, {4})
    waited = [[edge.item for edge in each if edge.kind == Kind.QUEUE] for each in fewer.edges]
    assert waited[10] == [1]
    assert waited[8] == [3]


def passes_that_copy() -> Program:
    """Two passes a step: a kernel of 100, then a copy of 10 into a bucket, which is reduced in 50 beside what follows.

    A gap of 2 is before each kernel and copy. The queue has room for three launches.
    """
    edges: list[list[Edge]] = [[], []]
    recorded, borders = [0, 0], [1]
    begins: list[int] = []
    passes: list[dict[str, int]] = []

    def add(*waits: Edge) -> int:
        edges.append([*waits])
        recorded.append(round(max(recorded[edge.item] + edge.lag_ns for edge in waits)))
        return len(edges) - 1

    def launched(host: int, *waits: Edge) -> tuple[int, int]:
        full = [Edge(begins[-3], 0.0, Kind.QUEUE)] if len(begins) >= 3 else []
        call = add(Edge(host, 1.0, Kind.HOST), *full)
        begins.append(add(Edge(call, 0.0, Kind.LAUNCH), *waits))
        return call, begins[-1]

    host, device = 0, 1
    for _ in range(STEPS):
        for _ in range(2):
            host, begin = launched(host, Edge(device, 2.0, Kind.ORDER))
            kernel = add(Edge(begin, 100.0, Kind.COMPUTE))
            copying, begin = launched(host, Edge(kernel, 2.0, Kind.ORDER))
            device = add(Edge(begin, 10.0, Kind.COMPUTE))
            host, begin = launched(copying, Edge(device, 0.0, Kind.ORDER))
            over = add(Edge(begin, 50.0, Kind.COLLECTIVE, 0))
            passes.append({"ready": device, "called": copying, "issued": host, "begin": begin, "over": over})
        borders.append(device)
    reductions = [
        Reduction(
            step=number // 2,
            gradient_bytes=(50,),
            ready={0: (each["ready"],)},
            called={0: (each["called"],)},
            buckets=(Bucket(0, 0, {0: each["begin"]}, {0: each["over"]}),),
            moves=(each["ready"],),
            calls=(each["called"], each["issued"]),
        )
        for number, each in enumerate(passes)
    ]
    steps = [Stretch(0, number, borders[number], borders[number + 1]) for number in range(STEPS)]
    made = Program(recorded, edges, [Message("all_reduce", 50, "float")], steps, Link(0.0, 1.0), 1)
    return replace(made, reductions=reductions, ranks=[0] * len(edges))


def test_a_pass_that_reduces_nothing_leaves_no_gap_of_its_copies_and_its_room_in_the_queue() -> None:
    made = passes_that_copy()
    assert made.run() == made.recorded_ns
    assert made.step_ns() == 2 * (102 + 12)
    silent = changed(made, {"ddp.no_sync": True})
    assert silent.step_ns() == 102 + 102 + 12
    for program in (made, silent):
        used = {
            edge.item
            for each in program.edges
            for edge in each
            if edge.kind in (Kind.COMPUTE, Kind.COLLECTIVE) and edge.lag_ns
        }
        launches = sorted(
            (edge.item, begin) for begin in used for edge in program.edges[begin] if edge.kind == Kind.LAUNCH
        )
        begins = [begin for _, begin in launches]
        behind = [
            sum(call < place for call, _ in launches) - begins.index(edge.item)
            for place, each in enumerate(program.edges)
            for edge in each
            if edge.kind == Kind.QUEUE
        ]
        assert set(behind) == {3}


def waiting_for_a_late_rank() -> Program:
    """Three ranks with steps of 100 whose collectives were not matched: of the last rank 90 are the host's, else 10."""
    edges: list[list[Edge]] = [[], [], []]
    recorded, steps = [0, 0, 0], []
    for number in range(STEPS):
        for rank, busy in enumerate((10.0, 10.0, 90.0)):
            before = 6 * number - 2 + 2 * rank if number else rank
            edges += [[Edge(before, busy, Kind.HOST)], [Edge(len(edges), 100 - busy, Kind.WAIT)]]
            recorded += [100 * number + round(busy), 100 * (number + 1)]
            steps.append(Stretch(rank, number, before, len(edges) - 1))
    ranks = [0, 1, 2, *(rank for _ in range(STEPS) for rank in (0, 0, 1, 1, 2, 2))]
    return Program(recorded, edges, [], steps, None, 3, ranks=ranks)


def test_waiting_in_collectives_that_were_not_matched_is_bounded_by_what_any_rank_saves() -> None:
    """Without the hosts' time the ranks that waited seem to wait as before; truly 10 are left of a step."""
    made = waiting_for_a_late_rank()
    assert made.run() == made.recorded_ns
    alone = alone_ns(made)
    assert alone == {0: 10, 1: 10, 2: 90}
    free = changed(made, {"host.times": 0.0})
    assert free.step_ns() == 90
    assert apart_ns(made, alone, free) == (80, 0)
    assert unknown(80, 100) == UNMATCHED
    assert apart_ns(made, alone, made) == (0, 0)
    assert apart_ns(made, alone, changed(made, {"host.times": 2.0})) == (0, 80)
    assert UNMATCHED_AS_RECORDED in assumed(made, {"host.times": 0.0}, traced=True)
    assert UNMATCHED_AS_RECORDED not in assumed(chain((Kind.HOST, 100.0, 0, 0)), {"host.times": 0.0}, traced=True)
    assert apart_ns(chain((Kind.HOST, 100.0, 0, 0)), {}, made) == (0.0, 0.0)


@pytest.mark.parametrize(("times", "apart"), [(0.5, (45, 0)), (1.0, (0, 0)), (2.0, (0, 90))])
def test_a_late_rank_that_was_not_read_changes_as_those_that_were(times: float, apart: tuple[float, float]) -> None:
    """Of steps of 100 the rank that was read waits 90 for another one, whose work changes by the same share."""
    made = chain((Kind.HOST, 10.0, 0, 0), (Kind.WAIT, 90.0, 0, 0), world_size=2)
    after = changed(made, {"host.times": times})
    assert apart_ns(made, alone_ns(made), after) == apart
    assert apart_ns(replace(made, world_size=1), alone_ns(made), after)[0] <= 5


def on_two_hosts(*, arrivals: bool = False) -> Program:
    """Four ranks on two hosts: 100 of compute, a gather and a reduce-scatter of 120 bytes, then an update of 10.

    An all-reduce among all takes 60 and 1.5 a byte, 240: a hop 10 and 1 a byte. Each collective takes half of that.
    `arrivals`: an item stands for the begins of a collective.
    """
    edges: list[list[Edge]] = []
    ranks: list[int] = []
    recorded: list[int] = []
    messages: list[Message] = []
    gathers: list[Gather] = []
    borders: dict[int, list[int]] = {rank: [] for rank in range(4)}

    def add(rank: int, *waits: Edge) -> int:
        edges.append(list(waits))
        ranks.append(rank)
        recorded.append(round(max((recorded[edge.item] + edge.lag_ns for edge in waits), default=0)))
        return len(edges) - 1

    device = {rank: add(rank) for rank in range(4)}
    for number in range(3):
        for rank in range(4):
            borders[rank].append(device[rank])
        for kind in ("all_gather", "reduce_scatter"):
            messages.append(Message(kind, 120, "float"))
            begins = {rank: add(rank, Edge(device[rank], 100.0, Kind.COMPUTE)) for rank in range(4)}
            waited = [*begins.values()]
            if arrivals:
                waited = [add(0, *(Edge(begin, 0.0, Kind.ARRIVAL) for begin in waited))]
            for rank in range(4):
                waits = (Edge(item, 120.0, Kind.COLLECTIVE, len(messages) - 1) for item in waited)
                device[rank] = end = add(rank, *waits)
                if kind == "all_gather":
                    gathers.append(Gather(rank, number, False, "a", ((begins[rank], end),), begins[rank], end, end))
        for rank in range(4):
            device[rank] = add(rank, Edge(device[rank], 10.0, Kind.UPDATE))
    steps = []
    for rank in range(4):
        borders[rank].append(device[rank])
        steps += [Stretch(rank, number, borders[rank][number], borders[rank][number + 1]) for number in range(3)]
    link = Link(60.0, 1 / 1.5)
    made = Program(recorded, edges, messages, steps, link, 4, hosts=2, ranks=ranks, gathers=gathers)
    return replace(made, micro_batches=[0] * len(edges), parts=[0] * len(edges), optimizer="fused")


@pytest.mark.parametrize("arrivals", [False, True])
@pytest.mark.parametrize(("side", "times"), [(Side.LEAST, 1.0), (Side.MIDDLE, 0.25), (Side.MOST, 0.0)])
def test_shards_within_hosts_by_hand(side: Side, times: float, arrivals: bool) -> None:
    """Within a host an all-reduce of two ranks takes 2 hops of 10 and 120 bytes, of 240 the part 140 / 240.

    Between two hosts 2 * 10 and 120 bytes of all ranks of a host, 90 of a half more, 60 of one; at best, beside the
    next reduce-scatter.
    """
    made = on_two_hosts(arrivals=arrivals)
    assert made.step_ns() == 2 * (100 + 120) + 10
    inside = times * 120 * 140 / 240
    between = {Side.LEAST: 140.0, Side.MIDDLE: 110.0, Side.MOST: 80.0}[side]
    after = changed(made, {"fsdp.within_hosts": True}, side)
    assert after.step_ns() == pytest.approx(200 + 10 + inside + inside + between)


@pytest.mark.parametrize("arrivals", [False, True])
def test_a_late_host_keeps_only_its_own_ranks_from_gathering(arrivals: bool) -> None:
    made = on_two_hosts(arrivals=arrivals)
    after = changed(made, {"fsdp.within_hosts": True})
    first = made.gathers[0].operations[0][1]
    assert [made.ranks[begin] for begin in made.begins(first)] == [0, 1, 2, 3]
    assert [made.ranks[begin] for begin in after.begins(first)] == [0, 1]
    assert {made.ranks[edge.item] for edge in after.edges[first]} == {0, 1}


def test_the_begins_of_a_collective_are_the_same_with_an_item_for_all_of_them() -> None:
    """Rank 2 computes for 40 longer and arrives latest. Without that its steps compute for as long as others'."""
    found = []
    for arrivals in (False, True):
        made = on_two_hosts(arrivals=arrivals)
        late = replace(made, edges=[*made.edges])
        for place, each in enumerate(made.edges):
            if made.ranks[place] == 2 and each and each[0].kind == Kind.COMPUTE:
                late.edges[place] = [edge.lasting(140.0) for edge in each]  # type: ignore[index]
        late = replace(late, recorded_ns=[round(at) for at in late.run()])
        assert latest(late) == 2
        assert late.step_ns() == 2 * (140 + 120) + 10
        found.append(changed(late, {"straggler.removed": True}).step_ns())
    assert found[0] == found[1] == pytest.approx(2 * (100 + 120) + 10, rel=0.01)


@pytest.mark.parametrize(
    ("known", "settings", "why"),
    [
        ({"hosts": 1}, {}, "several hosts"),
        ({"hosts": 3}, {}, "several hosts"),
        ({"hosts": 4}, {}, "two or more"),
        ({"messages": []}, {}, "no all-gather"),
        ({}, {"world_size": 8}, "other ranks or nodes"),
    ],
)
def test_hosts_without_groups(known: dict[str, object], settings: dict[str, int], why: str) -> None:
    with pytest.raises(Missing, match=why):
        changed(replace(on_two_hosts(), **known), {"fsdp.within_hosts": True, **settings})  # type: ignore[arg-type]
    with pytest.raises(Missing, match="among all ranks"):
        changed(on_two_hosts(), {"fsdp.within_hosts": False})


@pytest.mark.parametrize(
    ("side", "rate", "times"), [(Side.LEAST, 6.0, 2.0), (Side.MIDDLE, 22.0, 0.25), (Side.MOST, 50.0, 1 / 16)]
)
def test_shards_in_the_memory_of_the_host_by_hand(side: Side, rate: float, times: float) -> None:
    """30 bytes of 120 are copied before the gather, and after the reduction; a core takes 5 for each of 7.5 floats."""
    made = on_two_hosts()
    after = changed(made, {"fsdp.offload_policy": True}, side)
    assert after.step_ns() == pytest.approx(440 + 2 * 30 / rate + times * 5 * 7.5)


def test_what_offloading_needs() -> None:
    made = on_two_hosts()
    for known, why in (({"gathers": []}, "no fully_shard"), ({"edges": units().edges}, "element by element")):
        with pytest.raises(Missing, match=why):
            changed(replace(made, **known), {"fsdp.offload_policy": True})  # type: ignore[arg-type]
    with pytest.raises(Missing, match="on the device"):
        changed(made, {"fsdp.offload_policy": False})
