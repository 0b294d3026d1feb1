from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.commands.shared.reading import measured_of
from dptune.measured import MemoryFigures, Missing, ShardingFigures
from dptune.predicted import MemoryPrediction
from dptune.rule import UNVALIDATED, RunView
from dptune.runfile.communication import DdpFacts, FsdpFacts
from dptune.runfile.discarded_gradients import DiscardedGradientFacts
from dptune.runfile.facts import DeviceFacts, OptimizerFacts
from dptune.runfile.window import Window
from dptune_rules.communication.no_sync_missing import check

from .conftest import ask_rule

RUNS = Path(__file__).parent / "recorded" / "runs"
DDP = DdpFacts("Net", "train.py:31")
MICRO_BATCHES = Window("untraced", 5, [10] * 3, loader_batches=[4] * 3, backwards=[4] * 3)


def test_an_upper_bound_is_in_the_title_up_to_half_of_the_step(ask, make_measured, make_all_reduce, make_facts):
    """40 % exposed and 10 % hidden communication of a step of 10 ms, of which one all-reduce of 0.3 ms stays."""
    measured = make_measured(exposed_share=0.4, synchronised=4, collectives=[make_all_reduce(2**20, 4, 300_000)])
    (advice,) = ask("DP102", measured, [make_facts(ddp=[DDP], windows=[MICRO_BATCHES])])
    assert advice.title.endswith("the others take up to 47 % of a step")


def test_four_synchronised_passes_for_one_step(ask, make_measured, make_all_reduce, make_facts):
    measured = make_measured(exposed_share=0.6, synchronised=4, collectives=[make_all_reduce(2**20, 4, 300_000)])
    (advice,) = ask("DP102", measured, [make_facts(ddp=[DDP], windows=[MICRO_BATCHES])])
    assert advice.title == (
        "Gradients are all-reduced 4 times per optimizer step; once is enough: the others take a large, unknown part "
        "of a step"
    )
    # 60 % exposed and 10 % hidden communication of a step of 10 ms; one all-reduce of 0.3 ms stays
    assert advice.saves.high_share == pytest.approx(0.67)
    assert advice.saves.high_ms == pytest.approx(6.7)
    assert (advice.saves.low_ms, advice.saves.basis) == (0, "bound")
    assert [one.value for one in advice.evidence] == pytest.approx([4, 0.6, 0.67])
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "high", "same")
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == ("ddp.no_sync", False, True, "train.py:31")
    assert "model.no_sync()" in change.paste


def test_the_place_is_that_of_backward_where_it_is_known(ask, make_measured, make_facts):
    facts = make_facts(ddp=[DDP], backward_where="train.py:57")
    (advice,) = ask("DP102", make_measured(exposed_share=0.6, synchronised=4), [facts])
    assert str(advice.changes[0].at) == "train.py:57"


def test_no_sync_around_backward_passes_alone_has_no_effect(ask, make_measured, make_facts):
    facts = make_facts(ddp=[DDP], backward_where="train.py:57", late_no_sync=["train.py:54", "train.py:57"])
    (advice,) = ask("DP102", make_measured(exposed_share=0.6, synchronised=4), [facts])
    assert advice.title.startswith(
        "`no_sync` around train.py:57 has no effect: the forward pass (train.py:54) must be inside. Gradients are "
        "all-reduced 4 times"
    )
    assert str(advice.changes[0].at) == "train.py:54"


def test_with_a_static_graph_the_first_step_stays_out(ask, make_measured, make_facts):
    """Under `no_sync` from the first step on torch 2.13 fails in the first backward pass."""
    static = DdpFacts("Net", "train.py:31", static_graph=True)
    (advice,) = ask("DP102", make_measured(exposed_share=0.6, synchronised=4), [make_facts(ddp=[static])])
    assert advice.changes[0].paste.startswith("with model.no_sync() if step > 0 and micro < accumulate - 1 else")
    assert "With static_graph=True synchronize every micro-batch of the first step" in advice.watch
    (usual,) = ask("DP102", make_measured(exposed_share=0.6, synchronised=4), [make_facts(ddp=[DDP])])
    assert "step > 0" not in usual.changes[0].paste
    assert "static_graph" not in usual.watch


def test_passes_of_one_batch_are_no_micro_batches(ask, make_measured, make_facts):
    """SAM, say: two passes for each batch, both needed. Two batches and two passes are accumulated."""
    for batches, many in ((1, 0), (2, 1)):
        window = Window("untraced", 5, [10] * 3, loader_batches=[batches] * 3, backwards=[2] * 3)
        facts = [make_facts(ddp=[DDP], windows=[window])]
        assert len(ask("DP102", make_measured(exposed_share=0.6, synchronised=2), facts)) == many


def test_parts_of_one_batch_are_micro_batches_where_warm_up_steps_show_that_they_add_up(ask, make_measured, make_facts):
    window = Window("untraced", 5, [10] * 3, loader_batches=[1] * 3, backwards=[2] * 3)
    for added, many in (([2, 2], 1), ([0, 0], 0)):
        seen = DiscardedGradientFacts(passes=[2, 2], discarded=[0, 0], added=added)
        facts = [make_facts(ddp=[DDP], windows=[window], discarded_gradients=seen)]
        assert len(ask("DP102", make_measured(exposed_share=0.6, synchronised=2), facts)) == many


def test_without_a_loader_it_is_not_known_whether_passes_add_up(ask, make_measured, make_facts):
    """Of SAM without a loader it would be wrong, so it is no error, and no change that leaves learning as it is."""
    (advice,) = ask("DP102", make_measured(exposed_share=0.6, synchronised=2), [make_facts(ddp=[DDP])])
    assert (advice.impact, advice.confidence, advice.numerics) == ("medium", "low", "changes")
    assert "once is enough if they add up" in advice.title
    assert "SAM needs each by itself" in advice.watch
    (small,) = ask("DP102", make_measured(exposed_share=0.08, synchronised=2), [make_facts(ddp=[DDP])])
    assert small.impact == "low"


@pytest.mark.parametrize(
    ("added", "numerics"), [([0, 4, 4], "same"), ([0, 0, 4], "changes"), ([2, 2, 2], "changes"), ([4], "changes")]
)
def test_without_a_loader_warm_up_steps_may_show_that_passes_add_up(ask, make_measured, make_facts, added, numerics):
    """Four passes in the median warm-up step of two or more, as in each untraced step."""
    facts = make_facts(
        ddp=[DDP],
        windows=[Window("untraced", 5, [10] * 3, backwards=[4] * 3)],
        discarded_gradients=DiscardedGradientFacts(passes=[4] * len(added), discarded=[0] * len(added), added=added),
    )
    (advice,) = ask("DP102", make_measured(exposed_share=0.6, synchronised=4), [facts])
    assert (advice.numerics, advice.confidence) == (numerics, "high" if numerics == "same" else "low")
    assert ("once is enough if they add up" in advice.title) == (numerics == "changes")


def test_an_optimizer_that_runs_passes_itself_needs_them(ask, make_measured, make_facts):
    facts = [make_facts(ddp=[DDP], optimizers=[OptimizerFacts("LBFGS")])]
    assert ask("DP102", make_measured(exposed_share=0.6, synchronised=20), facts) == []


def test_impact_is_what_the_repeated_part_costs(ask, make_measured, make_facts):
    (advice,) = ask("DP102", make_measured(exposed_share=0.16, synchronised=2), [make_facts(ddp=[DDP])])
    assert advice.impact == "medium"


@pytest.mark.parametrize(
    "run",
    [
        {"exposed_share": 0.6, "synchronised": 1},
        {"exposed_share": 0.6, "synchronised": 0},
        {"exposed_share": 0.01, "synchronised": 4},
    ],
)
def test_quiet(ask, make_measured, make_facts, run):
    assert ask("DP102", make_measured(**run), [make_facts(ddp=[DDP])]) == []


def test_quiet_without_ddp(ask, make_measured, make_facts):
    assert ask("DP102", make_measured(exposed_share=0.6, synchronised=4), [make_facts()]) == []


def test_the_threshold_can_be_set(ask, make_measured, make_facts):
    measured, facts = make_measured(exposed_share=0.1, synchronised=2), [make_facts(ddp=[DDP])]
    assert len(ask("DP102", measured, facts)) == 1
    assert ask("DP102", measured, facts, {"worth_share": 0.06}) == []


def test_it_says_what_it_does_not_know(ask, make_measured, make_facts):
    measured = make_measured(exposed_share=0.6, synchronised=4)
    with pytest.raises(Missing, match="dptune profile"):
        ask("DP102", measured)
    with pytest.raises(Missing, match="2 DDP modules"):
        ask("DP102", measured, [make_facts(ddp=[DDP, DdpFacts("Other")])])
    with pytest.raises(Missing, match="synchronised_backwards_per_step"):
        ask("DP102", make_measured(synchronised=None), [make_facts(ddp=[DDP])])


@given(exposed=st.floats(0, 0.99), passes=st.integers(0, 64))
def test_a_saving_leaves_the_one_reduction_that_stays(hand_made, exposed, passes):
    stays = hand_made.all_reduce(2**20, passes, 100_000)
    measured = hand_made.measured_run(exposed_share=exposed, hidden_share=0, synchronised=passes, collectives=[stays])
    for advice in ask_rule("DP102", measured, [hand_made.facts_of(ddp=[DDP])]):
        assert passes > 1
        assert advice.saves.high_share < measured.share("exposed_communication_ns")


def test_the_ceiling_is_not_shrunk_by_a_profiler_that_slowed_the_rest(ask, make_measured, make_facts):
    """Traced steps of 10 ms hold 2 ms of communication; of the real step of 5 ms that is 40 %."""
    step = make_measured().step.model_copy(update={"time_ns": 5_000_000, "untraced_median_ns": 5_000_000})
    measured = make_measured(exposed_share=0.2, hidden_share=0, synchronised=4, step=step)
    (advice,) = ask("DP102", measured, [make_facts(ddp=[DDP])])
    assert advice.saves.high_share == pytest.approx(0.4)
    assert advice.saves.high_ms == pytest.approx(2.0)


def test_what_a_step_model_says_stands_before_the_ceiling(ask, make_measured, make_facts, predict):
    """It leaves 60 % of the step of 10 ms, 5 % more or less: so 35 to 45 % go, of 64 samples."""
    measured, facts = make_measured(exposed_share=0.6, synchronised=4), [make_facts(ddp=[DDP])]
    (advice,) = ask("DP102", measured, facts, predictor=predict("ddp.no_sync", {True: 0.6}))
    assert advice.saves.basis == "replayed"
    assert (advice.saves.low_ms, advice.saves.high_ms) == (pytest.approx(3.5), pytest.approx(4.5))
    assert advice.saves.high_us_per_sample == pytest.approx(4500 / 64)
    assert advice.saves.how == f"replayed with the change, a step takes 6.00 ms instead of 10.0{UNVALIDATED}"
    assert "take about 40 % of a step" in advice.title


def test_steps_of_seconds_are_written_out(ask, make_measured, make_facts, predict):
    """A step of 1,500 ms of which the model leaves 6."""
    made = make_measured(exposed_share=0.6, synchronised=4)
    long = dict.fromkeys(("time_ns", "untraced_median_ns"), 1_500_000_000)
    measured = made.model_copy(update={"step": made.step.model_copy(update=long)})
    (advice,) = ask("DP102", measured, [make_facts(ddp=[DDP])], predictor=predict("ddp.no_sync", {True: 0.6}))
    assert advice.saves.how == f"replayed with the change, a step takes 6.00 ms instead of 1,500{UNVALIDATED}"


def test_quiet_where_a_step_model_says_that_nothing_goes(ask, make_measured, make_facts, predict):
    measured, facts = make_measured(exposed_share=0.6, synchronised=4), [make_facts(ddp=[DDP])]
    assert ask("DP102", measured, facts, predictor=predict("ddp.no_sync", {True: 0.99})) == []


def test_the_ceiling_where_the_model_does_not_tell(ask, make_measured, make_facts, predict):
    measured, facts = make_measured(exposed_share=0.6, synchronised=4), [make_facts(ddp=[DDP])]
    (advice,) = ask("DP102", measured, facts, predictor=predict("ddp.comm_hook", {}))
    assert advice.saves.basis == "bound"


@pytest.mark.parametrize(
    ("more", "fires"),
    [
        ({}, True),
        ({"fsdp": [FsdpFacts(1, units=4, mesh=[2])]}, False),
        ({"device": DeviceFacts("cpu", available_bytes=4000)}, False),  # 4,000 bytes of gradients more, nine tenths
        ({"windows": [Window("untraced", 5, [10] * 3, loader_batches=[1] * 3, backwards=[4] * 3)]}, False),
    ],
)
def test_units_of_fully_shard_reduce_in_every_micro_batch(ask, make_measured, make_facts, hand_made, more, fires):
    """Three of four reduce-scatters of 20 % of a step, and the gathers stay."""
    rows = ("reduce_scatter", "backward", 0.2, "sharding"), ("all_gather", "backward", 0.3, "sharding")
    measured = make_measured(synchronised=4, overlap=hand_made.overlap(*rows), device="cpu")
    known = {
        "fsdp": [FsdpFacts(2, units=4, modules=["Block"], where="train.py:9", mesh=[2])],
        "optimizers": [OptimizerFacts("AdamW", parameters=1000)],
        "device": DeviceFacts("cpu", available_bytes=100_000),
        "windows": [MICRO_BATCHES],
        "backward_where": "train.py:57",
    }
    found = ask("DP102", measured, [make_facts(**{**known, **more})])
    assert len(found) == fires
    for advice in found:
        assert advice.title == (
            "Gradients of FSDP units are reduce-scattered 4 times per optimizer step; once is enough: the others take "
            "15 % of a step"
        )
        (change,) = advice.changes
        assert (change.knob, change.then, str(change.at)) == ("fsdp.no_sync", True, "train.py:57")
        assert "set_requires_gradient_sync(micro == accumulate - 1)" in change.paste
        assert advice.saves.high_share == pytest.approx(0.15)


def test_the_bound_of_units_holds_what_goes_with_their_reductions(ask, make_measured, make_facts, hand_made):
    """Hooks and copies besides, 28 % of a step on the rank with most, of which one of four passes stays."""
    taken = ShardingFigures(
        hooks_ns=9, communication_ns=8, most_share=0.5, again_most_share=0.0, reduced_most_share=0.28
    )
    overlap = hand_made.overlap(("reduce_scatter", "backward", 0.2, "sharding"))
    measured = make_measured(synchronised=4, overlap=overlap, device="cpu", sharding=taken)
    facts = make_facts(
        fsdp=[FsdpFacts(2, units=4, where="train.py:9", mesh=[2])],
        device=DeviceFacts("cpu", available_bytes=100_000),
        windows=[MICRO_BATCHES],
    )
    (advice,) = ask("DP102", measured, [facts])
    assert advice.saves.basis == "bound"
    assert advice.saves.high_share == pytest.approx(3 / 4 * 0.28)
    assert "the others take 15 % of a step" in advice.title


@pytest.mark.parametrize(("reserved", "fires"), [(5_000, True), (5_001, False), (None, False)])
def test_units_keep_whole_gradients_where_a_gpu_has_room(
    ask, make_measured, make_facts, hand_made, reserved: int | None, fires: bool
):
    """4,000 bytes of gradients more on a GPU of 10,000: nine tenths are what may be used."""
    memory = {"rank": 0, "device": "cuda:0", "capacity_bytes": 10_000, "peak_reserved_bytes": reserved}
    measured = make_measured(
        synchronised=4,
        overlap=hand_made.overlap(("reduce_scatter", "backward", 0.2, "sharding")),
        memory=[MemoryFigures.only("not recorded", **memory)] if reserved else [],
    )
    facts = make_facts(
        fsdp=[FsdpFacts(2, units=4, modules=["Block"], mesh=[2])],
        optimizers=[OptimizerFacts("AdamW", parameters=1000)],
        windows=[MICRO_BATCHES],
    )
    assert len(ask("DP102", measured, [facts])) == fires


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_step_model_predicts_units(ask, make_measured, make_facts, hand_made, predict, device):
    figures = {"rank": 0, "device": "cuda:0", "capacity_bytes": 100_000, "peak_reserved_bytes": 1000}
    memory = [MemoryFigures.only("not recorded", **figures)]
    rows = ("reduce_scatter", "backward", 0.2, "sharding"), ("all_gather", "backward", 0.3, "sharding")
    measured = make_measured(synchronised=4, overlap=hand_made.overlap(*rows), device=device, memory=memory)
    facts = make_facts(
        fsdp=[FsdpFacts(2, units=4, modules=["Block"], where="train.py:9", mesh=[2])],
        optimizers=[OptimizerFacts("AdamW", parameters=1000)],
        device=DeviceFacts(device, available_bytes=100_000),
        windows=[MICRO_BATCHES],
    )
    (advice,) = ask("DP102", measured, [facts], predictor=predict("fsdp.no_sync", {True: 0.8}))
    assert (advice.saves.basis, advice.saves.predicted_share) == ("replayed", pytest.approx(0.2))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "reductions"),
    [
        ("sharded-micro-batches", 4),
        pytest.param("sharded-micro-batches-mended", 1, marks=pytest.mark.thorough),
    ],
)
def test_recorded_micro_batches_of_two_units(name, reductions):
    """Two units of 1,315,840 bytes, four micro-batches: recorded on a machine so busy that a report does not judge it.

    The rule itself is asked: what it counts does not depend on times, its share does.
    """
    run, measured = measured_of([str(RUNS / name)], 1, cached=False, links=None)
    assert measured.accumulation.synchronised_backwards_per_step == reductions
    assert [fsdp.gathered_bytes for fsdp in run.facts[0].fsdp if fsdp.mesh] == [[1_315_840] * 2]
    found = list(check(RunView(measured, list(run.facts.values()))))
    assert len(found) == (reductions > 1)
    for advice in found:
        assert advice.title.startswith("Gradients of FSDP units are reduce-scattered 4 times per optimizer step")
        assert [change.at.file for change in advice.changes] == ["train.py"]
        reduced = [row for row in measured.overlap.rows if row.kind == "reduce_scatter"]
        share = 3 / 4 * sum(row.exposed_transfer_ns for row in reduced) / measured.account.window_ns
        assert f"the others take {100 * share:.0f} % of a step" in advice.title
        whole = 3 / 4 * sum(row.communication_ns for row in reduced) / measured.account.window_ns
        assert 3 / 4 * measured.sharding.reduced_most_share > whole  # hooks and copies besides


@pytest.mark.parametrize("fits", ["yes", "no"])
def test_the_predicted_peak_decides_whether_whole_gradients_fit(make_measured, make_facts, hand_made, fits):
    rows = ("reduce_scatter", "backward", 0.2, "sharding"), ("all_gather", "backward", 0.3, "sharding")
    measured = make_measured(synchronised=4, overlap=hand_made.overlap(*rows), device="cpu")
    facts = make_facts(fsdp=[FsdpFacts(2, units=4, where="train.py:9", mesh=[2])], windows=[MICRO_BATCHES])
    sizes = {"now_bytes": 3 * 2**20, "peak_bytes": 5 * 2**20}

    def predicted(changes):
        assert changes == {"fsdp.no_sync": True}
        return MemoryPrediction.only("none", changes=changes, fits=fits, **sizes)

    found = list(check(RunView(measured, [facts], memory_predictor=predicted)))
    assert len(found) == (fits == "yes")
    for advice in found:
        assert [each.value for each in advice.evidence[-2:]] == [3, 5]


def test_of_a_range_both_ends_are_named(ask, make_measured, make_facts, predict_range):
    measured, facts = make_measured(synchronised=4, exposed_share=0.4), [make_facts(ddp=[DDP], windows=[MICRO_BATCHES])]
    (advice,) = ask("DP102", measured, facts, predictor=predict_range("ddp.no_sync", {True: (0.4, 0.9)}))
    assert advice.title.endswith("the others take 10 to 60 % of a step")
    assert (advice.saves.basis, advice.saves.predicted_share, advice.impact) == ("replayed", None, "high")
    assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx((0.1, 0.6))
    assert "a step takes 4.00 to 9.00 ms instead of 10.0: no single step time is predicted" in advice.saves.how
