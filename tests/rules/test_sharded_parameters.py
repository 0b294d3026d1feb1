from dataclasses import replace

import pytest

from dptune.measured import LoadFigures, MemoryFigures, Missing, ShardingFigures
from dptune.runfile.communication import FsdpFacts
from dptune.runfile.facts import DeviceFacts, OptimizerFacts
from dptune.runfile.window import Window

ROWS = ("all_gather", "forward", 0.09), ("all_gather", "backward", 0.01), ("reduce_scatter", "backward", 0.2)
SHARDED = FsdpFacts(2, units=5, where="train.py:9", modules=["Block"], reshard_after_forward=True)
KEPT = "fsdp.reshard_after_forward"
TAKEN = ShardingFigures(hooks_ns=9, communication_ns=8, most_share=0.42, units_most_share=0.3, again_most_share=0.12)


@pytest.fixture
def told(ask, make_measured, make_facts, hand_made):
    def say(
        rows=ROWS, sharded=SHARDED, parameters=1000, peak=None, waiting=0.0, facts=None, ranks=1, predictor=None, **more
    ):
        if peak is not None:
            one = {"rank": 0, "device": "cuda:0", "capacity_bytes": 100_000, "peak_reserved_bytes": peak}
            more["memory"] = [hand_made.figures(MemoryFigures, peak_share=peak / 100_000, **one)]
        of_hooks = [row if len(row) == 4 else (*row, "sharding") for row in rows]
        known = {"overlap": hand_made.overlap(*of_hooks, waiting=waiting), "sharding": TAKEN}
        run = make_measured(**{**known, "device": "cpu", **more})
        known = {"fsdp": [sharded], "optimizers": [OptimizerFacts("AdamW", parameters=parameters)], **(facts or {})}
        return ask("DP204", run, [make_facts(rank=rank, **known) for rank in range(ranks)], predictor=predictor)

    return say


def test_gathering_holds_up_steps(told):
    (advice,) = told()
    assert advice.title == (
        "Exposed FSDP all-gathers take 10 % of a step, and memory has room: DistributedDataParallel needs no "
        "all-gathers"
    )
    assert advice.saves.high_share == pytest.approx(0.42)  # all that sharding takes
    assert (advice.impact, advice.saves.basis, advice.fingerprint) == ("medium", "bound", "DP204:Block")
    assert [one.label for one in advice.evidence][:2] == [
        "exposed all-gathers (forward phase)",
        "exposed all-gathers (backward phase)",
    ]


@pytest.mark.parametrize("more", [{}, {"device": "cuda", "peak": 60_000}], ids=["cpu", "cuda"])
def test_the_step_model_predicts_replicas(told, predict, more):
    """It leaves 70 % of the step of 10 ms, 5 % more or less; where it leaves all but 2 %, nothing is proposed."""
    (advice,) = told(predictor=predict("wrapper", {"ddp": 0.7}), **more)
    assert (advice.saves.basis, advice.saves.predicted_share) == ("replayed", pytest.approx(0.3))
    assert advice.impact == "high"
    assert told(predictor=predict("wrapper", {"ddp": 0.98}), **more) == []
    (bounded,) = told(
        sharded=FsdpFacts(1, units=5, reshard_after_forward=True), predictor=predict("wrapper", {"ddp": 0.7}), **more
    )
    assert bounded.saves.basis == "bound"  # of FullyShardedDataParallel


@pytest.mark.parametrize(
    ("peak", "parameters", "words"),
    [
        (
            74_000,
            1000,
            "DistributedDataParallel needs no all-gathers",
        ),  # 16,000 more for the other of two ranks: 90,000
        (74_001, 1000, None),
        (70_000, 2000, "`reshard_after_forward=False` gathers each layer once"),
        (70_001, 2000, None),
    ],
)
def test_on_a_gpu_there_must_be_room(told, peak, parameters, words):
    rows = ("all_gather", "forward", 0.06), ("all_gather", "backward", 0.08)
    found = told(device="cuda", peak=peak, parameters=parameters, rows=rows)
    assert [one.title.rpartition(": ")[2] for one in found] == ([words] if words else [])


def test_keeping_layers_gathered_spares_what_backward_passes_gather(told):
    """And takes their memory: 2,000 parameters a rank are 16,000 bytes of two ranks' layers."""
    more = {"device": "cuda", "peak": 70_000, "parameters": 2000}
    (advice,) = told(rows=[("all_gather", "forward", 0.06), ("all_gather", "backward", 0.08)], **more)
    assert advice.saves.high_share == pytest.approx(0.12)  # gathering again, overlapped or not
    assert advice.title.startswith("Exposed FSDP all-gathers take 8 % of a step")
    assert told(rows=[("all_gather", "forward", 0.2), ("all_gather", "backward", 0.01)], **more) == []
    many = {**more, "parameters": 2600}  # 20,800 on top of 70,000
    assert told(rows=[("all_gather", "backward", 0.3)], **many) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_replicas_are_no_alternative_to_units_in_16_bits(told, dtype):
    """DistributedDataParallel would compute in fp32. Layers can stay gathered; on a CPU, where that memory is known."""
    rows = ("all_gather", "forward", 0.06), ("all_gather", "backward", 0.08)
    narrow = replace(SHARDED, parameter_dtype=dtype)
    (advice,) = told(device="cuda", peak=50_000, rows=rows, sharded=narrow)
    assert advice.title.endswith("`reshard_after_forward=False` gathers each layer once")
    assert {change.knob for change in advice.changes} == {"fsdp.reshard_after_forward"}
    assert "DistributedDataParallel" not in f"{advice.remedy} {advice.watch}"
    added = next(one for one in advice.evidence if one.label == "gathered layers add (fp32)")
    assert added.value == pytest.approx(4 * 1000 * 2 / 2**20)  # of both ranks
    assert not any("replicas" in one.label for one in advice.evidence)
    assert told(device="cuda", peak=80_000, rows=rows, sharded=narrow) == []
    assert told(rows=rows, sharded=narrow) == []
    (whole,) = told(device="cuda", peak=50_000, rows=rows, sharded=replace(SHARDED, parameter_dtype="float32"))
    assert whole.title.endswith("DistributedDataParallel needs no all-gathers")


def test_quiet(told):
    assert told(rows=[("all_gather", "forward", 0.04)]) == []
    (advice,) = told(rows=[("all_gather", "forward", 0.06)])  # less than a healthy script may pay
    assert advice.confidence == "low"
    assert told(rows=[("all_gather", "forward", 0.3)], sharded=FsdpFacts(2, offload="CPUOffload")) == []
    assert told(world=1) == []
    assert told(device="cuda", peak=70_000, parameters=2000, sharded=FsdpFacts(2, reshard_after_forward=False)) == []


def test_memory_that_is_not_known(told):
    with pytest.raises(Missing, match="GPU memory use was not recorded"):
        told(device="cuda", memory=[])


def test_on_a_cpu_gathers_of_backward_passes_do_not_decide(told):
    """A gather blocks there, and DDP's all-reduces would send as much."""
    assert told(rows=[("all_gather", "forward", 0.04), ("all_gather", "backward", 0.2)]) == []
    rows = [("all_gather", "forward", 0.06), ("all_gather", "backward", 0.08)]
    assert len(told(device="cuda", peak=70_000, parameters=100, rows=rows)) == 1


def test_gathered_layers_can_be_kept_from_outside(told):
    rows = [("all_gather", "forward", 0.06), ("all_gather", "backward", 0.08)]
    (advice,) = told(device="cuda", peak=70_000, parameters=2000, rows=rows)
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == (
        "fsdp.reshard_after_forward",
        True,
        False,
        "train.py:9",
    )


def test_what_the_script_gathers_itself_is_not_blamed_on_sharding(told):
    def own(share):
        return ("all_gather", "forward", share, "other")

    assert told(rows=[own(0.3), ("all_gather", "forward", 0.04)]) == []
    (advice,) = told(rows=[own(0.09), *ROWS])
    assert advice.title.startswith("Exposed FSDP all-gathers take 10 % of a step")
    assert told(rows=[own(0.11), *ROWS]) == []  # whose gathers are what to change
    with pytest.raises(Missing, match="do not show which all-gathers FSDP issued"):
        told(rows=[("all_gather", "forward", 0.3, None)])


def test_the_wait_for_a_late_rank_is_no_gathering(told):
    (advice,) = told(waiting=0.4)
    assert advice.title.startswith("Exposed FSDP all-gathers take 6 % of a step")
    assert told(waiting=0.6) == []


def test_a_slow_profiler_raises_the_upper_bound(told, make_measured):
    """A traced step of 10 ms that takes 8 without the profiler: 4.2 ms of it are 52 %."""
    step = make_measured().step.model_copy(update={"median_ns": 8_000_000, "untraced_median_ns": 8_000_000})
    (advice,) = told(step=step)
    assert advice.saves.high_share == pytest.approx(0.525)


def test_gathered_layers_that_are_kept_are_gathered_once(told):
    room = {"device": DeviceFacts("cpu", available_bytes=10**9)}
    (advice,) = told(sharded=FsdpFacts(2, modules=["Block"], reshard_after_forward=False), facts=room)
    assert advice.why == "Each layer is gathered before its forward pass; unsharded parameters are never gathered."
    assert advice.remedy == "Use `DistributedDataParallel` in place of `fully_shard`."  # the rest is set already
    assert advice.confidence == "low"
    (advice,) = told(facts=room)
    assert "Or pass `reshard_after_forward=False`, which needs less memory (to try it: " in advice.remedy
    assert advice.confidence == "medium"


def test_a_root_without_parameters_is_no_unit(told):
    """It gathers nothing. Blocks and a root with an embedding are six."""
    blocks = replace(SHARDED, mesh=[2])
    for root, units in ((FsdpFacts(2, units=1, modules=["Net"]), 5), (FsdpFacts(2, units=1, mesh=[2]), 6)):
        (advice,) = told(facts={"fsdp": [blocks, root]})
        assert [one.value for one in advice.evidence if one.label == "sharded units"] == [units]


def test_what_a_change_sets_is_not_repeated_below_it(told):
    room = {"device": DeviceFacts("cpu", available_bytes=10**9)}
    sharded = FsdpFacts(2, modules=["Block"], reshard_after_forward=True, mesh=[2], root=True, where="train.py:5")
    (advice,) = told(sharded=sharded, facts=room)
    (change,) = advice.changes
    assert (change.knob, change.then, str(change.at)) == ("wrapper", "ddp", "train.py:5")
    assert advice.remedy.startswith("Or pass `reshard_after_forward=False`")


@pytest.mark.parametrize(("withheld", "fires"), [(0.04, True), (0.05, False)])
def test_on_a_busy_machine_waits_for_cores_look_like_gathering(told, hand_made, withheld, fires):
    load = {"host": "one", "window": "untraced", "cores": 2, "job_cores": 1.0, "other_cores": 0.5}
    load = [hand_made.figures(LoadFigures, **load, withheld_share=withheld)]
    if fires:
        assert len(told(load=load)) == 1
    else:
        with pytest.raises(Missing, match="other processes withheld 5 % of the CPU time"):
            told(load=load)


def test_on_a_cpu_the_host_must_have_room(told):
    """Each of two ranks would hold 4 copies of the other's 1,000 floats: 32,000 bytes, nine tenths at most."""

    def confidences(left):
        return [one.confidence for one in told(facts={"device": DeviceFacts("cpu", available_bytes=left)}, ranks=2)]

    assert confidences(36_000) == ["medium"]
    assert confidences(35_000) == []
    assert confidences(None) == ["low"]


@pytest.mark.parametrize(("backwards", "repeated"), [(1, True), (2, False)])
def test_several_forward_passes_before_a_backward_pass(ask, make_measured, make_facts, hand_made, backwards, repeated):
    """Two views of a sample gather each layer twice; two micro-batches do, too, but each has a backward pass."""
    overlap = hand_made.overlap(*((*row, "sharding") for row in ROWS))
    measured = make_measured(overlap=overlap, sharding=TAKEN, device="cpu")
    steps = sum(len(rank.devices[0].steps) for rank in measured.ranks)
    rows = [row.model_copy(update={"calls": 2 * 5 * steps}) for row in measured.overlap.rows]
    measured = make_measured(overlap=overlap.model_copy(update={"rows": rows}), sharding=TAKEN, device="cpu")
    window = Window("untraced", 4, backwards=[backwards] * 9)
    (advice,) = ask("DP204", measured, [make_facts(fsdp=[SHARDED], windows=[window])])
    assert ("`reshard_after_forward=False` (train.py:9) gathers each layer once" in advice.title) == repeated
    assert ("before each forward pass and again" in advice.why) == repeated
    assert [one.value for one in advice.evidence if one.label.startswith("forward passes")] == [2.0] * repeated


@pytest.mark.parametrize(
    ("replicas", "once", "settings"), [(0.97, 0.9, {KEPT: False}), (0.7, 0.6, {"wrapper": "ddp"}), (0.97, 0.98, None)]
)
def test_gathering_once_is_proposed_where_only_that_surely_saves(told, predict, replicas, once, settings):
    """Predictions are 5 % of the step less and more: replicas at 0.97 of the step may save nothing.

    Gathers of backward passes take 1 % here: the prediction decides, not what they take.
    """

    def predictor(change):
        knob, value, share = ("wrapper", "ddp", replicas) if "wrapper" in change else (KEPT, False, once)
        return predict(knob, {value: share})(change)

    advice = told(predictor=predictor)
    assert [each.saves.settings for each in advice] == ([settings] if settings else [])
    if settings:
        saved = 1 - (once if KEPT in settings else replicas)
        assert advice[0].saves.predicted_share == pytest.approx(saved)
        assert ("reshard_after_forward" in advice[0].title) is (KEPT in settings)


def test_replicas_are_a_change_of_the_script(told):
    """Of the line that shards the whole model; none of a 2-D mesh, nor of FullyShardedDataParallel."""
    sharded = replace(SHARDED, mesh=[2], root=True)
    (advice,) = told(sharded=sharded)
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == ("wrapper", "fsdp", "ddp", "train.py:9")
    assert [told(sharded=other)[0].changes for other in (replace(sharded, mesh=[2, 2]), FsdpFacts(1, mesh=[2]))] == [
        [],
        [],
    ]
