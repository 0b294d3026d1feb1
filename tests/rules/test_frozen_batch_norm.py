import pytest

from dptune.measured import Missing
from dptune.runfile.frozen_norms import FrozenNormFacts


def test_a_frozen_backbone(ask, make_measured, make_facts):
    norms = FrozenNormFacts(4, ["backbone"], ["backbone.0.1", "backbone.0.4"], "train.py:70", "train.py:44")
    (advice,) = ask("DP302", make_measured(), [make_facts(), make_facts(rank=1, frozen_norms=norms)])
    assert advice.title == (
        "4 frozen BatchNorm layers run in training mode in `backbone` (train.py:70): "
        "call `backbone.eval()` after each `model.train()`"
    )
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "medium", "medium", None)
    assert [one.value for one in advice.evidence] == [4, "backbone.0.1, backbone.0.4", "train.py:70", "train.py:44"]


def test_where_nothing_calls_train(ask, make_measured, make_facts):
    norms = FrozenNormFacts(1, ["encoder", "neck"], ["encoder.bn"], None, "train.py:44")
    (advice,) = ask("DP302", make_measured(), [make_facts(frozen_norms=norms)])
    assert advice.title.startswith("A frozen BatchNorm layer runs in training mode in `encoder`, `neck` (train.py:44):")
    assert advice.remedy == "Call `encoder.eval()` and `neck.eval()` before training, and after each `model.train()`."
    assert advice.why.endswith("Modules are created in training mode, and the script has not called `train()` yet.")


def test_quiet(ask, make_measured, make_facts):
    assert ask("DP302", make_measured(), [make_facts()]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP302", make_measured(), [])
