import pytest

from dptune.measured import MemoryFigures, Place
from dptune.runfile.communication import FsdpFacts


def memory(hand_made, *shares, steps_ns=None):
    known = {"malloc_calls_per_step": 12.0, "malloc_steps_ns": steps_ns}
    return [
        hand_made.figures(MemoryFigures, rank=n, device="cuda:0", malloc_share=share, **known)
        for n, share in enumerate(shares)
    ]


def test_the_rank_with_most_of_it(ask, make_measured, make_facts, hand_made):
    run = make_measured(memory=memory(hand_made, 0.03, 0.2), wait_share=0.5)
    (advice,) = ask("DP801", run, [make_facts()])
    assert advice.title == "Allocating and freeing GPU memory costs up to 25 % of a step"
    (change,) = advice.changes
    assert (change.knob, change.now, change.then) == (
        "env.PYTORCH_CUDA_ALLOC_CONF",
        None,
        "expandable_segments:True",
    )
    assert advice.saves.high_share == pytest.approx(1.25 * 0.2)  # the queue refills after the calls
    assert [(one.value, one.rank) for one in advice.evidence] == [(0.2, 1), (0.5, 1), (12.0, 1)]


def test_a_call_that_waits_for_a_busy_gpu_makes_no_step_longer(ask, make_measured, hand_made):
    """Rank 0 is in calls for 40 % of a step, while its GPU, idle for 5 %, waits for rank 1: that has 10 % of calls."""
    busy, idle = hand_made.account(exposed_share=0.85, input_share=0.05), hand_made.account(input_share=0.5)
    longest = {"malloc": Place(rank=0, start_ns=0, end_ns=4_000_000)}
    run = make_measured(memory=memory(hand_made, 0.4, 0.1), longest=longest)
    (device,) = run.ranks[0].devices
    ranks = []
    for rank, own in zip(run.ranks, (busy, idle), strict=True):
        steps = [step.model_copy(update={"account": own}) for step in device.steps]
        ranks.append(rank.model_copy(update={"devices": [device.model_copy(update={"steps": steps})]}))
    (advice,) = ask("DP801", run.model_copy(update={"ranks": ranks}))
    assert advice.title == "Allocating and freeing GPU memory costs up to 12 % of a step"
    assert (advice.impact, advice.saves.high_share) == ("medium", pytest.approx(1.25 * 0.1))
    assert [(one.value, one.rank) for one in advice.evidence[:2]] == [(0.1, 1), (0.5, 1)]
    assert advice.evidence[0].end_ns is None  # the longest call is one of rank 0
    (advice,) = ask("DP801", run.model_copy(update={"ranks": ranks, "memory": memory(hand_made, 0.4)}))
    assert advice.saves.high_share == pytest.approx(0.05)
    assert advice.evidence[0].end_ns == 4_000_000


def test_memory_without_a_cache_has_a_rule_of_its_own(ask, make_measured, make_facts, hand_made):
    switched = make_facts(environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    assert ask("DP801", make_measured(memory=memory(hand_made, 0.2)), [switched]) == []


def test_what_is_set_already_stays(ask, make_measured, make_facts, hand_made):
    run = make_measured(memory=memory(hand_made, 0.2), wait_share=0.5)
    told = make_facts(environment={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"})
    (advice,) = ask("DP801", run, [told])
    assert advice.changes[0].then == "max_split_size_mb:128,expandable_segments:True"
    told = make_facts(environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    assert ask("DP801", run, [told])[0].changes == []
    assert ask("DP801", make_measured(device="rocm", memory=memory(hand_made, 0.2)))[0].changes == []


def test_what_is_set_by_the_newer_name_counts(ask, make_measured, make_facts, hand_made):
    run = make_measured(memory=memory(hand_made, 0.2), wait_share=0.5)
    (change,) = ask("DP801", run, [make_facts(environment={"PYTORCH_ALLOC_CONF": "max_split_size_mb:128"})])[0].changes
    assert (change.knob, change.now) == ("env.PYTORCH_ALLOC_CONF", "max_split_size_mb:128")
    assert change.then == "max_split_size_mb:128,expandable_segments:True"
    both = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert ask("DP801", run, [make_facts(environment=both)])[0].changes == []


def test_quiet(ask, make_measured, hand_made):
    assert ask("DP801", make_measured(memory=memory(hand_made, 0.01))) == []
    assert ask("DP801", make_measured(memory=memory(hand_made, 0.2))) == []  # the GPU is never idle
    assert ask("DP801", make_measured(memory=[])) == []
    assert ask("DP801", make_measured(device="cpu")) == []


def test_one_step_of_three_has_the_calls(ask, make_measured, hand_made):
    """Of 33 ms in calls, 30 are in the second step; of 30 ms each, all three steps pay."""
    once = memory(hand_made, 0.2, steps_ns=[1_500_000, 30_000_000, 1_500_000])
    (advice,) = ask("DP801", make_measured(memory=once, wait_share=0.5))
    assert advice.title.endswith("costs up to 25 % of the mean step, most of it in 1 of 3 steps")
    assert advice.saves.mean_step_ms == pytest.approx(10)
    told = advice.evidence[-1]
    assert (told.label, told.unit, told.rank) == ("spent in 1 of 3 steps", "of the time in these calls", 0)
    assert told.value == pytest.approx(30 / 33)
    always = memory(hand_made, 0.2, steps_ns=[10_000_000] * 3)
    (advice,) = ask("DP801", make_measured(memory=always, wait_share=0.5))
    assert advice.title.endswith("of a step")
    assert advice.saves.mean_step_ms is None


def test_units_that_stay_gathered_where_memory_is_full(ask, make_measured, make_facts, hand_made):
    """92 of 100 bytes are reserved; a root of its own stays gathered by torch's default, and is not meant."""

    def remedy(fsdp, reserved=92):
        sizes = {"capacity_bytes": 100, "peak_reserved_bytes": reserved}
        (full,) = memory(hand_made, 0.2)
        figures = hand_made.figures(MemoryFigures, rank=0, device="cuda:0", malloc_share=full.malloc_share, **sizes)
        return ask("DP801", make_measured(memory=[figures], wait_share=0.5), [make_facts(fsdp=[fsdp])])[0].remedy

    kept = FsdpFacts(2, units=1, where="train.py:7", names=["layers.0"], mesh=[2], reshard_after_forward=False)
    assert remedy(kept) == (
        "92 % of the GPU memory is reserved, and units stay gathered after their forward pass: pass "
        "`reshard_after_forward=True` to `fully_shard` at train.py:7."
    )
    assert remedy(kept, reserved=80) == ""
    assert remedy(FsdpFacts(2, names=[""], mesh=[2], reshard_after_forward=False)) == ""
    assert remedy(FsdpFacts(2, names=["layers.0"], mesh=[2], reshard_after_forward=True)) == ""
