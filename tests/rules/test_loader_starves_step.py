from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.advise.next_step import advised
from dptune.measured import InferredFacts, InputFigures, LoadFigures, Missing, PreparingFigures, Trait
from dptune.runfile.facts import DeviceFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.window import SampledFacts, Window
from dptune.whatif.traced_steps import least_ns

from .conftest import ask_rule


def loader(workers=0, **more):
    return LoaderFacts(**{"where": "train.py:12", "num_workers": workers, "dataset": "Images", **more})


@pytest.fixture
def ask(ask):
    """The steps here take 10 ms: batches are not too cheap for workers unless a test says so."""
    return lambda code, measured, facts=(), limits=None, **more: ask(
        code, measured, facts, {"handover_ms": 0.0, **(limits or {})}, **more
    )


@pytest.mark.parametrize(
    ("handover_ms", "proposes", "impact"),
    [(0.0, True, "high"), (2.0, True, "high"), (3.0, True, "medium"), (4.2, True, "low"), (4.4, False, "low")],
)
def test_what_a_worker_takes_to_hand_over_a_batch_is_not_saved(
    ask, make_measured, make_facts, handover_ms, proposes, impact
):
    """0.45 of a step of 10 ms, in one batch of 4.5 ms: 0.25 beyond a hand-over of 2 ms, 0.15 of 3, 0.03 of 4.2."""
    measured, facts = make_measured(wait_share=0.45), [make_facts(loaders=[loader()])]
    (advice,) = ask("DP501", measured, facts, {"handover_ms": handover_ms})
    assert (bool(advice.changes), advice.impact) == (proposes, impact)
    assert ("4.50 ms per batch, too little for workers to help" in advice.title) != proposes


@pytest.mark.parametrize("batch_ms", [4.95, 5.0, 5.05])
def test_no_size_of_a_batch_turns_the_advice_around(ask, make_measured, make_facts, hand_made, batch_ms):
    wait = batch_ms * 1e6 / hand_made.STEP_NS
    (advice,) = ask("DP501", make_measured(wait_share=wait), [make_facts(loaders=[loader()])], {"handover_ms": 2.0})
    assert (len(advice.changes), advice.impact, advice.saves.high_share) == (1, "high", pytest.approx(wait))


def test_workers_must_spare_more_than_the_steps_are_noisy(ask, make_measured, make_facts, hand_made):
    """Half of 20 steps of 10 ms lie between 8 and 16: the median is unsure by 0.8 / sqrt(20) = 0.18."""
    step = hand_made.measured_run().step
    noisy = step.model_copy(update={"untraced_q1_ns": 8_000_000, "untraced_q3_ns": 16_000_000})
    for waits, many in ((0.17, 0), (0.19, 1)):
        measured = make_measured(wait_share=waits).model_copy(update={"step": noisy})
        (advice,) = ask("DP501", measured, [make_facts(loaders=[loader()])])
        assert len(advice.changes) == many


@pytest.mark.parametrize(
    ("form", "line", "words"),
    [
        ("mask", 14, "group the rows once"),
        ("archive", 14, "open it once per process"),
        ("index", 14, "make a dict of the positions"),
        ("pop", 14, "replace item i with the last one"),
        ("search", 14, "make a set of its items"),
        ("statistics", 14, "compute it once in `__init__`"),
        ("mask", 15, ""),  # another line takes the time
        ("unheard", 14, ""),
    ],
)
def test_a_slow_line_of_a_known_form_has_a_remedy(ask, make_measured, make_facts, form, line, words):
    made_of = prepared(9, 9, 1, read_by="Lines.__getitem__ (data.py:14)")
    streams = loader(iterable=True, costly_lines={f"data.py:{line}": form})
    (advice,) = ask("DP501", make_measured(input=waiting(preparing=made_of)), [make_facts(loaders=[streams])])
    assert words in advice.remedy
    assert bool(advice.remedy) == bool(words)


@pytest.mark.parametrize(
    ("random", "epochs", "reading", "words"),
    [
        (False, 30, 9, "each of 30 epochs prepares the same samples: prepare each sample once"),
        (True, 30, 9, ""),
        (None, 30, 9, ""),
        (False, 1, 9, ""),
        (False, None, 9, ""),
        (False, 30, 1, ""),  # batches differ in each epoch
    ],
)
def test_samples_that_are_the_same_in_each_epoch_are_prepared_once(
    ask, make_measured, make_facts, random, epochs, reading, words
):
    made_of = prepared(
        reading, reading, 10 - reading, read_by="Texts.__getitem__ (data.py:14)", collated_by="pad (data.py:9)"
    )
    facts = make_facts(loaders=[loader(random_samples=random)], planned_epochs=epochs)
    (advice,) = ask("DP501", make_measured(input=waiting(preparing=made_of)), [facts])
    assert words in advice.remedy
    assert bool(advice.remedy) == bool(words)


@pytest.mark.parametrize(
    ("tensors", "remedy"),
    [
        (128, ": merge the 128 tensors of a batch into a few in `collate` (data.py:3); its 2 workers have one ready "),
        (3, ": transferring batches from workers takes the rest, because its 2 workers have one ready "),
        (None, ": transferring batches from workers takes the rest, because its 2 workers have one ready "),
    ],
)
def test_workers_that_keep_up_are_not_what_a_step_waits_for(ask, make_measured, make_facts, hand_made, tensors, remedy):
    """Steps of 10 ms: two workers that take 4 ms for a batch have one every 2 ms, those that take 8 every 4 ms."""
    for batch_ms, keeps_up in ((4, True), (8, False)):
        made_of = prepared(9, 9, 1, read_by="Cars.__getitem__ (data.py:9)", collated_by="collate (data.py:3)")
        made_of = made_of.model_copy(update={"batch_ns": batch_ms * hand_made.STEP_NS // 10, "tensors": tensors})
        measured = make_measured(input=waiting(preparing=made_of))
        (advice,) = ask("DP501", measured, [make_facts(loaders=[loader(2, batches_drawn=50)])])
        assert (remedy in advice.title) == keeps_up
        assert ("Cars.__getitem__" in advice.title) != keeps_up
        assert bool(advice.changes) != keeps_up
    two = [loader(2, batches_drawn=50), loader(0, batches_drawn=50, where="train.py:13")]
    keeping_up = made_of.model_copy(update={"batch_ns": hand_made.STEP_NS // 10})
    (advice,) = ask("DP501", make_measured(input=waiting(preparing=keeping_up)), [make_facts(loaders=two)])
    assert remedy not in advice.title  # the other loader may be what it waits for


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_would_repeat_the_samples_of_an_iterable_data_set(ask, make_measured, make_facts, workers):
    streams = loader(workers, iterable=True, dataset="Lines")
    made_of = prepared(9, 9, 1, read_by="Lines.__iter__ (data.py:12)")
    measured = make_measured(input=waiting(preparing=made_of))
    (advice,) = ask("DP501", measured, [make_facts(loaders=[streams])])
    assert advice.changes == []
    assert advice.title == (
        "Make `Lines.__iter__` (data.py:12) cheaper: a step waits 60 % of its time for the data loader, 90 % of that "
        "in this function, and workers would each return every sample"
    )
    assert advice.saves.low_share == 0
    assert "would each return every sample" in advice.watch
    assert "make Lines.__iter__ (data.py:12) skip the samples of other workers" in advice.watch
    assert "get_worker_info()" in advice.watch
    dropping = replace(streams, drops_at="data.py:14")
    assert ask("DP501", measured, [make_facts(loaders=[dropping])]) == []  # samples-dropped names what to change
    for harmless in (replace(streams, sharded_by="Lines"), replace(streams, iterable=False)):
        (advice,) = ask("DP501", measured, [make_facts(loaders=[harmless])])
        assert advice.changes[0].knob == "loader.num_workers"


def test_workers_take_over_what_prepares_a_batch_and_not_the_sampler(ask, make_measured, make_facts):
    """Half of the step waits; of that 30 % and then 80 % is the sampler's."""
    facts = [make_facts(loaders=[loader()])]
    (advice,) = ask("DP501", make_measured(input=waiting(0.5, other_share=0.3)), facts)
    assert (advice.changes[0].then, advice.saves.high_share) == (2, pytest.approx(0.35))
    (advice,) = ask("DP501", make_measured(input=waiting(0.5, other_share=0.8)), facts)
    assert "80 % of the wait is not batch preparation: check the sampler" in advice.title
    (advice,) = ask("DP501", make_measured(input=waiting(0.5, other_share=0.8)), [make_facts(loaders=[loader(1)])])
    assert advice.changes[0].then == 3  # the sampler runs while workers prepare


def test_two_batches_a_step_are_two_waits(ask, make_measured, make_facts):
    window = Window("untraced", 6, durations_ns=[1] * 3, loader_batches=[2, 2, 90])
    facts = [make_facts(loaders=[loader()], windows=[window])]
    (advice,) = ask("DP501", make_measured(wait_share=0.9), facts, {"handover_ms": 5.0})
    assert "4.50 ms per batch" in advice.title


def test_a_model_on_the_cpu_leaves_its_own_cores_to_itself(ask, make_measured, make_facts):
    cpu = DeviceFacts("cpu", cores=2, usable_cores=2, torch_threads=1)
    facts = [make_facts(loaders=[loader()], rank=rank, device=cpu) for rank in range(2)]
    computed = waiting(computed_share=0.9)
    (advice,) = ask("DP501", make_measured(device="cpu", input=computed), facts)
    assert advice.changes == []
    assert "no core is left for workers, so make" in advice.title
    assert advice.why == "With num_workers=0 the training process prepares every batch itself."
    slept = waiting(computed_share=0.1)
    (advice,) = ask("DP501", make_measured(device="cpu", input=slept), facts)
    assert advice.changes[0].then == 3


# A batch that takes 10 ms of a core on each of two ranks keeps both cores for a step of 10 ms; one that mostly waits
# for 1 ms of each.
@pytest.mark.parametrize(
    ("told", "computes", "high"), [(3, None, 0.75), (0, None, 0.5), (3, 10, 0.75), (3, 1, 0.6), (0, 10, 0.5)]
)
def test_a_cheaper_batch_leaves_the_cores_to_collectives_too(ask, make_measured, make_facts, told, computes, high):
    """Steps of 10 ms: 5 waiting for the batch, 1 forward, 4 in the backward pass, in which 1.5 ms are computed."""
    ms = 1_000_000
    window = Window("untraced", 6, [10 * ms] * 3, loader_wait_ns=[5 * ms] * 3, backward_ns=[4 * ms] * 3)
    cpu = DeviceFacts("cpu", cores=2, usable_cores=2, torch_threads=1)
    ranks = [
        make_facts(
            loaders=[loader()], rank=rank, device=cpu, windows=[replace(window, backward_cpu_ns=[computed] * told)]
        )
        for rank, computed in enumerate((ms, 3 * ms // 2))
    ]
    made_of = {} if computes is None else {"preparing": prepared(10, computes, 0)}
    measured = make_measured(device="cpu", input=waiting(0.5, computed_share=0.9, **made_of))
    (advice,) = ask("DP501", measured, ranks, {"handover_ms": 6.0})
    assert advice.changes == []
    assert (advice.saves.basis, advice.saves.high_share) == ("bound", pytest.approx(high))


def test_the_loader_that_the_steps_drew_from_is_meant(ask, make_measured, make_facts):
    """The one for validation holds more samples, but the steps drew from the other."""
    validation = loader(workers=0, where="train.py:13", dataset_samples=9000, batches_drawn=20)
    training = loader(workers=1, where="train.py:12", dataset_samples=500, batches_drawn=60)
    (advice,) = ask("DP501", make_measured(wait_share=0.6), [make_facts(loaders=[validation, training])])
    assert (advice.changes[0].now, str(advice.changes[0].at)) == (1, "train.py:12")


def test_no_workers(ask, make_measured, make_facts):
    """Preparing takes 0.6 of a step and the rest 0.4: two workers keep up, and one is to spare."""
    (advice,) = ask("DP501", make_measured(wait_share=0.6), [make_facts(loaders=[loader()])])
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == ("loader.num_workers", 0, 3, "train.py:12")
    assert advice.title == "A step waits 60 % of its time for the data loader: use 3 workers (now none)"
    assert advice.saves.high_share == pytest.approx(0.6)
    assert advice.saves.high_ms == pytest.approx(6)
    assert (advice.saves.low_ms, advice.saves.basis) == (0, "bound")
    assert (advice.impact, advice.confidence) == ("high", "high")


def test_workers_that_are_predicted_to_save_nothing_are_not_proposed(ask, make_measured, make_facts, predict):
    measured, facts = make_measured(wait_share=0.6), [make_facts(loaders=[loader()])]
    slower = predict("loader.num_workers", {3: 1.1})
    (advice,) = ask("DP501", measured, facts, predictor=slower)
    assert advice.changes == []
    assert "the replay with 3 workers is no faster, so make a batch cheaper" in advice.title
    assert (advice.saves.basis, advice.saves.high_share) == ("bound", pytest.approx(0.6))
    (advice,) = ask("DP501", measured, facts, predictor=predict("loader.num_workers", {3: 0.5}))
    assert (advice.changes[0].then, advice.saves.basis) == (3, "replayed")


def test_a_gpu_with_work_queued_waits_for_no_batch(ask, make_measured, make_facts, hand_made):
    """The script waits 30 % of a step, and the device 2 % at most."""
    facts, waits = [make_facts(loaders=[loader()])], waiting(0.3)
    for share, many in ((0.02, 0), (0.2, 1)):
        idle = int(share * hand_made.STEP_NS)
        account = hand_made.Account(
            window_ns=hand_made.STEP_NS, compute_ns=hand_made.STEP_NS - idle, input_idle_ns=idle
        )
        assert len(ask("DP501", make_measured(input=waits, account=account), facts)) == many


def test_of_a_gpu_the_wait_counts_while_the_device_is_idle(ask, make_measured, make_facts, hand_made):
    """By hand, of steps of 10 ms: the host waits 3.9 of them, and the device is idle for 1.9 of these."""
    idle = int(0.19 * hand_made.STEP_NS)
    account = hand_made.Account(window_ns=hand_made.STEP_NS, compute_ns=hand_made.STEP_NS - idle, input_idle_ns=idle)
    facts = [make_facts(loaders=[loader()])]
    (advice,) = ask("DP501", make_measured(input=waiting(0.39), spent=[account]), facts)
    assert advice.title.startswith("A step waits 19 % of its time for the data loader")
    assert advice.impact == "medium"
    assert (advice.saves.high_ms, advice.saves.high_share) == (pytest.approx(1.9), pytest.approx(0.19))
    assert [(one.label, one.value) for one in advice.evidence[:2]] == [
        ("the host waits for the loader", pytest.approx(0.39)),
        ("of this wait, with the device idle", pytest.approx(0.19)),
    ]
    (on_cpu,) = ask("DP501", make_measured(device="cpu", input=waiting(0.39), spent=[account]), facts)
    assert on_cpu.title.startswith("A step waits 39 % of its time for the data loader")


def test_a_wait_at_the_starts_of_epochs_is_left_to_the_rule_on_workers_that_restart(ask, make_measured, make_facts):
    """Epochs of 30 steps: 20 wait 1 of 10 ms each; the step that begins the next epoch waits 740 of 820 ms."""
    ms = 1_000_000
    epochs = loader(1, batch_size=32, dataset_samples=960, batches_drawn=35, persistent_workers=False)
    timed = Window("untraced", 6, [10 * ms] * 20, loader_wait_ns=[ms] * 20, loader_batches=[1] * 20)
    for starts, many in ((740, 0), (20, 1)):
        waits = [ms] * 4 + [starts * ms]
        light = Window("light", 27, [10 * ms] * 4 + [820 * ms], loader_wait_ns=waits, loader_batches=[1] * 5)
        facts = [make_facts(loaders=[epochs], windows=[timed, light])]
        assert len(ask("DP501", make_measured(wait_share=0.1, world=1), facts)) == many


def test_a_validation_between_epochs_is_no_wait_of_a_step(ask, make_measured, make_facts):
    """19 steps of 100 ms wait 10 each; one holds a validation, of which 2500 of 3000 ms are waited for."""
    ms = 1_000_000
    window = Window("untraced", 5, durations_ns=[100 * ms] * 19 + [3000 * ms])
    window.loader_wait_ns, window.loader_batches = [10 * ms] * 19 + [2500 * ms], [1] * 19 + [40]
    (advice,) = ask("DP501", make_measured(wait_share=0.1), [make_facts(loaders=[loader()], windows=[window])])
    assert advice.saves.high_share == pytest.approx(0.1)
    assert advice.changes[0].then == 2


def test_where_cores_are_no_limit_they_are_not_blamed(ask, make_measured, make_facts):
    many = make_facts(loaders=[loader(workers=16)], device=None)
    (advice,) = ask("DP501", make_measured(wait_share=0.4), [many])
    assert "more than its 16 workers would hardly help" in advice.title


def test_the_first_workers_are_to_be_kept(ask, make_measured, make_facts):
    """Those that there are already were started by someone who could have."""
    (advice,) = ask("DP501", make_measured(wait_share=0.6), [make_facts(loaders=[loader(persistent_workers=False)])])
    asked = [(change.knob, change.now, change.then) for change in advice.changes]
    assert asked == [("loader.num_workers", 0, 3), ("loader.persistent_workers", False, True)]
    few = make_facts(loaders=[loader(2, persistent_workers=False)])
    (advice,) = ask("DP501", make_measured(wait_share=0.5), [few])
    assert [change.knob for change in advice.changes] == ["loader.num_workers"]


def test_cores_are_shared_between_the_ranks_of_a_host(ask, make_measured, make_facts):
    facts = [make_facts(loaders=[loader()], rank=rank, cores=4) for rank in range(2)]
    (advice,) = ask("DP501", make_measured(wait_share=0.9), facts)
    assert advice.changes[0].then == 2
    # two workers that need 0.9 of a step for a batch deliver one every 0.45
    assert advice.saves.high_share == pytest.approx(0.55)


def test_ranks_that_were_not_read_count_too(ask, make_measured, make_facts):
    (advice,) = ask("DP501", make_measured(wait_share=0.9), [make_facts(loaders=[loader()], rank=3, cores=8)])
    assert advice.changes[0].then == 2


def test_a_rank_of_another_host_does_not_count(ask, make_measured, make_facts):
    facts = [make_facts(loaders=[loader()], cores=4), make_facts(rank=1, host="two", local_rank=0, cores=4)]
    (advice,) = ask("DP501", make_measured(wait_share=0.9), facts)
    assert advice.changes[0].then == 4


def test_too_few_workers(ask, make_measured, make_facts):
    """Two that leave a wait of 0.5 work at half the rate needed: four, and one to spare."""
    (advice,) = ask("DP501", make_measured(wait_share=0.5), [make_facts(loaders=[loader(2)])])
    assert [(c.now, c.then) for c in advice.changes] == [(2, 5)]
    assert "use 5 workers instead of 2" in advice.title
    assert advice.saves.high_share == pytest.approx(0.5)


def test_no_core_is_left(ask, make_measured, make_facts):
    (advice,) = ask("DP501", make_measured(wait_share=0.5), [make_facts(loaders=[loader(4)], cores=4)])
    assert advice.changes == []
    assert "make a batch cheaper" in advice.title
    assert advice.saves.high_share == pytest.approx(0.5)


def test_workers_take_cores_from_a_model_on_the_cpu(ask, make_measured, make_facts):
    (advice,) = ask("DP501", make_measured(wait_share=0.6, device="cpu"), [make_facts(loaders=[loader()])])
    assert advice.confidence == "medium"


def test_a_script_without_a_loader_is_quiet_and_one_that_could_not_be_asked_is_not(ask, make_measured, make_facts):
    measured = make_measured(wait_share=None)
    assert ask("DP501", measured, [make_facts()]) == []
    with pytest.raises(Missing):
        ask("DP501", measured, [make_facts(unread={"loaders": "RuntimeError: no"})])
    with pytest.raises(Missing):
        ask("DP501", measured, [make_facts(loaders=[loader()])])


def test_a_trace_without_facts_says_the_wait_and_no_number_of_workers(ask, make_measured):
    (advice,) = ask("DP501", make_measured(wait_share=0.3))
    assert advice.changes == []
    assert advice.confidence == "low"
    assert "30 %" in advice.title


def test_the_loader_of_the_largest_dataset_is_meant(ask, make_measured, make_facts):
    loaders = [loader(where="val.py:1", dataset_samples=10), loader(where="train.py:2", dataset_samples=1000)]
    (advice,) = ask("DP501", make_measured(wait_share=0.3), [make_facts(loaders=loaders)])
    assert str(advice.changes[0].at) == "train.py:2"


def test_the_rank_that_waits_most_is_shown(ask, make_measured, make_facts, hand_made):
    ranks = [
        hand_made.figures(hand_made.RankFigures, rank=n, source="", events=1, loader_wait_share=share)
        for n, share in enumerate((0.2, 0.7))
    ]
    (advice,) = ask("DP501", make_measured(wait_share=0.3, ranks=ranks), [make_facts(loaders=[loader()])])
    (worst,) = [e for e in advice.evidence if e.rank is not None]
    assert (worst.rank, worst.value) == (1, 0.7)
    # the others wait for it: it decides how many workers are needed (0.7 / 0.3, and one to spare) and what they save
    assert advice.changes[0].then == 4
    assert advice.saves.high_share == pytest.approx(0.7)
    assert "waits 30 %" in advice.title


@pytest.mark.parametrize(("wait", "impact"), [(0.049, None), (0.05, "medium"), (0.19, "medium"), (0.2, "high")])
def test_impact(ask, make_measured, make_facts, wait, impact):
    said = ask("DP501", make_measured(wait_share=wait), [make_facts(loaders=[loader()])])
    assert [advice.impact for advice in said] == ([impact] if impact else [])


def test_thresholds_can_be_set(ask, make_measured):
    assert ask("DP501", make_measured(wait_share=0.3), limits={"warning_share": 0.4}) == []
    (advice,) = ask("DP501", make_measured(wait_share=0.3), limits={"error_share": 0.4})
    assert advice.impact == "medium"


def test_a_wait_that_was_not_measured(ask, make_measured):
    with pytest.raises(Missing, match="wait_share was not measured"):
        ask("DP501", make_measured(wait_share=None))


@given(wait=st.floats(0, 1), workers=st.integers(0, 32), cores=st.integers(1, 128))
def test_a_saving_never_exceeds_the_wait_and_workers_never_the_cores(hand_made, wait, workers, cores):
    measured = hand_made.measured_run(wait_share=wait)
    facts = [hand_made.facts_of(loaders=[loader(workers)], cores=cores)]
    for advice in ask_rule("DP501", measured, facts):
        assert 0 <= advice.saves.high_share <= wait
        for change in advice.changes:
            assert workers < change.then <= cores


def test_ranks_that_wait_in_turn_wait_together(ask, make_measured, make_facts):
    """Rank 0 waits 50 of 100 ms in odd steps, rank 1 in even ones: without the waits each step takes 50 ms less."""
    facts = []
    for rank in range(2):
        waits = [50 * (step % 2 == rank) for step in range(4)]
        window = Window("untraced", 6, durations_ns=[100] * 4, loader_wait_ns=waits)
        facts.append(make_facts(loaders=[loader()], rank=rank, windows=[window]))
    (advice,) = ask("DP501", make_measured(wait_share=0.25), facts)
    assert advice.saves.high_share == pytest.approx(0.5)


def prepared(reading=9, computing=9, collating=1, **more):
    """The parts of 10 ms, and for how long reading computes; collating computes all the time."""
    whole = reading + collating
    return PreparingFigures(
        batch_ns=10_000_000,
        reading_share=reading / whole,
        reading_computed_share=computing / reading,
        collating_share=collating / whole,
        computed_share=(computing + collating) / whole,
        **more,
    )


def waiting(wait=0.6, **more):
    return InputFigures(
        wait_share=wait,
        wait_ns=1,
        **{"computed_share": 0.0, **more},
        missing={} if "preparing" in more else NOT_METERED,
    )


NOT_METERED = {"preparing": "it was not metered"}


@pytest.mark.parametrize(
    ("made_of", "words"),
    [
        (prepared(9, 8, 1), ": reading and transforming samples takes 90 % of batch preparation (compute)"),
        (
            prepared(6, 2, 4),
            ": reading and transforming samples takes 60 % of batch preparation "
            "(mostly waiting, for example for storage)",
        ),
        (prepared(3, 3, 7), ": collating takes 70 % of batch preparation"),
        (prepared(5, 5, 5), ""),
    ],
)
def test_what_preparing_a_batch_is_made_of(ask, make_measured, make_facts, made_of, words):
    facts = [make_facts(loaders=[loader(workers=3)])]
    (advice,) = ask("DP501", make_measured(input=waiting(preparing=made_of)), facts, {"handover_ms": 60.0})
    assert advice.title.endswith(f"so make a batch cheaper to prepare{words}")
    (unit,) = [one.unit for one in advice.evidence if one.label == "preparing a batch"]
    assert unit.startswith("ms in a worker, the mean since")


def sent(ask, make_measured, make_facts, mib, workers=0, device="cpu", wait=0.4, cores=2):
    """Steps of 10 ms, `wait` of them for a batch of so many MiB that the training process makes; a core is free."""
    cpu = DeviceFacts(device, cores=cores, usable_cores=cores, torch_threads=1)
    made_of = prepared(1, 1, 9, collated_by="collate (data.py:3)", tensor_bytes=round(mib * 2**20))
    measured = make_measured(device=device, world=1, input=waiting(wait, preparing=made_of))
    return ask("DP501", measured, [make_facts(loaders=[loader(workers)], device=cpu)], {"handover_ms": 2.0})


def test_a_worker_that_sends_longer_than_it_prepares_is_not_proposed(ask, make_measured, make_facts):
    """By hand: of 4 ms, 2 are the hand-over and 1.5 receiving 6 MiB; the worker takes 4 + 6 of 10 ms."""
    (advice,) = sent(ask, make_measured, make_facts, 6)
    assert advice.title == (
        "Make `collate` (data.py:3) cheaper: a step waits 40 % of its time for the data loader, 90 % of that in this "
        "function, and sending a batch of 6 MiB from a worker costs about 7.50 ms, preparing it 4.00 ms"
    )
    assert (advice.impact, advice.changes) == ("low", [])
    assert "copy each batch into shared memory" in advice.why
    assert advice.saves.low_share == 0
    assert [found.value for found in advice.evidence if found.label == "size of the tensors in a batch"] == [6 * 2**20]


@pytest.mark.parametrize(
    ("mib", "more"), [(1, {}), (6, {"device": "cuda"}), (6, {"workers": 1, "cores": 4}), (2, {"wait": 0.5})]
)
def test_small_batches_and_those_of_workers_or_of_a_gpu_are_not_weighed(ask, make_measured, make_facts, mib, more):
    """A batch of 2 MiB that is ready in 5 ms: the worker takes 5 + 2 of 10 ms."""
    (advice,) = sent(ask, make_measured, make_facts, mib, **more)
    assert advice.changes[0].knob == "loader.num_workers"
    assert "MiB" not in advice.title


def test_a_slow_batch_stays_worth_making_cheaper_however_large_it_is(ask, make_measured, make_facts):
    """9 of 10 ms, of which sending 2 MiB would take 2 + 2 + 0.5: the worker would take 11 of 10 ms."""
    (advice,) = sent(ask, make_measured, make_facts, 2, wait=0.9)
    assert (advice.impact, advice.changes) == ("high", [])


def test_its_parts_are_evidence_with_the_functions(ask, make_measured, make_facts):
    told = prepared(9, 3, 1, read_by="Images.__getitem__ (data.py:12)")
    (advice,) = ask("DP501", make_measured(input=waiting(preparing=told)), [make_facts(loaders=[loader()])])
    own = {one.label: (one.value, one.unit) for one in advice.evidence}
    assert own["preparing a batch"] == (10.0, "ms, the mean since the script started, including traced steps")
    assert own["reading and transforming samples"] == (0.9, "of batch preparation, by Images.__getitem__ (data.py:12)")
    assert own["collating"] == (0.1, "of batch preparation")
    assert own["compute, not waiting"] == (0.4, "of batch preparation")


def test_workers_that_compute_need_cores_whatever_the_training_thread_does(ask, make_measured, make_facts):
    """With workers the training thread sleeps while it waits, whatever they do."""
    cpu = DeviceFacts("cpu", cores=2, usable_cores=2, torch_threads=1)
    facts = [make_facts(rank=rank, loaders=[loader(workers=1)], device=cpu) for rank in range(2)]
    for input_figures, proposed in (
        (waiting(preparing=prepared(9, 9, 1)), []),
        (waiting(preparing=prepared(9, 1, 1)), [4]),
        (waiting(), []),  # what they do is not known
    ):
        (advice,) = ask("DP501", make_measured(device="cpu", input=input_figures), facts)
        assert [change.then for change in advice.changes] == proposed


@pytest.mark.parametrize(("withheld", "many"), [(0.2, 1), (0.6, 0)])
def test_a_batch_that_waits_for_cores_of_others_does_not_wait_for_storage(
    ask, make_measured, make_facts, withheld, many
):
    """It computes 30 % of its time: where others withhold 60 % of the cores, no more than 40 % could be."""
    cpu = DeviceFacts("cpu", cores=2, usable_cores=2, torch_threads=1)
    facts = [make_facts(rank=rank, loaders=[loader()], device=cpu) for rank in range(2)]
    load = LoadFigures(
        host="vm",
        window="untraced",
        cores=2,
        job_cores=0.8,
        other_cores=1.2,
        waiting_cores=1.2,
        withheld_share=withheld,
    )
    measured = make_measured(device="cpu", input=waiting(preparing=prepared(9, 2, 1)), load=[load])
    (advice,) = ask("DP501", measured, facts)
    assert len(advice.changes) == many


def timed(*places):
    """A rank's window in which the training thread was found at these places, of each 5 times for so many ms."""
    window = Window("untraced", 3, [10_000_000] * 5)
    window.sampled = [
        SampledFacts(["main (train.py:30)", *path], phase, "", "", 5, list(range(5)), [ms * 1_000_000] * 5)
        for phase, ms, *path in places
    ]
    return window


READS = ("loader", 5, "Images.__getitem__ (data.py:14)")
COMPUTES = ("backward", 4)


@pytest.mark.parametrize(
    ("cores", "free", "reason"),
    [
        (2, 0, "no core is left for workers"),
        (4, 1, "the free cores allow 1 worker, which saves at most 40 % of a step"),
        (6, 2, ""),
    ],
)
def test_a_slow_function_is_what_to_change_where_workers_cannot_keep_up(
    ask, make_measured, make_facts, cores, free, reason
):
    """Preparing takes 0.6 of a step and the rest 0.4: 1.5 workers keep up, and a step of one takes 0.6."""
    cpu = DeviceFacts("cpu", cores=cores, usable_cores=cores, torch_threads=1)
    facts = [
        make_facts(rank=rank, loaders=[loader()], device=cpu, windows=[timed(READS, COMPUTES)]) for rank in range(2)
    ]
    measured = make_measured(device="cpu", input=waiting(0.6, computed_share=1.0))
    (advice,) = ask("DP501", measured, facts)
    assert [change.then for change in advice.changes] == ([] if reason else [free])
    assert advice.title == (
        "Make `Images.__getitem__` (data.py:14) cheaper: a step waits 60 % of its time for the data loader, 100 % of "
        f"that in this function, and {reason}"
        if reason
        else "A step waits 60 % of its time for the data loader: use 2 workers (now none). `Images.__getitem__` "
        "(data.py:14) takes 100 % of the wait"
    )


def test_a_slow_line_with_a_known_remedy_comes_before_workers(ask, make_measured, make_facts):
    cpu = DeviceFacts("cpu", cores=6, usable_cores=6, torch_threads=1)
    slow = loader(costly_lines={"data.py:14": "mask"})
    facts = [make_facts(rank=rank, loaders=[slow], device=cpu, windows=[timed(READS, COMPUTES)]) for rank in range(2)]
    (advice,) = ask("DP501", make_measured(device="cpu", input=waiting(0.6, computed_share=1.0)), facts)
    assert advice.title == (
        "A step waits 60 % of its time for the data loader, 100 % of that in `Images.__getitem__` (data.py:14): make "
        "it cheaper first (see the change), then use 2 workers (now none)"
    )
    assert advice.changes[0].then == 2
    assert advice.remedy.startswith("The comparison reads the whole column for each sample")
    assert advice.remedy_first
    assert str(advice.place) == "data.py:14"  # not that of the loader
    assert advised(advice, None, None).startswith("DP501: The comparison reads the whole column")
    assert "`DataLoader(dataset, ..., num_workers=2" in advised(advice, None, None).partition(" Then: ")[2]


def test_workers_with_a_prediction_stay_the_remedy(ask, make_measured, make_facts, predict):
    cpu = DeviceFacts("cpu", cores=4, usable_cores=4, torch_threads=1)
    facts = [make_facts(rank=rank, loaders=[loader()], device=cpu, windows=[timed(READS)]) for rank in range(2)]
    measured = make_measured(device="cpu", input=waiting(0.6, computed_share=1.0))
    (advice,) = ask("DP501", measured, facts, predictor=predict("loader.num_workers", {1: 0.7}))
    assert (advice.changes[0].then, advice.saves.basis) == (1, "replayed")


@pytest.mark.parametrize(
    ("by", "places", "where"),
    [
        ("Images.__getitem__ (data.py:12)", [], "`Images.__getitem__` (data.py:12)"),  # where it begins
        ("main.<locals>.read (data.py:12)", [], "`main.read` (data.py:12)"),
        # 5 ms in the function itself, 4 and 4 in others: none of these has most of it
        (
            "Images.__getitem__ (data.py:12)",
            [READS, ("loader", 4, "crop (data.py:4)"), ("loader", 4, "flip (data.py:8)")],
            "`Images.__getitem__` (data.py:14)",
        ),
    ],
)
def test_the_metered_function_is_named_where_none_was_found_most_of_the_time(
    ask, make_measured, make_facts, by, places, where
):
    cpu = DeviceFacts("cpu", cores=2, usable_cores=2, torch_threads=1)
    facts = [make_facts(rank=rank, loaders=[loader()], device=cpu, windows=[timed(*places)]) for rank in range(2)]
    measured = make_measured(device="cpu", input=waiting(0.6, preparing=prepared(9, 9, 1, read_by=by)))
    (advice,) = ask("DP501", measured, facts)
    assert advice.title.startswith(f"Make {where} cheaper: ")


@pytest.mark.parametrize(
    ("waits", "workers", "fires"),
    [((0.5, 0.31, 0.4), 0, True), ((0.5, 0.29, 0.4), 0, False), ((0.5, 0.5, 0.5), 2, False), ((), 0, False)],
)
def test_on_a_busy_machine_the_wait_must_be_large_in_each_window(
    ask, make_measured, make_facts, hand_made, waits, workers, fires
):
    """The share of a wait that computes holds where steps take many times as long; what a change saves does not."""
    windows = [
        Window(name, 3, [10_000_000] * 4, loader_wait_ns=[int(share * 10_000_000)] * 4)
        for name, share in zip(("untraced", "light", "detailed"), waits, strict=False)
    ]
    measured, facts = make_measured(wait_share=0.4), [make_facts(loaders=[loader(workers)], windows=windows)]
    predictor = hand_made.predicting("loader.num_workers", {2: 0.7})
    if not fires:
        with pytest.raises(Missing, match="kept the machine busy"):
            ask("DP501", measured, facts, predictor=predictor, times_hold=False)
        return
    (advice,) = ask("DP501", measured, facts, predictor=predictor, times_hold=False)
    assert (advice.confidence, advice.saves.basis) == ("medium", "bound")


def test_a_rank_that_waits_more_than_the_others_is_in_the_title(ask, make_measured, hand_made):
    """Idle for input: 10 % of the time of all ranks, 20 % on one, which holds the others up."""
    spent = [hand_made.account(0.0, 0.1, share) for share in (0.0, 0.2)]
    waits = hand_made.figures(InputFigures, wait_share=0.1, basis="traced")
    measured = make_measured(input=waits, spent=spent, world=2)
    ranks = [
        one.model_copy(update={"loader_wait_share": wait, "missing": {}})
        for one, wait in zip(measured.ranks, (0.0, 0.2), strict=True)
    ]
    (advice,) = ask("DP501", measured.model_copy(update={"ranks": ranks}))
    assert "10 % of its time for the data loader (20 % with the rank that waits longest in each step)" in advice.title
    (advice,) = ask("DP501", make_measured(input=waits, spent=[hand_made.account(0.0, 0.1, 0.1)], world=2))
    assert "that waits most" not in advice.title


@pytest.mark.parametrize(
    ("more", "collated_by", "named"),
    [
        ({"dataset": "TensorDataset", "batch_size": 64}, "default_collate", True),
        ({"dataset": "Subset", "batch_size": 64}, "default_collate", True),
        ({"dataset": "Images", "batch_size": 64, "takes_lists": True}, "default_collate", True),
        ({"dataset": "Images", "batch_size": 64}, "default_collate", False),
        ({"dataset": "Images", "batch_size": 64, "takes_lists": True}, "pad (train.py:4)", False),
        ({"dataset": "TensorDataset", "batch_size": None}, "default_collate", False),  # it does already
        ({"dataset": "TensorDataset", "batch_size": 64}, "pad (train.py:4)", False),  # which gets single samples
    ],
)
def test_rows_of_tensors_are_indexed_a_batch_at_a_time(ask, make_measured, make_facts, more, collated_by, named):
    made_of = prepared(9, 9, 1, read_by="TensorDataset.__getitem__").model_copy(update={"collated_by": collated_by})
    device = DeviceFacts("cpu", usable_cores=1, torch_threads=1)
    facts = make_facts(loaders=[loader(**more)], device=device)
    (advice,) = ask("DP501", make_measured(input=waiting(preparing=made_of)), [facts])
    assert ("at once instead of sample by sample (train.py:12)" in advice.title) == named


def test_the_line_of_a_data_set_that_only_indexes_tensors(ask, make_measured, make_facts):
    made_of = prepared(9, 9, 1, read_by="Rows.__getitem__ (train.py:7)", collated_by="default_collate")
    rows = loader(dataset="Rows", batch_size=64, takes_lists=True)
    facts = make_facts(loaders=[rows], device=DeviceFacts("cpu", usable_cores=1, torch_threads=1))
    (advice,) = ask("DP501", make_measured(input=waiting(preparing=made_of)), [facts])
    assert "index a whole batch of the Rows at once" in advice.title
    assert ("samples are indexed at", "train.py:7") in [(found.label, found.value) for found in advice.evidence]


@pytest.mark.parametrize(
    ("read_by", "wait", "many"),
    [
        ("Rows.__getitems__ (train.py:7)", 0.12, 0),
        ("Rows.__getitem__ (train.py:7)", 0.12, 1),
        ("Rows.__getitems__ (train.py:7)", 0.4, 1),  # 4 ms a batch: a worker would hand it over in half of that
    ],
)
def test_a_short_wait_for_whole_batches_has_no_remedy(ask, make_measured, make_facts, read_by, wait, many):
    made_of = prepared(9, 9, 1, read_by=read_by, collated_by="as_it_is (train.py:9)")
    device = DeviceFacts("cpu", usable_cores=1, torch_threads=1)
    facts = make_facts(loaders=[loader(dataset="Rows", batch_size=64)], device=device)
    measured = make_measured(device="cpu", input=waiting(wait, preparing=made_of))
    assert len(ask("DP501", measured, [facts], {"handover_ms": 2.0})) == many


def rows_of_tensors(make_facts, workers=0):
    """Two ranks with a free core each, whose steps of 10 ms wait 5 and 6 ms for 64 samples of a TensorDataset."""
    facts = waiting_ranks(make_facts, 5, 6, forms=())
    rows = loader(workers, dataset="TensorDataset", batch_size=64)
    cpu = DeviceFacts("cpu", cores=8, usable_cores=8, torch_threads=1)
    return [replace(each, loaders=[rows], device=cpu, windows=[replace(each.windows[0], sampled=[])]) for each in facts]


@pytest.mark.parametrize(
    ("sample_bytes", "workers", "at_once", "basis"),
    [
        (4096, 0, True, "timed"),
        (4097, 0, True, "bound"),
        (16384, 0, True, "bound"),
        (16385, 0, False, "timed"),  # by workers
        (4096, 2, False, "bound"),  # they may be asked for more
    ],
)
def test_small_samples_of_tensors_need_no_workers(
    ask, make_measured, make_facts, sample_bytes, workers, at_once, basis
):
    """The wait is 50 and 60 % of a step: at least half of 0.6 of the lower one is saved."""
    made_of = prepared(9, 6, 4, read_by="TensorDataset.__getitem__", collated_by="default_collate")
    made_of = made_of.model_copy(update={"tensor_bytes": 64 * sample_bytes})
    measured = make_measured(device="cpu", input=waiting(0.55, preparing=made_of))
    (advice,) = ask("DP501", measured, rows_of_tensors(make_facts, workers))
    assert ("index a whole batch of the TensorDataset at once" in advice.title) == at_once
    assert (advice.changes == []) == at_once
    assert advice.saves.basis == basis
    if at_once and basis == "timed":
        assert advice.saves.low_share == pytest.approx(0.5 * 0.6 * 0.5)
        assert advice.saves.predicted_share == pytest.approx(0.8 * 0.55, abs=0.05)


@pytest.mark.parametrize(
    ("known", "confidence", "remedy"),
    [
        ({"loaders.num_workers": "high"}, "low", "give the DataLoader workers (it has none), or"),
        ({}, "medium", "give the DataLoader more workers, or"),  # the iterator's name shows that it has some
    ],
)
def test_a_trace_alone_shows_whether_there_are_workers(ask, make_measured, make_facts, known, confidence, remedy):
    """The profiler makes a process without workers slower, but not the workers that the others wait for."""
    inferred = InferredFacts(
        facts=make_facts(loaders=[LoaderFacts(num_workers=0 if known else None)]),
        confidence={"loaders": "high", **known},
    )
    (advice,) = ask("DP501", make_measured(wait_share=0.3, inferred=inferred))
    assert (advice.confidence, remedy in advice.title) == (confidence, True)


@pytest.mark.parametrize(("least", "confidence"), [(0.051, "medium"), (0.049, "low")])
def test_a_loader_without_workers_waits_longer_than_the_profiler_can_add(
    ask, make_measured, make_facts, least, confidence
):
    inferred = InferredFacts(
        facts=make_facts(loaders=[LoaderFacts(num_workers=0)]),
        confidence={"loaders": "high", "loaders.num_workers": "high"},
    )
    waits = waiting(0.3, basis="traced", least_share=least)
    (advice,) = ask("DP501", make_measured(input=waits, inferred=inferred))
    assert advice.confidence == confidence
    label = "lower bound of the host's wait, less 10 us of profiler overhead per event"
    assert [evidence.value for evidence in advice.evidence if evidence.label == label] == [least]


@pytest.mark.parametrize(
    ("times", "shares"),
    # 5 % of the step either way; from no more than what the profiler leaves, to no more than the wait
    [(0.8, (0.15, 0.25)), (0.72, (0.22, 0.3))],
)
def test_the_first_workers_of_a_trace_are_replayed(ask, make_measured, make_facts, predict, times, shares):
    """0.3 / 0.7 of a worker keeps up, so one does, and one is to spare."""
    inferred = InferredFacts(
        facts=make_facts(loaders=[LoaderFacts(num_workers=0)]),
        confidence={"loaders": "high", "loaders.num_workers": "high"},
    )
    run = make_measured(input=waiting(0.3, basis="traced", least_share=0.22), inferred=inferred, wait_share=0.3)
    (advice,) = ask("DP501", run, predictor=predict("loader.num_workers", {2: times}))
    assert [(one.knob, one.now, one.then) for one in advice.changes] == [("loader.num_workers", 0, 2)]
    assert "give the DataLoader 2 workers (it has none), or make a batch cheaper" in advice.title
    assert (advice.saves.basis, advice.confidence) == ("replayed", "medium")
    assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx(shares)
    assert advice.saves.high_ms == pytest.approx(shares[1] * run.step.time_ns / 1e6)
    assert ("the saving is limited to the wait" in advice.saves.how) is (times < 0.8)
    assert "An IterableDataset must divide its samples among workers." in advice.watch


@pytest.mark.parametrize(
    ("workers", "remedy"),
    [(4, "about 6 workers (now probably 4), or"), (12, "more workers (now probably 12), or")],  # 17.1, more than 16
)
def test_a_trace_whose_waits_show_the_number_of_workers(ask, make_measured, make_facts, workers, remedy):
    """4 workers leave a wait of 30 %: 4 / 0.7 is 5.7."""
    inferred = InferredFacts(
        facts=make_facts(loaders=[LoaderFacts(num_workers=None)]),
        confidence={"loaders": "high"},
        traits=[Trait(name="DataLoader workers", value=f"{workers}: the longest waits", confidence="low")],
    )
    (advice,) = ask("DP501", make_measured(wait_share=0.3, inferred=inferred))
    assert f"give the DataLoader {remedy}" in advice.title


def test_workers_alone_save_no_more_than_the_longest_idle_wait_of_a_step(make_measured, hand_made):
    """Of steps of 10 ms one device waits 4 and the other 1: no replay with workers takes less than 6."""
    waits = [
        hand_made.Account(window_ns=hand_made.STEP_NS, compute_ns=hand_made.STEP_NS - ns, input_idle_ns=ns)
        for ns in (4_000_000, 1_000_000)
    ]
    measured = make_measured(spent=waits)
    traced = measured.model_copy(update={"step": measured.step.model_copy(update={"basis": "traced"})})
    assert least_ns(traced, {"loader.num_workers": 1}) == pytest.approx(0.6 * traced.step.time_ns)
    assert least_ns(traced, {"loader.num_workers": 1, "compute.times": 0.5}) == 0
    untraced = measured.model_copy(update={"step": measured.step.model_copy(update={"basis": "untraced"})})
    assert least_ns(untraced, {"loader.num_workers": 1}) == 0


def waiting_ranks(make_facts, *waits_ms, workers=0, forms=("mask",)):
    """Ranks whose steps of 10 ms wait so many ms for batches, found in `Images.__getitem__` each of 5 times."""
    costly = {f"data.py:{line}": form for form in forms for line in (12, 14)}
    cpu = DeviceFacts("cpu", cores=2, usable_cores=2, torch_threads=1)
    return [
        make_facts(
            rank=rank,
            loaders=[replace(loader(workers), costly_lines=costly)],
            device=cpu,
            windows=[replace(timed(READS, COMPUTES), loader_wait_ns=[ms * 1_000_000] * 5)],
        )
        for rank, ms in enumerate(waits_ms)
    ]


def test_without_the_slow_function_a_step_of_cpus_waits_less(ask, make_measured, make_facts):
    """Ranks wait 5 and 6 of 10 ms, all of it in one function: in 10 of 10 samples, which is 79 % at least (Wilson)."""
    measured = make_measured(device="cpu", input=waiting(0.55, computed_share=1.0))
    (advice,) = ask("DP501", measured, waiting_ranks(make_facts, 5, 6))
    assert advice.title.startswith("Make `Images.__getitem__` (data.py:14) cheaper")
    least = 1 / (1 + 1.645**2 / 10)
    assert advice.saves.basis == "sampled"
    assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx((0.7 * least * 0.5, 1.1 * 0.6))
    assert advice.saves.predicted_share == pytest.approx(0.55)
    assert advice.saves.how.startswith("if `Images.__getitem__` took no time: it takes 100 % of the time")


@pytest.mark.parametrize(
    ("device", "workers", "input_more", "busy"),
    [
        ("cuda", 0, {}, False),  # devices hide some of it
        ("cpu", 1, {}, False),  # the wait is not the time of the function
        ("cpu", 0, {"other_share": 0.7}, False),  # most of the wait is the sampler's
        ("cpu", 0, {}, True),
    ],
)
def test_elsewhere_the_wait_is_only_an_upper_bound(ask, make_measured, make_facts, device, workers, input_more, busy):
    measured = make_measured(device=device, input=waiting(0.55, computed_share=1.0, **input_more))
    (advice,) = ask("DP501", measured, waiting_ranks(make_facts, 5, 6, workers=workers), times_hold=not busy)
    assert (advice.saves.basis, advice.saves.low_share) == ("bound", 0)


def test_a_function_without_a_known_remedy_may_have_to_take_its_time(ask, make_measured, make_facts):
    measured = make_measured(device="cpu", input=waiting(0.55, computed_share=1.0))
    (advice,) = ask("DP501", measured, waiting_ranks(make_facts, 5, 6, forms=()))
    assert (advice.saves.basis, advice.saves.low_share) == ("bound", 0)


def test_a_function_that_was_timed_is_a_part_of_preparing_only(ask, make_measured, make_facts):
    """No samples: reading takes 90 % of preparing, which is three quarters of a wait of 6 ms."""
    facts = [replace(each, windows=[replace(each.windows[0], sampled=[])]) for each in waiting_ranks(make_facts, 6, 6)]
    made_of = prepared(9, 9, 1, read_by="Images.__getitem__ (data.py:12)")
    measured = make_measured(device="cpu", input=waiting(0.6, computed_share=1.0, other_share=0.25, preparing=made_of))
    (advice,) = ask("DP501", measured, facts)
    assert advice.saves.low_share == pytest.approx(0.7 * 0.9 * 0.75 * 0.6)


def test_on_a_cpu_without_a_step_model_the_first_workers_save_what_pairs_saved(ask, make_measured, make_facts):
    """Both ranks wait 4 of 10 ms: 2 ms of a batch are its hand-over, which the lower end leaves out."""
    ms = 1_000_000
    window = Window("untraced", 6, [10 * ms] * 9, loader_wait_ns=[4 * ms] * 9, loader_batches=[1] * 9)
    cpu = DeviceFacts("cpu", usable_cores=8, torch_threads=1)
    facts = [make_facts(loaders=[loader()], rank=rank, device=cpu, windows=[window]) for rank in (0, 1)]
    run = make_measured(device="cpu", wait_share=0.4)
    (advice,) = ask("DP501", run, facts, {"handover_ms": 2.0})
    assert [change.then for change in advice.changes] == [2]
    assert advice.saves.basis == "timed"
    assert advice.saves.low_share == pytest.approx(0.6 * 0.4 * (1 - 2 / 4))
    assert advice.saves.predicted_share == pytest.approx(0.9 * 0.4 * (1 - 2 / 4))
    assert advice.saves.high_share == pytest.approx(1.12 * 0.4)
    (alone,) = ask("DP501", run, facts[:1])  # the other rank was not recorded
    assert (alone.saves.basis, alone.saves.low_share) == ("bound", 0)
