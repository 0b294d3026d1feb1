"""Changes of a step model, each with figures by hand."""

import re
from dataclasses import replace

import pytest

from dptune.errors import UsageError
from dptune.knobs import KNOBS
from dptune.measured import Missing
from dptune.whatif.bounds import BOUNDS, bounded
from dptune.whatif.cpu import loaders
from dptune.whatif.cpu.buckets import Caps
from dptune.whatif.cpu.changes import CHANGES, changed
from dptune.whatif.cpu.communication import HOOK_ENDS_NS, HOOK_NS, MATRIX_NS
from dptune.whatif.cpu.model import Latency, Loading, LowRank, Pass, RankStep, StepModel
from dptune.whatif.cpu.replay import step_ns
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.topology import TOPOLOGY
from dptune.whatif.cpu.variants import others
from dptune.whatif.gpu.changes import PREDICTED as PREDICTED_ON_GPUS
from dptune.whatif.memory.changes import CHANGES as MEMORY_CHANGES
from dptune.whatif.scenarios import ONLY_MEMORY, SCENARIOS, named


def model(*ranks, **more):
    """Ranks of one step each: 60 bytes in one bucket at 1 byte per ns."""
    given = {"gradient_bytes": (30, 30), "caps": Caps((100,)), "link": Link(0, 1.0), **more}
    return StepModel(steps={rank: [step] for rank, step in enumerate(ranks)}, **given)


def step(*passes, after=50.0):
    return RankStep(passes, after)


def one(ready=(10.0, 50.0), backward=60.0, forward=100.0, loader=0.0):
    return Pass(loader, forward, backward, tuple(ready))


def test_smaller_buckets_hide_the_first():
    """One bucket: 100 + 50 + 60 + 50. Two: the first is over by 140, the second from 150 to 180; then 50."""
    before = model(step(one()), step(one()))
    assert step_ns(before) == pytest.approx(260)
    assert step_ns(changed(before, {"ddp.bucket_cap_mb_list": "0.000001"})) == pytest.approx(230)
    assert changed(before, {"ddp.bucket_cap_mb": None}).caps == Caps.of()


def test_no_sync_leaves_the_collective_to_the_last_pass():
    """Two passes of 100 + 50 + 60, then 50; the first without its collective takes 160."""
    before = model(step(one(), one()), step(one(), one()))
    assert step_ns(before) == pytest.approx(210 + 210 + 50)
    after = changed(before, {"ddp.no_sync": True})
    assert step_ns(after) == pytest.approx(160 + 210 + 50)
    assert step_ns(changed(after, {"ddp.no_sync": False})) == pytest.approx(step_ns(before))


def test_a_pass_that_no_longer_communicates_may_compute_less():
    """What computes 160 once it communicates nothing takes 80, where that is half; again 210 where it does."""
    before = replace(model(step(one(), one()), step(one(), one())), quiet_times=0.5)
    after = changed(before, {"ddp.no_sync": True})
    assert step_ns(after) == pytest.approx(80 + 210 + 50)
    assert step_ns(changed(after, {"ddp.no_sync": True})) == pytest.approx(80 + 210 + 50)
    assert step_ns(changed(after, {"ddp.no_sync": False})) == pytest.approx(step_ns(before))


def test_fewer_micro_batches_keep_what_a_step_does_once():
    """Four passes, the last with its collective: 30 + 160, twice 160, 210, and 50. Two: 30 + 160 + 210 + 50.

    One: a forward pass like the first, 130, a backward pass like the last, 50 + 60, and 50.
    """
    quiet = one(ready=())
    before = model(*[step(one(ready=(), forward=130.0), quiet, quiet, one())] * 2, samples=64)
    assert step_ns(before) == pytest.approx(190 + 160 + 160 + 210 + 50)
    for passes, took_ns in ((4, 770), (3, 610), (2, 450), (1, 290)):
        after = changed(before, {"accumulation.micro_batches": passes})
        assert (step_ns(after), after.samples) == (pytest.approx(took_ns), 16 * passes)


def test_fewer_and_larger_micro_batches_keep_the_samples_of_a_step():
    """Two of 16 samples for four of 8: compute doubles, the optimizer and the collective stay."""
    quiet, changes = one(ready=()), {"loader.batch_size": 16, "accumulation.micro_batches": 2}
    before = model(*[step(quiet, quiet, quiet, one())] * 2, samples=64, loading=LOADING)
    after = changed(before, changes)
    assert step_ns(after) == pytest.approx(2 * 160 + 2 * 100 + 2 * 50 + 60 + 50)  # the last gradient is ready at 2 * 50
    assert (after.samples, after.loading.batch) == (64, 16)
    half = changed(replace(before, fixed_share=0.5), changes)  # of which half does not grow: 1.5 times
    assert step_ns(half) == pytest.approx(1.5 * (160 + 100 + 50) + 60 + 50)


def test_more_micro_batches_and_uneven_steps_are_not_predicted():
    with pytest.raises(Missing, match="a step has 2 micro-batches: the model predicts fewer of them, not more"):
        changed(model(step(one(), one())), {"accumulation.micro_batches": 3})
    with pytest.raises(Missing, match="different numbers of micro-batches"):
        changed(model(step(one(), one()), step(one())), {"accumulation.micro_batches": 1})


def test_without_a_collective_no_buffers_are_sent_before_the_next_pass():
    """Each of three forward passes of 100 sends buffers for 20 of them: two of these follow a silent pass then.

    Three of 100 + 50 + 60 and 50 before; 160, 140 and 190 with 50 after it.
    """
    before = model(
        *[step(one(), one(), one())] * 2, others=3, others_ns={0: 60.0, 1: 60.0}, buffers_ns={0: 20.0, 1: 20.0}
    )
    assert step_ns(before) == pytest.approx(3 * 210 + 50)
    after = changed(before, {"ddp.no_sync": True})
    assert step_ns(after) == pytest.approx(160 + 140 + 190 + 50)
    assert (after.others, after.others_ns) == (1, pytest.approx({0: 20, 1: 20}))
    back = changed(after, {"ddp.no_sync": False})
    assert step_ns(back) == pytest.approx(step_ns(before))
    assert (back.others, back.others_ns) == (3, pytest.approx({0: 60, 1: 60}))
    unknown = replace(before, buffers_ns={})
    assert step_ns(changed(unknown, {"ddp.no_sync": True})) == pytest.approx(160 + 160 + 210 + 50)


def test_who_gets_buffers_waits_for_them_and_who_sends_them_does_not():
    """Rank 1 waits for 80 in each of its forward passes of 100, rank 0, with 20, only for rank 1's gradients."""
    sends, gets = (step(*[one(forward=forward)] * 3) for forward in (20.0, 100.0))
    before = model(sends, gets, others=3, others_ns={0: 0.0, 1: 240.0}, buffers_ns={0: 0.0, 1: 80.0})
    assert step_ns(before) == pytest.approx(3 * 210 + 50)
    assert step_ns(changed(before, {"ddp.no_sync": True})) == pytest.approx(160 + 80 + 130 + 50)
    four = changed(before, {"world_size": 4})
    assert four.buffers_ns == {0: 0.0, 1: 80.0, 2: 0.0, 3: 80.0}
    off = changed(before, {"ddp.broadcast_buffers": False})
    assert step_ns(off) == pytest.approx(step_ns(before) - 240)


def test_units_send_no_buffers():
    """As if no forward pass had waited for any: 20 of 100 on the rank that gets them is its own."""
    sends, gets = (step(*[one(forward=forward)] * 3) for forward in (20.0, 100.0))
    before = model(sends, gets, others=3, others_ns={0: 0.0, 1: 240.0}, buffers_ns={0: 0.0, 1: 80.0})
    none, to_units = model(sends, sends), {"wrapper": "fsdp", "fsdp.units": 2}
    assert step_ns(changed(before, to_units)) == pytest.approx(step_ns(changed(none, to_units)))


def test_passes_that_communicate_already_stay_as_they_are():
    """The first pass of its own gradients, 75 with the last at 70; of the second, 60 and 50: 230 + 210 + 50."""
    before = model(*[step(one((10.0, 70.0), 75.0), one())] * 2)
    assert step_ns(before) == pytest.approx(490)
    assert step_ns(changed(before, {"ddp.no_sync": False})) == pytest.approx(490)


def test_only_the_default_has_a_first_bucket_of_its_own():
    default = model(step(one()), step(one()), caps=Caps.of())
    assert changed(default, {"ddp.first_bucket_mb": 0.5}).caps == Caps.of(first_bytes=2**19)
    given = {"ddp.bucket_cap_mb": 5.0, "ddp.first_bucket_mb": 0.5}
    for before, asked in ((model(step(one()), step(one())), {"ddp.first_bucket_mb": 0.5}), (default, given)):
        with pytest.raises(Missing, match="bucket_cap_mb is set"):
            changed(before, asked)
    assert changed(model(step(one())), {**given, "ddp.bucket_cap_mb": None}).caps == Caps.of(first_bytes=2**19)


def test_a_pass_without_its_collective_is_without_its_hooks():
    """20 of the 60 are hooks: the first takes 140 then. And one that gets a collective gets them too."""
    hooked = Pass(0.0, 100.0, 60.0, (10.0, 50.0), 20.0)
    before = model(step(hooked, hooked), step(hooked, hooked))
    after = changed(before, {"ddp.no_sync": True})
    assert step_ns(after) == pytest.approx(140 + 210 + 50)
    assert step_ns(changed(after, {"ddp.no_sync": False})) == pytest.approx(210 + 210 + 50)


def test_a_hook_of_16_bits_moves_half_and_casts_twice():
    """60 bytes: cast 60 * 0.1, 30 on the wire, back 60 * 0.1 and copied 60 * 0.1: 100 + 50 + 6 + 30 + 12 + 50.

    They are one bucket, which the hook is called for, and the compute waits for that. Those of fp16 are 15 numbers that
    take 1 ns more each.
    """
    before = model(step(one()), step(one()), copy_ns_per_byte=0.1)
    assert step_ns(before) == pytest.approx(266)
    assert step_ns(changed(before, {"ddp.comm_hook": "bf16"})) == pytest.approx(HOOK_NS + 248)
    assert step_ns(changed(before, {"ddp.comm_hook": "fp16"})) == pytest.approx(HOOK_NS + 248 + 15)
    slow_host = [step_ns(changed(one, {"ddp.comm_hook": "bf16"})) for one in others(before, {"ddp.comm_hook": "bf16"})]
    assert slow_host == pytest.approx([0.6 * HOOK_NS + 248, 2 * HOOK_NS + 248])
    assert not list(others(before, {"ddp.comm_hook": "none"}))
    slower = changed(before, {"ddp.comm_hook": "fp16", "link.gb_per_s": 0.5})  # 60 on the wire instead of 30
    assert step_ns(slower) == pytest.approx(HOOK_NS + 248 + 30 + 15)
    at_once = changed(before, {"ddp.comm_hook": "fp16", "link.gb_per_s": float("inf")})
    assert step_ns(at_once) == pytest.approx(HOOK_NS + 100 + 60 + 6 + 12 + 50)  # its compute ends at 160, and the cast


def test_the_end_of_a_hook_holds_up_the_next_collective_of_its_lane():
    """Of two buckets of 30 bytes in one lane the second waits for it; in two lanes neither does."""
    before = model(step(one()), step(one()), caps=Caps((30,)), copy_ns_per_byte=0.1)
    asked = {"ddp.comm_hook": "bf16"}
    two = replace(before, link=replace(before.link, lanes=2))
    assert changed(before, asked).link.alpha_ns == pytest.approx(HOOK_ENDS_NS / 2)
    assert changed(two, asked).link.alpha_ns == 0


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Taking a batch from a worker takes no time: it is told apart, below."""
    taking = loaders.TAKING_NS
    monkeypatch.setattr(loaders, "TAKING_NS", 0.0)
    return taking


def test_a_batch_is_taken_from_a_worker(monkeypatch, at_once):
    """Each pass waits that long, where the batch is ready."""
    before = model(step(one(loader=400)), step(one(loader=400)), loading=LOADING)
    monkeypatch.setattr(loaders, "TAKING_NS", at_once)
    assert at_once > 0
    assert step_ns(changed(before, {"loader.num_workers": 2})) == pytest.approx(260 + at_once)


LOADING = Loading(batch=8, workers=0, prepare_ns=400.0, computing=0.0, cores_per_rank=1.0)


def test_workers_prepare_batches_side_by_side():
    """Without: 400 + 260. With one a batch comes every 400, with two every 200: the step's own 260 are longer."""
    before = model(step(one(loader=400)), step(one(loader=400)), loading=LOADING)
    assert step_ns(before) == pytest.approx(660)
    assert step_ns(changed(before, {"loader.num_workers": 1})) == pytest.approx(400)
    assert step_ns(changed(before, {"loader.num_workers": 2})) == pytest.approx(260)


def test_an_epoch_begins_without_batches():
    """Two workers as above: 260. In every 8th the first takes 400 ns; and to start both of them 30 ms each."""
    short = replace(LOADING, epoch=8)
    passes = one(loader=400.0, ready=(10.0, 50.0))
    before = model(step(passes), step(passes), loading=short)
    kept = {"loader.num_workers": 2, "loader.persistent_workers": True}
    assert bounded(kept) == []
    assert step_ns(changed(before, kept)) == pytest.approx(260 + 400 / 8)
    assert step_ns(changed(before, {"loader.num_workers": 2})) == pytest.approx(260 + 400 / 8 + 2 * 30e6 / 8)


def test_starting_workers_is_in_the_way_also_where_batches_are_too_slow():
    """One worker: a batch every 400, and none while it starts, which in 8 batches is 30 ms."""
    short = replace(LOADING, epoch=8)
    before = model(step(one(loader=400.0)), step(one(loader=400.0)), loading=short)
    assert step_ns(changed(before, {"loader.num_workers": 1})) == pytest.approx(400 + 30e6 / 8)


def test_workers_that_are_there_or_are_not_cannot_be_kept_from_now_on():
    none, some = (model(step(one()), step(one()), loading=replace(LOADING, workers=count)) for count in (0, 4))
    for asked in ({"loader.persistent_workers": True}, {"loader.persistent_workers": True, "loader.num_workers": 0}):
        with pytest.raises(Missing, match="persistent_workers needs num_workers > 0"):
            changed(none, asked)
    with pytest.raises(Missing, match="prefetch_factor needs num_workers > 0"):
        changed(none, {"loader.prefetch_factor": 4})
    assert changed(some, {"loader.prefetch_factor": 4}).loading == some.loading
    with pytest.raises(Missing, match="worker start-up time per epoch is unknown"):
        changed(some, {"loader.persistent_workers": True, "loader.num_workers": 4})


def test_batches_that_there_are_not_and_workers_beyond_what_was_seen_are_not_told():
    before = model(step(one(loader=400)), step(one(loader=400)), loading=replace(LOADING, epoch=10))
    assert changed(before, {"loader.batch_size": 80}).loading.epoch == 1  # all that a rank draws
    with pytest.raises(Missing, match="batch size exceeds the 80 samples a rank sees per epoch"):
        changed(before, {"loader.batch_size": 81})
    endless = replace(before, loading=LOADING)
    assert changed(endless, {"loader.batch_size": 64 * 8}).loading.batch == 512
    with pytest.raises(Missing, match="up to 512 samples, 64 times the present one"):
        changed(endless, {"loader.batch_size": 513})
    with pytest.raises(Missing, match="different sizes"):
        changed(replace(before, loading=replace(LOADING, batch=None)), {"loader.batch_size": 8})
    assert changed(endless, {"loader.num_workers": 16}).loading.workers == 16
    with pytest.raises(Missing, match="8 workers per core"):
        changed(endless, {"loader.num_workers": 17})


def test_sizes_of_buckets_are_given_once():
    with pytest.raises(Missing, match="bucket sizes are set twice"):
        changed(model(step(one()), step(one())), {"ddp.bucket_cap_mb": 1.0, "ddp.bucket_cap_mb_list": "1,2"})


def test_of_a_bounded_knob_the_value_that_saves_nothing_is_not_told():
    with pytest.raises(Missing, match=r"only an upper bound for other values of optimizer\.fused"):
        changed(model(step(one()), step(one())), {"optimizer.fused": False})


def test_epochs_of_larger_batches_and_of_more_ranks_are_shorter():
    before = model(step(one()), step(one()), loading=replace(LOADING, epoch=8, sharded=True))
    assert changed(before, {"loader.batch_size": 16}).loading.epoch == 4
    odd = model(step(one()), step(one()), loading=replace(LOADING, epoch=5))
    assert changed(odd, {"loader.batch_size": 16}).loading.epoch == 3  # the last is a half
    assert changed(before, {"world_size": 8}).loading.epoch == 2
    whole = model(step(one()), step(one()), loading=replace(LOADING, epoch=8))
    assert changed(whole, {"world_size": 8}).loading.epoch == 8


@pytest.mark.parametrize(
    "settings",
    [
        {"link.gb_per_s": 0.1, "loader.num_workers": 2},
        {"precision.autocast": "bf16", "loader.num_workers": 2},
        {"loader.prefetch_factor": 4, "loader.num_workers": 1},
        {"ddp.gradient_as_bucket_view": True, "ddp.comm_hook": "bf16"},
    ],
)
def test_in_whatever_order_they_are_asked_for(settings):
    loading = Loading(batch=8, workers=0, prepare_ns=200.0, computing=1.0, cores_per_rank=1.0)
    before = model(step(one(loader=200.0)), step(one(loader=200.0)), loading=loading, copy_ns_per_byte=0.1)
    backwards = dict(reversed(settings.items()))
    assert step_ns(changed(before, settings)) == step_ns(changed(before, backwards))


def test_what_is_off_saves_nothing():
    for name, value in {"precision.autocast": "off", "precision.float32_matmul": "highest"}.items():
        assert bounded({name: value}) == []


def test_collectives_outside_of_passes_are_taken_off_where_they_are():
    """4 passes, of which the first waits for 80 of its 100 in them; and one that has them after its pass."""
    quick = one(forward=10.0)
    before = model(*[step(one(), quick, quick)] * 2, others=1, others_ns={0: 80.0, 1: 80.0})
    off = {"ddp.broadcast_buffers": False}
    assert step_ns(before) - step_ns(changed(before, off)) == pytest.approx(80)
    after = model(*[step(quick)] * 2, others=1, others_ns={0: 40.0, 1: 40.0})
    assert step_ns(after) - step_ns(changed(after, off)) == pytest.approx(40)


def test_workers_that_compute_share_the_cores():
    """One core for a rank: its 200 of compute and as much of a worker as the step uses of it, 1 + 200 / 260 on it."""
    computing = Loading(batch=8, workers=0, prepare_ns=200.0, computing=1.0, cores_per_rank=1.0)
    before = model(step(one(loader=200)), step(one(loader=200)), loading=computing)
    slower = 1 + 200 / 260
    assert step_ns(changed(before, {"loader.num_workers": 1})) == pytest.approx(slower * (100 + 50 + 50) + 60)


def test_ranks_that_share_a_core_do_so_already():
    """Two ranks on each core: what they compute is recorded as it is. A worker that sleeps adds nothing to it."""
    shared = replace(LOADING, cores_per_rank=0.5)
    before = model(step(one(loader=400)), step(one(loader=400)), loading=shared)
    assert step_ns(changed(before, {"loader.num_workers": 1})) == pytest.approx(400)


def test_only_what_computes_of_preparing_is_slower_on_a_crowded_core():
    """A third of 300 computes: one core with 1 + 1 / 3 * 1 on it, so that preparing takes 300 + 100 / 3."""
    computing = replace(LOADING, prepare_ns=300.0, computing=1 / 3)
    before = model(step(one(loader=300)), step(one(loader=300)), loading=computing)
    crowding = 1 + 1 / 3  # it is busy all the time: a step without waiting takes 260
    assert step_ns(changed(before, {"loader.num_workers": 1})) == pytest.approx(300 + 100 * (crowding - 1))


def test_twice_the_batch_is_twice_the_compute_but_for_the_fixed_share():
    """A quarter fixed: 1.75 times forward and the way to the last gradient; the collective and the rest as before."""
    before = model(step(one()), step(one()), loading=LOADING, fixed_share=0.25, samples=16)
    after = changed(before, {"loader.batch_size": 16})
    assert step_ns(after) == pytest.approx(1.75 * 150 + 60 + 50)
    assert after.samples == 32


def test_the_batch_changes_before_the_workers():
    before = model(step(one(loader=400)), step(one(loader=400)), loading=LOADING)
    after = changed(before, {"loader.num_workers": 1, "loader.batch_size": 16})
    assert step_ns(after) == pytest.approx(800)  # a batch of twice the samples every 800


def test_without_the_straggler_all_are_like_the_middle():
    pair = model(step(one()), step(one(forward=300)))
    assert step_ns(pair) == pytest.approx(460)
    assert step_ns(changed(pair, {"straggler.removed": True})) == pytest.approx(260)  # nothing of the 200 stays
    with pytest.raises(Missing, match="a single-rank run"):
        changed(model(step(one())), {"straggler.removed": True})


def test_without_the_straggler_the_others_stay_as_they_are():
    """Of the forward passes of 100, 120, 140 and 300 the last is as the one in the middle of the others."""
    before = model(*(step(one(forward=forward)) for forward in (100, 300, 140, 120)))
    after = changed(before, {"straggler.removed": True})
    assert [own[0].passes[0].forward_ns for own in after.steps.values()] == [100, 120, 140, 120]


@pytest.mark.parametrize(("late", "cores", "slowdown"), [(300, 1, 1.5), (30, 2, 1.25), (300, 3, 1.0), (0, 1, 1.0)])
def test_without_the_straggler_ranks_of_few_cores_compute_all_at_once(late, cores, slowdown):
    """As crowded as late it came before: by 30 of the 60 of a backward pass is half of all that it may be."""
    before = model(step(one()), step(one(forward=100 + late)), loading=replace(LOADING, cores_per_rank=cores))
    after = changed(before, {"straggler.removed": True})
    assert after.slowdown == pytest.approx(slowdown)
    seen = changed(replace(before, slowdown=1.6), {"straggler.removed": True})
    assert seen.slowdown == 1.6  # which the recording shows


def test_without_the_straggler_of_several():
    before = model(step(one()), step(one()), step(one(forward=300)))
    assert step_ns(before) == pytest.approx(460)
    assert step_ns(changed(before, {"straggler.removed": True})) == pytest.approx(260)


def work(times, **more):
    """A pass with so many times the samples of the usual one."""
    return one(ready=(10.0 * times, 50.0 * times), backward=60.0 * times, forward=100.0 * times, **more)


def test_balanced_work_is_the_mean_of_all_ranks():
    """Of once and three times the samples each rank gets twice; removing leaves them with once."""
    before = model(step(work(1)), step(work(3)))
    balanced, even = changed(before, {"straggler.balanced": True}), model(step(work(2)), step(work(2)))
    assert balanced.steps == even.steps
    assert step_ns(balanced) == pytest.approx(step_ns(even))
    assert step_ns(changed(before, {"straggler.removed": True})) == pytest.approx(step_ns(model(step(work(1)))))
    assert changed(before, {"straggler.balanced": False}) == before


def test_work_is_balanced_in_each_step_where_ranks_take_turns():
    once, thrice = step(work(1)), step(work(3))
    turns = replace(model(once), steps={0: [once, thrice], 1: [thrice, once]})
    balanced = changed(turns, {"straggler.balanced": True})
    assert balanced.steps == {rank: [step(work(2)), step(work(2))] for rank in (0, 1)}
    left = changed(replace(turns, uneven_left=0.25), {"straggler.balanced": True})  # 2 less or more a quarter of 1
    assert left.steps[0] == [step(work(1.75)), step(work(2.25))]


def test_balancing_moves_forward_and_backward_work_and_nothing_else():
    """Loader, optimizer, collectives in the forward pass and hooks stay: of 80 and 240 ns of samples' work 160 each."""
    passes = [
        Pass(7.0, 10.0 + 40.0 * times, 6.0 + 40.0 * times, (23.0 * times,), hooks_ns=6.0, sent_ns=10.0)
        for times in (1, 3)
    ]
    after = changed(model(*(step(each) for each in passes)), {"straggler.balanced": True})
    for own in after.steps.values():
        assert own[0].passes[0].loader_ns == 7.0
        assert own[0].passes[0].forward_ns == pytest.approx(10.0 + 80.0)
        assert own[0].passes[0].backward_ns == pytest.approx(6.0 + 80.0)
        assert own[0].after_ns == 50.0


def test_what_balancing_cannot_do():
    with pytest.raises(Missing, match="no other ranks to share work with"):
        changed(model(step(one())), {"straggler.balanced": True})
    with pytest.raises(Missing, match="different numbers of backward passes"):
        changed(model(step(one()), step(one(), one())), {"straggler.balanced": True})


def test_balancing_may_leave_some_of_the_difference():
    (left, *_) = others(model(step(work(1)), step(work(3))), {"straggler.balanced": True})
    assert left.uneven_left == 0.25


def test_without_the_straggler_among_more_ranks():
    """Of 100 and 300 four ranks are made, after the late one is as the other: 100 + 50 + 90 + 50."""
    pair = model(step(one()), step(one(forward=300)))
    assert step_ns(changed(pair, {"world_size": 4, "straggler.removed": True})) == pytest.approx(290)


def test_steps_of_different_passes_meet_their_like():
    """Steps of two passes and of one, alike on both ranks: 470 and 260, the median 365, whoever stands for whom."""
    steps = [step(one(), one()), step(one())]
    before = replace(model(step(one()), step(one())), steps={0: steps, 1: steps})
    assert step_ns(before) == pytest.approx(365)
    assert step_ns(changed(before, {"straggler.removed": True})) == pytest.approx(365)
    assert step_ns(changed(before, {"world_size": 4})) == pytest.approx(365 + 30 + 15)  # 90 in place of 60 each


def test_a_link_is_that_within_a_node():
    """Two nodes of two, the link between them a tenth: as if the link had been measured so."""
    before = model(step(one()), step(one()), link=Link(10, 1.0))
    nodes = {"world_size": 4, "nodes": 2, "link.between_gb_per_s": 0.1}
    quicker = replace(before, link=Link(10, 2.0))
    assert changed(before, {**nodes, "link.gb_per_s": 2.0}).link == changed(quicker, nodes).link


def test_another_link():
    """Twice the rate and 5 ns: 100 + 50 + 5 + 30 + 50."""
    before = model(step(one()), step(one()))
    after = changed(before, {"link.gb_per_s": 2.0, "link.alpha_us": 0.005})
    assert step_ns(after) == pytest.approx(235)


def test_latency_is_given_as_it_is_measured():
    """Where half of what `dptune links` tells is taken, half of what is set is, too."""
    before = replace(model(step(one()), step(one())), latency=Latency(0.5))
    assert changed(before, {"link.alpha_us": 4.0}).link.alpha_ns == 2000
    within = replace(before, link=Link(2000, 1.0))  # which the fit told as 4 us, of two hops
    assert changed(within, {"nodes": 2, "link.between_alpha_us": 2.0}).link == within.link


def test_compute_twice_as_quick():
    """50 + 25 + 60 + 25: the collective stays."""
    assert step_ns(changed(model(step(one()), step(one())), {"compute.times": 0.5})) == pytest.approx(160)


def test_a_ring_of_four():
    """Of two ranks a link carries all bytes, of four 1.5 times: 90; the latency of 10 is that of 3 hops: 30."""
    before = model(step(one()), step(one()), link=Link(10, 1.0), samples=16)
    assert step_ns(before) == pytest.approx(270)
    after = changed(before, {"world_size": 4})
    assert step_ns(after) == pytest.approx(100 + 50 + 30 + 90 + 50)
    assert after.samples == 32
    tree = {"world_size": 4, "allreduce.algorithm": "tree"}
    assert step_ns(changed(before, tree)) == pytest.approx(100 + 50 + 20 + 120 + 50)  # 2 of 3 hops, twice the 60
    with pytest.raises(Missing, match="2 to 16 ranks"):
        changed(before, {"world_size": 32})
    with pytest.raises(Missing, match="a single rank"):
        changed(model(step(one())), {"world_size": 2})


def test_powersgd_compresses_all_gradients_and_communicates_three_times():
    """60 bytes at 0.4 ns: 24 after the last gradient at 50; then three start-ups of 5 and 12 bytes; then 50."""
    before = model(step(one()), step(one()), caps=Caps((30,)), link=Link(5, 1.0), low_rank=LowRank(0, 12))
    asked = {"ddp.comm_hook": "powersgd"}
    assert bounded(asked) == []
    assert step_ns(changed(before, asked)) == pytest.approx(100 + 50 + 24 + 3 * 5 + 12 + 50)
    twice = replace(before, hook_times=2.0)
    assert step_ns(changed(twice, asked)) == pytest.approx(100 + 50 + 48 + 3 * 5 + 12 + 50)
    matrices = replace(before, low_rank=LowRank(3, 12))
    assert step_ns(changed(matrices, asked)) == pytest.approx(step_ns(changed(before, asked)) + 3 * MATRIX_NS)
    for lacking in (replace(before, low_rank=None), replace(before, dtype="float64")):
        with pytest.raises(Missing):
            changed(lacking, asked)


def test_a_hook_tells_of_gradients_of_32_bits_only():
    with pytest.raises(Missing, match="gradients are bfloat16"):
        changed(model(step(one()), step(one()), copy_ns_per_byte=0.1, dtype="bfloat16"), {"ddp.comm_hook": "bf16"})


def test_what_no_model_tells_of_is_missing():
    before = model(step(one()), step(one()))
    unknown = {"cudnn.benchmark": True}, {"loader.num_workers": 2}, {"loader.batch_size": 4}, {"optimizer.fused": False}
    for settings in unknown:
        with pytest.raises(Missing):
            changed(before, settings)
    for scenario in sorted(ONLY_MEMORY):
        with pytest.raises(Missing, match=f"only the peak memory with another {re.escape(scenario)} is predicted"):
            changed(before, {scenario: "sgd"})
    for scenario in sorted(SCENARIOS.keys() - CHANGES.keys() - set(TOPOLOGY) - ONLY_MEMORY):
        with pytest.raises(Missing, match=rf"only the step model of GPUs predicts {re.escape(scenario)}"):
            changed(before, {scenario: 0.5})


@pytest.mark.parametrize(
    ("settings", "step_ns_at_best"),
    [
        ({"optimizer.fused": True}, 400 + 100 + 50 + 60 + 6),  # of 666: without the 50 after it
        ({"loader.pin_memory": True}, 100 + 50 + 60 + 6 + 50),
        ({"ddp.gradient_as_bucket_view": True}, 400 + 100 + 50 * 0.75 + 60 + 50),  # a quarter of the pass is hooks
        ({"precision.autocast": "bf16"}, 400 + 60 + 6 + 50),  # nothing computed: the bucket goes out at once
        ({"ddp.broadcast_buffers": False}, 400 + 70 + 50 + 60 + 6 + 50),  # one collective of 30 before the pass
    ],
)
def test_what_only_a_bound_is_known_of(settings, step_ns_at_best):
    """400 for a batch, 100, ready at 50 of 60, 60 bytes at 1 byte per ns, 60 * 0.1 copied back, 50: 666."""
    hooked = Pass(400.0, 100.0, 60.0, (10.0, 50.0), 15.0)
    before = model(step(hooked), step(hooked), copy_ns_per_byte=0.1, others=1, others_ns={0: 30.0, 1: 30.0})
    assert step_ns(before) == pytest.approx(666)
    assert bounded(settings) == list(settings)
    assert step_ns(changed(before, settings)) == pytest.approx(step_ns_at_best)


def test_every_knob_says_whether_it_is_predicted():
    assert {name for name, knob in KNOBS.items() if knob.predicted == "step"} == set(KNOBS) & set(CHANGES)
    assert {name for name, knob in KNOBS.items() if knob.predicted == "bound"} == set(KNOBS) & set(BOUNDS)
    predicted = set(CHANGES) | PREDICTED_ON_GPUS | set(TOPOLOGY) | set(MEMORY_CHANGES)
    assert predicted - set(KNOBS) == set(SCENARIOS)
    of_steps = set(CHANGES) | PREDICTED_ON_GPUS | set(TOPOLOGY)
    assert set(MEMORY_CHANGES) - set(KNOBS) - of_steps == ONLY_MEMORY


@pytest.mark.parametrize("name", ["world_size", "ddp.bucket_cap_mb_list", *(n for n in SCENARIOS if "link." in n)])
def test_default_is_no_value_of_what_has_none(name):
    with pytest.raises(UsageError, match="cannot be 'default'") as refused:
        named(name).parse("default")
    assert "or `default`" not in refused.value.hint
