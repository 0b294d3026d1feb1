import pytest

from dptune.measured import Missing
from dptune.runfile.library_calls import LibraryCallFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.window import SampledFacts, Window


def facts(make_facts, *durations_ms, **more):
    return [make_facts(windows=[Window("untraced", 3, [int(ms * 1e6) for ms in durations_ms])], **more)]


def test_one_step_in_five(ask, make_measured, make_facts):
    """Three steps of 50 ms among 12 of 10: they take 120 of 270 ms longer."""
    (advice,) = ask("DP703", make_measured(), facts(make_facts, *[10, 10, 50, 10, 10] * 3))
    assert advice.title == "One step in 5 takes 5.0 times as long as the others: 44 % of the time"
    assert advice.saves.high_share == pytest.approx(120 / 270)
    assert (advice.saves.mean_step_ms, advice.saves.high_ms) == (pytest.approx(18), pytest.approx(8))
    assert (advice.impact, advice.confidence, advice.saves.basis) == ("high", "high", "bound")
    assert [one.value for one in advice.evidence] == [3, 5, 50.0, 10.0, 18.0]
    assert advice.why.startswith("The mean step takes 18.0 ms, the median step 10.0 ms.")


@pytest.mark.parametrize(
    "durations",
    [
        [10, 50, 10, 10, 50, 10, 10, 10, 50, 10, 10],  # at no one distance
        [10, 50, 10, 10, 50, 10, 10],  # two are too few
        [10, 14, 10, 10, 14, 10, 10, 14, 10],
        [10] * 12,
        [10, *[50, 50, 50], *[10] * 8],  # one after the other
        [*[10] * 8, 50, 10, 50, 10, 50],  # none of them in the first half
    ],
)
def test_quiet(ask, make_measured, make_facts, durations):
    assert ask("DP703", make_measured(), facts(make_facts, *durations)) == []


def test_workers_that_restart_have_a_rule_of_their_own(ask, make_measured, make_facts):
    steps = [10, 10, 50, 10, 10] * 3
    short = {"num_workers": 2, "batch_size": 8, "dataset_samples": 80, "distributed_sampler": True}  # 5 a rank
    short["batches_drawn"] = 9
    for loader, many in (
        (LoaderFacts(persistent_workers=False, **short), 0),
        (LoaderFacts(persistent_workers=True, **short), 1),
        (LoaderFacts(persistent_workers=False, **{**short, "dataset_samples": 8000}), 1),
    ):
        assert len(ask("DP703", make_measured(), facts(make_facts, *steps, loaders=[loader]))) == many


def test_epochs_are_counted_in_steps(ask, make_measured, make_facts):
    """Ten batches are five steps of two: what comes every ten steps is not the beginning of epochs."""
    loader = LoaderFacts(
        num_workers=2, batch_size=8, dataset_samples=160, distributed_sampler=True, persistent_workers=False
    )
    loader.batches_drawn = 60
    for steps, many in (([10, 10, 50, 10, 10] * 3, 0), (([10] * 4 + [50] + [10] * 5) * 3, 1)):
        own = facts(make_facts, *steps, loaders=[loader])
        own[0].windows[0].loader_batches = [2] * len(steps)
        assert len(ask("DP703", make_measured(), own)) == many


def test_steps_of_a_gpu_are_timed_on_it(ask, make_measured, make_facts):
    """The script reads a value back every fifth step, and catches up with what it had queued."""
    own = facts(make_facts, *[10, 10, 10, 10, 460] * 4)
    assert len(ask("DP703", make_measured(), own)) == 1
    own[0].windows[0].device_durations_ns = [100_000_000] * 20
    assert ask("DP703", make_measured(), own) == []


def test_garbage_has_a_rule_of_its_own(ask, make_measured, make_facts):
    own = facts(make_facts, *[10, 10, 50, 10, 10] * 3)
    own[0].windows[0].gc_ns = [0, 0, 39_000_000, 0, 0] * 3
    assert ask("DP703", make_measured(), own) == []


def test_it_says_what_it_does_not_know(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="no untraced steps were timed"):
        ask("DP703", make_measured(), [make_facts()])


WAY = ["main (train.py:9)", "fit (train.py:44)"]


def place(*calls, spent, phase="", through="", kind="", base=WAY[:1]):
    """Found there for so many ms in each of the steps."""
    steps = sorted(spent)
    ns = [int(spent[at] * 1e6) for at in steps]
    return SampledFacts([*base, *calls], phase, through, kind, len(steps), steps, ns)


def run_of(make_facts, slow, steps=25, usual_ms=10, rank=0, **more):
    """Steps of 10 ms in backward, and `slow`: a place to the steps that are longer by it, with by how many ms."""
    durations = [usual_ms + sum(spent.get(at, 0) for _, spent in slow) for at in range(steps)]
    window = Window("untraced", 3, [int(ms * 1e6) for ms in durations])
    window.sampled = [place("fit (train.py:44)", spent=dict.fromkeys(range(steps), usual_ms), phase="backward")]
    window.sampled += [place(*calls, spent=spent, **where) for (calls, where), spent in slow]
    return make_facts(windows=[window], rank=rank, **more)


def every(period, first, ms, steps=25):
    return dict.fromkeys(range(first, steps, period), ms)


EVALUATION = ("fit (train.py:51)", "evaluate (train.py:20)"), {"phase": "forward", "through": "torch.Module.forward"}
CHECKPOINT = ("fit (train.py:54)",), {"through": "torch.save", "kind": "saving"}


def test_two_periods_over_one_another_are_named_with_their_lines(ask, make_measured, make_facts):
    """25 steps of 10 ms; 5 evaluations of 200 ms and 6 checkpoints of 100: 1,000 and 600 of 1,850 ms."""
    slow = [(EVALUATION, every(5, 4, 200)), (CHECKPOINT, every(4, 3, 100))]
    waits = [((("fit (train.py:44)",), {"phase": "backward"}), {**every(4, 3, 100), **every(5, 4, 200)})]
    ranks = [run_of(make_facts, slow), run_of(make_facts, waits, rank=1)]
    evaluation, checkpoint = ask("DP703", make_measured(world=2), ranks)
    assert evaluation.title == "`evaluate` (train.py:51) adds 200.0 ms to one step in 5 on rank 0: 54 % of the time"
    assert checkpoint.title == "`torch.save` (train.py:54) adds 100.0 ms to one step in 4 on rank 0: 32 % of the time"
    # Evaluations take 200 ms each, and a checkpoint comes in one of their steps: 1,000 of 1,850 ms, timed 1,100.
    assert evaluation.saves.basis == "timed"
    assert evaluation.saves.low_share == pytest.approx(0.8 * 1000 / 1850)
    assert evaluation.saves.high_share == pytest.approx(1.1 * 1100 / 1850)
    # One checkpoint in 4 steps makes 6.25 in 25, and 6 were seen: 625 of 1,875 ms. Their steps took 800 ms longer:
    # what was found there, 600, is more than two thirds of that.
    assert checkpoint.saves.low_share == pytest.approx(0.8 * 625 / 1875)
    assert checkpoint.saves.high_share == pytest.approx(1.1 * 0.4324 * 1.04167 / (1 + 0.4324 * 0.04167), abs=1e-4)
    assert "async_save" in checkpoint.remedy
    why = "The mean step takes 74.0 ms, the median step 10.0 ms. All ranks wait for it. Most of it is at train.py:20."
    assert evaluation.why == why
    assert len({evaluation.fingerprint, checkpoint.fingerprint}) == 2


def test_evaluation_by_a_library_is_named_by_its_function(ask, make_measured, make_facts):
    """25 steps of 10 ms, all from one line; in every fifth the library evaluates for 90 ms: 450 of 700."""
    train = {"through": "transformers.Trainer.train"}
    evaluates = {"through": "transformers.Trainer.evaluate", "kind": "evaluation", "phase": "forward"}
    window = Window("untraced", 3, [(100 if at % 5 == 4 else 10) * 10**6 for at in range(25)])
    window.sampled = [
        place(spent=dict.fromkeys(range(25), 6), phase="forward", **train),
        place(spent=dict.fromkeys(range(25), 4), phase="backward", **train),
        place(spent=every(5, 4, 90), **evaluates),
    ]
    (advice,) = ask("DP703", make_measured(world=1), [make_facts(windows=[window])])
    assert (
        advice.title == "`transformers.Trainer.evaluate` (train.py:9) adds 90.0 ms to one step in 5: 64 % of the time"
    )
    assert advice.remedy == "Evaluate less often, on fewer samples, or in another job."
    (advice,) = ask("DP703", make_measured(world=1), [make_facts(windows=[window], keeps_logits="train.py:7")])
    assert "The Trainer (train.py:7) keeps all logits of the evaluation for `compute_metrics`: pass" in advice.remedy


def of_lightning(make_facts, *saved):
    """25 steps of 10 ms by a library; in every fifth it takes 60 ms more, of which it saves for 30 if in `saved`."""
    window = Window("untraced", 3, [(70 if at % 5 == 4 else 10) * 10**6 for at in range(25)])
    fit = {"through": "lightning.Trainer.fit"}
    spent = {at: 4 + (60 - 30 * (at in saved) if at % 5 == 4 else 0) for at in range(25)}
    window.sampled = [
        place(spent=dict.fromkeys(range(25), 6), phase="backward", **fit),
        place(spent=spent, **fit),
        *([place(spent=dict.fromkeys(saved, 30), through="torch.save", kind="saving")] if saved else []),
    ]
    keeps = LibraryCallFacts("ModelCheckpoint", "train.py:5", {"every_n_train_steps": "train.py:6"})
    return [make_facts(windows=[window], library_calls=[keeps])]


def test_what_a_library_does_around_saving_is_part_of_it(ask, make_measured, make_facts):
    (advice,) = ask("DP703", make_measured(world=1), of_lightning(make_facts, 4, 9, 14, 19, 24))
    assert advice.title == "`torch.save` (train.py:9) adds 60.0 ms to one step in 5: 55 % of the time"
    assert "How often is set at train.py:6." in advice.remedy
    assert advice.saves.basis == "timed"


def test_what_a_library_does_for_no_known_purpose_is_not_called_saving(ask, make_measured, make_facts):
    (advice,) = ask("DP703", make_measured(world=1), of_lightning(make_facts))
    assert advice.title == "`lightning.Trainer.fit` (train.py:9) adds 60.0 ms to one step in 5: 55 % of the time"
    assert advice.remedy == ""
    apart = ask("DP703", make_measured(world=1), of_lightning(make_facts, 4))  # it saves in one of the five
    assert [(one.title.split()[0], one.evidence[0].value) for one in apart] == [
        ("`lightning.Trainer.fit`", 5),
        ("`torch.save`", 1),
    ]


def test_collecting_experience_is_part_of_the_method(ask, make_measured, make_facts):
    slow = [((("fit (train.py:51)", "rollout (train.py:20)"), {}), every(5, 4, 40))]
    (advice,) = ask("DP703", make_measured(world=1), [run_of(make_facts, slow)])
    assert advice.title.startswith("`rollout` (train.py:51) collects experience and adds 40.0 ms to one step in 5:")
    assert (advice.impact, advice.confidence) == ("low", "low")


def test_experience_is_known_by_what_collects_it(ask, make_measured, make_facts):
    """Of 40 ms in one step of 5, actions are drawn for 25 and the environment steps for 15."""

    def of(through, called):
        lines = ("fit (train.py:51)", "gather (train.py:20)")
        slow = [((lines, {"through": through}), every(5, 4, 25)), (((*lines, called), {}), every(5, 4, 15))]
        return ask("DP703", make_measured(world=1), [run_of(make_facts, slow)])

    (advice,) = of("torch.Categorical.sample", "River.step (water.py:7)")
    assert advice.title.startswith("`gather` (train.py:51) collects experience and adds 40.0 ms to one step in 5:")
    assert (advice.impact, advice.confidence) == ("low", "low")
    (advice,) = of("torch.randn_like", "Schedule.step (noise.py:7)")  # previews of a diffusion model
    assert advice.title.startswith("`gather` (train.py:51) adds 40.0 ms to one step in 5:")
    assert (advice.impact, advice.confidence) == ("high", "high")


def test_two_that_are_slow_are_called_some_steps(ask, make_measured, make_facts):
    """Two in 25 do not show a period; that a function of the script runs in them is seen all the same."""
    (advice,) = ask("DP703", make_measured(world=1), [run_of(make_facts, [(EVALUATION, {6: 200, 17: 200})])])
    assert advice.title == "`evaluate` (train.py:51) adds 200.0 ms to some steps: 62 % of the time"
    assert (advice.confidence, advice.evidence[0].value) == ("medium", 2)


@pytest.mark.parametrize(("at", "share"), [(6, 200 / 390), (20, 200 / 420)])
def test_what_is_seen_once_may_come_that_often_and_no_more(ask, make_measured, make_facts, at, share):
    """The window starts with step 3: 19 steps from the seventh to the end, or 22 before the twenty-first."""
    (advice,) = ask("DP703", make_measured(world=1), [run_of(make_facts, [(EVALUATION, {at: 200})])])
    up_to = f"up to {100 * share:.0f} % of the time"
    assert advice.title == f"`evaluate` (train.py:51) adds 200.0 ms to one of 25 timed steps: {up_to}"
    assert (advice.saves.basis, advice.saves.high_share) == ("bound", pytest.approx(share))
    assert advice.confidence == "medium"


def test_a_function_that_is_called_once_may_be_a_preparation(ask, make_measured, make_facts):
    slow = [((("fit (train.py:51)", "tables (train.py:20)"), {}), {6: 200})]
    (advice,) = ask("DP703", make_measured(world=1), [run_of(make_facts, slow)])
    assert advice.confidence == "low"


def test_small_batches_of_evaluation_are_named(ask, make_measured, make_facts):
    training = LoaderFacts(where="train.py:30", batch_size=16, batches_drawn=40)
    for size, many in ((1, 1), (16, 0)):
        held_out = LoaderFacts(where="train.py:33", batch_size=size, batches_drawn=50)
        own = run_of(make_facts, [(EVALUATION, every(5, 4, 200))])
        own.loaders = [training, held_out]
        (advice,) = ask("DP703", make_measured(world=1), [own])
        assert advice.remedy.count("Its loader (train.py:33) has `batch_size=1`, training 16") == many


def test_an_evaluation_with_gradients_enabled_runs_without_them_first(ask, make_measured, make_facts):
    ours = run_of(make_facts, [(EVALUATION, every(5, 4, 200)), (CHECKPOINT, every(4, 3, 100))])
    ours.evaluates_with_graphs = "evaluate (train.py:18)"
    evaluation, checkpoint = ask("DP703", make_measured(world=1), [ours])
    assert evaluation.remedy.startswith(
        "Run it under `torch.no_grad()`: gradients are enabled in evaluate (train.py:18), so each forward pass builds "
        "a graph that no backward pass uses. Evaluate less often"
    )
    assert "no_grad" not in checkpoint.remedy


@pytest.mark.parametrize(("function", "named"), [("Model.long_runs", 1), ("Model.other", 0)])
def test_an_evaluation_inside_a_hook_is_known_by_the_function_that_puts_the_model_into_its_mode(
    ask, make_measured, make_facts, function, named
):
    path = ("fit (train.py:44)", "Model.on_train_batch_end (train.py:52)", "Model.long_runs (train.py:20)")
    ours = run_of(make_facts, [((path, {}), every(5, 4, 200))])
    ours.evaluates_with_graphs = f"{function} (train.py:18)"
    (advice,) = ask("DP703", make_measured(world=1), [ours])
    assert advice.title.startswith("`Model.on_train_batch_end` (train.py:52)")
    assert advice.remedy.count("Run it under `torch.no_grad()`") == named


@pytest.mark.parametrize(
    "hiccups",
    [
        [((("fit (train.py:44)",), {"phase": "forward"}), {4: 90, 11: 70, 13: 90})],  # the machine, in a usual place
        [(EVALUATION, {6: 20})],  # once, less than a tenth of the time
        [((("fit (train.py:44)",), {"phase": "backward"}), {4: 90, 11: 90})],  # waiting for others
    ],
)
def test_what_the_machine_does_now_and_then_is_not_blamed_on_a_line(ask, make_measured, make_facts, hiccups):
    ranks = [run_of(make_facts, hiccups), run_of(make_facts, [], rank=1)]
    assert ask("DP703", make_measured(world=2), ranks) == []


@pytest.mark.parametrize(
    ("steps", "missing", "hiccups"), [(40, [19], [11, 18]), (30, [19], []), (30, [], [11, 18]), (15, [], [])]
)
def test_a_period_shows_on_a_busy_machine(ask, make_measured, make_facts, steps, missing, hiccups):
    """Steps of 8 to 13 ms, and a checkpoint every 5."""
    durations = [8 + at * 7 % 6 for at in range(steps)]
    for at in {*range(4, steps, 5), *hiccups} - {*missing}:
        durations[at] += 60
    (advice,) = ask("DP703", make_measured(), facts(make_facts, *durations))
    assert advice.title.startswith("One step in 5 takes")


def test_where_training_is_too_short_to_be_seen_the_loop_is_what_all_places_share(ask, make_measured, make_facts):
    """Only logging and evaluation were seen, which the same function calls."""
    window = Window("untraced", 3, [int((210 if at % 3 == 2 else 10) * 1e6) for at in range(15)])
    window.sampled = [
        place("fit (train.py:23)", "log (train.py:5)", spent=dict.fromkeys(range(15), 9)),
        place("fit (train.py:25)", "evaluate (train.py:8)", spent=every(3, 2, 200, 15)),
    ]
    (advice,) = ask("DP703", make_measured(world=1), [make_facts(windows=[window])])
    assert advice.title.startswith("`evaluate` (train.py:25) adds 200.0 ms to one step in 3:")


@pytest.mark.parametrize(("through", "kind"), [("_releaseLock", "logging"), ("Event.wait", ""), ("Thread.join", "")])
def test_a_lock_or_a_wait_is_no_cause(ask, make_measured, make_facts, through, kind):
    """Five steps wait 40 ms in a function of the script's line: the line is named, not the lock, and no logging."""
    waits = (("fit (train.py:60)",), {"through": through, "kind": kind}), every(5, 4, 40)
    (advice,) = ask("DP703", make_measured(world=1), [run_of(make_facts, [waits])])
    assert advice.title == "train.py:60 adds 40.0 ms to one step in 5: 44 % of the time"
    assert advice.remedy == ""


def test_workers_that_a_training_library_starts_are_no_logging(ask, make_measured, make_facts):
    """A fork releases the lock of logging; all places have one line of the script, which calls the library."""
    window = Window("untraced", 3, [(60 if at % 6 == 1 else 10) * 10**6 for at in range(20)], loader_batches=[1] * 20)
    window.sampled = [
        place(spent=dict.fromkeys(range(20), 8), phase="optimizer", through="pytorch_lightning.Trainer.fit"),
        place(spent=every(6, 1, 30, 20), phase="loader", through="pytorch_lightning.Trainer.fit"),
        place(spent=every(6, 1, 20, 20), phase="loader", through="_releaseLock", kind="logging"),
    ]
    loader = LoaderFacts("train.py:9", batch_size=8, num_workers=2, persistent_workers=False, batches_drawn=20)
    loader.dataset_samples = 48
    own = [make_facts(windows=[window], loaders=[loader])]
    assert ask("DP703", make_measured(world=1), own) == []
    (advice,) = ask("DP502", make_measured(world=1), own)
    assert advice.title == "An epoch has 6 batches, and restarts 2 workers: 50 % of the time"


def test_a_model_that_is_trained_in_one_step_of_three_is_part_of_the_method(ask, make_measured, make_facts):
    """A generator, whose passes are in the loop itself. An evaluation there has no backward pass."""
    forward = (("fit (train.py:94)", "Generator.forward (gan.py:5)"), {"phase": "forward"}), every(3, 2, 20)
    backward = (("fit (train.py:96)",), {"phase": "backward", "through": "torch.Tensor.backward"}), every(3, 2, 30)
    assert ask("DP703", make_measured(world=1), [run_of(make_facts, [forward, backward])]) == []
    (advice,) = ask("DP703", make_measured(world=1), [run_of(make_facts, [forward])])
    assert advice.title.startswith("`Generator.forward` (train.py:94) adds 20.0 ms to one step in 3")
