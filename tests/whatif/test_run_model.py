"""Predictions from a model by hand: their intervals, and when they are bounds."""

from dataclasses import replace
from math import hypot, sqrt

import pytest

from dptune.measured import LinkFigures
from dptune.runfile.facts import Facts, OptimizerFacts
from dptune.runfile.window import Window
from dptune.testing import measured_run
from dptune.whatif.cpu.buckets import Caps
from dptune.whatif.cpu.changes import changed
from dptune.whatif.cpu.model import Latency, Loading, Pass, RankStep, StepModel
from dptune.whatif.cpu.processes import unsure_ns
from dptune.whatif.cpu.replay import step_ns
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.topology import UNKNOWN_NETWORK
from dptune.whatif.cpu.variants import variants
from dptune.whatif.predicting import search
from dptune.whatif.run_model import RunModel

STEP = RankStep((Pass(0.0, 100.0, 60.0, (10.0, 50.0)),) * 2, 50.0)
MODEL = StepModel({0: [STEP], 1: [STEP]}, (30, 30), Caps((100,)), Link(0, 1.0), samples=64)  # 2 * (150 + 60) + 50
SLOWER = replace(MODEL, link=Link(0, 0.5))
# What any model is off of 420 with no_sync, of which 2 * 160 + 50 are compute: 2 % and 5 % of these, 8 % of 50 saved.
ALWAYS = (8.4, 18.5, 4)
QUIETER = 24  # 15 % of the 160 of the pass that no longer communicates, which may compute so much less


def ground(**more):
    """It measured what the model has, 470; the link may be half as quick."""
    known = {
        "step_ns": 470,
        "replayed_ns": 470.0,
        "error_share": 0.06,
        "held_out_share": 0.05,
        "slack_ns": 10.0,
        "model": MODEL,
    }
    return RunModel(measured=measured_run(samples=64), **{**known, "variants": ((SLOWER,),), **more})


def test_ranks_spread_over_nodes_have_a_bound_without_a_network():
    told = ground().predict({"nodes": 2})
    assert (told.known("step_ns"), told.known("high_ns")) == (None, None)
    assert told.low_ns <= 470
    assert told.missing["step_ns"] == UNKNOWN_NETWORK
    assert ground().predict({"nodes": 2, "link.between_gb_per_s": 1.0}).step_ns


def test_a_prediction_is_the_measured_step_and_what_the_replay_adds():
    """no_sync saves 50 with this link, of 470, and 110 with the other, of 590, so of 470 37.6 more.

    Both ways 10 more, and what any model is off; a pass that no longer communicates may also compute less.
    """
    told = ground().predict({"ddp.no_sync": True})
    quicker = 110 * 470 / 590 - 50
    assert (told.step_ns, told.low_ns) == (420, round(420 - hypot(quicker, QUIETER, 10, *ALWAYS)))
    assert told.high_ns == round(420 + hypot(10, *ALWAYS))
    assert told.ns_per_sample == pytest.approx(420 / 64)


def test_what_no_model_knows_is_of_the_step_after_of_its_compute_and_of_what_is_saved():
    """Of 470,000 it saves 50,000, which leaves 420,000: 370,000 of compute; in the other model nothing is computed.

    That takes 60, of which a link twice as quick saves half.
    """
    known = {"step_ns": 470_000, "slack_ns": 0.0, "variants": ()}
    told = ground(**known).predict({"ddp.no_sync": True})
    off = hypot(8_400, 18_500, 4_000)
    assert (told.low_ns, told.high_ns) == (round(420_000 - hypot(off, 1000 * QUIETER)), round(420_000 + off))
    silent = RankStep((Pass(0.0, 0.0, 0.0, (0.0, 0.0)),), 0.0)
    told = ground(**known, model=replace(MODEL, steps={0: [silent], 1: [silent]})).predict({"link.gb_per_s": 2.0})
    assert told.step_ns == 235_000
    off = hypot(0.02 * 235_000, 0.08 * 235_000)
    assert (told.low_ns, told.high_ns) == (round(235_000 - off), round(235_000 + off))


def test_what_no_model_predicts_is_known_without_a_replay():
    """A bound is something known; a replay would end in an error here."""
    model = ground()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dptune.whatif.run_model.step_ns", lambda model: 1 / 0)
        assert model.lack({"ddp.no_sync": True}) == ""
        assert model.lack({"optimizer.fused": True}) == ""
        assert model.lack({"fsdp.units": 2}) == "fsdp.units has no effect: the script does not call fully_shard"


def test_several_processes_tell_more_surely():
    """6 % of the 50 that no_sync saves, instead of 8 %, and 4.5 % of the 370 that are computed then, instead of 5 %."""
    made = ground(variants=())
    step = made.measured.step.model_copy(update={"repeats_ns": [470]})
    told = replace(made, measured=made.measured.model_copy(update={"step": step})).predict({"ddp.no_sync": True})
    assert told.high_ns == round(420 + hypot(10, 8.4, 16.65, 3))


def test_latency_that_was_not_seen_may_be_others():
    link = LinkFigures.only(
        "no", kind="all_reduce", ranks=[0, 1], scope="unknown", basis="sweep", sizes=[], calls=0, algbw_gb_per_s=1.0,
        alpha_us=0.01,
    )  # fmt: skip
    measured = measured_run(samples=64).model_copy(update={"links": [link]})
    for others, alphas in (((0.5, 2.0), [(5.0, 20.0)]), ((), [])):
        model = replace(MODEL, link=Link(10.0, 1.0), latency=Latency(others=others))
        groups = [tuple(one.link.alpha_ns for one in group) for group in variants(model, measured)]
        assert [own for own in groups if set(own) != {10.0} and own] == alphas


def test_causes_add_up_as_squares():
    """Two links each save 37.6 more, of two causes; two of one cause count once."""
    quicker = 110 * 470 / 590 - 50
    once = ground(variants=((SLOWER, SLOWER),)).predict({"ddp.no_sync": True})
    twice = ground(variants=((SLOWER,), (SLOWER,))).predict({"ddp.no_sync": True})
    assert once.low_ns == round(420 - hypot(quicker, QUIETER, 10, *ALWAYS))
    assert twice.low_ns == round(420 - hypot(quicker, quicker, QUIETER, 10, *ALWAYS))


def test_how_crowded_ranks_will_be_is_not_known():
    """Without the late rank both compute beside the first of two buckets, for longer the more they are slowed."""
    late = RankStep((Pass(0.0, 300.0, 60.0, (10.0, 50.0)),), 50.0)
    model = replace(
        MODEL,
        steps={0: [RankStep((Pass(0.0, 100.0, 60.0, (10.0, 50.0)),), 50.0)], 1: [late]},
        caps=Caps((20,)),
        loading=Loading(batch=8, workers=0, prepare_ns=None, computing=0.0, cores_per_rank=1.0),
    )
    change = {"straggler.removed": True}
    steps = [step_ns(changed(replace(model, crowded_slowdown=one), change)) for one in (1.2, 1.5, 1.8)]
    assert steps[0] < steps[1] < steps[2]
    before = step_ns(model)
    told = ground(model=model, step_ns=before, replayed_ns=before, slack_ns=0.0, variants=()).predict(change)
    compute = 100 + 60 + 50
    always = (0.02 * steps[1], 0.05 * compute, 0.08 * (before - steps[1]))
    assert told.low_ns == round(steps[1] - hypot(steps[1] - steps[0], *always))
    assert told.high_ns == round(steps[1] + hypot(steps[2] - steps[1], *always))


def test_what_ranks_that_share_cores_compute_varies_more():
    """8 % of the 370 that no_sync leaves to compute, instead of 5 %."""
    told = ground(crowded=True, variants=()).predict({"ddp.no_sync": True})
    assert told.low_ns == round(420 - hypot(QUIETER, 10, 8.4, 0.08 * 370, 4))


@pytest.mark.parametrize(("times", "share"), [(1, 0.05), (2, 0.05), (4, 0.13), (8, 0.21)])
def test_a_batch_many_times_as_large_is_told_less_surely(times, share):
    """What both passes compute grows from 320 with the batch, the 50 after them do not: 8 % more for each doubling."""
    model = replace(MODEL, loading=Loading(batch=32, workers=0, prepare_ns=None, computing=0.0, cores_per_rank=1.0))
    known = {"step_ns": 470_000, "slack_ns": 0.0, "variants": ()}
    told = ground(**known, model=model).predict({"loader.batch_size": 32 * times})
    off = hypot(0.02 * told.step_ns, share * (320_000 * times + 50_000), 0.08 * (told.step_ns - 470_000))
    assert (told.low_ns, told.high_ns) == (
        pytest.approx(told.step_ns - off, abs=1),
        pytest.approx(told.step_ns + off, abs=1),
    )


def test_differences_are_parts_of_the_measured_step():
    """It takes 1.1 times as long as the model's, and so does what is saved."""
    assert ground(step_ns=517).predict({"ddp.no_sync": True}).step_ns == 517 - 55


def test_no_change_is_the_measured_step():
    assert ground().predict({"ddp.no_sync": False}).step_ns == 470


def test_what_the_run_has_already_is_the_measured_step_too():
    """Whether or not a model tells what it does; of what is new no more is told than without it."""
    facts = [Facts(rank, optimizers=[OptimizerFacts("SGD", fused=None)]) for rank in range(2)]
    made = ground(facts=facts)
    told = made.predict({"optimizer.fused": False})
    assert (told.step_ns, told.changes) == (470, {"optimizer.fused": False})
    assert told.assumptions == made.predict({}).assumptions
    both = made.predict({"optimizer.fused": False, "ddp.no_sync": True})
    assert both.step_ns == made.predict({"ddp.no_sync": True}).step_ns
    assert ground().predict({"optimizer.fused": False}).known("step_ns") is None


@pytest.mark.parametrize("far_off", [{"error_share": 0.11}, {"held_out_share": 0.11}])
def test_beyond_a_tenth_only_a_bound_is_told(far_off):
    told = ground(**far_off).predict({"ddp.no_sync": True})
    made = ground(**far_off)
    off = made.error_share + made.held_out_share
    assert told.low_ns == round(420 - hypot(110 * 470 / 590 - 50, QUIETER, off * 470, *ALWAYS))
    what = "the measured step" if made.error_share > 0.1 else "held-out steps"
    missed = f"the unchanged replay misses {what} by 11.0 %: only an upper bound of the saving is known"
    more = "record more traced steps (--light 20)"
    assert told.missing["step_ns"] == f"{missed}; {more}"
    many = replace(MODEL, steps={rank: [STEP] * 20 for rank in (0, 1)})
    assert ground(**far_off, model=many).predict({"ddp.no_sync": True}).missing["step_ns"] == missed


@pytest.mark.parametrize("far_off", [{"error_share": 0.11}, {"held_out_share": 0.11}])
def test_beyond_a_tenth_no_part_of_the_step_is_told(far_off):
    told = ground(**far_off).result([])
    assert told.known("floor_ns") is None
    assert "unchanged replay misses" in told.missing["floor_ns"]


def test_what_no_model_tells_of_has_no_bound_either():
    told = ground().predict({"cudnn.benchmark": True})
    assert set(told.missing) >= {"step_ns", "low_ns", "high_ns"}


def test_at_best_is_in_measured_time():
    """Without the collective 2 * 160 + 50: 370 of 470."""
    assert ground(step_ns=940).result([]).floor_ns == 740


def test_the_curve_is_in_measured_time(monkeypatch):
    """All sizes leave one bucket, so the step as it is."""
    made = ground(step_ns=550)
    monkeypatch.setattr(RunModel, "of", classmethod(lambda cls, run, measured: made))
    told = search(None, made.measured)
    assert {one.step_ns for one in told.curve} == {550}


def window(*durations):
    return Window("untraced", 0, durations_ns=list(durations))


def test_how_unsure_the_measured_step_is():
    """Two blocks of four steps, 10 and 20: 7.07 apart, over root 2 that is 5, times 6.31 of Student.

    What is told is the median of four further processes: root 1 + 1/4 times that.
    """
    apart = pytest.approx(5 * 6.31 * sqrt(1.25))
    assert unsure_ns([window(10, 10, 10, 10, 20, 20, 20, 20)], 15) == apart
    assert unsure_ns([window(10, 10), window(10, 10)], 10) == 0
    assert unsure_ns([window(10, 20)], 15) == apart


def test_more_blocks_do_not_tell_what_another_process_takes():
    """Ten blocks of four, 10 and 12 in turn: 1.054 apart, half of it, times 1.83 of Student."""
    blocks = [window(*([10] * 4 + [12] * 4) * 5)]
    assert unsure_ns(blocks, 11) == pytest.approx(0.5 * 1.0541 * 1.83 * sqrt(1.25), rel=1e-3)


def test_other_processes_tell_how_far_they_lie_apart():
    """Blocks of half 1.054 as if three, and processes 1, 0, 0 and 1 from their median: 6 degrees, 1.94 of Student."""
    blocks = [window(*([10] * 4 + [12] * 4) * 5)]
    spread = sqrt((1 + 1 + 3 * (0.5 * 1.0541) ** 2) / 6)
    told = unsure_ns(blocks, 11, [12, 12, 13])
    assert told == pytest.approx(1.94 * spread * sqrt(1 / 4 + 1 / 4), rel=1e-3)
    alike = unsure_ns(blocks, 12, [12, 12, 12])
    assert alike < told < unsure_ns(blocks, 11)


def test_an_odd_process_counts_as_three_times_what_blocks_tell():
    blocks = [window(*([10] * 4 + [12] * 4) * 5)]
    assert unsure_ns(blocks, 12, [12, 12, 90]) == unsure_ns(blocks, 12, [12, 12, 900])


def test_what_changes_nothing_is_the_measured_step_also_where_the_replay_misses_it():
    """No bound, which would be lower by all that the replay misses."""
    made = ground(error_share=0.2, held_out_share=0.3)
    same, other = made.predict({"ddp.bucket_cap_mb": 25.0}), made.predict({"ddp.no_sync": True})
    assert made.missed
    assert (same.low_ns, same.step_ns, same.high_ns) == (470, 470, 470)
    assert (other.known("step_ns"), other.known("high_ns")) == (None, None)
