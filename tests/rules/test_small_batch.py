from dataclasses import replace

import pytest

from dptune.measured import (
    KernelFigures,
    KernelTime,
    MemoryFigures,
    Missing,
    NoiseFigures,
    OperatorLoop,
    UserCodeFigures,
)
from dptune.runfile.communication import CallFacts
from dptune.runfile.discarded_gradients import DiscardedGradientFacts
from dptune.runfile.facts import DeviceFacts, OptimizerFacts, SchedulerFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.window import Window

LOADER = LoaderFacts("train.py:20", batch_size=32, dataset="Clips", dataset_samples=10**6, batches_drawn=50)
ADAM = OptimizerFacts("AdamW", "train.py:22", [1e-3], default_learning_rate=1e-3, betas=[0.9, 0.999], eps=1e-8)
SGD = OptimizerFacts("SGD", "train.py:22", [0.1], default_learning_rate=0.1)


@pytest.fixture
def larger(hand_made):
    """A step of 10 ms takes so many times as long with 64, 128 and 256 samples, for 64 now on two ranks."""

    def told(*times):
        def predict(changes):
            grown = changes["loader.batch_size"] / 32
            took = dict(zip((2, 4, 8), times, strict=False))[grown] * hand_made.STEP_NS
            return hand_made.figures(
                hand_made.Prediction,
                changes=dict(changes),
                step_ns=int(took),
                low_ns=int(0.95 * took),
                high_ns=int(1.05 * took),
                global_batch=int(64 * grown),
            )

        return predict

    return told


def room(hand_made, share):
    return [hand_made.figures(MemoryFigures, rank=0, device="cuda:0", peak_share=share)]


def test_the_largest_whose_last_doubling_is_worth_it(ask, make_measured, make_facts, larger, hand_made):
    """A sample takes 1.2 / 2 = 0.6 with twice the batch, 1.6 / 4 = 0.4 with four times; 3 / 8 is but 6 % less."""
    facts = make_facts(loaders=[LOADER], optimizers=[ADAM])
    run = make_measured(memory=room(hand_made, 0.1))
    (advice,) = ask("DP301", run, [facts], predictor=larger(1.2, 1.6, 3.0))
    assert advice.title == "Batches of 32 samples are small: 128 samples take about 60 % less time per sample"
    batch, rate, betas, eps = advice.changes
    assert (batch.knob, batch.now, batch.then, str(batch.at)) == ("loader.batch_size", 32, 128, "train.py:20")
    assert (rate.knob, rate.now, rate.then, str(rate.at)) == ("optimizer.lr", 1e-3, 2e-3, "train.py:22")
    assert (advice.impact, advice.confidence, advice.numerics, advice.kind) == ("high", "low", "changes", "time")
    assert (advice.saves.low_share, advice.saves.high_share) == (pytest.approx(0.58), pytest.approx(0.62))
    # 1 - 4 * 0.1, 1 - 4 * 0.001, 1e-8 / 2
    assert (betas.knob, betas.now, betas.then, betas.at) == ("optimizer.betas", "0.9,0.999", "0.6,0.996", rate.at)
    assert (eps.knob, eps.now, eps.then, eps.at) == ("optimizer.eps", 1e-8, 5e-9, rate.at)
    assert "scale the learning rate with the square root of the batch, and adjust betas and eps" in advice.watch
    assert next(one.value for one in advice.evidence if one.label == "global batch then") == 256


def test_of_a_range_both_ends_are_named(ask, make_measured, make_facts, predict_range):
    """A step of twice the samples takes 0.8 to 1.6 times as long: the middle, 1.2, saves 40 % of a sample's time."""
    facts = make_facts(loaders=[replace(LOADER, dataset_samples=128)], optimizers=[ADAM])
    told = predict_range("loader.batch_size", {64: (0.8, 1.6)}, 128)
    (advice,) = ask("DP301", make_measured(device="cpu"), [facts], predictor=told)
    assert advice.title == "Batches of 32 samples are small: 64 samples take 20 to 60 % less time per sample"
    assert (advice.saves.basis, advice.saves.predicted_share, advice.impact) == ("replayed", None, "high")


def test_what_was_predicted_stays_where_no_more_is(ask, make_measured, make_facts, larger):
    """Twice the batch is predicted, and no model tells of four times."""
    told = larger(1.2)

    def predict(changes):
        if changes["loader.batch_size"] > 64:
            raise Missing("an epoch holds no such batch")
        return told(changes)

    facts = make_facts(loaders=[LOADER], optimizers=[ADAM])
    (advice,) = ask("DP301", make_measured(device="cpu"), [facts], predictor=predict)
    assert (advice.changes[0].then, advice.saves.basis) == (64, "replayed")


@pytest.mark.parametrize(
    ("passes", "told"),
    [
        (8, "Alternatively accumulate 2 micro-batches instead of 8: the global batch and the learning rate stay"),
        (4, "Alternatively do not accumulate: the global batch and the learning rate stay"),
        (6, None),
    ],
)
def test_fewer_micro_batches_leave_the_global_batch(ask, make_measured, make_facts, larger, hand_made, passes, told):
    accumulates = hand_made.figures(hand_made.AccumulationFigures, backwards_per_step=passes)
    run = make_measured(device="cpu", accumulation=accumulates)
    (advice,) = ask("DP301", run, [make_facts(loaders=[LOADER], optimizers=[ADAM])], predictor=larger(1.2, 1.6, 3.0))
    assert (told in advice.watch) if told else ("Alternatively" not in advice.watch)


@pytest.fixture
def accumulated(make_measured, make_facts, hand_made):
    """Two CPU ranks that accumulate over `passes` micro-batches of `batch` samples, and what they are asked with."""

    def made(passes, batch=1, optimizers=(ADAM,), available=None, calls=(), **figures):
        samples = 2 * passes * batch
        window = Window("untraced", 3, [10_000_000] * 9, loader_batches=[passes] * 9, backwards=[passes] * 9)
        facts = make_facts(
            loaders=[replace(LOADER, batch_size=batch)],
            optimizers=list(optimizers),
            windows=[window],
            calls=list(calls),
            device=DeviceFacts("cpu", available_bytes=available),
        )
        accumulates = hand_made.figures(hand_made.AccumulationFigures, backwards_per_step=passes)
        return make_measured(device="cpu", samples=samples, accumulation=accumulates, **figures), [facts]

    return made


@pytest.fixture
def regrouped(hand_made):
    """The step with each number of micro-batches that keeps the samples, as a share of the step now."""

    def told(samples, took):
        def predict(changes):
            times = took[changes.get("accumulation.micro_batches")]
            return hand_made.figures(
                hand_made.Prediction,
                changes=dict(changes),
                step_ns=int(times * hand_made.STEP_NS),
                low_ns=int((times - 0.04) * hand_made.STEP_NS),
                high_ns=int((times + 0.04) * hand_made.STEP_NS),
                global_batch=samples,
            )

        return predict

    return told


SHARES = {8: 0.6, 4: 0.42, 2: 0.33, None: 1.0}


def test_fewer_and_larger_micro_batches_keep_the_global_batch(ask, accumulated, regrouped):
    """16 of 1 sample take 10 ms, 2 of 8 take 3.3: 67 % less, 4 either way."""
    measured, facts = accumulated(16)
    (advice,) = ask("DP301", measured, facts, predictor=regrouped(32, SHARES))
    assert advice.title == "Each optimizer step runs 16 micro-batches of 1 sample: run 2 of 8 (train.py:20)"
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "medium", "same")
    assert (advice.saves.low_share, advice.saves.high_share) == (pytest.approx(0.63), pytest.approx(0.71))
    assert advice.saves.samples_times == 1
    assert "divide the loss by 2 instead of 16" in advice.watch
    assert "learning rate stay" in advice.watch
    assert advice.changes == []


def test_the_trainers_settings_are_named(ask, accumulated, regrouped):
    calls = [CallFacts("all_gather", "train.py:20", library="accelerate", through="transformers.Trainer.train")]
    measured, facts = accumulated(16, calls=calls)
    (advice,) = ask("DP301", measured, facts, predictor=regrouped(32, SHARES))
    assert "Set per_device_train_batch_size=8 and gradient_accumulation_steps=2 together." in advice.watch


def test_the_smallest_micro_batch_near_the_best_is_enough(ask, accumulated, regrouped):
    """Four times the samples save 57 %, eight times 58: not worth their memory."""
    measured, facts = accumulated(16, batch=4)
    (advice,) = ask("DP301", measured, facts, predictor=regrouped(128, {8: 0.6, 4: 0.43, 2: 0.42}))
    assert advice.title.startswith("Each optimizer step runs 16 micro-batches of 4 samples: run 4 of 16")


def test_all_micro_batches_in_one(ask, accumulated, regrouped):
    measured, facts = accumulated(3)
    (advice,) = ask("DP301", measured, facts, predictor=regrouped(6, {1: 0.5}))
    assert "3 micro-batches of 1 sample: run 1 batch of 3 without accumulation" in advice.title
    assert "do not divide the loss by 3" in advice.watch


def test_micro_batches_are_as_large_as_the_host_has_memory_for(ask, accumulated, regrouped, hand_made):
    """16 passes allocate 1,600 bytes: 8 times as large ones take 700 more on one rank, 4 times as large ones 300."""
    memory = [hand_made.figures(MemoryFigures, rank=0, device="cpu", allocated_bytes_per_step=1600)]
    measured, facts = accumulated(16, available=500, memory=memory)
    (advice,) = ask("DP301", measured, facts, predictor=regrouped(32, SHARES))
    assert "run 4 of 4" in advice.title


def test_batch_norm_makes_it_another_function(ask, accumulated, regrouped, hand_made):
    top = [hand_made.figures(KernelTime, name="aten::native_batch_norm", calls_per_step=9, total_ns=9, step_share=0.1)]
    kernels = hand_made.figures(KernelFigures, counted="operators", per_step=9, median_ns=9, total_ns=9, top=top)
    measured, facts = accumulated(16, kernels=kernels)
    (advice,) = ask("DP301", measured, facts, predictor=regrouped(32, SHARES))
    assert (advice.confidence, advice.numerics) == ("low", "changes")
    assert "BatchNorm layers in training mode normalize over 8 samples then: compare the loss" in advice.watch


@pytest.mark.parametrize("took", [{8: 0.98, 4: 0.97, 2: 0.97, None: 1.9}, {8: 1.1, 4: 1.2, 2: 1.3, None: 1.9}])
def test_micro_batches_that_save_little_stay(ask, accumulated, regrouped, took):
    """And twice the global batch takes 1.9 times as long: 5 % less for each sample, too little to tune a rate for."""
    measured, facts = accumulated(16)
    doubled = regrouped(64, took)
    predict = lambda changes: (regrouped(32, took) if len(changes) > 1 else doubled)(changes)  # noqa: E731
    assert ask("DP301", measured, facts, predictor=predict) == []


def test_all_reduces_of_each_micro_batch_are_removed_first(ask, accumulated, regrouped, hand_made):
    """`no-sync-missing` is for them: what fewer micro-batches save would be its saving."""
    measured, facts = accumulated(16)
    each = hand_made.figures(hand_made.AccumulationFigures, backwards_per_step=16, synchronised_backwards_per_step=16)
    found = ask("DP301", measured.model_copy(update={"accumulation": each}), facts, predictor=regrouped(64, SHARES))
    assert not any("micro-batches of" in advice.title for advice in found)


def test_parts_of_one_batch_are_no_batches_of_the_loader(ask, accumulated, regrouped):
    """A batch that the script splits into 16 parts: how large they are does not follow from the loader."""
    measured, facts = accumulated(16)
    facts[0].windows[0].loader_batches = [1] * 9
    facts[0].discarded_gradients = DiscardedGradientFacts(passes=[16, 16], discarded=[0, 0], added=[16, 16])
    assert facts[0].accumulates()
    found = ask("DP301", measured, facts, predictor=regrouped(64, SHARES))
    assert not any("micro-batches of" in advice.title for advice in found)


def test_optimizers_that_step_in_turn_accumulate_nothing(ask, accumulated, regrouped):
    measured, facts = accumulated(16, optimizers=(ADAM, ADAM))
    found = ask("DP301", measured, facts, predictor=regrouped(64, SHARES))
    assert not any("micro-batches of" in advice.title for advice in found)


def test_a_schedule_that_sets_the_rate_itself_is_to_be_scaled(ask, make_measured, make_facts, larger):
    facts = make_facts(loaders=[LOADER], optimizers=[ADAM], schedulers=[SchedulerFacts("OneCycleLR")])
    (advice,) = ask("DP301", make_measured(device="cpu"), [facts], predictor=larger(1.2, 2.3))
    assert [one.knob for one in advice.changes] == ["loader.batch_size"]
    assert "1.41 times for AdamW, with its betas and eps" in advice.watch


def test_a_first_group_with_a_rate_of_its_own_is_not_what_the_optimizer_was_made_with(
    ask, make_measured, make_facts, larger
):
    """AdamW([{"params": a, "lr": 1e-4}, {"params": b}], lr=1e-3) with a cosine: the call there says 1e-3."""
    own = OptimizerFacts(
        "AdamW", "train.py:22", [9e-5], first_learning_rate=1e-4, default_learning_rate=1e-3, betas=[0.9, 0.999]
    )
    facts = make_facts(loaders=[LOADER], optimizers=[own], schedulers=[SchedulerFacts("CosineAnnealingLR")])
    (advice,) = ask("DP301", make_measured(device="cpu"), [facts], predictor=larger(1.2, 2.3))
    assert [one.knob for one in advice.changes] == ["loader.batch_size"]


def test_adam_has_no_rule_where_its_betas_would_be_below_0(ask, make_measured, make_facts, larger):
    """1 - 2 * (1 - 0.4) is below 0."""
    own = OptimizerFacts("Adam", "train.py:22", [1e-3], default_learning_rate=1e-3, betas=[0.4, 0.99], eps=1e-8)
    facts = make_facts(loaders=[LOADER], optimizers=[own])
    (advice,) = ask("DP301", make_measured(device="cpu"), [facts], predictor=larger(1.2, 1.6, 3.0))
    assert [one.knob for one in advice.changes] == ["loader.batch_size"]
    assert "does not hold at 2x the batch" in advice.watch


def test_micro_batches_are_samples_of_a_step_too(ask, make_measured, make_facts, larger):
    """Two ranks of 16 micro-batches of 32 have 1024 samples together: of 2000, not even twice as many are there."""
    few = LoaderFacts("train.py:20", batch_size=32, dataset_samples=2000, batches_drawn=50)
    facts = [make_facts(loaders=[few], optimizers=[ADAM])]
    assert ask("DP301", make_measured(device="cpu", samples=1024), facts, predictor=larger(1.2, 1.6, 3.0)) == []


def test_sgd_grows_linearly_from_the_rate_that_its_schedule_began_with(
    ask, make_measured, make_facts, larger, hand_made
):
    sgd = OptimizerFacts("SGD", "train.py:22", [0.013], first_learning_rate=0.1)
    facts = make_facts(loaders=[LOADER], optimizers=[sgd])
    run = make_measured(memory=room(hand_made, 0.1))
    (advice,) = ask("DP301", run, [facts], predictor=larger(1.2, 2.3))
    assert (advice.changes[1].now, advice.changes[1].then) == (0.1, 0.2)
    assert "warm-up" in advice.watch


@pytest.mark.parametrize(
    "optimizers",
    [
        [OptimizerFacts("Adagrad", learning_rates=[0.1], default_learning_rate=0.1)],
        [OptimizerFacts("SGD", learning_rates=[0.013], default_learning_rate=0.1)],  # a loop sets it
        [SGD, SGD],
        [],
    ],
)
def test_no_rate_is_proposed_where_no_rule_is_known(ask, make_measured, make_facts, larger, hand_made, optimizers):
    facts = make_facts(loaders=[LOADER], optimizers=optimizers)
    (advice,) = ask("DP301", make_measured(memory=room(hand_made, 0.1)), [facts], predictor=larger(1.2, 2.3))
    assert [change.knob for change in advice.changes] == ["loader.batch_size"]
    assert "learning rate" in advice.watch


def test_as_much_as_the_memory_and_the_samples_hold(ask, make_measured, make_facts, larger, hand_made):
    facts = make_facts(loaders=[LOADER], optimizers=[ADAM])
    told = larger(1.2, 1.6, 2.0)
    assert ask("DP301", make_measured(memory=room(hand_made, 0.75)), [facts], predictor=told) == []
    (advice,) = ask("DP301", make_measured(memory=room(hand_made, 0.4)), [facts], predictor=told)
    assert advice.changes[0].then == 64  # four times 40 % is more than there is
    few = LoaderFacts("train.py:20", batch_size=32, dataset_samples=200, batches_drawn=50)
    facts = make_facts(loaders=[few], optimizers=[ADAM])
    (advice,) = ask("DP301", make_measured(memory=room(hand_made, 0.1)), [facts], predictor=told)
    assert advice.changes[0].then == 64  # two ranks with 128 each would take 256


@pytest.mark.parametrize(("most", "then"), [(300.0, 128), (200.0, 64), (100.0, None), (None, 128)])
def test_no_more_samples_than_the_noise_of_gradients_asks_for(
    ask, make_measured, make_facts, larger, hand_made, most, then
):
    """Two ranks with 64 samples have 128 together, with 128 they have 256."""
    noise = hand_made.figures(
        NoiseFigures, steps=40, small_batch=32, large_batch=64, noise_scale=most and most / 2, low=10.0, high=most
    )
    facts = make_facts(loaders=[LOADER], optimizers=[ADAM])
    run = make_measured(device="cpu", noise=noise)
    if then is None:
        reason = r"gradient noise scale is 50 \(10 to 100\) samples: steps of 128 would hardly converge faster"
        with pytest.raises(Missing, match=reason):
            ask("DP301", run, [facts], predictor=larger(1.2, 1.6, 3.0))
        return
    (said,) = ask("DP301", run, [facts], predictor=larger(1.2, 1.6, 3.0))
    assert said.changes[0].then == then
    told = [(each.value, each.unit) for each in said.evidence if each.label == "noise scale of gradients"]
    assert told == ([(round(most / 2), f"samples (10 to {most:.0f})")] if most else [])


def test_a_cpu_has_room(ask, make_measured, make_facts, larger):
    facts = make_facts(loaders=[LOADER], optimizers=[SGD])
    (advice,) = ask("DP301", make_measured(device="cpu"), [facts], predictor=larger(1.2, 1.6, 2.0))
    assert advice.changes[0].then == 256


def test_beta1_stays_at_half_or_more(ask, make_measured, make_facts, larger):
    """4 times the batch leaves 1 - 4 * 0.1 = 0.6 of beta1, 8 times 0.2."""
    facts = make_facts(loaders=[LOADER], optimizers=[ADAM])
    (advice,) = ask("DP301", make_measured(device="cpu"), [facts], predictor=larger(1.2, 1.6, 2.0))
    assert advice.changes[0].then == 128


@pytest.mark.parametrize(("batches", "then"), [(55, 64), (79, 64), (80, 128), (159, 128), (160, 256)])
def test_an_epoch_keeps_twenty_steps_with_more_than_twice_the_batch(
    ask, make_measured, make_facts, larger, batches, then
):
    short = replace(LOADER, epoch_length=batches)
    facts = make_facts(loaders=[short], optimizers=[SGD])
    (advice,) = ask("DP301", make_measured(device="cpu"), [facts], predictor=larger(1.2, 1.6, 2.0))
    assert advice.changes[0].then == then


def test_quiet_where_a_sample_takes_as_long(ask, make_measured, make_facts, larger, hand_made):
    facts = make_facts(loaders=[LOADER], optimizers=[ADAM])
    run = make_measured(memory=room(hand_made, 0.1))
    assert ask("DP301", run, [facts], predictor=larger(1.75)) == []
    assert len(ask("DP301", run, [facts], {"worth_share": 0.1}, larger(1.75, 3.5))) == 1


def test_where_the_replay_misses_too_much_a_bound_is_told(ask, make_measured, make_facts, bounding):
    """Of a step 40 % do not grow with the batch: half of these. A replay takes 1.1 times as long at best."""
    facts = [make_facts(loaders=[LOADER], optimizers=[ADAM])]
    run = make_measured(device="cpu", exposed_share=0.4)
    (advice,) = ask("DP301", run, facts, predictor=bounding(1.1, 128))
    assert advice.title == "Batches of 32 samples are small: 64 samples take up to 45 % less time per sample"
    assert (advice.impact, advice.saves.basis, advice.saves.samples_times) == ("low", "bound", 2)
    assert advice.saves.high_share == pytest.approx(0.45)
    assert advice.changes[0].then == 64
    assert ask("DP301", make_measured(device="cpu", exposed_share=0.29), facts, predictor=bounding(1.1, 128)) == []
    assert ask("DP301", run, facts, predictor=bounding(1.8, 128)) == []
    (advice,) = ask("DP301", run, facts, predictor=bounding(0.6, 128))
    assert advice.saves.high_share == pytest.approx(0.5)  # a step of twice the samples is no shorter


def test_it_says_what_it_does_not_know(ask, make_measured, make_facts, larger, hand_made):
    run = make_measured(memory=room(hand_made, 0.1))
    bound = make_measured(memory=room(hand_made, 0.1), exposed_share=0.3)
    several, sizeless = [LOADER, LOADER], [LoaderFacts(batches_drawn=5)]
    with pytest.raises(Missing, match="the script's own batch sampler, so the batch size is unknown"):
        ask("DP301", bound, [make_facts(loaders=[replace(LOADER, own_batches=True)])])
    with pytest.raises(Missing, match="2 loaders"):
        ask("DP301", bound, [make_facts(loaders=several)])
    with pytest.raises(Missing, match="batch size"):
        ask("DP301", bound, [make_facts(loaders=sizeless)])
    assert ask("DP301", run, [make_facts(loaders=several)]) == ask("DP301", run, [make_facts(loaders=sizeless)]) == []
    with pytest.raises(Missing, match="no step model"):
        ask("DP301", bound, [make_facts(loaders=[LOADER])])
    assert ask("DP301", run, [make_facts(loaders=[LOADER])]) == []  # it computes: no model is needed to be quiet
    with pytest.raises(Missing, match="memory"):
        ask("DP301", make_measured(), [make_facts(loaders=[LOADER])], predictor=larger(1.2))


def test_noise_keeps_back_only_what_would_be_advised(ask, make_measured, make_facts, larger, bounding, hand_made):
    """Of a run that computes, twice the batch saves nothing: there is nothing to keep back."""
    noise = hand_made.figures(NoiseFigures, steps=40, small_batch=32, large_batch=64, low=0.0, high=70.0)
    facts = [make_facts(loaders=[LOADER], optimizers=[ADAM])]
    run = make_measured(device="cpu", noise=noise)
    assert ask("DP301", run, facts, predictor=larger(1.9)) == []
    run = make_measured(device="cpu", exposed_share=0.4, noise=noise)
    with pytest.raises(Missing, match=r"gradient noise scale is 0 to 70 samples"):
        ask("DP301", run, facts, predictor=bounding(1.1, 128))


def test_garbage_may_grow_with_the_batch(ask, make_measured, make_facts, hand_made):
    """It is collected for 73 % of a step, and so may the objects of samples be: no model is asked for."""
    collects = hand_made.Account(
        window_ns=100, compute_ns=12, exposed_unsplit_ns=15, gc_idle_ns=73, communication_ns=15
    )
    facts = [make_facts(loaders=[LOADER])]
    assert ask("DP301", make_measured(device="cpu", account=collects), facts) == []


@pytest.mark.parametrize(
    ("repeats", "share", "told"),
    [
        (32, 0.1, 0),  # once for each sample
        (64, 0.3, 0),  # twice: two views of each
        (31, 0.3, 0),  # all but the last
        (31, 0.09, 1),  # what grows is little of the step
        (40, 0.3, 1),  # over something else: positions, layers
        (12, 0.3, 1),
    ],
)
def test_a_loop_over_the_samples_grows_with_the_batch(
    ask, make_measured, make_facts, larger, hand_made, repeats, share, told
):
    """Batches of 32 samples. The replay says that a sample takes 0.6 with twice the batch: it knows of no loop."""
    loop = OperatorLoop(
        name="pairs",
        at="train.py:9",
        phase="forward",
        operator="aten::sub",
        repeats=repeats,
        rank=0,
        cost_ns=int(share * hand_made.STEP_NS),
        share=share,
    )
    code = UserCodeFigures(ranks=[0], steps=3, basis="untraced", sites=[], loops=[loop], missing={})
    run = make_measured(memory=room(hand_made, 0.1), user_code=code)
    facts = make_facts(loaders=[LOADER], optimizers=[ADAM])
    assert len(ask("DP301", run, [facts], predictor=larger(1.2, 2.4, 4.8))) == told
