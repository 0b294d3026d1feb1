"""Parameters that no optimizer holds: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.left_out import LeftOutFacts


def missed(**changed):
    found = {"optimizer": "AdamW", "optimizer_where": "train.py:32", "where": "train.py:43", "modules": ["fc"]}
    return LeftOutFacts(**{**found, "tensors": 2, "of_tensors": 14, "parameters": 2430, **changed})


def test_a_layer_that_was_replaced(ask, make_measured, make_facts):
    later = missed(added_later=True, added_where="adapt (train.py:38)")
    (advice,) = ask("DP113", make_measured(), [make_facts(), make_facts(rank=1, left_out=[later])])
    assert advice.title == (
        "AdamW (train.py:32) does not hold 2,430 parameters of `fc` that get gradients: they are never updated"
    )
    assert advice.why == (
        "They were added to the model in adapt (train.py:38) after the optimizer was created, so the optimizer does "
        "not hold them."
    )
    assert "add_param_group" in advice.remedy
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)


def test_a_module_that_the_list_of_parameters_lacks(ask, make_measured, make_facts):
    facts = make_facts(left_out=[missed(parameters=1, modules=["4"]), missed(modules=["4"], where="train.py:50")])
    (advice,) = ask("DP113", make_measured(), [facts])
    assert "1 parameter of layer `4` that" in advice.title
    assert advice.remedy.startswith("Pass them to the optimizer.")
    assert (advice.impact, advice.confidence) == ("high", "medium")


def test_layers_in_a_plain_list(ask, make_measured, make_facts):
    listed = missed(listed_in="Net.layers", listed_where="net.py:27")
    (advice,) = ask("DP113", make_measured(), [make_facts(left_out=[listed])])
    assert advice.title == (
        "`Net.layers` (net.py:27) hides 2,430 parameters of `fc` from AdamW (train.py:32): they get gradients and are "
        "never updated"
    )
    assert advice.why == (
        "`Net.layers` is a plain list or dict, so `parameters()`, `to()`, `train()` and `state_dict()` do not reach "
        "its modules."
    )
    assert str(advice.place) == "net.py:27"
    assert advice.remedy.startswith("Make `Net.layers` an nn.ModuleList or nn.ModuleDict.")
    assert "net.py:27" in [evidence.value for evidence in advice.evidence]


def test_quiet_where_optimizers_hold_all(ask, make_measured, make_facts):
    assert ask("DP113", make_measured(), [make_facts()]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP113", make_measured(), [])
