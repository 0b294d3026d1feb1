"""A KL divergence with another weight than the reconstruction: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.divergence_weights import DivergenceWeightFacts

SAMPLES, LATENTS, ELEMENTS = 64, 20, 784


def weights(**changed):
    """Of a summed reconstruction and a divergence that is averaged over all its values."""
    known = {"where": "vae.py:41", "passes": 3, "passes_seen": 4, "function": "binary_cross_entropy"}
    sizes = {"samples": SAMPLES, "latents": LATENTS, "elements": ELEMENTS}
    return DivergenceWeightFacts(**{**sizes, **known, "divergence_weight": 1 / (SAMPLES * LATENTS), **changed})


def asked(ask, make_measured, make_facts, *found):
    return ask("DP321", make_measured(), [make_facts(rank=at, divergence_weights=list(found)) for at in (0, 1)])


def test_an_averaged_divergence(ask, make_measured, make_facts):
    (advice,) = asked(ask, make_measured, make_facts, weights())
    assert advice.title == (
        "Loss reductions differ: the KL divergence (vae.py:41) has 1/1,280 of its weight in the evidence lower bound"
    )
    assert advice.why.startswith("A latent dimension counts 1/1,280 as much as an element of the reconstruction.")
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    assert [each.value for each in advice.evidence] == [3, LATENTS, ELEMENTS, "vae.py:41"]
    assert advice.evidence[0].unit == "of 4"


def test_an_averaged_reconstruction(ask, make_measured, make_facts):
    found = weights(divergence_weight=1 / SAMPLES, reconstruction_weight=1 / (SAMPLES * ELEMENTS), where=None)
    (advice,) = asked(ask, make_measured, make_facts, found)
    assert advice.title == (
        "Loss reductions differ: the KL divergence has 784 times its weight in the evidence lower bound"
    )
    assert "ignore the latents" in advice.why
    assert (advice.impact, advice.confidence) == ("medium", "medium")


@pytest.mark.parametrize("factor", [1, 0.5])
def test_two_means(ask, make_measured, make_facts, factor):
    found = weights(reconstruction_weight=factor / (SAMPLES * ELEMENTS))
    assert found.ratio > 16
    assert asked(ask, make_measured, make_facts, found) == []


@pytest.mark.parametrize(("ratio", "fires"), [(1 / 8.1, True), (1 / 7.9, False), (15.9, False), (16.1, True)])
def test_how_far_off(ask, make_measured, make_facts, ratio, fires):
    assert bool(asked(ask, make_measured, make_facts, weights(divergence_weight=ratio))) == fires


def test_each_is_named(ask, make_measured, make_facts):
    found = asked(ask, make_measured, make_facts, weights(), weights(latents=40))
    assert len({advice.fingerprint for advice in found}) == 2


def test_a_single_pass_is_not_enough(ask, make_measured, make_facts):
    assert asked(ask, make_measured, make_facts, weights(passes=1)) == []
    assert asked(ask, make_measured, make_facts) == []


def test_traces_alone_do_not_show_it(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP321", make_measured(), [])
