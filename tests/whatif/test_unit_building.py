"""The step model of a recorded run of fully_shard.

Three linear layers of 1.6, 4.5 and 0.7 MB, each a unit, on two ranks over gloo, 1 Gbit/s and 0.1 ms; four traced steps,
24 untraced ones, and the link by `dptune links`.
"""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from dptune.commands.shared.reading import measured_of
from dptune.measured import Missing
from dptune.present.tui.dials import UNCHANGED, dials
from dptune.whatif.cpu.building import USUAL_CALL_NS
from dptune.whatif.cpu.building import read as read_replicated
from dptune.whatif.cpu.model import APART_SHARE
from dptune.whatif.cpu.replay import step_ns
from dptune.whatif.cpu.steadied import lasting, stretches
from dptune.whatif.cpu.unit_building import read
from dptune.whatif.cpu.wrappers import apart
from dptune.whatif.predicting import compare, predict, search
from dptune.whatif.run_model import RunModel

RECORDED = Path(__file__).parent / "units_over_1_gbit"
REPLICATED = Path(__file__).parents[2] / "sample_traces" / "tiny_buckets"
ORDER = ["4", "2", "0"]  # of backward passes


@pytest.fixture(scope="module")
def recorded():
    return measured_of([str(RECORDED)], 1, cached=False, links=RECORDED / "links.json")


@pytest.fixture(scope="module")
def ground(recorded):
    return RunModel.of(*recorded)


@pytest.mark.long
def test_each_unit_is_gathered_twice_and_reduced_once(recorded):
    found = read(*recorded)
    names = found.sharding.names
    assert names == ("0", "2", "4")
    for rank_steps in found.model().steps.values():
        for step in rank_steps:
            (only,) = step.passes
            assert [(call.kind, names[call.unit]) for call in only.calls if call.direction == "forward"] == [
                ("gather", name) for name in names
            ]
            backward = [(call.kind, names[call.unit]) for call in only.calls if call.direction == "backward"]
            assert [name for kind, name in backward if kind == "gather"] == ORDER
            assert [name for kind, name in backward if kind == "reduce"] == ORDER
            assert backward[:2] == [("gather", "4"), ("gather", "2")]  # one unit ahead
    first, *_ = found.model().steps[0]
    sizes = {names[call.unit]: call.message_bytes for call in first.passes[0].calls}
    assert sizes == {"0": 1644800, "2": 4482800, "4": 717824}
    _, measured = recorded
    reduced = [row for row in measured.shard_units.rows if row.kind == "reduce_scatter"]
    assert {row.unit: row.message_bytes for row in reduced} == sizes


@pytest.mark.long
@pytest.mark.parametrize("reads", [read, read_replicated])
def test_code_of_wrappers_takes_as_long_as_calling_operators_here(recorded, reads):
    """Recordings before this time was one of the facts have the usual one."""
    given = recorded if reads is read else measured_of([str(REPLICATED)], 1, cached=False)
    found = reads(*given)
    assert found.model().wrapper_times == 1.0
    slower = {rank: replace(facts, call_ns=2 * USUAL_CALL_NS) for rank, facts in found.facts.items()}
    assert replace(found, facts=slower).model().wrapper_times == 2.0


@pytest.mark.long
def test_hooks_of_units_take_as_long_whatever_the_batch(recorded):
    """Ranges of FSDP in the passes of a rank's steps, without its collectives, counted moment by moment, us."""
    run, _ = recorded
    found = read(*recorded).timelines[0]
    columns = run.ranks[0].light.columns
    moments = set()
    for row in range(len(columns.ts_ns)):
        if columns.name(row).startswith("FSDP::"):
            moments.update(range(int(columns.ts_ns[row]) // 1000, int(columns.ends(row)) // 1000))
    for flight in found.flights:
        moments.difference_update(range(flight.start_ns // 1000, flight.end_ns // 1000))
    assert found.calls.hooks_ns == pytest.approx(1e3 * len(moments) / len(found.steps), rel=0.1)
    model = read(*recorded).model()
    hooks_share = found.calls.hooks_ns / np.median(
        [p.forward_ns + p.backward_ns for s in found.steps for p in s.passes]
    )
    assert 0.1 < hooks_share < model.fixed_share < 1


def test_the_unchanged_replay_is_near_the_step(ground):
    assert ground.step_ns == pytest.approx(282e6, rel=0.02)
    assert ground.error_share < 0.05
    assert not ground.missed


def test_compute_and_collectives_make_up_the_step(ground):
    """By the link: 1.1 ms and 8.57 ns per byte for an all-reduce, half of both for each of two gathers, and more for
    the rank that arrives late.
    """
    model = replace(ground.model, communication_times=1.0)
    compute_ns = step_ns(replace(model, link=replace(model.link, alpha_ns=0.0, bytes_per_ns=float("inf"))))
    collectives_ns = 2 * sum(1.114e6 + size / 0.11668 for size in (1644800, 4482800, 717824))
    assert compute_ns + collectives_ns < step_ns(model) + 5e6 < compute_ns + 1.25 * collectives_ns


def test_ranks_that_compute_alike_take_less_than_the_recorded_step(ground):
    """Each stretch at its median over ranks and steps: no rank is late for a gather. Apart by turns, they are."""
    steps = ground.model.steps
    middle = [replace(step, after_ns=np.median([s.after_ns for s in chain(*steps.values())])) for step in steps[0]]
    found = np.median([stretches(step.passes[0]) for step in chain(*steps.values())], axis=0)
    alike = {rank: [replace(s, passes=(lasting(s.passes[0], found),)) for s in middle] for rank in steps}
    assert step_ns(replace(ground.model, steps=alike)) < 0.94 * ground.step_ns
    turned = replace(ground.model, steps=apart(alike, APART_SHARE))
    assert step_ns(turned) == pytest.approx(ground.step_ns, rel=0.04)


def test_units_that_stay_gathered_spare_half_of_the_gathers(ground):
    kept = ground.predict({"fsdp.reshard_after_forward": False})
    saved = ground.step_ns - kept.step_ns
    gathers_ns = sum((1.114e6 + size / 0.11668) / 2 for size in (1644800, 4482800, 717824))
    assert 0.8 * gathers_ns < saved < 2 * gathers_ns  # hooks, and what a late rank waits
    computed = replace(ground.model, link=replace(ground.model.link, alpha_ns=0.0, bytes_per_ns=float("inf")))
    differs_ns = 0.15 * step_ns(computed)  # processes differ by so much of what they compute
    assert kept.low_ns < kept.step_ns - differs_ns < kept.step_ns + differs_ns < kept.high_ns
    least_ns = 0.07 * kept.step_ns  # as far as steps of fully_shard differ between processes
    assert kept.low_ns <= kept.step_ns - least_ns < kept.step_ns + least_ns <= kept.high_ns


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"ddp.bucket_cap_mb": 1.0}, "the model is sharded by fully_shard, which has no buckets"),
        ({"fsdp.reshard_after_backward": False}, "which micro-batches of the script"),
        ({"fsdp.param_dtype": "bf16"}, "the model gives only an upper bound of the saving"),
    ],
)
def test_what_is_not_predicted_is_said_by_name(ground, settings, why):
    prediction = ground.predict(settings)
    assert prediction.known("step_ns") is None
    assert why in prediction.missing["step_ns"]


def test_a_search_predicts_each_change_of_units(recorded):
    found = search(*recorded)
    assert not found.curve
    changes = [next(iter(prediction.changes.items())) for prediction in found.predictions]
    assert changes == [
        ("fsdp.reshard_after_forward", False),
        ("fsdp.units", 1),
        ("fsdp.units", 6),
        ("fsdp.reduce_dtype", "bf16"),
    ]


def test_strategies_have_steps_and_memory(recorded):
    """Of 6.85 MB of parameters: as many of gradients and twice as many of AdamW's state, a half of all on each rank."""
    found = compare(*recorded).strategies
    whole = 1644800 + 4482800 + 717824
    assert [(strategy.name, strategy.state_bytes) for strategy in found] == [
        ("FSDP, unchanged", 2 * whole),
        ("FSDP, kept gathered", 3 * whole),
        ("DDP", 5 * whole),
    ]
    assert all(strategy.low_ns <= strategy.high_ns for strategy in found)


def test_what_the_model_does_not_cover_is_named(recorded):
    run, measured = recorded
    facts = run.facts[0]
    sharded, root = facts.fsdp

    def why(**changed):
        own = replace(facts, fsdp=[replace(sharded, **changed), root])
        with pytest.raises(Missing) as lack:
            read(replace(run, facts={**run.facts, 0: own}), measured)
        return lack.value.reason

    assert "only some of the ranks" in why(mesh=[2, 2])
    assert "not show how long units are reduced" in why(mesh=[1, 2]) or "not all-reduced" in why(mesh=[1, 2])
    assert "order of units" in why(version=1, strategy="FULL_SHARD")
    assert "sizes of units are unknown" in why(names=[], gathered_bytes=[])
    assert "a unit whose size was not recorded" in why(names=["0", "2"], gathered_bytes=[1, 1])


def test_the_link_of_other_settings(recorded, ground):
    told = predict(*recorded, [{"link.gb_per_s": 10.0}, {"world_size": 4}, {"loader.batch_size": 224}])
    faster, wider, smaller = (prediction.step_ns for prediction in told.predictions)
    assert faster < ground.step_ns < wider
    assert smaller < ground.step_ns


def test_the_full_screen_report_turns_what_units_have(recorded):
    run, measured = recorded
    found = {dial.knob: dial for dial in dials(run, measured)}
    assert not any(knob.startswith("ddp.") for knob in found)
    assert (found["fsdp.units"].values, found["fsdp.units"].now) == ((1, UNCHANGED, 6), "3")
    ground = RunModel.of(run, measured)
    for knob in ("fsdp.reshard_after_forward", "fsdp.units", "fsdp.reduce_dtype", "wrapper"):
        value = next(value for value in found[knob].values if value != UNCHANGED)
        assert ground.predict({knob: value}).step_ns > 0
