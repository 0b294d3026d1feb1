"""Checkpointing where memory has room: recomputation and sizes are made up, savings are worked out by hand."""

import pytest

from dptune.measured import InferredFacts, MemoryFigures, Missing
from dptune.runfile.facts import CheckpointingFacts, DeviceFacts
from dptune.runfile.window import Window

GIB = 2**30


def run(make_facts, *, share=0.3, kept=GIB, available=100 * GIB, device=None, ranks=2):
    """The facts of ranks on one host that recompute for that share of each step."""
    window = Window("untraced", 3, [10_000_000] * 9, recomputed_ns=[int(share * 10_000_000)] * 9)
    device = device or DeviceFacts("cpu", available_bytes=available)
    own = CheckpointingFacts("train.py:12", "transformers.Trainer.train", False, kept)
    return [make_facts(rank=n, windows=[window], device=device, checkpointing=own) for n in range(ranks)]


def test_it_is_not_needed_on_a_host_with_room(ask, make_measured, make_facts):
    (advice,) = ask("DP803", make_measured(device="cpu", hidden_share=0.05), run(make_facts))
    assert advice.title == (
        "Recomputing activations takes 30 % of a step, although memory has room for them (1,024 MiB per rank)"
    )
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == (
        "memory.checkpointing",
        True,
        False,
        "train.py:12",
    )
    assert change.paste == "TrainingArguments(..., gradient_checkpointing=False)"
    # 0.3 times 30 %, less the 5 % of hidden communication; 1.3 times 30 %.
    assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx((0.04, 0.39))
    assert (advice.saves.basis, advice.saves.predicted_share) == ("timed", pytest.approx(0.3))
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "high", "same")


def test_all_ranks_of_a_host_need_room_at_once(ask, make_measured, make_facts):
    measured = make_measured(device="cpu")
    assert ask("DP803", measured, run(make_facts, available=4 * GIB + 2)) != []
    assert ask("DP803", measured, run(make_facts, available=4 * GIB - 2)) == []


def test_quiet_where_little_is_recomputed_and_without_checkpoints(ask, make_measured, make_facts):
    measured = make_measured(device="cpu")
    assert ask("DP803", measured, run(make_facts, share=0.04)) == []
    assert ask("DP803", measured, [make_facts(device=DeviceFacts("cpu"))]) == []


def test_a_trace_alone_shows_what_is_recomputed_and_perhaps_the_peak(ask, make_measured, make_facts, hand_made):
    inferred = InferredFacts(facts=make_facts(), confidence={}, recomputed_share=0.2)
    (advice,) = ask("DP803", make_measured(inferred=inferred))
    assert advice.title == (
        "Recomputing activations takes 20 % of a step: checkpoint fewer blocks, if memory has room for more activations"
    )
    assert (advice.confidence, advice.saves.basis, advice.saves.high_share) == ("low", "bound", pytest.approx(0.2))
    for peak, found in ((0.5, True), (0.85, False)):
        memory = [hand_made.figures(MemoryFigures, rank=0, device="cuda:0", peak_share=peak)]
        assert bool(ask("DP803", make_measured(inferred=inferred, memory=memory))) is found
    little = inferred.model_copy(update={"recomputed_share": 0.04})
    assert ask("DP803", make_measured(inferred=little)) == []


def card(peak):
    return DeviceFacts("cuda", memory_bytes=80 * GIB, peak_allocated_bytes=peak * GIB)


def test_a_gpu_saves_what_it_computes_again(ask, make_measured, make_facts, hand_made):
    phases = [
        one.model_copy(update={"compute_ns": 4 * hand_made.STEP_NS}) if one.phase == "forward" else one
        for one in hand_made.phases(0.4, 0.5, 0.1)
    ]
    measured = make_measured(phases=phases)
    (advice,) = ask("DP803", measured, run(make_facts, share=0.2, kept=20 * GIB, device=card(40)))
    # The forward pass computes 4 steps' time of the 10 in the account; its host part is 40 %, and 20 % run again: half.
    share = 4 / 10 / 2
    assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx((0.0, share))
    assert advice.confidence == "medium"
    assert ask("DP803", measured, run(make_facts, share=0.2, kept=30 * GIB, device=card(40))) == []


def test_what_was_not_weighed_is_missing(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="activation memory was not measured"):
        ask("DP803", make_measured(device="cpu"), run(make_facts, kept=None))
    with pytest.raises(Missing, match="free host memory"):
        ask("DP803", make_measured(device="cpu"), run(make_facts, available=None))
