import pytest

from dptune.measured import MemoryFigures


def memory(hand_made, *shares):
    return [
        hand_made.figures(MemoryFigures, rank=n, device=f"cuda:{n}", malloc_share=share, malloc_calls_per_step=12.0)
        for n, share in enumerate(shares)
    ]


def test_the_rank_with_most_of_it(ask, make_measured, make_facts, hand_made):
    run = make_measured(memory=memory(hand_made, 0.03, 0.2))
    (advice,) = ask("DP801", run, [make_facts()])
    assert advice.title == "Taking and returning memory of the GPU takes 20 % of a step"
    (change,) = advice.changes
    assert (change.knob, change.now, change.then) == (
        "env.PYTORCH_CUDA_ALLOC_CONF",
        None,
        "expandable_segments:True",
    )
    assert advice.saves.high_share == pytest.approx(0.2)
    assert [(one.value, one.rank) for one in advice.evidence] == [(0.2, 1), (12.0, 1)]


def test_memory_without_a_cache_has_a_rule_of_its_own(ask, make_measured, make_facts, hand_made):
    switched = make_facts(environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    assert ask("DP801", make_measured(memory=memory(hand_made, 0.2)), [switched]) == []


def test_what_is_set_already_stays(ask, make_measured, make_facts, hand_made):
    run = make_measured(memory=memory(hand_made, 0.2))
    told = make_facts(environment={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"})
    (advice,) = ask("DP801", run, [told])
    assert advice.changes[0].then == "max_split_size_mb:128,expandable_segments:True"
    told = make_facts(environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    assert ask("DP801", run, [told])[0].changes == []
    assert ask("DP801", make_measured(device="rocm", memory=memory(hand_made, 0.2)))[0].changes == []


def test_quiet(ask, make_measured, hand_made):
    assert ask("DP801", make_measured(memory=memory(hand_made, 0.01))) == []
    assert ask("DP801", make_measured(memory=[])) == []
    assert ask("DP801", make_measured(device="cpu")) == []
