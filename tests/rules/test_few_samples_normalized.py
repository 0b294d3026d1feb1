"""BatchNorm over few samples: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.facts import DeviceFacts
from dptune.runfile.norm_samples import NormSampleFacts

CPU, GPU = (DeviceFacts(kind) for kind in ("cpu", "cuda"))


def few(samples=2, values=1024, layers=3):
    return NormSampleFacts(layers, 5, samples, values, ["body.1", "body.4"], "train.py:9")


def test_two_samples_per_rank(ask, make_measured, make_facts):
    (advice,) = ask("DP311", make_measured(), [make_facts(norm_samples=few(), world_size=2, device=GPU)])
    assert advice.title == (
        "BatchNorm normalizes over 2 samples per rank in 3 layers (`body.1`, `body.4`, ...): its statistics are mostly "
        "noise"
    )
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "medium", "high")
    assert [found.value for found in advice.evidence] == [2, 1024, 3, "train.py:9"]
    assert "GroupNorm" in advice.remedy  # 2 ranks of 2 samples are still few


def test_ranks_that_have_enough_together_synchronize(ask, make_measured, make_facts):
    (advice,) = ask("DP311", make_measured(), [make_facts(norm_samples=few(), world_size=8, device=GPU)])
    assert "convert_sync_batchnorm" in advice.remedy
    (advice,) = ask("DP311", make_measured(), [make_facts(norm_samples=few(), world_size=8, device=CPU)])
    assert "convert_sync_batchnorm" not in advice.remedy  # it runs on GPUs only


def test_few_values_have_a_high_impact(ask, make_measured, make_facts):
    (advice,) = ask("DP311", make_measured(), [make_facts(norm_samples=few(samples=4, values=4), world_size=1)])
    assert advice.impact == "high"
    assert "over 4 samples in 3 layers" in advice.title
    assert advice.remedy == "Use `nn.GroupNorm` in place of BatchNorm, or a larger batch."
    (advice,) = ask(
        "DP311", make_measured(), [make_facts(norm_samples=few(samples=1, values=63, layers=1), world_size=1)]
    )
    assert (advice.impact, advice.confidence) == ("high", "medium")
    assert "over 1 sample in 1 layer (" in advice.title


@pytest.mark.parametrize("found", [None, few(samples=3), few(samples=4, values=5)])
def test_quiet(ask, make_measured, make_facts, found):
    assert ask("DP311", make_measured(), [make_facts(norm_samples=found)]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP311", make_measured(), [])
