"""Loops over operators: figures are made up."""

import pytest

from dptune.measured import OperatorLoop, UserCodeFigures
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.row_calls import CellLoopFacts, RowCallsFacts, SliceCallsFacts
from dptune.runfile.window import SampledFacts, Window


def looping(make_measured, basis="untraced", **changed):
    found = {
        "name": "nt_xent",
        "at": "loss.py:20",
        "phase": "forward",
        "operator": "aten::cosine_similarity",
        "repeats": 96.0,
        "rank": 1,
        "cost_ns": 1_200_000,
        "share": 0.12,
    }
    loop = OperatorLoop(**found | changed)
    return make_measured(user_code=UserCodeFigures(ranks=[0, 1], steps=2, basis=basis, sites=[], loops=[loop]))


def sampled(*lines, looks=5):
    """The training thread was found in these lines of the function, with more time in the later ones."""
    places = [
        SampledFacts(["main (train.py:9)", f"nt_xent (loss.py:{line})"], looks=looks, steps=[0], spent_ns=[at + 1])
        for at, line in enumerate(lines)
    ]
    return [Window("untraced", 3, [10_000_000] * 5, sampled=places)]


def test_the_function_the_operator_and_the_hottest_line(ask, make_measured, make_facts):
    (advice,) = ask("DP610", looping(make_measured), [make_facts(windows=sampled(24, 26, 25))])
    assert advice.title == (
        "`nt_xent` (loss.py:25) calls aten::cosine_similarity 96 times in a Python loop, 12 % of the step: use one "
        "call for the whole batch"
    )
    # Its backward pass takes up to twice as long again.
    assert (advice.saves.low_share, advice.saves.high_share) == (0, pytest.approx(0.36))
    assert (advice.confidence, advice.impact) == ("medium", "medium")


def test_beside_the_training_nothing_is_computed_backward(ask, make_measured, make_facts):
    (advice,) = ask("DP610", looping(make_measured, phase="loop"), [make_facts(windows=sampled(25, looks=2))])
    assert advice.saves.high_share == pytest.approx(0.12)
    assert "`nt_xent` (loss.py:20)" in advice.title  # two looks may be chance


def test_results_that_need_no_gradient_have_no_backward_pass(ask, make_measured, make_facts):
    (advice,) = ask("DP610", looping(make_measured, backward=False), [make_facts(windows=sampled(25))])
    assert advice.saves.high_share == pytest.approx(0.12)
    assert "backward" not in advice.why + advice.saves.how


def test_steps_with_the_profiler_tell_less(ask, make_measured, make_facts):
    (advice,) = ask("DP610", looping(make_measured, basis="traced"), [make_facts()])
    assert advice.confidence == "low"


def test_quiet_where_it_takes_little(ask, make_measured, make_facts):
    assert ask("DP610", looping(make_measured, share=0.04), [make_facts()]) == []


def on_cpu(make_measured, **changed):
    measured = looping(make_measured, **changed)
    return measured.model_copy(update={"device_kind": "cpu", "world_size": 1})


def found_in(make_facts, looks):
    """The thread was found in the function in so many of 100 looks, as often as it spends time there."""
    inside = SampledFacts(["main (train.py:9)", "nt_xent (loss.py:24)"], "forward", looks=looks, spent_ns=[looks])
    others = SampledFacts(["main (train.py:12)"], "backward", looks=100 - looks, spent_ns=[100 - looks])
    return [make_facts(windows=[Window("untraced", 3, [20] * 5, sampled=[inside, others])])]


def test_on_a_cpu_the_loop_and_its_backward_pass_go_away(ask, make_measured, make_facts):
    """20 of 100 looks: unsure by 1.645 x sqrt(0.2 x 0.8 / 100) = 0.0658; 5 % of it is computed and stays.

    The backward pass takes 1.5 times as long, 30 % more or less.
    """
    measured = on_cpu(make_measured, share=0.2, computed_share=0.05, backward_share=1.5)
    (advice,) = ask("DP610", measured, found_in(make_facts, 20))
    assert advice.saves.basis == "sampled"
    unsure = ((2.5 * 0.0658) ** 2 + (0.3 * 1.5 * 0.2) ** 2) ** 0.5
    assert advice.saves.low_share == pytest.approx(0.8 * 0.95 * (0.5 - unsure), abs=1e-3)
    assert advice.saves.high_share == pytest.approx(1.3 * (0.5 + unsure), abs=1e-3)
    assert advice.saves.predicted_share == pytest.approx(0.2 * 2.5)
    assert "`nt_xent` is in 20 stack samples, and its backward pass takes 1.5 times as long" in advice.saves.how


@pytest.mark.parametrize("changed", [{"backward_share": None}, {"computed_share": None}, {"crossing": True}])
def test_a_bound_where_the_trace_does_not_tell_what_goes_away(ask, make_measured, make_facts, changed):
    known = {"share": 0.2, "computed_share": 0.05, "backward_share": 1.5}
    (advice,) = ask("DP610", on_cpu(make_measured, **known | changed), found_in(make_facts, 20))
    assert (advice.saves.basis, advice.saves.low_share) == ("bound", 0)


def nested(make_measured, outer="epoch"):
    """A function with a loop calls another one: of 100 stack samples 60 are in the outer one, 45 of them deeper."""
    both = [
        OperatorLoop(
            name=name,
            at=f"loss.py:{line}",
            phase="loop",
            operator="aten::select",
            repeats=96.0,
            rank=0,
            cost_ns=1_200_000,
            share=0.1,
        )
        for name, line in ((outer, 10), ("inner", 20))
    ]
    return make_measured(user_code=UserCodeFigures(ranks=[0], steps=2, basis="untraced", sites=[], loops=both))


def found_at(make_facts, outer="epoch"):
    way = ["main (train.py:9)", f"{outer} (loss.py:12)"]
    places = [
        SampledFacts(way, looks=15, spent_ns=[15]),
        SampledFacts([*way, "inner (loss.py:22)"], looks=45, spent_ns=[45]),
        SampledFacts(["main (train.py:12)"], "backward", looks=40, spent_ns=[40]),
    ]
    return [make_facts(windows=[Window("untraced", 3, [20] * 5, sampled=places)])]


def test_no_moment_is_counted_for_two_loops(ask, make_measured, make_facts):
    inner, outer = ask("DP610", nested(make_measured), found_at(make_facts))
    assert inner.title.startswith("`inner` (loss.py:22)")
    assert ", 45 % of the step" in inner.title
    assert outer.title.startswith("`epoch` (loss.py:12)")
    assert ", 15 % of the step" in outer.title


def test_collecting_experience_cannot_be_one_call(ask, make_measured, make_facts):
    inner, outer = ask("DP610", nested(make_measured, "collect"), found_at(make_facts, "collect"))
    assert (inner.impact, outer.impact, outer.confidence) == ("high", "low", "low")
    assert "use one call" not in outer.title


def test_acting_in_an_environment_cannot_be_one_call(ask, make_measured, make_facts):
    """The function has no name for it, but draws actions and steps the environment."""
    windows = sampled(24, 26)
    places = [
        SampledFacts(["nt_xent (loss.py:27)"], through="torch.Categorical.sample", looks=5, steps=[0], spent_ns=[1]),
        SampledFacts(["nt_xent (loss.py:28)", "River.step (loss.py:4)"], looks=5, steps=[0], spent_ns=[1]),
    ]
    windows[0].sampled += places
    (advice,) = ask("DP610", looping(make_measured), [make_facts(windows=windows)])
    assert (advice.impact, advice.confidence) == ("low", "low")
    assert "step many environments" in advice.watch


@pytest.mark.parametrize(
    ("batch", "alone", "impact", "confidence"),
    [
        (48, True, "medium", "medium"),
        (96, True, "medium", "medium"),
        (96, False, "low", "low"),
        (40, True, "low", "low"),
    ],
)
def test_a_module_for_each_sample(ask, make_measured, make_facts, batch, alone, impact, confidence):
    """96 calls are of each sample of one or two batches, or it is not known that none needs the one before."""
    loaders = [LoaderFacts(batch_size=batch, batches_drawn=9)]
    run = looping(make_measured, module="Sequential", alone=alone)
    (advice,) = ask("DP610", run, [make_facts(windows=sampled(25), loaders=loaders)])
    assert advice.title.startswith(
        "`nt_xent` (loss.py:25) calls Sequential 96 times in a Python loop, 12 % of the step"
    )
    assert (advice.impact, advice.confidence) == (impact, confidence)
    assert advice.title.endswith("for the whole batch" if impact == "medium" else "needs the result of the one before")


def test_evaluation_calls_the_model_in_a_loop(ask, make_measured, make_facts):
    assert ask("DP610", looping(make_measured, module="Net", name="evaluate"), [make_facts()]) == []


@pytest.mark.parametrize(
    ("operator", "layer"),
    [("aten::lstm_cell", "nn.LSTM"), ("aten::gru_cell", "nn.GRU"), ("aten::rnn_tanh_cell", "nn.RNN")],
)
def test_cells_over_a_sequence_have_a_layer(ask, make_measured, make_facts, operator, layer):
    known = make_facts(cell_loops=[CellLoopFacts("Net.nt_xent", "loss.py:20", inputs_known=True)])
    (advice,) = ask("DP610", looping(make_measured, operator=operator), [known])
    assert advice.title.endswith(f"12 % of the step: use {layer} for the whole sequence")
    assert "whole batch" not in advice.title
    assert "weight_ih_l0" in advice.watch
    assert (advice.impact, advice.confidence) == ("medium", "medium")
    (unsure,) = ask("DP610", looping(make_measured, operator=operator), [make_facts()])
    assert unsure.title.endswith(f": use {layer} if all inputs are known before the loop")
    assert (unsure.impact, unsure.confidence) == ("low", "low")


def test_cells_that_need_the_output_before_are_no_finding(ask, make_measured, make_facts):
    needed = make_facts(cell_loops=[CellLoopFacts("Net.nt_xent", "loss.py:20", inputs_known=False)])
    assert ask("DP610", looping(make_measured, operator="aten::gru_cell"), [needed]) == []
    assert len(ask("DP610", looping(make_measured), [needed])) == 1  # other operators of the function


def computing(make_measured, **changed):
    """62 % of the operators' time is compute: 9.3 ms."""
    return looping(make_measured, least_computed_share=0.62, least_computed_ns=9_300_000, **changed)


def test_a_loop_that_computes_is_not_made_quicker_by_one_call(ask, make_measured, make_facts):
    (advice,) = ask("DP610", computing(make_measured, share=0.4), [make_facts(windows=sampled(25))])
    assert advice.title == (
        "`nt_xent` (loss.py:25) calls aten::cosine_similarity 96 times in a Python loop, 40 % of the step, mostly "
        "compute (at least 9.30 ms in a traced step): compute results that recur once"
    )
    assert "one call for the whole batch computes the same" in advice.why
    assert (advice.impact, advice.confidence, advice.saves.low_share) == ("medium", "low", 0)
    assert "If none recurs, there is little to save" in advice.watch


@pytest.mark.parametrize(("computed_share", "computes"), [(0.04, False), (0.06, True), (None, True)])
def test_operators_on_small_tensors_are_slow_but_compute_little(
    ask, make_measured, make_facts, computed_share, computes
):
    """On a busy machine: 62 % of their time is beyond that of a call; by their inputs it is 4 %, or ten times that."""
    measured = computing(make_measured, share=0.4, computed_share=computed_share)
    (advice,) = ask("DP610", measured, [make_facts(windows=sampled(25))])
    assert ("mostly compute" in advice.title) == computes
    values = {one.label: one.value for one in advice.evidence}
    assert values["compute, at least"] == pytest.approx(min(0.62, 10 * (computed_share or 1)))


def test_the_saving_of_a_loop_that_computes_has_no_lower_bound(ask, make_measured, make_facts):
    measured = on_cpu(make_measured, share=0.2, computed_share=0.05, backward_share=1.5)
    (small,) = ask("DP610", measured, found_in(make_facts, 20))
    loops = [loop.model_copy(update={"least_computed_share": 0.5}) for loop in measured.user_code.loops]
    measured = measured.model_copy(update={"user_code": measured.user_code.model_copy(update={"loops": loops})})
    (advice,) = ask("DP610", measured, found_in(make_facts, 20))
    assert small.saves.low_share > 0
    assert (advice.saves.basis, advice.saves.low_share) == ("bound", 0)
    assert advice.saves.high_share == pytest.approx(small.saves.high_share)


@pytest.mark.parametrize("changed", [{"least_computed_share": 0.3}, {"operator": "aten::lstm_cell"}])
def test_small_operators_and_cells_keep_their_remedies(ask, make_measured, make_facts, changed):
    measured = looping(make_measured, **{"least_computed_share": 0.9, "least_computed_ns": 1, **changed})
    (advice,) = ask("DP610", measured, [make_facts(cell_loops=[CellLoopFacts("nt_xent", "loss.py:20", True)])])
    assert "compute results" not in advice.title
    assert "for the whole" in advice.title
    assert advice.confidence == "medium"


def test_checks_that_mostly_compute_can_still_go(ask, make_measured, make_facts):
    (advice,) = ask("DP610", computing(make_measured, operator="aten::any", checks=True, share=0.4), [make_facts()])
    assert "40 % of the step: check the loss" in advice.title
    assert (advice.impact, advice.confidence) == ("high", "medium")


def test_checks_of_single_tensors_need_one_check(ask, make_measured, make_facts):
    (advice,) = ask("DP610", looping(make_measured, operator="aten::any", checks=True), [make_facts()])
    assert advice.title.endswith(
        "12 % of the step: check the loss, or one norm of all tensors (torch._foreach_norm), or check every N steps"
    )
    assert "whole batch" not in advice.title + advice.watch
    assert "waits for its result" in advice.why


def copied(make_facts, form="copy", looks=60):
    """A function that copies the state of the model, in 60 of 200 stack samples."""
    update = SampledFacts(
        ["main (train.py:9)", "Best.update (best.py:24)"],
        through="deepcopy",
        looks=looks,
        steps=list(range(20)),
        spent_ns=[looks * 50_000] * 20,
        form=form,
        form_at=1 if form else 0,
    )
    rest = SampledFacts(
        ["main (train.py:8)"], looks=200 - looks, steps=list(range(20)), spent_ns=[(200 - looks) * 50_000] * 20
    )
    return make_facts(windows=[Window("untraced", 3, [10_000_000] * 20, sampled=[update, rest])])


def test_a_state_that_is_copied_is_copied_less_often(ask, make_measured, make_facts):
    """Although most of it is compute, which copies are: none of them is needed."""
    changed = {"name": "update", "at": "best.py:20", "phase": "loop", "operator": "aten::copy_", "rank": 0}
    computed = {"computed_share": 0.9, "least_computed_share": 0.8, "least_computed_ns": 2_000_000}
    measured = on_cpu(make_measured, **changed, **computed)
    (advice,) = ask("DP610", measured, [copied(make_facts)])
    assert "in a Python loop, " in advice.title
    assert advice.title.endswith(": copy less often, for example once per evaluation")
    assert "compute" not in advice.title
    assert (advice.confidence, advice.saves.basis) == ("medium", "sampled")
    assert advice.saves.low_share > 0.15
    (other,) = ask("DP610", measured, [copied(make_facts, form="")])
    assert other.title.endswith("compute results that recur once")


def test_cells_whose_compute_is_not_known_have_a_bound(ask, make_measured, make_facts):
    """By sizes all of it may be compute, but the layer still saves the calls."""
    measured = on_cpu(make_measured, share=0.2, computed_share=1.0, backward_share=1.5, operator="aten::lstm_cell")
    (advice,) = ask("DP610", measured, found_in(make_facts, 20))
    assert (advice.saves.basis, advice.saves.high_share) == ("bound", pytest.approx(0.6))
    assert "use nn.LSTM" in advice.title


ROWS = RowCallsFacts("Policy.act", "train.py:69", "Policy", items=4, calls=176)
WAY = ["main (train.py:130)", "collect (train.py:81)"]


def acting(make_facts, looks=60):
    """So many of 100 stack samples are in calls of a policy for one environment, the others in the backward pass."""
    places = [
        SampledFacts([*WAY, "each (train.py:69)", "Policy.act (train.py:64)"], looks=looks, spent_ns=[looks]),
        SampledFacts([*WAY], looks=3, spent_ns=[3]),
        SampledFacts(["main (train.py:12)"], "backward", looks=97 - looks, spent_ns=[97 - looks]),
    ]
    return [make_facts(windows=[Window("untraced", 3, [20] * 5, sampled=places)], row_calls=[ROWS])]


def test_a_module_that_is_called_with_one_row_for_each_item(ask, make_measured, make_facts):
    """Three of four calls go away: 45 % of the step. The functions around and inside are not named again."""
    collect = {"name": "collect", "at": "train.py:77", "rank": 0, "share": 0.3}
    (advice,) = ask("DP610", looping(make_measured, **collect), acting(make_facts))
    assert advice.title == (
        "`Policy.act` (train.py:69) is called 176 times in a step with one row each, 60 % of the step: stack the 4 "
        "rows of each loop and call it once"
    )
    assert (advice.saves.basis, advice.saves.high_share) == ("bound", pytest.approx(0.45))
    assert (advice.impact, advice.confidence) == ("high", "medium")


def test_rows_that_take_little_or_no_samples(ask, make_measured, make_facts):
    none = make_measured(user_code=UserCodeFigures(ranks=[0, 1], steps=2, basis="untraced", sites=[]))
    assert ask("DP610", none, acting(make_facts, looks=3)) == []
    assert ask("DP610", none, [make_facts(row_calls=[ROWS])]) == []


@pytest.mark.parametrize(("share", "told"), [(0.01, 0), (0.3, 1)])
def test_what_is_repeated_is_a_part_of_the_function(ask, make_measured, make_facts, share, told):
    """63 of 100 stack samples are in the function, but the operators that it repeats take 1 % of the step."""
    own = acting(make_facts)
    own[0].row_calls = []
    collect = {"name": "collect", "at": "train.py:77", "rank": 0, "share": share}
    assert len(ask("DP610", looping(make_measured, **collect), own)) == told


def of_slices(make_facts, **changed):
    found = {"function": "Net.nt_xent", "at": "loss.py:20", "where": "loss.py:25", "module": "Sequential", "slices": 6}
    return make_facts(slice_calls=[SliceCallsFacts(**{**found, "calls": 6, **changed})])


def test_a_module_that_is_called_for_one_slice_after_the_other(ask, make_measured, make_facts):
    run = looping(make_measured, module="Sequential", repeats=6.0, share=0.3, alone=False)
    (advice,) = ask("DP610", run, [of_slices(make_facts)])
    assert advice.title == (
        "`nt_xent` (loss.py:25) calls Sequential 6 times in a Python loop, 30 % of the step: the calls are for slices "
        "of one tensor and none needs the one before, so use one call for all slices"
    )
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "medium", "same")
    (of_norms,) = ask("DP610", run, [of_slices(make_facts, norms=True)])
    assert (of_norms.numerics, of_norms.watch.startswith("BatchNorm layers then")) == ("changes", True)


@pytest.mark.parametrize("changed", [{"at": "loss.py:50"}, {"module": "Linear"}, {"function": "Net.forward"}])
def test_few_calls_of_a_module_are_no_loop_where_slices_are_others(ask, make_measured, make_facts, changed):
    run = looping(make_measured, module="Sequential", repeats=6.0, share=0.3, alone=False)
    assert ask("DP610", run, [of_slices(make_facts, **changed)]) == []
    assert ask("DP610", run, [make_facts()]) == []


def test_few_calls_that_mostly_compute_are_no_loop(ask, make_measured, make_facts):
    computing = {"computed_share": 0.9, "least_computed_share": 0.8, "least_computed_ns": 100}
    run = looping(make_measured, module="Sequential", repeats=6.0, cost_ns=13_000_000, share=0.3, **computing)
    assert ask("DP610", run, [of_slices(make_facts)]) == []
    run = looping(make_measured, module="Sequential", repeats=6.0, cost_ns=11_000_000, share=0.3, **computing)
    (short,) = ask("DP610", run, [of_slices(make_facts)])
    assert (short.impact, short.saves.basis, short.saves.low_share) == ("medium", "bound", 0)
    assert "mostly compute" not in short.title


def siblings(make_facts, looks, calls=48):
    """So many of 100 stack samples are at the line that calls 12 heads."""
    found = SliceCallsFacts("Attention.forward", "net.py:30", "net.py:31", "Head", 12, calls, siblings=True)
    places = [
        SampledFacts(["main (train.py:9)", "Attention.forward (net.py:31)"], "forward", looks=looks, spent_ns=[looks]),
        SampledFacts(["main (train.py:12)"], "backward", looks=100 - looks, spent_ns=[100 - looks]),
    ]
    return [make_facts(windows=[Window("untraced", 3, [20] * 5, sampled=places)], slice_calls=[found])]


def test_like_modules_on_the_same_input(ask, make_measured, make_facts):
    none = make_measured(user_code=UserCodeFigures(ranks=[0, 1], steps=2, basis="untraced", sites=[]))
    (advice,) = ask("DP610", none, siblings(make_facts, 30))
    assert advice.title == (
        "12 modules of class `Head` are called on the same input one after the other (net.py:31), 30 % of the step in "
        "the forward pass: compute all of them in one module"
    )
    assert (advice.impact, advice.confidence, advice.saves.basis) == ("medium", "medium", "bound")
    assert advice.saves.high_share == pytest.approx(0.9 * 11 / 12)
    assert ask("DP610", none, siblings(make_facts, 2)) == []
    assert ask("DP610", none, siblings(make_facts, 30, calls=1)) == []  # 3 of 10 ms


def test_like_modules_within_like_modules_are_named_with_these(ask, make_measured, make_facts):
    """Each head calls three layers on its input, at one line."""
    none = make_measured(user_code=UserCodeFigures(ranks=[0, 1], steps=2, basis="untraced", sites=[]))
    (facts,) = siblings(make_facts, 30, calls=1)
    inner = SliceCallsFacts("Head.forward", "net.py:10", "net.py:12", "Linear", 36, 144, siblings=True)
    path = ["main (train.py:9)", "Attention.forward (net.py:31)", "Head.forward (net.py:12)"]
    facts.window("untraced").sampled.append(SampledFacts(path, "forward", looks=20, spent_ns=[20]))
    facts.slice_calls.append(inner)
    (advice,) = ask("DP610", none, [facts])
    assert "modules of class `Head`" in advice.title
